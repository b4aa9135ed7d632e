"""Activations and weights shaped before the energy: ReAct's clip, ASH's pruning, SCALE's factor, DICE's mask.

Each function takes rows of penultimate activations, as the last layer reads them, and returns them shaped.
"""

from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gem_ood.errors import InputError
from gem_ood.features import as_features, is_share, refuse_non_finite

__all__ = ["AshVariant", "ash", "check_share", "check_variant", "clip_activations", "contribution_mask", "scale"]

AshVariant = Literal["p", "b", "s"]

#: Sharpened activations are held at this size, so that logits, being sums of them, stay far from overflow.
LARGEST_ACTIVATION = 1e200

#: exp(709) is the last that float64 holds.
LARGEST_EXPONENT = 700.0


def clip_activations(features: ArrayLike, limit: float) -> NDArray[np.float64]:
    """Return min(h, limit), entry by entry (Sun, Guo and Li, 2021).

    >>> clip_activations([[0.5, 3.0]], 1.0)
    array([[0.5, 1. ]])
    """
    rows = as_features(features)
    refuse_non_finite(rows)
    return np.asarray(np.minimum(rows, limit, dtype=np.float64))


def ash(features: ArrayLike, *, variant: AshVariant = "s", share: float = 0.9) -> NDArray[np.float64]:
    """Return rows with this share of their entries, the lowest, set to zero, and the others shaped by the variant.

    With s₁ the sum of a row before and s₂ after pruning, the k kept entries stay as they are (`"p"`), become s₁/k
    (`"b"`), or are multiplied by exp(s₁/s₂) (`"s"`) (Djurisic et al., 2023). k is m − round(share·m), as in their
    published code, and at least 1; of equal entries the first are kept.

    Activations after a ReLU have s₁/s₂ between 1 and m/k. Where entries may be negative, s₁/s₂ stays at most m/k as
    long as s₂ > 0, and falls without end as s₂ falls to zero; rows with s₂ ≤ 0 take the limit, a factor of zero.
    Products that would pass 1e200 in size, and factors that would pass exp(700), are held there.

    >>> ash([[1.0, 0.0, 3.0, 4.0]], variant="p", share=0.5)
    array([[0., 0., 3., 4.]])
    >>> ash([[1.0, 0.0, 3.0, 4.0]], variant="b", share=0.5)
    array([[0., 0., 4., 4.]])
    """
    check_variant(variant)
    rows = _rows(features, share)
    kept = _highest(rows, share)
    if variant == "b":
        totals = rows.sum(axis=1, keepdims=True)
        return np.where(kept, totals / _n_kept(rows.shape[1], share), 0.0)
    pruned = np.where(kept, rows, 0.0)
    if variant == "s":
        pruned *= _sharpening(rows, pruned)[:, np.newaxis]
    return pruned


def scale(features: ArrayLike, *, share: float = 0.85) -> NDArray[np.float64]:
    """Return rows times exp(s₁/s₂): the factor of ASH-S, on all entries, without pruning (Xu et al., 2024).

    Rows with s₂ ≤ 0, and products that would pass 1e200, are as in `ash`.

    >>> scale([[2.0, 2.0]], share=0.5) / np.exp(2.0)
    array([[2., 2.]])
    """
    rows = _rows(features, share)
    rows *= _sharpening(rows, np.where(_highest(rows, share), rows, 0.0))[:, np.newaxis]
    return rows


def contribution_mask(weight: ArrayLike, mean: ArrayLike, share: float = 0.9) -> NDArray[np.bool_]:
    """Return which weights of a k × m layer DICE keeps: those whose contribution is above the quantile of this share.

    The contribution of a weight is its product with the mean activation that it reads; the quantile is over all k·m
    of them, by linear interpolation (Sun and Li, 2022, and their published code).

    >>> contribution_mask([[1.0, 2.0], [3.0, -4.0]], [1.0, 0.75], share=0.5)
    array([[False,  True],
           [ True, False]])
    """
    check_share(share)
    weights, activations = as_features(weight, name="weight"), np.asarray(mean)
    if activations.shape != weights.shape[1:]:
        raise InputError(
            f"mean has shape {activations.shape} but weight has {weights.shape[1]} columns; pass one mean per column"
        )
    with np.errstate(over="ignore", invalid="ignore"):
        contributions = np.multiply(weights, activations, dtype=np.float64)
    refuse_non_finite(contributions, name="the contributions", remedy="scale weights or activations down")
    return np.asarray(contributions > np.quantile(contributions, share))


def check_share(share: float) -> None:
    """Raise unless this is a share from 0 to below 1.

    >>> check_share(0.9)
    """
    if not is_share(share) or share == 1.0:
        raise InputError(f"share is {share!r}; pass a number from 0 to below 1, such as 0.9 for a percentile of 90")


def check_variant(variant: str) -> None:
    """Raise unless this names a variant of ASH.

    >>> check_variant("s")
    """
    if variant not in ("p", "b", "s"):
        raise InputError(f"variant is {variant!r}; pass 'p' (prune), 'b' (binarise) or 's' (scale)")


def _rows(features: ArrayLike, share: float) -> NDArray[np.float64]:
    """Return a float64 copy: the caller's rows are never written to."""
    check_share(share)
    rows = as_features(features)
    refuse_non_finite(rows)
    return np.array(rows, dtype=np.float64, order="C")


def _n_kept(n_features: int, share: float) -> int:
    n_pruned = round(round(n_features * float(share), 9))  # 50 · 0.29 is 14.499…998 and means 14.5
    return max(1, n_features - n_pruned)


def _highest(rows: NDArray[np.float64], share: float) -> NDArray[np.bool_]:
    """Return which entries of each row are kept: exactly as many in every row, of equal ones the first."""
    n_kept = _n_kept(rows.shape[1], share)
    lowest_kept = np.partition(rows, rows.shape[1] - n_kept, axis=1)[:, rows.shape[1] - n_kept, np.newaxis]
    kept: NDArray[np.bool_] = rows >= lowest_kept
    tied = np.flatnonzero(np.count_nonzero(kept, axis=1) > n_kept)
    if len(tied):
        above = rows[tied] > lowest_kept[tied]
        level = kept[tied] & ~above
        room = n_kept - np.count_nonzero(above, axis=1, keepdims=True)
        kept[tied] = above | (level & (np.cumsum(level, axis=1) <= room))
    return kept


def _sharpening(rows: NDArray[np.float64], pruned: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return exp(s₁/s₂) for each row."""
    largest: NDArray[Any] = np.abs(rows).max(axis=1)
    unit = np.where(largest > 0.0, largest, 1.0)[:, np.newaxis]  # sums of huge entries must not overflow
    before, after = (rows / unit).sum(axis=1), (pruned / unit).sum(axis=1)
    ratio = np.full(len(rows), -np.inf)
    with np.errstate(over="ignore"):
        np.divide(before, after, out=ratio, where=after > 0.0)
    headroom = np.log(LARGEST_ACTIVATION) - np.log(unit[:, 0])
    return np.asarray(np.exp(np.minimum(ratio, np.clip(headroom, 0.0, LARGEST_EXPONENT))))
