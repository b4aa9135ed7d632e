"""The page of a report: every number that of the dictionary, every part in words and for every reader."""

import itertools
import re
import subprocess
import sys
from importlib.resources import files

import pytest
from pages import METRICS, NAMES, Page, made_report

from gem_ood.errors import InputError

pytest.importorskip("plotly")

from gem_ood.reports.page import render
from gem_ood.reports.page.sections import SECTIONS


def test_every_number_of_the_table_is_the_dictionarys(report, page):
    measured = report["comparison"]["detectors"]
    shown = {}
    for cell in page.all("td"):
        about = cell["attributes"]
        if "data-metric" in about:
            key = (about["data-detector"], about.get("data-set"), about["data-metric"])
            assert key not in shown
            shown[key] = (float(about["data-value"]), cell["text"])
    expected = {}
    for detector, one in measured.items():
        for ood, evaluation in one["evaluations"].items():
            expected |= {(detector, ood, metric): evaluation[metric] for metric in METRICS}
            expected[detector, ood, "flagged"] = one["flagged"][ood]
        expected |= {(detector, "mean", metric): one["mean"][metric] for metric in METRICS}
        expected[detector, "mean", "flagged"] = pytest.approx(sum(one["flagged"].values()) / len(one["flagged"]))
        expected |= {(detector, None, key): one[key] for key in ("id_error", "id_kept", "seconds_per_10k")}
    assert {key: value for key, (value, _) in shown.items()} == expected
    for (_, _, metric), (value, text) in shown.items():
        written = f"{value:.3g}" if metric == "seconds_per_10k" else f"{100 * value:.2f}"
        assert text.removesuffix("★ best") == written


def test_the_best_is_bold_and_starred_and_nothing_else_is(report, page):
    starred = {
        (cell["attributes"]["data-detector"], cell["attributes"]["data-set"], cell["attributes"]["data-metric"])
        for cell in page.all("td")
        if "★" in cell["text"] and "data-metric" in cell["attributes"]
    }
    best = report["best"]
    assert starred == {(names[0], ood, metric) for metric in METRICS for ood, names in best[metric].items()}
    inside = [one for one in page.all("strong") if "td" in one["inside"]]
    # The same numbers stand once more in narrow tables for paper.
    assert len(inside) == 2 * len(starred)


def test_one_detector_is_not_starred_and_one_set_has_no_mean():
    page = Page(render(made_report(["GEM"], ["photographs"])))
    assert "★" not in page.one("table", id="comparison-table")["text"]
    assert not page.all("td", data_set="mean")
    assert len(page.all("td", data_set="photographs")) == 4


def test_the_metrics_are_explained_by_the_convention_in_use():
    paper = made_report(["GEM"], ["photographs"]) | {"tpr": 0.9}
    chance = "AUROC is the chance that an in-distribution row scores higher than an out-of-distribution row;"
    explained = {
        "paper": "FPR90 is the share of out-of-distribution rows let through when 90 % of the in-distribution rows are",
        "openood": "FPR90 is the share of in-distribution rows flagged when 90 % of the out-of-distribution rows are;",
    }
    for convention, fpr in explained.items():
        text = Page(render(paper | {"convention": convention})).one("section", id="detectors")["text"]
        assert fpr in text
        assert chance in text


def test_the_legend_of_the_table_explains_no_column_that_is_missing():
    for sets, words in (([], " ID kept: the share of rows within"), (["a"], "Flagged, ID kept: shares of rows beyond")):
        table = Page(render(made_report(["GEM"], sets))).one("table", id="comparison-table")
        assert words in table["text"]
        assert ("Flagged" in table["text"]) is bool(sets)


@pytest.mark.parametrize(("degrees", "words"), [(1, "χ², 1 degree of freedom"), (27, "χ², 27 degrees of freedom")])
def test_degrees_of_freedom_are_counted(degrees, words):
    report = made_report(["GEM"], [])
    report["diagnosis"]["degrees_of_freedom"] = degrees
    assert f"({words})" in Page(render(report)).one("section", id="diagnosis")["text"]


def test_names_of_spaces_are_said_to_be_missing_in_every_choice():
    page = Page(render(made_report([" "], ["\t", "b"])))
    assert page.one("select", id="focus-detector")["text"] == "(no name)"
    assert page.one("select", id="curve-set")["text"].startswith("all detectors on (no name)all detectors on b")


def test_the_command_is_said_to_hold_where_it_was_run(page):
    words = "Paths are relative to the directory that it was run in."
    assert words in page.one("section", id="run")["text"]
    assert words not in Page(render({"run": {"command": None}})).one("section", id="run")["text"]


