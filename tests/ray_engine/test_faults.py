"""Faults in the middle of a job: it finishes with the identical result, or stops with one clear error."""

import os
import re
import signal
import sys
import threading
import time

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("ray", reason="Ray is not installed")

import ray
import ray.data
from fault_rows import Once, as_table, die, emptied, made_rows, tables

import gem_ood.ray as cluster
from gem_ood import GEM
from gem_ood.errors import CalibrationSizeError, FileFormatError, InputError, NotFittedError
from gem_ood.gaussians import collect, merge
from gem_ood.ray.opening import open_rows
from gem_ood.ray.reducing import cancel
from gem_ood.ray.spread import FileRows

pytestmark = pytest.mark.usefixtures("ray_session")

ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import it


@pytest.fixture(scope="module")
def rows():
    return made_rows()


@pytest.fixture(scope="module")
def fitted(rows):
    return GEM().fit(*rows).calibrate(rows[0])


@pytest.fixture(scope="module")
def dataset(rows):
    """One block for each table, materialized, so that a pass over it is short."""
    return ray.data.from_arrow(tables(rows))


@pytest.fixture
def folder(rows, tmp_path):
    """The same rows as files of five row groups each."""
    path = tmp_path / "rows"
    path.mkdir()
    for number, table in enumerate(tables(rows)):
        pq.write_table(table.drop_columns("path"), path / f"{number}.parquet", row_group_size=100)
    return path


@pytest.fixture(params=["blocks", "files"])
def spread(request, dataset, folder):
    """The rows of a dataset of blocks, and of files, as a fit opens them."""
    if request.param == "blocks":
        return open_rows(dataset, "features", "label")
    return open_rows(folder, "features", "label", rows_per_part=200)


def summed(batches):
    return merge(*parts) if len(parts := [collect(X, y) for X, y in batches]) > 1 else parts[0]


def assert_same_statistics(found, rows):
    expected = collect(*rows)
    assert found.n_rows == expected.n_rows
    np.testing.assert_array_equal(found.counts, expected.counts)
    np.testing.assert_allclose(found.means, expected.means, rtol=1e-12)
    np.testing.assert_allclose(found.scatter, expected.scatter, rtol=1e-9)


def run_out():
    raise MemoryError


# A worker that dies


@pytest.mark.parametrize("place", ["work", "merge"])
def test_a_worker_that_is_killed_does_its_work_again(rows, spread, tmp_path, place):
    fault = Once(tmp_path / "killed", die)

    def work(batches):
        if place == "work":
            fault()
        return summed(list(batches))

    def join(one, other):
        if place == "merge":
            fault()
        return merge(one, other)

    found = spread.reduce(work, join)
    assert fault.marker.exists()
    assert_same_statistics(found, rows)


def test_a_worker_that_is_killed_in_a_step_before_does_it_again(rows, dataset, tmp_path):
    fault = Once(tmp_path / "killed", die)

    def step(block):
        fault()
        return block

    found = cluster.fit(dataset.map_batches(step, batch_format="pyarrow"), GEM())
    assert fault.marker.exists()
    assert_same_statistics(found.statistics_, rows)


def test_an_actor_that_is_killed_is_started_again_and_no_row_counts_twice(rows, dataset, tmp_path):
    class Step:
        def __init__(self, fault):
            self.fault, self.n_blocks = fault, 0

        def __call__(self, block):
            self.n_blocks += 1
            if self.n_blocks > 1:
                self.fault()
            return block

    fault = Once(tmp_path / "killed", die)
    steps = dataset.map_batches(
        Step, fn_constructor_args=[fault], compute=ray.data.ActorPoolStrategy(size=1), batch_format="pyarrow"
    )
    found = cluster.fit(steps, GEM())
    assert fault.marker.exists()
    assert_same_statistics(found.statistics_, rows)


def test_rows_over_which_every_worker_dies_end_the_fit(rows, spread):
    last = rows[0][-1]

    def work(batches):
        if any((X[-1] == last).all() for X, _ in batches):
            die()
        return summed(list(batches))

    with pytest.raises(cluster.ClusterError, match=r"worker.*died|worker or machine was lost") as raised:
        spread.reduce(work, merge)
    assert "\n" not in str(raised.value)


