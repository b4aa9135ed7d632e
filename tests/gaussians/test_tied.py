"""TiedGaussians against SciPy, its accuracy in both precisions, and its laws."""

import tracemalloc
import warnings
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.spatial.distance import cdist
from scipy.special import logsumexp, softmax
from scipy.stats import multivariate_normal

from gem_ood import GEM
from gem_ood.errors import InputError, RankWarning
from gem_ood.gaussians import TiedGaussians, collect
from gem_ood.gaussians.kernel import FEW_CLASSES, FEW_ROWS
from gem_ood.gaussians.native import library
from gem_ood.gaussians.tied import FLOAT32_ERROR_LIMIT
from gem_ood.scores import gem_scores, mahalanobis_scores

#: The figures the scores must reach, by the condition number of the covariance.
ACCURACY = {1e2: 1e-6, 1e4: 1e-6, 1e6: 1e-4, 1e8: 1e-4}


def gaussians(seed=0, m=4, k=3, priors=(0.2, 0.5, 0.3)):
    generator = np.random.default_rng(seed)
    root = generator.normal(size=(m, m))
    return TiedGaussians.from_parameters(3 * generator.normal(size=(k, m)), root @ root.T + np.eye(m), priors=priors)


def points(seed=1, n=50, m=4):
    return 4 * np.random.default_rng(seed).normal(size=(n, m))


def test_class_log_densities_are_scipys():
    model, x = gaussians(), points()
    expected = [multivariate_normal(mean, model.covariance).logpdf(x) for mean in model.class_means]
    np.testing.assert_allclose(model.log_densities(x), np.transpose(expected), rtol=1e-10)


def test_the_mixture_density_is_normalised_and_weighted():
    model, x = gaussians(), points()
    joint = [multivariate_normal(mean, model.covariance).pdf(x) for mean in model.class_means]
    np.testing.assert_allclose(np.exp(model.log_density(x)), model.priors @ joint, rtol=1e-9)


def test_the_posterior_is_bayes():
    model, x = gaussians(), points()
    np.testing.assert_allclose(
        model.posterior(x), softmax(model.log_densities(x) + np.log(model.priors), axis=1), rtol=1e-9, atol=1e-300
    )


def test_the_posterior_of_a_row_infinitely_far_from_all_is_the_prior():
    model = TiedGaussians.from_parameters([[0.0], [4.0]], [[1.0]], priors=[0.3, 0.7])
    np.testing.assert_allclose(model.posterior([[1e300], [0.0]])[0], [0.3, 0.7])


@pytest.fixture(params=["passes in C", "NumPy"])
def way(request):
    """Both ways to a score."""
    if request.param == "passes in C":
        if library() is None:
            pytest.skip("the passes in C were not built, or this processor lacks AVX2")
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gem_ood.gaussians.kernel.library", lambda: None)
        yield


def test_squared_distances_are_scipys():
    model, x = gaussians(), points()
    expected = cdist(x, model.class_means, "mahalanobis", VI=np.linalg.inv(model.covariance)) ** 2
    np.testing.assert_allclose(model.squared_distances(x), expected, rtol=1e-9)


def test_samples_have_the_moments_and_the_priors():
    model = gaussians()
    rows, names = model.sample(200_000, random_state=0)
    shares = np.bincount(names) / len(names)
    # Five standard errors of a share is 0.0056; of a mean or covariance entry under 0.1.
    np.testing.assert_allclose(shares, model.priors, atol=0.006)
    statistics = collect(rows, names)
    np.testing.assert_allclose(statistics.means, model.class_means, atol=0.1)
    np.testing.assert_allclose(statistics.scatter / len(rows), model.covariance, atol=0.15)
    again, _ = model.sample(10, random_state=0)
    np.testing.assert_array_equal(again, model.sample(10, random_state=np.random.default_rng(0))[0])


