"""Working memory that is kept: whose it is, how much, and that scoring takes no other."""

import threading
import tracemalloc

import numpy as np
import pytest

from gem_ood import GEM
from gem_ood.gaussians import workspace
from gem_ood.gaussians.workspace import working_arrays


@pytest.fixture(autouse=True)
def kept(monkeypatch):
    memory = []
    monkeypatch.setattr(workspace, "_kept", memory)
    return memory


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_arrays_have_the_shapes_asked_and_share_nothing(dtype):
    with working_arrays((3, 5), (0, 7), (11,), dtype=dtype) as arrays:
        assert [array.shape for array in arrays] == [(3, 5), (0, 7), (11,)]
        for number, array in enumerate(arrays):
            assert array.dtype == dtype
            assert array.flags.c_contiguous
            array[...] = number
        assert (arrays[0] == 0.0).all()
        assert (arrays[2] == 2.0).all()


def test_the_next_call_has_the_same_memory_unless_it_needs_more(kept):
    with working_arrays((100,), dtype=np.float64) as (first,):
        pass
    with working_arrays((7, 9), dtype=np.float32) as (second,):
        assert np.shares_memory(first, second)
    with working_arrays((200,), dtype=np.float64) as (larger,):
        assert not np.shares_memory(first, larger)
    assert [memory.nbytes for memory in kept] == [1600]


def test_a_call_within_another_has_memory_of_its_own(kept):
    with working_arrays((100,), dtype=np.float64):
        pass
    with working_arrays((100,), dtype=np.float64) as (outer,), working_arrays((100,), dtype=np.float64) as (inner,):
        assert not np.shares_memory(outer, inner)
    assert len(kept) == 2


def test_memory_is_kept_after_an_error_and_up_to_the_limit(kept, monkeypatch):
    monkeypatch.setattr(workspace, "MOST_KEPT", 1000)
    with pytest.raises(ZeroDivisionError), working_arrays((100,), dtype=np.float64):
        raise ZeroDivisionError
    assert len(kept) == 1
    with working_arrays((100,), dtype=np.float64), working_arrays((100,), dtype=np.float64):
        assert not kept
    assert len(kept) == 1
    with working_arrays((500,), dtype=np.float64):
        pass
    assert not kept


@pytest.fixture
def by_numpy(monkeypatch):
    """The passes in C have working memory of their own."""
    monkeypatch.setattr("gem_ood.gaussians.kernel.library", lambda: None)


def drawn(generator, n_rows):
    labels = np.arange(n_rows) % 3
    return (generator.normal(size=(n_rows, 64)) + labels[:, np.newaxis]).astype(np.float32), labels


@pytest.mark.usefixtures("by_numpy")
def test_scoring_again_takes_no_new_working_memory():
    # Too few rows for a second thread, which may or may not get memory of its own.
    rows, labels = drawn(np.random.default_rng(0), 3_000)
    detector = GEM().fit(rows, labels)
    detector.score_samples(rows)
    tracemalloc.start()
    scores = detector.score_samples(rows)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak - scores.nbytes < 0.5 * rows.nbytes


@pytest.mark.usefixtures("by_numpy")
def test_threads_that_score_at_once_do_not_disturb_each_other(kept):
    rows, labels = drawn(np.random.default_rng(1), 3_000)
    detector = GEM().fit(rows, labels)
    parts = [rows[start:] for start in range(8)]
    expected = [detector.score_samples(part) for part in parts]
    found = []

    def score(part, right):
        found.extend(np.array_equal(detector.score_samples(part), right) for _ in range(20))

    threads = [threading.Thread(target=score, args=pair) for pair in zip(parts, expected, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [True] * 160
    assert 1 <= len(kept) <= 8
