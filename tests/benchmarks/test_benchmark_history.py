import pytest
from made_runs import FACTS, failed, made_run, row

import history
import report
from history import Change
from report import Run
from sections import Section

SECTION = Section("fit-64x10", "Fit")


def one(*ratios, times=(), title="Fit", **facts):
    return Run({**FACTS, **facts}, [Section("fit-64x10", title, ratios, times)])


@pytest.mark.parametrize(
    ("name", "options", "now", "verdict"),
    [
        ("gem-ood", {"unit": "ms"}, 12.0, "slower"),
        ("gem-ood", {"unit": "ms"}, 8.0, "faster"),
        ("gem-ood", {"unit": "ms"}, 10.3, ""),
        ("gem-ood", {"unit": "ms a batch"}, 12.0, "slower"),
        ("gem-ood", {"unit": "MB"}, 12.0, "larger"),
        ("gem-ood, rows", {"unit": "exponent"}, 8.0, "smaller"),
        ("gem-ood", {"unit": "of 13 cases right", "at_least": 13}, 8.0, "worse"),
        ("oodeel / gem-ood", {}, 12.0, "faster"),
        ("oodeel / gem-ood", {}, 8.0, "slower"),
        ("gem-ood / NumPy", {}, 12.0, "slower"),
        ("score, fraction of the limit", {}, 8.0, "slower"),
        ("rate of extraction / network", {"at_least": 0.9}, 12.0, "faster"),
    ],
)
def test_a_change_beyond_both_spreads_is_named_by_what_it_means(name, options, now, verdict):
    assert Change(SECTION, row(name, now, **options), row(name, 10.0, **options)).verdict == verdict


def test_a_change_within_the_spread_of_either_is_none():
    quiet, noisy = row("gem-ood", 10.0, "ms"), row("gem-ood", 13.0, "ms", spread=0.3)
    assert Change(SECTION, noisy, quiet).verdict == ""
    assert Change(SECTION, quiet, noisy).verdict == ""


def test_what_failed_now_and_ran_before_is_told():
    now, then = one(failed("gem-ood / NumPy")), one(row("gem-ood / NumPy", 1.2))
    (change,) = history.changes(now, then)
    assert change.verdict == "FAILED"
    assert "FAILED" in history.as_text([change])


def test_times_are_compared_on_the_same_processor_only():
    ratio, time = row("gem-ood / NumPy", 1.2), row("gem-ood", 10.0, "ms")
    here, elsewhere = one(ratio, times=[time]), one(ratio, times=[time], cpu="Another")
    assert [change.now.name for change in history.changes(here, here)] == ["gem-ood / NumPy", "gem-ood"]
    assert [change.now.name for change in history.changes(here, elsewhere)] == ["gem-ood / NumPy"]


def test_times_of_other_sizes_are_not_compared():
    ratio, time = row("gem-ood / NumPy", 1.2), row("gem-ood", 10.0, "ms")
    smaller = one(ratio, times=[time], title="Fit, fewer rows")
    assert [change.now.name for change in history.changes(smaller, one(ratio, times=[time]))] == ["gem-ood / NumPy"]


def test_times_of_peers_and_products_are_left_out():
    run = one(times=[row("oodeel 0.4.0", 10.0, "ms"), row("NumPy X.T @ X", 10.0, "ms"), row("gem-ood", 10.0, "ms")])
    assert [change.now.name for change in history.changes(run, run)] == ["gem-ood"]


def test_a_run_beside_itself_has_not_changed(tmp_path):
    path = tmp_path / "recorded.json"
    path.write_text(report.as_json(made_run()))
    text = history.comparison(made_run(), path)
    assert text.startswith("Compared with recorded.json\n")
    assert "now    recorded  change" in text
    assert text.endswith("none changed (by more than 10% and both spreads)")


def test_another_processor_is_named(tmp_path):
    path = tmp_path / "recorded.json"
    path.write_text(report.as_json(made_run(cpu="Another")))
    assert "ratios only: recorded on Another, now on A processor" in history.comparison(made_run(), path)


def test_without_a_recorded_run_the_comparison_says_so(tmp_path):
    assert "does not exist; make bench-record writes it" in history.comparison(made_run(), tmp_path / "none.json")
    (tmp_path / "other.json").write_text(report.as_json(Run(FACTS, [Section("b", "B", [row("x", 1.0)])])))
    assert "has no number that this run has too" in history.comparison(made_run(), tmp_path / "other.json")
