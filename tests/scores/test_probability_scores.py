"""Scores of class probabilities against loops in long decimals, SciPy and closed forms."""

from decimal import Decimal, localcontext

import numpy as np
import pytest
from scipy.special import log_softmax, rel_entr, softmax

from gem_ood.errors import InputError
from gem_ood.scores.probabilities import (
    as_groups,
    class_sums,
    gen,
    group_log_probabilities,
    joint_energy,
    kl_matching,
    log_templates,
    mos,
    negative_entropy,
)

LOGITS = 5 * np.random.default_rng(0).normal(size=(40, 7))
CONFIDENT = np.array([[40.0, 0.0, -3.0], [80.0, 1.0, 2.0], [300.0, 0.0, 0.0], [3.0, 3.0, -70.0], [700.0, 0.0, -90.0]])
HUGE = np.array([[1e150, 0.0, -1e150], [0.0, 0.0, 0.0], [-1e150, -1e150, -1e150], [1e308, -1e308, 0.0]])


def decimal_probabilities(row):
    """Softmax to the precision of the context."""
    powers = [Decimal(float(value)).exp() for value in row]
    total = sum(powers)
    return [power / total for power in powers]


def decimal_entropy(row):
    with localcontext() as context:
        context.prec = 400
        return float(sum(p * p.ln() for p in decimal_probabilities(row)))


def decimal_gen(row, gamma, top):
    with localcontext() as context:
        context.prec = 400
        largest = sorted(decimal_probabilities(row))[-top:]
        return -float(sum((p * (1 - p)) ** Decimal(gamma) for p in largest))


def test_joint_energy_sums_the_energies_of_the_labels():
    np.testing.assert_allclose(joint_energy(LOGITS), np.log(1 + np.exp(LOGITS)).sum(axis=1), rtol=1e-12)


def test_joint_energy_neither_overflows_nor_vanishes():
    np.testing.assert_allclose(joint_energy([[1e5, -1e5], [-50.0, -60.0]]), [1e5, np.exp(-50.0) + np.exp(-60.0)])


@pytest.mark.parametrize("temperature", [0.5, 1.0, 10.0])
def test_entropy_is_that_of_the_softmax(temperature):
    probabilities = softmax(LOGITS / temperature, axis=1)
    expected = (probabilities * np.log(probabilities)).sum(axis=1)
    np.testing.assert_allclose(negative_entropy(LOGITS, temperature=temperature), expected, rtol=1e-12, atol=1e-14)


def test_small_entropies_keep_their_precision():
    expected = [decimal_entropy(row) for row in CONFIDENT]
    np.testing.assert_allclose(negative_entropy(CONFIDENT), expected, rtol=1e-12)


@pytest.mark.parametrize("top", [1, 2, 3, 6, 7, 8, None])
@pytest.mark.parametrize("gamma", [0.1, 0.5, 2.0])
def test_gen_is_the_sum_over_the_largest_probabilities(gamma, top):
    largest = np.sort(softmax(LOGITS, axis=1), axis=1)[:, -(top or 7) :]
    expected = -(largest**gamma * (1 - largest) ** gamma).sum(axis=1)
    np.testing.assert_allclose(gen(LOGITS, gamma=gamma, top=top), expected, rtol=1e-9)


@pytest.mark.parametrize("top", [1, 2, 3])
def test_gen_of_probabilities_that_round_to_one_is_exact(top):
    expected = [decimal_gen(row, "0.1", top) for row in CONFIDENT]
    np.testing.assert_allclose(gen(CONFIDENT, top=top), expected, rtol=1e-12)


def test_gen_still_ranks_rows_whose_small_probabilities_vanish():
    scores = gen([[800.0, 0.0], [2000.0, 0.0], [5000.0, 0.0]])
    np.testing.assert_allclose(scores, -2 * np.exp([-80.0, -200.0, -500.0]), rtol=1e-12)


def test_scores_of_one_class_and_of_huge_logits_are_finite():
    for score in (negative_entropy, gen, joint_energy):
        assert np.isfinite(score([[3.0], [-2.0]])).all()
        assert np.isfinite(score(HUGE)).all()
    np.testing.assert_array_equal(negative_entropy([[3.0]]), [0.0])
    np.testing.assert_array_equal(gen([[3.0]]), [0.0])
    np.testing.assert_allclose(negative_entropy(HUGE), [0.0, -np.log(3), -np.log(3), 0.0], rtol=1e-12)
    np.testing.assert_allclose(gen(HUGE, gamma=1.0), [0.0, -2 / 3, -2 / 3, 0.0], rtol=1e-12)


def naive_mos(row, groups):
    least = np.inf
    for group in set(groups):
        members = [value for value, own in zip(row, groups, strict=True) if own == group]
        least = min(least, np.exp(members[0]) / sum(np.exp(members)))
    return -least


