import pytest
from made_runs import FACTS, made_run, row, shaped

import findings
import page
from report import Run
from sections import Section
from timing import Measurement


def filled(template, run=None):
    return page.fill(template, run or made_run())


def test_the_first_sentence_counts_where_gem_ood_is_ahead_and_how_far():
    found = filled("{{findings fit: fits}}")
    assert found.startswith(
        "gem-ood fits ahead of every peer that ran at 2 of 3 shapes: the fastest of them takes 0.8 x to 4 x as long."
    )


def test_who_is_ahead_of_gem_ood_is_named_with_the_spread():
    assert "- Behind: oodeel 0.4.0 at 64 features, 10 classes (0.8 x, quartiles 0.784 .. 0.816)." in filled(
        "{{findings fit: fits}}"
    )


def test_a_peer_that_failed_is_named_with_its_error():
    assert r"- Failed: oodeel 0.4.0 at 2,048 features, 1,000 classes (MemoryError: 40 GB \| \*at once\*)." in filled(
        "{{findings fit: fits}}"
    )


def test_nothing_is_said_against_a_clean_win():
    assert filled("{{findings score: scores}}") == (
        "gem-ood scores ahead of every peer that ran at 3 of 3 shapes: the fastest of them takes 20 x to 300 x as long."
    )


def test_a_ratio_that_spreads_is_said_to():
    section = Section("fit-64x10", "Fit", [row("oodeel 0.4.0 / gem-ood", 2.0, spread=0.3)])
    assert "- Spread too far to be trusted: oodeel 0.4.0 at 64 features" in filled(
        "{{findings fit: fits}}", Run(FACTS, [section])
    )


def test_losing_at_the_only_shape_is_no_lead():
    run = Run(FACTS, shaped("fit", [(0.5, 0.9)], shapes=[(64, 10)]))
    assert filled("{{findings fit: fits}}", run).startswith("gem-ood fits ahead of every peer that ran at no shape:")


def test_rounds_that_disagree_put_nobody_ahead():
    run = Run(FACTS, shaped("fit", [(1.01, 2.0), (1.5, 2.0), (0.99, 2.0)]))
    assert filled("{{findings fit: fits}}", run).startswith(
        "gem-ood fits ahead of every peer that ran at 1 of 3 shapes, about even with the fastest at 2: the fastest"
    )


def test_the_fastest_of_each_round_says_how_far():
    ratios = [row("fastest peer / gem-ood", 2.9), row("oodeel 0.4.0 / gem-ood", 3.0)]
    found = filled("{{findings score: scores}}", Run(FACTS, [Section("score-64x10", "Score", ratios)]))
    assert found.endswith("takes 2.9 x as long.")


def test_a_peer_that_computes_something_else_is_left_out_of_who_is_ahead():
    other = "scikit-learn EmpiricalCovariance"
    ratios = [row(f"{other} / gem-ood", 0.3), row("fastest peer / gem-ood", 3.0), row("oodeel 0.4.0 / gem-ood", 3.0)]
    times = [row(other, 3.0, "ms", note="one Gaussian: not comparable with a score by classes")]
    found = filled("{{findings score: scores}}", Run(FACTS, [Section("score-64x10", "Score", ratios, times)]))
    assert found == "gem-ood scores ahead of every peer that ran: the fastest of them takes 3 x as long."


def test_without_peers_nobody_is_ahead():
    assert filled("{{findings limit: does}}") == "No peer was measured here."


def test_targets_are_counted_and_those_not_met_are_listed():
    found = filled("{{targets}}")
    assert found.startswith("16 of 19 targets are met.")
    lines = found.splitlines()
    assert "| oodeel 0.4.0 / gem-ood | Fit, 64 features, 10 classes | 0.8 x | 0.784 .. 0.816 | >= 1 | MISSED |" in lines
    assert "| gem-ood | One row | 45 us | 31.5 .. 58.5 | <= 40 | MISSED NOISY |" in lines
    assert "| fit | 7 | 1 | 1 | 0 |" in lines
    assert "| one-row | 0 | 1 | 0 | 1 |" in lines
    assert [line for line in lines if line.endswith("| met |")] == []


