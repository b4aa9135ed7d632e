"""Scores of features against the head that reads them: its class patterns, weight vectors and decision boundaries.

Higher = more in-distribution. The class of a row is that of its largest logit.
"""

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.spatial.distance import pdist, squareform

from gem_ood.errors import InputError
from gem_ood.features import as_features, refuse_non_finite, unit_length

__all__ = ["boundary_distance", "hopfield_energy", "neural_collapse", "weight_gaps"]

#: Weight vectors nearer than this share of the longest leave nothing but rounding between their classes' logits.
SAME_WEIGHTS = 1e-12

LARGEST = float(np.finfo(np.float64).max)


def hopfield_energy(features: ArrayLike, logits: ArrayLike, patterns: ArrayLike) -> NDArray[np.float64]:
    """Return ⟨x, S_ŷ⟩, the inner product of each row with the pattern of its predicted class (Zhang et al., 2023).

    Args:
        features: What the last layer takes, n × m.
        logits: What it gives, n × k.
        patterns: One row S_i per class, k × m.

    >>> hopfield_energy([[1.0, 2.0]], [[0.0, 1.0]], [[9.0, 9.0], [3.0, 4.0]])
    array([11.])
    """
    rows, predicted = _read(features, logits)
    chosen = np.asarray(patterns, dtype=np.float64)[predicted]
    with np.errstate(over="ignore", invalid="ignore"):
        products = np.vecdot(rows, chosen)
    beyond = ~np.isfinite(products)
    if beyond.any():
        products[beyond] = _large_products(rows[beyond], chosen[beyond])
    return np.asarray(products)


def neural_collapse(
    features: ArrayLike, logits: ArrayLike, *, weight: ArrayLike, mean: ArrayLike, alpha: float
) -> NDArray[np.float64]:
    """Return ⟨w_ŷ, x − μ⟩ / ‖x − μ‖ + α·‖x‖₁ of each row (Liu and Qin, 2025).

    The first term is the cosine of x − μ with the predicted class's weight vector times that vector's length; it is 0
    where x is μ.

    Args:
        features: What the last layer takes, n × m.
        logits: What it gives, n × k.
        weight: The last layer's weight, k × m.
        mean: Mean of the training features, μ.
        alpha: Weight of the feature norm.

    >>> neural_collapse([[4.0, 5.0]], [[0.0, 1.0]], weight=[[0.0, 0.0], [5.0, 10.0]], mean=[1.0, 1.0], alpha=0.1)
    array([11.9])
    """
    rows, predicted = _read(features, logits)
    directions = unit_length(_offsets(rows, mean))
    with np.errstate(over="ignore"):
        proximity = np.vecdot(directions, np.asarray(weight, dtype=np.float64)[predicted])
        scores = proximity + alpha * np.abs(rows).sum(axis=1)
    return np.asarray(np.clip(scores, -LARGEST, LARGEST))


def boundary_distance(
    features: ArrayLike, logits: ArrayLike, *, gaps: ArrayLike, mean: ArrayLike
) -> NDArray[np.float64]:
    """Return the mean distance of each row to its class's decision boundaries, divided by ‖x − μ‖ (Liu and Qin, 2024).

    The boundary with class c lies at the distance |z_ŷ − z_c| / ‖w_ŷ − w_c‖. Classes of equal weight vectors have no
    boundary between them and are left out of the mean. Where x is μ the score is the largest of float64, its limit, or
    0 on every boundary.

    Args:
        features: What the last layer takes, n × m.
        logits: What it gives, n × k.
        gaps: ‖w_a − w_c‖ for each two classes, k × k, as `weight_gaps` returns.
        mean: Mean of the training features, μ.

    >>> gaps = weight_gaps([[0.0, 0.0], [0.6, 0.8]])
    >>> boundary_distance([[3.0, 4.0]], [[0.0, 5.0]], gaps=gaps, mean=[3.0, 2.0])
    array([2.5])
    """
    rows, predicted = _read(features, logits)
    values = np.asarray(logits, dtype=np.float64)
    widths = np.asarray(gaps, dtype=np.float64)[predicted]
    # Halves: the difference of the largest and the smallest float64 overflows.
    halves = values.max(axis=1, keepdims=True) / 2.0 - values / 2.0
    with np.errstate(over="ignore"):
        distances = np.divide(halves, widths, out=np.zeros_like(halves), where=widths > 0.0)
        totals = distances.sum(axis=1) / np.count_nonzero(widths, axis=1)
        return _shares(totals, _lengths(_offsets(rows, mean)))


