"""A map: every row of the features placed in two dimensions, by UMAP or by principal components (P42)."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gem_ood.errors import InputError
from gem_ood.extras import require_extra
from gem_ood.features import as_features, is_count, refuse_non_finite

__all__ = ["FEWEST_ROWS", "LARGEST_SEED", "Method", "Places", "place_rows"]

#: How rows may be placed; "auto" is UMAP where it can be.
Method = Literal["auto", "umap", "pca"]

#: UMAP of fewer distinct rows than these shows little but its own noise, and of very few it fails.
FEWEST_ROWS = 20

#: Neighbours by which UMAP knows a row, its own default.
NEIGHBOURS = 15

#: UMAP computes in float32; rows beyond this many typical distances from the middle are drawn that far away.
FARTHEST = 1e6

#: Coordinates keep the features' unit inside these powers of ten; browsers draw in float32.
SMALLEST_UNIT, LARGEST_UNIT = 1e-30, 1e30

#: Exact singular vectors of a wider matrix take minutes; two of them are found by random projection instead.
EXACT_SIDE = 512

#: What NumPy's generators, and so UMAP, take as a seed.
LARGEST_SEED = 2**32 - 1


@dataclass(frozen=True, eq=False)
class Places:
    """Where each row lies on the map, by which method, and one sentence on it for readers."""

    points: NDArray[np.float64]
    method: Literal["UMAP", "PCA"]
    note: str


def place_rows(features: ArrayLike, *, method: Method = "auto", random_state: int = 0) -> Places:
    """Return a place in the plane for each row: UMAP's, or its first two principal components (P42).

    Columns are not standardised: a detector's distances are taken from the features as they are. UMAP sees them from
    their median, all divided by one number, so that any scale can be drawn; equal rows share a place.

    Args:
        features: One row per input. UMAP of 4,000 rows may take a minute or two: sample larger sets.
        method: "auto" is UMAP where umap-learn is installed, 20 rows differ and there are more than two dimensions,
            else principal components.
        random_state: The seed; the same features and seed give the same places on one machine.

    Raises:
        MissingExtraError: UMAP is asked for by name and is not installed.

    Example:
        >>> places = place_rows([[0.0, 0.0, 5.0], [3.0, 4.0, 5.0]], method="pca")
        >>> places.points.round(6).tolist()
        [[-2.5, 0.0], [2.5, 0.0]]
        >>> places.note
        'PCA, as asked; its two axes hold 100 % of the variance.'
    """
    if method not in get_args(Method):
        raise InputError(f'method is {method!r}; pass "auto", "umap" or "pca"')
    if not is_count(random_state, least=0) or random_state > LARGEST_SEED:
        raise InputError(f"random_state is {random_state!r}; pass a whole number from 0 to {LARGEST_SEED}")
    rows = as_features(features).astype(np.float64)
    refuse_non_finite(rows)
    seed = int(random_state)
    if method == "pca":
        return _principal(rows, seed, "as asked")
    if method == "auto" and rows.shape[1] <= 2:
        return _principal(rows, seed, "as so few dimensions fit the plane as they are")
    distinct, where = np.unique(_for_umap(rows), axis=0, return_inverse=True)
    where = where.reshape(-1)
    reason = _refusal(len(distinct), is_asked=method == "umap")
    if not reason:
        try:
            points = _neighbourly(distinct, seed)[where]
        except Exception as error:  # a map is not worth a report: whatever ails UMAP, there is another way
            reason = f"as UMAP failed on these rows ({type(error).__name__})"
    if not reason and not np.isfinite(points).all():
        reason = "as UMAP gave no place to some rows"
    if reason:
        if method == "umap":
            raise InputError(f'{reason.removeprefix("as ")}; pass method="pca"')
        return _principal(rows, seed, reason)
    return Places(points, "UMAP", _umap_note(len(distinct), seed))


def _refusal(n_distinct: int, *, is_asked: bool) -> str:
    """Return why UMAP cannot be used, empty if it can."""
    if n_distinct < FEWEST_ROWS:
        return f"as UMAP needs {FEWEST_ROWS} distinct rows and there {'is' if n_distinct == 1 else 'are'} {n_distinct}"
    try:
        with _undisturbed():
            require_extra("report", "umap", purpose="UMAP maps")
    except Exception:  # a numba that does not fit its NumPy may raise anything on import
        if is_asked:
            raise
        return 'as umap-learn cannot be imported (pip install "gem-ood[report]")'
    return ""


def _umap_note(n_distinct: int, seed: int) -> str:
    return (
        f"UMAP of the features as they are ({_n_neighbours(n_distinct)} neighbours, seed {seed}): rows near one "
        f"another are alike, but distances between groups mean little."
    )


def _n_neighbours(n_distinct: int) -> int:
    return min(NEIGHBOURS, n_distinct - 1)


def _scaled(values: NDArray[np.float64]) -> tuple[NDArray[np.float64], float]:
    """Return values divided by the largest of them, and that; squares then neither overflow nor vanish."""
    largest = float(np.abs(values).max())
    return (values / largest, largest) if largest > 0.0 else (values, 1.0)


def _for_umap(rows: NDArray[np.float64]) -> NDArray[np.float32]:
    """Return rows from their median in units of the typical distance to it.

    Neither moves with a few rows that lie extremely far, so those cannot press all others into one point.
    """
    centred = rows / 2.0  # the difference of two finite numbers may overflow, that of their halves cannot
    centred -= np.median(centred, axis=0)
    largest = np.abs(centred).max(axis=1)
    typical = float(np.median(largest[largest > 0.0])) if largest.any() else 1.0
    reach = np.maximum(typical, largest / FARTHEST)
    return np.asarray(centred / reach[:, np.newaxis], dtype=np.float32)


def _neighbourly(distinct: NDArray[np.float32], seed: int) -> NDArray[np.float64]:
    with _undisturbed(seed):
        import numba
        import umap

        n_threads = numba.get_num_threads()
        try:
            embedding = umap.UMAP(
                n_components=2,
                n_neighbors=_n_neighbours(len(distinct)),
                random_state=seed,
                n_jobs=1,
                verbose=False,
            ).fit_transform(distinct)
        finally:
            numba.set_num_threads(n_threads)
    return np.asarray(embedding, dtype=np.float64)


@contextmanager
def _undisturbed(seed: int = 0) -> Iterator[None]:
    """Keep UMAP's remarks from the caller, and its use of NumPy's global generator, which places groups far apart."""
    state = np.random.get_state()  # noqa: NPY002
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            np.random.seed(seed)  # noqa: NPY002
            yield
    finally:
        np.random.set_state(state)  # noqa: NPY002


def _principal(rows: NDArray[np.float64], seed: int, reason: str) -> Places:
    small, scale = _scaled(rows)
    small, rescale = _scaled(small - small.mean(axis=0))
    points = np.zeros((len(rows), 2))
    n_axes = min(2, *rows.shape)
    axes = _axes(small, seed)[:n_axes]
    # The sign of a singular vector is arbitrary: its largest entry is made positive.
    axes = axes * np.sign(axes[np.arange(n_axes), np.abs(axes).argmax(axis=1)])[:, np.newaxis]
    points[:, :n_axes] = small @ axes.T
    total = float(np.square(small).sum())
    share = min(1.0, float(np.square(points).sum()) / total) if total > 0.0 else 1.0
    unit = scale * rescale
    if SMALLEST_UNIT < unit < LARGEST_UNIT:
        points *= unit
    about = f"; its two axes hold {100.0 * share:.3g} % of the variance" if points.any() else ""
    return Places(points, "PCA", f"PCA, {reason}{about}.")


def _axes(centred: NDArray[np.float64], seed: int) -> NDArray[np.float64]:
    """Return the right singular vectors, the first two at least where there are two."""
    if min(centred.shape) <= EXACT_SIDE:
        return np.asarray(np.linalg.svd(centred, full_matrices=False)[2])
    from sklearn.utils.extmath import randomized_svd

    return np.asarray(randomized_svd(centred, 2, random_state=seed)[2])
