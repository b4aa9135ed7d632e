/* What a score is made of, in one number type and one instruction set: included by one_set.h.

   A block of rows is as wide as two vectors. It is kept column by column, so that each step works on all of its rows at
   once and a number of the model is read once for all of them. */

#define NAME(name) JOINED(name, SET, REAL)
#define VECTOR NAME(vector)
#define PLACES NAME(places)
#define LANES ((int)(VECTOR_BYTES / sizeof(REAL)))
#define BLOCK (2 * LANES)

typedef REAL VECTOR __attribute__((vector_size(VECTOR_BYTES), aligned(sizeof(REAL)), may_alias));
typedef WHOLE PLACES __attribute__((vector_size(VECTOR_BYTES), aligned(sizeof(REAL)), may_alias));

static inline VECTOR NAME(load)(const REAL *from) { return *(const VECTOR *)from; }

static inline void NAME(store)(REAL *to, VECTOR value) { *(VECTOR *)to = value; }

static inline VECTOR NAME(all)(REAL value) { return (VECTOR){0} + value; }

static inline VECTOR NAME(where)(PLACES is_so, VECTOR yes, VECTOR no) {
    return (VECTOR)((is_so & (PLACES)yes) | (~is_so & (PLACES)no));
}

/* Exchange what lies off the diagonal of each square of 2·D rows and columns. */
#define EXCHANGE(D)                                           \
    if (LANES > D) {                                          \
        PLACES upper, lower;                                  \
        for (int e = 0; e < LANES; e++) {                     \
            upper[e] = e & D ? LANES + e - D : e;             \
            lower[e] = e & D ? LANES + e : e + D;             \
        }                                                     \
        for (int i = 0; i < LANES; i++)                       \
            if (!(i & D)) {                                   \
                VECTOR a = rows[i], b = rows[i + D];          \
                rows[i] = __builtin_shuffle(a, b, upper);     \
                rows[i + D] = __builtin_shuffle(a, b, lower); \
            }                                                 \
    }

/* Write the columns of a block of rows one after the other. */
static void NAME(gather_columns)(const REAL *const *block, ptrdiff_t n_columns, REAL *out) {
    ptrdiff_t column = 0;
    for (; column + LANES <= n_columns; column += LANES)
        for (int half = 0; half < BLOCK; half += LANES) {
            VECTOR rows[LANES];
            for (int i = 0; i < LANES; i++) rows[i] = NAME(load)(block[half + i] + column);
            EXCHANGE(1) EXCHANGE(2) EXCHANGE(4) EXCHANGE(8)
            for (int i = 0; i < LANES; i++) NAME(store)(out + (column + i) * BLOCK + half, rows[i]);
        }
    for (; column < n_columns; column++)
        for (int i = 0; i < BLOCK; i++) out[column * BLOCK + i] = block[i][column];
}

#undef EXCHANGE

/* Add the inputs times their numbers to PANEL outputs, or to `start` where it is given.

   The sums of a panel begin at zero: added to what earlier inputs left, each product would be rounded to its size. */
static inline void NAME(add_panel)(const REAL *restrict packed, const REAL *restrict inputs, ptrdiff_t n_inputs,
                                   const REAL *restrict start, REAL *restrict outputs) {
    VECTOR left[PANEL], right[PANEL];
    for (int c = 0; c < PANEL; c++) left[c] = right[c] = NAME(all)(0);
    for (ptrdiff_t j = 0; j < n_inputs; j++, packed += PANEL, inputs += BLOCK) {
        VECTOR input_left = NAME(load)(inputs), input_right = NAME(load)(inputs + LANES);
        for (int c = 0; c < PANEL; c++) {
            left[c] += packed[c] * input_left;
            right[c] += packed[c] * input_right;
        }
    }
    for (int c = 0; c < PANEL; c++, outputs += BLOCK) {
        NAME(store)(outputs, left[c] + (start ? NAME(all)(start[c]) : NAME(load)(outputs)));
        NAME(store)(outputs + LANES, right[c] + (start ? NAME(all)(start[c]) : NAME(load)(outputs + LANES)));
    }
}

/* outputs[c] = start[c] + the sum over the inputs of matrix[input][c] · input, in the order that `pack` lays out. */
static void NAME(multiply)(const REAL *packed, int64_t is_triangular, const REAL *inputs, ptrdiff_t n_inputs,
                           const REAL *start, ptrdiff_t n_outputs, REAL *outputs) {
    static const REAL zeros[PANEL] = {0};
    for (ptrdiff_t begin = 0; begin < n_inputs; begin += DEPTH)
        for (ptrdiff_t c = 0; c < n_outputs; c += PANEL) {
            ptrdiff_t end = smaller(begin + DEPTH, inputs_of(c, n_inputs, is_triangular));
            if (end <= begin) continue;
            NAME(add_panel)(packed, inputs + begin * BLOCK, end - begin, begin ? NULL : start ? start + c : zeros,
                            outputs + c * BLOCK);
            packed += (end - begin) * PANEL;
        }
}

/* exp(x) for x from −44 to 0: 2^n times the series of what is left. */
static inline VECTOR NAME(exponential)(VECTOR x) {
    VECTOR shifted = x * (REAL)1.4426950408889634 + ROUNDING;
    VECTOR n = shifted - ROUNDING;
    VECTOR rest = x - n * LN2_HIGH - n * LN2_LOW;
    VECTOR sum = NAME(all)((REAL)INVERSE_FACTORIALS[N_TERMS - 1]);
    for (int i = N_TERMS - 2; i >= 0; i--) sum = sum * rest + (REAL)INVERSE_FACTORIALS[i];
    return (VECTOR)((PLACES)sum + ((PLACES)shifted << MANTISSA_BITS));
}

