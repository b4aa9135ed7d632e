"""What a diagnosis and a certification say, in plain sentences: no more than was shown, and what follows from it."""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from gem_ood.theory.distance_laws import (
    CLOSE_DISTANCE,
    MODEL_ERROR,
    SAMPLING_DISTANCE,
    Trust,
    judge,
    judge_fits,
    shown_distance,
)

if TYPE_CHECKING:
    from gem_ood.theory.certification import Certification
    from gem_ood.theory.diagnosis import Diagnosis

__all__ = ["certification_sentences", "diagnosis_sentences"]

#: Excess kurtosis of Gaussian rows has the standard error sqrt(24 / n); beyond this many it is not chance.
KURTOSIS_ERRORS = 4.0

#: With fewer out-of-distribution rows for each direction, the Gaussian of their own mean and covariance spreads so
#: differently from theirs (by √(1 + 1/10) and more) that a rate can differ by points though they are Gaussian.
ROWS_PER_DIRECTION = 10

VERDICTS: Mapping[Trust, str] = {
    "close": "Gaussian classes describe these rows closely. On the in-distribution side, the rates that assume them "
    "(predicted, certified, floor) can be relied on to within a few points.",
    "rough": "Take rates that assume Gaussian classes with these priors (predicted, certified, floor) for orientation "
    "only, and set thresholds by calibration, which assumes neither.",
    "poor": "Rates that assume Gaussian classes with these priors (predicted, certified, floor) should not be relied "
    "on here. A threshold calibrated on held-out rows holds all the same, as it assumes neither.",
    "unclear": "No large departure from Gaussian classes shows, but these rows are too few to tell how large it is. "
    "Pass more held-out rows before relying on the rates that assume them (predicted, certified, floor).",
}


def diagnosis_sentences(diagnosis: "Diagnosis") -> tuple[str, ...]:
    """Return what held-out rows say about the Gaussian assumption, the verdict last."""
    return (*_findings(diagnosis), VERDICTS[diagnosis.trust])


def _findings(diagnosis: "Diagnosis") -> list[str]:
    overall, expected = diagnosis.overall, 1.0 - diagnosis.tpr
    low, high = (percent(end) for end in overall.beyond_interval)
    rows, lie = count(diagnosis.n_rows, "row"), "lies" if diagnosis.n_rows == 1 else "lie"
    words = [
        f"Held-out squared distances are on average {overall.ratio:.2f} times what Gaussian classes would give; "
        f"{percent(overall.beyond)} of {rows} ({low} to {high}) {lie} beyond their {percent(diagnosis.tpr)} point, "
        f"where {percent(expected)} are expected."
    ]
    if not diagnosis.has_labels:
        words.append(
            "The rows came without labels, so each counts for its nearest class: true distances to the own class are "
            "at least as large."
        )
    words += [*_on_estimation(diagnosis), *_on_classes(diagnosis), *_on_mix(diagnosis), *_on_kurtosis(diagnosis)]
    unseen = SAMPLING_DISTANCE / math.sqrt(diagnosis.n_rows)
    if unseen > CLOSE_DISTANCE:
        points = f"{100.0 * min(unseen, 1.0):.0f} points"
        words.append(f"With only {rows}, a departure of less than {points} would not show.")
    return words


def trust_in_shape(diagnosis: "Diagnosis") -> Trust:
    """Return what the distances alone allow, whatever the mix of classes."""
    return judge_fits(diagnosis.overall, diagnosis.by_class, 1.0 - diagnosis.tpr)


def _on_estimation(diagnosis: "Diagnosis") -> list[str]:
    overall, expected = diagnosis.overall, 1.0 - diagnosis.tpr
    if overall.expected_ratio is None or overall.expected_beyond is None or overall.distance_estimated is None:
        return []
    shown = shown_distance(overall.distance_estimated, overall.n_rows)
    rest = judge(shown, overall.beyond_interval[0], overall.expected_beyond, overall.n_rows)
    is_off, is_explained = trust_in_shape(diagnosis) in ("rough", "poor"), rest in ("close", "unclear")
    if overall.expected_beyond <= 1.1 * expected:  # a tenth of the expected share is beside the point
        enough = f"It is not for want of rows: {diagnosis.n_fit:,} are enough to estimate the parameters."
        return [enough] if is_off else []
    cause = (
        f"Estimating {count(diagnosis.rank, 'direction')} from {diagnosis.n_fit:,} rows is enough to give Gaussian "
        f"rows {overall.expected_ratio:.2f} times the distance, and {percent(overall.expected_beyond)} beyond"
    )
    if not is_off:
        return [f"{cause}."]
    if is_explained:
        return [f"{cause}: that explains it. A fit to more rows, or to fewer features, would come nearer."]
    return [f"{cause}; the rest is not for want of rows."]


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


