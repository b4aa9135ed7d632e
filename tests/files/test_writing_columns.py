"""Columns are written whole or not at all, in every format."""

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from gem_ood.errors import InputError
from gem_ood.files import write_columns

SUFFIXES = ("csv", "parquet", "npz", "jsonl")


def batches() -> list[dict[str, Any]]:
    return [
        {"score": np.array([0.1, -2.5]), "is_ood": np.array([False, True]), "name": np.array(["a", "b,c"])},
        {"score": np.array([3.0]), "is_ood": np.array([True]), "name": np.array(["longer"])},
    ]


def read_back(path: Path) -> dict[str, list[Any]]:
    if path.suffix == ".csv":
        with path.open(newline="") as file:
            rows = list(csv.DictReader(file))
        return {
            "score": [float(row["score"]) for row in rows],
            "is_ood": [row["is_ood"] == "true" for row in rows],
            "name": [row["name"] for row in rows],
        }
    if path.suffix == ".jsonl":
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        return {name: [row[name] for row in rows] for name in rows[0]}
    if path.suffix == ".npz":
        with np.load(path) as file:
            return {name: file[name].tolist() for name in file}
    return dict(pq.read_table(path).to_pydict())


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_batches_come_back_as_one_table(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"scores.{suffix}"
    assert write_columns(path, batches()) == 3
    assert read_back(path) == {
        "score": [0.1, -2.5, 3.0],
        "is_ood": [False, True, True],
        "name": ["a", "b,c", "longer"],
    }


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("failure", [InputError("row 7 is NaN"), KeyboardInterrupt(), OSError(28, "disk full")])
def test_a_failure_leaves_the_old_file_and_nothing_else(suffix: str, failure: BaseException, tmp_path: Path) -> None:
    path = tmp_path / f"scores.{suffix}"
    path.write_text("old")

    def failing() -> Iterator[dict[str, Any]]:
        yield batches()[0]
        raise failure

    with pytest.raises(type(failure)):
        write_columns(path, failing())
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_infinite_scores_are_null_in_json_lines(tmp_path: Path) -> None:
    write_columns(tmp_path / "scores.jsonl", [{"score": np.array([-np.inf])}])
    assert (tmp_path / "scores.jsonl").read_text() == '{"score": null}\n'


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("scores.txt", "has the suffix '.txt' but .csv .parquet .npz .jsonl can be written"),
        ("nowhere/scores.csv", "nowhere does not exist; create it first"),
        ("folder.csv", "is a directory; name a file inside it"),
    ],
)
def test_a_path_that_cannot_be_written_is_refused_before_any_work(name: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "folder.csv").mkdir()
    untouched = iter(batches())
    with pytest.raises(InputError, match=message):
        write_columns(tmp_path / name, untouched)
    assert len(list(untouched)) == 2
