"""Shaped activations and weights against textbook loops."""

import math

import numpy as np
import pytest

from gem_ood.errors import InputError
from gem_ood.scores.shaping import ash, check_share, clip_activations, contribution_mask, scale

GENERATOR = np.random.default_rng(0)
ROWS = {
    "rectified": np.maximum(GENERATOR.normal(size=(30, 20)), 0.0),
    "signed": GENERATOR.normal(size=(30, 20)) + 0.3,
    "full of ties": GENERATOR.integers(0, 4, size=(30, 20)).astype(np.float64),
    "one column": GENERATOR.exponential(size=(4, 1)),
}
SHARES = [0.0, 0.25, 0.5, 0.65, 0.85, 0.9, 0.97]


def top(row, share):
    """Return the columns of the m − round(share·m) largest entries, at least one; of equal ones the first."""
    n_kept = max(1, len(row) - int(np.round(len(row) * 100 * share / 100.0)))
    return sorted(range(len(row)), key=lambda column: (-row[column], column))[:n_kept]


def ash_by_hand(row, variant, share):
    kept = top(row, share)
    before, after = math.fsum(row), math.fsum(row[column] for column in kept)
    shaped = [0.0] * len(row)
    for column in kept:
        if variant == "p":
            shaped[column] = row[column]
        elif variant == "b":
            shaped[column] = before / len(kept)
        else:
            shaped[column] = row[column] * (math.exp(before / after) if after > 0.0 else 0.0)
    return shaped


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("variant", ["p", "b", "s"])
@pytest.mark.parametrize("rows", ROWS.values(), ids=ROWS)
def test_ash_is_the_papers_formula_row_by_row(rows, variant, share):
    expected = [ash_by_hand(row, variant, share) for row in rows]
    np.testing.assert_allclose(ash(rows, variant=variant, share=share), expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("rows", ROWS.values(), ids=ROWS)
def test_scale_is_the_factor_of_ash_on_all_entries(rows, share):
    expected = []
    for row in rows:
        after = math.fsum(row[column] for column in top(row, share))
        expected.append(row * (math.exp(math.fsum(row) / after) if after > 0.0 else 0.0))
    np.testing.assert_allclose(scale(rows, share=share), expected, rtol=1e-12, atol=1e-14)


def test_the_number_kept_is_that_of_the_published_code():
    for n_features in (5, 10, 50, 64, 100, 512, 2048):
        rows = GENERATOR.permutation(n_features)[np.newaxis] + 1.0
        for percentile in range(0, 100):
            expected = max(1, n_features - int(np.round(n_features * percentile / 100.0)))
            assert np.count_nonzero(ash(rows, variant="p", share=percentile / 100)) == expected


def test_binarised_rows_keep_their_sum():
    rows = ROWS["rectified"]
    np.testing.assert_allclose(ash(rows, variant="b", share=0.65).sum(axis=1), rows.sum(axis=1))


def test_sharpening_does_not_depend_on_the_unit_of_the_activations():
    rows = ROWS["rectified"] + 0.01
    for unit in (1e-300, 1e-5, 1e100):
        np.testing.assert_allclose(ash(unit * rows) / unit, ash(rows), rtol=1e-12)


@pytest.mark.parametrize("shape", [ash, scale])
def test_rows_without_activation_are_shaped_to_zeros(shape):
    rows = [[0.0, 0.0, 0.0], [-1.0, -2.0, -3.0], [0.0, -1.0, -2.0], [-1e-300, -1e300, 0.0]]
    np.testing.assert_array_equal(np.abs(shape(rows, share=0.6)), np.zeros((4, 3)))


@pytest.mark.parametrize("shape", [ash, scale])
def test_no_finite_row_overflows(shape):
    """A row of equal entries with one kept has the largest factor there is, exp(m)."""
    equal = np.ones((1, 2000))
    rows = np.vstack([equal, 1e150 * equal, 1e250 * equal, 1.7e308 * equal, 5e-324 * equal, -1.7e308 * equal])
    rows[3, 1::2] *= -1.0
    shaped = shape(rows, share=0.9995)
    assert np.isfinite(shaped).all()
    np.testing.assert_allclose(np.abs(shaped).max(axis=1)[:3], [1e200, 1e200, 1e250], rtol=1e-9)
    small = shape(equal[:, :600], share=0.999)
    np.testing.assert_allclose(np.log(small.max()), math.log(1e200), rtol=1e-12)
    np.testing.assert_allclose(np.log(shape(equal[:, :400], share=0.9995).max()), 400.0, rtol=1e-12)


def test_clipping_is_the_minimum():
    rows = ROWS["signed"]
    expected = [[min(entry, 0.7) for entry in row] for row in rows]
    np.testing.assert_array_equal(clip_activations(rows, 0.7), expected)
    assert clip_activations(rows.astype(np.float32), 0.7).max() == 0.7


@pytest.mark.parametrize("share", SHARES)
def test_the_mask_keeps_contributions_above_the_percentile(share):
    weight, mean = GENERATOR.normal(size=(4, 30)), GENERATOR.exponential(size=30)
    contributions = [[weight[i, j] * mean[j] for j in range(30)] for i in range(4)]
    threshold = np.percentile(contributions, 100 * share)
    expected = [[value > threshold for value in row] for row in contributions]
    np.testing.assert_array_equal(contribution_mask(weight, mean, share), expected)


def test_the_mask_keeps_the_papers_number_of_weights():
    weight, mean = GENERATOR.normal(size=(10, 64)), GENERATOR.exponential(size=64)
    assert contribution_mask(weight, mean, 0.9).sum() == 64
    assert contribution_mask(weight, mean, 0.7).sum() == 192


def test_equal_contributions_keep_nothing():
    assert not contribution_mask(np.ones((2, 3)), np.zeros(3), 0.9).any()


def test_contributions_that_overflow_or_do_not_fit_are_refused():
    with pytest.raises(InputError, match="the contributions row 0, column 1 is infinity"):
        contribution_mask([[1.0, 1e300]], [1.0, 1e300], 0.5)
    with pytest.raises(InputError, match="one mean per column"):
        contribution_mask([[1.0, 2.0]], [1.0], 0.5)


def test_the_callers_rows_are_never_written_to():
    rows = ROWS["signed"]
    before = rows.copy()
    for variant in ("p", "b", "s"):
        ash(rows, variant=variant)
    scale(rows)
    clip_activations(rows, 0.0)
    np.testing.assert_array_equal(rows, before)


@pytest.mark.parametrize("share", [-0.1, 1.0, 90, np.nan, True, "0.9", None])
def test_shares_out_of_range_are_refused(share):
    with pytest.raises(InputError, match="from 0 to below 1"):
        check_share(share)
    with pytest.raises(InputError, match="from 0 to below 1"):
        ash([[1.0]], share=share)


def test_unknown_variants_and_bad_rows_are_refused():
    with pytest.raises(InputError, match="variant is 'x'; pass 'p'"):
        ash([[1.0]], variant="x")
    for shape in (ash, scale, lambda rows: clip_activations(rows, 1.0)):
        with pytest.raises(InputError, match="row 0, column 1 is NaN"):
            shape([[1.0, np.nan]])