def test_a_target_met_by_noisy_numbers_is_said_to_be():
    run = Run(FACTS, [Section("a", "A", [row("x", 2.0, spread=0.3, at_least=1)])])
    assert filled("{{targets}}", run).startswith("1 of 1 targets are met, 1 of them NOISY.")


def test_ratios_of_all_shapes_make_one_table():
    lines = filled("{{ratios fit}}").splitlines()
    assert lines[0] == "|  | 64 x 10 | 512 x 100 | 2,048 x 1,000 |"
    assert "| oodeel 0.4.0 / gem-ood | 0.8 x MISSED | 1.5 x | failed |" in lines


def test_measurements_of_a_library_and_an_axis_make_a_grid():
    assert filled("{{grid growth}}").splitlines() == [
        "| exponent | N | m |",
        "| --- | --- | --- |",
        "| gem-ood | 1.5 | 1.5 |",
        "| oodeel | 1.5 | 1.5 |",
    ]


@pytest.mark.parametrize(
    ("note", "cell"), [("by 256 rows; measured once", "3 x once"), ("NOISY ± 0.31, m = 64", "3 x NOISY"), ("", "3 x")]
)
def test_what_a_note_says_against_a_single_sample_stands_beside_it(note, cell):
    section = Section("fit-64x10", "Fit", [Measurement("oodeel 0.4.0 / gem-ood", (3.0,), "x", note=note)])
    assert filled("{{ratios fit}}", Run(FACTS, [section])).endswith(f"| oodeel 0.4.0 / gem-ood | {cell} |")


def test_findings_in_words_stand_as_they_are():
    assert filled("{{words robustness}}").endswith("| a class without rows | scores | error: &lt;shape> |")


def test_one_number_fits_into_a_sentence():
    assert filled("It takes {{median one-row-128x10: gem-ood}}.") == "It takes 45 us."


def test_shares_of_the_limit_go_from_the_least_to_the_most():
    assert "- fit, fraction of the limit: 0.5 at 64 features, 10 classes to 0.7 at 2,048 features" in filled(
        "{{shares limit}}"
    )


def test_a_noisy_share_of_the_limit_is_said_to_be():
    assert "- one row, fraction of the limit: 0.02 (NOISY) at 64 features" in filled("{{shares limit}}")


def test_a_section_that_was_skipped_says_why():
    assert filled("{{table guard*}}") == "Not measured: torch is not installed."


def test_a_noisy_run_says_so_on_the_page():
    assert filled("{{trust}}").startswith("The machine was quiet at the start.")
    assert filled("{{trust}}", made_run(**{"load at start": "1.9"})).startswith("**THE MACHINE WAS TOO NOISY")


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{{table nowhere}}", "no section 'nowhere' in the run, which has fit-64x10"),
        ("{{tables fit}}", "the verbs are machine"),
        ("{{median one-row-128x10: ours}}", "no row 'ours' in the section, which has gem-ood"),
    ],
)
def test_a_placeholder_that_the_run_cannot_fill_is_an_error(template, message):
    with pytest.raises(LookupError, match=message):
        filled(template)


def test_both_pages_say_that_they_are_written_by_the_script():
    texts = page.pages(made_run(), "# Title\n\nWords. {{machine}}\n")
    assert list(texts) == [page.PAGE, page.RECORDED_PAGE]
    assert all(page.NOTICE in text for text in texts.values())
    assert texts[page.PAGE].startswith("# Title\n\n<!--")


def test_names_tell_peers_from_ours():
    assert [findings.peer_of(row(name, 1.0)) for name in ("oodeel / gem-ood", "gem-ood / NumPy", "oodeel")] == [
        "oodeel",
        "",
        "",
    ]
