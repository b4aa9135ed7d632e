"""B5 to B9: calibration, why not on training rows, the cheap form of GEM, unit length, and joined p-values."""

import warnings

import numpy as np
from scipy.stats import beta, binom, chi2, f

from gem_ood import detectors, digits, scores, thresholds
from gem_ood.claims.claim import Finding, claim, holds
from gem_ood.claims.draws import (
    ROUNDING,
    SURE,
    MonteCarlo,
    disagreement,
    log_mixture_density,
    random_gaussians,
)
from gem_ood.comparison import compare
from gem_ood.errors import RankWarning
from gem_ood.gaussians import TiedGaussians
from gem_ood.simulation import study_means

__all__: list[str] = []


@claim("B5", "λ = s_(j): conformal E[TPR] ≥ 95 %; PAC TPR ≥ 95 % with confidence 1 − δ")
def _calibration(generator: np.random.Generator) -> Finding:
    # A uniform score keeps 1 − λ of new rows, so every draw of the calibration rows shows its TPR.
    n_rows, repeats = 200, 3000
    kept = {"conformal": np.empty(repeats), "pac": np.empty(repeats)}
    for run in range(repeats):
        uniform = generator.random(n_rows)
        kept["conformal"][run] = 1.0 - thresholds.conformal_threshold(uniform, tpr=0.95).value
        kept["pac"][run] = 1.0 - thresholds.pac_threshold(uniform, tpr=0.95, confidence=0.95).value
    mean = MonteCarlo.of(kept["conformal"])
    missed = float(np.mean(kept["pac"] < 0.95))
    order = thresholds.pac_threshold(np.arange(n_rows), tpr=0.95, confidence=0.95).order
    exact = float(binom.cdf(order - 1, n_rows, 0.05))
    needed = [thresholds.rows_needed(tpr=0.95, confidence=confidence) for confidence in (0.95, 0.99)]
    orders = [thresholds.pac_threshold(np.arange(1000), confidence=confidence).order for confidence in (0.95, 0.99)]
    is_largest = all(
        binom.cdf(j - 1, 1000, 0.05) <= delta < binom.cdf(j, 1000, 0.05)
        for j, delta in zip(orders, (0.05, 0.01), strict=True)
    )
    return holds(
        mean.mean > 0.95 - SURE * mean.error,
        mean.errors_from(1.0 - 10 / 201) < SURE,
        exact <= 0.05,
        abs(missed - exact) < SURE * np.sqrt(exact / repeats),
        needed == [59, 90] and orders == [39, 35] and is_largest,
        computed=(
            f"n = 200, 3,000 draws: mean TPR {mean.mean:.4f}, PAC missed {missed:.1%} ≤ 5 %; n ≥ {needed[0]}, "
            f"{needed[1]}; j = {orders[0]}, {orders[1]}"
        ),
    )


#: Fits at full size for B6, and the standard deviation among such fits of the share that is kept.
N_FITS, SPREAD_OF_FITS = 2, 0.012


@claim("B6", "mean train d² is d, test d² is larger by (1 + 1/N_i) N/(N − k − d − 1)")
def _optimism(generator: np.random.Generator) -> Finding:
    n_rows, d, k = 300, 40, 5
    labels = np.arange(n_rows) % k
    train_error, ratios = 0.0, []
    for _ in range(200):
        rows, new = generator.standard_normal((2, n_rows, d))
        gaussians = detectors.Mahalanobis().fit(rows, labels).gaussians_
        own = np.arange(n_rows), labels
        train_error = max(train_error, abs(float(gaussians.squared_distances(rows)[own].mean()) - d))
        ratios.append(float(gaussians.squared_distances(new)[own].mean()) / d)
    found, expected = MonteCarlo.of(ratios), (1.0 + k / n_rows) * n_rows / (n_rows - k - d - 1)
    kept, law = np.mean([_kept_by_training_threshold(generator) for _ in range(N_FITS)]), _law_of_training_threshold()
    return holds(
        train_error < ROUNDING * 1e3,
        found.errors_from(expected) < SURE,
        abs(kept - law) < SURE * SPREAD_OF_FITS / np.sqrt(N_FITS),
        computed=(
            f"N = 300, d = 40: × {found.mean:.3f}, formula {expected:.3f}; N = 5,000, d = 512: “95 %” keeps "
            f"{kept:.0%}, by law {law:.1%}"
        ),
    )


def _law_of_training_threshold(n_rows: int = 5000, d: int = 512, k: int = 10) -> float:
    """Return the expected share: a training row's d² follows a scaled beta law, a new row's a scaled F law."""
    n_class, freedom = n_rows / k, n_rows - k - d
    cut = n_rows * (1.0 - 1.0 / n_class) * beta.ppf(0.95, d / 2.0, freedom / 2.0)
    scale = (1.0 + 1.0 / n_class) * n_rows * d / (freedom + 1.0)
    return float(f.cdf(cut / scale, d, freedom + 1.0))


