"""An experiment's numbers against naive computations, and its tables in every format against each other."""

import csv
import io
import json
import math
import re
from dataclasses import replace

import numpy as np
import pytest

from gem_ood.comparison import MEAN, METRICS
from gem_ood.errors import InputError
from gem_ood.experiments import PAPER, PAPER_METHODS, PAPER_SETS, Draws, Experiment, Protocol
from gem_ood.experiments.paper_numbers import PAPER_METRICS

N_ID = 1000

#: Names that every format has to escape in its own way.
ODD_NAMES = ("a|b", "x_y", "$5 & <b>", "日本", "50 %\n{x}", "[*]", "\\end", "-- ~^#")


def experiment(sets=PAPER_SETS, *, methods=PAPER_METHODS, n_draws=10, n_ood=5000, paper="cifar10", seed=0, **options):
    """Return an experiment of random metrics on sets of this many rows."""
    rng = np.random.default_rng(seed)
    protocol = options.pop("protocol", Protocol(n_draws=n_draws))
    sizes = dict.fromkeys(sets, n_ood) if isinstance(n_ood, int) else dict(n_ood)
    counts = {ood: len(protocol.rows(ood, n_id=N_ID, n_ood=n_rows)) for ood, n_rows in sizes.items()}
    draws = {
        method: {ood: Draws({metric: rng.random(counts[ood]) for metric in METRICS}) for ood in sets}
        for method in methods
    }
    found = {"id_error": 0.0516, "paper": PAPER[paper] if paper else None, **options}
    return Experiment("cifar10", draws, N_ID, sizes, protocol, **found)


def naive_mean(values):
    return math.fsum(values) / len(values)


def naive_spread(values):
    if len(values) == 1:
        return 0.0
    mean = naive_mean(values)
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))


def close(value):
    return pytest.approx(value, rel=0, abs=1e-13)


# Values


@pytest.mark.parametrize("metric", METRICS)
def test_values_and_spreads_are_those_of_the_draws(metric):
    result = experiment()
    for method in PAPER_METHODS:
        own = {ood: result.draws[method][ood].values[metric].tolist() for ood in PAPER_SETS}
        for ood, values in own.items():
            assert result.value(method, metric, ood) == close(naive_mean(values))
            assert result.spread(method, metric, ood) == close(naive_spread(values))
        assert result.value(method, metric) == close(naive_mean([naive_mean(values) for values in own.values()]))
        variance = math.fsum(naive_spread(values) ** 2 for values in own.values()) / 36
        assert result.spread(method, metric) == close(math.sqrt(variance))


def test_the_spread_of_a_mean_is_what_independent_draws_show():
    rng = np.random.default_rng(1)
    sigmas = dict(zip(PAPER_SETS, (0.01, 0.02, 0.03, 0.04, 0.05, 0.06), strict=True))
    draws = {
        ood: Draws({metric: rng.normal(0.5, sigma, 20_000) for metric in METRICS}) for ood, sigma in sigmas.items()
    }
    result = replace(experiment(methods=("gem",)), draws={"gem": draws})
    means = np.mean([draws[ood].values["fpr"] for ood in PAPER_SETS], axis=0)
    # The estimate of a standard deviation from 20,000 values has a relative error of 0.5 %.
    assert result.spread("gem", "fpr") == pytest.approx(np.std(means, ddof=1), rel=0.03)


def test_differences_are_to_the_printed_numbers():
    result = experiment()
    for method in PAPER_METHODS:
        for place, metric in enumerate(PAPER_METRICS):
            for ood in PAPER_SETS:
                printed = PAPER["cifar10"].sets[ood][method][place] / 100
                assert result.printed(method, metric, ood) == close(printed)
                assert result.difference(method, metric, ood) == close(result.value(method, metric, ood) - printed)
            printed = PAPER["cifar10"].main[method][place] / 100
            assert result.printed(method, metric) == close(printed)
            assert result.difference(method, metric) == close(result.value(method, metric) - printed)


def constant(values, **options):
    """Return GEM on SVHN with these draws of every metric."""
    draws = {"gem": {"svhn": Draws({metric: np.array(values) for metric in METRICS})}}
    return replace(experiment(("svhn",), methods=("gem",), n_draws=len(values), **options), draws=draws)


