"""`certify`: what the theory says about a user's own detector, what its rows say, and how far the two agree."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import eigh

from gem_ood.detectors import Detector, GaussianDetector, Mahalanobis
from gem_ood.errors import InputError
from gem_ood.features import as_features, chunks, refuse_non_finite, rows_per_chunk, unit_length
from gem_ood.gaussians import Accumulator, Factor, TiedGaussians
from gem_ood.metrics import evaluate
from gem_ood.scores import gem_scores, mahalanobis_scores
from gem_ood.theory.analysis import Analysis, analyze_gaussians
from gem_ood.theory.diagnosis import Diagnosis, Residuals
from gem_ood.theory.distance_laws import (
    MODEL_ERROR,
    MODEL_ROWS,
    Trust,
    clopper_pearson,
    judge,
    ks_distance,
    shown_distance,
    threshold_interval,
    worst,
)
from gem_ood.theory.wording import certification_sentences
from gem_ood.thresholds import as_probability, quantile_threshold

__all__ = ["Certification", "Rates", "certify", "certify_batches"]

Batches = Iterable[tuple[ArrayLike, ArrayLike | None]]
OodCovarianceFrom = Literal["rows", "given", "classes"]
IdScoresFrom = Literal["rows", "calibration"]


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


@dataclass(frozen=True, eq=False)
class Certification:
    """What theory and rows say about one detector.

    Attributes:
        detector: `"GEM"` or `"Mahalanobis"`.
        tpr: The share of in-distribution rows to keep.
        analysis: All that the theory says, in the detector's own units.
        predicted_fpr: Of the detector's own score.
        rates: Predicted beside measured, by threshold.
        n_id: In-distribution rows given.
        n_ood: Out-of-distribution rows given.
        n_id_scores: In-distribution scores behind measured TPRs, of rows given or of the calibration.
        ood_covariance_from: `"rows"`, `"given"`, or `"classes"` where it is assumed to be the classes' own.
        id_scores_from: Where the scores behind measured TPRs are from: `"rows"`, `"calibration"`, or None.
        calibration_distance: Kolmogorov–Smirnov distance of the calibration scores from those of rows drawn from the
            fitted Gaussians; None where in-distribution rows tell more, or nothing is calibrated.
        diagnosis: Of the Gaussian assumption; None without in-distribution rows.
        trust: How far to rely on rates that assume Gaussian classes with these priors; None where nothing at hand can
            tell. The worst of what the diagnosis, or the calibration scores, allow; of how many in-distribution rows
            are below the certified threshold; and of how far the predicted FPR is from that of the
            out-of-distribution Gaussian at the asked threshold. The last two count as far as sampling does not explain
            them, and by the same limits as the diagnosis.
    """

    detector: str
    tpr: float
    analysis: Analysis
    predicted_fpr: float
    rates: tuple[Rates, ...]
    n_id: int
    n_ood: int
    n_id_scores: int
    ood_covariance_from: OodCovarianceFrom
    id_scores_from: IdScoresFrom | None
    calibration_distance: float | None
    diagnosis: Diagnosis | None
    trust: Trust | None

    @property
    def summary(self) -> tuple[str, ...]:
        """All of it in plain sentences."""
        return certification_sentences(self)

    def as_dict(self) -> dict[str, Any]:
        """Return everything but what belongs to single rows, by name."""
        plain = {name: getattr(self, name) for name in self.__dataclass_fields__}
        diagnosis = None if self.diagnosis is None else self.diagnosis.as_dict()
        return plain | {"analysis": self.analysis.as_dict(), "diagnosis": diagnosis, "summary": self.summary}

    def __str__(self) -> str:
        return "\n".join(self.summary)


def certify(
    detector: Detector,
    *,
    ood: ArrayLike | None = None,
    ood_mean: ArrayLike | None = None,
    ood_covariance: ArrayLike | None = None,
    id: ArrayLike | None = None,
    id_labels: ArrayLike | None = None,
    tpr: float = 0.95,
) -> Certification:
    """Return the analysis of a fitted detector, its predicted rates beside measured ones, and how far to trust them.

    Args:
        detector: A fitted GEM or Mahalanobis detector, calibrated or not. With `normalize=True` the theory is about
            rows scaled to unit length; rows and an assumed mean are scaled here, an assumed covariance is not.
        ood: Out-of-distribution rows; their mean and covariance are what the theory takes for N(m, S).
        ood_mean: Instead of rows, an assumed mean m.
        ood_covariance: With `ood_mean`, an assumed covariance S; the classes' own unless given.
        id: In-distribution rows that the fit has not seen, for measured rates and the diagnosis.
        id_labels: Their classes.
        tpr: The share of in-distribution rows to keep.

    >>> from gem_ood import GEM
    >>> rng = np.random.default_rng(0)
    >>> labels = np.arange(6000) % 2
    >>> X = rng.normal(size=(6000, 4)) + 3.0 * labels[:, None]
    >>> detector = GEM().fit(X[:3000], labels[:3000])
    >>> ood = 1.5 + 2.0 * rng.normal(size=(3000, 4))
    >>> result = certify(detector, ood=ood, id=X[3000:], id_labels=labels[3000:])
    >>> round(result.predicted_fpr, 1), round(result.rates[0].measured_fpr, 1), result.trust
    (0.3, 0.3, 'close')
    """
    if id is None and id_labels is not None:
        raise InputError("id_labels came without id; pass the in-distribution rows that they belong to")
    return certify_batches(
        detector,
        ood=None if ood is None else [(ood, None)],
        ood_mean=ood_mean,
        ood_covariance=ood_covariance,
        id=None if id is None else [(id, id_labels)],
        tpr=tpr,
    )


def certify_batches(
    detector: Detector,
    *,
    ood: Batches | None = None,
    ood_mean: ArrayLike | None = None,
    ood_covariance: ArrayLike | None = None,
    id: Batches | None = None,
    tpr: float = 0.95,
) -> Certification:
    """Return `certify` of rows that come in batches of (features, labels or None), keeping one number of each row."""
    checked = _checked_detector(detector)
    share = float(as_probability(tpr, name="tpr"))
    if (ood is None) == (ood_mean is None):
        raise InputError("pass either ood, rows that are out of the distribution, or ood_mean, their assumed mean")
    if ood_covariance is not None and ood_mean is None:
        raise InputError("ood_covariance goes with ood_mean; rows passed as ood have a covariance of their own")
    gaussians, ood_scores = checked.gaussians_, None
    mean: NDArray[np.float64]
    covariance: ArrayLike | None
    if ood is not None:
        ood_scores, mean, covariance = _gather_ood(checked, ood)
        space = _whitened(gaussians)
    else:
        mean, covariance, space = _assumed_mean(checked, ood_mean), ood_covariance, gaussians
    analysis = analyze_gaussians(space, mean, ood_covariance=covariance, weights=_score_weights(checked), tpr=share)
    if ood is None:
        whitener = gaussians.factor.whitener
        mean = (mean - gaussians.centre) @ whitener
        covariance = None if covariance is None else whitener.T @ np.asarray(covariance, dtype=np.float64) @ whitener
    id_scores, diagnosis = (None, None) if id is None else _gather_id(checked, id, share)
    return _assemble(
        checked,
        analysis,
        model_scores=_model_scores(checked, mean, covariance),
        ood_scores=ood_scores,
        given_scores=id_scores,
        diagnosis=diagnosis,
        source="classes" if covariance is None else "given" if ood is None else "rows",
    )


def _assemble(
    detector: GaussianDetector,
    analysis: Analysis,
    *,
    model_scores: NDArray[np.float64],
    ood_scores: NDArray[np.float64] | None,
    given_scores: NDArray[np.float64] | None,
    diagnosis: Diagnosis | None,
    source: OodCovarianceFrom,
) -> Certification:
    id_scores, distance = given_scores, None
    scores_from: IdScoresFrom | None = None if given_scores is None else "rows"
    if given_scores is None and detector.is_calibrated:
        id_scores, scores_from = detector.calibration_scores_, "calibration"
        distance = _calibration_distance(detector)
    rates = _rates(detector, analysis, id_scores=id_scores, ood_scores=ood_scores, model_scores=model_scores)
    trust: Trust | None = None
    if id_scores is not None:
        shown = 0.0 if distance is None else shown_distance(distance, len(id_scores))
        trust = _trust_in_rates(rates, id_scores, shown)
    if diagnosis is not None and trust is not None:
        trust = worst(trust, diagnosis.trust)
    return Certification(
        detector=type(detector).__name__,
        tpr=analysis.tpr,
        analysis=analysis,
        predicted_fpr=_predicted_fpr(detector, analysis),
        rates=rates,
        n_id=0 if given_scores is None else len(given_scores),
        n_ood=0 if ood_scores is None else len(ood_scores),
        n_id_scores=0 if id_scores is None else len(id_scores),
        ood_covariance_from=source,
        id_scores_from=scores_from,
        calibration_distance=distance,
        diagnosis=diagnosis,
        trust=trust,
    )


def _checked_detector(detector: Detector) -> GaussianDetector:
    if not isinstance(detector, GaussianDetector):
        raise InputError(
            f"the theory is about Gaussian classes, so a GEM or Mahalanobis detector can be certified but not a "
            f"{type(detector).__name__}; fit one of those to the same features"
        )
    if detector.relative:
        raise InputError(
            "this detector was fitted with relative=True, whose score is no log-density of Gaussian classes; certify "
            "one fitted without it"
        )
    return detector


def _score_weights(detector: GaussianDetector) -> NDArray[np.float64] | None:
    """Return by how much the detector's score counts each class; None is 1 each."""
    is_uniform = isinstance(detector.priors, str) and detector.priors == "uniform"
    return None if is_uniform else detector.gaussians_.priors


