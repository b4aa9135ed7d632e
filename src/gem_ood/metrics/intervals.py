"""How far a metric may be off on this many rows: DeLong's interval for AUROC, and the bootstrap for all."""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from gem_ood.errors import InputError

__all__ = ["bootstrap_intervals", "delong_interval"]

Scores = NDArray[np.float64]


def delong_interval(id_scores: Scores, ood_scores: Scores, *, confidence: float) -> tuple[float, float]:
    """Return the interval for AUROC of DeLong, DeLong & Clarke-Pearson (Biometrics 44, 1988), cut to [0, 1].

    A row's placement is the share of the other side that it beats, ties half; AUROC is their mean, and the
    variances of both sides' placements give its variance. At AUROC 0 or 1 that is 0 and the interval a point.

    Example:
        >>> low, high = delong_interval(np.array([1.0, 3.0, 4.0]), np.array([0.0, 2.0]), confidence=0.95)
        >>> round(low, 3), round(high, 3)
        (0.371, 1.0)
    """
    if min(len(id_scores), len(ood_scores)) < 2:
        raise InputError(
            f"DeLong's interval needs two rows per side but id_scores has {len(id_scores)} and ood_scores "
            f"has {len(ood_scores)}; pass more rows"
        )
    id_placements = _placements(id_scores, np.sort(ood_scores))
    ood_placements = 1 - _placements(ood_scores, np.sort(id_scores))
    variance = id_placements.var(ddof=1) / len(id_scores) + ood_placements.var(ddof=1) / len(ood_scores)
    centre = float(id_placements.mean())
    reach = float(ndtri((1 + confidence) / 2) * np.sqrt(variance))
    return max(0.0, centre - reach), min(1.0, centre + reach)


def bootstrap_intervals(
    id_scores: Scores,
    ood_scores: Scores,
    measure: Callable[[Scores, Scores], Sequence[float]],
    *,
    confidence: float,
    n_resamples: int,
    generator: np.random.Generator,
) -> list[tuple[float, float]]:
    """Return the percentile interval of each number that measure gives, each side resampled on its own.

    Example:
        >>> gap = lambda inside, outside: [inside.mean() - outside.mean()]
        >>> options = dict(confidence=0.9, n_resamples=50, generator=np.random.default_rng(0))
        >>> bootstrap_intervals(np.array([2.0, 2.0]), np.array([1.0]), gap, **options)
        [(1.0, 1.0)]
    """
    draws = np.array(
        [
            measure(
                id_scores[generator.integers(len(id_scores), size=len(id_scores))],
                ood_scores[generator.integers(len(ood_scores), size=len(ood_scores))],
            )
            for _ in range(n_resamples)
        ]
    )
    tail = (1 - confidence) / 2
    low, high = np.quantile(draws, [tail, 1 - tail], axis=0)
    return [(float(first), float(last)) for first, last in zip(low, high, strict=True)]


def _placements(scores: Scores, others: Scores) -> Scores:
    beaten = np.searchsorted(others, scores, side="left") + np.searchsorted(others, scores, side="right")
    return beaten / (2 * len(others))