# Memory


def test_memory_that_runs_out_for_a_moment_is_waited_for(rows, spread, tmp_path):
    fault = Once(tmp_path / "out", run_out)

    def work(batches):
        fault()
        return summed(list(batches))

    assert_same_statistics(spread.reduce(work, merge), rows)
    assert fault.marker.exists()


def test_memory_that_never_suffices_ends_the_fit_with_a_remedy_and_the_place(rows, spread):
    last = rows[0][-1]

    def work(batches):
        if any((X[-1] == last).all() for X, _ in batches):
            raise MemoryError
        return summed(list(batches))

    place = r"3\.parquet, row group 4" if isinstance(spread, FileRows) else r"a block of 3\.parquet"
    with pytest.raises(cluster.ClusterError, match=f"{place}.*ran out of memory.*smaller"):
        spread.reduce(work, merge)


def test_memory_that_runs_out_in_a_step_before_is_called_by_its_name(dataset):
    def step(block):
        raise MemoryError

    with pytest.raises(cluster.ClusterError, match="ran out of memory"):
        cluster.fit(dataset.map_batches(step), GEM())


def test_ray_is_told_not_to_try_for_ever_where_memory_runs_out():
    assert int(os.environ["RAY_task_oom_retries"]) >= 0  # noqa: SIM112 (Ray's own spelling)


# Blocks that raise


class StubbornError(Exception):
    """An error that does not travel between processes."""

    def __init__(self, text):
        super().__init__(text)
        self.lock = threading.Lock()


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (KeyError("odd"), "KeyError: 'odd'"),
        (ValueError("größer als 三"), "ValueError: größer als 三"),
        (AssertionError(), "AssertionError"),
        ("stubborn", "StubbornError: not to be pickled"),
        (CalibrationSizeError("too few rows; take more"), "too few rows; take more"),
    ],
    ids=["key", "value", "bare", "unpicklable", "ours"],
)
def test_a_step_that_raises_is_one_clear_error(dataset, error, text):
    def step(block):
        raise StubbornError("not to be pickled") if error == "stubborn" else error

    with pytest.raises(InputError, match=re.escape(text)) as raised:
        cluster.fit(dataset.map_batches(step), GEM())
    assert "\n" not in str(raised.value)
    assert "ray" not in str(raised.value).lower()
    assert isinstance(raised.value, CalibrationSizeError) == isinstance(error, CalibrationSizeError)


def with_nan(features, labels):
    features[7, 3] = np.nan
    return as_table(features, labels)


def with_null(features, labels):
    lists = [None if row == 7 else values for row, values in enumerate(features.tolist())]
    return pa.table({"features": pa.array(lists, pa.list_(pa.float64(), 6)), "label": labels})


def with_ragged_rows(features, labels):
    lists = [values[: 5 if row == 7 else 6] for row, values in enumerate(features.tolist())]
    return pa.table({"features": lists, "label": labels})


def with_text(features, labels):
    return pa.table({"features": ["many"] * len(labels), "label": labels})


def with_other_width(features, labels):
    return as_table(features[:, :4], labels)


def with_other_labels(features, labels):
    return as_table(features, [f"class {label}" for label in labels])


def with_null_labels(features, labels):
    return as_table(features, [None if row == 7 else int(label) for row, label in enumerate(labels)])


#: What is wrong with the third file, what must be said of it, and whether its rows alone show it.
WRONG = {
    "nan": (with_nan, "row 7, column 3 is NaN", True),
    "null": (with_null, "row 7, column 'features' is missing", True),
    "ragged": (with_ragged_rows, "row 7, column 'features' has 5 numbers", True),
    "text": (with_text, "column 'features' holds string, not numbers", True),
    "null labels": (with_null_labels, "row 7, column 'label' is missing", True),
    "width": (with_other_width, "features", False),
    "labels of two kinds": (with_other_labels, "labels", False),
}


