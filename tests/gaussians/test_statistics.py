"""Statistics against a textbook loop, and the laws of merging and streaming."""

import tracemalloc
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gem_ood.errors import InputError
from gem_ood.gaussians import Accumulator, TiedGaussians, collect, fourth_moment, merge, native, parallel, summing
from gem_ood.gaussians.summing import LONG_ROW, MIN_ROWS_PER_UPDATE, NARROW


@pytest.fixture(params=["passes in C", "NumPy"])
def way(request, monkeypatch):
    """Sum rows up this way, some at a time."""
    monkeypatch.setattr(summing, "OPERATIONS_PER_CALL", 0.0)
    monkeypatch.setattr(summing, "UPDATE_BYTES", 0)
    if request.param == "NumPy":
        monkeypatch.setattr(native, "library", lambda: None)
    elif native.library() is None:
        pytest.skip("the passes in C were not built, or this processor lacks AVX2")
    return request.param


def textbook(features, labels):
    features = features.astype(np.longdouble)
    classes = np.unique(labels)
    means = np.array([features[labels == name].mean(axis=0) for name in classes])
    centred = features - means[np.searchsorted(classes, labels)]
    return classes, means.astype(float), (centred.T @ centred).astype(float)


def labelled_rows(seed, *, n=200, m=6, k=4, offset=0.0, spread=1.0):
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, k, n)
    means = spread * generator.normal(size=(k, m)) + offset
    return generator.normal(size=(n, m)) * np.geomspace(1, 1e-3, m) + means[labels], labels


def assert_same(first, second, rtol=1e-10):
    assert np.array_equal(first.classes, second.classes)
    assert np.array_equal(first.counts, second.counts)
    np.testing.assert_allclose(first.means, second.means, rtol=rtol)
    scale = np.sqrt(np.outer(np.diag(second.scatter), np.diag(second.scatter)))
    np.testing.assert_allclose(first.scatter / scale, second.scatter / scale, atol=rtol * 10)


@pytest.mark.parametrize(("offset", "spread"), [(0.0, 1.0), (1e4, 1.0), (0.0, 3e3), (1e6, 1e5)])
def test_statistics_equal_a_textbook_loop_in_extended_precision(offset, spread):
    features, labels = labelled_rows(1, offset=offset, spread=spread)
    statistics = collect(features, labels)
    classes, means, scatter = textbook(features, labels)
    assert np.array_equal(statistics.classes, classes)
    np.testing.assert_allclose(statistics.means, means, rtol=1e-13)
    scale = np.sqrt(np.outer(np.diag(scatter), np.diag(scatter)))
    # The smallest feature has a spread of 1e-3: what is left after rounding rows of size 1e6 to float64.
    np.testing.assert_allclose(statistics.scatter / scale, scatter / scale, atol=1e-9 if spread < 1e5 else 1e-5)


@given(st.integers(0, 10**6), st.lists(st.integers(1, 199), max_size=5))
def test_streaming_any_batches_equals_collecting_once(seed, cuts):
    features, labels = labelled_rows(seed)
    accumulator = Accumulator(n_features=6, classes=range(4))
    bounds = [0, *sorted(set(cuts)), 200]
    for start, stop in pairwise(bounds):
        accumulator.add(features[start:stop], labels[start:stop])
    assert_same(accumulator.statistics(), collect(features, labels, classes=range(4)))


@given(st.integers(0, 10**6), st.integers(1, 199))
def test_merging_parts_equals_collecting_the_whole_in_either_order(seed, cut):
    features, labels = labelled_rows(seed, offset=100.0)
    first, second = collect(features[:cut], labels[:cut]), collect(features[cut:], labels[cut:])
    whole = collect(features, labels)
    assert_same(merge(first, second), whole)
    assert_same(merge(second, first), whole)


@given(st.integers(0, 10**6))
def test_merging_is_associative(seed):
    features, labels = labelled_rows(seed)
    a, b, c = (collect(features[part], labels[part]) for part in (slice(0, 50), slice(50, 90), slice(90, 200)))
    assert_same(merge(merge(a, b), c), merge(a, merge(b, c)))


def test_merging_joins_classes_by_name():
    merged = merge(collect([[1.0], [3.0]], ["cat", "cat"]), collect([[7.0], [9.0]], ["ant", "cat"]))
    assert merged.classes.tolist() == ["ant", "cat"]
    assert merged.counts.tolist() == [1, 3]
    np.testing.assert_allclose(merged.means.ravel(), [7.0, 13.0 / 3.0])