/* A logit less the base, with the log weight of its class. */
static inline VECTOR NAME(above)(const REAL *logits, ptrdiff_t c, VECTOR base, const REAL *log_weights) {
    VECTOR above = NAME(load)(logits + c * BLOCK) - base;
    if (log_weights) above += log_weights[c];
    return above;
}

/* The largest of these, and the place of the first class that has it. */
static inline VECTOR NAME(largest)(const REAL *logits, ptrdiff_t n_classes, VECTOR base, const REAL *log_weights,
                                   PLACES *place) {
    VECTOR largest = NAME(above)(logits, 0, base, log_weights);
    *place = (PLACES){0};
    for (ptrdiff_t c = 1; c < n_classes; c++) {
        VECTOR value = NAME(above)(logits, c, base, log_weights);
        PLACES is_larger = value > largest;
        largest = NAME(where)(is_larger, value, largest);
        *place = (is_larger & (WHOLE)c) | (~is_larger & *place);
    }
    return largest;
}

/* The sum of exp(these − reference). What is 44 below adds nothing, and smaller numbers are slow. */
static inline VECTOR NAME(sum_of_exponentials)(const REAL *logits, ptrdiff_t n_classes, VECTOR base,
                                               const REAL *log_weights, VECTOR reference) {
    const VECTOR least = NAME(all)(-44);
    VECTOR sum = {0};
    for (ptrdiff_t c = 0; c < n_classes; c++) {
        VECTOR value = NAME(above)(logits, c, base, log_weights) - reference;
        sum += NAME(exponential)(NAME(where)(value > least, value, least));
    }
    return sum;
}

/* A row less the centre, in the working type. */
static inline void NAME(centre_row)(const void *row, int64_t is_double, const REAL *restrict centre,
                                    ptrdiff_t n_features, REAL *restrict out) {
    if (is_double)
        for (ptrdiff_t j = 0; j < n_features; j++) out[j] = (REAL)((const double *)row)[j] - centre[j];
    else
        for (ptrdiff_t j = 0; j < n_features; j++) out[j] = (REAL)((const float *)row)[j] - centre[j];
}

/* Half the squared distances of whitened rows to the columns of their classes' means, summed up some at a time. */
static inline VECTOR NAME(half_distances)(const REAL *whitened, const REAL *means, ptrdiff_t rank) {
    VECTOR sum = {0};
    for (ptrdiff_t first = 0; first < rank; first += SUMMED) {
        VECTOR some = {0};
        for (ptrdiff_t j = first * BLOCK; j < smaller(first + SUMMED, rank) * BLOCK; j += BLOCK) {
            VECTOR away = NAME(load)(whitened + j) - NAME(load)(means + j);
            some += away * away;
        }
        sum += some;
    }
    return sum * (REAL)0.5;
}

static int64_t NAME(score)(const struct model *model, const void *rows, int64_t n_rows, int64_t bytes_apart,
                           int64_t is_double, const REAL *log_weights, void *workspace, REAL *halves, int64_t *best,
                           REAL *sums, REAL *references) {
    const ptrdiff_t m = model->n_features, rank = model->rank, k = model->n_classes;
    const REAL *means = model->means;
    REAL *centred = workspace, *columns = centred + m * BLOCK, *whitened = columns + (m > rank ? m : rank) * BLOCK;
    REAL *logits = whitened + whole_panels(rank) * BLOCK;
    int64_t n_not_finite = 0;
    for (int64_t first = 0; first < n_rows; first += BLOCK) {
        const int n = (int)smaller(BLOCK, n_rows - first);
        const REAL *block[BLOCK];
        for (int i = 0; i < BLOCK; i++) {
            block[i] = centred + (i < n ? i : 0) * m; /* a block that is not full is filled with its first row */
            if (i < n)
                NAME(centre_row)((const char *)rows + (first + i) * bytes_apart, is_double, model->centre, m,
                                 centred + i * m);
        }
        NAME(gather_columns)(block, m, columns);
        NAME(multiply)(model->whitener, model->is_triangular, columns, m, NULL, rank, whitened);
        NAME(multiply)(model->packed_means, 0, whitened, rank, model->bias, k, logits);

        /* Those of the block: a vector after the other, of which the first n are kept. */
        REAL own_halves[BLOCK], own_sums[BLOCK] = {0}, own_references[BLOCK];
        PLACES own_best[2];
        for (int v = 0; v < 2; v++) {
            const REAL *own = logits + v * LANES;
            /* The largest logit goes first: beside large ones, a weight would lose its digits. */
            VECTOR base = NAME(largest)(own, k, NAME(all)(0), NULL, &own_best[v]), reference = NAME(all)(0);
            PLACES place;
            if (log_weights) reference = NAME(largest)(own, k, base, log_weights, &place);
            NAME(store)(own_references + v * LANES, reference);
            if (sums)
                NAME(store)(own_sums + v * LANES, NAME(sum_of_exponentials)(own, k, base, log_weights, reference));
            for (int i = 0; i < LANES; i++) block[v * LANES + i] = means + own_best[v][i] * rank;
        }
        NAME(gather_columns)(block, rank, columns);
        for (int v = 0; v < BLOCK; v += LANES)
            NAME(store)(own_halves + v, NAME(half_distances)(whitened + v, columns + v, rank));
        for (int i = 0; i < n; i++) {
            halves[first + i] = own_halves[i];
            best[first + i] = own_best[i / LANES][i % LANES];
            if (sums) sums[first + i] = own_sums[i];
            if (references) references[first + i] = own_references[i];
            n_not_finite += !__builtin_isfinite(own_halves[i]);
        }
    }
    return n_not_finite;
}
