/* Everything for one instruction set: included by passes.c once for each. */

#define REAL float
#define WHOLE int32_t
#define MANTISSA_BITS 23
#define ROUNDING 12582912.0f /* 1.5 · 2^23: adding it rounds to whole numbers */
#define LN2_HIGH 0.693145751953125f
#define LN2_LOW 1.42860682030941723212e-6f
#define N_TERMS 8 /* of the exponential series, for |x| up to ½ ln 2: the first that is left out is below 6e-9 */
#include "scoring.h"
#undef REAL
#undef WHOLE
#undef MANTISSA_BITS
#undef ROUNDING
#undef LN2_HIGH
#undef LN2_LOW
#undef N_TERMS
#undef NAME
#undef VECTOR
#undef PLACES
#undef LANES
#undef BLOCK

#define REAL double
#define WHOLE int64_t
#define MANTISSA_BITS 52
#define ROUNDING 6755399441055744.0 /* 1.5 · 2^52 */
#define LN2_HIGH 6.93147180369123816490e-01
#define LN2_LOW 1.90821492927058770002e-10
#define N_TERMS 14 /* below 5e-18 */
#include "scoring.h"
#include "fitting.h"
#undef REAL
#undef WHOLE
#undef MANTISSA_BITS
#undef ROUNDING
#undef LN2_HIGH
#undef LN2_LOW
#undef N_TERMS
#undef NAME
#undef VECTOR
#undef PLACES
#undef LANES
#undef BLOCK

#undef SET
#undef VECTOR_BYTES
