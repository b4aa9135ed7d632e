"""RowSums: what some rows add to statistics, the sum of each class and the scatter, both about shifts of the classes.

The passes in C centre some rows and multiply them while they lie in a core's own caches. Where these passes are not
there, NumPy writes a chunk of centred rows and BLAS multiplies it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from gem_ood.errors import InputError
from gem_ood.features import chunks, even_size, refuse_non_finite
from gem_ood.gaussians import native
from gem_ood.gaussians.blas import add_rank_update
from gem_ood.gaussians.labels import Codes, class_counts
from gem_ood.gaussians.parallel import LARGEST_MEMORY, blas_threads, run_in_parts

__all__ = ["Prepare", "RowSums", "add_few_rows", "are_few", "prepared", "refuse_overflow", "sum_rows"]

#: BLAS's rank update of a wide matrix is bound by memory unless each pass over it brings this many rows.
MIN_ROWS_PER_UPDATE = 1024

#: Rows in float64 that stay in the outer caches: they are written, summed up and multiplied in turn. Fewer at a time
#: would fit a core's own cache, but threads would then wait for each other more often.
UPDATE_BYTES = 4 << 20

#: A call of the passes in C has about so many operations: enough for the threads to meet seldom, as each meeting can
#: cost a turn of the scheduler, and few enough for Ctrl-C to be heard.
OPERATIONS_PER_CALL = 1e9

#: No more rows than this, as the places of their classes take memory too.
MOST_ROWS_PER_CALL = 1 << 16

#: Rows that have to be copied for it, in float64, take about so many bytes.
COPIED_BYTES = 1 << 20

#: Up to so many features, NumPy's BLAS has the quicker rank update, with one thread in each part of the rows.
NARROW = 128

#: Above this many classes, sums are formed for the classes that a part of the rows holds instead of for all.
FEW_CLASSES = 256

#: Rows this long are summed up one by one: an addition takes longer than its start, and nothing is held meanwhile.
LONG_ROW = 1024

#: The scatters of all threads together may be as large as this many matrices: a fit holds more of them afterwards.
MATRICES_OF_SCATTERS = 2

#: BLAS's threads can share a scatter, those of the passes in C cannot: where memory allows only one for more threads
#: than this, BLAS is quicker. On one core the passes were measured at 1.3 times its rate, of which it loses some when
#: many threads share the work.
THREADS_PER_SCATTER = 2

Floats = NDArray[np.float64]

Prepare = Callable[[NDArray[Any]], NDArray[Any]]


@dataclass(frozen=True, eq=False)
class RowSums:
    """What some rows add to statistics.

    Attributes:
        present: The places of the classes that `totals` has, among all.
        totals: The sum of the centred rows of each of these.
        scatter: The sum of x xᵀ over all of them, in a layout of its own.
    """

    present: NDArray[np.int64] | slice
    totals: Floats
    scatter: "native.Scatter | PlainScatter"

    def squares(self) -> Floats:
        """Return the sum of squares of each feature."""
        return self.scatter.squares()

    def add_to(self, totals: Floats, scatter: Floats) -> None:
        """Add these to the totals of all classes, and to the lower triangle of a Fortran-ordered matrix."""
        self.scatter.add_to(scatter)
        totals[self.present] += self.totals


class PlainScatter:
    """A scatter as a matrix, to which BLAS adds chunks of centred rows."""

    def __init__(self, n_features: int, *, most_rows: int) -> None:
        self._sums = np.zeros((n_features, n_features), order="F")
        self._centred = np.empty((most_rows, n_features))

    def add(
        self,
        rows: NDArray[Any],
        *,
        shift_places: NDArray[np.int64],
        shifts: Floats,
        total_places: NDArray[np.int64],
        totals: Floats,
    ) -> None:
        """Add each row, less the shift at its place, here and to the total at its place."""
        centred = _centred(rows, shift_places, shifts, out=self._centred[: len(rows)])
        _add_class_sums(total_places, centred, totals)
        with np.errstate(over="ignore", invalid="ignore"):  # the caller looks at the squares
            if centred.shape[1] <= NARROW:
                self._sums += centred.T @ centred
            else:
                add_rank_update(centred, self._sums)

    def squares(self) -> Floats:
        """Return the sum of squares of each feature."""
        return np.diag(self._sums)

    def add_to(self, scatter: Floats) -> None:
        """Add what is here to the lower triangle of a Fortran-ordered matrix."""
        scatter += self._sums


def sum_rows(features: NDArray[Any], codes: Codes, shifts: Floats, *, prepare: Prepare | None = None) -> list[RowSums]:
    """Return what these rows add, a thread's part each; NaN, infinity and squares that overflow are refused.

    Args:
        features: Checked rows.
        codes: The place of each row's class.
        shifts: What is subtracted from the rows of each class.
        prepare: Applied to each chunk of rows before it counts.
    """
    n_rows, n_features = features.shape
    is_compiled, most_threads = _way(n_features)
    is_copied = prepare is not None or not native.can_read(features)

    def sum_part(part: slice) -> RowSums:
        n_own = part.stop - part.start
        scatter: native.Scatter | PlainScatter
        if is_compiled:
            scatter, size = native.Scatter(n_features), _rows_per_call(n_features, is_copied=is_copied)
        else:
            size = even_size(n_own, _rows_per_update(n_features))
            scatter = PlainScatter(n_features, most_rows=size)
        present, place_of = _present(codes[part], len(shifts))
        totals = np.zeros((_n_present(present, shifts), n_features))
        for own in chunks(n_own, size):
            rows = slice(part.start + own.start, part.start + own.stop)
            places = codes[rows].astype(np.int64)
            scatter.add(
                prepared(features[rows], prepare),
                shift_places=places,
                shifts=shifts,
                total_places=places if place_of is None else place_of[places],
                totals=totals,
            )
            squares = scatter.squares()
            if not np.isfinite(squares).all():  # one NaN or infinity anywhere in the chunk reaches them
                refuse_non_finite(features[rows], first_row=rows.start)
                refuse_overflow(squares)
        return RowSums(present, totals, scatter)

    operations = float(n_rows) * n_features**2
    return run_in_parts(sum_part, n_rows, operations=operations, most_threads=most_threads)


def prepared(rows: NDArray[Any], prepare: Prepare | None) -> NDArray[Any]:
    """Return what prepare makes of these rows, which must be as many of as many features.

    >>> prepared(np.array([[1.0, 2.0]]), np.negative)
    array([[-1., -2.]])
    """
    if prepare is None:
        return rows
    made = prepare(rows)
    if made.shape != rows.shape:
        raise InputError(
            f"prepare made an array of shape {made.shape} from rows of shape {rows.shape}; "
            f"let it return one row for each, of the same features"
        )
    return made


def are_few(n_rows: int, n_features: int) -> bool:
    """Return whether so few rows are added to a matrix in less time than scatters of their own take."""
    if native.library() is None:
        return n_rows <= _rows_per_update(n_features)
    return 2 * n_rows <= n_features


def add_few_rows(
    rows: NDArray[Any], codes: Codes, shifts: Floats, *, totals: Floats, scatter: Floats, prepare: Prepare | None = None
) -> None:
    """Add what these rows add to the totals of all classes and to the lower triangle of a Fortran-ordered matrix.

    What is refused adds nothing.
    """
    centred = _centred(prepared(rows, prepare), codes, shifts, out=np.empty(rows.shape))
    with np.errstate(over="ignore", invalid="ignore"):  # what is not finite is looked at at once
        squares = np.einsum("ij,ij->j", centred, centred) + np.diag(scatter)
    if not np.isfinite(squares).all():
        refuse_non_finite(rows)
        refuse_overflow(squares)
    present, place_of = _present(codes, len(shifts))
    own_totals = np.zeros((_n_present(present, shifts), rows.shape[1]))
    _add_class_sums(codes if place_of is None else place_of[codes], centred, own_totals)
    totals[present] += own_totals
    add_rank_update(centred, scatter)


def refuse_overflow(sums_of_squares: Floats) -> None:
    """Raise unless all of these are finite."""
    if not np.isfinite(sums_of_squares).all():
        raise InputError("features are so large that their squares overflow float64; rescale the features")


def _add_class_sums(places: NDArray[Any], rows: Floats, totals: Floats) -> None:
    """Add each row to the total at its place."""
    if rows.shape[1] >= LONG_ROW:
        for place, row in zip(places.tolist(), rows, strict=True):
            totals[place] += row
        return
    entries = (np.ones(len(places)), places, np.arange(len(places) + 1))
    totals += sparse.csc_array(entries, shape=(len(totals), len(places))) @ rows


def _centred(rows: NDArray[Any], codes: NDArray[Any], shifts: Floats, *, out: Floats) -> Floats:
    """Write each row less the shift of its class to out."""
    np.take(shifts, codes, axis=0, out=out, mode="clip")  # without a mode it would be copied
    with np.errstate(over="ignore", invalid="ignore"):  # what is not finite is looked at in sums of squares
        np.subtract(rows, out, out=out)
    return out


def _present(codes: Codes, n_classes: int) -> tuple[NDArray[np.int64] | slice, NDArray[np.int64] | None]:
    """Return the places of the classes that sums are formed of, and where each class is among these; None for all."""
    if n_classes <= FEW_CLASSES:
        return slice(None), None
    present = np.flatnonzero(class_counts(codes, n_classes))
    if len(present) == n_classes:
        return slice(None), None
    place_of = np.empty(n_classes, dtype=np.int64)
    place_of[present] = np.arange(len(present))
    return present, place_of


def _n_present(present: NDArray[np.int64] | slice, shifts: Floats) -> int:
    return len(shifts) if isinstance(present, slice) else len(present)


def _way(n_features: int) -> tuple[bool, int]:
    """Return whether the passes in C sum up rows of so many features, and by how many threads at the most."""
    n_threads = blas_threads()
    most_bytes = max(LARGEST_MEMORY, MATRICES_OF_SCATTERS * 8 * n_features**2)
    if native.library() is not None:
        copied = 8 * n_features * _rows_per_call(n_features, is_copied=True)
        n_scatters = max(1, most_bytes // (native.Scatter.n_bytes(n_features) + copied))
        if n_threads <= THREADS_PER_SCATTER * n_scatters:
            return True, n_scatters
    n_scatters = most_bytes // (8 * n_features * (n_features + _rows_per_update(n_features)))
    return False, n_scatters if n_scatters >= n_threads else 1  # all of BLAS's threads share the one


def _rows_per_call(n_features: int, *, is_copied: bool) -> int:
    step = native.Scatter.rows_together()
    wanted = COPIED_BYTES // (8 * n_features) if is_copied else int(OPERATIONS_PER_CALL / n_features**2)
    return max(1, min(wanted, MOST_ROWS_PER_CALL) // step) * step


def _rows_per_update(n_features: int) -> int:
    return max(MIN_ROWS_PER_UPDATE, UPDATE_BYTES // (8 * n_features))
