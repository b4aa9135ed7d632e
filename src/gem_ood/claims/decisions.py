"""P10 to P16: thresholds, the ideal classifier, and which scores agree with it."""

import numpy as np
from scipy.special import logsumexp

from gem_ood import detectors, scores, thresholds
from gem_ood.claims.claim import Finding, claim, holds
from gem_ood.claims.draws import (
    SURE,
    log_mixture_density,
    one_dimensional,
    random_gaussians,
    share_inverted,
)
from gem_ood.gaussians import TiedGaussians

__all__: list[str] = []


@claim("P10", "g: a row is in where its score ≥ λ, for all five classifiers")
def _rule(generator: np.random.Generator) -> Finding:
    gaussians = random_gaussians(generator, n_classes=4)
    rows, labels = gaussians.sample(1999, random_state=generator)
    logits = gaussians.exponents(rows)
    density = gaussians.log_density(rows)
    at = int(generator.integers(len(rows)))
    ideal = scores.ideal(gaussians, rows, log_threshold=float(density[at]))
    slips = int(np.count_nonzero(ideal != (density >= density[at]))) + int(not ideal[at])
    judges = {
        detectors.MSP(): logits,
        detectors.Energy(): logits,
        detectors.Mahalanobis(): rows,
        detectors.GEM(): rows,
    }
    for detector, inputs in judges.items():
        detector.fit(inputs, labels).calibrate(inputs)
        values, cut = detector.score_samples(inputs), detector.threshold_.value
        is_in = ~detector.is_ood(inputs)
        slips += int(np.count_nonzero(is_in != (values >= cut))) + int(not is_in[np.argmin(np.abs(values - cut))])
    return holds(
        slips == 0,
        computed=f"ideal, MSP, Mahalanobis, Energy, GEM on {len(rows):,} rows, one exactly at λ: {slips} slips",
    )


@claim("P11", "λ is chosen so that 95 % of in-distribution data is kept")
def _ninety_five(generator: np.random.Generator) -> Finding:
    gaussians = random_gaussians(generator, n_classes=4, dimension=6)
    known, new = (
        scores.gem_scores(gaussians, gaussians.sample(n, random_state=generator)[0]) for n in (20_000, 200_000)
    )
    cut = thresholds.quantile_threshold(known, tpr=0.95).value
    kept, next_kept = float(np.mean(known >= cut)), float(np.mean(known > cut))
    kept_new = float(np.mean(new >= cut))
    error = np.sqrt(0.95 * 0.05 * (1.0 / len(known) + 1.0 / len(new)))
    return holds(
        kept >= 0.95 > next_kept,
        abs(kept_new - 0.95) < SURE * error,
        computed=f"keeps {kept:.2%} of its 20,000 rows, {kept_new:.2%} of 200,000 new (5 s.e. = {SURE * error:.2%})",
    )


def _differing_verdicts(gaussians: TiedGaussians, generator: np.random.Generator) -> tuple[int, int]:
    """Return in how many rows GEM at log kβλ and SciPy's density at λ differ, and how many are in."""
    rows = np.vstack([gaussians.sample(500, random_state=generator)[0], 4.0 * generator.standard_normal((500, 3))])
    truth = log_mixture_density(gaussians, rows)
    log_threshold = float(np.quantile(truth, generator.uniform(0.1, 0.9)))
    is_in = scores.gem(gaussians.exponents(rows)) >= scores.gem_threshold(gaussians, log_threshold=log_threshold)
    return int(np.count_nonzero(is_in != (truth >= log_threshold))), int(is_in.sum())


@claim("P12", "Lemma 1: g_ideal at λ is g_GEM at log kβλ")
def _ideal(generator: np.random.Generator) -> Finding:
    counts = [
        _differing_verdicts(random_gaussians(generator, n_classes=int(generator.integers(1, 9))), generator)
        for _ in range(50)
    ]
    differing, n_in = np.sum(counts, axis=0)
    return holds(
        differing == 0,
        0 < n_in < 50_000,
        computed=f"50 configurations × 1,000 rows, {n_in:,} in: {differing} verdicts differ from SciPy's density at λ",
    )


