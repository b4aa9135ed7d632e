"""OpenMax's distances, Weibull fits and probabilities against SciPy and a textbook loop."""

import numpy as np
import pytest
from scipy.spatial import distance as scipy_distance
from scipy.stats import gumbel_l, weibull_min

from gem_ood.errors import InputError
from gem_ood.scores.openmax import TRANSLATION, ActivationModel, ClassMeans, fit_weibull, openmax

GENERATOR = np.random.default_rng(0)
LOGITS = 6.0 * GENERATOR.normal(size=(50, 6))
MEANS = 8.0 * np.eye(6) + GENERATOR.normal(size=(6, 6))


def make_model(distance="eucos", means=MEANS):
    generator = np.random.default_rng(1)
    tails = generator.uniform(0.02, 0.4, size=(len(means), 20))
    fits = np.array([fit_weibull(tail) for tail in tails])
    return ActivationModel(ClassMeans(means, distance=distance), tails.min(axis=1), fits[:, 0], fits[:, 1])


def log_likelihood(tail, shape, log_scale):
    moved = np.asarray(tail) - np.min(tail) + TRANSLATION
    return weibull_min.logpdf(moved, shape, scale=TRANSLATION * np.exp(log_scale)).sum()


@pytest.mark.parametrize("size", [2, 5, 20])
def test_the_fit_of_wide_tails_is_scipys(size):
    tail = 8000.0 * np.random.default_rng(size).weibull(1.5, size=size)
    shape, _, scale = weibull_min.fit(tail - tail.min() + TRANSLATION, floc=0)
    found, log_scale = fit_weibull(tail)
    np.testing.assert_allclose([found, TRANSLATION * np.exp(log_scale)], [shape, scale], rtol=1e-6)


def test_the_fit_of_narrow_tails_is_a_gumbel_distribution():
    tail = np.random.default_rng(3).gamma(2.0, 0.05, size=20)
    shape, log_scale = fit_weibull(tail)
    location, scale = gumbel_l.fit(tail - tail.min())
    np.testing.assert_allclose(TRANSLATION / shape, scale, rtol=1e-4)
    np.testing.assert_allclose(TRANSLATION * log_scale, location, rtol=1e-4)


@pytest.mark.parametrize(
    "tail", [[0.0, 1.0], [0.1, 0.1, 0.4], [0.0, 0.0, 0.0, 1e4], [1e-6, 2e-6, 5e-6], [0.0, 1e3, 1e148]]
)
def test_no_other_weibull_distribution_is_more_likely(tail):
    shape, log_scale = fit_weibull(tail)
    best = log_likelihood(tail, shape, log_scale)
    for stretch in (0.9, 1.1):
        assert log_likelihood(tail, stretch * shape, log_scale) < best
    for shift in (-0.3, 0.3):
        assert log_likelihood(tail, shape, log_scale + shift / shape) < best


@pytest.mark.parametrize("tail", [[0.3], [0.2, 0.2, 0.2], [0.2, 0.2 + 1e-16], [0.0, 0.0]])
def test_equal_distances_have_no_model(tail):
    assert fit_weibull(tail) == (0.0, 0.0)


@pytest.mark.parametrize("distance", ["eucos", "euclidean", "cosine"])
def test_distances_are_those_of_scipy(distance):
    places = np.random.default_rng(2).integers(0, 6, size=(50, 3))
    expected = np.zeros((50, 3))
    for (row, column), place in np.ndenumerate(places):
        if distance != "cosine":
            expected[row, column] += scipy_distance.euclidean(LOGITS[row], MEANS[place]) / 200.0
        if distance != "euclidean":
            expected[row, column] += scipy_distance.cosine(LOGITS[row], MEANS[place])
    np.testing.assert_allclose(ClassMeans(MEANS, distance=distance).distances(LOGITS, places), expected, rtol=1e-10)