def _certified_threshold(detector: GaussianDetector, analysis: Analysis) -> float:
    # Half of M = 2 max f is below GEM, so GEM's bound on the FPR holds for it; and it is no less than the own class's
    # f, which is all that the promise on the TPR rests on.
    return analysis.certified_threshold * (2.0 if isinstance(detector, Mahalanobis) else 1.0)


def _predicted_fpr(detector: GaussianDetector, analysis: Analysis) -> float:
    return analysis.predicted_fpr_mahalanobis if isinstance(detector, Mahalanobis) else analysis.predicted_fpr


def _whitened(gaussians: TiedGaussians) -> TiedGaussians:
    """Return the same classes in coordinates where the covariance is the identity: all of the theory is the same there.

    A covariance of few out-of-distribution rows keeps its zero eigenvalues there; whitening it afterwards would
    multiply its rounding by the condition number.
    """
    identity = np.eye(gaussians.rank)
    means = gaussians.whitened_means.copy()
    return TiedGaussians(gaussians.classes, means, gaussians.priors, identity, Factor(identity.copy(), 0.0))


def _gather_ood(
    detector: GaussianDetector, batches: Batches
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64] | None]:
    """Return the scores of the rows, and their mean and covariance in whitened coordinates; one row has none."""
    gaussians, scores = detector.gaussians_, []
    accumulator = Accumulator(n_features=gaussians.rank)
    for features, _ in batches:
        scores.append(detector.score_samples(features))
        rows = as_features(features)
        for part in chunks(len(rows), rows_per_chunk(2 * gaussians.n_features)):
            prepared = unit_length(rows[part]) if detector.normalize else rows[part]
            accumulator.add((prepared - gaussians.centre) @ gaussians.factor.whitener)
    if not scores:
        raise InputError("ood holds no rows; pass at least one out-of-distribution row")
    statistics = accumulator.statistics()
    covariance = statistics.scatter / max(1, statistics.n_rows - 1)
    has_spread = float(np.trace(covariance)) > 0.0
    return np.concatenate(scores), statistics.means[0], covariance if has_spread else None


