"""What a diagnosis and a certification say, in plain sentences: no more than was shown, and what follows from it."""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from gem_ood.theory.distance_laws import CLOSE_DISTANCE, SAMPLING_DISTANCE, Trust, judge, shown_distance

if TYPE_CHECKING:
    from gem_ood.theory.certification import Certification
    from gem_ood.theory.diagnosis import Diagnosis, Kurtosis

__all__ = ["certification_sentences", "diagnosis_sentences"]

#: Excess kurtosis of Gaussian rows has the standard error sqrt(24 / n); beyond this many it is not chance.
KURTOSIS_ERRORS = 4.0

VERDICTS: Mapping[Trust, str] = {
    "close": "Gaussian classes describe these rows closely. On the in-distribution side, the rates that assume them "
    "(predicted, certified, floor) can be relied on to within a few points.",
    "rough": "Gaussian classes describe these rows roughly. Take the rates that assume them (predicted, certified, "
    "floor) for orientation, and set thresholds by calibration, which assumes no Gaussian.",
    "poor": "Rates that assume Gaussian classes (predicted, certified, floor) should not be relied on here. A "
    "threshold calibrated on held-out rows holds all the same, as it assumes no Gaussian.",
    "unclear": "No departure from Gaussian classes shows, but these rows are too few to show a small one. Pass more "
    "held-out rows before relying on the rates that assume them (predicted, certified, floor).",
}


def diagnosis_sentences(diagnosis: "Diagnosis") -> tuple[str, ...]:
    """Return what held-out rows say about the Gaussian assumption, the verdict last."""
    overall, expected = diagnosis.overall, 1.0 - diagnosis.tpr
    low, high = (percent(end) for end in overall.beyond_interval)
    words = [
        f"Held-out squared distances are on average {overall.ratio:.2f} times what Gaussian classes would give; "
        f"{percent(overall.beyond)} of {diagnosis.n_rows:,} rows ({low} to {high}) lie beyond their "
        f"{percent(diagnosis.tpr)} point, where {percent(expected)} are expected."
    ]
    if not diagnosis.has_labels:
        words.append(
            "The rows came without labels, so each counts for its nearest class: true distances to the own class are "
            "at least as large."
        )
    words += [*_on_estimation(diagnosis), *_on_classes(diagnosis), *_on_kurtosis(diagnosis.kurtosis)]
    unseen = SAMPLING_DISTANCE / math.sqrt(diagnosis.n_rows)
    if unseen > CLOSE_DISTANCE:
        words.append(
            f"With only {diagnosis.n_rows:,} rows, a departure of less than {100.0 * unseen:.2g} points would not show."
        )
    return (*words, VERDICTS[diagnosis.trust])


def _on_estimation(diagnosis: "Diagnosis") -> list[str]:
    overall, expected = diagnosis.overall, 1.0 - diagnosis.tpr
    if overall.expected_ratio is None or overall.expected_beyond is None or overall.distance_estimated is None:
        return []
    shown = shown_distance(overall.distance_estimated, overall.n_rows)
    rest = judge(shown, overall.beyond_interval[0], overall.expected_beyond, overall.n_rows)
    is_off, is_explained = diagnosis.trust in ("rough", "poor"), rest in ("close", "unclear")
    if overall.expected_beyond <= 1.1 * expected:  # a tenth of the expected share is beside the point
        return (
            [f"The cause is the shape of the features: {diagnosis.n_fit:,} rows are enough to estimate the parameters."]
            if is_off
            else []
        )
    cause = (
        f"Estimating {diagnosis.rank:,} directions from {diagnosis.n_fit:,} rows is enough to give Gaussian rows "
        f"{overall.expected_ratio:.2f} times the distance, and {percent(overall.expected_beyond)} beyond"
    )
    if not is_off:
        return [f"{cause}."]
    if is_explained:
        return [f"{cause}: that explains it. A fit to more rows, or to fewer features, would come nearer."]
    return [f"{cause}; the rest is the shape of the features."]


def _on_classes(diagnosis: "Diagnosis") -> list[str]:
    if len(diagnosis.by_class) < 2:
        return []
    least, most = (choose(diagnosis.by_class, key=lambda fit: fit.ratio) for choose in (min, max))
    if most.ratio < 1.25 * least.ratio or max(least.shown_distance, most.shown_distance) <= CLOSE_DISTANCE:
        return []
    return [
        f"Classes differ, though one covariance is fitted to all: from {least.ratio:.2f} times for class {least.name} "
        f"to {most.ratio:.2f} times for class {most.name}."
    ]


def _on_kurtosis(kurtosis: "Kurtosis") -> list[str]:
    which = "none" if kurtosis.unusual == 0.0 else percent(kurtosis.unusual)
    return [
        f"Tails are unlike a Gaussian's in {which} of the {len(kurtosis.by_direction):,} directions: excess kurtosis "
        f"has median {kurtosis.median:.2g}, 5 % to 95 % {kurtosis.low:.2g} to {kurtosis.high:.2g}, largest "
        f"{kurtosis.largest:.2g} (0 expected, give or take {KURTOSIS_ERRORS * kurtosis.standard_error:.2g})."
    ]