@pytest.mark.parametrize(
    ("offset", "half_width", "verdict"),
    [
        (0.0, 0.0, "within"),
        (0.00005, 0.0, "within"),  # half of the last printed digit
        (-0.00005, 0.0, "within"),
        (0.00006, 0.0, "beyond"),
        (0.01, 0.005, "within"),
        (-0.01, 0.005, "within"),
        (0.0101, 0.005, "beyond"),
        (-0.0101, 0.005, "beyond"),
    ],
)
def test_a_number_is_within_two_standard_deviations_and_the_rounding(offset, half_width, verdict):
    # Draws at ± w around a centre, as many on either side, have a variance of w² · n / (n − 1).
    width = half_width * math.sqrt(9 / 10)
    values = [0.1342 + offset + sign * width for sign in (-1, 1)] * 5
    result = constant(values)
    assert result.spread("gem", "fpr", "svhn") == pytest.approx(half_width, abs=1e-12)
    assert result.verdict("gem", "fpr", "svhn") == verdict
    assert result.verdict("gem", "fpr") == verdict


def test_the_mean_over_fewer_sets_is_compared_with_the_papers_numbers_for_these():
    result = experiment(("svhn", "textures"))
    assert result.averaged == ("svhn", "textures")
    expected = (PAPER["cifar10"].sets["svhn"]["gem"][0] + PAPER["cifar10"].sets["textures"]["gem"][0]) / 200
    assert result.printed("gem", "fpr") == close(expected)
    assert "The paper's column is the mean of its numbers for the same sets: SVHN, Textures" in str(result)


def test_sets_that_the_paper_lacks_are_shown_but_not_averaged():
    result = experiment(("svhn", "noise", "textures"))
    assert result.averaged == ("svhn", "textures")
    assert result.value("gem", "fpr") == close(
        naive_mean([result.value("gem", "fpr", ood) for ood in ("svhn", "textures")])
    )
    assert result.printed("gem", "fpr", "noise") is None
    assert result.difference("gem", "fpr", "noise") is None
    assert result.verdict("gem", "fpr", "noise") is None
    assert "The mean leaves out what the paper does not have: noise" in str(result)


def test_where_the_paper_has_no_set_all_are_averaged_and_nothing_is_compared():
    result = experiment(("noise", "blur"))
    assert result.averaged == ("noise", "blur")
    assert result.printed("gem", "fpr") is None
    assert "The paper's column" not in str(result)
    assert result.n_within() == (1, 1)  # the network's error


def test_methods_that_the_paper_lacks_are_compared_with_nothing():
    result = experiment(methods=("gem", "knn"))
    assert result.printed("knn", "auroc") is None
    assert result.verdict("knn", "auroc", "svhn") is None
    assert result.verdict("gem", "auroc", "svhn") is not None


def test_without_the_paper_nothing_is_compared():
    result = experiment(paper=None)
    assert result.printed("gem", "fpr") is None
    assert result.error_verdict() is None
    assert result.n_within() == (0, 0)
    assert "paper's" not in str(result)


def test_the_aupr_of_whole_sets_is_at_another_ratio_and_has_no_difference():
    result = experiment(protocol=Protocol.whole())
    assert result.printed("gem", "aupr_in", "svhn") == 0.9947
    for ood in (*PAPER_SETS, MEAN):
        assert result.difference("gem", "aupr_in", ood) is None
        assert result.difference("gem", "auroc", ood) is not None
    assert "AUPR depends on the ratio of rows, which is not the paper's five to one for Textures, SVHN" in str(result)


def test_one_set_at_another_ratio_takes_the_difference_of_the_mean_too():
    sizes = {ood: 199 if ood == "svhn" else 5000 for ood in PAPER_SETS}
    result = experiment(n_ood=sizes)
    assert [ood for ood in PAPER_SETS if result.difference("gem", "aupr_in", ood) is None] == ["svhn"]
    assert result.difference("gem", "aupr_in") is None
    assert result.n_drawn("svhn") == 199
    assert result.n_drawn("isun") == 200
    assert "Taken whole, once, as there are too few to draw from: SVHN" in str(result)


