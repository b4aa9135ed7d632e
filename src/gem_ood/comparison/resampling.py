"""mean_intervals: how far the mean over several out-of-distribution sets may be off."""

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from gem_ood.comparison.measured import METRICS
from gem_ood.metrics import evaluate

__all__ = ["mean_intervals"]

Scores = NDArray[np.float64]


def mean_intervals(
    id_scores: Scores,
    ood_scores: Sequence[Scores],
    *,
    tpr: float,
    convention: Literal["paper", "openood"],
    confidence: float,
    n_resamples: int,
    random_state: int | np.random.Generator | None,
) -> dict[str, tuple[float, float]]:
    """Return the bootstrap's percentile interval of each metric's mean over the sets.

    All sets meet the same in-distribution rows, so a resample draws these once and each set on its own.

    >>> inside, outside = np.array([2.0, 3.0]), [np.array([1.0]), np.array([4.0])]
    >>> options = dict(tpr=0.95, convention="paper", confidence=0.9, n_resamples=20, random_state=0)
    >>> mean_intervals(inside, outside, **options)["auroc"]
    (0.5, 0.5)
    """
    generator = np.random.default_rng(random_state)
    draws = np.empty((n_resamples, len(METRICS)))
    for draw in draws:
        inside = _resampled(id_scores, generator)
        evaluations = [
            evaluate(inside, _resampled(scores, generator), tpr=tpr, convention=convention) for scores in ood_scores
        ]
        draw[:] = [np.mean([getattr(one, metric) for one in evaluations]) for metric in METRICS]
    tail = (1.0 - confidence) / 2.0
    low, high = np.quantile(draws, [tail, 1.0 - tail], axis=0)
    return dict(zip(METRICS, zip(low.tolist(), high.tolist(), strict=True), strict=True))


def _resampled(scores: Scores, generator: np.random.Generator) -> Scores:
    return scores[generator.integers(len(scores), size=len(scores))]