def certification_sentences(result: "Certification") -> tuple[str, ...]:
    """Return what theory and rows say about a detector, and how far the theory can be relied on."""
    return (
        *_on_prediction(result),
        *_on_gap(result),
        *_on_covariance(result),
        _on_certificate(result),
        *_on_assumption(result),
    )


def _on_prediction(result: "Certification") -> list[str]:
    asked = result.rates[0]
    words = (
        f"Where {percent(result.tpr)} of in-distribution rows are kept, {percent(result.predicted_fpr)} of the "
        f"out-of-distribution rows are predicted to be kept too, if both are Gaussian"
    )
    if asked.measured_fpr is not None and asked.measured_fpr_interval is not None:
        low, high = (percent(end) for end in asked.measured_fpr_interval)
        rows = f"{result.n_ood:,} rows" if result.n_ood > 1 else "1 row"
        return [f"{words}; of {rows}, {percent(asked.measured_fpr)} are ({low} to {high})."]
    if result.n_ood:
        return [f"{words}. To measure it takes in-distribution rows, or a calibrated detector."]
    return [f"{words}. To measure it takes out-of-distribution rows."]


def _on_gap(result: "Certification") -> list[str]:
    """Return which side a wrong prediction comes from: the threshold as it is takes the in-distribution side out."""
    asked = result.rates[0]
    here, measured = asked.predicted_fpr_here, asked.measured_fpr
    if here is None or abs((here if measured is None else measured) - result.predicted_fpr) <= CLOSE_DISTANCE:
        return []
    words = f"At the threshold that really keeps that share, such Gaussian rows are kept in {percent(here)} of cases"
    if measured is None:
        return [f"{words}."]
    from_id, from_ood = abs(here - result.predicted_fpr), abs(measured - here)
    share = from_id / (from_id + from_ood)
    # Two thirds of the gap on one side is most of it.
    if 1.0 / 3.0 < share < 2.0 / 3.0:
        return [f"{words}: neither side is Gaussian enough for the prediction."]
    side = "in-distribution" if share > 0.5 else "out-of-distribution"
    return [f"{words}: what the prediction misses is mostly that the {side} rows are not Gaussian."]


def _on_covariance(result: "Certification") -> list[str]:
    if result.n_ood and result.ood_covariance_from == "classes":
        return ["The out-of-distribution rows do not vary, so the covariance of the classes is assumed for them."]
    if 0 < result.n_ood <= result.analysis.dimension:
        return [
            f"{result.n_ood:,} out-of-distribution rows vary in fewer than {result.analysis.dimension} directions; the "
            f"prediction takes them to have no variance in the others."
        ]
    return []


def _on_certificate(result: "Certification") -> str:
    certified = result.rates[-1]
    bound = certified.fpr_bound
    limit = "" if bound is None or bound >= 1.0 else f" and at most {_rate(bound)} of Gaussian out-of-distribution rows"
    words = (
        f"The certified threshold, {certified.threshold:.6g}, promises to keep at least {percent(result.tpr)} of rows "
        f"of Gaussian classes{limit}"
    )
    found = []
    if certified.measured_tpr is not None:
        kind = "calibration" if result.id_scores_from == "calibration" else "in-distribution"
        found.append(f"{percent(certified.measured_tpr)} of the {kind} rows")
    if certified.measured_fpr is not None:
        found.append(f"{percent(certified.measured_fpr)} of the out-of-distribution rows")
    return f"{words}; here it keeps {' and '.join(found)}." if found else f"{words}."


def _rate(rate: float) -> str:
    return percent(rate) if rate >= 1e-4 else f"a share of {rate:.1e}"


def _on_assumption(result: "Certification") -> list[str]:
    if result.diagnosis is not None:
        words = list(result.diagnosis.summary)
    elif result.calibration_distance is not None and result.trust is not None:
        words = [
            f"The calibration scores are {100.0 * result.calibration_distance:.0f} points (Kolmogorov–Smirnov) from "
            f"the scores of rows drawn from the fitted Gaussians.",
            VERDICTS[result.trust],
            "For a diagnosis by class and direction, pass held-out in-distribution rows.",
        ]
    else:
        return [
            "Whether the classes are Gaussian is not tested: pass held-out in-distribution rows, with labels where "
            "there are any, before relying on these rates."
        ]
    if result.trust in ("close", "rough"):
        words.append("Whether out-of-distribution rows are Gaussian is not tested.")
    return words


def percent(share: float) -> str:
    """Return a share in percent for a sentence: one decimal, two digits below 1 %, and no more below 0.01 %.

    >>> percent(0.05), percent(0.2345), percent(0.00123), percent(1e-9)
    ('5 %', '23.4 %', '0.12 %', 'below 0.01 %')
    """
    value = 100.0 * share
    if 0.0 < value < 0.01:
        return "below 0.01 %"
    return f"{value:.2g} %" if 0.0 < value < 1.0 else f"{round(value, 1):g} %"
