"""One run of a setting: rows drawn on both sides, scored, and the false positive rate of each score.

The full sampler draws rows of d numbers, a cache-sized chunk at a time. The projected sampler draws what decides the
scores and nothing else (B3): the k coordinates on the span of the means, and the squared length of the rest, which is
χ² with d − k degrees of freedom whatever the class. Both give rates of one distribution.
"""

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from gem_ood.errors import InputError
from gem_ood.features import chunks
from gem_ood.gaussians.parallel import available_cores, run_in_parts
from gem_ood.metrics import fpr_at_tpr
from gem_ood.simulation.scoring import SCORES, Scorer
from gem_ood.simulation.settings import Setting, is_whole_number

__all__ = ["RandomState", "Sampler", "check_sampler", "draw_scores", "scorer_of", "simulate_once"]

Sampler = Literal["full", "projected"]
RandomState = int | np.random.SeedSequence | np.random.Generator | None
Scores = Mapping[str, NDArray[np.float64]]

#: Rows are drawn and scored while they are still in a core's own cache.
CHUNK_BYTES = 1 << 20


def simulate_once(
    setting: Setting, *, random_state: RandomState = None, sampler: Sampler = "full", tpr: float = 0.95
) -> dict[str, float]:
    """Return the false positive rate at a true positive rate of every score, from one run.

    Example:
        >>> rates = simulate_once(Setting(10, 64, 8.0, n_in=2000, n_out=2000), random_state=0)
        >>> rates["linear-energy"] < rates["gem"] < 0.3  # E8: against this OOD, GEM is not the best
        True
    """
    inside, outside = draw_scores(setting, random_state=random_state, sampler=sampler)
    return {name: fpr_at_tpr(inside[name], outside[name], tpr=tpr) for name in SCORES}


def draw_scores(
    setting: Setting, *, random_state: RandomState = None, sampler: Sampler = "full", scorer: Scorer | None = None
) -> tuple[Scores, Scores]:
    """Return the in-distribution and the out-of-distribution scores of one run, by name.

    In-distribution rows come class by class. A scorer made by `scorer_of` for this setting and sampler saves making it.

    Example:
        >>> inside, outside = draw_scores(Setting(2, 8, 3.0, n_in=5, n_out=4), random_state=0)
        >>> inside["gem"].shape, outside["msp"].shape
        ((5,), (4,))
    """
    scorer = scorer_of(setting, sampler) if scorer is None else scorer
    draw = _SAMPLERS[check_sampler(sampler)]
    counts = (setting.class_counts(), np.array([setting.n_out]))
    shifts = (scorer.gaussians.class_means, np.zeros((1, scorer.gaussians.n_features)))
    streams = _streams(random_state)

    def work(sides: slice) -> list[Scores]:
        return [draw(setting, scorer, shifts[side], counts[side], streams[side]) for side in range(2)[sides]]

    # One side per thread if there are threads to spare. BLAS has one thread in each, so the numbers are the same.
    parts = run_in_parts(work, 2, operations=np.inf, fewest_threads=available_cores())
    inside, outside = (scores for part in parts for scores in part)
    return inside, outside


def scorer_of(setting: Setting, sampler: Sampler) -> Scorer:
    """Return what scores the rows of this sampler."""
    is_full = check_sampler(sampler) == "full"
    return Scorer.of(setting.gaussians() if is_full else setting.projected_gaussians())


def check_sampler(sampler: str) -> str:
    """Return the name of a sampler that there is.

    Example:
        >>> check_sampler("full")
        'full'
    """
    if sampler not in get_args(Sampler):
        raise InputError(f'sampler is {sampler!r}; pass "full" or "projected"')
    return sampler


def _draw_full(
    setting: Setting,
    scorer: Scorer,
    means: NDArray[np.float64],
    counts: NDArray[np.int64],
    generator: np.random.Generator,
) -> Scores:
    n_rows, narrow_means = int(counts.sum()), means.astype(np.float32)
    size = max(1, min(n_rows, CHUNK_BYTES // (4 * setting.dimension)))
    buffer = np.empty((size, setting.dimension), dtype=np.float32)

    def scores(place: slice) -> Scores:
        rows = buffer[: place.stop - place.start]
        generator.standard_normal(dtype=np.float32, out=rows)
        if setting.sigma != 1.0:
            rows *= np.float32(setting.sigma)
        _add_means(rows, place, narrow_means, counts)
        return scorer.scores(rows)

    return _joined(scores, n_rows, size)


def _draw_projected(
    setting: Setting,
    scorer: Scorer,
    means: NDArray[np.float64],
    counts: NDArray[np.int64],
    generator: np.random.Generator,
) -> Scores:
    n_rows, n_classes = int(counts.sum()), setting.n_classes
    freedom = setting.dimension - n_classes

    def scores(place: slice) -> Scores:
        n = place.stop - place.start
        rows = generator.standard_normal((n, n_classes))
        _add_means(rows, place, means, counts)
        return scorer.scores(rows, residual=generator.chisquare(freedom, n) if freedom else 0.0)

    return _joined(scores, n_rows, max(1, CHUNK_BYTES // (8 * n_classes)))


_SAMPLERS: dict[str, Callable[..., Scores]] = {"full": _draw_full, "projected": _draw_projected}


def _joined(scores: Callable[[slice], Scores], n_rows: int, size: int) -> Scores:
    found = {name: np.empty(n_rows) for name in SCORES}
    for place in chunks(n_rows, size):
        for name, values in scores(place).items():
            found[name][place] = values
    return found


def _add_means(rows: NDArray[Any], place: slice, means: NDArray[Any], counts: NDArray[np.int64]) -> None:
    """Move each row to its class, the rows being a part of all rows in the order of their classes."""
    bounds = np.clip(np.concatenate([[0], counts.cumsum()]) - place.start, 0, len(rows))
    for mean, (start, stop) in zip(means, pairwise(bounds), strict=True):
        if start < stop and mean.any():
            rows[start:stop] += mean


def _streams(random_state: RandomState) -> list[np.random.Generator]:
    """Return one generator for each side, so that neither depends on how many rows the other has."""
    if isinstance(random_state, np.random.Generator):
        return random_state.spawn(2)
    if random_state is None:
        seeds = np.random.SeedSequence()
    elif isinstance(random_state, np.random.SeedSequence):
        seeds = random_state
    elif is_whole_number(random_state) and random_state >= 0:
        seeds = np.random.SeedSequence(int(random_state))
    else:
        raise InputError(
            f"random_state is {random_state!r}; pass a whole number of at least 0, a SeedSequence or a Generator"
        )
    return [np.random.Generator(np.random.SFC64(seed)) for seed in seeds.spawn(2)]
