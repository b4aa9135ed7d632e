"""The paper's identities between Gaussian scores, each to 1e-10, in two and in thousands of dimensions."""

from functools import cache

import numpy as np
import pytest
from scipy.special import logsumexp, softmax

from gem_ood import scores
from gem_ood.errors import InputError, RankWarning
from gem_ood.gaussians import TiedGaussians, collect


@cache
def model(m, k=5, seed=0, priors=None):
    generator = np.random.default_rng(seed)
    covariance = np.diag(generator.uniform(0.5, 2.0, m)) + 0.1 / m
    return TiedGaussians.from_parameters(generator.normal(size=(k, m)), covariance, priors=priors)


def rows(m, n=60, seed=1):
    return 1.5 * np.random.default_rng(seed).normal(size=(n, m))


@pytest.fixture(params=[2, 64, 4096])
def case(request):
    return model(request.param), rows(request.param)


def test_gem_is_the_log_density_up_to_a_constant_p12(case):
    gaussians, x = case
    constant = np.log(gaussians.n_classes) + gaussians.log_normalizer
    np.testing.assert_allclose(scores.gem_scores(gaussians, x), gaussians.log_density(x) + constant, rtol=1e-10)


def test_gem_gives_the_ideal_classifiers_verdicts_p12(case):
    gaussians, x = case
    log_threshold = float(np.median(gaussians.log_density(x))) + 1e-7
    cut = scores.gem_threshold(gaussians, log_threshold=log_threshold)
    ideal = scores.ideal(gaussians, x, log_threshold=log_threshold)
    assert 0 < ideal.sum() < len(x)
    np.testing.assert_array_equal(scores.gem_scores(gaussians, x) >= cut, ideal)


def test_weighted_gem_gives_the_ideal_verdicts_without_k_e11():
    gaussians, x = model(8, priors=(0.1, 0.2, 0.3, 0.25, 0.15)), rows(8)
    log_threshold = float(np.median(gaussians.log_density(x))) + 1e-7
    weighted = scores.weighted_gem(gaussians.exponents(x), gaussians.priors)
    cut = scores.gem_threshold(gaussians, log_threshold=log_threshold, weighted=True)
    np.testing.assert_array_equal(weighted >= cut, scores.ideal(gaussians, x, log_threshold=log_threshold))
    np.testing.assert_allclose(weighted, gaussians.log_density(x) + gaussians.log_normalizer, rtol=1e-10)


def test_the_same_holds_for_gaussians_fitted_in_feature_space_p13():
    generator = np.random.default_rng(3)
    labels = np.arange(300) % 3
    features = generator.normal(size=(300, 6)) + 4 * generator.normal(size=(3, 6))[labels]
    gaussians = TiedGaussians.from_statistics(collect(features, labels))
    constant = np.log(3) + gaussians.log_normalizer
    np.testing.assert_allclose(
        scores.gem_scores(gaussians, features), gaussians.log_density(features) + constant, rtol=1e-10, atol=1e-10
    )


def test_gem_lies_between_the_largest_exponent_and_log_k_above_it_p15(case):
    gaussians, x = case
    exponents = gaussians.exponents(x)
    gem, half = scores.gem(exponents), scores.mahalanobis(exponents) / 2.0  # the ½ of E10
    slack = 1e-10 * np.abs(gem)
    assert (half <= gem + slack).all()
    assert (gem <= half + np.log(gaussians.n_classes) + slack).all()


def test_gem_is_the_linear_heads_energy_minus_what_it_cannot_see_b7(case):
    gaussians, x = case
    quadratic = 0.5 * np.sum((x @ gaussians.factor.whitener) ** 2, axis=1)
    np.testing.assert_allclose(
        scores.gem_scores(gaussians, x), scores.linear_energy(gaussians, x) - quadratic, rtol=1e-10, atol=1e-9
    )


def test_the_linear_head_has_the_same_posterior_p6(case):
    gaussians, x = case
    weight, bias = gaussians.linear_head()
    np.testing.assert_allclose(softmax(x @ weight.T + bias, axis=1), gaussians.posterior(x), rtol=1e-7, atol=1e-300)


def test_the_linear_heads_energy_inverts_the_densitys_order_p16():
    gaussians = TiedGaussians.from_parameters([[2.0], [-2.0]], [[1.0]])
    near, far = np.array([[2.0]]), np.array([[50.0]])
    assert gaussians.log_density(near) > gaussians.log_density(far)
    assert scores.linear_energy(gaussians, near) < scores.linear_energy(gaussians, far)


def test_mahalanobis_is_not_equivalent_to_the_ideal_classifier_p14():
    gaussians = TiedGaussians.from_parameters([[-1.0], [1.0]], [[1.0]])
    middle, outside = np.array([[0.0]]), np.array([[1.99]])
    exponents = [gaussians.exponents(x) for x in (middle, outside)]
    assert scores.mahalanobis(exponents[0]) < scores.mahalanobis(exponents[1])
    assert gaussians.log_density(middle) > gaussians.log_density(outside)