@pytest.mark.parametrize("groups", [[0, 0, 0, 1, 1, 2, 2], [5, -1, 5, 9, -1, 9, 9], [0.0] * 7])
def test_mos_is_the_least_probability_of_others(groups):
    expected = [naive_mos(row, groups) for row in LOGITS]
    np.testing.assert_allclose(mos(LOGITS, groups=groups), expected, rtol=1e-12)


def test_probabilities_within_groups_are_the_softmax_of_each():
    logs = group_log_probabilities(LOGITS, as_groups([2, 1, 1, 2, 1, 2, 2]))
    for members in ([0, 3, 5, 6], [1, 2, 4]):
        np.testing.assert_allclose(logs[:, members], log_softmax(LOGITS[:, members], axis=1), rtol=1e-12, atol=1e-15)


def test_mos_of_huge_logits_is_finite():
    np.testing.assert_allclose(
        mos([[1e308, -1e308, 0.0, 0.0], [-1e308, 1e308, 0.0, 0.0]], groups=[0, 0, 1, 1]), [-0.5, 0]
    )


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ([[0, 0]], "one whole number per logit"),
        ([], "one whole number per logit"),
        (["a", "a"], "one whole number per logit"),
        ([0.5, 0.5], "whole numbers"),
        ([0, 0, 3], "group 3 has one logit"),
        ([0, 0], "groups has 2 numbers but there are 7 logits"),
    ],
)
def test_groups_that_are_none_are_refused(groups, message):
    with pytest.raises(InputError, match=message):
        mos(LOGITS, groups=groups)


def test_kl_matching_is_the_divergence_to_the_closest_template():
    templates = softmax(np.random.default_rng(1).normal(size=(4, 7)), axis=1)
    probabilities = softmax(LOGITS, axis=1)
    expected = [-min(rel_entr(p, template).sum() for template in templates) for p in probabilities]
    np.testing.assert_allclose(kl_matching(LOGITS, log_templates=np.log(templates)), expected, rtol=1e-10)


def test_a_row_equal_to_a_template_has_no_divergence():
    scores = kl_matching(LOGITS, log_templates=log_softmax(LOGITS, axis=1))
    assert (scores <= 0.0).all()
    np.testing.assert_allclose(scores, 0.0, atol=1e-13)


def test_templates_leave_out_classes_without_rows_and_hold_no_minus_infinity():
    sums = np.array([[2.0, 0.0, 0.0], [0.0, 0.0, 0.0], [0.25, 0.0, 0.75]])
    logs = log_templates(sums, np.array([2.0, 0.0, 1.0]))
    tiny = np.log(np.finfo(np.float64).tiny)
    np.testing.assert_allclose(logs, [[0.0, tiny, tiny], [np.log(0.25), tiny, np.log(0.75)]], rtol=1e-12)


def test_a_template_near_one_keeps_its_distance_from_one():
    logs = log_templates(np.array([[1.0, 1e-20], [0.0, 0.0]]), np.array([1.0, 0.0]))
    np.testing.assert_allclose(logs[0, 0], -1e-20, rtol=1e-12)


def test_templates_of_another_width_are_refused():
    with pytest.raises(InputError, match=r"shape \(2, 3\) but there are 7 logits"):
        kl_matching(LOGITS, log_templates=np.zeros((2, 3)))


def test_class_sums_are_those_of_a_loop():
    places = np.random.default_rng(2).integers(0, 5, size=40)
    expected = np.zeros((6, 7))
    for row, place in zip(LOGITS, places, strict=True):
        expected[place] += row
    np.testing.assert_allclose(class_sums(LOGITS, places, 6), expected, rtol=1e-12, atol=1e-12)


def test_the_callers_logits_are_never_written_to():
    before = LOGITS.copy()
    for score in (joint_energy, negative_entropy, gen):
        score(LOGITS)
    mos(LOGITS, groups=[0] * 7)
    kl_matching(LOGITS, log_templates=np.zeros((1, 7)))
    np.testing.assert_array_equal(LOGITS, before)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"gamma": 0.0}, "positive number"),
        ({"gamma": np.inf}, "positive number"),
        ({"gamma": "0.1"}, "positive number"),
        ({"gamma": True}, "positive number"),
        ({"top": 0}, "or None for all"),
        ({"top": 2.5}, "or None for all"),
    ],
)
def test_bad_options_of_gen_are_refused(options, message):
    with pytest.raises(InputError, match=message):
        gen(LOGITS, **options)


def test_a_logit_that_is_no_number_is_refused_by_row():
    for score in (joint_energy, negative_entropy, gen):
        with pytest.raises(InputError, match="logits row 1, column 0 is NaN"):
            score([[0.0, 1.0], [np.nan, 1.0]])
