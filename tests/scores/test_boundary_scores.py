"""Scores of features against the head, against loops written out as the papers write them."""

import numpy as np
import pytest

from gem_ood.errors import InputError
from gem_ood.scores.boundaries import boundary_distance, hopfield_energy, neural_collapse, weight_gaps

GENERATOR = np.random.default_rng(5)
FEATURES = 3.0 * GENERATOR.normal(size=(40, 6))
WEIGHT = GENERATOR.normal(size=(4, 6))
BIAS = GENERATOR.normal(size=4)
LOGITS = FEATURES @ WEIGHT.T + BIAS
PAIRS = list(zip(FEATURES, LOGITS, strict=True))
MEAN = GENERATOR.normal(size=6)
LARGEST = np.finfo(np.float64).max


def test_hopfield_energy_is_the_inner_product_with_the_predicted_pattern():
    patterns = GENERATOR.normal(size=(4, 6))
    expected = [sum(a * b for a, b in zip(x, patterns[np.argmax(z)], strict=True)) for x, z in PAIRS]
    np.testing.assert_allclose(hopfield_energy(FEATURES, LOGITS, patterns), expected, rtol=1e-12, atol=1e-13)


def test_inner_products_beyond_float64_are_its_extremes():
    rows = np.array([[1e200, 1e200], [-1e200, 0.0], [1e200, -1e200], [1e308, 0.0]])
    patterns = np.array([[1e200, 1e200]])
    logits = np.zeros((4, 1))
    np.testing.assert_array_equal(hopfield_energy(rows, logits, patterns), [LARGEST, -LARGEST, 0.0, LARGEST])


def test_terms_that_overflow_apart_but_not_together_are_added_right():
    np.testing.assert_allclose(hopfield_energy([[1e300, 1e300, 3e150]], [[0.0]], [[1e10, -1e10, 1e150]]), 3e300)
    np.testing.assert_allclose(hopfield_energy([[1.5e308, 1.5e308]], [[0.0]], [[1.0, -0.25]]), 1.125e308)
    np.testing.assert_allclose(hopfield_energy([[1.5e308, 1.5e308]], [[0.0]], [[2.0, -1.5]]), 0.75e308)


@pytest.mark.parametrize("alpha", [0.0, 0.01])
def test_neural_collapse_is_the_scaled_cosine_plus_the_norm(alpha):
    expected = []
    for x, z in PAIRS:
        weight, offset = WEIGHT[np.argmax(z)], x - MEAN
        cosine = weight @ offset / (np.linalg.norm(weight) * np.linalg.norm(offset))
        expected.append(np.linalg.norm(weight) * cosine + alpha * sum(abs(value) for value in x))
    scores = neural_collapse(FEATURES, LOGITS, weight=WEIGHT, mean=MEAN, alpha=alpha)
    np.testing.assert_allclose(scores, expected, rtol=1e-11)


def test_a_row_at_the_mean_has_no_direction_and_so_no_proximity():
    scores = neural_collapse([MEAN], LOGITS[:1], weight=WEIGHT, mean=MEAN, alpha=0.5)
    np.testing.assert_allclose(scores, 0.5 * np.abs(MEAN).sum(), rtol=1e-14)


def test_boundary_distance_is_the_papers_mean_of_distances():
    gaps = weight_gaps(WEIGHT)
    expected = []
    for x, z in PAIRS:
        best = int(np.argmax(z))
        distances = [
            abs(z[best] - z[other]) / np.linalg.norm(WEIGHT[best] - WEIGHT[other])
            for other in range(4)
            if other != best
        ]
        expected.append(np.mean(distances) / np.linalg.norm(x - MEAN))
    np.testing.assert_allclose(boundary_distance(FEATURES, LOGITS, gaps=gaps, mean=MEAN), expected, rtol=1e-12)


def test_a_distance_is_how_far_the_nearest_point_of_equal_logits_lies():
    weight, bias, x = np.array([[2.0, 0.0], [0.0, 1.0]]), np.array([0.5, 0.0]), np.array([3.0, 1.0])
    gap = weight[0] - weight[1]
    margin = (weight @ x + bias)[0] - (weight @ x + bias)[1]
    nearest = x - margin * gap / (gap @ gap)
    np.testing.assert_allclose(*(weight @ nearest + bias))
    score = boundary_distance([x], [weight @ x + bias], gaps=weight_gaps(weight), mean=x - [0.0, 2.0])
    np.testing.assert_allclose(score, np.linalg.norm(x - nearest) / 2.0)


