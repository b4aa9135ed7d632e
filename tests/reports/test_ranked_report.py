"""A report on a detector that was calibrated on ranked scores is that of one with all scores, to their precision."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gem_ood import GEM
from gem_ood.reports import Report, gather, write
from gem_ood.thresholds import conformal_threshold, rank_scores, threshold_order

PRECISION, TPR, N_CALIBRATION = 1e-2, 0.9, 4000


@pytest.fixture(scope="module")
def case() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    labels = np.arange(N_CALIBRATION + 1600) % 3
    rows = rng.normal(size=(len(labels), 4)) + 6.0 * np.eye(4)[labels]
    return {"fit": (rows[:600], labels[:600]), "held_out": rows[600:-1000], "id": rows[-1000:], "far": 9.0 * rows[:200]}


@pytest.fixture(scope="module")
def local(case: dict[str, Any]) -> GEM:
    return GEM().fit(*case["fit"]).calibrate(case["held_out"], tpr=TPR)


@pytest.fixture(scope="module")
def ranked(case: dict[str, Any]) -> GEM:
    detector = GEM().fit(*case["fit"])
    scores = detector.score_samples(case["held_out"])
    order = threshold_order(N_CALIBRATION, tpr=TPR).order
    detector.calibrate_ranked(rank_scores([(scores, None)], orders=[order], precision=PRECISION), tpr=TPR)
    assert len(detector.calibration_scores_) < N_CALIBRATION // 4
    return detector


@pytest.fixture(scope="module")
def reports(case: dict[str, Any], local: GEM, ranked: GEM) -> tuple[Report, Report]:
    exact, found = (gather([one], id=case["id"], ood={"far": case["far"]}, map=None) for one in (local, ranked))
    return exact, found


def test_the_shares_asked_and_kept_are_those_of_all_calibration_rows(
    reports: tuple[Report, Report], case: dict[str, Any], ranked: GEM
) -> None:
    exact, found = (one.detectors["gem"].kept for one in reports)
    assert exact is not None
    assert found is not None
    assert (found.n_calibration, found.n_test) == (exact.n_calibration, exact.n_test) == (N_CALIBRATION, 1000)
    np.testing.assert_array_equal(found.asked, exact.asked)
    inside, held_out = (ranked.score_samples(case[name]) for name in ("id", "held_out"))
    for share, realised in zip(found.asked, found.realised, strict=True):
        cut = conformal_threshold(held_out, tpr=share)
        assert realised >= np.mean(inside >= cut.value)
        lower = np.sort(held_out)[max(0, int(cut.order / (1.0 + PRECISION)) - 2)]
        assert realised <= np.mean(inside >= lower - 1e-9)
    for name in ("low", "high"):
        np.testing.assert_allclose(getattr(found, name), getattr(exact, name), atol=2.0 * PRECISION)


def test_the_threshold_of_its_own_is_told_as_with_all_scores(reports: tuple[Report, Report]) -> None:
    exact, found = reports
    ours, theirs = found.detectors["gem"], exact.detectors["gem"]
    assert ours.threshold == theirs.threshold
    assert ours.kept is not None
    assert theirs.kept is not None
    assert ours.kept.own_realised == theirs.kept.own_realised
    assert ours.kept.own_chance == pytest.approx(theirs.kept.own_chance, abs=0.05)
    assert found.headline == exact.headline
    assert found.caveats == exact.caveats


def test_its_page_has_these_numbers(case: dict[str, Any], ranked: GEM, tmp_path: Path) -> None:
    report = write(tmp_path / "report.html", [ranked], id=case["id"], map=None)
    kept = report.as_dict()["detectors"]["gem"]["kept"]
    assert kept["n_calibration"] == N_CALIBRATION
    assert f'"n_calibration":{N_CALIBRATION},' in (tmp_path / "report.html").read_text(encoding="utf-8")
