"""The arithmetic behind every Gaussian score, in cache-sized chunks: logits z·ν_i − ½‖ν_i‖² and half norms ½‖z‖².

Two matrix products per chunk, both from SciPy's BLAS: a triangular one that whitens in place, then one n × k. Mixing
in NumPy's own products would wake a second pool of threads and triple the time.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg.blas import dgemm, dtrmm, sgemm, strmm

from gem_ood.features import chunks, refuse_non_finite, rows_per_chunk

__all__ = ["Kernel"]


@dataclass(frozen=True, eq=False)
class Kernel:
    """Centre, whitener and whitened means in one working precision."""

    centre: NDArray[Any]
    whitener: NDArray[Any]
    whitened_means: NDArray[Any]
    bias: NDArray[Any]
    is_triangular: bool

    @classmethod
    def of(
        cls,
        centre: NDArray[np.float64],
        whitener: NDArray[np.float64],
        whitened_means: NDArray[np.float64],
        dtype: np.dtype[Any],
    ) -> "Kernel":
        """Return the kernel of these float64 parameters, rounded to the working precision."""
        return cls(
            centre=centre.astype(dtype),
            whitener=np.asfortranarray(whitener, dtype=dtype),
            whitened_means=np.ascontiguousarray(whitened_means, dtype=dtype),
            bias=(-0.5 * np.sum(whitened_means**2, axis=1)).astype(dtype),
            is_triangular=whitener.shape[0] == whitener.shape[1] and not np.tril(whitener, -1).any(),
        )

    def chunks(self, features: NDArray[Any]) -> Iterator[tuple[slice, NDArray[Any], NDArray[Any]]]:
        """Yield slices, a reused buffer with z·ν_i − ½‖ν_i‖², and ½‖z‖²; NaN and infinity are refused by row."""
        dtype = self.centre.dtype
        n_classes, rank = self.whitened_means.shape
        size = min(len(features), rows_per_chunk(features.shape[1] + rank + n_classes, dtype.itemsize))
        centred = np.empty((size, features.shape[1]), dtype=dtype)
        logits = np.empty((size, n_classes), dtype=dtype)
        for rows in chunks(len(features), size):
            chunk = features[rows]
            half_norms = self._fill(chunk, centred[: len(chunk)], logits[: len(chunk)])
            if np.isfinite(half_norms).all():  # one NaN or infinity anywhere in a row reaches its norm
                yield rows, logits[: len(chunk)], half_norms
            else:
                refuse_non_finite(chunk, first_row=rows.start)
                yield rows, *self._in_float64(chunk)

    def _fill(self, chunk: NDArray[Any], centred: NDArray[Any], logits: NDArray[Any]) -> NDArray[Any]:
        trmm, gemm = (strmm, sgemm) if centred.dtype == np.float32 else (dtrmm, dgemm)
        np.subtract(chunk, self.centre, out=centred, casting="same_kind")
        if self.is_triangular:
            whitened = trmm(1.0, self.whitener, centred.T, trans_a=1, overwrite_b=1)
        else:
            whitened = gemm(1.0, self.whitener, centred.T, trans_a=1)
        logits[...] = self.bias
        gemm(1.0, self.whitened_means.T, whitened, beta=1.0, c=logits.T, trans_a=1, overwrite_c=1)
        with np.errstate(over="ignore", invalid="ignore"):  # the caller looks at what is not finite
            half_norms: NDArray[Any] = np.vecdot(whitened.T, whitened.T)
        half_norms *= 0.5
        return half_norms

    def _in_float64(self, chunk: NDArray[Any]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Recompute finite rows whose squares overflowed; what overflows float64 too is infinitely far."""
        wide = Kernel.of(
            self.centre.astype(np.float64),
            self.whitener.astype(np.float64),
            self.whitened_means.astype(np.float64),
            np.dtype(np.float64),
        )
        logits = np.empty((len(chunk), len(self.bias)))
        half_norms = wide._fill(chunk, np.empty(chunk.shape), logits)
        far = ~np.isfinite(half_norms)
        logits[far], half_norms[far] = 0.0, np.inf
        return logits, half_norms
