"""The paper's numbers: those of its own text, and consistent with each other."""

import os
import re
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest

from gem_ood.experiments import PAPER, PAPER_METHODS, PAPER_SETS
from gem_ood.experiments.paper_numbers import PAPER_METRICS

#: As in conftest.py: where the real data is; the paper's text lies beside it.
DATA = Path(os.environ.get("GEM_OOD_DATA", Path(__file__).parents[3] / "shared" / "data"))

#: How the paper's tables begin a row, and whose it is.
ROW_NAMES = {
    "Softmax": "msp",
    "Energy": "energy",
    "ODIN": "odin",
    "Mahalanobis": "mahalanobis",
    "GEM": "gem",
}
BLOCK_NAMES = {
    "CIFAR-10": "cifar10",
    "CIFAR-100": "cifar100",
    "Texture": "textures",
    "SVHN": "svhn",
    "Places365": "places365",
    "LSUN-C": "lsun-c",
    "LSUN Resize": "lsun-r",
    "iSUN": "isun",
}


@pytest.fixture(scope="module")
def printed():
    """The numbers of each table in the paper's LaTeX, by label, block and method."""
    folder = DATA.parent / "paper"
    texts = [path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.txt"))] if folder.is_dir() else []
    if not texts:
        pytest.skip(f"the text of the paper is not in {folder}; set GEM_OOD_DATA to the folder beside it")
    tables = re.findall(r"\\begin\{table\*\}.*?\\end\{table\*\}", "\n".join(texts), flags=re.DOTALL)
    return {re.search(r"\\label\{tab:(.*?)\}", table)[1]: dict(blocks_of(table)) for table in tables}


def blocks_of(table):
    for block in table.split(r"\multirow{")[1:]:
        title = re.search(r"\\textbf\{([^{}]*)\}", block)
        if title is None or title[1].strip() not in BLOCK_NAMES:
            continue
        rows = {}
        for row in block.split(r"\\"):
            name = re.search("|".join(ROW_NAMES), row)
            numbers = re.findall(r"&\s*([0-9]+\.[0-9]+)\s*(?=&|$)", row.strip() + " ")
            if name is not None and numbers:
                rows[ROW_NAMES[name[0]]] = tuple(map(Decimal, numbers))
        yield BLOCK_NAMES[title[1].strip()], rows


def as_decimals(numbers):
    return tuple(Decimal(f"{number:.2f}") for number in numbers)


def test_the_main_table_is_the_papers(printed):
    blocks = printed["main-results"]
    assert set(blocks) == set(PAPER)
    for name, table in PAPER.items():
        expected = {
            method: (*as_decimals(numbers), Decimal(str(table.id_error))) for method, numbers in table.main.items()
        }
        assert expected == blocks[name]


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_the_tables_of_each_set_are_the_papers(printed, name):
    blocks = printed[f"{name}-results"]
    assert set(blocks) == set(PAPER[name].sets)
    for ood, rows in PAPER[name].sets.items():
        assert {method: as_decimals(numbers) for method, numbers in rows.items()} == blocks[ood]


#: Where the main table is not the mean of the others to two decimals, and what that mean is.
DEVIATIONS = {("cifar10", "msp", "auroc"): 90.9067, ("cifar100", "gem", "auroc"): 82.6567}


@pytest.mark.parametrize("name", PAPER)
@pytest.mark.parametrize("method", PAPER_METHODS)
@pytest.mark.parametrize("metric", PAPER_METRICS)
def test_the_main_table_is_the_mean_over_the_sets(name, method, metric):
    table, place = PAPER[name], PAPER_METRICS.index(metric)
    mean = sum(table.sets[ood][method][place] for ood in PAPER_SETS) / 6
    if (name, method, metric) in DEVIATIONS:
        assert mean == pytest.approx(DEVIATIONS[name, method, metric], abs=1e-4)
        assert abs(mean - table.main[method][place]) > 0.0051
    else:
        assert mean == pytest.approx(table.main[method][place], abs=0.0051)


def test_gem_lies_under_energy_by_the_number_that_the_paper_stresses():
    energy, gem = (PAPER["cifar100"].value(method, "fpr") for method in ("energy", "gem"))
    assert round(100 * (energy - gem), 2) == 16.57


def test_every_number_is_asked_for_by_method_metric_and_set():
    for table in PAPER.values():
        for ood in PAPER_SETS:
            for method in PAPER_METHODS:
                found = [table.value(method, metric, ood) for metric in PAPER_METRICS]
                np.testing.assert_allclose(found, np.array(table.sets[ood][method]) / 100, rtol=0, atol=1e-9)


@pytest.mark.parametrize("wanted", [("knn", "fpr", "svhn"), ("gem", "aupr_out", "svhn"), ("gem", "fpr", "places")])
def test_what_the_paper_does_not_print_is_none(wanted):
    assert PAPER["cifar10"].value(*wanted) is None


def test_the_mean_over_all_six_sets_is_the_printed_one():
    assert PAPER["cifar100"].mean("gem", "auroc", PAPER_SETS[::-1]) == 0.8267


def test_the_mean_over_some_sets_is_that_of_their_numbers():
    found = PAPER["cifar10"].mean("gem", "fpr", ("textures", "svhn"))
    assert found == pytest.approx((0.1506 + 0.1342) / 2, abs=1e-12)


def test_the_mean_over_a_set_that_the_paper_lacks_is_none():
    assert PAPER["cifar10"].mean("gem", "fpr", ("textures", "other")) is None
    assert PAPER["cifar10"].mean("gem", "fpr", ()) is None


@pytest.mark.parametrize("others", [("a", "b", "c", "d", "e", "f"), (*PAPER_SETS[:5], "other")])
def test_six_other_sets_are_not_the_papers_six(others):
    assert PAPER["cifar10"].mean("gem", "fpr", others) is None


def test_a_mean_over_one_set_is_its_own_number():
    for ood in PAPER_SETS:
        assert PAPER["cifar10"].mean("gem", "fpr", (ood,)) == PAPER["cifar10"].value("gem", "fpr", ood)
