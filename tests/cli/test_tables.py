"""Tables on the command line: which columns are used, and which files are never written over."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file
from typer.testing import CliRunner

from gem_ood.cli import app

rng = np.random.default_rng(0)
ROWS = rng.normal(size=(200, 3)) * [1.0, 10.0, 100.0]


def invoke(*arguments: Any) -> Any:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def run(*arguments: Any) -> dict[str, Any]:
    result = invoke(*arguments, "--json")
    assert (result.exit_code, result.stderr) == (0, ""), result.output
    return dict(json.loads(result.stdout))


def fail(*arguments: Any) -> str:
    result = invoke(*arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.count("\n") == 1
    return str(result.stderr)


def write(path: Path, names: str, *, rows: Any = ROWS, extra: str = "") -> Path:
    places = ["abc".index(name) for name in names]
    lines = [",".join([*names, *(["note"] if extra else [])])]
    lines += [",".join([*(repr(float(row[place])) for place in places), *([extra] if extra else [])]) for row in rows]
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture
def fitted(tmp_path: Path) -> Path:
    out = tmp_path / "gem.safetensors"
    result = run("fit", write(tmp_path / "train.csv", "abc"), "--out", out)
    assert (result["features"], result["left_out"]) == (["a", "b", "c"], [])
    return out


def test_reordered_columns_and_further_ones_score_the_same(fitted: Path, tmp_path: Path) -> None:
    other = write(tmp_path / "other.csv", "cab", extra="hello")
    np.save(tmp_path / "plain.npy", ROWS)
    expected = run("score", fitted, tmp_path / "train.csv")["score_quantiles"]
    for rows in (other, tmp_path / "plain.npy"):
        assert run("score", fitted, rows)["score_quantiles"] == pytest.approx(expected, rel=1e-9)
    ready = tmp_path / "ready.safetensors"
    thresholds = [
        run("calibrate", fitted, rows, "--out", ready)["threshold"] for rows in (tmp_path / "train.csv", other)
    ]
    assert thresholds[0] == pytest.approx(thresholds[1], rel=1e-9)
    noise = write(tmp_path / "noise.csv", "bca", rows=5.0 * ROWS)
    result = run("evaluate", fitted, ready, "--id", other, "--ood", f"noise={noise}")
    assert result["detectors"]["ready"]["evaluations"]["noise"]["auroc"] > 0.8


def test_renamed_columns_are_one_error_unless_they_are_named(fitted: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.csv"
    other.write_text((tmp_path / "train.csv").read_text().replace("a,b,c", "x,b,c"))
    noise = f"noise={tmp_path / 'train.csv'}"
    for command in (("score", fitted, other), ("evaluate", fitted, "--id", other, "--ood", noise)):
        error = fail(*command)
        assert (
            "other.csv has no column 'a', but the detector was fitted on 'a', 'b', 'c'; it has 'x', 'b', 'c'" in error
        )
        assert "with --features" in error
    expected = run("score", fitted, tmp_path / "train.csv")["score_quantiles"]
    assert run("score", fitted, other, "--features", "x,b,c")["score_quantiles"] == expected


def test_detectors_of_different_columns_are_one_error(fitted: Path, tmp_path: Path) -> None:
    train = tmp_path / "train.csv"
    run("fit", train, "--out", tmp_path / "two.safetensors", "--features", "a,b")
    error = fail("evaluate", fitted, tmp_path / "two.safetensors", "--id", train, "--ood", f"same={train}")
    assert "evaluate it on its own, or list the columns with --features" in error


def test_a_bad_cell_is_a_warning_that_names_its_column(tmp_path: Path) -> None:
    train = write(tmp_path / "train.csv", "abc")
    train.write_text(train.read_text().rsplit(",", 1)[0] + ",oops\n")
    out = tmp_path / "gem.safetensors"
    result = invoke("fit", train, "--out", out, "--json")
    assert result.exit_code == 0
    assert result.stderr.startswith(f"gem-ood: warning: {train}: left out of the features")
    assert result.stderr.endswith("'c'; mend them, or list the columns to use with --features\n")
    assert result.stderr.count("\n") == 1
    printed = json.loads(result.stdout)
    assert (printed["features"], printed["left_out"]) == (["a", "b"], ["c"])
    assert "2 columns as features: a, b\n" in invoke("fit", train, "--out", out).stdout


def test_many_columns_are_not_all_printed(tmp_path: Path) -> None:
    train = tmp_path / "train.csv"
    names = [f"f{place}" for place in range(30)]
    np.savetxt(train, rng.normal(size=(99, 30)), delimiter=",", header=",".join(names), comments="")
    output = invoke("fit", train, "--out", tmp_path / "gem.safetensors").stdout
    assert f"30 columns as features: {', '.join(names[:10])}, ...\n" in output


def test_a_label_among_the_features_is_one_error(tmp_path: Path) -> None:
    train, out = tmp_path / "train.csv", tmp_path / "gem.safetensors"
    train.write_text("a,label\n" + "".join(f"{row},{row % 2}\n" for row in range(50)))
    error = fail("fit", train, "--features", "a,label", "--out", out)
    assert "column 'label' would be both a feature and the labels; leave it out of --features" in error
    assert run("fit", train, "--features", "a,label", "--no-labels", "--out", out)["features"] == ["a", "label"]


def test_no_command_writes_over_its_rows(fitted: Path, tmp_path: Path) -> None:
    rows, head = tmp_path / "f.safetensors", tmp_path / "head.safetensors"
    save_file({"features": ROWS}, rows)
    save_file({"weight": np.eye(3)}, head)
    before = {path: path.read_bytes() for path in (rows, head, fitted)}
    for command in (
        ("fit", rows, "--out", rows),
        ("fit", rows, "--method", "energy", "--head", head, "--out", head),
        ("calibrate", fitted, rows, "--out", rows),
    ):
        assert "which is also read; name another file" in fail(*command)
    assert {path: path.read_bytes() for path in before} == before
    run("calibrate", fitted, rows, "--out", fitted)
