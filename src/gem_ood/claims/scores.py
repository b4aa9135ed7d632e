"""P1 to P9: the density, the posterior, and the scores."""

import numpy as np
from scipy.special import logsumexp
from scipy.stats import multivariate_normal

from gem_ood import metrics, scores
from gem_ood.claims.claim import Finding, claim, holds
from gem_ood.claims.draws import (
    ROUNDING,
    disagreement,
    log_mixture_density,
    one_dimensional,
    random_gaussians,
    share_inverted,
)

__all__: list[str] = []

#: Rows in which two formulas are compared.
N_ROWS = 2000


@claim("P1", "p_in is the mixture of k Gaussians with equal priors and one Σ")
def _density(generator: np.random.Generator) -> Finding:
    gaussians = random_gaussians(generator, dimension=2)
    rows, _ = gaussians.sample(N_ROWS, random_state=generator)
    error = disagreement(gaussians.log_density(rows), log_mixture_density(gaussians, rows))
    # The trapezoidal rule is exact to rounding for a smooth density that vanishes at the ends.
    reach = 12.0 * np.sqrt(np.diag(gaussians.covariance))
    low, high = gaussians.class_means.min(axis=0) - reach, gaussians.class_means.max(axis=0) + reach
    axes = [np.linspace(a, b, 400) for a, b in zip(low, high, strict=True)]
    grid = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, 2)
    cell = np.prod([axis[1] - axis[0] for axis in axes])
    integral = float(np.exp(gaussians.log_density(grid)).sum() * cell)
    return holds(
        error < ROUNDING,
        abs(integral - 1.0) < ROUNDING,
        computed=f"log p_in − SciPy's ≤ {error:.0e} on {N_ROWS:,} rows; ∫ p_in = 1 + {integral - 1.0:.0e}",
    )


@claim("P2", "the Bayes posterior is softmax(f), f_i = −½ d_M²(x, μ_i)")
def _posterior(generator: np.random.Generator) -> Finding:
    gaussians = random_gaussians(generator, n_classes=4)
    rows, _ = gaussians.sample(N_ROWS, random_state=generator)
    densities = np.stack([multivariate_normal(mean, gaussians.covariance).pdf(rows) for mean in gaussians.class_means])
    bayes = (densities / densities.sum(axis=0)).T
    error = disagreement(gaussians.posterior(rows), bayes)
    softmax_error = disagreement(scores.softmax(gaussians.exponents(rows)), bayes)
    return holds(
        max(error, softmax_error) < ROUNDING,
        computed=f"against Bayes' rule on {N_ROWS:,} rows: posterior ≤ {error:.0e}, softmax(f) ≤ {softmax_error:.0e}",
    )


@claim("P3", "MSP = max_i exp f_i / (kβ p_in), not aligned with the density")
def _msp(generator: np.random.Generator) -> Finding:
    gaussians = random_gaussians(generator, n_classes=4)
    rows, _ = gaussians.sample(N_ROWS, random_state=generator)
    exponents = gaussians.exponents(rows)
    log_beta = 0.5 * np.linalg.slogdet(2.0 * np.pi * gaussians.covariance)[1]
    formula = np.exp(exponents.max(axis=1) - np.log(4.0) - log_beta - log_mixture_density(gaussians, rows))
    error = disagreement(scores.msp(exponents), formula)
    line = one_dimensional()
    near, far = np.array([[2.0]]), np.array([[6.0]])
    msp_near, msp_far = (float(scores.msp(line.exponents(x))[0]) for x in (near, far))
    ratio = float(np.exp(line.log_density(near) - line.log_density(far))[0])
    return holds(
        error < ROUNDING,
        msp_far > msp_near,
        ratio > 1.0,
        computed=(
            f"formula ≤ {error:.0e}; means ±2: MSP(6) > MSP(2) by {msp_far - msp_near:.0e}, p(2)/p(6) = {ratio:.0f}"
        ),
    )


@claim("P4", "Mahalanobis score M = max_i −d_M²(x, μ_i)")
def _mahalanobis(generator: np.random.Generator) -> Finding:
    gaussians = random_gaussians(generator, n_classes=4, dimension=6)
    rows, _ = gaussians.sample(N_ROWS, random_state=generator)
    precision = np.linalg.inv(gaussians.covariance)
    differences = rows[:, np.newaxis] - gaussians.class_means
    expected = np.max(-np.einsum("nki,ij,nkj->nk", differences, precision, differences), axis=1)
    errors = [
        disagreement(scores.mahalanobis(gaussians.exponents(rows)), expected),
        disagreement(scores.mahalanobis_scores(gaussians, rows), expected),
    ]
    return holds(
        max(errors) < ROUNDING,
        computed=f"against Σ⁻¹ written out on {N_ROWS:,} rows: ≤ {errors[0]:.0e}, in one product ≤ {errors[1]:.0e}",
    )


