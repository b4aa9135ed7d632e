"""Threads: the same numbers, the first error, and BLAS as it was."""

import threading

import numpy as np
import pytest
from threadpoolctl import ThreadpoolController, threadpool_limits

from gem_ood import GEM
from gem_ood.errors import InputError
from gem_ood.gaussians import collect, parallel


def blas_threads():
    return [library.num_threads for library in ThreadpoolController().select(user_api="blas").lib_controllers]


@pytest.fixture
def three_threads(monkeypatch):
    """Cut even short work in three, whatever the machine has."""
    monkeypatch.setattr(parallel, "MIN_OPERATIONS", 0.0)
    monkeypatch.setattr(parallel, "_blas_threads", lambda: 3)


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
    monkeypatch.setattr(parallel, "_blas_threads", lambda: 3)
    monkeypatch.setattr("gem_ood.gaussians.statistics.MIN_ROWS_PER_UPDATE", 64)
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
