"""The passes in C: the same numbers as NumPy's way, whatever lies in memory and whoever asks."""

import copy
import os
import pickle
import subprocess
import sys
import threading
import tracemalloc
import warnings
from itertools import product

import numpy as np
import pytest
from scipy.spatial.distance import cdist
from scipy.special import logsumexp

from gem_ood import GEM, Mahalanobis
from gem_ood.errors import InputError, RankWarning
from gem_ood.gaussians import TiedGaussians, collect, distances, native
from gem_ood.scores.gaussian import gem_scores, mahalanobis_scores

WIDEST = native.instructions()
COMPILED = [
    name for name in native.INSTRUCTIONS[1:] if native.INSTRUCTIONS.index(name) <= native.INSTRUCTIONS.index(WIDEST)
]

pytestmark = pytest.mark.skipif(not COMPILED, reason="the passes in C were not built, or this processor lacks AVX2")


@pytest.fixture(params=COMPILED)
def instructions(request):
    native.limit_instructions(request.param)
    assert native.instructions() == request.param
    yield request.param
    native.limit_instructions(WIDEST)


def gaussians(*, m=48, k=7, kind="full", spread=1.0, seed=0):
    rng = np.random.default_rng(seed)
    root = np.eye(m) + 0.05 * rng.normal(size=(m, m))
    if kind == "singular":
        root[:, : m // 6] = 0.0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RankWarning)
        return TiedGaussians.from_parameters(spread * rng.normal(size=(k, m)), root @ root.T)


def rows_of(model, n, dtype, seed=1):
    rng = np.random.default_rng(seed)
    noise = rng.normal(size=(n, model.n_features))
    return (model.class_means[np.arange(n) % model.n_classes] + noise).astype(dtype)


@pytest.mark.parametrize("is_weighted", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("sizes", list(product([2, 32, 33, 1000], [1, 6, 7, 300])))
@pytest.mark.parametrize("kind_and_width", [("full", 48), ("full", 33), ("full", 391), ("singular", 48)])
def test_distances_and_sums_are_those_of_the_textbook(instructions, kind_and_width, sizes, dtype, is_weighted):
    (kind, m), (n_rows, n_classes) = kind_and_width, sizes
    model = gaussians(m=m, k=n_classes, kind=kind, spread=0.2)
    rows = rows_of(model, n_rows, dtype)
    weights = np.random.default_rng(2).uniform(0.1, 1.0, n_classes) if is_weighted else np.ones(n_classes)
    found = model.distances(rows, log_weights=np.log(weights) if is_weighted else None)
    assert found.halves.dtype == model.working_dtype(dtype)
    whitener = model.factor.whitener
    halves = 0.5 * cdist(rows.astype(np.float64) @ whitener, model.class_means @ whitener, "sqeuclidean")
    least = halves.min(axis=1)
    tolerance = 64 * np.finfo(found.halves.dtype).eps
    np.testing.assert_allclose(found.halves, least, rtol=tolerance)
    np.testing.assert_allclose(halves[np.arange(n_rows), found.best], least, rtol=tolerance)
    expected = logsumexp(least[:, np.newaxis] - halves, b=weights, axis=1)
    np.testing.assert_allclose(found.log_sums, expected, atol=tolerance * (1.0 + np.abs(halves).max()))


def test_every_exponential_down_to_what_is_negligible_is_right(instructions):
    for dtype, tolerance in ((np.float64, 4e-16), (np.float32, 2e-7)):
        differences = np.linspace(0.0, 60.0, 4001)
        # Two classes on one axis: the logits of a row on the first mean differ by half the squared distance.
        means = np.zeros((2, 40))
        sums = np.empty(len(differences))
        rows = np.zeros((8, 40), dtype=dtype)
        for place, difference in enumerate(differences):
            means[1, 0] = np.sqrt(2.0 * difference)
            parameters = (np.zeros(40), np.eye(40), means, -0.5 * np.sum(means**2, axis=1))
            scorer = native.Scorer(*(array.astype(dtype) for array in parameters), is_triangular=True)
            halves, best, found = np.empty(8, dtype), np.empty(8, dtype=np.int64), np.empty(8, dtype)
            assert scorer.score(rows, halves, best, sums=found) == 0
            sums[place] = found[0]
            assert (halves == 0.0).all()
            assert (best == 0).all()
            assert len(set(found.tolist())) == 1
        used = np.maximum(-(np.sqrt(2.0 * differences).astype(dtype).astype(np.float64) ** 2) / 2.0, -44.0)
        np.testing.assert_allclose(sums, 1.0 + np.exp(used), rtol=tolerance)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_rows_score_does_not_depend_on_the_rows_beside_it(instructions, dtype):
    model = gaussians(k=12)
    rows = rows_of(model, 700, dtype)
    together = gem_scores(model, rows)
    for start, stop in ((0, 2), (3, 40), (31, 65), (100, 700)):
        np.testing.assert_array_equal(gem_scores(model, rows[start:stop]), together[start:stop])


def test_equal_classes_tie_for_the_first(instructions):
    means = np.repeat(np.random.default_rng(7).normal(size=(5, 40)), 2, axis=0)
    model = TiedGaussians.from_parameters(means, np.eye(40) + 0.1)
    nearest = np.empty(500, dtype=np.intp)
    scores = gem_scores(model, rows_of(model, 500, np.float64), nearest=nearest)
    assert (nearest % 2 == 0).all()
    alone = TiedGaussians.from_parameters(means[::2], np.eye(40) + 0.1)
    np.testing.assert_allclose(scores, gem_scores(alone, rows_of(model, 500, np.float64)) + np.log(2.0), rtol=1e-12)


def test_a_class_without_weight_adds_nothing_even_where_it_is_nearest(instructions):
    model = gaussians(k=3, spread=3.0)
    rows = rows_of(model, 300, np.float64)
    with np.errstate(divide="ignore"):
        found = gem_scores(model, rows, log_weights=np.log([0.0, 0.5, 0.5]))
    others = TiedGaussians.from_parameters(model.class_means[1:], model.covariance)
    np.testing.assert_allclose(found, gem_scores(others, rows) + np.log(0.5), rtol=1e-9)


@pytest.mark.parametrize(("spread", "tolerance"), [(3e3, 1e-12), (1e6, 1e-9)])
def test_weights_lose_nothing_where_classes_lie_far_apart(instructions, spread, tolerance):
    model = gaussians(m=40, k=10, spread=spread)
    rows = rows_of(model, 200, np.float64)
    weights = np.random.default_rng(4).uniform(0.1, 1.0, 10)
    alone = [gem_scores(model, row[np.newaxis], log_weights=np.log(weights))[0] for row in rows]
    np.testing.assert_allclose(gem_scores(model, rows, log_weights=np.log(weights)), alone, rtol=tolerance)


@pytest.mark.parametrize("n_weights", [1, 3, 8])
def test_weights_of_other_classes_are_refused(n_weights):
    model = gaussians(k=7)
    with pytest.raises(InputError, match=r"log_weights has shape \(\d,\) but there are 7 classes"):
        gem_scores(model, rows_of(model, 50, np.float64), log_weights=np.zeros(n_weights))


def test_rows_that_are_copied_come_in_chunks(instructions, monkeypatch):
    model = gaussians()
    rows = rows_of(model, 1000, np.float64)
    expected = gem_scores(model, rows)
    monkeypatch.setattr("gem_ood.features.CHUNK_BYTES", 1 << 16)
    np.testing.assert_array_equal(gem_scores(model, np.asfortranarray(rows)), expected)
    np.testing.assert_array_equal(gem_scores(model, rows), expected)
    rows[[700, 900], 3] = np.nan
    with pytest.raises(InputError, match=r"row 700, column 3 is NaN"):
        gem_scores(model, np.asfortranarray(rows))


def test_working_memory_is_shared_by_all_models_of_a_thread():
    model, wide = gaussians(), gaussians(m=300, k=50)
    rows, wide_rows = rows_of(model, 500, np.float32), rows_of(wide, 500, np.float32)
    expected = gem_scores(model, rows)
    gem_scores(wide, wide_rows)
    tracemalloc.start()
    for _ in range(3):
        np.testing.assert_array_equal(gem_scores(model, rows), expected)
        gem_scores(wide, wide_rows)
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept < 1 << 16


@pytest.mark.parametrize(
    "lay_out",
    [
        np.asfortranarray,
        lambda rows: np.repeat(rows, 2, axis=0)[::2],
        lambda rows: np.repeat(rows, 2, axis=1)[:, ::2],
        lambda rows: rows[::-1].copy()[::-1],
        lambda rows: np.ascontiguousarray(rows.T).T,
        lambda rows: np.frombuffer(b"x" + rows.tobytes(), dtype=np.uint8)[1:].view(rows.dtype).reshape(rows.shape),
        lambda rows: np.frombuffer(rows.tobytes(), dtype=rows.dtype).reshape(rows.shape),  # read-only
    ],
)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_rows_are_read_however_they_lie(instructions, lay_out, dtype):
    model = gaussians()
    rows = rows_of(model, 3000, dtype)
    np.testing.assert_array_equal(gem_scores(model, lay_out(rows)), gem_scores(model, rows))


@pytest.mark.parametrize("dtype", [np.float16, np.int32, np.uint8, bool, ">f4", ">f8"])
def test_rows_of_other_types_are_converted(instructions, dtype):
    model = gaussians()
    rows = (4.0 * rows_of(model, 200, np.float64)).clip(0.0, 100.0).astype(dtype)
    np.testing.assert_allclose(gem_scores(model, rows), gem_scores(model, rows.astype(np.float64)), rtol=1e-6)


def test_float32_rows_are_scored_in_float64_where_they_must_be(instructions):
    model = gaussians(spread=100.0)
    rows = rows_of(model, 200, np.float32)
    assert model.working_dtype(np.float32) == np.float64
    np.testing.assert_array_equal(gem_scores(model, rows), gem_scores(model, rows.astype(np.float64)))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_what_is_no_number_is_named_by_row(instructions, wrong, dtype):
    model = gaussians()
    rows = rows_of(model, 30_000, dtype)
    rows[[17_000, 29_999], [5, 2]] = wrong
    for score in (gem_scores, mahalanobis_scores):
        with pytest.raises(InputError, match=r"row 17000, column 5 is (NaN|infinity)"):
            score(model, rows)


@pytest.mark.parametrize("log_weights", [None, np.log([0.2, 0.3, 0.5])])
def test_rows_whose_squares_overflow_are_scored_again(instructions, log_weights):
    model = gaussians(k=3, spread=0.2)
    rows = rows_of(model, 100, np.float32)
    rows[[3, 50]] *= np.float32(1e25)
    assert model.working_dtype(np.float32) == np.float32
    nearest = np.empty(100, dtype=np.intp)
    scores = gem_scores(model, rows, log_weights=log_weights, nearest=nearest)
    np.testing.assert_allclose(scores, gem_scores(model, rows.astype(np.float64), log_weights=log_weights), rtol=1e-6)
    assert (scores[[3, 50]] < -1e40).all()
    wide = rows.astype(np.float64)
    wide[4] = 1e300
    assert gem_scores(model, wide)[4] == -np.inf
    assert mahalanobis_scores(model, wide)[4] == -np.inf
    np.testing.assert_array_equal(gem_scores(model, wide)[5:], gem_scores(model, rows.astype(np.float64))[5:])


@pytest.mark.parametrize("detector", [GEM(), GEM(priors="empirical"), Mahalanobis()])
def test_a_fitted_detector_is_copied_and_sent_after_it_has_scored(detector):
    rng = np.random.default_rng(3)
    features, labels = rng.normal(size=(500, 40)), np.arange(500) % 3
    fitted = copy.deepcopy(detector).fit(features, labels)
    scores = fitted.score_samples(features)
    for other in (copy.deepcopy(fitted), pickle.loads(pickle.dumps(fitted))):
        np.testing.assert_array_equal(other.score_samples(features), scores)


def test_many_threads_score_with_one_detector():
    model = gaussians(k=20)
    rows = rows_of(model, 2000, np.float32)
    expected, results = gem_scores(model, rows), [None] * 6

    def score(place):
        results[place] = [gem_scores(model, rows) for _ in range(20)]

    threads = [threading.Thread(target=score, args=(place,)) for place in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for result in results:
        for scores in result:
            np.testing.assert_array_equal(scores, expected)


def test_shared_work_gives_the_same_bits(monkeypatch):
    model = gaussians(k=5)
    rows = rows_of(model, 5001, np.float64)
    expected = gem_scores(model, rows)
    monkeypatch.setattr(distances, "FEWEST_SHARED_OPERATIONS", 1e5)
    monkeypatch.setattr("gem_ood.gaussians.parallel.blas_threads", lambda: 3)
    np.testing.assert_array_equal(gem_scores(model, rows), expected)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
@pytest.mark.parametrize("n", [1, 159, 160, 321])
@pytest.mark.parametrize("m", [1, 11, 12, 24, 25, 130, 391])
def test_rows_are_centred_and_added_to_totals_and_scatter(instructions, m, n, dtype):
    rng = np.random.default_rng(5)
    rows, shifts = rng.normal(size=(n, 2 * m)).astype(dtype)[:, :m], rng.normal(size=(9, m))
    places, others = rng.integers(0, 9, n), rng.integers(0, 4, n)
    totals, matrix = rng.normal(size=(4, m)), np.asfortranarray(rng.normal(size=(m, m)))
    centred = rows.astype(np.float64) - shifts[places]
    expected_totals, expected = totals.copy(), matrix + 2.0 * centred.T @ centred
    scatter = native.Scatter(m)
    for _ in range(2):
        scatter.add(rows, shift_places=places, shifts=shifts, total_places=others, totals=totals)
        np.add.at(expected_totals, others, centred)
    np.testing.assert_allclose(totals, expected_totals, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(scatter.squares(), np.diag(2.0 * centred.T @ centred), rtol=1e-13)
    above = np.triu(matrix, 1)
    scatter.add_to(matrix)
    np.testing.assert_allclose(np.tril(matrix), np.tril(expected), rtol=1e-12, atol=1e-11)
    np.testing.assert_array_equal(np.triu(matrix, 1), above)


def test_a_scatter_keeps_to_the_vectors_that_it_began_with(instructions):
    rows, places, shifts = (
        np.random.default_rng(8).normal(size=(50, 13)),
        np.zeros(50, dtype=np.int64),
        np.zeros((1, 13)),
    )
    scatter, totals, matrix = native.Scatter(13), np.zeros((1, 13)), np.zeros((13, 13), order="F")
    native.limit_instructions(WIDEST if instructions != WIDEST else COMPILED[0])
    scatter.add(rows, shift_places=places, shifts=shifts, total_places=places, totals=totals)
    scatter.add_to(matrix)
    np.testing.assert_allclose(matrix, np.tril(rows.T @ rows), rtol=1e-12)
    np.testing.assert_allclose(scatter.squares(), np.sum(rows**2, axis=0), rtol=1e-12)


@pytest.mark.parametrize("shape", [(50, 12), (50, 14), (49, 13), (51, 13), (50, 1)])
def test_a_scatter_reads_no_other_memory_than_its_rows(shape):
    places, shifts = np.zeros(50, dtype=np.int64), np.zeros((1, 13))
    with pytest.raises(ValueError, match="would read other memory"):
        native.Scatter(13).add(
            np.ones(shape), shift_places=places, shifts=shifts, total_places=places, totals=np.zeros((1, 13))
        )


@pytest.mark.parametrize(
    "other",
    [
        {"shift_places": np.zeros(50, dtype=np.int32)},
        {"total_places": np.zeros(49, dtype=np.int64)},
        {"shifts": np.zeros((1, 13), dtype=np.float32)},
        {"shifts": np.zeros((2, 13), order="F")},
        {"totals": np.zeros((1, 12))},
    ],
)
def test_a_scatter_reads_no_other_memory_than_what_it_is_told(other):
    places = np.zeros(50, dtype=np.int64)
    given = {"shift_places": places, "shifts": np.zeros((1, 13)), "total_places": places, "totals": np.zeros((1, 13))}
    native.Scatter(13).add(np.ones((50, 13)), **given)
    with pytest.raises(ValueError, match="would read other memory"):
        native.Scatter(13).add(np.ones((50, 13)), **given | other)


def test_only_known_instructions_are_asked_for():
    with pytest.raises(ValueError, match="need one of AVX2, AVX-512, not none"):
        native.limit_instructions("none")


@pytest.mark.parametrize(
    "matrix",
    [
        np.zeros((13, 13)),
        np.zeros((12, 12), order="F"),
        np.broadcast_to(0.0, (13, 13)),
        np.zeros((13, 13), dtype=np.float32, order="F"),
    ],
)
def test_a_scatter_writes_to_nothing_but_a_matrix_of_its_own_size(matrix):
    with pytest.raises(ValueError, match="can only write to a writeable Fortran-ordered float64 matrix"):
        native.Scatter(13).add_to(matrix)


@pytest.mark.parametrize(("n", "m"), [(3000, 30), (80, 100)])
def test_a_fit_without_the_passes_in_c_is_the_same(instructions, n, m, monkeypatch):
    rng = np.random.default_rng(6)
    features, labels = rng.normal(size=(n, m)).astype(np.float32), rng.integers(0, 300, n)
    compiled = collect(features, labels)
    monkeypatch.setattr(native, "library", lambda: None)
    plain = collect(features, labels)
    np.testing.assert_allclose(compiled.means, plain.means, rtol=1e-13, atol=1e-15)
    np.testing.assert_allclose(compiled.scatter, plain.scatter, rtol=1e-12, atol=1e-10)


SCORED_ALONE = """
import numpy as np
from gem_ood import GEM
from gem_ood.gaussians import native
rng = np.random.default_rng(0)
labels = np.arange(2000) % 10
features = rng.normal(size=(2000, 40)) + rng.normal(size=(10, 40))[labels]
print(native.instructions())
print(*GEM().fit(features, labels).score_samples(features[:50]))
"""


def test_the_environment_can_ask_for_numpy_alone():
    outputs = []
    for switch in ("1", "0"):
        environment = {**os.environ, native.SWITCH: switch}
        done = subprocess.run(
            [sys.executable, "-c", SCORED_ALONE], env=environment, capture_output=True, text=True, check=True
        )
        outputs.append(done.stdout.splitlines())
    (with_them, scores), (without, others) = outputs
    assert with_them == WIDEST
    assert without == "none"
    np.testing.assert_allclose(np.array(scores.split(), float), np.array(others.split(), float), rtol=1e-12)


def test_a_library_of_another_system_is_left_alone(monkeypatch, tmp_path):
    damaged = tmp_path / "passes.so"
    damaged.write_bytes(b"\x7fELF of something else")
    monkeypatch.setattr(native, "LIBRARY", damaged)
    assert native.library.__wrapped__() is None
    monkeypatch.setattr(native, "LIBRARY", tmp_path / "absent.so")
    assert native.library.__wrapped__() is None


def test_a_library_of_another_source_is_left_alone(monkeypatch):
    assert native.library.__wrapped__() is not None
    monkeypatch.setattr(native, "source_digest", lambda: "0123456789abcdef")
    assert native.library.__wrapped__() is None
