"""`gem-ood info`: what it prints of each kind of file, what comes next, and what it refuses."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from safetensors.numpy import save_file
from typer.testing import CliRunner

from commands import fail, run, run_json
from gem_ood import GEM
from gem_ood.cli import app

rng = np.random.default_rng(0)
ROWS = rng.normal(size=(60, 3))
LABELS = np.array(["cat", "dog", "cat"])[np.arange(60) % 3]


def test_a_detector_is_told_with_its_next_command(tmp_path: Path) -> None:
    path = tmp_path / "my gem.safetensors"
    detector = GEM(covariance="oas").fit(ROWS, LABELS)
    detector.save(path)
    output = run("info", path)
    assert output.startswith(f"{path}: a saved detector, ")
    for line in ("  method:      gem\n", "covariance=oas", "  features:    3\n", "  classes:     2: cat, dog\n"):
        assert line in output
    assert output.endswith(f"Next, with rows that the fit has not seen: gem-ood calibrate '{path}' FILE\n")
    detector.calibrate(ROWS).save(path)
    output = run("info", path)
    assert f"  guarantee:   {detector.threshold_.guarantee}\n" in output
    assert f"gem-ood score '{path}' FILE" in output


def test_rows_are_told_with_what_is_wrong_with_them(tmp_path: Path) -> None:
    path = tmp_path / "rows.npz"
    rows = np.column_stack([ROWS, np.zeros(60), np.full(60, 2.0)])
    rows[[7, 9], 0] = np.nan, np.inf
    np.savez(path, features=rows, labels=LABELS)
    output = run("info", path)
    assert "  rows:        60\n" in output
    assert "  labels:      labels, 2 classes\n  class sizes: 20 rows (dog) to 40 rows (cat)\n" in output
    assert "  bad rows:    2 with NaN, infinity or a missing value; the first is row 7, counted from 0\n" in output
    assert "  constant:    2 columns: 3, 4\n  of these 0:  1 column: 3\n" in output
    assert output.endswith("Next: remove or impute the bad rows; no detector takes them\n")
    result = run_json("info", path)
    assert result["kind"] == "rows"
    assert result["rows"]["statistics"]["first_bad_row"] == 7


def test_many_columns_are_not_all_printed_but_all_in_json(tmp_path: Path) -> None:
    path = tmp_path / "wide.csv"
    names = [f"f{place}" for place in range(30)]
    np.savetxt(path, rng.normal(size=(9, 30)), delimiter=",", header=",".join(names), comments="")
    output = run("info", path)
    assert "\n... and 10 more\n" in output
    assert f"30, from {', '.join(names[:10])}, ...\n" in output
    assert [array["name"] for array in run_json("info", path)["arrays"]] == names


def test_a_head_and_other_arrays_are_told_apart_from_rows(tmp_path: Path) -> None:
    head, others = tmp_path / "head.npz", tmp_path / "others.npz"
    np.savez(head, weight=np.eye(3), bias=np.zeros(3), classes=["cat", "dog", "eel"])
    np.savez(others, first=ROWS, second=ROWS)
    assert "a classifier's last layer" in run("info", head)
    assert "  classes:     3: cat, dog, eel\n" in run("info", head)
    assert f"--head {head}\n" in run("info", head)
    output = run("info", others)
    assert "Not read as rows: has no array 'features' and 2 that could be" in output
    assert output.endswith("Name the features with --features where a command reads this file\n")


def test_what_is_no_file_of_ours_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "empty.npz").touch()
    (tmp_path / "damaged.npz").write_bytes(b"PK no archive")
    (tmp_path / "damaged.parquet").write_bytes(b"PAR1 none")
    (tmp_path / "damaged.safetensors").write_bytes(b"none")
    (tmp_path / "picture.png").write_bytes(b"none")
    GEM().fit(ROWS).save(tmp_path / "whole.safetensors")
    (tmp_path / "cut.safetensors").write_bytes((tmp_path / "whole.safetensors").read_bytes()[:-8])
    np.savez(tmp_path / "none.npz")
    words = {
        "empty.npz": "is empty (0 bytes)",
        "damaged.npz": "is damaged",
        "damaged.parquet": "is not a Parquet file",
        "damaged.safetensors": "is not a safetensors file",
        "cut.safetensors": "is not a safetensors file, or is damaged or truncated",
        "picture.png": "has the suffix '.png' but .npz .npy .parquet .csv .safetensors can be read",
        "none.npz": "holds no array",
        "missing.npz": "does not exist; check the path",
        "": "cut.safetensors is no .parquet file, but a directory of rows holds nothing else",
    }
    for name, expected in words.items():
        assert expected in fail("info", tmp_path / name), name
    assert "standard input" in fail("info", "-")


@pytest.mark.parametrize("name", ["zero.csv", "zero.parquet", "zero.npz", "zero.npy", "zero.safetensors"])
def test_a_file_without_rows_says_so_in_every_format(name: str, tmp_path: Path) -> None:
    path, nothing = tmp_path / name, np.zeros((0, 4))
    if name == "zero.csv":
        path.write_text("a,b,label\n")
    elif name == "zero.parquet":
        pq.write_table(pa.table({"a": nothing[:, 0], "b": nothing[:, 1]}), path)
    elif name == "zero.npy":
        np.save(path, nothing)
    elif name == "zero.npz":
        np.savez(path, features=nothing)
    else:
        save_file({"features": nothing}, path)
    output = run("info", path)
    assert "\nNot read as rows: holds no rows; pass a file with at least one\n" in output
    for words in ("finite", "Next: ", "--features", "classes"):
        assert words not in output
    result = run_json("info", path)
    assert (result["kind"], result["candidates"]) == ("arrays", [])


@pytest.mark.parametrize(
    ("arrays", "candidates"),
    [
        ({"labels": np.arange(5)}, []),
        ({"features": np.zeros((5, 4, 3))}, []),
        ({"features": np.zeros((5, 4, 3)), "flat": ROWS, "text": np.array([["a"]]), "none": ROWS[:0]}, ["flat"]),
        ({"features": ROWS, "labels": np.arange(5)}, []),  # the labels are wrong, not the features
        ({"rows": ROWS, "labels": np.arange(5)}, []),
        ({"first": ROWS, "second": ROWS}, ["first", "second"]),
    ],
)
def test_features_are_to_be_named_only_where_another_array_could_be_them(
    arrays: dict[str, Any], candidates: list[str], tmp_path: Path
) -> None:
    path = tmp_path / "arrays.npz"
    np.savez(path, **arrays)
    assert run_json("info", path)["candidates"] == candidates
    hint = "\nName the features with --features where a command reads this file\n"
    assert run("info", path).endswith(hint) == bool(candidates)


def test_columns_that_could_be_the_features_are_those_with_numbers(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text("features,a,b,label\nx,1,2.5,3\n")
    assert run_json("info", path)["candidates"] == ["a", "b"]
    path.write_text("a,b\nx,y\n")
    assert run_json("info", path)["candidates"] == []
    assert "--features" not in run("info", path)


def test_the_only_class_is_named(tmp_path: Path) -> None:
    path = tmp_path / "rows.npz"
    np.savez(path, features=ROWS, labels=np.full(60, "Käse"))
    assert "  labels:      labels, 1 class\n  class sizes: 60 rows (Käse)\n" in run("info", path)
    np.savez(path, features=ROWS[:3], labels=["cat", "dog", "dog"])
    assert "  labels:      labels, 2 classes\n  class sizes: 1 row (cat) to 2 rows (dog)\n" in run("info", path)


def test_names_that_are_not_ascii_pass(tmp_path: Path) -> None:
    folder = tmp_path / "Größe 測試"
    folder.mkdir()
    path = folder / "zeilen [bold].npz"
    np.savez(path, features=ROWS, labels=np.array(["Käse", "<b>&"])[np.arange(60) % 2])
    output = run("info", path)
    assert str(path) in output
    assert "30 rows each" in output
    np.savez(path, features=ROWS, labels=np.array(["Käse", "<b>&"])[(np.arange(60) % 3) % 2])
    assert "20 rows (<b>&) to 40 rows (Käse)" in run("info", path)
    assert run_json("info", path)["rows"]["statistics"]["largest_class"] == ["Käse", 40]


@pytest.mark.parametrize("name", ["rows", "gem"])
def test_json_is_one_object(name: str, tmp_path: Path) -> None:
    path = tmp_path / f"{name}.safetensors"
    if name == "rows":
        save_file({"features": ROWS}, path)
    else:
        GEM(priors="empirical").fit(ROWS, LABELS).calibrate(ROWS, tpr=0.9).save(path)
    result: Any = CliRunner().invoke(app, ["info", str(path), "--json"])
    document = json.loads(result.stdout)
    assert document["n_bytes"] == path.stat().st_size
    if name == "gem":
        assert document["detector"]["options"]["priors"] == "empirical"
        assert document["detector"]["threshold"]["tpr"] == 0.9
