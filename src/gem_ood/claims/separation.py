"""P30 to P33: A_γ, D in the paper's set-up, and what it says of classes and dimensions."""

import numpy as np
from scipy.stats import chi2, kstest

from gem_ood import theory
from gem_ood.claims.claim import Finding, claim, holds
from gem_ood.claims.draws import ROUNDING, SURE, MonteCarlo, disagreement
from gem_ood.gaussians import TiedGaussians
from gem_ood.simulation import Setting, study_means

__all__ = ["expected_in", "printed_separation"]


def expected_in(gaussians: TiedGaussians) -> float:
    """Return E_in ES, the mean over classes of the closed form B1."""
    logs = [theory.log_expected_rescaled(gaussians, mean) for mean in gaussians.class_means]
    return float(gaussians.priors @ np.exp(logs))


def printed_separation(n_classes: int, dimension: int, distance: float) -> float:
    """Return the paper's D = A_0 − A_r + (k − 1)(A_{√2 r} − A_r)."""
    a_0, a_r, a_root = np.exp(theory.log_overlap([0.0, distance, np.sqrt(2.0) * distance], dimension))
    return float(a_0 - a_r + (n_classes - 1) * (a_root - a_r))


@claim("P30", "A_γ = E exp(−½‖x − ν‖²) depends on γ = ‖μ − ν‖ alone and falls with it")
def _overlap(generator: np.random.Generator) -> Finding:
    nodes, weights = np.polynomial.hermite_e.hermegauss(200)
    weights = weights / np.sqrt(2.0 * np.pi)
    error = 0.0
    for _ in range(20):
        dimension, distance = int(generator.integers(1, 600)), generator.uniform(0.0, 8.0)
        direction = generator.standard_normal(dimension)
        offset = distance * direction / np.linalg.norm(direction)
        # The expectation factors over coordinates, in each of which Gauss–Hermite quadrature is exact to rounding.
        factors = np.exp(-0.5 * (nodes[:, np.newaxis] - offset) ** 2)
        expected = float(np.log(weights @ factors).sum())
        error = max(error, disagreement(theory.log_overlap(distance, dimension), expected))
    grid = theory.log_overlap(np.linspace(0.0, 40.0, 401), 512)
    n_falls = int(np.count_nonzero(np.diff(grid) < 0.0))
    return holds(
        error < ROUNDING,
        n_falls == 400,
        computed=f"quadrature, 20 random directions, d to 600: log A_γ ≤ {error:.0e}; falls at {n_falls} of 400 steps",
    )


@claim("P31", "D = A_0 − A_r + (k − 1)(A_{√2 r} − A_r) for orthogonal means at distance r")
def _orthogonal(generator: np.random.Generator) -> Finding:
    error = 0.0
    for _ in range(40):
        k = int(generator.integers(1, 12))
        dimension, distance = int(generator.integers(k, 24)), generator.uniform(0.2, 8.0)
        gaussians = TiedGaussians.from_parameters(study_means(k, dimension, distance), np.eye(dimension))
        exact = expected_in(gaussians) - np.exp(theory.log_expected_rescaled(gaussians, np.zeros(dimension)))
        scale = 2.0 ** (dimension / 2.0)
        error = max(error, abs(scale * (printed_separation(k, dimension, distance) - exact)))
    gaussians = Setting(4, 4, 2.5).gaussians()
    inside, _ = gaussians.sample(400_000, random_state=generator)
    outside = generator.standard_normal((400_000, 4))
    sampled = MonteCarlo.of(
        np.exp(gaussians.exponents(inside)).sum(axis=1) - np.exp(gaussians.exponents(outside)).sum(axis=1)
    )
    closed = printed_separation(4, 4, 2.5)
    return holds(
        error < ROUNDING,
        sampled.errors_from(closed) < SURE,
        computed=(
            f"40 configurations: ≤ {error:.0e}; k = d = 4, r = 2.5: {closed:.4f}, 400,000 rows {sampled.mean:.4f} "
            f"({sampled.errors_from(closed):.1f} s.e.)"
        ),
    )


@claim("P32", "D falls as k grows (what this says of performance: E6, E7)")
def _falls_with_classes(generator: np.random.Generator) -> Finding:
    rises, error, figures = 0, 0.0, []
    for distance in (1.0, 2.0, 4.0):
        values = []
        for k in range(1, 21):
            gaussians = TiedGaussians.from_parameters(study_means(k, 20, distance), np.eye(20))
            values.append(expected_in(gaussians) - np.exp(theory.log_expected_rescaled(gaussians, np.zeros(20))))
        rises += int(np.count_nonzero(np.diff(values) >= 0.0))
        error = max(error, disagreement(values, [printed_separation(k, 20, distance) for k in range(1, 21)]))
        figures.append(f"{2.0**10 * values[1]:.2f} → {2.0**10 * values[-1]:.2f}")
    return holds(
        rises == 0,
        error < ROUNDING,
        computed=f"2^(d/2) D, k = 2 → 20, r = 1, 2, 4: {', '.join(figures)}; {rises} rises",
    )


@claim("P33", "‖x‖² ~ χ²_d with mean d, and FPR95 rises with d (why: E12)")
def _high_dimension(generator: np.random.Generator) -> Finding:
    squares = np.square(generator.standard_normal((20_000, 512))).sum(axis=1)
    mean = MonteCarlo.of(squares)
    p_value = float(kstest(squares, chi2(512).cdf).pvalue)
    rates = [theory.predict_fpr(Setting(10, d, 10.0).gaussians(), np.zeros(d))["gem"].fpr for d in (100, 300, 1000)]
    return holds(
        mean.errors_from(512.0) < SURE,
        p_value > 1e-6,
        (np.diff(rates) > 0.01).all(),
        computed=(
            f"d = 512: mean {mean.mean:.1f}, KS p = {p_value:.2f}; FPR95 at d = 100, 300, 1,000: "
            f"{rates[0]:.3f}, {rates[1]:.2f}, {rates[2]:.2f}"
        ),
    )
