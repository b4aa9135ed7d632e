"""`gem-ood simulate`: what it prints and writes, and what it refuses. The studies are real, only smaller."""

import csv
import io
import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from gem_ood import simulation
from gem_ood.cli import app
from gem_ood.cli.simulate import simulate as command

GRIDS = {"distance": [2, 8], "dimension": [30, 60], "classes": [3, 6]}


@pytest.fixture(autouse=True)
def small_studies(monkeypatch: pytest.MonkeyPatch) -> None:
    full_size = simulation.run_studies
    sizes: dict[str, Any] = {"dimension": 40, "distance": 4.0, "n_in": 400, "n_out": 400}

    def smaller(names: Iterable[str], **options: Any) -> list[simulation.Study]:
        return full_size(names, **options, **sizes, grids=GRIDS, n_classes=(3, 6))

    monkeypatch.setattr(simulation, "run_studies", smaller)


def run(*arguments: Any) -> str:
    result = CliRunner().invoke(app, ["simulate", *map(str, arguments)])
    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    return result.stdout


def fail(*arguments: Any) -> str:
    result = CliRunner().invoke(app, ["simulate", *map(str, arguments)])
    assert result.exit_code == 2
    assert result.stderr.startswith("gem-ood: error: ")
    assert result.stderr.count("\n") == 1
    assert result.stdout == ""
    return result.stderr


def test_help_has_an_example() -> None:
    assert "Examples:\n  gem-ood simulate distance" in run("--help")


def test_a_study_is_a_table_under_its_protocol() -> None:
    lines = run("distance", "--runs", 3, "--seed", 2).splitlines()
    assert "400 in-distribution and 400 out-of-distribution rows" in lines[0]
    assert "runs 3, seed 2" in lines[0]
    assert lines[1 : 1 + len(simulation.PROTOCOL)] == [f"- {line}" for line in simulation.PROTOCOL]
    header = next(place for place, line in enumerate(lines) if line.startswith("r "))
    assert lines[header].split() == ["r", "k", "GEM", "predicted", "Mahalanobis", "MSP", "f'-energy"]
    study = simulation.run_studies(["distance"], runs=3, seed=2)[0]
    for line, point in zip(lines[header + 1 :], study.points, strict=True):
        value, classes, mean, _, spread, predicted, *others = line.split()
        assert (float(value), int(classes)) == (point.value, point.setting.n_classes)
        numbers = (point.mean(), point.spread(), point.predicted["gem"])
        assert [mean, spread, predicted] == [f"{100 * number:.2f}" for number in numbers]
        assert others == [f"{100 * point.mean(score):.2f}" for score in ("mahalanobis", "msp", "linear-energy")]


def test_all_is_the_three_studies_in_one_json_object() -> None:
    output = run("all", "--runs", 2, "--sampler", "projected", "--json")
    assert output.count("\n") == 1
    found = json.loads(output)["studies"]
    assert [study["study"] for study in found] == ["distance", "dimension", "classes"]
    assert {study["sampler"] for study in found} == {"projected"}
    assert found[2]["curves"][0]["points"][1]["setting"]["n_classes"] == 6


def test_a_single_run_shows_no_spread() -> None:
    lines = run("classes", "--runs", 1).splitlines()
    assert len([line for line in lines[1:] if "±" in line]) == 0
    assert len([line for line in run("classes", "--runs", 2).splitlines()[1:] if "±" in line]) == len(GRIDS["classes"])


def test_nothing_is_said_of_r_outside_the_line_on_the_distance_study() -> None:
    lines = [line for line in run("classes", "--runs", 1).splitlines() if "r = 1" in line]
    assert len(lines) == 1
    assert "in the distance study" in lines[0]


def test_the_same_seed_prints_the_same_numbers_and_another_others() -> None:
    assert run("classes", "--seed", 1) == run("classes", "--seed", 1)
    assert run("classes", "--seed", 1) != run("classes", "--seed", 2).replace("seed 2", "seed 1")


def test_every_run_is_written_to_a_table(tmp_path: Path) -> None:
    out = tmp_path / "runs.csv"
    assert f"Every run: {out}" in run("all", "--runs", 2, "--out", out)
    with out.open(newline="") as file:
        rows = list(csv.DictReader(file))
    drawn = "study,varied,value,n_classes,dimension,distance,sigma,n_in,n_out,sampler,seed,tpr"
    assert ",".join(rows[0]) == f"{drawn},score,run,fpr,predicted"
    how = {name: rows[0][name] for name in ("sigma", "n_in", "n_out", "sampler", "seed", "tpr")}
    assert how == {"sigma": "1.0", "n_in": "400", "n_out": "400", "sampler": "full", "seed": "0", "tpr": "0.95"}
    assert len(rows) == (4 + 4 + 2) * 4 * 2
    study = simulation.run_studies(["dimension"], runs=2)[0]
    written = [float(row["fpr"]) for row in rows if row["study"] == "dimension" and row["score"] == "msp"]
    np.testing.assert_array_equal(written, np.concatenate([point.rates["msp"] for point in study.points]))


def test_everything_is_written_as_json(tmp_path: Path) -> None:
    out = tmp_path / "study.json"
    run("classes", "--runs", 2, "--out", out)
    assert json.loads(out.read_text()) == {"studies": [simulation.run_studies(["classes"], runs=2)[0].as_dict()]}
    assert [path.name for path in tmp_path.iterdir()] == ["study.json"]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("patience", "is_shown"), [(-1.0, True), (600.0, False)])
def test_long_work_on_a_terminal_shows_one_bar_of_all_rows(
    patience: float, is_shown: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = Terminal()
    monkeypatch.setattr("gem_ood.progress.PATIENCE_SECONDS", patience)
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    command("all", runs=2, sampler="projected")
    # Ten settings, two runs of each, 800 rows a run.
    assert ("studies" in terminal.getvalue()) == is_shown
    assert ("/16k rows" in terminal.getvalue()) == is_shown


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["depth"], "'depth' is not one of"),
        ([], "Missing argument 'STUDY'"),
        (["all", "--runs", 0], "runs is 0; pass a whole number of at least 1"),
        (["all", "--seed", -1], "seed is -1; pass a whole number of at least 0"),
        (["all", "--sampler", "half"], "'half' is not one of"),
        (["all", "--out", "study.xlsx"], "study.xlsx has the suffix '.xlsx' but .json"),
        (["all", "--out", "missing/study.csv"], "the directory missing does not exist"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_two(arguments: list[Any], message: str) -> None:
    assert message in fail(*arguments)
