"""What a report says, for rates chosen by hand."""

import numpy as np
import pytest

from gem_ood.comparison import Comparison, DetectorComparison
from gem_ood.metrics import evaluate
from gem_ood.reports.wording import asked, caveats, findings, headline, percent

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
        (0.0, "almost completely"),
        (0.05, "almost completely"),
        (0.2, "well"),
        (0.5, "in part"),
        (0.8, "poorly"),
        (0.81, "hardly at all"),
        (1.0, "hardly at all"),
    ],
)
def test_the_verdict_goes_by_what_is_let_through(rate: float, words: str) -> None:
    text = headline(compared({"gem": {"far": rate}}), "gem", None)
    assert text.startswith(f"gem tells far from in-distribution rows {words}: at a threshold that keeps 95 % of these")
    assert text.endswith(f"it lets through {100 * rate:.1f} % of the others.")


def test_the_spread_over_sets_is_told_with_their_names() -> None:
    text = headline(compared(RATES), "gem", None)
    assert text.startswith("gem tells 2 out-of-distribution sets from in-distribution rows in part")
    assert "30.0 % of the others on average, from 0.0 % (far) to 60.0 % (near)" in text


def test_the_weakest_set_and_the_best_there_are_named() -> None:
    found = findings(compared(RATES), "gem", None, None, None)
    weakest = "gem is weakest on near: where exactly 95 % of in-distribution rows are kept, 60.0 % of these pass."
    assert found[0] == f"{weakest} energy is the best there, with 10.0 %."
    assert found[1].startswith("No detector is the best on every set")


def test_a_detector_that_is_best_everywhere_gets_no_such_remarks() -> None:
    rates = {"gem": {"near": 0.1, "far": 0.0}, "energy": {"near": 0.2, "far": 0.9}}
    assert findings(compared(rates), "gem", None, None, None) == []


def test_a_better_detector_that_does_not_lead_is_named_with_its_rate() -> None:
    found = findings(compared({"gem": {"far": 0.0}, "energy": {"far": 0.9}}), "energy", None, None, None)
    assert found[0].startswith("gem is better but has no threshold yet")
    assert "lets through 0.0 % of the others where energy lets through 90.0 %" in found[0]


def test_ties_for_the_best_are_listed_together() -> None:
    rates = {"gem": {"near": 0.6, "far": 0.0}, "knn": {"near": 0.1, "far": 0.9}, "msp": {"near": 0.1, "far": 0.9}}
    assert "knn and msp are the best there" in findings(compared(rates), "gem", None, None, None)[0]


def test_caveats_name_what_is_missing() -> None:
    comparison = compared(RATES)
    assert caveats(comparison, {"gem": None, "energy": None})[0].startswith("No detector has a threshold")
    assert caveats(comparison, dict.fromkeys(RATES), ["one more"])[-1] == "one more"
    many = {f"d{place}": None for place in range(7)}
    text = caveats(comparison, many | {"gem": object()})[0]  # type: ignore[arg-type]
    assert text.startswith("d0, d1, d2, d3, d4 and 2 more have no threshold")


def test_shares_are_written_with_one_decimal_and_promises_as_they_are() -> None:
    assert (percent(0.99999), percent(0.0), asked(0.95), asked(0.9995)) == ("100.0 %", "0.0 %", "95 %", "99.95 %")
