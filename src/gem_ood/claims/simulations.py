"""P34 to P39: the synthetic classes and the three simulation studies, each beside its prediction (B3)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from scipy.special import ndtri
from scipy.stats import norm, ortho_group

from gem_ood import metrics, scores, simulation, theory
from gem_ood.claims.claim import Finding, Verdict, claim, corrected, holds
from gem_ood.claims.draws import ROUNDING, SURE, disagreement, figure_settings
from gem_ood.claims.sharing import shared
from gem_ood.gaussians import TiedGaussians
from gem_ood.simulation import SCORES, Setting
from gem_ood.simulation.running import for_each
from gem_ood.simulation.studies import CURVES

__all__ = ["RUNS", "Simulated", "errors_off_in_common", "shared_study", "simulated"]

#: As many as the paper's.
RUNS = 5


@dataclass(frozen=True)
class Simulated:
    """One point of a study: the FPR95 of one score over five runs, and what B3 predicts.

    Attributes:
        setting: What was drawn.
        mean: The mean rate.
        error: Its standard error, see `_sampling_error`.
        predicted: The rate without sampling.
        slack: The prediction's own standard error.
    """

    setting: Setting
    mean: float
    error: float
    predicted: float
    slack: float

    @property
    def errors_off(self) -> float:
        """The gap between both, in the sum of their standard errors."""
        return abs(self.mean - self.predicted) / (self.error + self.slack)


def shared_study(name: str, score: str = "gem") -> tuple[Simulated, ...]:
    """Return a study at the paper's size by the exact reduction; all checks of one run share it."""
    return shared(("study", name), lambda seed: _study(name, seed))[score]


def _study(name: str, seed: int) -> dict[str, tuple[Simulated, ...]]:
    return simulated([Setting(k, d, r) for k, d, r in figure_settings(name)], seed)


def simulated(settings: Sequence[Setting], seed: int) -> dict[str, tuple[Simulated, ...]]:
    """Return what five runs of these settings and their predictions give, by score."""
    rates = simulation.simulate_settings(settings, runs=RUNS, seed=seed, sampler="projected")

    def predict(setting: Setting) -> Mapping[str, theory.Prediction]:
        return theory.predict_fpr(setting.gaussians(), np.zeros(setting.dimension))

    predictions = for_each(predict, settings, cost=lambda setting: setting.n_classes)

    def point(score: str, place: int) -> Simulated:
        setting, mean, one = settings[place], float(rates[place][score].mean()), predictions[place][score]
        return Simulated(setting, mean, _sampling_error(setting, one.fpr), one.fpr, float(one.standard_error))

    return {score: tuple(point(score, place) for place in range(len(settings))) for score in SCORES}


def _sampling_error(setting: Setting, rate: float) -> float:
    """Return the standard error of the mean over runs of a rate near this one.

    A rate errs by its own rows and by the threshold's. The latter needs the slope of the curve, taken as that of two
    normal laws of one width, which fits within a tenth where it counts. One row a run is added for
    where a handful is expected.
    """
    share = float(np.clip(rate, 1e-300, 1.0 - 1e-16))
    slope = norm.pdf(ndtri(share)) / norm.pdf(ndtri(0.95))
    variance = share * (1.0 - share) / setting.n_out + slope**2 * 0.95 * 0.05 / setting.n_in
    return float(1.1 * np.sqrt(variance / RUNS) + 1.0 / (setting.n_out * RUNS))


def errors_off_in_common(points: Sequence[Simulated]) -> float:
    """Return how far from 1 the factor is that would fit all predictions best, in its standard errors.

    It shows what is off everywhere by too little to show at any one point.
    """
    errors = np.array([point.error + point.slack for point in points])
    shares = np.array([point.predicted for point in points]) / errors
    gaps = np.array([point.mean - point.predicted for point in points]) / errors
    return float(abs(shares @ gaps) / np.linalg.norm(shares))


def _by_classes(points: Sequence[Simulated]) -> tuple[list[Simulated], list[Simulated]]:
    few, many = CURVES
    return [p for p in points if p.setting.n_classes == few], [p for p in points if p.setting.n_classes == many]


def _exceeds(larger: Simulated, smaller: Simulated) -> bool:
    """Whether a predicted rate is the larger, as far as the predictions' errors can tell."""
    return larger.predicted > smaller.predicted - SURE * (larger.slack + smaller.slack)


def _steps_up(points: Sequence[Simulated]) -> int:
    return sum(_exceeds(after, before) for before, after in pairwise(points))


def _rises(points: Sequence[Simulated]) -> bool:
    return _steps_up(points) == len(points) - 1