def test_a_fit_resumed_from_its_statistics_goes_on_as_if_never_stopped():
    features, labels = labelled_rows(3)
    resumed = Accumulator.resume(collect(features[:120], labels[:120]))
    resumed.add(features[120:], labels[120:])
    assert_same(resumed.statistics(), collect(features, labels))


def test_classes_can_be_declared_on_the_way():
    accumulator = Accumulator(n_features=1, classes=["b"])
    accumulator.add([[1.0]], ["b"])
    accumulator.declare(["a", "c"])
    accumulator.add([[5.0], [3.0]], ["c", "b"])
    statistics = accumulator.statistics()
    assert statistics.classes.tolist() == ["a", "b", "c"]
    assert statistics.counts.tolist() == [0, 2, 1]
    assert statistics.means.ravel().tolist() == [0.0, 2.0, 5.0]


def test_pooled_statistics_are_those_of_one_class():
    features, labels = labelled_rows(5, spread=10.0)
    assert_same(collect(features, labels).pooled(), collect(features))


def test_many_classes_take_the_same_path_to_the_same_numbers():
    generator = np.random.default_rng(0)
    labels = generator.integers(0, 700, 3000)
    features = generator.normal(size=(3000, 3))
    _, means, scatter = textbook(features, labels)
    statistics = collect(features, labels)
    np.testing.assert_allclose(statistics.means, means, atol=1e-12)
    np.testing.assert_allclose(statistics.scatter, scatter, rtol=1e-10, atol=1e-9)


@pytest.mark.parametrize(
    "dtype", [np.float16, np.float32, np.float64, np.int8, np.int64, np.uint8, bool, ">f4"], ids=str
)
def test_every_kind_of_number_gives_the_statistics_of_its_float64_values(dtype):
    generator = np.random.default_rng(2)
    features = (10 * generator.random((50, 3))).astype(dtype)
    labels = np.arange(50) % 2
    _, means, scatter = textbook(features.astype(np.float64), labels)
    statistics = collect(features, labels)
    np.testing.assert_allclose(statistics.means, means, rtol=1e-13)
    np.testing.assert_allclose(statistics.scatter, scatter, rtol=1e-11, atol=1e-11)


def layouts(features, folder):
    np.save(folder / "features.npy", features)
    wide = np.empty((len(features), 2 * features.shape[1]))
    wide[:, ::2] = features
    yield "fortran", np.asfortranarray(features)
    yield "every second column", wide[:, ::2]
    yield "reversed view", features[::-1][::-1]
    yield "memory map", np.load(folder / "features.npy", mmap_mode="r")


def test_every_memory_layout_gives_the_same_statistics(tmp_path):
    features, labels = labelled_rows(4)
    expected = collect(features, labels)
    for name, array in layouts(features, tmp_path):
        assert np.array_equal(collect(array, labels).scatter, expected.scatter), name


@pytest.mark.parametrize("n_rows", [20_000, 80_000])
def test_memory_does_not_grow_with_the_rows(n_rows):
    features = np.ones((n_rows, 64), dtype=np.float32)
    labels = np.arange(n_rows) % 10
    tracemalloc.start()
    collect(features, labels)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 8 * (64 * 64 * 6) + 12e6 + 3 * labels.nbytes


@pytest.mark.parametrize("dtype", ["int8", "uint16", "int64", "bool", "float64", "<U3", "S3", object])
def test_labels_of_any_kind_keep_their_names(dtype):
    names = (
        np.array([0, 1, 1, 0]).astype(dtype) if dtype is not object else np.array(["b", "a", "a", "b"], dtype=object)
    )
    statistics = collect(np.arange(8.0).reshape(4, 2), names)
    assert statistics.counts.tolist() == [2, 2]
    assert statistics.classes.dtype.kind in "iU"


def test_fourth_moment_equals_its_definition():
    features, labels = labelled_rows(6)
    statistics = collect(features, labels)
    centred = features - statistics.means[labels]
    expected = np.sum(np.sum(centred**2, axis=1) ** 2)
    halves = [(features[:90], labels[:90]), (features[90:], labels[90:])]
    assert fourth_moment(statistics, halves) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("features", "labels", "message"),
    [
        ([[1.0], [2.0]], [0], "labels has 1 rows but features has 2"),
        ([1.0, 2.0], [0, 1], "two dimensions"),
        (np.zeros((0, 2)), [], "minimum of 1 is required"),
        (np.zeros((2, 0)), [0, 1], r"0 feature\(s\)"),
        ([[1.0], [np.nan]], [0, 0], "row 1, column 0 is NaN"),
        ([[np.inf], [1.0]], [0, 0], "row 0, column 0 is infinity"),
        ([["a"], ["b"]], [0, 0], "every value must be a number"),
        ([[1.0], [2.0]], [0.5, 1.0], "row 0 is .*0.5.*whole numbers or strings"),
        ([[1.0], [2.0]], [np.nan, 1.0], "row 0 is"),
        ([[1.0], [2.0]], np.array(["a", 1.5j], dtype=object), "whole numbers only or strings only"),
        ([[1e200], [-1e200]], [0, 0], "overflow float64; rescale"),
        ([[1j], [2.0]], [0, 0], "Complex data not supported"),
        ([[1.0], [2.0, 3.0]], [0, 0], "cannot be read as one array"),
    ],
)
def test_bad_rows_and_labels_are_refused_by_name(features, labels, message):
    with pytest.raises(InputError, match=message):
        collect(features, labels)


