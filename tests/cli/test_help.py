"""What --help says: examples that run as they stand, and one word for one thing in every command."""

import contextlib
import shlex
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.main import get_command
from typer.testing import CliRunner

from commands import run
from gem_ood import GEM, Energy, Head, simulation
from gem_ood.cli import app
from gem_ood.cli.helping import examples_of

ROOT: Any = get_command(app)
COMMANDS: dict[str, Any] = {"": ROOT, **ROOT.commands}

#: Examples that take a while; other tests run what is behind them.
LONG = ("gem-ood demo", "gem-ood verify", "gem-ood figures", "gem-ood train", "gem-ood reproduce")

#: Options that take something else in one command: rows elsewhere, a mean or pictures there.
OF_THEIR_OWN = {("--ood", "certify"), ("--ood", "reproduce"), ("--methods", "reproduce")}


def shown(command: str, columns: int = 80) -> str:
    arguments = [*([command] if command else []), "--help"]
    result = CliRunner().invoke(app, arguments, env={"COLUMNS": str(columns)}, terminal_width=columns)
    assert result.exit_code == 0
    return result.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, rng = tmp_path_factory.mktemp("examples"), np.random.default_rng(0)
    means = 3.0 * rng.normal(size=(3, 4))
    for name in ("train", "held_out", "test", "new"):
        labels = rng.integers(0, 3, 600)
        np.savez(folder / f"{name}.npz", features=means[labels] + rng.normal(size=(600, 4)), labels=labels)
    for name in ("noise", "far"):
        np.savez(folder / f"{name}.npz", features=5.0 * rng.normal(size=(100, 4)))
    head = Head(means, -0.5 * (means**2).sum(axis=1))
    np.savez(folder / "head.npz", weight=head.weight, bias=head.bias)
    with np.load(folder / "train.npz") as train:
        GEM().fit(train["features"], train["labels"]).save(folder / "gem.safetensors")
        Energy(head=head).fit(train["features"], train["labels"]).save(folder / "energy.safetensors")
    (folder / "parts").mkdir()
    for place in range(3):
        columns = {"features": list(rng.normal(size=(50, 4))), "label": np.arange(50) % 3}
        pq.write_table(pa.table(columns), folder / "parts" / f"{place}.parquet")
    (folder / "features").mkdir()
    for name in ("train", "test", "ood_svhn"):
        stored = {"features": rng.normal(size=(200, 4)), "labels": np.arange(200) % 10}
        np.savez(folder / "features" / f"{name}.npz", **stored)
    np.savez(folder / "features" / "head.npz", weight=rng.normal(size=(10, 4)), bias=np.zeros(10))
    return folder


@pytest.fixture
def _small_studies(monkeypatch: pytest.MonkeyPatch) -> None:
    """The simulations on grids of two points and few rows."""
    full_size = simulation.run_studies
    grids = {"distance": [4.0, 8.0], "dimension": [8, 16], "classes": [2, 4]}
    sizes: dict[str, Any] = {"n_classes": 2, "dimension": 16, "n_in": 300, "n_out": 300}
    monkeypatch.setattr(
        simulation, "run_studies", lambda *names, **options: full_size(*names, **options, **sizes, grids=grids)
    )


@pytest.mark.parametrize("command", COMMANDS)
def test_help_ends_with_examples_whose_options_exist(command: str) -> None:
    examples = examples_of(COMMANDS[command])
    text = shown(command)
    assert examples
    assert text.rindex("\nExamples:\n") > text.rindex("--help  ")
    assert text.replace("\\\n", " ").split()[-len(examples[-1].split()) :] == examples[-1].split()
    for example in examples:
        program, name, *arguments = shlex.split(example)
        assert program == "gem-ood"
        assert command in ("", name)
        known = {option for parameter in COMMANDS[name].params for option in parameter.opts}
        assert [word for word in arguments if word.startswith("-") and word not in known] == []


@pytest.mark.parametrize("example", [one for command in COMMANDS.values() for one in examples_of(command)])
@pytest.mark.usefixtures("_small_studies")
def test_an_example_runs(example: str, folder: Path) -> None:
    if (example.startswith(LONG) and "--stored" not in example) or "--report" in example:
        pytest.skip("takes long; other tests run what is behind it")
    with contextlib.chdir(folder):
        result = CliRunner().invoke(app, shlex.split(example)[1:])
    assert (result.exit_code, "Traceback" in result.output) == (0, False), result.output


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("columns", [80, 60])
def test_help_fits_the_screen_but_for_examples(command: str, columns: int) -> None:
    text, _, examples = shown(command, columns).partition("\nExamples:\n")
    assert max(map(len, text.splitlines())) <= columns
    assert max(map(len, examples.splitlines())) <= 80


def test_an_option_has_one_metavar_and_one_meaning_everywhere() -> None:
    seen = defaultdict(set)
    for name, command in ROOT.commands.items():
        for parameter in command.params:
            for option in parameter.opts:
                if option.startswith("--"):
                    seen[option].add((parameter.metavar, parameter.help, name))
    for option, uses in seen.items():
        metavars = {metavar and metavar.replace("DIR", "FILE") for metavar, _, _ in uses}
        assert len(metavars) == 1, (option, uses)
        words = {text for _, text, name in uses if (option, name) not in OF_THEIR_OWN}
        is_where_to_write = option in ("--out", "--report")  # each command writes something else
        assert is_where_to_write or len(words) == 1, (option, words)
    assert len(seen["--json"]) == len(seen["--quiet"]) == len(seen["--verbose"]) == len(ROOT.commands)


def test_no_arguments_show_the_help_with_every_command() -> None:
    text = run()
    assert text == shown("")
    for name in ROOT.commands:
        assert f"\n  {name} " in text
