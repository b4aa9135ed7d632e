"""Directories of verdicts appear when they are complete, whatever happens on the way."""

import sys

import pyarrow.parquet as pq
import pytest

pytest.importorskip("ray", reason="Ray is not installed")

import ray
import ray.data
import ray.data.expressions
from fault_rows import N_FILES, Once, die, emptied, made_rows, tables

import gem_ood.ray as cluster
from gem_ood import GEM
from gem_ood.errors import InputError

pytestmark = pytest.mark.usefixtures("ray_session")

ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import it


@pytest.fixture(scope="module")
def fitted():
    features, labels = made_rows()
    return GEM().fit(features, labels).calibrate(features)


@pytest.fixture(scope="module")
def dataset():
    return ray.data.from_arrow(tables(made_rows()))


def test_a_written_dataset_has_its_rows_and_columns(dataset, fitted, tmp_path):
    scored = cluster.score(dataset, fitted)
    seen = []
    assert cluster.write(scored, tmp_path / "scores", on_rows=seen.append) == 2000
    assert seen[-1] == 2000
    assert [path.name for path in tmp_path.iterdir()] == ["scores"]
    written = pq.read_table(tmp_path / "scores")
    order = [("score", "ascending")]
    assert written.sort_by(order).to_pylist() == sorted(scored.take_all(), key=lambda row: row["score"])
    assert [path.name for path in sorted((tmp_path / "scores").iterdir())] == [
        f"part-{number:06}.parquet" for number in range(N_FILES)
    ]


def test_blocks_without_rows_leave_the_columns(dataset, fitted, tmp_path):
    scored = cluster.score(dataset, fitted)
    whole = pq.read_schema(_written(scored, tmp_path / "whole"))
    few = scored.filter(expr=ray.data.expressions.col("path") == "1.parquet")
    assert cluster.write(few, tmp_path / "few") == 500
    assert pq.read_table(tmp_path / "few").schema.equals(whole)
    with pytest.raises(InputError, match="holds no rows"):
        cluster.write(emptied(scored), tmp_path / "none")
    assert not (tmp_path / "none").exists()


def _written(scored, path):
    cluster.write(scored, path)
    return path / "part-000000.parquet"


def test_a_failed_write_leaves_nothing_and_the_next_one_is_whole(dataset, fitted, tmp_path):
    def fail(row):
        if row["path"] == "2.parquet":
            raise ValueError("no more")
        return row

    scored = cluster.score(dataset, fitted)
    with pytest.raises(InputError, match="ValueError: no more"):
        cluster.write(scored.map(fail), tmp_path / "scores")
    assert not list(tmp_path.iterdir())
    assert cluster.write(scored, tmp_path / "scores") == 2000


def test_a_worker_that_is_killed_while_it_writes_writes_each_row_once(dataset, tmp_path):
    fault = Once(tmp_path / "killed", die)

    def step(block):
        fault()
        return block

    folder = tmp_path / "out"
    folder.mkdir()  # an empty one may be there
    assert cluster.write(dataset.map_batches(step, batch_format="pyarrow"), folder) == 2000
    assert fault.marker.exists()
    assert pq.read_table(folder).num_rows == 2000


def test_what_an_earlier_run_left_is_removed_but_not_what_others_did(dataset, tmp_path):
    partial = tmp_path / ".scores.partial"
    (partial / "run-0").mkdir(parents=True)
    (partial / "run-0" / "old.parquet").write_text("old")
    with pytest.raises(InputError, match="is in the way"):
        cluster.write(dataset, tmp_path / "scores")
    (partial / "_plan.json").write_text("{}")
    assert cluster.write(dataset, tmp_path / "scores") == 2000
    assert pq.read_table(tmp_path / "scores").num_rows == 2000
    assert not partial.exists()


@pytest.mark.parametrize("deed", ["taken", "file", "uri", "no parent", "locked", "number", "no dataset"])
def test_a_place_that_cannot_be_written_is_refused_before_any_work(dataset, tmp_path, deed):
    from gem_ood.locking import locked_at_once

    path = tmp_path / "scores"
    started = tmp_path / "started"

    def step(block):
        started.touch()
        return block

    steps = dataset.map_batches(step, batch_format="pyarrow")
    texts = {
        "taken": "is a directory that is not empty",
        "file": "is a file",
        "uri": "use dataset.write_parquet",
        "no parent": "does not exist",
        "locked": "another run is writing",
        "number": "pass a path",
        "no dataset": "pass a ray.data.Dataset",
    }
    if deed == "taken":
        path.mkdir()
        (path / "mine").touch()
    elif deed == "file":
        path.touch()
    target = {"uri": "s3://bucket/scores", "no parent": path / "deep" / "er", "number": 3}.get(deed, path)
    with locked_at_once(tmp_path / ".scores.partial.lock" if deed == "locked" else tmp_path / "other") as is_ours:
        assert is_ours
        with pytest.raises(InputError, match=texts[deed]):
            cluster.write([1, 2] if deed == "no dataset" else steps, target)
    assert not started.exists()
