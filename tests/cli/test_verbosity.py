"""-q and -v: what is left out, what is added, and that results stay the same."""

import json
import re
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from commands import fail
from gem_ood.cli import app


def invoke(*arguments: Any) -> tuple[str, str]:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == 0, result.output
    return result.stdout, result.stderr


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, rng = tmp_path_factory.mktemp("data"), np.random.default_rng(0)
    for name in ("train", "held_out", "test"):
        np.savez(folder / f"{name}.npz", features=rng.normal(size=(300, 3)), labels=np.arange(300) % 2)
    np.savez(folder / "noise.npz", features=5.0 * rng.normal(size=(100, 3)))
    # One column has a cell that is no number, which is worth a warning.
    lines = ["a,b,note", *(f"{x},{y},oops" for x, y in rng.normal(size=(50, 2)))]
    (folder / "noted.csv").write_text("\n".join(lines) + "\n")
    invoke("fit", folder / "train.npz", "--out", folder / "gem.safetensors")
    invoke("calibrate", folder / "gem.safetensors", folder / "held_out.npz")
    return folder


@pytest.mark.parametrize("place", ["before", "after"])
def test_quiet_commands_that_only_confirm_print_nothing(place: str, data: Path, tmp_path: Path) -> None:
    out = tmp_path / "gem.safetensors"
    for command in (
        ("fit", data / "noted.csv", "--out", out),
        ("calibrate", data / "gem.safetensors", data / "held_out.npz", "--out", out),
    ):
        flagged = ("-q", *command) if place == "before" else (*command, "--quiet")
        assert invoke(*flagged) == ("", "")
        assert out.exists()
    assert "warning" in invoke("fit", data / "noted.csv", "--out", out)[1]


def test_quiet_leaves_results_and_drops_the_rest(data: Path, tmp_path: Path) -> None:
    gem, test, noise = data / "gem.safetensors", data / "test.npz", data / "noise.npz"
    dropped = {
        ("score", gem, noise, "--out", tmp_path / "scores.csv"): ["All rows: "],
        ("evaluate", gem, "--id", test, "--ood", noise, "--no-time", "--out", tmp_path / "table.md"): ["Table: "],
        ("info", test): ["Next: ", ""],
        ("verify", "--item", "P12"): ["Where rows are drawn"],
    }
    for command, beginnings in dropped.items():
        loud, quiet = invoke(*command)[0].splitlines(), invoke(*command, "-q")[0].splitlines()
        left = loud[::-1]
        for line in quiet:
            left.remove(line)
        assert len(left) == len(beginnings)
        assert all(line.startswith(beginning) for line, beginning in zip(left, beginnings, strict=True)), left


def test_quiet_drops_notes_of_methods_that_were_left_out(data: Path) -> None:
    rows = ("--train", data / "train.npz", "--id", data / "test.npz", "--ood", f"noise={data / 'noise.npz'}")
    command = ("evaluate", "--methods", "all", *rows, "--no-time", "--metrics", "fpr", "--json")
    loud, quiet = invoke(*command), invoke("--quiet", *command)
    assert json.loads(loud[0])["left_out"] == json.loads(quiet[0])["left_out"] != {}
    assert quiet[1] == ""


def test_a_warning_is_said_once_in_a_command_and_again_in_the_next(data: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "rows.npy", np.random.default_rng(1).normal(size=(99, 2)))
    invoke("fit", tmp_path / "rows.npy", "--out", tmp_path / "gem.safetensors")
    (tmp_path / "noted.csv").write_text((data / "noted.csv").read_text())
    once, other = data / "noted.csv", tmp_path / "noted.csv"
    sets = ("--ood", f"first={once}", "--ood", f"second={once}", "--ood", f"third={other}")
    for _ in range(2):
        _, said = invoke("evaluate", tmp_path / "gem.safetensors", "--id", once, *sets, "--no-time")
        lines = said.splitlines()
        assert all(line.startswith("gem-ood: warning: ") and "'note'" in line for line in lines)
        assert [str(path) in line for path, line in zip((once, other), lines, strict=True)] == [True, True]


def test_rows_that_both_calibrate_and_evaluate_deserve_a_note(data: Path, tmp_path: Path) -> None:
    test, copy, link = data / "test.npz", tmp_path / "copy.npz", tmp_path / "link.npz"
    copy.write_bytes(test.read_bytes())
    link.symlink_to(test)
    command = ("evaluate", data / "gem.safetensors", "--id", test, "--ood", data / "noise.npz", "--no-time", "--json")
    printed, said = invoke(*command, "--calibrate", copy)
    assert said == ""
    noted = "gem-ood: note: --calibrate and --id are one file: what is kept of these rows says nothing about new ones\n"
    for same in (test, data / "." / ".." / data.name / "test.npz", link):
        assert invoke(*command, "--calibrate", same) == (printed, noted)
    assert invoke(*command, "--calibrate", test, "-q") == (printed, "")


def test_errors_are_not_quiet(data: Path) -> None:
    assert "does not exist" in fail("score", data / "gem.safetensors", "missing.npz", "--quiet")


@pytest.mark.parametrize("arguments", [("-q", "-v", "demo"), ("-q", "demo", "-v"), ("demo", "--quiet", "--verbose")])
def test_quiet_and_verbose_contradict_each_other(arguments: tuple[str, ...]) -> None:
    assert "--quiet and --verbose contradict each other; pass one of them" in fail(*arguments)


def test_verbose_tells_files_options_times_and_versions(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "oas.safetensors"
    printed, said = invoke("-v", "fit", data / "noted.csv", "--covariance", "oas", "--out", out)
    assert printed == invoke("fit", data / "noted.csv", "--covariance", "oas", "--out", out)[0]
    lines = said.splitlines()
    assert all(line.startswith("gem-ood: ") for line in lines)
    assert f"numpy {version('numpy')}" in lines[0]
    assert f"gem-ood: opened {data / 'noted.csv'}: csv, rows unknown until read, 2 features (a, b), no labels" in lines
    assert "gem-ood: detector GEM(covariance='oas')" in lines
    for step in ("fitting gem", f"writing {out}", "fit"):
        assert [line for line in lines if re.fullmatch(rf"gem-ood: {re.escape(step)}: \d+\.\d\d s", line)]
    _, said = invoke("score", data / "gem.safetensors", data / "test.npz", "-v")
    assert f"opened {data / 'gem.safetensors'}: detector GEM(), 3 features, threshold -" in said
    assert f"opened {data / 'test.npz'}: npz, 300 rows, 3 features, no labels" in said


def test_json_on_stdout_is_the_same_whatever_is_said(data: Path, tmp_path: Path) -> None:
    for command in (
        ("fit", data / "train.npz", "--out", tmp_path / "x.safetensors"),
        ("score", data / "gem.safetensors", data / "noise.npz"),
        ("info", data / "train.npz"),
        ("evaluate", data / "gem.safetensors", "--id", data / "test.npz", "--ood", data / "noise.npz", "--no-time"),
    ):
        plain, quiet, verbose = (invoke(*command, "--json", *flag) for flag in ((), ("-q",), ("-v",)))
        assert plain[0] == quiet[0] == verbose[0]
        assert (plain[1], quiet[1]) == ("", "")
        assert verbose[1] != ""


def test_a_command_does_not_hear_what_the_one_before_was_asked(data: Path) -> None:
    invoke("-q", "info", data / "train.npz")
    fail("-v", "info", data / "missing.npz", "-q")
    assert "Next: " in invoke("info", data / "train.npz")[0]