@claim("P13", "Lemma 2: the same in feature space, with β̄ of the fitted Σ̄")
def _ideal_on_features(generator: np.random.Generator) -> Finding:
    images, labels = random_gaussians(generator, n_classes=5, dimension=8).sample(3000, random_state=generator)
    features = np.maximum(images @ generator.standard_normal((8, 3)) + 1.0, 0.0)
    gaussians = detectors.GEM().fit(features, labels).gaussians_
    counts = [_differing_verdicts(gaussians, generator) for _ in range(20)]
    differing, n_in = np.sum(counts, axis=0)
    return holds(
        differing == 0,
        0 < n_in < 20_000,
        computed=f"fitted to 3,000 rows of a ReLU layer, 20 λ × 1,000 rows: {differing} verdicts differ",
    )


@claim("P14", "Lemma 3: Mahalanobis is not the ideal classifier (two distinct means: E11)")
def _mahalanobis_is_not_ideal(generator: np.random.Generator) -> Finding:
    line = one_dimensional()
    points = np.array([[0.0], [3.99]])
    m, density = scores.mahalanobis(line.exponents(points)), np.exp(line.log_density(points))
    gaussians = random_gaussians(generator, n_classes=4, spread=1.0)
    rows, _ = gaussians.sample(20_000, random_state=generator)
    truth = log_mixture_density(gaussians, rows)
    share = share_inverted(scores.mahalanobis(gaussians.exponents(rows)), truth)
    return holds(
        m[1] > m[0],
        density[1] < density[0],
        share > 0.0,
        computed=(
            f"means ±2, x = 0 and 3.99: M {m[0]:.2f} < {m[1]:.2f}, p {density[0]:.3f} > {density[1]:.3f}; "
            f"{share:.1%} of pairs inverted"
        ),
    )


@claim("P15", "max f ≤ log Σ exp f ≤ max f + log k")
def _smooth_maximum(generator: np.random.Generator) -> Finding:
    violations, n_rows = 0, 0
    for _ in range(100):
        k = int(generator.integers(1, 200))
        f = -(10.0 ** generator.uniform(-2.0, 4.0)) * generator.chisquare(3, (200, k))
        slack = 1e-12 * np.abs(f).max()
        gap = scores.gem(f) - f.max(axis=1)
        violations += int(np.count_nonzero((gap < -slack) | (gap > np.log(k) + slack)))
        n_rows += len(f)
    equal = float(scores.gem(np.full((1, 7), -3.0))[0] + 3.0 - np.log(7.0))
    return holds(
        violations == 0,
        abs(equal) < 1e-12,
        computed=f"{n_rows:,} rows, k to 200: {violations:,} violations; equal f reach log k to {abs(equal):.0e}",
    )


@claim("P16", "the energy of f' is not aligned with the density")
def _linear_energy_is_misaligned(generator: np.random.Generator) -> Finding:
    line = one_dimensional()
    points = np.array([[2.0], [8.0]])
    energy, log_density = scores.linear_energy(line, points), line.log_density(points)
    gaussians = random_gaussians(generator, n_classes=4)
    rows, _ = gaussians.sample(20_000, random_state=generator)
    head = gaussians.class_means @ np.linalg.inv(gaussians.covariance)
    by_hand = logsumexp(rows @ head.T - 0.5 * np.sum(head * gaussians.class_means, axis=1), axis=1)
    values = scores.linear_energy(gaussians, rows)
    share = share_inverted(values, log_mixture_density(gaussians, rows))
    return holds(
        np.allclose(values, by_hand),
        energy[1] > energy[0],
        log_density[1] < log_density[0],
        share > 0.0,
        computed=(
            f"means ±2, x = 2 and 8: LSE(f') {energy[0]:.0f} < {energy[1]:.0f}, log p {log_density[0]:.1f} > "
            f"{log_density[1]:.1f}; {share:.0%} of pairs inverted"
        ),
    )
