"""P20 to P26: the Mahalanobis distance, D, and the bounds of the paper's theorem."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.distance import cdist
from scipy.stats import chi2

from gem_ood import scores, theory
from gem_ood.claims.claim import Finding, Verdict, claim, corrected, holds, loose
from gem_ood.claims.draws import (
    PAPER,
    ROUNDING,
    SURE,
    MonteCarlo,
    configurations,
    decades,
    disagreement,
    figure_settings,
    first_bound,
    orthogonal,
    random_gaussians,
    relative_error,
)
from gem_ood.gaussians import TiedGaussians
from gem_ood.theory import bounds, expectations
from gem_ood.theory.whitened import Whitened

__all__: list[str] = []


@claim("P20", "d_M is a distance; a ball about the mean has probability F_χ²_d(r²)")
def _distance(generator: np.random.Generator) -> Finding:
    gaussians = random_gaussians(generator, n_classes=20, dimension=5)
    rows = 3.0 * generator.standard_normal((500, 5))
    expected = cdist(rows, gaussians.class_means, "mahalanobis", VI=np.linalg.inv(gaussians.covariance))
    found = np.sqrt(gaussians.squared_distances(rows))
    error = disagreement(found, expected)
    between = cdist(gaussians.class_means, gaussians.class_means, "mahalanobis", VI=np.linalg.inv(gaussians.covariance))
    n_broken = int(np.count_nonzero(between - found[:, :, np.newaxis] - found[:, np.newaxis] > ROUNDING))
    one = TiedGaussians.from_parameters(gaussians.class_means[:1], gaussians.covariance)
    inside = MonteCarlo.of(one.squared_distances(one.sample(200_000, random_state=generator)[0])[:, 0] < 4.0)
    probability = float(chi2.cdf(4.0, 5))
    return holds(
        error < ROUNDING,
        n_broken == 0,
        inside.errors_from(probability) < SURE,
        computed=(
            f"SciPy's ≤ {error:.0e}; {n_broken:,} of 200,000 triangles broken; P(B_2) {inside.mean:.4f}, χ²_5 "
            f"{probability:.4f}"
        ),
    )


@claim("P21", "D = E_in ES − E_out ES is what the closed forms give")
def _separation(generator: np.random.Generator) -> Finding:
    distances, figures = [], []
    for _ in range(3):
        gaussians = random_gaussians(generator, n_classes=3, dimension=3, spread=1.5)
        found = theory.analyze(gaussians.class_means, gaussians.covariance, np.zeros(3))
        inside, _ = gaussians.sample(300_000, random_state=generator)
        outside, _ = TiedGaussians.from_parameters(np.zeros((1, 3)), gaussians.covariance).sample(
            300_000, random_state=generator
        )
        sampled = MonteCarlo.of(
            np.exp(scores.log_rescaled(gaussians.exponents(inside)))
            - np.exp(scores.log_rescaled(gaussians.exponents(outside)))
        )
        distances.append(sampled.errors_from(found.separation))
        figures.append(f"{found.separation:.4f} ({sampled.mean:.4f})")
    return holds(
        max(distances) < SURE,
        computed=f"closed (300,000 rows): {', '.join(figures)}; within {max(distances):.1f} s.e.",
    )


def _looseness(
    generator: np.random.Generator,
    log_bound: Callable[[Whitened], float],
    log_exact: Callable[[Whitened], float],
    formula: Callable[[NDArray[np.float64], int], NDArray[np.float64]],
    *conditions: object,
) -> Finding:
    """Return how a bound fares: against its formula and what it bounds, and in Figure 4.

    The formula gives the terms of the bound's sum from the α_i and d.
    """
    violations, error = 0, 0.0
    for configuration in configurations(generator):
        problem = configuration.whitened()
        found = log_bound(problem)
        error = max(error, relative_error(found, formula(configuration.half_distances(), problem.dimension).sum()))
        violations += found < log_exact(problem) - ROUNDING
    settings = figure_settings()
    problems = [orthogonal(*setting) for setting in settings]
    gaps = [decades(log_bound(problem), log_exact(problem)) for problem in problems]
    finite = [gap for gap in gaps if np.isfinite(gap)]
    violations += sum(gap < 0.0 for gap in finite)
    n_trivial = len(gaps) - len(finite)
    return loose(
        violations == 0,
        error < ROUNDING,
        *conditions,
        decades=gaps[settings.index((PAPER.n_classes, PAPER.dimension, PAPER.distance))],
        computed=(
            f"{violations} violations of 300, formula ≤ {error:.0e}; Figure 4: {min(finite):.0f} to "
            f"{max(finite):.0f} decades" + (f", D ≤ 0 at {n_trivial} of {len(gaps)} points" if n_trivial else "")
        ),
    )


def _log_expected_out(problem: Whitened) -> float:
    return expectations.scaled_out(problem) - 0.5 * problem.dimension * expectations.LOG_TWO


def _log_separation(problem: Whitened) -> float:
    """Return log D, or −∞ where D is not positive and any bound on it trivial."""
    log_in, log_out = expectations.scaled_in(problem), expectations.scaled_out(problem)
    if log_in <= log_out:
        return -np.inf
    return float(log_in + np.log(-np.expm1(log_out - log_in))) - 0.5 * problem.dimension * expectations.LOG_TWO


@claim("P22", "E_out ES ≤ Σ [(1 − P_out(B_α_i)) + exp(−α_i²/2)], α_i = ½ d_M", Verdict.LOOSE)
def _expected_out(generator: np.random.Generator) -> Finding:
    return _looseness(generator, bounds.log_bound_expected_out, _log_expected_out, first_bound)


@claim("P23", "E_out ES ≤ Σ [(1 − P_out(B_α_i)) + P_out(B_α_i) exp(−α_i²/2)]", Verdict.LOOSE)
def _expected_out_sharp(generator: np.random.Generator) -> Finding:
    problems = [configuration.whitened() for configuration in configurations(generator, 100)]
    gains = [
        bounds.log_bound_expected_out(problem) - bounds.log_bound_expected_out_sharp(problem) for problem in problems
    ]
    is_sharper = min(gains) >= -ROUNDING and max(gains) > 0.01
    return _looseness(
        generator,
        bounds.log_bound_expected_out_sharp,
        _log_expected_out,
        lambda alpha, d: chi2.sf(alpha**2, d) + chi2.cdf(alpha**2, d) * np.exp(-0.5 * alpha**2),
        is_sharper,
    )


@claim("P24", "D ≤ Σ α_i", Verdict.LOOSE)
def _pinsker(generator: np.random.Generator) -> Finding:
    return _looseness(generator, bounds.log_bound_separation_pinsker, _log_separation, lambda alpha, _: alpha)


@claim("P25", "D ≤ k − ½ Σ exp(−2 α_i²)", Verdict.LOOSE)
def _pinsker_large(generator: np.random.Generator) -> Finding:
    return _looseness(
        generator,
        bounds.log_bound_separation_pinsker_large,
        _log_separation,
        lambda alpha, _: 1.0 - 0.5 * np.exp(-2.0 * alpha**2),
    )


@claim("P26", "corollary: P22 with α = d_M where all classes are equally far", Verdict.CORRECTED)
def _corollary(generator: np.random.Generator) -> Finding:
    nodes, weights = np.polynomial.hermite_e.hermegauss(200)
    d_m = 3.0
    # One dimension, d_M = 3, per class: E_out exp f by quadrature against the bound as printed.
    exact = float(np.sum(weights * np.exp(-0.5 * (nodes - d_m) ** 2)) / np.sqrt(2.0 * np.pi))
    printed = float(first_bound(d_m, 1))
    mended = float(first_bound(d_m / 2.0, 1))
    violations, error = 0, 0.0
    for _ in range(300):
        k, distance = int(generator.integers(1, 9)), 10.0 ** generator.uniform(-1.0, 1.5)
        problem = orthogonal(k, int(generator.integers(k, 40)), distance)
        bound = bounds.log_bound_expected_out(problem)
        error = max(error, relative_error(bound, k * float(first_bound(distance / 2.0, problem.dimension))))
        violations += bound < _log_expected_out(problem) - ROUNDING
        violations += _log_separation(problem) > np.log(k * distance / 2.0) + ROUNDING
    far = float(np.exp(bounds.log_bound_expected_out(orthogonal(8, 8, 60.0))))
    near = [float(np.exp(_log_separation(orthogonal(1, 4, distance)))) for distance in (1e-2, 1e-4)]
    library = float(np.exp(_log_expected_out(orthogonal(1, 1, d_m))))
    return corrected(
        is_false=exact > printed,
        is_mended=violations == 0
        and error < ROUNDING
        and exact < mended
        and abs(library - exact) < ROUNDING
        and far < 1e-60
        and near[1] < near[0] < 1e-4,
        computed=(
            f"d = 1, d_M = 3: E_out {exact:.4f} > printed {printed:.4f}; with ½ d_M {mended:.4f}, "
            f"{violations} violations of 600"
        ),
    )
