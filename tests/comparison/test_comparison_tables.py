"""A comparison in every format: the paper's form, the best in bold, names escaped as the format wants it."""

import csv
import io
import json
import math
import re
from dataclasses import replace
from typing import Any

import pytest

from gem_ood.comparison import Comparison, DetectorComparison
from gem_ood.errors import InputError
from gem_ood.metrics import Evaluation


def evaluation(fpr: float, auroc: float, aupr: float = 0.5, **others: Any) -> Evaluation:
    return Evaluation(
        **{
            "fpr": fpr,
            "auroc": auroc,
            "aupr_in": aupr,
            "aupr_out": 0.25,
            "detection_error": 0.125,
            "threshold": 0.0,
            "tpr": 0.95,
            "convention": "paper",
            "n_id": 2000,
            "n_ood": 10,
            **others,
        }
    )


GEM = DetectorComparison(
    {"svhn": evaluation(0.1234, 0.95, 0.9), "far": evaluation(0.0, 1.0, 1.0)},
    id_error=0.0661,
    id_kept=0.951,
    flagged={"svhn": 0.875, "far": 1.0},
    seconds_per_10k=0.01234,
)
MSP = DetectorComparison(
    {"svhn": evaluation(0.5, 0.95001, 0.85), "far": evaluation(0.25, 0.75, 0.5)}, id_error=None, seconds_per_10k=2.0
)
SMALL = Comparison({"gem": GEM, "msp": MSP}, n_id=2000, n_ood={"svhn": 10, "far": 20})
#: Neither labels nor thresholds nor time, and one set only.
PLAIN = Comparison(
    {
        "a": DetectorComparison({"x": evaluation(0.5, 0.75)}),
        "b": DetectorComparison({"x": evaluation(0.25, 0.5, math.nan)}),
    },
    n_id=5,
    n_ood={"x": 6},
    tpr=0.9,
    convention="openood",
)

WIDE = """\
                          svhn                                  far                                  mean
detector    FPR95 ↓  AUROC ↑  AUPR ↑  flagged    FPR95 ↓  AUROC ↑   AUPR ↑  flagged    FPR95 ↓  AUROC ↑  AUPR ↑  \
flagged    ID error  ID kept   s/10k
gem          12.34*   95.00*  90.00*    87.50      0.00*  100.00*  100.00*   100.00      6.17*   97.50*  95.00*    \
93.75        6.61    95.10  0.0123
msp          50.00    95.00*  85.00         -     25.00    75.00    50.00         -     37.50    85.00   67.50         \
-           -        -  2.0000
"""

LONG = """\
OOD set  detector  FPR95 ↓  AUROC ↑   AUPR ↑  flagged  ID error  ID kept   s/10k
svhn     gem        12.34*   95.00*   90.00*    87.50
svhn     msp        50.00    95.00*   85.00         -

far      gem         0.00*  100.00*  100.00*   100.00
far      msp        25.00    75.00    50.00         -

mean     gem         6.17*   97.50*   95.00*    93.75      6.61    95.10  0.0123
mean     msp        37.50    85.00    67.50         -         -        -  2.0000
"""

NOTES = """\
* best on its set, as rounded
In percent, paper convention: 2,000 in-distribution rows against svhn (10), far (20)
flagged, ID kept: shares of rows beyond and within the detector's own threshold
s/10k: seconds to score 10,000 rows"""


def test_text_has_one_row_per_detector_where_it_fits_and_else_one_per_set() -> None:
    n_columns = len(WIDE.splitlines()[1])
    assert SMALL.to_text(layout="wide") == WIDE + NOTES
    assert SMALL.to_text(layout="long") == LONG + NOTES
    assert str(SMALL) == SMALL.to_text() == LONG + NOTES
    assert SMALL.to_text(width=n_columns) == WIDE + NOTES
    assert SMALL.to_text(width=n_columns - 1) == LONG + NOTES


