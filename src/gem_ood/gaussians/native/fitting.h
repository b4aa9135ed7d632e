/* What comes before a rank update, for one instruction set: included by one_set.h. */

static void JOINED(centre_by_class, SET, double)(const void *rows, int64_t n_rows, int64_t bytes_apart,
                                                 int64_t is_double, int64_t n_features, const int64_t *shift_places,
                                                 const double *shifts, const int64_t *total_places, double *totals,
                                                 double *out) {
    for (int64_t row = 0; row < n_rows; row++, out += n_features) {
        const char *from = (const char *)rows + row * bytes_apart;
        const double *restrict shift = shifts + shift_places[row] * n_features;
        double *restrict total = totals + total_places[row] * n_features, *restrict to = out;
        if (is_double)
            for (int64_t j = 0; j < n_features; j++) total[j] += to[j] = ((const double *)from)[j] - shift[j];
        else
            for (int64_t j = 0; j < n_features; j++) total[j] += to[j] = ((const float *)from)[j] - shift[j];
    }
}
