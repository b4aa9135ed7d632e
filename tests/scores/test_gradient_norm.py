"""GradNorm of the last layer against differences of the divergence itself."""

import numpy as np
import pytest
from scipy.special import log_softmax

from gem_ood import scores
from gem_ood.errors import InputError

GENERATOR = np.random.default_rng(3)
FEATURES = GENERATOR.normal(size=(12, 6))
WEIGHT, BIAS = GENERATOR.normal(size=(4, 6)), GENERATOR.normal(size=4)
LOGITS = FEATURES @ WEIGHT.T + BIAS


def divergence(weight, row, temperature):
    """KL(uniform ‖ softmax(logits/T)) of one row."""
    n_classes = len(weight)
    return -np.log(n_classes) - log_softmax((weight @ row + BIAS) / temperature).mean()


@pytest.mark.parametrize("temperature", [0.5, 1.0, 10.0])
def test_the_closed_form_is_the_sum_of_absolute_differences_in_every_weight(temperature):
    step, expected = 1e-6, np.zeros(len(FEATURES))
    for place in np.ndindex(WEIGHT.shape):
        up, down = WEIGHT.copy(), WEIGHT.copy()
        up[place] += step
        down[place] -= step
        for row, features in enumerate(FEATURES):
            rise = divergence(up, features, temperature) - divergence(down, features, temperature)
            expected[row] += abs(rise) / (2 * step)
    np.testing.assert_allclose(scores.grad_norm(FEATURES, LOGITS, temperature=temperature), expected, rtol=1e-6)


def test_the_published_code_gives_the_number_of_classes_times_the_score():
    probabilities = np.exp(log_softmax(LOGITS, axis=1))
    summed = FEATURES[:, None, :] * (len(WEIGHT) * probabilities - 1.0)[:, :, None]
    np.testing.assert_allclose(len(WEIGHT) * scores.grad_norm(FEATURES, LOGITS), np.abs(summed).sum((1, 2)))


def test_equal_logits_pull_on_nothing_and_huge_ones_do_not_overflow():
    np.testing.assert_allclose(scores.grad_norm([[2.0], [-2.0]], [[7.0, 7.0], [1e6, -1e6]]), [0.0, 2.0], atol=1e-15)


def test_half_precision_rows_are_added_up_in_full():
    features = np.full((1, 4096), 100.0, dtype=np.float16)  # the sum is beyond float16
    assert scores.grad_norm(features, [[100.0, 0.0]])[0] == pytest.approx(409_600.0)


@pytest.mark.parametrize(
    ("features", "logits", "temperature", "message"),
    [
        ([[1.0]], [[1.0, 2.0], [1.0, 2.0]], 1.0, "features has 1 rows but logits has 2"),
        ([[np.nan]], [[1.0, 2.0]], 1.0, "features row 0, column 0 is NaN"),
        ([[1.0]], [[1.0, np.inf]], 1.0, "logits row 0, column 1 is infinity"),
        ([[1.0]], [[1.0, 2.0]], 0.0, "positive number"),
        ([1.0], [[1.0, 2.0]], 1.0, "features must have two dimensions"),
    ],
)
def test_what_is_no_pair_of_features_and_logits_is_refused(features, logits, temperature, message):
    with pytest.raises(InputError, match=message):
        scores.grad_norm(features, logits, temperature=temperature)