def test_text_shows_only_what_is_there() -> None:
    assert str(PLAIN) == (
        "                       x\n"
        "detector    FPR90 ↓  AUROC ↑  AUPR ↑\n"
        "a            50.00    75.00*  50.00*\n"
        "b            25.00*   50.00       -\n"
        "* best on its set, as rounded\n"
        "In percent, openood convention: 5 in-distribution rows against x (6)"
    )
    alone = replace(PLAIN, detectors={"a": PLAIN.detectors["a"]}).to_text(metrics=["detection_error", "aupr_out"])
    assert alone == (
        "                       x\n"
        "detector    det. error ↓  AUPR out ↑\n"
        "a                  12.50       25.00\n"
        "In percent, openood convention: 5 in-distribution rows against x (6)"
    )
    both = PLAIN.to_text(metrics=["aupr_in", "aupr_out"]).splitlines()[1]
    assert both.split("  ")[2:] == ["AUPR in ↑", "AUPR out ↑"]
    assert "s/10k" not in SMALL.to_text(time=False)


def test_intervals_stand_beside_their_values() -> None:
    intervals = {"fpr": (0.119, 0.128), "auroc": (0.9, 1.0)}
    one = DetectorComparison({"x": evaluation(0.1234, 0.95, intervals=intervals), "y": evaluation(0.5, 0.5)})
    result = replace(PLAIN, detectors={"a": one}, n_ood={"x": 6, "y": 7}, intervals="bootstrap", confidence=0.9)
    assert result.to_text(layout="long").splitlines() == [
        "OOD set  detector               FPR90 ↓                AUROC ↑  AUPR ↑",
        "x        a         12.34 [11.90, 12.80]  95.00 [90.00, 100.00]   50.00",
        "",
        "y        a         50.00                 50.00                   50.00",
        "",
        "mean     a         31.17                 72.50                   50.00",
        "In percent, openood convention: 5 in-distribution rows against x (6), y (7)",
        "[low, high]: 90 % intervals (bootstrap); the mean has none",
    ]
    assert "| 12.34 [11.90, 12.80] |" in result.to_markdown()
    assert "& 12.34 [11.90, 12.80] &" in result.to_latex()


def test_the_interval_of_the_mean_stands_beside_it() -> None:
    intervals = {"fpr": (0.25, 0.375)}
    one = DetectorComparison(
        {"x": evaluation(0.5, 0.75, intervals={"fpr": (0.0, 1.0)}), "y": evaluation(0.25, 0.5)},
        mean_intervals=intervals,
    )
    result = replace(PLAIN, detectors={"a": one}, n_ood={"x": 6, "y": 7}, intervals="bootstrap")
    *_, mean, _, about = result.to_text(layout="long", metrics=["fpr"]).splitlines()
    assert mean == "mean     a         37.50 [25.00, 37.50]"
    assert about == "[low, high]: 95 % intervals (bootstrap)"
    assert "a,mean,5,,fpr,0.375,0.25,0.375,0.9,openood\n" in result.to_csv()
    assert json.loads(result.to_json())["detectors"]["a"]["mean_intervals"] == {"fpr": [0.25, 0.375]}
    assert one.interval("fpr") == (0.25, 0.375)
    assert (one.interval("fpr", "x"), one.interval("fpr", "y"), one.interval("auroc")) == ((0.0, 1.0), None, None)
    alone = DetectorComparison({"x": one.evaluations["x"]})
    assert alone.interval("fpr") == alone.interval("fpr", "x") == (0.0, 1.0)


def test_a_terminal_gets_bold_in_place_of_stars() -> None:
    text = SMALL.to_text(layout="long", ansi=True)
    assert "*" not in text
    assert text.splitlines()[1].count("\x1b[1m") == text.splitlines()[1].count("\x1b[0m") == 3
    assert "Bold: best on its set" in text
    assert re.sub(r"\x1b\[[01]m", "", text).splitlines()[:3] == [
        "OOD set  detector  FPR95 ↓  AUROC ↑  AUPR ↑  flagged  ID error  ID kept   s/10k",
        "svhn     gem         12.34    95.00   90.00    87.50",
        "svhn     msp         50.00    95.00   85.00        -",
    ]


def test_markdown() -> None:
    assert PLAIN.to_markdown() == (
        "| detector | x FPR90 ↓ | x AUROC ↑ | x AUPR ↑ |\n"
        "| --- | ---: | ---: | ---: |\n"
        "| a | 50.00 | **75.00** | **50.00** |\n"
        "| b | **25.00** | 50.00 | - |\n"
        "\n"
        "Bold: best on its set, as rounded. In percent, openood convention: 5 in-distribution rows against x (6).\n"
    )
    lines = SMALL.to_markdown().splitlines()
    assert lines[0] == "| OOD set | detector | FPR95 ↓ | AUROC ↑ | AUPR ↑ | flagged | ID error | ID kept | s/10k |"
    assert lines[2] == "| svhn | gem | **12.34** | **95.00** | **90.00** | 87.50 |  |  |  |"
    assert lines[7] == "| mean | msp | 37.50 | 85.00 | 67.50 | - | - | - | 2.0000 |"
    assert {line.count("|") for line in lines[:8]} == {10}


