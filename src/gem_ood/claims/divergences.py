"""P27 to P29: total variation, KL divergence, and the inequalities between them."""

import numpy as np
from scipy.integrate import quad
from scipy.special import ndtr
from scipy.stats import norm

from gem_ood import theory
from gem_ood.claims.claim import Finding, claim, holds
from gem_ood.claims.draws import ROUNDING, SURE, MonteCarlo, disagreement, random_gaussians
from gem_ood.gaussians import TiedGaussians

__all__: list[str] = []


@claim("P27", "total variation δ(P_1, P_2) = sup_A |P_1(A) − P_2(A)|")
def _total_variation(generator: np.random.Generator) -> Finding:
    errors, n_above = [], 0
    for _ in range(20):
        distance = 10.0 ** generator.uniform(-1.0, 0.8)
        found = theory.total_variation([0.0], [distance], [[1.0]])
        middle = 0.5 * distance
        # ½ ∫ |p − q|, split where the densities cross
        parts = [
            quad(lambda x, s=distance: norm.pdf(x) - norm.pdf(x - s), low, high)[0]
            for low, high in ((middle - 40.0, middle), (middle, middle + 40.0))
        ]
        errors.append(abs(found - 0.5 * float(np.abs(parts).sum())))
        cuts = generator.normal(middle, distance + 1.0, (200, 2))
        cuts.sort(axis=1)
        intervals = np.diff(ndtr(cuts), axis=1) - np.diff(ndtr(cuts - distance), axis=1)
        n_above += int(np.count_nonzero(np.abs(intervals) > found + ROUNDING))
    return holds(
        max(errors) < ROUNDING,
        n_above == 0,
        computed=f"½∫|p − q| by quadrature, 20 distances: ≤ {max(errors):.0e}; {n_above:,} of 4,000 intervals above it",
    )


@claim("P28", "KL(N(μ_1, Σ) ‖ N(μ_2, Σ)) = ½ d_M²(μ_1, μ_2)")
def _divergence(generator: np.random.Generator) -> Finding:
    distances, figures = [], []
    for dimension in (2, 10):
        pair = random_gaussians(generator, n_classes=2, dimension=dimension, spread=0.5)
        found = theory.kl_divergence(pair.class_means[0], pair.class_means[1], pair.covariance)
        first = TiedGaussians.from_parameters(pair.class_means[:1], pair.covariance)
        rows, _ = first.sample(200_000, random_state=generator)
        logs = pair.log_densities(rows)
        sampled = MonteCarlo.of(logs[:, 0] - logs[:, 1])
        distances.append(sampled.errors_from(found))
        figures.append(f"{found:.3f} ({sampled.mean:.3f})")
    step = quad(lambda x: norm.pdf(x) * (norm.logpdf(x) - norm.logpdf(x - 1.7)), -30.0, 30.0)[0]
    error = abs(theory.kl_divergence([0.0], [1.7], [[1.0]]) - step)
    return holds(
        max(distances) < SURE,
        error < ROUNDING,
        computed=(
            f"quadrature ≤ {error:.0e}; closed (200,000 rows): {', '.join(figures)}, within {max(distances):.1f} s.e."
        ),
    )


@claim("P29", "Pinsker: TV ≤ √(KL/2), and TV ≤ 1 − ½ exp(−KL)")
def _pinsker(generator: np.random.Generator) -> Finding:
    distances = np.geomspace(1e-3, 30.0, 200)
    variations = np.array([theory.total_variation([0.0], [distance], [[1.0]]) for distance in distances])
    divergences = 0.5 * distances**2
    first, second = theory.pinsker(divergences), theory.pinsker_large(divergences)
    error = max(disagreement(first, distances / 2.0), disagreement(second, 1.0 - 0.5 * np.exp(-divergences)))
    violations = int(np.count_nonzero((variations > first + 1e-12) | (variations > second + 1e-12)))
    alpha = generator.choice([0.1, 1.0, 10.0], 5000)[:, np.newaxis, np.newaxis] * np.ones((1, 2, 6))
    p, q = np.moveaxis(generator.standard_gamma(alpha) + 1e-12, 1, 0)
    p, q = p / p.sum(axis=1, keepdims=True), q / q.sum(axis=1, keepdims=True)
    total, kl = 0.5 * np.abs(p - q).sum(axis=1), np.maximum(np.sum(p * np.log(p / q), axis=1), 0.0)
    violations += int(
        np.count_nonzero((total > theory.pinsker(kl) + 1e-12) | (total > theory.pinsker_large(kl) + 1e-12))
    )
    # Small divergences make the first nearly tight: TV / √(KL/2) → √(2/π) for Gaussians.
    ratio = float(variations[0] / first[0])
    return holds(
        violations == 0,
        error < ROUNDING,
        abs(ratio - np.sqrt(2.0 / np.pi)) < 1e-6,
        computed=(
            f"200 Gaussian, 5,000 discrete pairs: {violations} violations; formulas ≤ {error:.0e}; TV/√(KL/2) → "
            f"{ratio:.4f}"
        ),
    )
