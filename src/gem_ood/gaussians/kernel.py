"""The arithmetic behind every Gaussian score, in cache-sized chunks: logits z·ν_i − ½‖ν_i‖² and half norms ½‖z‖².

Two matrix products per chunk: a triangular one that whitens in place, then one n × k. Both are SciPy's: mixing in
NumPy's own would wake a second pool of threads. A diagonal covariance needs no product to whiten, only a scaling.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gem_ood.features import CHUNK_BYTES, chunks, even_size, refuse_non_finite, rows_per_chunk
from gem_ood.gaussians.blas import add_product, product, whiten_triangular
from gem_ood.gaussians.covariance import is_diagonal
from gem_ood.gaussians.parallel import run_in_parts

__all__ = ["Consumer", "Kernel"]

#: So few rows are products of vectors, too short for threads; NumPy's own call of them is the quickest.
FEW_ROWS = 4

Consumer = Callable[[slice, NDArray[Any], NDArray[Any]], None]


@dataclass(frozen=True, eq=False)
class Kernel:
    """Centre, whitener and whitened means in one working precision, and as they were before rounding to it."""

    centre: NDArray[Any]
    whitener: NDArray[Any]
    whitened_means: NDArray[Any]
    bias: NDArray[Any]
    scales: NDArray[Any] | None
    is_triangular: bool
    exact: tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]

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
            scales=np.diag(whitener).astype(dtype) if is_diagonal(whitener) else None,
            is_triangular=whitener.shape[0] == whitener.shape[1] and not np.tril(whitener, -1).any(),
            exact=(centre, whitener, whitened_means),
        )

    def run(self, features: NDArray[Any], consume: Consumer) -> None:
        """Hand each chunk's slice, z·ν_i − ½‖ν_i‖² and ½‖z‖² to `consume`; NaN and infinity are refused by row.

        Long inputs are cut among threads, so `consume` must only write to the slice it is given.
        """
        n_classes, m = len(self.whitened_means), features.shape[1]
        whitening = m if self.scales is None else 1
        operations = float(len(features)) * m * (whitening + 2 * n_classes)
        run_in_parts(
            lambda part: self._run_part(features, part, consume),
            len(features),
            operations=operations,
            bytes_per_part=CHUNK_BYTES,
        )

    def _run_part(self, features: NDArray[Any], part: slice, consume: Consumer) -> None:
        dtype = self.centre.dtype
        n_classes, rank = self.whitened_means.shape
        m, n_rows = features.shape[1], part.stop - part.start
        size = even_size(n_rows, rows_per_chunk(m + n_classes + (0 if self.is_triangular else rank), dtype.itemsize))
        centred, logits = np.empty((size, m), dtype=dtype), np.empty((size, n_classes), dtype=dtype)
        for rows in chunks(n_rows, size):
            place = slice(part.start + rows.start, part.start + rows.stop)
            chunk = features[place]
            half_norms = self._fill(chunk, centred[: len(chunk)], logits[: len(chunk)])
            if np.isfinite(half_norms).all():  # one NaN or infinity anywhere in a row reaches its norm
                consume(place, logits[: len(chunk)], half_norms)
            else:
                refuse_non_finite(chunk, first_row=place.start)
                consume(place, *self._in_float64(chunk))

    def _fill(self, chunk: NDArray[Any], centred: NDArray[Any], logits: NDArray[Any]) -> NDArray[Any]:
        np.subtract(chunk, self.centre, out=centred, casting="same_kind")
        logits[...] = self.bias
        with np.errstate(over="ignore", invalid="ignore"):  # the caller looks at what is not finite
            if len(chunk) <= FEW_ROWS:
                whitened = centred @ self.whitener
                logits += whitened @ self.whitened_means.T
            else:
                whitened = self._whitened(centred)
                add_product(self.whitened_means, whitened, logits)
            half_norms: NDArray[Any] = np.vecdot(whitened, whitened)
        half_norms *= 0.5
        return half_norms

    def _whitened(self, centred: NDArray[Any]) -> NDArray[Any]:
        if self.scales is not None:
            centred *= self.scales
            return centred
        if self.is_triangular:
            whiten_triangular(self.whitener, centred)
            return centred
        whitened = np.empty((len(centred), self.whitener.shape[1]), dtype=centred.dtype)
        product(self.whitener, centred, whitened)
        return whitened

    def _in_float64(self, chunk: NDArray[Any]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Recompute finite rows whose squares overflowed; what overflows float64 too is infinitely far."""
        wide = Kernel.of(*self.exact, np.dtype(np.float64))
        logits = np.empty((len(chunk), len(self.bias)))
        half_norms = wide._fill(chunk, np.empty(chunk.shape), logits)
        far = ~np.isfinite(half_norms)
        logits[far], half_norms[far] = 0.0, np.inf
        return logits, half_norms