def spoil(table, wrong):
    """Return the rows of the third file made wrong, and all others as they are."""
    if table["path"][0].as_py() != "2.parquet":
        return table
    features = table["features"].combine_chunks().flatten().to_numpy().reshape(-1, 6).copy()
    return wrong(features, table["label"].to_numpy()).append_column("path", table["path"])


def spoiled(dataset, wrong):
    return dataset.map_batches(lambda table: spoil(table, wrong), batch_format="pyarrow", batch_size=None)


@pytest.mark.parametrize("name", WRONG)
def test_wrong_rows_are_named_by_their_file_and_leave_the_detector_as_it_was(rows, dataset, fitted, name):
    wrong, text, shows = WRONG[name]
    bad = spoiled(dataset, wrong)
    before = fitted.score_samples(rows[0])
    unfitted = GEM()
    for detector in (unfitted, fitted):
        with pytest.raises(InputError, match=re.escape(text)) as raised:
            cluster.fit(bad, detector)
        assert "\n" not in str(raised.value)
        if shows:
            assert str(raised.value).startswith("a block of 2.parquet")
    np.testing.assert_array_equal(fitted.score_samples(rows[0]), before)
    assert fitted.is_ood(rows[0]).sum() <= 100
    with pytest.raises(NotFittedError):
        unfitted.score_samples(rows[0])


def test_a_failed_calibration_leaves_the_threshold_as_it_was(dataset, fitted):
    before = fitted.threshold_
    with pytest.raises(InputError, match=r"a block of 2\.parquet.*NaN"):
        cluster.calibrate(spoiled(dataset, with_nan), fitted)
    assert fitted.threshold_ == before


def test_a_file_is_named_also_where_a_block_holds_several(rows):
    joined = ray.data.from_arrow(pa.concat_tables(spoil(table, with_nan) for table in tables(rows)))
    with pytest.raises(InputError, match=r"a block of 2\.parquet.*: features row 7, column 3 is NaN"):
        cluster.fit(joined, GEM())


def test_rows_without_a_known_file_are_those_of_a_block(dataset):
    bad = spoiled(dataset, with_nan).drop_columns(["path"])
    with pytest.raises(InputError, match=r"a block of the dataset.*: features row 7, column 3 is NaN"):
        cluster.fit(bad, GEM())


def test_scoring_wrong_rows_says_which_when_it_is_written(dataset, fitted, tmp_path):
    scored = cluster.score(spoiled(dataset, with_nan), fitted)
    with pytest.raises(InputError, match=r"a block of 2\.parquet.*: features row 7, column 3 is NaN"):
        cluster.write(scored, tmp_path / "scores")
    assert not list(tmp_path.iterdir())


def test_blocks_of_two_types_are_refused(rows):
    blocks = [spoil(table, with_text) for table in tables(rows)]
    with pytest.raises(InputError, match=r"do not fit together .*features.*; give a column one type"):
        cluster.fit(ray.data.from_arrow(blocks), GEM())


def test_a_step_that_cannot_start_is_one_clear_error(dataset):
    class Step:
        def __init__(self):
            raise OSError("no model there")

        def __call__(self, block):
            return block

    steps = dataset.map_batches(Step, compute=ray.data.ActorPoolStrategy(size=1))
    with pytest.raises(InputError, match="could not start: OSError: no model there"):
        cluster.fit(steps, GEM())


def test_a_dataset_without_rows_is_refused(dataset):
    with pytest.raises(InputError, match="holds no rows"):
        cluster.fit(emptied(dataset), GEM())


# Damaged files


