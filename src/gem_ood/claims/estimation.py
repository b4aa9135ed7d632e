"""P17 to P19: class means, the tied covariance, and GEM with both plugged in."""

import numpy as np

from gem_ood import detectors, scores
from gem_ood.claims.claim import Finding, claim, holds
from gem_ood.claims.draws import ROUNDING, disagreement, random_gaussians
from gem_ood.gaussians import collect, tied_covariance

__all__: list[str] = []


@claim("P17", "û_i is the mean of the features of class i")
def _class_means(generator: np.random.Generator) -> Finding:
    rows, labels = random_gaussians(generator, n_classes=5, dimension=7).sample(4000, random_state=generator)
    expected = np.array([rows[labels == name].mean(axis=0) for name in range(5)])
    at_once = disagreement(collect(rows, labels).means, expected)
    fitted = disagreement(detectors.GEM().fit(rows, labels).gaussians_.class_means, expected)
    return holds(
        max(at_once, fitted) < ROUNDING,
        computed=f"against a loop over 5 classes, 4,000 rows: ≤ {max(at_once, fitted):.0e}",
    )


@claim("P18", "Σ̂ is the scatter about the class means, divided by N")
def _tied_covariance(generator: np.random.Generator) -> Finding:
    rows, labels = random_gaussians(generator, n_classes=5, dimension=7).sample(400, random_state=generator)
    scatter = np.zeros((7, 7))
    for row, label in zip(rows, labels, strict=True):
        difference = row - rows[labels == label].mean(axis=0)
        scatter += np.outer(difference, difference)
    found, _ = tied_covariance(collect(rows, labels))
    error, other = disagreement(found, scatter / 400), disagreement(found, scatter / 395)
    return holds(
        error < ROUNDING,
        other > 1e-4,
        computed=f"against a loop over 400 rows: ≤ {error:.0e} with divisor N ({other:.0e} with N − k)",
    )


@claim("P19", "GEM on features: f̂_j with û_j and Σ̂ plugged in")
def _plug_in(generator: np.random.Generator) -> Finding:
    truth = random_gaussians(generator, n_classes=4, dimension=5)
    test, _ = truth.sample(2000, random_state=generator)
    exact = scores.gem(truth.exponents(test))
    errors, formula_error = [], 0.0
    for n_rows in (1000, 100_000):
        rows, labels = truth.sample(n_rows, random_state=generator)
        values = detectors.GEM().fit(rows, labels).score_samples(test)
        means = np.array([rows[labels == name].mean(axis=0) for name in range(4)])
        centred = rows - means[labels]
        differences = test[:, np.newaxis] - means
        precision = np.linalg.inv(centred.T @ centred / n_rows)
        exponents = -0.5 * np.einsum("nki,ij,nkj->nk", differences, precision, differences)
        formula_error = max(formula_error, disagreement(values, np.log(np.exp(exponents).sum(axis=1))))
        errors.append(float(np.mean(np.abs(values - exact))))
    return holds(
        formula_error < ROUNDING,
        errors[1] < 0.4 * errors[0],
        computed=(
            f"formula ≤ {formula_error:.0e}; mean distance to the true GEM {errors[0]:.3f} (N = 1,000), "
            f"{errors[1]:.4f} (100,000)"
        ),
    )