@given(st.integers(0, 10**6))
def test_scores_are_invariant_to_affine_maps_of_the_features(seed):
    generator = np.random.default_rng(seed)
    features, labels = generator.normal(size=(120, 4)), np.arange(120) % 3
    features += 2 * generator.normal(size=(3, 4))[labels]
    rotation, _ = np.linalg.qr(generator.normal(size=(4, 4)))
    matrix, shift = rotation * generator.uniform(0.2, 5.0, 4), 50 * generator.normal(size=4)
    plain, mapped = GEM().fit(features, labels), GEM().fit(features @ matrix + shift, labels)
    queries = 3 * generator.normal(size=(30, 4))
    np.testing.assert_allclose(
        mapped.score_samples(queries @ matrix + shift), plain.score_samples(queries), rtol=1e-7, atol=1e-9
    )


#: Variances of the directions, given how many there are and the condition number.
SPECTRA = {
    "even": lambda m, condition: np.geomspace(1.0, 1.0 / condition, m),
    "one small": lambda m, condition: np.append(np.ones(m - 1), 1.0 / condition),
    "one large": lambda m, condition: np.append(np.ones(m - 1), condition),
}


def conditioned(condition, offset, dtype, *, m=64, k=10, n=4000, spread=2.0, seed=0, spectrum="even"):
    generator = np.random.default_rng(seed)
    rotation, _ = np.linalg.qr(generator.normal(size=(m, m)))
    root = rotation * np.sqrt(SPECTRA[spectrum](m, condition))
    labels = np.arange(n) % k
    means = spread * generator.normal(size=(k, m)) @ root.T
    features = (generator.normal(size=(n, m)) @ root.T + means[labels] + offset).astype(dtype)
    return features, labels


def reference(features, labels, queries):
    """Textbook scores in extended precision wherever NumPy has it."""
    wide, asked = features.astype(np.longdouble), queries.astype(np.longdouble)
    means = np.array([wide[labels == name].mean(axis=0) for name in np.unique(labels)])
    residuals = wide - means[labels]
    covariance = residuals.T @ residuals / len(wide)
    scale = np.sqrt(np.diag(covariance))
    inverse = np.linalg.inv((covariance / scale[:, None] / scale).astype(float)).astype(np.longdouble)
    for _ in range(3):  # Newton's iteration lifts the float64 inverse to extended precision
        inverse = inverse @ (2 * np.eye(len(inverse)) - (covariance / scale[:, None] / scale) @ inverse)
    distances = np.empty((len(asked), len(means)))
    for place, mean in enumerate(means):
        scaled = (asked - mean) / scale
        distances[:, place] = np.sum((scaled @ inverse) * scaled, axis=1)
    return distances


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("spread", [0.3, 2.0])
@pytest.mark.parametrize("offset", [0.0, 1e4])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("condition", ACCURACY)
def test_scores_reach_the_promised_accuracy(condition, dtype, offset, spread):
    features, labels = conditioned(condition, offset, dtype, spread=spread)
    queries = features[:500]
    distances = reference(features, labels, queries)
    model = TiedGaussians.from_statistics(collect(features, labels))
    for scores, expected in (
        (gem_scores(model, queries), logsumexp(-0.5 * distances, axis=1)),
        (mahalanobis_scores(model, queries), -distances.min(axis=1)),
    ):
        assert np.max(np.abs(scores - expected) / np.abs(expected)) < ACCURACY[condition]


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_classes_thousands_of_sigma_apart_lose_nothing(dtype):
    features, labels = conditioned(10.0, 0.0, dtype, spread=3000.0)
    distances = reference(features, labels, features[:300])
    model = TiedGaussians.from_statistics(collect(features, labels))
    expected = logsumexp(-0.5 * distances, axis=1)
    assert np.max(np.abs(gem_scores(model, features[:300]) / expected - 1.0)) < 1e-6


def test_float32_rows_are_scored_in_float32_only_where_that_is_accurate():
    for condition, spread, working in ((4.0, 0.3, np.float32), (1e8, 0.3, np.float64), (4.0, 50.0, np.float64)):
        model = TiedGaussians.from_statistics(collect(*conditioned(condition, 0.0, np.float32, spread=spread)))
        assert model.working_dtype(np.float32) == working
        assert model.working_dtype(np.float64) == np.float64