def test_classes_of_equal_weights_have_no_boundary_and_do_not_count():
    doubled, biases = np.vstack([WEIGHT, WEIGHT[1]]), np.append(BIAS, BIAS[1] - 2.0)
    logits = FEATURES @ doubled.T + biases
    # Where class 1 or its double is not the prediction, both count; where it is, the double does not.
    expected = []
    for x, z in zip(FEATURES, logits, strict=True):
        best = int(np.argmax(z))
        gaps = np.linalg.norm(doubled - doubled[best], axis=1)
        expected.append(np.mean(np.abs(z[best] - z)[gaps > 0] / gaps[gaps > 0]) / np.linalg.norm(x - MEAN))
    assert 1 in np.argmax(logits, axis=1)
    np.testing.assert_allclose(
        boundary_distance(FEATURES, logits, gaps=weight_gaps(doubled), mean=MEAN), expected, rtol=1e-12
    )


def test_a_row_at_the_mean_is_as_far_in_as_numbers_go_unless_on_every_boundary():
    gaps = weight_gaps(WEIGHT)
    logits = [[3.0, 1.0, 0.0, 0.0], [2.0, 2.0, 2.0, 2.0]]
    np.testing.assert_array_equal(boundary_distance([MEAN, MEAN], logits, gaps=gaps, mean=MEAN), [LARGEST, 0.0])


@pytest.mark.parametrize("size", [1e-200, 1e150, 1.7e308])
def test_extreme_rows_have_defined_scores(size):
    rows, logits = np.full((1, 6), -size), np.array([[size, -size, 0.0, size / 2]])
    for score in (
        hopfield_energy(rows, logits, WEIGHT),
        neural_collapse(rows, logits, weight=WEIGHT, mean=np.full(6, size), alpha=1.0),
        boundary_distance(rows, logits, gaps=weight_gaps(WEIGHT), mean=np.full(6, size)),
    ):
        assert np.isfinite(score).all()


def test_boundary_distance_does_not_depend_on_the_scale_of_rows_and_logits():
    gaps = weight_gaps(WEIGHT)
    expected = boundary_distance(FEATURES, LOGITS, gaps=gaps, mean=np.zeros(6))
    for scale in (1e-200, 1e200):
        scores = boundary_distance(FEATURES * scale, LOGITS * scale, gaps=gaps, mean=np.zeros(6))
        np.testing.assert_allclose(scores, expected, rtol=1e-12)


def test_gaps_are_the_lengths_of_differences_even_of_near_and_extreme_weights():
    weight = np.vstack([WEIGHT, WEIGHT[0] + 1e-9])
    expected = [[np.linalg.norm(a - b) for b in weight] for a in weight]
    np.testing.assert_allclose(weight_gaps(weight), expected, rtol=1e-13)
    for scale in (1e-200, 1e200):
        np.testing.assert_allclose(weight_gaps(WEIGHT * scale), weight_gaps(WEIGHT) * scale, rtol=1e-13)


def test_gaps_that_are_rounding_are_none():
    weight = np.vstack([WEIGHT, WEIGHT[0] * (1 + 1e-15)])
    assert weight_gaps(weight)[0, 4] == 0.0


@pytest.mark.parametrize("weight", [[[1.0, 2.0]], [[1.0, 2.0]] * 3, [[0.0], [0.0]]])
def test_a_head_without_boundaries_is_refused(weight):
    with pytest.raises(InputError, match="no decision boundary"):
        weight_gaps(weight)


def test_unequal_rows_and_non_finite_logits_are_refused():
    with pytest.raises(InputError, match="features has 40 rows but logits has 39"):
        hopfield_energy(FEATURES, LOGITS[1:], WEIGHT)
    with pytest.raises(InputError, match="logits row 1, column 0 is infinity"):
        hopfield_energy(FEATURES[:2], [[0.0], [np.inf]], WEIGHT[:1])
