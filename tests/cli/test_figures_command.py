"""`gem-ood figures`: what it prints and writes, run inside this process."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure
from typer.testing import CliRunner, Result

from gem_ood import simulation
from gem_ood.cli import app

NAMES = ["in-and-out", "in-and-out-column", "scores-in-one-dimension", "simulations", "simulations-column"]


@pytest.fixture
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command as it is, on grids of two points and few rows, with blank pictures beside the simulations."""
    real = simulation.run_studies
    sizes: dict[str, Any] = {
        "grids": {"distance": [4.0, 8.0], "dimension": [8, 16], "classes": [2, 4]},
        "n_classes": 2,
        "dimension": 16,
        "n_in": 300,
        "n_out": 300,
    }
    monkeypatch.setattr(simulation, "run_studies", lambda **options: real(**options, **sizes))
    for picture in ("in_and_out", "scores_in_one_dimension"):
        monkeypatch.setattr(f"gem_ood.reports.figures.{picture}", lambda **_: Figure((1.0, 1.0)))


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["figures", *map(str, arguments)])


@pytest.mark.usefixtures("_small")
def test_the_files_are_written_and_named(tmp_path: Path) -> None:
    done = run("--out", tmp_path / "figures", "--runs", 2, "--sampler", "projected")
    assert (done.exit_code, done.stderr) == (0, "")
    expected = [tmp_path / "figures" / f"{name}{suffix}" for name in NAMES for suffix in (".png", ".svg")]
    assert done.stdout.splitlines() == [str(path) for path in expected]
    assert sorted((tmp_path / "figures").iterdir()) == sorted(expected)
    assert all(path.stat().st_size > 10_000 for path in expected[-2:])


def test_options_reach_the_library_and_json_is_one_object(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {}

    def paper_figures(directory: Path, **options: Any) -> list[Path]:
        options.pop("progress")(1, 2)
        given.update(options)
        return [directory / "in-and-out.png"]

    monkeypatch.setattr("gem_ood.reports.paper_figures", paper_figures)
    done = run("--out", tmp_path, "--runs", 2, "--sampler", "projected", "--seed", 5, "--json")
    assert (done.exit_code, done.stderr) == (0, "")
    options = {"runs": 2, "seed": 5, "sampler": "projected"}
    assert given == options
    assert json.loads(done.stdout) == {"files": [str(tmp_path / "in-and-out.png")], **options}


def test_a_file_in_the_directorys_place_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = run("--out", tmp_path / "file")
    assert done.exit_code == 2
    assert done.stderr == f"gem-ood: error: {tmp_path / 'file'} is a file; pass a directory, or a new name for one\n"


def test_without_matplotlib_the_line_has_the_command_that_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    done = run("--out", tmp_path)
    assert done.exit_code == 2
    assert done.stderr.startswith("gem-ood: error: ")
    assert done.stderr.endswith('run pip install "gem-ood[report]"\n')
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("option", "value"), [("--runs", 0), ("--seed", -1), ("--sampler", "half")])
def test_options_out_of_range_are_one_line(option: str, value: object, tmp_path: Path) -> None:
    done = run("--out", tmp_path / "new" / "figures", option, value)
    assert done.exit_code == 2
    assert done.stderr.startswith("gem-ood: error: ")
    assert option.strip("-") in done.stderr
    assert done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_help_has_an_example() -> None:
    assert "gem-ood figures --out figures" in run("--help").stdout
