import json
import os

from made_runs import FACTS, failed, made_run, row

import machine
import report
from report import Run
from sections import Section
from timing import Measurement


def test_a_run_comes_back_from_json_as_it_went():
    run = made_run()
    back = report.from_json(report.as_json(run))
    assert report.as_json(back) == report.as_json(run)
    assert back.facts == run.facts
    assert [section.key for section in back.sections] == [section.key for section in run.sections]
    assert [section.table for section in back.sections] == [section.table for section in run.sections]
    assert [(each.name, each.unit, each.verdict) for _, each in back.rows] == [
        (each.name, each.unit, each.verdict) for _, each in run.rows
    ]


def test_a_number_without_a_unit_keeps_having_none():
    run = Run(FACTS, [Section("accuracy", "Accuracy", measurements=[Measurement("error", (1e-9,), "", at_most=1e-6)])])
    ((_, back),) = report.from_json(report.as_json(run)).rows
    assert (back.unit, back.at_most) == ("", 1e-6)


def test_json_is_plain_json_with_samples_of_five_figures():
    run = Run(FACTS, [Section("a", "A", [Measurement("x", (1 / 3, 200_000.4))])])
    data = json.loads(report.as_json(run))
    assert data["sections"][0]["ratios"][0]["samples"] == [0.33333, 200000.0]


def test_a_recorded_run_is_small():
    rows = [row(f"library {place} / gem-ood", 3.14159, note="a note of some words") for place in range(20)]
    run = Run(FACTS, [Section(f"fit-{place}x10", "Fit", rows, rows) for place in range(40)])
    assert len(report.as_json(run)) < 300_000


def test_text_and_markdown_have_every_number_and_every_word():
    run = made_run()
    for text in (report.as_text(run), report.as_markdown(run)):
        for section, each in run.rows:
            assert section.title in text
            assert each.name in text
        assert "a class without rows" in text
        assert "torch is not installed" in text
        assert "MemoryError" in text
        assert "and more" not in text
        assert "MISSED NOISY" in text


def test_what_markdown_would_read_as_its_own_is_escaped():
    assert report.pipe_table(["a"], [["x | *y* __init__ <class> <= 2"]]).endswith(
        r"| x \| \*y\* \_\_init\_\_ &lt;class> <= 2 |"
    )


def test_ratios_come_before_times():
    text = report.as_text(made_run())
    assert text.index("gem-ood / NumPy") < text.index("gem-ood  ")


def test_a_quiet_run_is_trusted():
    assert report.distrust(made_run()) == ""


def test_a_busy_machine_is_told_first():
    first = report.warnings(made_run(**{"load at start": "1.90"}))[0]
    assert first.startswith("THE MACHINE WAS TOO NOISY")
    assert "load was 1.90 on 2 cores" in first


def test_time_that_other_machines_took_is_told():
    before, after = (100, 0, 10, 880, 0, 0, 0, 10, 0, 0), (150, 0, 20, 900, 0, 0, 0, 30, 0, 0)
    taken = machine.stolen_share(before, after)
    assert taken == {"taken by other machines": "20.0% of the processors' time"}
    assert "took 20.0% of their time" in report.distrust(made_run(**taken))
    assert report.distrust(made_run(**machine.stolen_share(before, (*after[:3], 9000, *after[4:])))) == ""
    assert machine.stolen_share((), ()) == {}


def test_settings_that_hold_a_library_back_are_set_aside_and_named(monkeypatch):
    for name in machine.SETTINGS_OF_PRODUCTS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "2")
    assert machine.set_settings_aside() == {}
    monkeypatch.setenv("OPENBLAS_CORETYPE", "Haswell")
    assert machine.set_settings_aside() == {"settings set aside": "OPENBLAS_CORETYPE=Haswell"}
    assert "OPENBLAS_CORETYPE" not in os.environ
    assert os.environ["OPENBLAS_NUM_THREADS"] == "2"


def test_too_many_noisy_numbers_make_the_run_suspect():
    noisy = [row(f"row {place}", 1.0, spread=0.5) for place in range(2)]
    quiet = [row(f"quiet {place}", 1.0) for place in range(8)]
    assert "2 of 10 numbers spread too far" in report.distrust(Run(FACTS, [Section("a", "A", noisy, quiet)]))
    assert report.distrust(Run(FACTS, [Section("a", "A", noisy[:1], quiet)])) == ""


def test_what_was_not_tried_has_not_failed():
    left_out = failed("x", failure="not measured: it would take minutes")
    assert left_out.verdict == "not measured"
    assert report.warnings(Run(FACTS, [Section("a", "A", [left_out])])) == ["A: x not measured: it would take minutes"]
    assert failed("x").verdict == "FAILED"


def test_a_long_error_is_cut():
    assert len(report.reason(failed("x", failure="word " * 200))) <= report.LONGEST_REASON