@pytest.fixture(scope="module")
def float32_errors():
    """Of many models: the prediction, whether float32 is taken, and its true error on usual rows and on far ones."""
    found = []
    kinds = product(SPECTRA, (32, 64, 256), (1, 2, 30), (1e2, 1e3, 5e3, 1e4), (0.1, 0.5, 3.0))
    for seed, (spectrum, m, k, condition, spread) in enumerate(kinds):
        features, labels = conditioned(
            condition, 0.0, np.float32, m=m, k=k, n=1500, spread=spread, seed=seed, spectrum=spectrum
        )
        model = TiedGaussians.from_statistics(collect(features, labels))
        is_taken = model.working_dtype(np.float32) == np.float32
        variances, directions = np.linalg.eigh(model.covariance)
        far = features + (np.sqrt(m * variances[-1]) * directions[:, -1]).astype(np.float32)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("gem_ood.gaussians.tied.FLOAT32_ERROR_LIMIT", np.inf)
            usual_error = max(_error(model, features), _error(model, 2.0 * features))
            found.append((model.float32_error, is_taken, usual_error, _error(model, far)))
    return np.array(found).T


def _error(model, rows):
    """The largest error of float32 scores, relative to the score or, where that is more, to the rank."""
    errors = []
    for score in (gem_scores, mahalanobis_scores):
        narrow, exact = score(model, rows), score(model, rows.astype(np.float64))
        errors.append(np.max(np.abs(narrow - exact) / np.maximum(np.abs(exact), model.rank)))
    return max(errors)


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("m", [32, 64, 256])
@pytest.mark.parametrize(
    ("condition", "spread"), [(1.0, 0.2), (1.0, 1.2), (1.0, 2.0), (1e2, 0.3), (1e3, 0.2), (1e3, 10.0)]
)
def test_the_predicted_float32_error_is_not_exceeded(monkeypatch, m, condition, spread):
    for seed in (2, 3):
        features, labels = conditioned(condition, 0.0, np.float32, m=m, k=30, n=2500, spread=spread, seed=seed)
        model = TiedGaussians.from_statistics(collect(features, labels))
        exact = [score(model, features.astype(np.float64)) for score in (gem_scores, mahalanobis_scores)]
        monkeypatch.setattr("gem_ood.gaussians.tied.FLOAT32_ERROR_LIMIT", np.inf)
        narrow = [score(model, features) for score in (gem_scores, mahalanobis_scores)]
        monkeypatch.undo()
        for value, expected in zip(narrow, exact, strict=True):
            assert 0.0 < np.max(np.abs(value / expected - 1.0)) <= model.float32_error


def test_nor_is_it_exceeded_on_a_grid_of_spectra(float32_errors):
    predicted, _, error, _ = float32_errors
    assert (error > 0.0).all()
    assert (error <= predicted).all()


def test_float32_is_taken_only_where_it_errs_less_than_was_promised(float32_errors):
    predicted, is_taken, error, far_error = float32_errors
    assert error[is_taken == 1.0].max() <= 1e-6
    assert far_error[is_taken == 1.0].max() <= 4e-6
    # Models on both sides of the limit and near it, so that another one would be noticed.
    assert np.sum(predicted[is_taken == 1.0] > 0.9 * FLOAT32_ERROR_LIMIT) >= 3
    assert np.sum(predicted[is_taken == 0.0] < 1.1 * FLOAT32_ERROR_LIMIT) >= 3


