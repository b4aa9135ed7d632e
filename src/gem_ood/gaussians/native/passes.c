/* The passes over rows that no library has in one: scoring by tied Gaussians, and the sums of a fit.

   Every function is compiled once for each instruction set that it may meet, and the widest that the processor has is
   taken. Nothing here allocates or knows Python: callers hand over memory and hold no lock meanwhile. */

#if !defined(__x86_64__) || !defined(__GNUC__) || defined(__clang__)
#error "these passes are written for GCC and x86-64; elsewhere NumPy does the work"
#endif

#ifndef SOURCE
#error "-DSOURCE is missing: hatch_build.py gives the digest of these files"
#endif

#include <stddef.h>
#include <stdint.h>

/* Sums that a panel of a product holds in registers: for PANEL outputs of two vectors of rows, 12 of 16 at the least. */
enum { PANEL = 6 };

/* A product runs over so many of its inputs at a time: as many columns of rows as the innermost cache holds. */
enum { DEPTH = 192 };

/* So many rows are centred before their products are summed up: one block of their columns lies in the innermost cache,
   and some blocks together lie in the next one. */
enum { ROWS_LAID_OUT = 160, BLOCKS_TOGETHER = 10 };

/* Vectors in a block of columns: with as many columns as a vector has lanes, their products are three quarters of the
   registers of either set. */
enum { FITTED_VECTORS = 3 };

/* Squares are summed up in runs of so many: rounding then grows with the length of a run and with their number. */
enum { SUMMED = 16 };

/* Tied Gaussians as `pack` lays them out; all arrays are of one number type. */
struct model {
    ptrdiff_t n_features, rank, n_classes;
    int64_t is_triangular;    /* whether output c of the whitener has no inputs after c */
    const void *centre;       /* n_features */
    const void *whitener;     /* packed */
    const void *packed_means; /* packed */
    const void *means;        /* n_classes × rank, in C order */
    const void *bias;         /* n_classes, then zeros up to a whole panel */
};

static ptrdiff_t smaller(ptrdiff_t a, ptrdiff_t b) { return a < b ? a : b; }

static ptrdiff_t whole_panels(ptrdiff_t n) { return (n + PANEL - 1) / PANEL * PANEL; }

/* How many inputs the panel that begins at an output has: all, or those up to its last output where W is triangular. */
static ptrdiff_t inputs_of(ptrdiff_t output, ptrdiff_t n_inputs, int64_t is_triangular) {
    return is_triangular ? smaller(output + PANEL, n_inputs) : n_inputs;
}

/* exp(x) = 1 + x + x²/2! + ... */
static const double INVERSE_FACTORIALS[] = {
    1.0,       1.0,        1.0 / 2,      1.0 / 6,       1.0 / 24,       1.0 / 120,       1.0 / 720,
    1.0 / 5040, 1.0 / 40320, 1.0 / 362880, 1.0 / 3628800, 1.0 / 39916800, 1.0 / 479001600, 1.0 / 6227020800,
};

#define JOINED_(name, set, type) name##_##set##_##type
#define JOINED(name, set, type) JOINED_(name, set, type)

#pragma GCC push_options
#pragma GCC target("avx512f,avx512dq,avx512bw,avx512vl,avx2,fma,prefer-vector-width=512")
#define SET avx512
#define VECTOR_BYTES 64
#include "one_set.h"
#pragma GCC pop_options

#pragma GCC push_options
#pragma GCC target("avx2,fma")
#define SET avx2
#define VECTOR_BYTES 32
#include "one_set.h"
#pragma GCC pop_options

enum { NOTHING, AVX2, AVX512 };

static int64_t most = AVX512;

/* Which vectors are taken here: with NOTHING, nothing else may be called. */
int64_t level(void) {
    int64_t found = NOTHING;
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) found = AVX2;
    if (found && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl"))
        found = AVX512;
    return found < most ? found : most;
}

/* Take no wider vectors than these. */
void limit_level(int64_t widest) { most = widest; }

/* What it was compiled from. */
const char *source(void) { return SOURCE; }

#define CALL_AT(level, name, type, ...) \
    ((level) == AVX512 ? JOINED(name, avx512, type)(__VA_ARGS__) : JOINED(name, avx2, type)(__VA_ARGS__))
