"""The arithmetic behind every Gaussian score, in cache-sized chunks: logits, the largest and the distance to its class.

This is the way by NumPy; where the passes in C are there, `distances` takes these. Two matrix products per chunk: a
triangular one that whitens in place, then one n × k that gives the logits ℓ_i = z·ν_i − ½‖ν_i‖². Both are SciPy's:
mixing in NumPy's own would wake a second pool of threads; few rows take NumPy's alone, and up to four of them products
of vectors. A diagonal covariance needs no product to whiten, only a scaling. Logits of many rows and few classes are
kept class by class, so that what is done with them runs over long columns.

The largest logit says which class is best; the half squared distance to it, h = ½‖z − ν_best‖², is computed from the
difference itself, so that no large squares cancel: ½‖z‖² − ℓ_best, a pass less, errs several times as much in float32.
The exponents of the paper are f_i = ℓ_i − ℓ_best − h.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gem_ood.features import CHUNK_BYTES, chunks, even_size, refuse_non_finite, rows_per_chunk
from gem_ood.gaussians.blas import add_product, product, squared_lengths, whiten_triangular
from gem_ood.gaussians.covariance import is_diagonal
from gem_ood.gaussians.native import Scorer, library
from gem_ood.gaussians.parallel import run_in_parts
from gem_ood.gaussians.workspace import working_arrays

__all__ = ["Consumer", "Floats", "Kernel", "Places", "Terms"]

#: Products of so few rows are too short for threads of our own; NumPy's are quickest.
FEW_ROWS = 256

#: So few are multiplied one by one: a product of matrices would first copy all of the whitener.
FEWEST_ROWS = 4

#: Rows of so few logits are shorter than what NumPy does to begin each of them. Their places must fit into a byte.
FEW_CLASSES = 32

#: What a number read or written beside the products costs, in floating-point operations that products do meanwhile.
OPERATIONS_PER_NUMBER = 64

Floats = NDArray[Any]

Places = NDArray[np.integer[Any]]


class Terms(NamedTuple):
    """What the products leave of n rows: all that a score is made of."""

    #: n × k; of many rows and few classes in Fortran's order.
    logits: Floats
    #: The largest of each row, and the place of its class: whole numbers of any type, a byte each where that suffices.
    largest: Floats
    best: Places
    #: Half the squared distance to that class.
    half_distances: Floats


#: Takes which rows and their terms.
Consumer = Callable[[slice, Terms], None]


@dataclass(frozen=True, eq=False)
class Kernel:
    """Centre, whitener and whitened means in one working precision, and as they were before rounding to it."""

    centre: Floats
    whitener: Floats
    whitened_means: Floats
    bias: Floats
    scales: Floats | None
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

    def run(self, features: Floats, consume: Consumer) -> None:
        """Hand each chunk to `consume`, whose logits are free to be overwritten; NaN and infinity are refused by row.

        Long inputs are cut among threads, so `consume` must only write to the slice it is given, and keep no logits.
        """
        n_rows = len(features)
        if n_rows <= FEW_ROWS:
            self._hand_over(features, slice(0, n_rows), self._few(features), consume)
            return
        run_in_parts(
            lambda part: self._run_part(features, part, consume),
            n_rows,
            operations=self.operations(n_rows),
            bytes_per_part=CHUNK_BYTES,
        )

    def operations(self, n_rows: int) -> float:
        """Return what so many rows take, in floating-point operations of products."""
        m, n_classes = len(self.centre), len(self.whitened_means)
        products = m * ((m if self.scales is None else 1) + 2 * n_classes)
        return float(n_rows) * (products + OPERATIONS_PER_NUMBER * (m + n_classes))

    def row(self, features: Floats) -> tuple[Floats, int, float]:
        """Return the k logits of a single row, the place of the largest and the half squared distance to its class."""
        with np.errstate(over="ignore", invalid="ignore"):  # what is not finite is looked at below
            whitened = np.subtract(features[0], self.centre, dtype=self.centre.dtype).dot(self.whitener)
            logits = self.whitened_means.dot(whitened)
            logits += self.bias
            best = int(logits.argmax())
            whitened -= self.whitened_means[best]
            half = 0.5 * float(whitened.dot(whitened))
        if math.isfinite(half):
            return logits, best, half
        refuse_non_finite(features)
        terms = self.in_float64(features)
        return terms.logits[0], int(terms.best[0]), float(terms.half_distances[0])

    def in_float64(self, chunk: Floats) -> Terms:
        """Recompute finite rows whose squares overflowed; what overflows float64 too is infinitely far."""
        terms = Kernel.of(*self.exact, np.dtype(np.float64))._few(chunk)
        far = ~np.isfinite(terms.half_distances)
        terms.logits[far], terms.largest[far], terms.best[far], terms.half_distances[far] = 0.0, 0.0, 0, np.inf
        return terms

    @cached_property
    def scorer(self) -> Scorer | None:
        """The same for the passes in C: None where these are not there, or a scaling is all that whitens."""
        if library() is None or self.scales is not None:
            return None
        return Scorer(self.centre, self.whitener, self.whitened_means, self.bias, is_triangular=self.is_triangular)

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what holds addresses: a copy makes its own."""
        return {name: value for name, value in self.__dict__.items() if name != "scorer"}

    def _run_part(self, features: Floats, part: slice, consume: Consumer) -> None:
        dtype = self.centre.dtype
        n_classes, rank = self.whitened_means.shape
        m, n_rows = features.shape[1], part.stop - part.start
        widths = (m, rank, n_classes, n_classes if n_classes <= FEW_CLASSES else 0, 0 if self.is_triangular else rank)
        size = even_size(n_rows, rows_per_chunk(sum(widths), dtype.itemsize))
        with working_arrays(*((size * width,) for width in widths), dtype=dtype) as arrays:
            for rows in chunks(n_rows, size):
                place = slice(part.start + rows.start, part.start + rows.stop)
                chunk, n = features[place], rows.stop - rows.start
                working = [array[: n * width].reshape(n, width) for array, width in zip(arrays, widths, strict=True)]
                self._hand_over(chunk, place, self._fill(chunk, working), consume)

    def _hand_over(self, chunk: Floats, place: slice, terms: Terms, consume: Consumer) -> None:
        if not np.isfinite(terms.half_distances).all():  # one NaN or infinity anywhere in a row reaches its distance
            refuse_non_finite(chunk, first_row=place.start)
            terms = self.in_float64(chunk)
        consume(place, terms)

    def _few(self, chunk: Floats) -> Terms:
        with np.errstate(over="ignore", invalid="ignore"):  # `_hand_over` looks at what is not finite
            centred = np.subtract(chunk, self.centre, dtype=self.centre.dtype)
            if len(centred) <= FEWEST_ROWS:
                whitened = np.array([row.dot(self.whitener) for row in centred])
            else:
                whitened = centred @ self.whitener
            logits = whitened @ self.whitened_means.T
            logits += self.bias
            best = logits.argmax(axis=1)
            whitened -= self.whitened_means[best]
            halves = np.vecdot(whitened, whitened)
        halves *= 0.5
        return Terms(logits, _at(logits, best), best, halves)

    def _fill(self, chunk: Floats, working: list[Floats]) -> Terms:
        centred, spare, logits, by_class, out = working
        with np.errstate(over="ignore", invalid="ignore"):  # `_hand_over` looks at what is not finite
            np.subtract(chunk, self.centre, out=centred, casting="same_kind")
            whitened = self._whitened(centred, out)
            if by_class.size:
                product(self.whitened_means.T, whitened, logits)
                # A product that writes class by class would take twice as long as this one and its copy.
                logits = np.add(logits, self.bias, out=by_class.reshape(logits.shape[::-1]).T)
            else:
                logits[...] = self.bias
                add_product(self.whitened_means.T, whitened, logits)
            largest, best = _largest(logits)
            # Without a mode it would be copied; of ties that were not seen, places may lie beyond the classes.
            np.take(self.whitened_means, best, axis=0, out=spare, mode="clip")
            spare -= whitened
            halves = squared_lengths(spare)
        halves *= 0.5
        return Terms(logits, largest, best, halves)

    def _whitened(self, centred: Floats, out: Floats) -> Floats:
        """Return the whitened rows: in the memory of the centred ones, or in `out` where that cannot be."""
        if self.scales is not None:
            centred *= self.scales
            return centred
        if self.is_triangular:
            whiten_triangular(self.whitener, centred)
            return centred
        product(self.whitener, centred, out)
        return out


def _at(logits: Floats, places: Places) -> Floats:
    """Return the logit of each row, in C order, at its place."""
    return np.asarray(logits.take(places + np.arange(0, logits.size, logits.shape[1])))


def _largest(logits: Floats) -> tuple[Floats, Places]:
    """Return the largest of each row and its place."""
    n_rows, n_classes = logits.shape
    if n_classes > FEW_CLASSES:
        best = logits.argmax(axis=1)
        return _at(logits, best), best
    largest = logits.max(axis=1)
    is_largest = logits == largest[:, np.newaxis]
    if np.count_nonzero(is_largest) > n_rows:  # some tie
        return largest, logits.argmax(axis=1)
    # The one place of each row as a sum over the classes: NumPy would search rows one by one. Only where a row is not
    # finite may another one tie unseen, and then all are computed again.
    numbers = is_largest.view(np.uint8) * np.arange(n_classes, dtype=np.uint8)
    return largest, np.add.reduce(numbers, axis=1, dtype=np.uint8)