def _kept_by_training_threshold(generator: np.random.Generator) -> float:
    """Return the share of new rows above the 5 % quantile of the training scores, at N = 5,000, d = 512, k = 10."""
    labels = np.arange(5000) % 10
    means = study_means(10, 512, 20.0)[labels]
    rows, new = (means + generator.standard_normal((5000, 512)) for _ in range(2))
    detector = detectors.GEM().fit(rows, labels)
    cut = thresholds.quantile_threshold(detector.score_samples(rows), tpr=0.95).value
    return float(np.mean(detector.score_samples(new) >= cut))


@claim("B7", "GEM(x) = LSE(f'(x)) − ½ xᵀΣ⁻¹x, which is also its cheap form")
def _cheap_form(generator: np.random.Generator) -> Finding:
    error, cheap_error = 0.0, 0.0
    for _ in range(20):
        gaussians = random_gaussians(generator, n_classes=7, dimension=int(generator.integers(1, 30)))
        rows, _ = gaussians.sample(500, random_state=generator)
        half_norms = 0.5 * np.sum(rows * np.linalg.solve(gaussians.covariance, rows.T).T, axis=1)
        differences = rows[:, np.newaxis] - gaussians.class_means
        precision = np.linalg.inv(gaussians.covariance)
        exponents = -0.5 * np.einsum("nki,ij,nkj->nk", differences, precision, differences)
        expected = np.logaddexp.reduce(exponents, axis=1)
        error = max(error, disagreement(scores.linear_energy(gaussians, rows) - half_norms, expected))
        cheap_error = max(cheap_error, disagreement(scores.gem_scores(gaussians, rows), expected))
    return holds(
        error < ROUNDING,
        cheap_error < ROUNDING,
        computed=f"20 configurations × 500 rows: identity ≤ {error:.0e}, two matrix products ≤ {cheap_error:.0e}",
    )


#: Networks trained for B8; what unit length gains in AUROC is about six standard errors of so many.
N_NETWORKS = 8


@claim("B8", "unit length before the fit helps GEM on real features (digits, not CIFAR)")
def _unit_length(generator: np.random.Generator) -> Finding:
    areas, rates = [], []
    for seed in generator.integers(1 << 31, size=N_NETWORKS).tolist():
        case = digits.make_case(seed)
        train, labels = case.classifier.features(case.train), case.train_labels
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RankWarning)  # units that never fire
            pair = [kind.fit(train, labels) for kind in (detectors.GEM(), detectors.GEM(normalize=True))]
        compared = compare(pair, id=case.classifier.features(case.test), ood=case.ood_features()).detectors.values()
        areas.append([one.mean("auroc") for one in compared])
        rates.append([one.mean("fpr") for one in compared])
    (plain, unit), (plain_rate, unit_rate) = np.mean(areas, axis=0), np.mean(rates, axis=0)
    return holds(
        unit > plain,
        unit_rate < plain_rate + 0.01,
        computed=(
            f"{N_NETWORKS} digit networks, {len(case.ood)} OOD sets: mean AUROC {plain:.4f} → {unit:.4f}, "
            f"FPR95 {plain_rate:.1%} → {unit_rate:.1%}"
        ),
    )


@claim("B9", "Fisher's joined p-values, recalibrated, keep their rate; relative GEM")
def _joined(generator: np.random.Generator) -> Finding:
    gaussians = random_gaussians(generator, n_classes=4, dimension=5)
    recalibrated, by_table = [], []
    for _ in range(200):
        rows, _ = gaussians.sample(2000, random_state=generator)
        exponents = gaussians.exponents(rows)
        both = [scores.gem(exponents), scores.mahalanobis(exponents)]
        # p-values from the first part, their joined statistic calibrated on the second, tried on the third.
        p_values = [thresholds.conformal_p_values(values[:500], values[500:]) for values in both]
        statistic = -2.0 * np.sum(np.log(p_values), axis=0)
        recalibrated.append(np.mean(thresholds.conformal_p_values(-statistic[:500], -statistic[500:]) <= 0.05))
        by_table.append(np.mean(statistic[500:] > chi2.ppf(0.95, 4)))
    kept, table = MonteCarlo.of(recalibrated), MonteCarlo.of(by_table)
    rows, labels = gaussians.sample(2000, random_state=generator)
    background = TiedGaussians.from_parameters(rows.mean(axis=0)[np.newaxis], np.cov(rows.T, bias=True))
    plain, relative = (detectors.GEM(relative=flag).fit(rows, labels).score_samples(rows) for flag in (False, True))
    gap = relative - (plain - log_mixture_density(background, rows))
    return holds(
        kept.mean < 0.05 + SURE * kept.error,
        kept.mean > 0.04,
        table.mean > 0.05 + SURE * table.error,
        np.ptp(gap) < ROUNDING * 1e3,
        computed=(
            f"GEM with M at 5 %: flags {kept.mean:.1%} of new ID rows, χ²_4 table {table.mean:.1%}; GEM − log p_0 "
            f"to {np.ptp(gap):.0e}"
        ),
    )