def weight_gaps(weight: ArrayLike) -> NDArray[np.float64]:
    """Return ‖w_a − w_c‖ for each two rows of a weight, k × k; 0 where nothing but rounding keeps them apart.

    The differences themselves are squared: from products of the rows, near ones would lose their digits.

    >>> weight_gaps([[0.0, 0.0], [3.0, 4.0]])
    array([[0., 5.],
           [5., 0.]])
    """
    vectors = as_features(weight, name="weight").astype(np.float64)
    scale = 2.0 ** (math.frexp(float(np.abs(vectors).max()))[1] - 1)
    vectors /= scale  # squares neither overflow nor vanish, and a power of two rounds nothing
    gaps = pdist(vectors) if len(vectors) > 1 else np.zeros(0)
    longest = float(np.sqrt(np.vecdot(vectors, vectors)).max())
    gaps[gaps <= SAME_WEIGHTS * longest] = 0.0
    with np.errstate(over="ignore"):
        full = np.minimum(squareform(gaps) * scale, LARGEST) if len(vectors) > 1 else np.zeros((1, 1))
    if not full.any(axis=1).all():
        raise InputError(
            "all weight vectors of the head are equal, so no decision boundary lies between its classes; pass the head "
            "of a classifier of at least two classes"
        )
    return np.asarray(full)


def _read(features: ArrayLike, logits: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.intp]]:
    """Return checked float64 rows and the class that each is predicted to be."""
    rows, values = as_features(features), as_features(logits, name="logits")
    if len(rows) != len(values):
        raise InputError(f"features has {len(rows)} rows but logits has {len(values)}; pass one row of each per input")
    refuse_non_finite(rows)
    refuse_non_finite(values, name="logits")
    return rows.astype(np.float64, copy=False), np.argmax(values, axis=1)


def _offsets(rows: NDArray[np.float64], mean: ArrayLike) -> NDArray[np.float64]:
    with np.errstate(over="ignore"):
        offsets = rows - np.asarray(mean, dtype=np.float64)
    return offsets if np.isfinite(offsets).all() else np.clip(offsets, -LARGEST, LARGEST)


def _lengths(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return Euclidean lengths; squares of the largest entry neither overflow nor vanish."""
    largest = np.abs(rows).max(axis=1)
    scaled = rows / np.where(largest > 0.0, largest, 1.0)[:, np.newaxis]
    with np.errstate(over="ignore"):
        return np.asarray(np.minimum(np.sqrt(np.vecdot(scaled, scaled)) * largest, LARGEST))


def _shares(halves: NDArray[np.float64], lengths: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return twice the one divided by the other: 0 of nothing, and never beyond float64."""
    shares = np.divide(halves, lengths, out=np.full_like(halves, np.inf), where=lengths > 0.0)
    shares[halves == 0.0] = 0.0
    return np.asarray(np.minimum(2.0 * shares, LARGEST))


def _large_products(rows: NDArray[np.float64], others: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return inner products whose terms leave float64; one that does so itself is the largest or smallest number."""
    first, second = np.abs(rows).max(axis=1), np.abs(others).max(axis=1)
    near = np.vecdot(rows / first[:, np.newaxis], others / second[:, np.newaxis])
    with np.errstate(over="ignore"):  # the smaller factor first: then only what is too large in the end overflows
        products = near * np.minimum(first, second) * np.maximum(first, second)
    return np.asarray(np.clip(products, -LARGEST, LARGEST))