def test_intervals_stand_below_their_number():
    report = made_report(["GEM", "MSP"], ["a", "b"])
    report["comparison"] |= {"intervals": "bootstrap", "confidence": 0.9}
    report["comparison"]["detectors"]["GEM"]["evaluations"]["a"]["intervals"] = {"fpr": [0.125, 0.25]}
    report["comparison"]["detectors"]["GEM"]["mean_intervals"] = {"auroc": [0.5, 0.75]}
    page = Page(render(report))
    assert page.one("td", data_detector="GEM", data_set="a", data_metric="fpr")["text"].endswith("12.50 to 25.00")
    assert page.one("td", data_detector="GEM", data_set="mean", data_metric="auroc")["text"].endswith("50.00 to 75.00")
    assert "90 % interval (bootstrap)" in page.one("table", id="comparison-table")["text"]


def test_rows_name_their_place_among_the_detectors_whatever_the_order_of_the_comparison():
    report = made_report(["a", "b", "c"], ["s"])
    report["comparison"]["detectors"] = dict(reversed(report["comparison"]["detectors"].items()))
    rows = [one["attributes"] for one in Page(render(report)).all("tr") if "data-detector" in one["attributes"]]
    assert [(row["data-detector"], row["data-index"]) for row in rows] == [("c", "2"), ("b", "1"), ("a", "0")]


@pytest.mark.parametrize(
    ("changes", "section", "words"),
    [
        (
            {"sets": [], "best": {}},
            "detectors",
            "so FPR, AUROC and AUPR cannot be computed; pass such a set to have them.",
        ),
        ({"sets": []}, "curves", "so ROC and precision-recall curves cannot be computed"),
        ({"diagnosis": None}, "diagnosis", "no Gaussian fit to diagnose"),
        ({"map": None}, "map", "No map was asked for."),
        ({"run": {"command": None}}, "run", "no command to run again"),
        ({"comparison": None}, "detectors", "No detector was measured"),
        ({"detectors": {}}, "scores", "No scores were kept"),
        ({"detectors": {}}, "surprises", "No rows were kept"),
    ],
)
def test_a_missing_part_leaves_a_word_on_why(changes, section, words):
    page = Page(render(made_report(["GEM"], ["photographs"]) | changes))
    found = page.one("section", id=section)
    assert words in found["text"]
    plots = [one for one in page.all("div") if one["attributes"].get("data-plot") == section]
    assert not plots


def test_without_a_threshold_nothing_is_said_to_be_kept_or_flagged():
    page = Page(render(made_report(["GEM", "MSP"], ["photographs"], calibrated=False)))
    assert not page.all("td", data_metric="flagged")
    assert not page.all("td", data_metric="id_kept")
    assert "No detector is calibrated" in page.one("section", id="detectors")["text"]
    assert "No detector is calibrated" in page.one("section", id="calibration")["text"]
    assert "no threshold" in page.one("section", id="surprises")["text"]
    colours = [
        one["attributes"]["value"]
        for one in page.all("option")
        if one["attributes"]["value"] in {"class", "verdict", "set"}
    ]
    assert colours == ["class", "set"]


def test_a_report_without_out_of_distribution_sets_still_shows_scores_and_rows():
    page = Page(render(made_report(["GEM"], [])))
    assert page.all("div", data_plot="scores")
    assert not page.all("td", data_metric="fpr")
    assert page.all("td", data_metric="id_kept")


@pytest.mark.parametrize("report", [{}, {"title": "t", "headline": "h", "sets": [], "detectors": {}, "run": {}}])
def test_an_empty_report_is_a_whole_page_with_every_section(report):
    page = Page(render(report))
    assert [one["attributes"]["id"] for one in page.all("section")] == list(SECTIONS)
    assert len(page.all("a", href="#run")) == 1


def test_the_page_reads_with_a_screen_reader(page):
    assert page.one("html")["attributes"]["lang"] == "en"
    for landmark in ("main", "nav", "header", "footer", "h1", "noscript"):
        page.one(landmark)
    levels = [int(one["tag"][1]) for one in page.elements if re.fullmatch(r"h\d", one["tag"])]
    assert levels[0] == 1
    assert all(after - before <= 1 for before, after in itertools.pairwise(levels))
    ids = [one["attributes"]["id"] for one in page.elements if "id" in one["attributes"]]
    assert len(ids) == len(set(ids))
    named = [
        one["attributes"].get(key) for one in page.elements for key in ("aria-labelledby", "aria-describedby", "for")
    ]
    assert {name for name in named if name} <= set(ids)
    for cell in page.all("th"):
        assert cell["attributes"]["scope"] in {"row", "col", "colgroup"}
    for plot in (one["attributes"] for one in page.all("div") if "data-plot" in one["attributes"]):
        assert plot["tabindex"] == "0"
        assert plot["aria-label"]
    for control in page.all("select") + page.all("input"):
        assert "label" in control["inside"] or page.all("label", **{"for": control["attributes"]["id"]})