def _assumed_mean(detector: GaussianDetector, ood_mean: ArrayLike | None) -> NDArray[np.float64]:
    """Return the mean as the detector sees rows; that its values are finite is for the theory to check."""
    try:
        mean = np.asarray(ood_mean)
    except ValueError as error:  # lists of unequal length
        raise InputError(f"ood_mean cannot be read as numbers: {error}; pass one number per feature") from error
    row = as_features(np.atleast_2d(mean), name="ood_mean")
    n_features = detector.gaussians_.n_features
    if row.shape != (1, n_features):
        raise InputError(
            f"ood_mean has shape {mean.shape} but the detector was fitted on {n_features} features; pass one "
            f"mean of as many numbers"
        )
    if detector.normalize:
        refuse_non_finite(row, name="ood_mean")  # before its length spreads over all of them
        row = unit_length(row)
    return np.asarray(row[0], dtype=np.float64)


def _gather_id(detector: GaussianDetector, batches: Batches, tpr: float) -> tuple[NDArray[np.float64], Diagnosis]:
    statistics, scores = detector.statistics_, []
    residuals = Residuals(
        detector.gaussians_,
        counts=statistics.counts[statistics.counts > 0],
        tpr=tpr,
        prepare=unit_length if detector.normalize else None,
    )
    for features, labels in batches:
        scores.append(detector.score_samples(features))
        residuals.add(features, labels if statistics.is_labelled else None)
    diagnosis = residuals.diagnosis()
    return np.concatenate(scores), diagnosis