def test_latex() -> None:
    assert PLAIN.to_latex() == (
        "% \\usepackage{booktabs}\n"
        "% In percent, openood convention: 5 in-distribution rows against x (6)\n"
        "\\begin{tabular}{lrrr}\n"
        "\\toprule\n"
        " & \\multicolumn{3}{c}{x} \\\\\n"
        "\\cmidrule(lr){2-4}\n"
        "detector & FPR90 $\\downarrow$ & AUROC $\\uparrow$ & AUPR $\\uparrow$ \\\\\n"
        "\\midrule\n"
        "a & 50.00 & \\textbf{75.00} & \\textbf{50.00} \\\\\n"
        "b & \\textbf{25.00} & 50.00 & -- \\\\\n"
        "\\bottomrule\n"
        "\\end{tabular}\n"
    )
    lines = SMALL.to_latex(layout="long", time=False).splitlines()
    assert lines[3] == r"\begin{tabular}{llrrrrrr}"
    assert [line for line in lines if line.startswith(("svhn", " & msp"))][:2] == [
        r"svhn & gem & \textbf{12.34} & \textbf{95.00} & \textbf{90.00} & 87.50 &  &  \\",
        r" & msp & 50.00 & \textbf{95.00} & 85.00 & -- &  &  \\",
    ]
    assert lines.count(r"\midrule") == 3


@pytest.mark.parametrize("layout", ["wide", "long"])
def test_every_row_of_a_latex_table_has_as_many_cells_as_columns(layout: Any) -> None:
    lines = SMALL.to_latex(layout=layout).splitlines()
    columns = re.search(r"\\begin\{tabular\}\{(l+r+)\}", "\n".join(lines))
    assert columns is not None
    rows = [line for line in lines if line.endswith(r"\\")]
    assert len(rows) > 2
    for row in rows:
        spanned = sum(int(n) - 1 for n in re.findall(r"\\multicolumn\{(\d+)\}", row))
        assert row.count("&") + 1 + spanned == len(columns[1])


HARD = {
    "a_b": (r"a\_b", r"a\_b"),
    "R&D 100%": (r"R\&D 100\%", "R&amp;D 100%"),
    "x|y": (r"x\textbar{}y", r"x\|y"),
    "<b>#1</b>": (r"\textless{}b\textgreater{}\#1\textless{}/b\textgreater{}", "&lt;b&gt;#1&lt;/b&gt;"),
    "[k]": ("{[}k]", r"\[k\]"),
    "*": ("{*}", r"\*"),
    r"c:\d{e}": (r"c:\textbackslash{}d\{e\}", r"c:\\d{e}"),
    "$~^--": (r"\$\textasciitilde{}\textasciicircum{}-{}-", r"\$\~^--"),
    "Größe 雪": ("Größe 雪", "Größe 雪"),
    "two\nlines\x1b[2J": ("two lines {[}2J", r"two lines \[2J"),
}


@pytest.mark.parametrize("name", HARD)
def test_names_are_escaped(name: str) -> None:
    latex, markdown = HARD[name]
    one = PLAIN.detectors["a"]
    as_detector = replace(PLAIN, detectors={name: one})
    assert f"\n{latex} & 50.00 & " in as_detector.to_latex()
    assert f"\n| {markdown} | 50.00 | " in as_detector.to_markdown()
    as_set = replace(PLAIN, detectors={"a": DetectorComparison({name: one.evaluations["x"]})}, n_ood={name: 6})
    assert f"\\multicolumn{{3}}{{c}}{{{latex}}}" in as_set.to_latex()
    assert as_set.to_markdown().startswith(f"| detector | {markdown} FPR90 ↓ | ")
    assert all(line.startswith("%") for line in as_set.to_latex().splitlines()[:2])
    for comparison in (as_detector, as_set):
        assert "\x1b" not in comparison.to_text()
        read = list(csv.DictReader(io.StringIO(comparison.to_csv(), newline="")))
        assert {name} <= {read[0]["detector"], read[0]["set"]}
        assert name in json.loads(comparison.to_json())["detectors" if comparison is as_detector else "n_ood"]