@claim("P34", "ν_i: s = ⌊d/k⌋ equal entries, zero elsewhere, length 1")
def _construction(generator: np.random.Generator) -> Finding:
    error, n_checked, n_misplaced = 0.0, 0, 0
    for k, d in [(10, 512), (100, 512), (100, 1000), (3, 10), *generator.integers(1, 40, (20, 2)).tolist()]:
        if k > d:
            continue
        means = simulation.study_means(k, d, 1.0)
        for place, mean in enumerate(means):
            filled = np.flatnonzero(mean)
            n_misplaced += filled.tolist() != list(range(place * (d // k), (place + 1) * (d // k)))
            error = max(error, abs(float(mean @ mean) - 1.0), float(np.ptp(mean[filled])))
            n_checked += 1
    return holds(
        n_misplaced == 0,
        error < ROUNDING,
        computed=f"{n_checked} vectors, d to 1,000, k to 100: {n_misplaced} misplaced, lengths, entries ≤ {error:.0e}",
    )


@claim("P35", "the ν_i are orthogonal and √2 apart")
def _orthogonality(generator: np.random.Generator) -> Finding:
    error = 0.0
    for k, d in ((10, 512), (100, 512), (100, 100), (7, int(generator.integers(7, 60)))):
        means = simulation.study_means(k, d, 1.0)
        error = max(error, float(np.abs(means @ means.T - np.eye(k)).max()))
        apart = np.linalg.norm(means[:, np.newaxis] - means, axis=2)[~np.eye(k, dtype=bool)]
        error = max(error, float(np.abs(apart - np.sqrt(2.0)).max()))
    return holds(error < ROUNDING, computed=f"inner products and distances, k to 100, d to 512: ≤ {error:.0e}")


@claim("P36", "translation and rotation change no result")
def _invariance(generator: np.random.Generator) -> Finding:
    d, shift = 40, 100.0 * generator.standard_normal(40)
    rotation = ortho_group(d, seed=generator).rvs()
    plain = simulation.Setting(5, d, 4.0).gaussians()
    moved = TiedGaussians.from_parameters(plain.class_means @ rotation + shift, np.eye(d))
    inside, _ = plain.sample(10_000, random_state=generator)
    outside = generator.standard_normal((10_000, d))
    values = [scores.gem_scores(plain, rows) for rows in (inside, outside)]
    others = [scores.gem_scores(moved, rows @ rotation + shift) for rows in (inside, outside)]
    error = max(map(disagreement, others, values))
    rates = metrics.fpr_at_tpr(*values), metrics.fpr_at_tpr(*others)
    predicted = [
        theory.predict_fpr(gaussians, mean)["gem"].fpr for gaussians, mean in ((plain, np.zeros(d)), (moved, shift))
    ]
    return holds(
        error < ROUNDING,
        abs(rates[0] - rates[1]) < 1e-3,
        abs(predicted[0] - predicted[1]) < 1e-3,
        computed=f"GEM ≤ {error:.0e}; FPR95 {rates[0]:.4f} and {rates[1]:.4f}, predicted {predicted[0]:.4f} and "
        f"{predicted[1]:.4f}",
    )


@claim("P37", "FPR95 falls as the distance r grows, k = 10 and 100", Verdict.CORRECTED)
def _distance(generator: np.random.Generator) -> Finding:
    points = shared_study("distance")
    few, many = _by_classes(points)
    peaks = [max(range(10), key=lambda place: curve[place].mean) for curve in (few, many)]
    first, top = many[0], many[peaks[1]]
    tails = [curve[peak:][::-1] for curve, peak in zip((few, many), peaks, strict=True)]
    n_falls, n_steps = sum(map(_steps_up, tails)), sum(len(tail) - 1 for tail in tails)
    reaches_zero = all(tail[0].mean < 1e-3 and tail[0].predicted < 1e-3 for tail in tails)
    off = max(point.errors_off for point in points)
    return corrected(
        # The rise is about seven standard errors of a difference.
        is_false=top.mean - first.mean > 3.0 * np.hypot(top.error, first.error),
        is_mended=n_falls == n_steps and reaches_zero and all(map(_exceeds, many, few)) and off < SURE,
        computed=(
            f"k = 100: {first.mean:.3f} at r = 1, {top.mean:.3f} at {top.setting.distance:g}; then {n_falls} of "
            f"{n_steps} steps of both fall; B3 to {off:.1f} s.e."
        ),
    )


@claim("P38", "FPR95 rises with the dimension d, and is higher for k = 100")
def _dimension(generator: np.random.Generator) -> Finding:
    points = shared_study("dimension")
    few, many = _by_classes(points)
    off = max(point.errors_off for point in points)
    return holds(
        _rises(few) and _rises(many) and all(map(_exceeds, many, few)),
        few[-1].mean - few[0].mean > 0.1 and many[-1].mean - many[0].mean > 0.1,
        off < SURE,
        computed=(
            f"d = 100 → 1,000: {few[0].mean:.3f} → {few[-1].mean:.3f} (k = 10), {many[0].mean:.3f} → "
            f"{many[-1].mean:.3f} (100); B3 within {off:.1f} s.e."
        ),
    )


@claim("P39", "FPR95 rises with the number of classes k")
def _classes(generator: np.random.Generator) -> Finding:
    points = shared_study("classes")
    first, last = points[0], points[-1]
    off = max(point.errors_off for point in points)
    return holds(
        _rises(points),
        last.mean - first.mean > 0.1,
        off < SURE,
        computed=(
            f"k = 10 → 100: {first.mean:.3f} → {last.mean:.3f} in 5 runs (predicted {first.predicted:.3f} → "
            f"{last.predicted:.3f}); B3 within {off:.1f} s.e."
        ),
    )