#define CALL(name, type, ...) CALL_AT(level(), name, type, __VA_ARGS__)

int64_t panel_size(void) { return PANEL; }

/* Bytes of working memory that scoring needs, with the widest vectors: room for the rows of two of them. */
int64_t workspace_bytes(int64_t n_features, int64_t rank, int64_t n_classes) {
    int64_t widest = n_features > rank ? n_features : rank;
    return 2 * 64 * (n_features + widest + whole_panels(rank) + whole_panels(n_classes));
}

/* Write what there is to know of each row, and return in how many of them something overflowed or was no number.

   rows, n_rows, bytes_apart, is_double: the numbers of a row follow each other, and rows begin so many bytes apart.
   halves: half the squared distance to the best class.
   best: the place of the class with the largest logit, the first of equal ones.
   sums: of exp(logit − that of the best class + log weight − reference) over the classes, or NULL.
   references: the largest logit − that of the best class + log weight, which is 0 without weights; or NULL. */
#define SCORE(TYPE)                                                                                            \
    int64_t score_##TYPE(const struct model *model, const void *rows, int64_t n_rows, int64_t bytes_apart,     \
                         int64_t is_double, const TYPE *log_weights, void *workspace, TYPE *halves,            \
                         int64_t *best, TYPE *sums, TYPE *references) {                                        \
        return CALL(score, TYPE, model, rows, n_rows, bytes_apart, is_double, log_weights, workspace, halves,  \
                    best, sums, references);                                                                   \
    }
SCORE(float)
SCORE(double)

/* Lay a matrix out as the products read it, and return how many numbers that is; into NULL, only return it. */
#define PACK(TYPE)                                                                                                  \
    int64_t pack_##TYPE(const TYPE *matrix, int64_t n_inputs, int64_t n_outputs, int64_t is_triangular, TYPE *out) { \
        int64_t n = 0;                                                                                              \
        for (ptrdiff_t begin = 0; begin < n_inputs; begin += DEPTH)                                                 \
            for (ptrdiff_t first = 0; first < n_outputs; first += PANEL) {                                          \
                ptrdiff_t end = smaller(begin + DEPTH, inputs_of(first, n_inputs, is_triangular));                  \
                for (ptrdiff_t input = begin; input < end; input++)                                                 \
                    for (ptrdiff_t output = first; output < first + PANEL; output++, n++)                           \
                        if (out) out[n] = output < n_outputs ? matrix[input * n_outputs + output] : 0;              \
            }                                                                                                       \
        return n;                                                                                                   \
    }
PACK(float)
PACK(double)

/* How many numbers the scatter of so many columns is kept in, and how many some rows of them are laid out in: both by
   vectors of this level, which all that is done to this scatter has to name. */
int64_t scatter_size(int64_t own_level, int64_t n_columns) { return CALL_AT(own_level, scatter_size, double, n_columns); }
int64_t laid_out_size(int64_t own_level, int64_t n_columns) {
    return CALL_AT(own_level, laid_out_size, double, n_columns);
}

/* Of how many rows a scatter sums up the products at a time. */
int64_t rows_laid_out(void) { return ROWS_LAID_OUT; }

/* Add rows, each less the shift of its class, to the total of its class and their products to a scatter.

   totals: of each place among total_places.
   laid_out, scatter: of the sizes above; both begin where a cache line does. */
void add_scatter(int64_t own_level, const void *rows, int64_t n_rows, int64_t bytes_apart, int64_t is_double,
                 int64_t n_columns, const int64_t *shift_places, const double *shifts, const int64_t *total_places,
                 double *totals, double *laid_out, double *scatter) {
    CALL_AT(own_level, add_scatter, double, rows, n_rows, bytes_apart, is_double, n_columns, shift_places, shifts,
            total_places, totals, laid_out, scatter);
}

/* Write the sums of squares of a scatter. */
void squares_of_scatter(int64_t own_level, const double *scatter, int64_t n_columns, double *out) {
    CALL_AT(own_level, squares_of_scatter, double, scatter, n_columns, out);
}

/* Add a scatter to the lower triangle of a matrix that is kept column by column. */
void add_scatter_to(int64_t own_level, const double *scatter, int64_t n_columns, double *matrix) {
    CALL_AT(own_level, add_scatter_to, double, scatter, n_columns, matrix);
}