def _on_mix(diagnosis: "Diagnosis") -> list[str]:
    mix, of = diagnosis.mix, "of" if diagnosis.has_labels else "nearest to"
    if not mix.is_off:
        return []
    name, found, expected = max(
        zip(mix.names, mix.found, mix.expected, strict=True), key=lambda entry: abs(entry[1] - entry[2])
    )
    words = (
        f"The held-out rows have another mix of classes than the priors assume: {percent(found)} are {of} class "
        f"{name}, where {percent(expected)} are expected."
    )
    if mix.shown_effect > CLOSE_DISTANCE:
        return [
            f"{words} As the score counts classes by their priors, that alone can move the share of rows kept by up to "
            f"{two_digits(100.0 * mix.shown_effect)} points; priors like the mix to come would mend it."
        ]
    return [f"{words} The certified TPR hardly depends on it, but the predicted rate and the floor may."]


def _on_kurtosis(diagnosis: "Diagnosis") -> list[str]:
    kurtosis, n_directions = diagnosis.kurtosis, len(diagnosis.kurtosis.by_direction)
    # n rows cannot have an excess kurtosis of n or more, so that few could not show any.
    if diagnosis.n_rows <= KURTOSIS_ERRORS * kurtosis.standard_error:
        return []
    which = "none" if kurtosis.unusual == 0.0 else percent(kurtosis.unusual)
    give_or_take = two_digits(KURTOSIS_ERRORS * kurtosis.standard_error)
    median, low, high, largest = map(two_digits, (kurtosis.median, kurtosis.low, kurtosis.high, kurtosis.largest))
    return [
        f"Tails are unlike a Gaussian's in {which} of {count(n_directions, 'direction')}: excess kurtosis has median "
        f"{median}, 5 % to 95 % {low} to {high}, largest {largest} (0 expected, give or take {give_or_take})."
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
        rows, are = count(result.n_ood, "row"), "is" if result.n_ood == 1 else "are"
        return [f"{words}; of {rows}, {percent(asked.measured_fpr)} {are} ({low} to {high})."]
    if result.n_ood:
        return [f"{words}. To measure it takes in-distribution rows, or a calibrated detector."]
    return [f"{words}. To measure it takes out-of-distribution rows."]


def _on_gap(result: "Certification") -> list[str]:
    """Return which side a wrong prediction comes from: the threshold as it is takes the in-distribution side out.

    A side is named only if chance does not explain its part: of the in-distribution scores that the threshold is read
    off, or of the out-of-distribution rows that are counted.
    """
    asked = result.rates[0]
    here, measured, interval = asked.predicted_fpr_here, asked.measured_fpr, asked.measured_fpr_interval
    if here is None:
        return []
    is_wrong = is_ood_off = False
    if measured is not None and interval is not None:
        low, high = interval
        is_wrong = not low <= result.predicted_fpr <= high and abs(measured - result.predicted_fpr) > CLOSE_DISTANCE
        is_ood_off = not low - MODEL_ERROR <= here <= high + MODEL_ERROR
    is_id_off = asked.shown_gap > (0.0 if is_wrong else CLOSE_DISTANCE)
    if not is_wrong and not is_id_off:
        return []
    if not is_id_off and not is_ood_off:
        if result.trust in ("rough", "poor"):  # more than chance is shown elsewhere
            return []
        return [
            "So few in-distribution rows leave open where the threshold that keeps that share lies, which is enough to "
            "explain the difference."
        ]
    words = f"At the threshold that keeps that share here, such Gaussian rows are kept in {percent(here)} of cases"
    if is_id_off and is_ood_off and measured is not None:
        from_id, from_ood = abs(here - result.predicted_fpr), abs(measured - here)
        share = from_id / (from_id + from_ood)
        # Two thirds of the gap on one side is most of it.
        if 1.0 / 3.0 < share < 2.0 / 3.0:
            return [f"{words}: the prediction misses on both sides."]
        is_id_off = share > 0.5
    cause = _in_distribution_cause(result) if is_id_off else _out_of_distribution_cause(result)
    return [f"{words}: what the prediction misses is mostly that {cause}."]


def _in_distribution_cause(result: "Certification") -> str:
    diagnosis = result.diagnosis
    is_shaped_so = diagnosis is not None and trust_in_shape(diagnosis) in ("close", "unclear")
    if diagnosis is not None and is_shaped_so and diagnosis.mix.is_off:
        return "the in-distribution rows have another mix of classes than the priors assume"
    return "the in-distribution rows do not follow the fitted Gaussians"


def _out_of_distribution_cause(result: "Certification") -> str:
    d = result.analysis.dimension
    few = result.n_ood < ROWS_PER_DIRECTION * d
    return "the out-of-distribution rows are not Gaussian" + (
        f", or are too few for their covariance in {count(d, 'direction')}" if few else ""
    )


def _on_covariance(result: "Certification") -> list[str]:
    if result.n_ood == 1:
        return ["One out-of-distribution row has no covariance, so that of the classes is assumed."]
    if result.n_ood and result.ood_covariance_from == "classes":
        return ["The out-of-distribution rows do not vary, so the covariance of the classes is assumed for them."]
    if 0 < result.n_ood <= result.analysis.dimension:
        return [
            f"{result.n_ood:,} out-of-distribution rows vary in fewer than {result.analysis.dimension} directions; the "
            f"prediction takes them to have no variance in the others."
        ]
    return []


def _on_certificate(result: "Certification") -> str:
    certified, log_bound = result.rates[-1], result.analysis.log_certified_fpr
    limit = "" if log_bound >= 0.0 else f" and at most {_rate(log_bound)} of Gaussian out-of-distribution rows"
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


def _rate(logarithm: float) -> str:
    if logarithm >= math.log(1e-4):
        return percent(math.exp(logarithm))
    exponent = logarithm / math.log(10.0)
    return f"a share of 10^{exponent:.1f}" if exponent > -1e4 else "next to none"


def _on_assumption(result: "Certification") -> list[str]:
    if result.trust is None:
        return [
            "Whether the classes are Gaussian is not tested: pass held-out in-distribution rows, with labels where "
            "there are any, before relying on these rates."
        ]
    if result.diagnosis is not None:
        words = _findings(result.diagnosis)
        if result.trust != result.diagnosis.trust:
            words.append(
                "By the rates above, the theory is farther off than distances and classes alone would suggest."
            )
        words.append(VERDICTS[result.trust])
    else:
        assert result.calibration_distance is not None
        points = count(round(100.0 * result.calibration_distance), "point")
        rows = count(result.n_id_scores, "calibration row")
        chance = min(100.0, 100.0 * SAMPLING_DISTANCE / math.sqrt(result.n_id_scores))
        words = [
            f"The scores of {rows} are {points} (Kolmogorov–Smirnov) from those of rows drawn from the fitted "
            f"Gaussians; chance explains up to {two_digits(chance)}.",
            VERDICTS[result.trust],
            "For a diagnosis by class and direction, pass held-out in-distribution rows.",
        ]
    if result.trust in ("close", "rough"):
        words.append("Whether out-of-distribution rows are Gaussian is not tested.")
    return words


def count(number: int, noun: str) -> str:
    """Return a number of things.

    >>> count(1, "row"), count(2000, "row")
    ('1 row', '2,000 rows')
    """
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def two_digits(value: float) -> str:
    """Return a number with two digits, or as a whole number where those are too few, large ones without an exponent.

    >>> two_digits(0.123), two_digits(99.9), two_digits(1234.5)
    ('0.12', '100', '1,234')
    """
    return f"{value:.2g}" if abs(value) < 99.5 else f"{value:,.0f}"


def percent(share: float) -> str:
    """Return a share in percent for a sentence: one decimal, more near 0 % and 100 %, and none within 0.01 % of them.

    >>> percent(0.05), percent(0.2345), percent(0.00123), percent(1e-9)
    ('5 %', '23.4 %', '0.12 %', 'below 0.01 %')
    >>> percent(0.9999), percent(0.99999), percent(1.0)
    ('99.99 %', 'above 99.99 %', '100 %')
    """
    value = 100.0 * share
    if 0.0 < value < 0.01:
        return "below 0.01 %"
    if 99.95 <= value < 100.0:
        return f"{value:.2f} %" if value < 99.99 + 1e-9 else "above 99.99 %"
    return f"{value:.2g} %" if 0.0 < value < 1.0 else f"{round(value, 1):g} %"