def test_vectors_of_zeros_are_at_cosine_distance_one():
    means = ClassMeans(np.array([[0.0, 0.0], [1.0, 2.0]]), distance="cosine")
    rows = np.array([[0.0, 0.0], [1.0, 2.0]])
    np.testing.assert_allclose(means.distances(rows, np.array([[0, 1], [0, 1]])), [[1.0, 1.0], [1.0, 0.0]], atol=1e-15)


def test_an_unknown_distance_is_refused():
    with pytest.raises(InputError, match="pass one of 'eucos', 'euclidean', 'cosine'"):
        ClassMeans(MEANS, distance="manhattan")


def textbook_unknown(row, model, alpha, distance):
    """Algorithm 2, with the weights of the authors' code."""
    n_classes = len(row)
    alpha = min(alpha, n_classes)
    weights = np.ones(n_classes)
    for rank, place in enumerate(sorted(range(n_classes), key=lambda place: -row[place])[:alpha], start=1):
        mean = model.centres.means[place]
        apart = 0.0
        if distance != "cosine":
            apart += scipy_distance.euclidean(row, mean) / 200.0
        if distance != "euclidean":
            apart += scipy_distance.cosine(row, mean)
        moved = apart - model.smallest[place] + TRANSLATION
        outlying = weibull_min.cdf(moved, model.shapes[place], scale=TRANSLATION * np.exp(model.log_scales[place]))
        weights[place] = 1.0 - outlying * (alpha + 1 - rank) / alpha
    revised = row * weights
    unknown = (row * (1.0 - weights)).sum()
    return np.exp(unknown) / (np.exp(unknown) + np.exp(revised).sum())


@pytest.mark.parametrize("distance", ["eucos", "euclidean", "cosine"])
@pytest.mark.parametrize("alpha", [1, 3, 6, 10])
def test_the_score_is_the_log_odds_of_the_textbook(alpha, distance):
    model = make_model(distance)
    unknown = np.array([textbook_unknown(row, model, alpha, distance) for row in LOGITS])
    scores = openmax(LOGITS, model=model, alpha=alpha)
    np.testing.assert_allclose(1.0 / (1.0 + np.exp(scores)), unknown, rtol=1e-6)
    assert 0.0 < unknown.min() < unknown.max() < 1.0


def test_rows_whose_probability_rounds_to_one_are_still_ranked():
    model = make_model()
    rows = np.full((3, 6), -1.0)
    rows[:, 0] = rows[:, 1] = [100.0, 200.0, 400.0]
    scores = openmax(rows, model=model, alpha=2)
    np.testing.assert_array_equal(1.0 / (1.0 + np.exp(scores)), 1.0)
    assert (np.diff(scores) < -50.0).all()


def test_a_class_without_a_model_is_never_revised():
    model = make_model()
    silent = ActivationModel(model.centres, model.smallest, np.zeros(6), model.log_scales)
    np.testing.assert_allclose(openmax(LOGITS, model=silent), np.log(np.exp(LOGITS).sum(axis=1)), rtol=1e-12)


def test_equal_logits_take_the_first_places_and_huge_ones_stay_finite():
    model = make_model()
    np.testing.assert_allclose(openmax(np.zeros((1, 6)), model=model), [np.log(6.0)])
    assert np.isfinite(openmax(np.array([[1e150, -1e150, 0.0, 1e150, 3.0, 1e149]]), model=model, alpha=3)).all()


def test_only_the_largest_of_many_logits_are_revised():
    generator = np.random.default_rng(5)
    rows, means = generator.normal(size=(8, 40)), generator.normal(size=(40, 40))
    model = make_model(means=means)
    expected = [textbook_unknown(row, model, 4, "eucos") for row in rows]
    np.testing.assert_allclose(1.0 / (1.0 + np.exp(openmax(rows, model=model, alpha=4))), expected, rtol=1e-6)


def test_logits_of_another_width_are_refused():
    with pytest.raises(InputError, match="there are 5 logits but 6 class means"):
        openmax(LOGITS[:, :5], model=make_model())
