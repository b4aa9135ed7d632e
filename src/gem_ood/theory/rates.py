"""Rates of a detector at its thresholds: what the theory promises or predicts, beside what its scores show."""

from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import eigh

from gem_ood.detectors import GaussianDetector, Mahalanobis
from gem_ood.features import chunks, rows_per_chunk
from gem_ood.gaussians import Factor, TiedGaussians
from gem_ood.metrics import evaluate
from gem_ood.scores import gem_scores, mahalanobis_scores
from gem_ood.theory.analysis import Analysis
from gem_ood.theory.distance_laws import MODEL_ERROR, MODEL_ROWS, Trust, clopper_pearson, judge, threshold_interval
from gem_ood.thresholds import quantile_threshold

__all__ = [
    "Rates",
    "model_scores_of",
    "predicted_fpr_of",
    "rates_of",
    "score_weights",
    "trust_in_rates",
    "whitened_classes",
]


@dataclass(frozen=True)
class Rates:
    """The rates at one threshold: promised or predicted by the theory, and measured.

    Attributes:
        name: `"asked"` keeps the asked share of the in-distribution scores at hand, `"calibrated"` is the detector's
            own threshold, `"certified"` that of B4.
        threshold: In units of the detector's score; None where no scores are at hand.
        asked_tpr: The share of in-distribution rows that it was asked to keep.
        measured_tpr: Share of in-distribution scores at or above it.
        predicted_fpr: B3, where all rows are Gaussian, at this TPR; None for the other thresholds.
        predicted_fpr_here: Share of rows of the out-of-distribution Gaussian at or above this very threshold, whatever
            the in-distribution rows are; from 20,000 rows drawn of it, so good to about 0.01.
        predicted_fpr_here_interval: How far it is uncertain, at 95 %, because the asked threshold is read off so many
            in-distribution scores; None for thresholds that are not.
        fpr_bound: B4; the FPR is at most this.
        measured_fpr: Share of out-of-distribution rows at or above the threshold.
        measured_fpr_interval: Clopper and Pearson's 95 % interval of it.
    """

    name: Literal["asked", "calibrated", "certified"]
    threshold: float | None
    asked_tpr: float
    measured_tpr: float | None
    predicted_fpr: float | None
    predicted_fpr_here: float | None
    predicted_fpr_here_interval: tuple[float, float] | None
    fpr_bound: float | None
    measured_fpr: float | None
    measured_fpr_interval: tuple[float, float] | None

    @property
    def shown_gap(self) -> float:
        """How far the prediction is from the FPR of Gaussian rows at this threshold, less what chance explains."""
        if self.predicted_fpr is None or self.predicted_fpr_here_interval is None:
            return 0.0
        low, high = self.predicted_fpr_here_interval
        return max(0.0, low - self.predicted_fpr - MODEL_ERROR, self.predicted_fpr - high - MODEL_ERROR)


def score_weights(detector: GaussianDetector) -> NDArray[np.float64] | None:
    """Return by how much the detector's score counts each class; None is 1 each."""
    is_uniform = isinstance(detector.priors, str) and detector.priors == "uniform"
    return None if is_uniform else detector.gaussians_.priors


def certified_threshold(detector: GaussianDetector, analysis: Analysis) -> float:
    """Return the certified threshold in units of the detector's score."""
    # Half of M = 2 max f is below GEM, so GEM's bound on the FPR holds for it; and it is no less than the own class's
    # f, which is all that the promise on the TPR rests on.
    return analysis.certified_threshold * (2.0 if isinstance(detector, Mahalanobis) else 1.0)


def predicted_fpr_of(detector: GaussianDetector, analysis: Analysis) -> float:
    """Return the predicted rate of the detector's own score."""
    return analysis.predicted_fpr_mahalanobis if isinstance(detector, Mahalanobis) else analysis.predicted_fpr


def whitened_classes(gaussians: TiedGaussians) -> TiedGaussians:
    """Return the same classes in coordinates where the covariance is the identity: all of the theory is the same there.

    A covariance of few out-of-distribution rows keeps its zero eigenvalues there; whitening it afterwards would
    multiply its rounding by the condition number.
    """
    identity = np.eye(gaussians.rank)
    means = gaussians.whitened_means.copy()
    return TiedGaussians(gaussians.classes, means, gaussians.priors, identity, Factor(identity.copy(), 0.0))


