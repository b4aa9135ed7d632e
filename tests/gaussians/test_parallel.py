"""Threads: the same numbers, the first error, and BLAS as it was."""

import os
import signal
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from threadpoolctl import ThreadpoolController, threadpool_limits

from gem_ood import GEM
from gem_ood.errors import InputError
from gem_ood.gaussians import collect, parallel, summing


def blas_threads():
    return [library.num_threads for library in ThreadpoolController().select(user_api="blas").lib_controllers]


@pytest.fixture
def three_threads(monkeypatch):
    """Cut even short work in three, whatever the machine has."""
    monkeypatch.setattr(parallel, "MIN_OPERATIONS", 0.0)
    monkeypatch.setattr(parallel, "blas_threads", lambda: 3)


def rows(n=5000, m=20, k=4):
    generator = np.random.default_rng(0)
    labels = np.arange(n) % k
    return generator.normal(size=(n, m)) + 5 * generator.normal(size=(k, m))[labels], labels


def test_parts_come_back_in_order_and_cover_the_rows(three_threads):
    parts = parallel.run_in_parts(lambda part: (part.start, part.stop), 100, operations=1.0)
    assert parts == [(0, 33), (33, 66), (66, 100)]


def test_threads_change_no_statistic_and_no_score(monkeypatch):
    features, labels = rows()
    with threadpool_limits(1):
        alone, scores = collect(features, labels), GEM().fit(features, labels).score_samples(features)
    monkeypatch.setattr(parallel, "MIN_OPERATIONS", 0.0)
    monkeypatch.setattr(parallel, "blas_threads", lambda: 3)
    monkeypatch.setattr(summing, "MIN_ROWS_PER_UPDATE", 64)
    monkeypatch.setattr(summing, "OPERATIONS_PER_CALL", 0.0)
    monkeypatch.setattr("gem_ood.features.CHUNK_BYTES", 1 << 14)
    together = collect(features, labels)
    np.testing.assert_array_equal(together.counts, alone.counts)
    np.testing.assert_allclose(together.means, alone.means, rtol=1e-12)
    np.testing.assert_allclose(together.scatter, alone.scatter, rtol=1e-10, atol=1e-8)
    np.testing.assert_allclose(GEM().fit(features, labels).score_samples(features), scores, rtol=1e-9)


def test_the_first_bad_row_is_the_one_named(three_threads):
    features, labels = rows()
    detector = GEM().fit(features, labels)
    features[[1000, 2500, 4900], 3] = np.nan
    for verb in (detector.score_samples, lambda bad: GEM().fit(bad, labels)):
        with pytest.raises(InputError, match="row 1000, column 3 is NaN"):
            verb(features)


def test_turns_come_back_in_order_and_cover_the_rows(three_threads):
    sized = {"operations": 1e9, "least_operations": 1e8, "multiple": 32}
    turns = parallel.run_in_turns(lambda part: (part.start, part.stop), 1000, **sized)
    starts, stops = zip(*turns, strict=True)
    assert starts == (0, *stops[:-1])
    assert stops[-1] == 1000
    assert len(turns) > 3
    assert all(start % 32 == 0 for start in starts)
    assert parallel.run_in_turns(lambda part: (part.start, part.stop), 9, **sized | {"operations": 1e7}) == [(0, 9)]


def test_the_caller_takes_the_turns_of_threads_that_never_come(three_threads, monkeypatch):
    busy, release = threading.Event(), threading.Event()
    pool = ThreadPoolExecutor(1)
    monkeypatch.setattr(parallel, "_pool", lambda _: pool)
    pool.submit(lambda: busy.set() or release.wait(timeout=60))
    assert busy.wait(timeout=20)
    try:
        turns = parallel.run_in_turns(lambda part: part.stop, 100, operations=1e9, least_operations=1e8, multiple=1)
        assert turns[-1] == 100
        assert not release.is_set()
    finally:
        release.set()
        pool.shutdown()


def test_after_an_error_of_the_caller_no_turn_begins(three_threads):
    begun, failed, late = [], threading.Event(), []

    def work(part):
        (late if failed.is_set() else begun).append(part.start)
        if threading.current_thread() is threading.main_thread():
            failed.set()
            raise KeyboardInterrupt
        failed.wait(timeout=20)
        time.sleep(0.2)  # until the caller has seen to the rest

    with pytest.raises(KeyboardInterrupt):
        parallel.run_in_turns(work, 1000, operations=1e9, least_operations=1e8, multiple=1)
    assert 1 <= len(begun) <= 3
    assert not late


def test_an_error_in_a_turn_is_raised_once_all_that_began_have_ended(three_threads):
    running, lock = [], threading.Lock()

    def work(part):
        with lock:
            running.append(part.start)
        try:
            time.sleep(0.01)
            if part.start == 64:
                raise InputError("the third turn")
        finally:
            with lock:
                running.remove(part.start)

    with pytest.raises(InputError, match="the third turn"):
        parallel.run_in_turns(work, 1000, operations=1e9, least_operations=1e8, multiple=32)
    assert not running