def test_a_bad_row_deep_inside_is_named_by_its_own_number(way):
    features = np.zeros((5000, 200), dtype=np.float32)
    features[4321, 7] = -np.inf
    with pytest.raises(InputError, match="row 4321, column 7 is infinity"):
        collect(features)


@pytest.mark.parametrize("n_threads", [1, 3])
@pytest.mark.parametrize("n_classes", [3, 400, 1500])
@pytest.mark.parametrize("width", [NARROW, NARROW + 1, LONG_ROW])
def test_rows_in_several_parts_equal_numpy(way, width, n_classes, n_threads, monkeypatch):
    monkeypatch.setattr(parallel, "MIN_OPERATIONS", 0.0)
    for module in (parallel, summing):
        monkeypatch.setattr(module, "blas_threads", lambda: n_threads)
    generator = np.random.default_rng(0)
    labels = generator.permutation(np.arange(2 * MIN_ROWS_PER_UPDATE + 3) % n_classes)
    features = generator.normal(size=(len(labels), width)) + labels[:, np.newaxis]
    statistics = collect(features, labels)
    means = np.array([features[labels == name].mean(axis=0) for name in range(n_classes)])
    np.testing.assert_allclose(statistics.means, means, rtol=1e-12, atol=1e-13)
    centred = features - means[labels]
    np.testing.assert_allclose(statistics.scatter, centred.T @ centred, atol=1e-8)
    np.testing.assert_array_equal(statistics.scatter, statistics.scatter.T)


@pytest.mark.parametrize("n_rows", [50, 3 * MIN_ROWS_PER_UPDATE], ids=["one chunk", "three"])
@pytest.mark.parametrize("width", [7, LONG_ROW])
@pytest.mark.parametrize(
    ("value", "message"), [(np.nan, "row 41, column 2 is NaN"), (1e200, "squares overflow float64")]
)
def test_a_refused_batch_leaves_no_trace_in_the_first_or_a_later_one(way, width, n_rows, value, message):
    features, labels = labelled_rows(0, n=n_rows, m=width)
    broken = features.copy()
    broken[41, 2] = value
    accumulator = Accumulator(n_features=width, classes=range(4))
    for _ in range(2):
        with pytest.raises(InputError, match=message):
            accumulator.add(broken, labels)
        accumulator.add(features, labels)
    twice = collect(np.concatenate([features, features]), np.concatenate([labels, labels]), classes=range(4))
    assert_same(accumulator.statistics(), twice)


@pytest.mark.parametrize(
    "prepare",
    [
        lambda rows: rows[:, :3],
        lambda rows: rows[:1],
        lambda rows: np.repeat(rows, 200, axis=0),
        lambda rows: rows[:, 0],
    ],
)
@pytest.mark.parametrize("n_rows", [20, 3000])
def test_rows_that_preparing_makes_more_or_fewer_are_refused(way, n_rows, prepare):
    features, labels = labelled_rows(0, n=n_rows)
    accumulator = Accumulator(n_features=6, classes=range(4))
    accumulator.add(features, labels)
    before = accumulator.statistics()
    with pytest.raises(InputError, match=r"prepare made an array of shape .* from rows of shape \(\d+, 6\)"):
        accumulator.add(features, labels, prepare=prepare)
    assert_same(accumulator.statistics(), before)


def test_many_classes_take_little_memory_for_each_row(way):
    def peak(n_rows):
        features, labels = np.ones((n_rows, 4)), np.arange(n_rows) % 300
        accumulator = Accumulator(n_features=4, classes=range(300))
        tracemalloc.start()
        try:
            accumulator.add(features, labels)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    assert peak(900_000) - peak(600_000) < 4 * 300_000