def test_a_false_positive_rate_at_another_true_positive_rate_is_not_compared():
    result = experiment(protocol=Protocol(tpr=0.9))
    assert result.printed("gem", "fpr") is None
    assert result.difference("gem", "fpr", "svhn") is None
    assert result.verdict("gem", "auroc", "svhn") is not None
    assert result.gain()[1] is None
    assert "FPR90 ↓" in str(result)
    assert "FPR90 of GEM minus that of Energy" in str(result)
    assert "FPR95" not in str(result)


@pytest.mark.parametrize("tpr", [0.95, np.float32(0.95)])
def test_the_papers_true_positive_rate_may_be_any_kind_of_number(tpr):
    assert experiment(protocol=Protocol(tpr=tpr)).printed("gem", "fpr") == 0.3721


@pytest.mark.parametrize(
    ("error", "verdict"), [(0.0516, "within"), (0.05164, "within"), (0.05166, "beyond"), (None, None)]
)
def test_the_error_of_the_network_is_the_papers_as_rounded_or_not(error, verdict):
    result = experiment(id_error=error)
    assert result.error_verdict() == verdict
    assert ("ID error ↓" in str(result)) == (error is not None)


def test_verdicts_are_counted_over_both_tables():
    result = experiment()
    cells = [
        (method, metric, ood) for method in PAPER_METHODS for metric in PAPER_METRICS for ood in (*PAPER_SETS, MEAN)
    ]
    expected = 1  # the error is the paper's
    for method, metric, ood in cells:
        limit = 2 * result.spread(method, metric, ood) + 0.00005
        expected += abs(result.value(method, metric, ood) - result.printed(method, metric, ood)) <= limit
    assert result.n_within() == (expected, len(cells) + 1)
    assert f"Within the spread of draws: {expected} of {len(cells) + 1} numbers" in str(result)


def test_the_numbers_of_a_single_set_are_counted_once():
    assert constant([0.1342]).n_within()[1] == 3 + 1


def test_the_gain_is_energy_minus_gem():
    result = experiment(paper="cifar100")
    own, printed = result.gain()
    assert own == close(result.value("energy", "fpr") - result.value("gem", "fpr"))
    assert printed == close(0.1657)
    assert "−16.57 in the paper" in str(result)
    assert experiment(methods=("gem", "msp")).gain() is None
    assert experiment(paper=None).gain()[1] is None


def test_what_is_not_there_is_refused_by_name():
    result = experiment(("svhn", "isun"), methods=("gem",))
    for ask in (result.value, result.spread, result.printed, result.difference, result.verdict):
        with pytest.raises(InputError, match="there is no method 'knn'; choose among gem"):
            ask("knn", "fpr")
        with pytest.raises(InputError, match="there is no metric 'fpr95'; choose among fpr, auroc"):
            ask("gem", "fpr95")
        with pytest.raises(InputError, match="there is no set 'textures'; choose among svhn, isun, mean"):
            ask("gem", "fpr", "textures")
    with pytest.raises(InputError, match="there is no set 'far'"):
        result.n_drawn("far")
    with pytest.raises(InputError, match="there is no set 'far'"):
        replace(result, paper=None).printed("gem", "fpr", "far")


# Formats


def shown(result, method, ood):
    """Return the cells that a row of numbers must have, computed anew."""
    cells = []
    for metric in PAPER_METRICS:
        value, spread = 100 * result.value(method, metric, ood), 100 * result.spread(method, metric, ood)
        cells.append(f"{value:.2f} ±{spread:.2f}" if spread else f"{value:.2f}")
        if result.paper is None:
            continue
        printed, difference = result.printed(method, metric, ood), result.difference(method, metric, ood)
        cells.append("" if printed is None else f"{100 * printed:.2f}")
        if difference is None:
            cells.append("")
        else:
            size = f"{abs(100 * difference):.2f}"
            sign = "−" if difference < 0 and size != "0.00" else "+"
            mark = {"within": "≈", "beyond": "≠"}[result.verdict(method, metric, ood)]
            cells.append(f"{sign}{size} {mark}")
    return cells


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
            cells = [pattern.sub(lambda match: LATEX_SIGNS[match[0]], cell) for cell in cells]
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
        assert float(record["spread"]) == variant.spread(*cell)
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
                assert entry["spread"] == variant.spread(*cell)
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
    assert "+0.00 ≈" in str(constant([0.13419999]))
    assert "−0.00" not in str(constant([0.13419999]))
