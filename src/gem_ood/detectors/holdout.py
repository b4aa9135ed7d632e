"""HoldOut: a random share of the rows kept back from a fit, without copying the rest."""

from collections.abc import Iterator
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gem_ood.errors import InputError
from gem_ood.features import chunks, is_share, refuse_non_finite

__all__ = ["HoldOut"]

#: Rows are picked out of the caller's array in runs of this many, so only one run is ever copied.
ROWS_PER_RUN = 8192

Batch = tuple[NDArray[Any], NDArray[Any] | None]


@dataclass(frozen=True, eq=False)
class HoldOut:
    """Which rows are held back."""

    features: NDArray[Any]
    labels: NDArray[Any] | None
    is_held: NDArray[np.bool_]

    @classmethod
    def draw(
        cls, features: NDArray[Any], labels: NDArray[Any] | None, *, share: float, random_state: int | None
    ) -> "HoldOut":
        """Return a random split that holds back this share of the rows, at least one, and leaves at least two."""
        if not is_share(share) or share in (0.0, 1.0):
            raise InputError(f"calibration is {share!r}; pass a share between 0 and 1, such as 0.1, or None")
        if not isinstance(random_state, Integral | None):
            raise InputError(f"random_state is {random_state!r}; pass a whole number or None")
        n_held = int(np.ceil(share * len(features)))
        if len(features) - n_held < 2:
            raise InputError(
                f"calibration={share} leaves {len(features) - n_held} of {len(features)} rows to fit on "
                f"(n_samples={len(features)}); pass more rows"
            )
        for rows in chunks(len(features), ROWS_PER_RUN):
            refuse_non_finite(features[rows], first_row=rows.start)  # later the rows have other numbers
        is_held = np.zeros(len(features), dtype=bool)
        is_held[np.random.default_rng(random_state).permutation(len(features))[:n_held]] = True
        if labels is not None:
            is_held[_first_rows_of_lost_classes(labels, is_held)] = False
        return cls(features, labels, is_held)

    def kept(self) -> "_Kept":
        """Return the rows to fit on, as re-iterable batches."""
        return _Kept(self)

    def held(self) -> Iterator[NDArray[Any]]:
        """Yield the rows held back."""
        for rows in chunks(len(self.features), ROWS_PER_RUN):
            picked = self.is_held[rows]
            if picked.any():
                yield self.features[rows][picked]


def _first_rows_of_lost_classes(labels: NDArray[Any], is_held: NDArray[np.bool_]) -> NDArray[np.intp]:
    """Return one row of each class that would be held back whole: the fit must know every class."""
    names, first = np.unique(labels, return_index=True)
    return np.asarray(first[~np.isin(names, labels[~is_held])])


@dataclass(frozen=True, eq=False)
class _Kept:
    split: HoldOut

    def __iter__(self) -> Iterator[Batch]:
        split = self.split
        for rows in chunks(len(split.features), ROWS_PER_RUN):
            picked = ~split.is_held[rows]
            if picked.any():
                labels = None if split.labels is None else split.labels[rows][picked]
                yield split.features[rows][picked], labels