def test_blas_shares_a_scatter_where_memory_allows_too_few_for_all_threads(monkeypatch):
    def way_of(n_features, n_threads, *, has_passes):
        monkeypatch.setattr(summing, "blas_threads", lambda: n_threads)
        monkeypatch.setattr(native, "library", library if has_passes else lambda: None)
        return summing._way(n_features)

    library = native.library
    if library() is not None:
        for n_features, n_threads in ((64, 2), (512, 16), (2048, 2), (4096, 4)):
            is_compiled, most_threads = way_of(n_features, n_threads, has_passes=True)
            assert is_compiled
            assert 2 * most_threads >= n_threads
        assert way_of(2048, 64, has_passes=True) == (False, 1)
    assert way_of(2048, 8, has_passes=False) == (False, 1)
    is_compiled, most_threads = way_of(128, 8, has_passes=False)
    assert not is_compiled
    assert most_threads >= 8


def test_statistics_of_another_number_type_are_gone_on_with(way):
    features, labels = labelled_rows(0, n=3000)
    first = collect(features, labels)
    coarse = replace(
        first,
        counts=first.counts.astype(np.int32),
        means=np.asfortranarray(first.means, dtype=np.float32),
        scatter=first.scatter.astype(np.float32),
    )
    accumulators = [Accumulator.resume(statistics) for statistics in (first, coarse)]
    for accumulator in accumulators:
        accumulator.add(features, labels)
    expected, found = (accumulator.statistics() for accumulator in accumulators)
    np.testing.assert_array_equal(found.counts, expected.counts)
    np.testing.assert_allclose(found.means, expected.means, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found.scatter, expected.scatter, rtol=1e-5, atol=1e-2)


def test_a_class_of_which_only_refused_rows_came_has_no_mean():
    accumulator = Accumulator(n_features=1, classes=[0, 1])
    accumulator.add([[1.0], [2.0]], [0, 0])
    with pytest.raises(InputError, match="row 1, column 0 is NaN"):
        accumulator.add([[1e20], [np.nan]], [1, 1])
    assert accumulator.statistics().means.tolist() == [[1.5], [0.0]]
    assert merge(accumulator.statistics(), collect([[3.0], [3.0]], [1, 1])).means.tolist() == [[1.5], [3.0]]


@pytest.mark.parametrize("width", [3, LONG_ROW])
@pytest.mark.parametrize(
    ("values", "message"), [([np.inf, -np.inf], "row 1, column 0 is inf"), ([1.7e308, -1.7e308], "overflow")]
)
def test_rows_are_refused_without_a_word_of_numpy(way, width, values, message):
    features = np.zeros((3, width))
    features[1:, 0] = values
    with pytest.raises(InputError, match=message):
        collect(features)


def test_squares_that_overflow_only_together_with_earlier_rows_are_refused_before_they_count(way):
    accumulator = Accumulator(n_features=1)
    large = np.array([[0.0], [1.2e154]])
    accumulator.add(large)
    before = accumulator.statistics()
    with pytest.raises(InputError, match="squares overflow float64"):
        accumulator.add(-large)
    np.testing.assert_array_equal(accumulator.statistics().scatter, before.scatter)
    np.testing.assert_array_equal(accumulator.statistics().means, before.means)


def test_a_fit_leaves_the_statistics_of_others_as_they_are():
    statistics = collect([[0.0], [2.0], [5.0], [9.0]], [0, 0, 1, 1])
    gaussians = TiedGaussians.from_statistics(statistics)
    statistics.means[0] = 7.0
    assert gaussians.class_means.tolist() == [[1.0], [7.0]]


def test_statistics_can_be_asked_for_on_the_way_and_do_not_change_afterwards():
    features, labels = labelled_rows(0)
    accumulator = Accumulator(n_features=6, classes=range(4))
    accumulator.add(features[:150], labels[:150])
    halfway = accumulator.statistics()
    kept = halfway.scatter.copy(), halfway.means.copy()
    accumulator.add(features[150:], labels[150:])
    assert_same(accumulator.statistics(), collect(features, labels))
    np.testing.assert_array_equal(halfway.scatter, kept[0])
    np.testing.assert_array_equal(halfway.means, kept[1])


def test_an_unseen_class_is_refused_by_row():
    accumulator = Accumulator(n_features=1, classes=[0, 1])
    with pytest.raises(InputError, match=r"row 1 is 5, which is not among the 2 classes.*classes=\[\.\.\.\]"):
        accumulator.add([[1.0], [2.0]], [0, 5])


@pytest.mark.parametrize(
    ("second", "message"),
    [
        (lambda: collect([[1.0, 2.0]], [0]), "one fit has 1 features and the other 2"),
        (lambda: collect([[1.0]], ["a"]), "one kind of label"),
    ],
)
def test_fits_that_do_not_match_cannot_be_merged(second, message):
    with pytest.raises(InputError, match=message):
        merge(collect([[1.0]], [0]), second())