def model_scores_of(
    detector: GaussianDetector, mean: NDArray[np.float64] | None = None, covariance: ArrayLike | None = None
) -> NDArray[np.float64]:
    """Return the detector's scores of rows drawn from one Gaussian in whitened coordinates, or from the classes."""
    model, weights = whitened_classes(detector.gaussians_), score_weights(detector)
    with np.errstate(divide="ignore"):
        log_weights = None if weights is None else np.log(weights)
    root = None
    if covariance is not None:
        eigenvalues, vectors = eigh(np.asarray(covariance), check_finite=False)
        # The symmetric root: the signs of eigenvectors, which no two machines agree on, cancel in it.
        root = (vectors * np.sqrt(np.maximum(eigenvalues, 0.0))) @ vectors.T
    generator, scores = np.random.default_rng(0), np.empty(MODEL_ROWS)
    for part in chunks(MODEL_ROWS, rows_per_chunk(2 * model.rank)):
        rows = generator.standard_normal((part.stop - part.start, model.rank))
        if root is not None:
            rows = rows @ root
        if mean is None:
            rows += model.class_means[generator.choice(model.n_classes, size=len(rows), p=model.priors)]
        else:
            rows += mean
        is_mahalanobis = isinstance(detector, Mahalanobis)
        scores[part] = (
            mahalanobis_scores(model, rows) if is_mahalanobis else gem_scores(model, rows, log_weights=log_weights)
        )
    return scores


def trust_in_rates(rates: tuple[Rates, ...], id_scores: NDArray[np.float64], shown: float) -> Trust:
    """Return how far to trust a certified TPR and a predicted FPR beside these scores, whose law is off by `shown`."""
    asked, certified = rates[0], rates[-1]
    assert certified.threshold is not None
    least_lost, _ = clopper_pearson(int(np.count_nonzero(id_scores < certified.threshold)), len(id_scores))
    return judge(max(shown, asked.shown_gap), least_lost, 1.0 - asked.asked_tpr, len(id_scores))


def rates_of(
    detector: GaussianDetector,
    analysis: Analysis,
    *,
    id_scores: NDArray[np.float64] | None,
    ood_scores: NDArray[np.float64] | None,
    model_scores: NDArray[np.float64],
) -> tuple[Rates, ...]:
    """Return the rates at the asked, the calibrated and the certified threshold, as far as the scores at hand tell."""
    tpr, asked = analysis.tpr, None
    if id_scores is not None and ood_scores is not None:
        asked = evaluate(id_scores, ood_scores, tpr=tpr).threshold  # as `gem-ood evaluate` reads it
    elif id_scores is not None:
        asked = quantile_threshold(id_scores, tpr=tpr).value

    def at(name: Any, threshold: float | None, asked_tpr: float, **predicted: float) -> Rates:
        rates = Rates(
            name, threshold, asked_tpr, None, predicted.get("fpr"), None, None, predicted.get("bound"), None, None
        )
        if threshold is None:
            return rates
        kept = None if id_scores is None else float(np.mean(id_scores >= threshold))
        rates = replace(rates, measured_tpr=kept, predicted_fpr_here=float(np.mean(model_scores >= threshold)))
        if ood_scores is None:
            return rates
        n_kept = int(np.count_nonzero(ood_scores >= threshold))
        interval = clopper_pearson(n_kept, len(ood_scores))
        return replace(rates, measured_fpr=n_kept / len(ood_scores), measured_fpr_interval=interval)

    own = [at("calibrated", detector.offset_, detector.threshold_.tpr)] if detector.is_calibrated else []
    certified = at("certified", certified_threshold(detector, analysis), tpr, bound=analysis.certified_fpr)
    first = at("asked", asked, tpr, fpr=predicted_fpr_of(detector, analysis))
    if id_scores is not None:
        low, high = threshold_interval(id_scores, tpr)
        ends = (float(np.mean(model_scores >= high)), float(np.mean(model_scores >= low)))
        first = replace(first, predicted_fpr_here_interval=ends)
    return (first, *own, certified)