@pytest.mark.parametrize("m", [64, 256])
@pytest.mark.parametrize(("reach", "working"), [(0.5, np.float32), (5.0, np.float64), (30.0, np.float64)])
def test_neighbours_far_from_the_centre_count_in_the_predicted_float32_error(monkeypatch, m, reach, working):
    generator = np.random.default_rng(4)
    clusters = reach * generator.normal(size=(4, m))
    means = clusters[np.arange(20) // 5] + generator.normal(size=(20, m)) * (3.0 / np.sqrt(m))
    labels = np.arange(2000) % 20
    features = (means[labels] + generator.normal(size=(2000, m))).astype(np.float32)
    neighbours = np.arange(400) // 20  # rows between two classes of one cluster
    between = 0.5 * (means[neighbours] + means[neighbours // 5 * 5 + np.arange(400) % 5])
    queries = np.concatenate([features[:400], (between + generator.normal(size=(400, m))).astype(np.float32)])
    model = TiedGaussians.from_statistics(collect(features, labels))
    assert model.working_dtype(np.float32) == working
    expected = gem_scores(model, queries.astype(np.float64))
    monkeypatch.setattr("gem_ood.gaussians.tied.FLOAT32_ERROR_LIMIT", np.inf)
    error = np.max(np.abs(gem_scores(model, queries) / expected - 1.0))
    assert 0.0 < error <= model.float32_error
    assert working == np.float64 or error < 1e-6


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("n_rows", [3, FEW_ROWS, FEW_ROWS + 1, 3000])
@pytest.mark.parametrize("n_classes", [1, FEW_CLASSES, FEW_CLASSES + 1, 300])
@pytest.mark.parametrize("kind", ["diagonal", "triangular", "singular"])
def test_what_is_handed_over_are_distances_to_every_class_and_to_the_nearest(kind, n_classes, n_rows, dtype):
    rng = np.random.default_rng(6)
    means = rng.normal(size=(n_classes, 48))
    root = np.eye(48) if kind == "diagonal" else np.eye(48) + 0.05 * rng.normal(size=(48, 48))
    if kind == "singular":
        root[:, :8] = 0.0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RankWarning)
        model = TiedGaussians.from_parameters(means, root @ root.T)
    rows = (means[np.arange(n_rows) % n_classes] + rng.normal(size=(n_rows, 48))).astype(dtype)
    found = np.empty((n_rows, n_classes)), np.empty(n_rows), np.empty(n_rows, dtype=int), np.empty(n_rows)

    def keep(place, terms):
        for kept, term in zip(found, terms, strict=True):
            kept[place] = term

    model.linear_terms(rows, keep)
    logits, largest, best, halves = found
    np.testing.assert_array_equal(best, logits.argmax(axis=1))
    whitener = model.factor.whitener
    assert whitener.shape[1] == (40 if kind == "singular" else 48)
    expected = cdist(rows.astype(np.float64) @ whitener, means @ whitener, "sqeuclidean")
    tolerance = 32 * np.finfo(dtype).eps
    np.testing.assert_array_equal(largest, logits.max(axis=1))
    np.testing.assert_allclose(halves, 0.5 * expected.min(axis=1), rtol=tolerance)
    np.testing.assert_allclose((logits.T - largest - halves).T, -0.5 * expected, rtol=4 * tolerance)


def test_rows_between_classes_of_one_mean_have_the_distance_to_it():
    means = np.repeat(np.random.default_rng(7).normal(size=(5, 40)), 2, axis=0)  # every logit ties with another
    model = TiedGaussians.from_parameters(means, np.eye(40))
    nearest = np.empty(2000, dtype=np.intp)
    rows = means[np.arange(2000) % 10]
    np.testing.assert_allclose(mahalanobis_scores(model, rows, nearest=nearest), 0.0, atol=1e-12)
    np.testing.assert_array_equal(nearest // 2, np.arange(2000) % 10 // 2)


@pytest.mark.parametrize("n_rows", [1, 10_000, 60_000])
def test_scoring_holds_one_chunk_whatever_the_rows(monkeypatch, n_rows):
    monkeypatch.setattr("gem_ood.gaussians.workspace._kept", [])
    model = TiedGaussians.from_statistics(collect(*conditioned(2.0, 0.0, np.float32, n=2000)))
    features = np.zeros((n_rows, 64), dtype=np.float32)
    gem_scores(model, features[:1])
    tracemalloc.start()
    scores = gem_scores(model, features)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak - scores.nbytes < 16e6


def test_rows_beyond_float32_are_rescued_and_beyond_float64_are_infinitely_far():
    model = TiedGaussians.from_statistics(collect(*conditioned(2.0, 0.0, np.float32)))
    huge = np.full((1, 64), 1e30, dtype=np.float32)
    np.testing.assert_allclose(gem_scores(model, huge), gem_scores(model, huge.astype(float)), rtol=1e-6)
    assert gem_scores(model, np.full((1, 64), 1e200)).tolist() == [-np.inf]


def test_many_rows_of_one_feature_and_many_classes_are_scored_in_chunks():
    model = TiedGaussians.from_parameters(np.arange(500.0)[:, np.newaxis], [[1.0]])
    rows = np.linspace(0.0, 500.0, 60_000)[:, np.newaxis]
    gem_scores(model, rows[:1])
    tracemalloc.start()
    scores = gem_scores(model, rows)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak - scores.nbytes < 32e6  # all exponents at once would be 240 MB


def test_means_beyond_the_squares_of_float64_are_refused():
    with pytest.raises(InputError, match="squared distances overflow float64; rescale"):
        gem_scores(TiedGaussians.from_parameters([[1e200], [-1e200]], [[1.0]]), [[1e200]])


def test_a_row_at_a_class_mean_has_distance_zero_and_no_sign():
    scores = mahalanobis_scores(TiedGaussians.from_parameters([[0.0], [4.0]], [[1.0]]), [[4.0]])
    assert scores == 0.0
    assert not np.signbit(scores[0])


def test_the_parts_of_a_fitted_value_cannot_be_changed():
    model = gaussians()
    with pytest.raises(ValueError, match="read-only"):
        model.class_means[0, 0] = 9.0
    with pytest.raises(AttributeError):
        model.shrinkage = 0.5


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        (([[0.0, 0.0]], [[1.0]]), {}, "covariance has shape .* pass a 2 × 2 matrix"),
        (([[0.0]], [[-1.0]]), {}, "not positive semi-definite"),
        (([[0.0, 0.0]], [[1.0, 2.0], [2.0, 1.0]]), {}, "not positive semi-definite.* eigenvalue -1"),
        (([[0.0, 0.0]], [[1.0, 0.5], [0.0, 1.0]]), {}, "not symmetric"),
        (([[np.nan]], [[1.0]]), {}, "class_means row 0, column 0 is NaN"),
        (([[0.0]], [[1.0]]), {"priors": [0.5, 0.5]}, "priors has shape .* there are 1 classes"),
        (([[0.0], [1.0]], [[1.0]]), {"priors": [0.7, 0.7]}, "sum to 1, but they sum to 1.4"),
        (([[0.0], [1.0]], [[1.0]]), {"classes": ["a"]}, "classes has 1 names but class_means has 2 rows"),
    ],
)
def test_bad_parameters_are_refused(arguments, options, message):
    with pytest.raises(InputError, match=message):
        TiedGaussians.from_parameters(*arguments, **options)


@pytest.mark.parametrize("priors", ["equal", [0.5, 0.2], [-1.0, 1.0, 1.0], [[1.0]], {"a": 1}])
def test_bad_priors_are_refused(priors, blobs):
    with pytest.raises(InputError, match="priors"):
        GEM(priors=priors).fit(blobs[0], blobs[1])


def test_rows_of_another_width_are_refused():
    with pytest.raises(InputError, match="features has 3 columns but the fit has 4"):
        gaussians().squared_distances(np.zeros((1, 3)))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_diagonal_covariance_is_whitened_by_scaling_and_gives_the_textbook_distances(dtype):
    rng = np.random.default_rng(5)
    means, variances = rng.normal(size=(7, 40)), rng.uniform(0.5, 2.0, size=40)
    gaussians = TiedGaussians.from_parameters(means, np.diag(variances))
    rows = rng.normal(size=(300, 40)).astype(dtype)
    expected = (((rows.astype(np.float64)[:, np.newaxis] - means) ** 2) / variances).sum(axis=2)
    assert gaussians.kernel(dtype).scales is not None
    np.testing.assert_allclose(gaussians.squared_distances(rows), expected, rtol=2e-6)