@claim("P5", "free energy E = −logsumexp(logits), with a temperature in practice")
def _energy(generator: np.random.Generator) -> Finding:
    logits = 20.0 * generator.standard_normal((N_ROWS, 10))
    errors = [
        disagreement(
            scores.energy(logits, temperature=temperature), temperature * logsumexp(logits / temperature, axis=1)
        )
        for temperature in (0.5, 1.0, 10.0)
    ]
    return holds(
        max(errors) < ROUNDING, computed=f"against SciPy's logsumexp at T = 0.5, 1 and 10: ≤ {max(errors):.0e}"
    )


@claim("P6", "linear logits f'_i = μ_iᵀΣ⁻¹x − ½ μ_iᵀΣ⁻¹μ_i: same posterior, other energy")
def _linear_logits(generator: np.random.Generator) -> Finding:
    gaussians = random_gaussians(generator, n_classes=4)
    rows, _ = gaussians.sample(N_ROWS, random_state=generator)
    weight, bias = gaussians.linear_head()
    solved = np.linalg.solve(gaussians.covariance, gaussians.class_means.T).T
    by_hand = rows @ solved.T - 0.5 * np.sum(solved * gaussians.class_means, axis=1)
    logits_error = disagreement(rows @ weight.T + bias, by_hand)
    posterior_error = disagreement(scores.softmax(by_hand), gaussians.posterior(rows))
    gap = scores.linear_energy(gaussians, rows) - scores.gem(gaussians.exponents(rows))
    return holds(
        max(logits_error, posterior_error) < ROUNDING,
        np.ptp(gap) > 0.1,
        computed=f"posteriors differ by ≤ {posterior_error:.0e}; LSE(f') − LSE(f): {gap.min():.2f} to {gap.max():.1f}",
    )


@claim("P7", "GEM = log Σ_i exp f_i = −E(f)")
def _gem(generator: np.random.Generator) -> Finding:
    gaussians = random_gaussians(generator, n_classes=4)
    rows, _ = gaussians.sample(N_ROWS, random_state=generator)
    exponents = gaussians.exponents(rows)
    expected = np.log(np.exp(exponents).sum(axis=1))
    errors = [
        disagreement(values, expected)
        for values in (scores.gem(exponents), scores.energy(exponents), scores.gem_scores(gaussians, rows))
    ]
    return holds(
        max(errors) < ROUNDING,
        computed=f"against log Σ exp on {N_ROWS:,} rows: GEM ≤ {errors[0]:.0e}, −E(f) ≤ {errors[1]:.0e}",
    )


@claim("P8", "weighted GEM = log Σ w_i exp f_i is aligned with unequal priors")
def _weighted_gem(generator: np.random.Generator) -> Finding:
    priors = generator.dirichlet(np.ones(4))
    gaussians = random_gaussians(generator, n_classes=4, spread=1.0, priors=priors)
    rows, _ = gaussians.sample(N_ROWS, random_state=generator)
    exponents, truth = gaussians.exponents(rows), log_mixture_density(gaussians, rows)
    weighted = scores.weighted_gem(exponents, priors)
    spread = float(np.ptp(weighted - truth))
    inverted = share_inverted(weighted, truth), share_inverted(scores.gem(exponents), truth)
    return holds(
        spread < ROUNDING * 1e3,
        inverted[0] == 0.0,
        inverted[1] > 0.0,
        computed=(
            f"minus log p_in: constant to {spread:.0e}; pairs inverted: weighted {inverted[0]:.1%}, unweighted "
            f"{inverted[1]:.1%}"
        ),
    )


@claim("P9", "the rescaled score ES = Σ exp f_i decides as GEM does")
def _rescaled(generator: np.random.Generator) -> Finding:
    gaussians = random_gaussians(generator, n_classes=4, dimension=6, spread=1.0)
    inside, _ = gaussians.sample(20_000, random_state=generator)
    outside = generator.standard_normal((20_000, 6))
    es = [np.exp(gaussians.exponents(rows)).sum(axis=1) for rows in (inside, outside)]
    logs = [scores.log_rescaled(gaussians.exponents(rows)) for rows in (inside, outside)]
    error = disagreement(np.log(es[0]), logs[0])
    rates = metrics.fpr_at_tpr(*es), metrics.fpr_at_tpr(*logs)
    return holds(
        error < ROUNDING,
        rates[0] == rates[1],
        0.0 < rates[0] < 1.0,
        computed=f"log ES − GEM ≤ {error:.0e}; FPR95 of 20,000 rows: {rates[0]:.4f} by ES, {rates[1]:.4f} by GEM",
    )