def _model_scores(
    detector: GaussianDetector, mean: NDArray[np.float64] | None = None, covariance: ArrayLike | None = None
) -> NDArray[np.float64]:
    """Return the detector's scores of rows drawn from one Gaussian in whitened coordinates, or from the classes."""
    model, weights = _whitened(detector.gaussians_), _score_weights(detector)
    with np.errstate(divide="ignore"):
        log_weights = None if weights is None else np.log(weights)
    root = None
    if covariance is not None:
        eigenvalues, vectors = eigh(np.asarray(covariance), check_finite=False)
        root = (vectors * np.sqrt(np.maximum(eigenvalues, 0.0))).T
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


def _calibration_distance(detector: GaussianDetector) -> float:
    """Return how far the calibration scores are from those of rows of the fitted Gaussians."""
    scores, expected = detector.calibration_scores_, np.sort(_model_scores(detector))
    return ks_distance(np.searchsorted(expected, scores, side="right") / len(expected))


def _trust_in_rates(rates: tuple[Rates, ...], id_scores: NDArray[np.float64], shown: float) -> Trust:
    """Return how far to trust a certified TPR and a predicted FPR beside these scores, whose law is off by `shown`."""
    asked, certified = rates[0], rates[-1]
    assert certified.threshold is not None
    least_lost, _ = clopper_pearson(int(np.count_nonzero(id_scores < certified.threshold)), len(id_scores))
    return judge(max(shown, asked.shown_gap), least_lost, 1.0 - asked.asked_tpr, len(id_scores))


def _rates(
    detector: GaussianDetector,
    analysis: Analysis,
    *,
    id_scores: NDArray[np.float64] | None,
    ood_scores: NDArray[np.float64] | None,
    model_scores: NDArray[np.float64],
) -> tuple[Rates, ...]:
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
    certified = at("certified", _certified_threshold(detector, analysis), tpr, bound=analysis.certified_fpr)
    first = at("asked", asked, tpr, fpr=_predicted_fpr(detector, analysis))
    if id_scores is not None:
        low, high = threshold_interval(id_scores, tpr)
        ends = (float(np.mean(model_scores >= high)), float(np.mean(model_scores >= low)))
        first = replace(first, predicted_fpr_here_interval=ends)
    return (first, *own, certified)
