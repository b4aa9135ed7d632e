"""Any table renders: the signs of the experiments' tables, a best value, a value that is not there, a title."""

import pytest

from gem_ood.comparison.rendering import latex_of, markdown_of, text_of
from gem_ood.comparison.tables import Cell, Column, Table


def table(*cells: Cell, notes: tuple[str, ...] = (), has_best: bool = False) -> Table:
    columns = (Column("method"), *(Column("here", "FPR95 ↓") for _ in cells))
    return Table(columns, (((Cell("gem"), *cells),),), 1, has_best, notes)


def last_row(latex: str) -> str:
    return latex.splitlines()[-3].removesuffix(r" \\")


@pytest.mark.parametrize(
    ("text", "latex"),
    [
        ("12.34 ±0.50", r"12.34 $\pm$0.50"),
        ("+0.10 ≈", r"+0.10 $\approx$"),
        ("−1.25 ≠", r"$-$1.25 $\neq$"),
        ("-", "--"),
        ("", ""),
        ("50 %", r"50 \%"),
    ],
)
def test_signs_become_latex(text, latex):
    assert last_row(latex_of(table(Cell(text)))) == f"gem & {latex}"


def test_the_best_value_is_bold_or_starred():
    best = table(Cell("1.00 ±0.10", is_best=True), Cell("2.00"), has_best=True)
    assert last_row(latex_of(best)) == r"gem & \textbf{1.00 $\pm$0.10} & 2.00"
    assert "| gem | **1.00 ±0.10** | 2.00 |" in markdown_of(best)
    assert "1.00 ±0.10*" in text_of(best)
    assert "\x1b[1m1.00 ±0.10\x1b[0m" in text_of(best, ansi=True)


def test_a_value_that_is_not_there_stays_a_hyphen_as_text():
    absent = table(Cell("-"), Cell("1.00"))
    assert text_of(absent).splitlines()[-1].split() == ["gem", "-", "1.00"]
    assert markdown_of(absent).splitlines()[2] == "| gem | - | 1.00 |"


def test_a_title_stands_above_each_format_in_one_line():
    titled = {"title": "a|b_c\n\\end *x*"}
    assert text_of(table(Cell("1")), **titled).splitlines()[0] == "a|b_c \\end *x*"
    assert markdown_of(table(Cell("1")), **titled).splitlines()[:3] == [
        r"**a\|b\_c \\end \*x\***",
        "",
        "| method | FPR95 ↓ here |",
    ]
    assert latex_of(table(Cell("1")), **titled).splitlines()[:2] == ["% a|b_c \\end *x*", r"% \usepackage{booktabs}"]


def test_a_table_without_title_and_notes_has_neither():
    assert text_of(table(Cell("1"))).splitlines() == ["          FPR95 ↓", "method       here", "gem             1"]
    assert markdown_of(table(Cell("1"))) == "| method | FPR95 ↓ here |\n| --- | ---: |\n| gem | 1 |\n"


def test_notes_follow_in_text_and_markdown_and_are_comments_in_latex():
    noted = table(Cell("1"), notes=("first $1", "second\nline"))
    assert text_of(noted).splitlines()[-2:] == ["first $1", "second line"]
    assert markdown_of(noted).splitlines()[-1] == r"first \$1. second line."
    assert [line for line in latex_of(noted).splitlines() if line.startswith("%")][1:] == [
        "% first $1",
        "% second line",
    ]
