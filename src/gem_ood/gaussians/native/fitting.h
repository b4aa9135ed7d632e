/* Class sums and scatter of rows, for one instruction set: included by one_set.h after scoring.h, for doubles only.

   A scatter is kept as squares of SIDE × SIDE sums, those on and below the diagonal, of which each is a run of numbers
   column by column. Rows are centred and laid out some at a time: SIDE columns of all of them, then the next. */

#define SIDE (FITTED_VECTORS * LANES)

/* Add some columns of a row, less their shift, to the total, and write them. */
static inline void NAME(centre_some)(const void *row, int64_t is_double, const REAL *restrict shift,
                                     REAL *restrict total, ptrdiff_t first, ptrdiff_t n, REAL *restrict out) {
    if (is_double)
        for (ptrdiff_t j = 0; j < n; j++) total[first + j] += out[j] = ((const double *)row)[first + j] - shift[first + j];
    else
        for (ptrdiff_t j = 0; j < n; j++) total[first + j] += out[j] = ((const float *)row)[first + j] - shift[first + j];
}

/* Those of a whole row, in blocks that begin so far apart; the last one is filled with zeros. */
static void NAME(centre_and_lay_out)(const void *row, int64_t is_double, ptrdiff_t n_columns, const REAL *shift,
                                     REAL *total, REAL *out, ptrdiff_t apart) {
    ptrdiff_t first = 0;
    for (; first + SIDE <= n_columns; first += SIDE, out += apart)
        NAME(centre_some)(row, is_double, shift, total, first, SIDE, out);
    if (first == n_columns) return;
    for (int j = 0; j < SIDE; j++) out[j] = 0;
    NAME(centre_some)(row, is_double, shift, total, first, n_columns - first, out);
}

/* Add the products of LANES columns with those of a block from this vector of it on, summed up over the rows. The vector
   is a constant wherever this is called, so that all of these sums are registers. */
static inline __attribute__((always_inline)) void NAME(add_products)(const REAL *restrict few,
                                                                     const REAL *restrict block, ptrdiff_t n_rows,
                                                                     int vector, REAL *restrict sums) {
    VECTOR own[LANES][FITTED_VECTORS];
    for (int c = 0; c < LANES; c++)
        for (int v = vector; v < FITTED_VECTORS; v++) {
            own[c][v] = NAME(all)(0);
            __builtin_prefetch(sums + c * SIDE + v * LANES, 1); /* a square was last needed before all the others */
        }
    for (ptrdiff_t row = 0; row < n_rows; row++, few += SIDE, block += SIDE) {
        VECTOR of_block[FITTED_VECTORS];
        for (int v = vector; v < FITTED_VECTORS; v++) of_block[v] = NAME(load)(block + v * LANES);
#pragma GCC unroll 8
        for (int c = 0; c < LANES; c++)
            for (int v = vector; v < FITTED_VECTORS; v++) own[c][v] += few[c] * of_block[v];
    }
    for (int c = 0; c < LANES; c++)
        for (int v = vector; v < FITTED_VECTORS; v++) {
            REAL *sum = sums + c * SIDE + v * LANES;
            NAME(store)(sum, NAME(load)(sum) + own[c][v]);
        }
}

/* Add the products of two blocks of columns; of a block with itself, those above the diagonal may stay as they are. */
static void NAME(add_square)(const REAL *few, const REAL *block, ptrdiff_t n_rows, REAL *sums) {
    const ptrdiff_t next = LANES * SIDE;
    NAME(add_products)(few, block, n_rows, 0, sums);
    if (few == block) {
        NAME(add_products)(few + LANES, block, n_rows, 1, sums + next);
        NAME(add_products)(few + 2 * LANES, block, n_rows, 2, sums + 2 * next);
    } else {
        NAME(add_products)(few + LANES, block, n_rows, 0, sums + next);
        NAME(add_products)(few + 2 * LANES, block, n_rows, 0, sums + 2 * next);
    }
}
_Static_assert(FITTED_VECTORS == 3, "a square has as many steps as a block has vectors");

static inline ptrdiff_t NAME(blocks_of)(ptrdiff_t n_columns) { return (n_columns + SIDE - 1) / SIDE; }

/* How far apart blocks of so many laid-out rows begin: by a power of two, they would get into each other's way in the
   innermost cache. */
static inline ptrdiff_t NAME(apart)(ptrdiff_t n_rows) { return n_rows * SIDE + LANES; }

/* Where the square in row i and column j of squares begins; it is not above the diagonal. */
static inline ptrdiff_t NAME(square_at)(ptrdiff_t i, ptrdiff_t j) { return (i * (i + 1) / 2 + j) * SIDE * SIDE; }

static inline ptrdiff_t NAME(sum_at)(ptrdiff_t row, ptrdiff_t column) {
    return NAME(square_at)(row / SIDE, column / SIDE) + column % SIDE * SIDE + row % SIDE;
}

static int64_t NAME(scatter_size)(int64_t n_columns) { return NAME(square_at)(NAME(blocks_of)(n_columns), 0); }

static int64_t NAME(laid_out_size)(int64_t n_columns) {
    return NAME(blocks_of)(n_columns) * NAME(apart)(ROWS_LAID_OUT);
}

static void NAME(add_scatter)(const void *rows, int64_t n_rows, int64_t bytes_apart, int64_t is_double,
                              int64_t n_columns, const int64_t *shift_places, const REAL *shifts,
                              const int64_t *total_places, REAL *totals, REAL *laid_out, REAL *scatter) {
    const ptrdiff_t n_blocks = NAME(blocks_of)(n_columns), apart = NAME(apart)(ROWS_LAID_OUT);
    for (ptrdiff_t begin = 0; begin < n_rows; begin += ROWS_LAID_OUT) {
        const ptrdiff_t n = smaller(ROWS_LAID_OUT, n_rows - begin);
        for (ptrdiff_t i = 0; i < n; i++)
            NAME(centre_and_lay_out)((const char *)rows + (begin + i) * bytes_apart, is_double, n_columns,
                                     shifts + shift_places[begin + i] * n_columns,
                                     totals + total_places[begin + i] * n_columns, laid_out + i * SIDE, apart);
        for (ptrdiff_t group = 0; group < n_blocks; group += BLOCKS_TOGETHER)
            for (ptrdiff_t i = group; i < n_blocks; i++)
                for (ptrdiff_t j = group; j <= i && j < group + BLOCKS_TOGETHER; j++)
                    NAME(add_square)(laid_out + j * apart, laid_out + i * apart, n, scatter + NAME(square_at)(i, j));
    }
}

static void NAME(squares_of_scatter)(const REAL *scatter, int64_t n_columns, REAL *out) {
    for (ptrdiff_t column = 0; column < n_columns; column++) out[column] = scatter[NAME(sum_at)(column, column)];
}

static void NAME(add_scatter_to)(const REAL *scatter, int64_t n_columns, REAL *matrix) {
    for (ptrdiff_t column = 0; column < n_columns; column++, matrix += n_columns)
        for (ptrdiff_t row = column; row < n_columns; row++) matrix[row] += scatter[NAME(sum_at)(row, column)];
}

#undef SIDE
