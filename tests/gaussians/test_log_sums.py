"""Log-sum-exp by rows: whichever way it is taken, it is SciPy's."""

import numpy as np
import pytest
from scipy.special import logsumexp

from gem_ood.gaussians.log_sums import FEW_VALUES, log_sum_above, log_sum_above_place


def values_below(distance, *, n_rows, n_classes, dtype, seed=0):
    """Values of which each row's largest is 0 and all others lie about so far below it."""
    rng = np.random.default_rng(seed)
    values = -np.abs(distance + 4.0 * rng.standard_normal((n_rows, n_classes)))
    best = rng.integers(n_classes, size=n_rows)
    values[np.arange(n_rows), best] = 0.0
    return values.astype(dtype), best


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("n_rows", [3, FEW_VALUES])
@pytest.mark.parametrize("distance", [1.0, 20.0, 44.0, 120.0, 6000.0])
def test_the_sum_is_that_of_all_values_however_few_count(distance, n_rows, dtype, order):
    values, best = values_below(distance, n_rows=n_rows, n_classes=30, dtype=dtype)
    values += np.linspace(-50.0, 50.0, n_rows, dtype=dtype)[:, np.newaxis]
    expected = logsumexp(values.astype(np.float64), axis=1) - values[np.arange(n_rows), best]
    found = log_sum_above(values.copy(order), values[np.arange(n_rows), best])
    tolerance = 1e-5 if dtype == np.float32 else 1e-13
    np.testing.assert_allclose(found, expected, rtol=0.0, atol=tolerance)
    alone = [log_sum_above_place(row.copy(), place) for row, place in zip(values[:9], best[:9], strict=True)]
    np.testing.assert_allclose(alone, expected[:9], rtol=0.0, atol=tolerance)


@pytest.mark.parametrize("order", ["C", "F"])
def test_a_row_that_is_near_many_classes_counts_them_all_beside_rows_that_are_near_one(order):
    values, best = values_below(500.0, n_rows=FEW_VALUES, n_classes=30, dtype=np.float32)
    values[7] = 0.0
    found = log_sum_above(values.copy(order), values[np.arange(FEW_VALUES), best])
    assert found[7] == pytest.approx(np.log(30.0), rel=1e-6)
    np.testing.assert_array_equal(np.delete(found, 7), 0.0)


@pytest.mark.parametrize("order", ["C", "F"])
def test_weights_count_in_rows_and_in_a_row_alone(order):
    values, best = values_below(2.0, n_rows=5, n_classes=3, dtype=np.float64)
    weights = np.array([0.7, 0.0, 0.3])
    expected = np.log(np.exp(values) @ weights)
    with np.errstate(divide="ignore"):
        logs = np.log(weights)
    np.testing.assert_allclose(log_sum_above(values.copy(order), np.zeros(5), logs), expected, rtol=1e-13)
    alone = [log_sum_above_place(row.copy(), place, logs) for row, place in zip(values, best, strict=True)]
    np.testing.assert_allclose(alone, expected, rtol=1e-13)
