"""Scores of logits against SciPy."""

import numpy as np
import pytest
from scipy.special import logsumexp, softmax

from gem_ood import scores
from gem_ood.errors import InputError

LOGITS = 5 * np.random.default_rng(0).normal(size=(40, 7))


def test_msp_is_the_largest_softmax_probability():
    np.testing.assert_allclose(scores.msp(LOGITS), softmax(LOGITS, axis=1).max(axis=1), rtol=1e-12)
    np.testing.assert_allclose(
        scores.msp(LOGITS, temperature=1000.0), softmax(LOGITS / 1000.0, axis=1).max(axis=1), rtol=1e-12
    )


@pytest.mark.parametrize("temperature", [0.1, 1.0, 50.0])
def test_energy_is_the_scaled_log_sum_exp(temperature):
    expected = temperature * logsumexp(LOGITS / temperature, axis=1)
    np.testing.assert_allclose(scores.energy(LOGITS, temperature=temperature), expected, rtol=1e-12)


def test_max_logit_is_the_largest_logit():
    np.testing.assert_array_equal(scores.max_logit(LOGITS), LOGITS.max(axis=1))


def test_softmax_is_scipys():
    np.testing.assert_allclose(scores.softmax(LOGITS), softmax(LOGITS, axis=1), rtol=1e-12)


def test_extreme_logits_neither_overflow_nor_vanish():
    extreme = np.array([[1e5, 0.0], [-1e5, -1e5]])
    np.testing.assert_allclose(scores.energy(extreme), [1e5, -1e5 + np.log(2)])
    np.testing.assert_allclose(scores.msp(extreme), [1.0, 0.5])


def test_the_callers_logits_are_never_written_to():
    before = LOGITS.copy()
    for score in (scores.msp, scores.energy, scores.max_logit, scores.softmax):
        score(LOGITS)
    np.testing.assert_array_equal(LOGITS, before)


@pytest.mark.parametrize("temperature", [0.0, -1.0, np.nan, np.inf])
def test_a_temperature_that_is_none_is_refused(temperature):
    with pytest.raises(InputError, match="positive number"):
        scores.energy(LOGITS, temperature=temperature)


def test_a_minus_infinite_logit_is_refused_by_row():
    with pytest.raises(InputError, match="logits row 1, column 0 is infinity"):
        scores.energy([[0.0, 1.0], [-np.inf, 1.0]])
