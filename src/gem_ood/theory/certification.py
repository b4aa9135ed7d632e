"""`certify`: what the theory says about a user's own detector, what its rows say, and how far the two agree."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gem_ood.detectors import Detector, GaussianDetector
from gem_ood.errors import InputError
from gem_ood.features import as_features, chunks, refuse_non_finite, rows_per_chunk, unit_length
from gem_ood.gaussians import Accumulator
from gem_ood.theory.analysis import Analysis, analyze_gaussians
from gem_ood.theory.diagnosis import Diagnosis, Residuals
from gem_ood.theory.distance_laws import Trust, ks_distance, shown_distance, worst
from gem_ood.theory.rates import (
    Rates,
    model_scores_of,
    predicted_fpr_of,
    rates_of,
    score_weights,
    trust_in_rates,
    whitened_classes,
)
from gem_ood.theory.wording import certification_sentences
from gem_ood.thresholds import as_probability

__all__ = ["Certification", "Rates", "certify", "certify_batches"]

Batches = Iterable[tuple[ArrayLike, ArrayLike | None]]
OodCovarianceFrom = Literal["rows", "given", "classes"]
IdScoresFrom = Literal["rows", "calibration"]

#: Of more ranked calibration scores than these, so many stand for all: rates of them are good to a millionth.
MOST_SCORES = 1_000_000


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
        n_id_scores: In-distribution scores behind measured TPRs, of rows given or of the calibration; of a ranked
            calibration a million at the most, evenly spaced in rank.
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
        space = whitened_classes(gaussians)
    else:
        mean, covariance, space = _assumed_mean(checked, ood_mean), ood_covariance, gaussians
    analysis = analyze_gaussians(space, mean, ood_covariance=covariance, weights=score_weights(checked), tpr=share)
    if ood is None:
        whitener = gaussians.factor.whitener
        mean = (mean - gaussians.centre) @ whitener
        covariance = None if covariance is None else whitener.T @ np.asarray(covariance, dtype=np.float64) @ whitener
    id_scores, diagnosis = (None, None) if id is None else _gather_id(checked, id, share)
    return _assemble(
        checked,
        analysis,
        model_scores=model_scores_of(checked, mean, covariance),
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
        id_scores, scores_from = _calibration_scores(detector), "calibration"
        distance = _calibration_distance(detector, id_scores)
    rates = rates_of(detector, analysis, id_scores=id_scores, ood_scores=ood_scores, model_scores=model_scores)
    trust: Trust | None = None
    if id_scores is not None:
        shown = 0.0 if distance is None else shown_distance(distance, len(id_scores))
        trust = trust_in_rates(rates, id_scores, shown)
    if diagnosis is not None and trust is not None:
        trust = worst(trust, diagnosis.trust)
    return Certification(
        detector=type(detector).__name__,
        tpr=analysis.tpr,
        analysis=analysis,
        predicted_fpr=predicted_fpr_of(detector, analysis),
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
            f"the score of this {type(detector).__name__} is relative to a background, so it is no log-density of "
            f"Gaussian classes; certify a GEM or Mahalanobis detector fitted without one"
        )
    return detector


def _gather_ood(
    detector: GaussianDetector, batches: Batches
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64] | None]:
    """Return the scores of the rows, and their mean and covariance in whitened coordinates; one row has none."""
    gaussians, scores = detector.gaussians_, []
    accumulator, first, varies = Accumulator(n_features=gaussians.rank), None, False
    for features, _ in batches:
        scores.append(detector.score_samples(features))
        rows = as_features(features)
        first = rows[:1].copy() if first is None else first
        varies = varies or bool((rows != first).any())  # equal rows may differ by rounding once they are whitened
        for part in chunks(len(rows), rows_per_chunk(2 * gaussians.n_features)):
            prepared = unit_length(rows[part]) if detector.normalize else rows[part]
            accumulator.add((prepared - gaussians.centre) @ gaussians.factor.whitener)
    if not scores:
        raise InputError("ood holds no rows; pass at least one out-of-distribution row")
    statistics = accumulator.statistics(is_last=True)
    covariance = statistics.scatter / max(1, statistics.n_rows - 1)
    has_spread = varies and float(np.trace(covariance)) > 0.0
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


def _calibration_scores(detector: GaussianDetector) -> NDArray[np.float64]:
    """Return one score per calibration row, or as many as are needed here, evenly spaced in rank, of ranked ones."""
    ranked = detector.ranked_calibration
    return detector.calibration_scores_ if ranked is None else ranked.sample(MOST_SCORES)


def _calibration_distance(detector: GaussianDetector, scores: NDArray[np.float64]) -> float:
    """Return how far the calibration scores are from those of rows of the fitted Gaussians."""
    expected = np.sort(model_scores_of(detector))
    return ks_distance(np.searchsorted(expected, scores, side="right") / len(expected))