def test_blas_has_its_threads_back_afterwards_also_after_an_error(three_threads):
    before = blas_threads()
    seen = parallel.run_in_parts(lambda _: blas_threads(), 10, operations=1.0)
    assert all(count == 1 for counts in seen for count in counts)
    assert blas_threads() == before

    def fail(part):
        raise InputError(f"part {part.start}")

    with pytest.raises(InputError, match="part 0"):
        parallel.run_in_parts(fail, 10, operations=1.0)
    assert blas_threads() == before


def test_blas_is_alone_in_what_is_short_and_has_its_threads_in_what_is_long():
    with threadpool_limits(2):
        with parallel.blas_alone(1e6):
            short = blas_threads()
            with parallel.blas_alone(1e6):
                assert blas_threads() == short
            assert blas_threads() == short
        with parallel.blas_alone(1e12):
            long = blas_threads()
        with pytest.raises(InputError, match="amid it"), parallel.blas_alone(1e6):
            raise InputError("amid it")
        assert set(short) == {1}
        assert blas_threads() == long
        assert set(long) == {2}


def test_one_that_is_alone_with_blas_leaves_others_their_threads(monkeypatch):
    monkeypatch.setattr(parallel, "MIN_OPERATIONS", 0.0)
    turns = {"operations": 2.0, "least_operations": 1.0, "multiple": 1}
    with threadpool_limits(2), parallel.blas_alone(1e6), ThreadPoolExecutor(1) as other:
        parts = other.submit(parallel.run_in_parts, lambda part: part, 9, operations=1.0)
        assert len(parts.result(timeout=20)) == 2
        assert len(other.submit(parallel.run_in_turns, lambda part: part, 9, **turns).result(timeout=20)) > 1
        assert parallel.blas_threads() == 2
    with threadpool_limits(1):
        assert parallel.blas_threads() == 1


def test_work_beside_work_takes_one_core(three_threads):
    def beside(_):
        with ThreadPoolExecutor(1) as other:
            return len(other.submit(parallel.run_in_parts, lambda part: part, 9, operations=1.0).result(timeout=20))

    assert parallel.run_in_parts(beside, 2, operations=1.0) == [1, 1]
    assert parallel.free_threads() == 3


def test_no_more_threads_than_asked_for(three_threads):
    assert len(parallel.run_in_parts(lambda part: part, 9, operations=1.0, most_threads=2)) == 2
    assert parallel.run_in_parts(lambda part: part.stop, 9, operations=1.0, most_threads=1) == [9]


def test_callers_from_many_threads_do_not_lose_blas_its_threads(monkeypatch):
    monkeypatch.setattr(parallel, "MIN_OPERATIONS", 0.0)
    before = blas_threads()
    features, labels = rows()
    detector = GEM().fit(features, labels)
    expected = detector.score_samples(features)
    results = [None] * 6

    def score(place):
        results[place] = [detector.score_samples(features) for _ in range(5)]

    threads = [threading.Thread(target=score, args=(place,)) for place in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for result in results:
        for scores in result:
            np.testing.assert_allclose(scores, expected, rtol=1e-9)
    assert blas_threads() == before


def test_work_inside_work_takes_the_thread_it_has(three_threads):
    def nested(part):
        return parallel.run_in_parts(lambda inner: (part.start, inner.stop), 9, operations=1.0)

    assert parallel.run_in_parts(nested, 3, operations=1.0) == [[(0, 9)], [(1, 9)], [(2, 9)]]


def test_a_thread_of_the_pool_never_waits_for_its_pool(three_threads, monkeypatch):
    """After a second Ctrl-C nobody is known to be at work any more, and work that goes on may ask for threads again."""
    results = []

    def outlives_its_caller(part):
        monkeypatch.setattr(parallel, "_at_work", [])
        results.append(parallel.run_in_parts(lambda inner: inner.stop, 9, operations=1.0))

    parallel._pool(os.getpid()).submit(outlives_its_caller, None).result(timeout=20)
    assert results == [[9]]


def test_others_are_waited_for_where_the_callers_own_part_fails(three_threads):
    begun, finished = threading.Event(), threading.Event()

    def work(part):
        if part.start == 0:
            begun.wait(timeout=20)
            raise InputError("the first part")
        begun.set()
        time.sleep(0.2)
        finished.set()

    with pytest.raises(InputError, match="the first part"):
        parallel.run_in_parts(work, 9, operations=1.0)
    assert finished.is_set()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_a_forked_process_has_threads_of_its_own(three_threads):
    parallel.run_in_parts(lambda part: part.stop, 9, operations=1.0)
    assert in_a_fork(lambda: parallel.run_in_parts(lambda part: part.stop, 9, operations=1.0) == [3, 6, 9])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_a_process_forked_amid_the_work_has_blas_and_threads_as_before(three_threads):
    before = blas_threads()

    def is_free():
        parts = parallel.run_in_parts(lambda part: part.stop, 9, operations=1.0)
        return parts == [3, 6, 9] and blas_threads() == before

    forked = parallel.run_in_parts(lambda part: part.start > 0 or in_a_fork(is_free), 9, operations=1.0)
    assert forked == [True, True, True]
    assert blas_threads() == before


def in_a_fork(check):
    """Return whether the check holds in a forked process."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python warns of forks beside threads: this is one
        child = os.fork()
    if child == 0:
        code = 1
        try:
            signal.alarm(20)
            code = 0 if check() else 1
        finally:  # whatever happened, there must be no second run of the tests
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
