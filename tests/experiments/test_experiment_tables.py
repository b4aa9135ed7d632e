"""An experiment's tables in every format: each says the same numbers, and is whole in its own grammar."""

import csv
import io
import json
import re
from dataclasses import replace

import pytest
from made_experiments import N_ID, constant, experiment

from gem_ood.comparison import MEAN, METRICS
from gem_ood.experiments import Protocol
from gem_ood.experiments.paper_numbers import PAPER_METRICS

#: Names that every format has to escape in its own way.
ODD_NAMES = ("a|b", "x_y", "$5 & <b>", "日本", "50 %\n{x}", "[*]", "\\end", "-- ~^#")


def shown(result, method, ood):
    """Return the cells that a row of numbers must have, computed anew."""
    cells = []
    for metric in PAPER_METRICS:
        value, spread = 100 * result.value(method, metric, ood), 100 * result.spread(method, metric, ood)
        cells.append(f"{value:.2f} ±{spread:.2f}" if spread and is_drawn(result, ood) else f"{value:.2f}")
        if result.paper is None:
            continue
        printed, difference = result.printed(method, metric, ood), result.difference(method, metric, ood)
        cells.append("" if printed is None else f"{100 * printed:.2f}")
        if difference is None:
            cells.append("")
        else:
            size = f"{abs(100 * difference):.2f}"
            sign = "−" if difference < 0 and size != "0.00" else "+"
            limit = 2 * spread / 100 + 0.00005
            mark = "" if not is_drawn(result, ood) else " ≈" if abs(difference) <= limit else " ≠"
            cells.append(f"{sign}{size}{mark}")
    return cells


def is_drawn(result, ood):
    """Return whether a set, or each of those that are averaged, has more rows than a draw takes, and several draws."""
    sets = result.averaged if ood == MEAN else [ood]
    protocol = result.protocol
    return protocol.share is not None and protocol.n_draws > 1 and all(result.n_ood[name] > N_ID // 5 for name in sets)


def error_cells(result):
    if result.id_error is None:
        return []
    cells = [f"{100 * result.id_error:.2f}"]
    return cells if result.paper is None else [*cells, f"{result.paper.id_error:.2f}", "+0.00 ≈"]


TITLES = {"textures": "Textures", "svhn": "SVHN", "places365": "Places365", "lsun-c": "LSUN-Crop"}
TITLES |= {"lsun-r": "LSUN-Resize", "isun": "iSUN"}


def expected_rows(result):
    """Return the names and numbers of every row of the main table, and of the table of each set."""
    main = [[method, *shown(result, method, MEAN), *error_cells(result)] for method in result.methods]
    if len(result.n_ood) == 1:
        return main, []
    sets = [
        [TITLES.get(ood, ood), method, *shown(result, method, ood)] for ood in result.n_ood for method in result.methods
    ]
    return main, sets


def one_line(name):
    return name.replace("\n", " ")


def from_markdown(text):
    """Return the cells of each table of Markdown, unescaped."""
    tables, rows = [], []
    for line in text.splitlines():
        if line.startswith("|"):
            cells = [cell.strip() for cell in re.split(r"(?<!\\)(?:\\\\)*\|", line)[1:-1]]
            cells = [re.sub(r"\\(.)", r"\1", cell) for cell in cells]
            cells = [cell.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&") for cell in cells]
            rows.append(cells)
        elif rows:
            tables.append(rows[2:])
            rows = []
    return tables


LATEX_SIGNS = {r"$\pm$": "±", r"$\approx$": "≈", r"$\neq$": "≠", "$-$": "−", r"\textbackslash{}": "\\"}
LATEX_SIGNS |= {r"\textasciitilde{}": "~", r"\textasciicircum{}": "^", r"\textless{}": "<", r"\textgreater{}": ">"}
LATEX_SIGNS |= {r"\textbar{}": "|", "{[}": "[", "{*}": "*", "-{}": "-"}
LATEX_SIGNS |= {rf"\{sign}": sign for sign in "&%$#_{}"}


def from_latex(text):
    """Return the cells of each tabular, unescaped, with the name of a set on each of its rows."""
    pattern = re.compile("|".join(map(re.escape, sorted(LATEX_SIGNS, key=len, reverse=True))))
    tables = []
    for body in re.findall(r"\\begin\{tabular\}.*?\n(.*?)\\end\{tabular\}", text, flags=re.DOTALL):
        rows, is_number = [], False
        for line in body.splitlines():
            is_number |= line == r"\midrule"
            if not is_number or line.startswith((r"\midrule", r"\bottomrule")):
                continue
            cells = re.split(r" ?(?<!\\)& ?", line.removesuffix(r" \\"))
            cells = [pattern.sub(lambda match: LATEX_SIGNS[match[0]], cell).strip() for cell in cells]
            rows.append([cells[0] or rows[-1][0], *cells[1:]])
        tables.append(rows)
    return tables


VARIANTS = {
    "the paper's": experiment(),
    "few sets and others": experiment(
        ("svhn", "noise", "textures"), n_ood={"svhn": 30, "noise": 4000, "textures": 900}
    ),
    "one set": experiment(("svhn",)),
    "whole": experiment(protocol=Protocol.whole()),
    "one draw": experiment(n_draws=1),
    "no paper": experiment(paper=None),
    "no labels": experiment(id_error=None),
    "odd names": experiment(ODD_NAMES, paper=None),
    "odd names beside the paper": experiment((*ODD_NAMES, "isun")),
    "another method": experiment(methods=("knn", "gem")),
}


@pytest.fixture(params=VARIANTS)
def variant(request):
    return VARIANTS[request.param]


def test_markdown_says_every_number(variant):
    found = from_markdown(variant.to_markdown() + "\n")
    expected = [[[one_line(cell) for cell in row] for row in rows] for rows in expected_rows(variant) if rows]
    assert found == expected


def test_latex_says_every_number(variant):
    found = from_latex(variant.to_latex())
    expected = [[[one_line(cell) for cell in row] for row in rows] for rows in expected_rows(variant) if rows]
    assert found == expected


def test_text_says_every_number(variant):
    lines = str(variant).splitlines()
    for rows in expected_rows(variant):
        for row in rows:
            words = one_line(" ".join(row)).split()
            assert [line for line in lines if line.split() == words], row


def test_latex_braces_balance_and_rows_have_the_cells_of_the_header(variant):
    text = variant.to_latex()
    lines = [line for line in text.splitlines() if not line.startswith("%")]
    bare = re.sub(r"\\[{}]", "", "\n".join(lines))
    assert bare.count("{") == bare.count("}")
    assert bare.replace(r"\$", "").count("$") % 2 == 0
    for header, body in re.findall(r"\\begin\{tabular\}\{([lr]+)\}(.*?)\\end\{tabular\}", text, flags=re.DOTALL):
        for line in body.splitlines():
            if not line.endswith(r" \\"):
                continue
            spans = [int(span) for span in re.findall(r"\\multicolumn\{(\d+)\}", line)]
            n_cells = len(re.findall(r"(?<!\\)&", line)) + 1 + sum(spans) - len(spans)
            assert n_cells == len(header), line


def test_every_markdown_row_has_the_cells_of_the_header(variant):
    blocks = [block.splitlines() for block in re.findall(r"(?:^\|.*\n)+", variant.to_markdown(), flags=re.MULTILINE)]
    assert len(blocks) == (2 if len(variant.n_ood) > 1 else 1)
    for block in blocks:
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in block}) == 1