def damage(path, how):
    content = bytearray(path.read_bytes())
    if how == "truncated":
        content = content[: len(content) // 2]
    elif how == "text":
        content = bytearray(b"these are no rows\n" * 100)
    else:
        first = pq.ParquetFile(path).metadata.row_group(3).column(0)
        content[first.data_page_offset : first.data_page_offset + 60] = b"\xff" * 60
    path.write_bytes(content)


@pytest.mark.parametrize("how", ["truncated", "text", "page"])
@pytest.mark.parametrize("deed", ["fit", "calibrate", "score"])
def test_a_damaged_file_is_named_and_so_is_its_row_group(fitted, folder, tmp_path, how, deed):
    damage(folder / "2.parquet", how)
    before = fitted.threshold_
    place = re.escape(str(folder / "2.parquet")) + (", row group 3: " if how == "page" else " is not a Parquet file")
    deeds = {
        "fit": lambda: cluster.fit(folder, GEM()),
        "calibrate": lambda: cluster.calibrate(folder, fitted),
        "score": lambda: cluster.write(cluster.score(folder, fitted), tmp_path / "scores"),
    }
    with pytest.raises(FileFormatError, match=place) as raised:
        deeds[deed]()
    assert "\n" not in str(raised.value)
    assert fitted.threshold_ == before
    assert not (tmp_path / "scores").exists()


def test_a_damaged_page_is_named_also_where_ray_reads_the_file(folder):
    # A file that is truncated, or no Parquet file, is refused by ray.data.read_parquet itself, before it comes here.
    damage(folder / "2.parquet", "page")
    with pytest.raises(FileFormatError, match=re.escape(f"{folder / '2.parquet'}, row group 3: ")):
        cluster.fit(ray.data.read_parquet(str(folder)), GEM())


# What is left behind


def test_a_task_that_missed_its_call_is_called_again(monkeypatch):
    called = []

    def wait(references, **_):
        return (references, []) if len(called) > 2 else (references[:1], references[1:])

    monkeypatch.setattr(ray, "cancel", called.append)
    monkeypatch.setattr(ray, "wait", wait)
    cancel(iter(["hears at once", "hears later"]))
    assert called == ["hears at once", "hears later", "hears later"]
    cancel([])
    assert len(called) == 3


class Endless:
    """Work that goes on for ten minutes unless it is called back, and gives a sign of life all the while."""

    #: A sign that is older than so many seconds is none.
    STALE_SECONDS = 2.0

    def __init__(self, folder):
        self.signs, self.over = folder / "signs", folder / "over"
        self.signs.mkdir()

    def __call__(self):
        sign = self.signs / str(os.getpid())
        deadline = time.monotonic() + 600
        while not self.over.exists() and time.monotonic() < deadline:  # steps between which a cancelled task ends
            sign.touch()
            time.sleep(0.1)

    def has_begun(self):
        """Return whether a task is at it, for which a minute is waited."""
        deadline = time.monotonic() + 60
        while not (begun := any(self.signs.iterdir())) and time.monotonic() < deadline:
            time.sleep(0.1)
        return begun

    def n_alive(self):
        oldest = time.time() - self.STALE_SECONDS
        return sum(sign.stat().st_mtime > oldest for sign in self.signs.iterdir())


def interrupt_when_there(marker):
    """Press Ctrl-C, as it were, once a file is there."""
    while not marker.exists():
        time.sleep(0.1)
    signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)


def comes_first(parts, folder):
    """Return whether these rows are those that came first, whichever they are; so they are when they come again."""
    own = folder / parts[0][0][0].tobytes().hex()
    try:
        folder.mkdir()
    except FileExistsError:
        return own.exists()
    own.touch()
    return True


@pytest.mark.parametrize("why", ["failure", "interruption"])
def test_no_task_goes_on_for_long_after_the_end(rows, dataset, spread, tmp_path, why):
    if threading.current_thread() is not threading.main_thread():
        pytest.skip("only the main thread can be interrupted")
    marker, endless = tmp_path / "done", Endless(tmp_path)

    def work(batches):
        parts = list(batches)
        if comes_first(parts, tmp_path / "first"):
            assert endless.has_begun()
            if why == "failure":
                raise InputError("these rows are odd; mend them")
            marker.touch()
            return summed(parts)
        return endless()

    if why == "interruption":
        threading.Thread(target=interrupt_when_there, args=(marker,), daemon=True).start()
    try:
        with pytest.raises(KeyboardInterrupt if why == "interruption" else InputError):
            spread.reduce(work, merge)
        deadline = time.monotonic() + 60
        while (n_alive := endless.n_alive()) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert n_alive == 0
    finally:
        endless.over.touch()
    assert_same_statistics(cluster.fit(dataset, GEM()).statistics_, rows)
