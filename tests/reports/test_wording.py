"""What a report says, for rates chosen by hand."""

import numpy as np
import pytest

from gem_ood.comparison import Comparison, DetectorComparison
from gem_ood.metrics import evaluate
from gem_ood.reports.panels.kept import KeptShares, kept_shares
from gem_ood.reports.wording import asked, caveats, findings, headline, percent
from gem_ood.thresholds import conformal_threshold

ID_SCORES = np.linspace(0.0, 1.0, 1001)


def compared(rates: dict[str, dict[str, float]]) -> Comparison:
    """Return a comparison in which detectors let through these shares of each set."""
    detectors = {}
    for name, by_set in rates.items():
        scores = {
            ood: np.repeat([1.0, -1.0], [round(1000 * rate), 1000 - round(1000 * rate)]) for ood, rate in by_set.items()
        }
        detectors[name] = DetectorComparison({ood: evaluate(ID_SCORES, one) for ood, one in scores.items()})
    return Comparison(detectors, len(ID_SCORES), dict.fromkeys(next(iter(rates.values())), 1000))


RATES = {"gem": {"near": 0.6, "far": 0.0}, "energy": {"near": 0.1, "far": 0.9}}


@pytest.mark.parametrize(
    ("rate", "words"),
    [
        (0.0, "almost completely (AUROC 100.0 %)"),
        (0.01, "almost completely (AUROC 99.0 %)"),
        (0.011, "well (AUROC 98.9 %)"),
        (0.05, "well (AUROC 95.0 %)"),
        (0.051, "in part (AUROC 94.9 %)"),
        (0.15, "in part (AUROC 85.0 %)"),
        (0.151, "poorly (AUROC 84.9 %)"),
        (0.3, "poorly (AUROC 70.0 %)"),
        (0.301, "hardly at all (AUROC 69.9 %)"),
        (1.0, "hardly at all (AUROC 0.0 %)"),
    ],
)
def test_the_verdict_goes_by_the_area_under_the_curve(rate: float, words: str) -> None:
    text = headline(compared({"gem": {"far": rate}}), "gem", None)
    assert text.startswith(f"gem tells far from in-distribution rows {words}: ")


def test_the_spread_over_sets_is_told_with_their_names() -> None:
    text = headline(compared(RATES), "gem", None)
    assert text.startswith("gem tells 2 out-of-distribution sets from in-distribution rows poorly (mean AUROC 70.0 %)")
    assert text.endswith(
        "where about 95 % of these are kept, so are 30.0 % of the others on average, from 0.0 % (far) to 60.0 % (near)."
    )


def test_the_other_convention_tells_what_is_flagged_in_vain() -> None:
    inside, outside = np.arange(100.0), np.arange(-80.0, 20.0)
    evaluation = evaluate(inside, outside, convention="openood")
    comparison = Comparison({"gem": DetectorComparison({"far": evaluation})}, 100, {"far": 100}, convention="openood")
    # The threshold that flags 95 of the 100 others lies at 15.
    assert headline(comparison, "gem", None).endswith(
        f"where about 95 % of the others are flagged, so are {100 * evaluation.fpr:.1f} % of these."
    )
    assert evaluation.fpr == pytest.approx(0.15, abs=0.011)


def test_the_weakest_set_and_the_best_there_are_named() -> None:
    found = findings(compared(RATES), "gem", None, None, None)
    assert found[0] == "gem is weakest on near, with an FPR of 60.0 %. energy is the best there, with 10.0 %."
    assert found[1].startswith("No detector is the best on every set")


def test_a_detector_that_is_best_everywhere_gets_no_such_remarks() -> None:
    rates = {"gem": {"near": 0.1, "far": 0.0}, "energy": {"near": 0.2, "far": 0.9}}
    assert findings(compared(rates), "gem", None, None, None) == []


def test_a_better_detector_that_does_not_lead_is_named_with_its_rate() -> None:
    found = findings(compared({"gem": {"far": 0.0}, "energy": {"far": 0.9}}), "energy", None, None, None)
    assert found[0].startswith("gem is better but has no threshold yet")
    assert found[0].endswith("its mean FPR is 0.0 %, that of energy 90.0 %.")


def test_ties_for_the_best_are_listed_together() -> None:
    rates = {"gem": {"near": 0.6, "far": 0.0}, "knn": {"near": 0.1, "far": 0.9}, "msp": {"near": 0.1, "far": 0.9}}
    assert "knn and msp are the best there" in findings(compared(rates), "gem", None, None, None)[0]


def kept(share: float) -> KeptShares:
    """Return the shares of a threshold that was asked for 90 % and keeps this share of 200 rows."""
    scores = np.arange(1000.0)
    inside = np.repeat([-1.0, 2000.0], [round(200 * (1.0 - share)), round(200 * share)])
    return kept_shares(scores, inside, threshold=conformal_threshold(scores, tpr=0.9))


def test_caveats_name_what_is_missing() -> None:
    comparison = compared(RATES)
    assert caveats(comparison, "gem", {"gem": None, "energy": None})[0].startswith("No detector has a threshold")
    assert caveats(comparison, "gem", dict.fromkeys(RATES), ["one more", "And this."])[-2:] == [
        "One more.",
        "And this.",
    ]
    many = {f"d{place}": None for place in range(7)}
    text = caveats(comparison, "gem", many | {"gem": kept(0.9)})[0]
    assert text.startswith("d0, d1, d2, d3, d4 and 2 more have no threshold")


def test_a_threshold_that_does_not_fit_is_told_of_every_detector() -> None:
    comparison = compared(RATES)
    both = {"gem": kept(0.3), "energy": kept(0.4)}
    assert headline(comparison, "gem", both["gem"]).startswith("The threshold of gem does not fit these rows: asked to")
    told = [caveat for caveat in caveats(comparison, "gem", both) if "does not fit" in caveat]
    assert told == [
        "The threshold of energy does not fit these rows: asked to keep 90 %, it keeps 40.0 % of 1,001 in-distribution "
        "rows."
    ]
    assert not any(
        "does not fit" in caveat for caveat in caveats(comparison, "gem", {"gem": None, "energy": kept(0.9)})
    )


def test_shares_are_written_with_one_decimal_and_promises_as_they_are() -> None:
    assert (percent(0.99999), percent(0.0), asked(0.95), asked(0.9995)) == ("100.0 %", "0.0 %", "95 %", "99.95 %")