def test_csv_reads_back_as_the_same_numbers(variant):
    records = list(csv.DictReader(io.StringIO(variant.to_csv())))
    assert len(records) == len(variant.methods) * (len(variant.n_ood) + 1) * len(METRICS)
    for record in records:
        cell = record["method"], record["metric"], record["set"]
        assert float(record["value"]) == variant.value(*cell)
        assert record["spread"] == (str(variant.spread(*cell)) if is_drawn(variant, cell[2]) else "")
        assert as_number(record["paper"]) == variant.printed(*cell)
        assert as_number(record["difference"]) == variant.difference(*cell)
        assert (record["verdict"] or None) == variant.verdict(*cell)
        assert int(record["n_id"]) == N_ID
        assert record["n_drawn"] == ("" if cell[2] == MEAN else str(variant.n_drawn(cell[2])))


def as_number(text):
    return float(text) if text else None


def refuse_constant(name):
    raise AssertionError(f"{name} is no JSON")


def test_json_reads_back_as_the_same_numbers(variant):
    read = json.loads(variant.to_json(), parse_constant=refuse_constant)
    assert read["name"] == "cifar10"
    assert read["n_ood"] == dict(variant.n_ood)
    assert read["averaged"] == list(variant.averaged)
    assert read["id_error"] == variant.id_error
    assert read["id_error_verdict"] == variant.error_verdict()
    assert read["protocol"] == {
        "n_draws": variant.protocol.n_draws,
        "share": variant.protocol.share,
        "tpr": 0.95,
        "seed": 0,
    }
    for method in variant.methods:
        assert set(read["methods"][method]) == {*variant.n_ood, MEAN}
        for ood, metrics in read["methods"][method].items():
            for metric, entry in metrics.items():
                cell = method, metric, ood
                assert entry["value"] == variant.value(*cell)
                assert entry["spread"] == (variant.spread(*cell) if is_drawn(variant, cell[2]) else None)
                assert entry["paper"] == variant.printed(*cell)
                assert entry["difference"] == variant.difference(*cell)
                assert entry["verdict"] == variant.verdict(*cell)
                if ood != MEAN:
                    assert entry["draws"] == variant.draws[method][ood].values[metric].tolist()


def test_the_name_of_the_set_is_escaped_in_titles_and_stays_one_line():
    result = replace(experiment(("svhn",), paper=None), name="a|b*c*\n\\input{x}")
    assert result.to_markdown().splitlines()[0].startswith(r"**a\|b\*c\* \\input{x} in-distribution")
    assert result.to_latex().splitlines()[0].startswith("% a|b*c* \\input{x} in-distribution")
    assert str(result).splitlines()[0].startswith("a|b*c* \\input{x} in-distribution")


def test_numbers_that_round_to_nothing_have_no_minus():
    assert "+0.00 ≈" in str(constant([0.13419999, 0.13419999]))
    assert "−0.00" not in str(constant([0.13419999, 0.13419999]))