def test_streamed_scores_equal_those_of_the_exponents(case):
    gaussians, x = case
    exponents = gaussians.exponents(x)
    np.testing.assert_allclose(scores.gem_scores(gaussians, x), scores.gem(exponents), rtol=1e-12)
    np.testing.assert_allclose(scores.mahalanobis_scores(gaussians, x), scores.mahalanobis(exponents), rtol=1e-12)
    np.testing.assert_array_equal(scores.log_rescaled(exponents), scores.gem(exponents))
    np.testing.assert_allclose(scores.gem(exponents), logsumexp(exponents, axis=1), rtol=1e-13)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("score", [scores.gem_scores, scores.mahalanobis_scores])
def test_a_row_scores_alone_as_among_others(case, score, dtype):
    gaussians, x = case
    x = x.astype(dtype)
    places = np.empty(len(x), dtype=np.intp)
    together = score(gaussians, x, nearest=places)
    tolerance = {"rtol": 5e-6 if dtype == np.float32 else 1e-12, "atol": 1e-6 if dtype == np.float32 else 1e-12}
    for n_rows in (1, 2, 4, 5):
        nearest = np.empty(n_rows, dtype=np.intp)
        np.testing.assert_allclose(score(gaussians, x[:n_rows], nearest=nearest), together[:n_rows], **tolerance)
        np.testing.assert_array_equal(nearest, places[:n_rows])


@pytest.mark.parametrize("dtype", ["int8", "uint64", "bool", "float16", ">f4"])
def test_a_row_of_any_number_scores_alone_as_among_others(dtype):
    x = np.random.default_rng(0).integers(0, 2, size=(9, 64)).astype(dtype)
    alone = [scores.gem_scores(model(64), row[np.newaxis])[0] for row in x]
    np.testing.assert_allclose(alone, scores.gem_scores(model(64), x), rtol=5e-6)


def test_a_row_scores_alone_where_the_covariance_lacks_rank():
    generator = np.random.default_rng(0)
    narrow = generator.normal(size=(200, 5))
    features = np.concatenate([narrow, narrow[:, :1] + narrow[:, 1:2]], axis=1)
    with pytest.warns(RankWarning, match="rank 5 of 6"):
        gaussians = TiedGaussians.from_statistics(collect(features, np.arange(200) % 3))
    alone = [scores.gem_scores(gaussians, row[np.newaxis])[0] for row in features[:9]]
    np.testing.assert_allclose(alone, scores.gem_scores(gaussians, features)[:9], rtol=1e-9)


@pytest.mark.parametrize("score", [scores.gem_scores, scores.mahalanobis_scores])
@pytest.mark.parametrize("n_rows", [1, 2, 5])
def test_few_rows_that_are_far_or_not_finite_are_scored_or_refused_as_many_are(score, n_rows):
    gaussians = model(64)
    far = np.full((n_rows, 64), 1e25, dtype=np.float32)  # its squares overflow float32 but not float64
    assert (score(gaussians, far) < -1e50).all()
    assert (score(gaussians, np.full((n_rows, 64), 1e200)) == -np.inf).all()
    for value, word in ((np.nan, "NaN"), (np.inf, "infinity")):
        broken = rows(64, n=n_rows)
        broken[-1, 3] = value
        with pytest.raises(InputError, match=rf"features row {n_rows - 1}, column 3 is {word}"):
            score(gaussians, broken)
    with pytest.raises(InputError, match="features has 63 columns but the fit has 64"):
        score(gaussians, rows(63, n=n_rows))


def test_nothing_underflows_in_four_thousand_dimensions():
    gaussians, x = model(4096), rows(4096, n=5)
    exponents = gaussians.exponents(x)
    assert np.exp(exponents).sum() == 0.0  # the plain form is gone
    for values in (scores.gem(exponents), scores.mahalanobis(exponents), gaussians.log_density(x)):
        assert np.isfinite(values).all()
        assert len(np.unique(values)) == 5


def test_the_nearest_mean_is_told_on_request():
    gaussians = TiedGaussians.from_parameters([[0.0], [4.0], [9.0]], [[1.0]])
    for score in (scores.gem_scores, scores.mahalanobis_scores):
        nearest = np.empty(3, dtype=np.intp)
        score(gaussians, [[8.0], [-3.0], [3.0]], nearest=nearest)
        assert nearest.tolist() == [2, 0, 1]


@pytest.mark.parametrize("weights", [[1.0], [-1.0, 2.0], [0.0, 0.0]])
def test_weights_that_are_none_are_refused(weights):
    with pytest.raises(InputError, match="one weight per class"):
        scores.weighted_gem([[0.0, 0.0]], weights)