def test_wide_characters_and_long_set_names_keep_the_columns_aligned() -> None:
    names = ("雪", "é" + "e\u0301", "plain")
    wide = replace(PLAIN, detectors=dict.fromkeys(names, PLAIN.detectors["a"]))
    lines = wide.to_text().splitlines()
    assert lines[2:5] == [
        "雪           50.00*   75.00*  50.00*",
        "ée\u0301           50.00*   75.00*  50.00*",
        "plain        50.00*   75.00*  50.00*",
    ]
    long_name = "a set of a very long name indeed"
    one = DetectorComparison({long_name: evaluation(0.5, 0.75)})
    header, titles, row, *_ = replace(PLAIN, detectors={"a": one}, n_ood={long_name: 1}).to_text().splitlines()
    assert header == " " * 12 + long_name
    assert len(titles) == len(row) == len(header)


def test_csv_has_a_line_for_each_detector_set_and_metric() -> None:
    assert PLAIN.to_csv().splitlines()[:6] == [
        "detector,set,n_id,n_ood,metric,value,low,high,tpr,convention",
        "a,x,5,6,fpr,0.5,,,0.9,openood",
        "a,x,5,6,auroc,0.75,,,0.9,openood",
        "a,x,5,6,aupr_in,0.5,,,0.9,openood",
        "a,x,5,6,aupr_out,0.25,,,0.9,openood",
        "a,x,5,6,detection_error,0.125,,,0.9,openood",
    ]
    assert "b,x,5,6,aupr_in,,,,0.9,openood\n" in PLAIN.to_csv()
    lines = SMALL.to_csv().splitlines()
    assert "gem,mean,2000,,fpr,0.0617,,,0.95,paper" in lines
    assert [line for line in lines if line.startswith("gem,far") and "flagged" in line] == [
        "gem,far,2000,20,flagged,1.0,,,0.95,paper"
    ]
    assert [line for line in lines if line.startswith("gem,,")] == [
        "gem,,2000,,id_error,0.0661,,,0.95,paper",
        "gem,,2000,,id_kept,0.951,,,0.95,paper",
        "gem,,2000,,seconds_per_10k,0.01234,,,0.95,paper",
    ]
    intervals = {"auroc": (0.5, math.inf)}
    one = DetectorComparison({"x": evaluation(0.5, 0.75, intervals=intervals)})
    assert "a,x,5,6,auroc,0.75,0.5,,0.9,openood\n" in replace(PLAIN, detectors={"a": one}).to_csv()


def test_csv_and_json_have_only_the_metrics_asked_for_and_no_time_if_told_so() -> None:
    read = list(csv.DictReader(io.StringIO(SMALL.to_csv(metrics=["auroc", "fpr"], time=False))))
    assert [row["metric"] for row in read if row["detector"] == "gem"] == [
        *["auroc", "fpr", "flagged"] * 3,
        "id_error",
        "id_kept",
    ]
    with_interval = evaluation(0.5, 0.75, intervals={"fpr": (0.0, 1.0), "auroc": (0.5, 1.0)})
    one = DetectorComparison({"x": with_interval}, seconds_per_10k=1.0)
    values = replace(PLAIN, detectors={"a": one}).as_dict(metrics="auroc", time=False)["detectors"]["a"]
    kept = {"auroc", "threshold", "tpr", "convention", "n_id", "n_ood", "intervals"}
    assert set(values["evaluations"]["x"]) == kept
    assert values["evaluations"]["x"]["intervals"] == {"auroc": (0.5, 1.0)}
    assert (values["mean"], values["seconds_per_10k"]) == ({"auroc": 0.75}, None)
    for write in (SMALL.to_csv, SMALL.to_json, SMALL.as_dict):
        with pytest.raises(InputError, match="there is no metric 'f1'"):
            write(metrics=["f1"])


