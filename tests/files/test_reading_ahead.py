"""Items come in order from a thread that never runs far ahead, and that always ends."""

import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gem_ood import GEM
from gem_ood.errors import InputError
from gem_ood.files import open_features, reading
from gem_ood.files.reading_ahead import read_ahead


def readers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("gem-ood-reading")]


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    yield
    assert readers() == []


class Source:
    """Counts how many numbers were asked for, and whether it was closed."""

    def __init__(self, n: int, fail_at: int | None = None) -> None:
        self.n, self.fail_at = n, fail_at
        self.n_made, self.is_closed = 0, False
        self.threads: set[int] = set()

    def __iter__(self) -> Iterator[int]:
        try:
            for number in range(self.n):
                self.threads.add(threading.get_ident())
                if number == self.fail_at:
                    raise InputError(f"number {number} is bad")
                self.n_made += 1
                yield number
        finally:
            self.is_closed = True


@pytest.mark.parametrize("n_ahead", [1, 2, 5])
@pytest.mark.parametrize("n", [0, 1, 2, 3, 50])
def test_all_items_come_in_order_and_are_made_elsewhere(n: int, n_ahead: int) -> None:
    source = Source(n)
    assert list(read_ahead(iter(source), n_ahead=n_ahead)) == list(range(n))
    assert threading.get_ident() not in source.threads
    assert source.is_closed


def test_no_more_items_are_made_than_allowed() -> None:
    source = Source(100)
    for number in read_ahead(iter(source), n_ahead=2):
        time.sleep(0.002)
        assert source.n_made <= number + 3


def test_an_error_comes_in_the_place_of_its_item() -> None:
    items = read_ahead(iter(Source(10, fail_at=3)))
    assert [next(items) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(InputError, match="number 3 is bad"):
        next(items)


@pytest.mark.parametrize("failure", [None, ValueError("odd"), KeyboardInterrupt()])
def test_the_thread_ends_where_the_caller_stops_early(failure: BaseException | None) -> None:
    source = Source(10_000)

    def work() -> None:
        with closing(read_ahead(iter(source))) as items:
            for number in items:
                if number == 3 and failure is not None:
                    raise failure
                if number == 3:
                    return

    if failure is None:
        work()
    else:
        with pytest.raises(type(failure)):
            work()
    assert readers() == []
    assert source.is_closed
    assert source.n_made <= 6


def test_a_source_that_others_hold_is_closed_too() -> None:
    source = Source(10_000)
    made = iter(source)
    with closing(read_ahead(made)) as items:
        assert next(items) == 0
        assert not source.is_closed
    assert source.is_closed
    with pytest.raises(StopIteration):
        next(made)


@pytest.mark.parametrize("n_ahead", [1, 2])
def test_a_batch_that_the_caller_drops_is_gone_while_the_next_is_waited_for(n_ahead: int) -> None:
    were_dropped: list[bool] = []

    def made() -> Iterator[np.ndarray]:
        for _ in range(4):
            batch = np.zeros(3)
            held = weakref.ref(batch)
            yield batch
            del batch
            # The next is not made before this one is gone; the limit is for a reader that holds it.
            limit = time.monotonic() + 10.0
            while held() is not None and time.monotonic() < limit:
                time.sleep(0.001)
            were_dropped.append(held() is None)

    for batch in read_ahead(made(), n_ahead=n_ahead):
        assert batch.shape == (3,)
        del batch
    assert were_dropped == [True] * 4


def rows_at(path: Path) -> Path:
    path.mkdir()
    for place in range(3):
        features = np.random.default_rng(place).normal(size=(500, 3))
        pq.write_table(pa.table({str(column): features[:, column] for column in range(3)}), path / f"{place}.parquet")
    return path


def test_a_file_that_is_left_in_the_middle_leaves_no_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "BATCH_BYTES", 1)
    file = open_features(rows_at(tmp_path / "rows"))
    for _ in file:
        assert len(readers()) == 1
        break
    assert readers() == []
    with pytest.raises(InputError, match="calls this batch odd"):
        GEM().fit_batches(file.watched(lambda _: refuse()))
    assert readers() == []


def refuse() -> None:
    raise InputError("a watcher calls this batch odd")


def test_rows_are_told_in_the_thread_of_the_caller_after_each_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "BATCH_BYTES", 1)
    told: list[tuple[int, int]] = []
    file = open_features(rows_at(tmp_path / "rows"))
    n_read = 0
    for X, _ in file.watched(lambda n_rows: told.append((n_rows, threading.get_ident()))):
        assert n_read == (told[-1][0] if told else 0)
        n_read += len(X)
    assert told[-1][0] == 1500
    assert {thread for _, thread in told} == {threading.get_ident()}


PROGRAMS = {
    "held to the end": "",
    "an error": "raise SystemExit(3)",
    "closed late": "import atexit; atexit.register(batches.close)",
}


@pytest.mark.parametrize("case", PROGRAMS)
def test_a_program_ends_though_it_never_reads_on(case: str, tmp_path: Path) -> None:
    rows_at(tmp_path / "rows")
    code = (
        "from gem_ood.files import open_features, reading\n"
        "reading.BATCH_BYTES = 1\n"
        "batches = open_features('rows').batches()\n"
        "print(len(next(batches).features))\n" + PROGRAMS[case]
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (3 if case == "an error" else 0, "64\n", "")


def test_ctrl_c_while_the_thread_starts_is_no_other_error(monkeypatch: pytest.MonkeyPatch) -> None:
    entered, go_on = threading.Event(), threading.Event()
    is_closed = False

    def slow() -> Iterator[int]:
        nonlocal is_closed
        try:
            entered.set()
            go_on.wait(30)
            yield 1
        finally:
            is_closed = True

    def interrupted(thread: threading.Thread) -> None:
        start(thread)
        entered.wait(30)
        monkeypatch.undo()
        threading.Timer(0.2, go_on.set).start()
        raise KeyboardInterrupt

    start = threading.Thread.start
    monkeypatch.setattr(threading.Thread, "start", interrupted)
    with pytest.raises(KeyboardInterrupt):
        next(read_ahead(slow()))
    assert is_closed
    deadline = time.monotonic() + 30
    while readers() and time.monotonic() < deadline:  # the thread ends by itself: the pool does not know it
        time.sleep(0.01)
    assert not readers()