def test_of_many_detectors_the_lead_and_the_best_are_drawn_at_first():
    names = [f"d{place}" for place in range(30)]
    report = made_report(names, ["s"])
    for place, name in enumerate(names):
        report["comparison"]["detectors"][name]["mean"]["fpr"] = (30 - place) / 100
    page = Page(render(report))
    boxes = [one["attributes"] for one in page.all("input", data_toggle="detector")]
    assert [one["data-detector"] for one in boxes if "checked" in one] == ["d0", *names[-7:]]
    assert "The 8 best of 30 by mean FPR are drawn at first." in page.one("details", data_menu="detector")["text"]


@pytest.mark.parametrize(
    ("ood", "is_ood", "words"),
    [
        (None, False, "✓ kept"),
        (None, True, "✗ flagged, false alarm"),
        ("s", True, "✓ flagged"),
        ("s", False, "✗ kept, missed"),
        ("s", None, "no threshold"),
    ],
)
def test_a_surprising_row_says_whether_its_verdict_is_right(ood, is_ood, words):
    report = made_report(["GEM"], ["s"])
    report["detectors"]["GEM"]["surprises"] = [{"row": 3, "set": ood, "is_ood": is_ood}]
    cells = [one["text"] for one in Page(render(report)).all("td") if one["inside"][-2:] == ["tbody", "tr"]]
    assert [text for text in cells if "✓" in text or "✗" in text or text == words] == [words]


@pytest.mark.parametrize(("sets", "mean"), [(["a", "b"], "mean "), (["a"], "")])
def test_the_tiles_hold_the_numbers_of_the_lead_under_their_own_names(sets, mean):
    report = made_report(["MSP", "GEM"], sets) | {"lead": "GEM", "tpr": 0.9}
    measured = report["comparison"]["detectors"]["GEM"]
    page = Page(render(report))
    tiles = dict(zip((one["text"] for one in page.all("dt")), (one["text"] for one in page.all("dd")), strict=True))
    assert tiles == {
        "in-distribution rows": "360",
        f"{mean}FPR90": f"{100 * measured['mean']['fpr']:.2f} %",
        f"{mean}AUROC": f"{100 * measured['mean']['auroc']:.2f} %",
        "in-distribution rows kept": f"{100 * measured['id_kept']:.2f} %",
    }


def test_no_control_is_filled_in_again_by_the_browser(page):
    controls = page.all("select") + page.all("input")
    assert len(controls) == 4 + len(NAMES) + 4
    assert {one["attributes"].get("autocomplete") for one in controls} == {"off"}


def test_twelve_detectors_are_all_drawn_at_first():
    page = Page(render(made_report([f"d{place}" for place in range(12)], ["s"])))
    assert all("checked" in one["attributes"] for one in page.all("input"))


def test_what_json_cannot_write_is_refused():
    with pytest.raises(InputError, match="JSON cannot write"):
        render({"n_id": float("nan")})


def test_the_same_report_gives_the_same_page(report):
    assert render(report) == render(report)


def luminance(colour):
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(first, second):
    low, high = sorted((luminance(first), luminance(second)))
    return (high + 0.05) / (low + 0.05)


def colours_of_themes():
    """Return the named colours of the style sheet: the light theme's, then the dark one's."""
    style = files("gem_ood.reports.page").joinpath("page.css").read_text("utf-8")
    blocks = re.findall(r":root[^{]*\{([^}]*--ground[^}]*)\}", style)
    return [dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", block)) for block in blocks]


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_text_has_a_contrast_of_four_and_a_half(theme):
    colours = colours_of_themes()[theme]
    grounds = {
        "text": ("ground", "paper", "raised", "accent-soft", "warn-ground"),
        "muted": ("ground", "paper", "raised"),
        "accent": ("ground", "paper", "raised", "accent-soft"),
        "good": ("paper",),
        "bad": ("paper",),
    }
    for text, behind in grounds.items():
        for ground in behind:
            assert contrast(colours[text], colours[ground]) >= 4.5, (text, ground)


@pytest.mark.parametrize(("theme", "name"), [(0, "light"), (1, "dark")])
def test_lines_and_marks_have_a_contrast_of_three(theme, name):
    script = files("gem_ood.reports.page").joinpath("state.js").read_text("utf-8")
    drawn = [
        colour for row in re.findall(rf"{name}: \[([^\]]*)\]", script) for colour in re.findall(r"#[0-9a-f]{6}", row)
    ]
    assert len(drawn) == 12
    assert len(set(drawn)) == 12
    paper = colours_of_themes()[theme]["paper"]
    assert {colour: contrast(colour, paper) for colour in drawn if contrast(colour, paper) < 3.0} == {}


def test_without_plotly_the_error_says_what_to_install():
    code = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "plotly":
            raise ModuleNotFoundError(f"No module named {name!r}")
sys.meta_path.insert(0, Absent())
from gem_ood.reports.page import render
try:
    render({})
except ImportError as error:
    print(type(error).__name__, error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert done.stdout.strip() == (
        'MissingExtraError HTML reports need plotly, which cannot be imported; run pip install "gem-ood[report]"'
    ), done.stderr