def test_json_has_everything() -> None:
    read = json.loads(SMALL.to_json())
    assert set(read) == {"tpr", "convention", "intervals", "confidence", "n_id", "n_ood", "detectors"}
    gem = read["detectors"]["gem"]
    assert gem["evaluations"]["svhn"]["fpr"] == 0.1234
    assert gem["mean"] == {
        "fpr": 0.0617,
        "auroc": 0.975,
        "aupr_in": 0.95,
        "aupr_out": 0.25,
        "detection_error": 0.125,
    }
    assert (gem["id_error"], gem["id_kept"], gem["seconds_per_10k"]) == (0.0661, 0.951, 0.01234)
    assert gem["flagged"] == {"svhn": 0.875, "far": 1.0}
    assert read["detectors"]["msp"]["flagged"] is None
    assert json.loads(PLAIN.to_json())["detectors"]["b"]["evaluations"]["x"]["aupr_in"] is None
    endless = DetectorComparison({"x": evaluation(0.5, 0.75, threshold=-math.inf)})
    json.loads(replace(PLAIN, detectors={"a": endless}).to_json(), parse_constant=pytest.fail)


def test_the_best_are_all_that_show_the_best_number() -> None:
    assert SMALL.best("fpr", "svhn") == ("gem",)
    assert SMALL.best("auroc", "svhn") == ("gem", "msp")  # 95.000 and 95.001 both show 95.00
    assert SMALL.best("auroc") == SMALL.best("auroc", "mean") == ("gem",)
    assert PLAIN.best("aupr_in", "x") == ("a",)
    nothing = DetectorComparison({"x": evaluation(math.nan, math.nan, math.nan)})
    assert replace(PLAIN, detectors={"a": nothing, "b": nothing}).best("fpr", "x") == ()


def test_rows_keep_their_order_unless_they_are_sorted() -> None:
    last = DetectorComparison({"svhn": evaluation(math.nan, math.nan), "far": evaluation(0.0, 1.0)})
    three = replace(SMALL, detectors={"none": last, "msp": MSP, "gem": GEM, "gem again": GEM})
    assert three.ranking() == ("gem", "gem again", "msp", "none")
    assert three.ranking("auroc") == ("gem", "gem again", "msp", "none")
    assert three.ranking("aupr_out") == ("none", "msp", "gem", "gem again")

    def order(text: str) -> list[str]:
        return [line.split("  ")[0] for line in text.splitlines()[2:6]]

    assert order(three.to_text(layout="wide")) == ["none", "msp", "gem", "gem again"]
    assert order(three.to_text(layout="wide", sort="fpr")) == ["gem", "gem again", "msp", "none"]
    assert list(json.loads(three.to_json(sort="fpr"))["detectors"]) == list(three.ranking())
    assert three.to_csv(sort="fpr").splitlines()[1].startswith("gem,")
    assert three.to_markdown(layout="wide", sort="fpr").splitlines()[2].startswith("| gem |")


@pytest.mark.parametrize("write", ["to_text", "to_markdown", "to_latex"])
def test_unknown_metrics_and_layouts_are_refused(write: str) -> None:
    with pytest.raises(InputError, match="there is no metric 'f1'; choose among fpr, auroc"):
        getattr(SMALL, write)(metrics=["f1"])
    with pytest.raises(InputError, match="no metric is named; choose among fpr, auroc"):
        getattr(SMALL, write)(metrics=[])
    with pytest.raises(InputError, match="there is no metric 'time'"):
        getattr(SMALL, write)(sort="time")
    with pytest.raises(InputError, match='layout must be "auto", "wide" or "long" but is \'broad\''):
        getattr(SMALL, write)(layout="broad")
    with pytest.raises(InputError, match="there is no set 'cifar'; choose among svhn, far, mean"):
        SMALL.best("fpr", "cifar")
    with pytest.raises(InputError, match="there is no metric 'f1'"):
        GEM.mean("f1")
    with pytest.raises(InputError, match="the metric 'fpr' is named twice; name each once"):
        getattr(SMALL, write)(metrics=["fpr", "auroc", "fpr"])
    assert getattr(SMALL, write)(metrics="auroc") == getattr(SMALL, write)(metrics=["auroc"])


def test_unknown_sets_are_refused_wherever_a_set_is_named() -> None:
    for ask in (lambda: GEM.value("fpr", "zzz"), lambda: GEM.interval("fpr", "zzz"), lambda: GEM.flagged_share("zzz")):
        with pytest.raises(InputError, match="there is no set 'zzz'; choose among svhn, far, mean"):
            ask()
    with pytest.raises(InputError, match="there is no set 'zzz'"):
        MSP.flagged_share("zzz")
