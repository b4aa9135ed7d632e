"""`analyze` as a whole: large dimensions, invariances, its table, and bad input."""

import dataclasses
import math
import warnings

import numpy as np
import pytest
from configurations import configuration
from hypothesis import given, settings
from hypothesis import strategies as st

from gem_ood.errors import InputError
from gem_ood.gaussians import TiedGaussians
from gem_ood.theory import analyze, analyze_gaussians

LOGARITHMS = (
    "log_expected_in",
    "log_expected_out",
    "log_abs_separation",
    "log_certified_fpr",
    "log_fpr_floor",
)


@pytest.mark.parametrize(
    ("d", "r"), [*((d, r) for d in (2, 512) for r in (1e-3, 3.0, 30.0, 500.0)), (4096, 1e-3), (4096, 30.0)]
)
def test_all_logarithms_are_finite_up_to_4096_dimensions(d, r):
    k = min(10, d)
    result = analyze(r * np.eye(k, d), np.eye(d), np.zeros(d))
    for name in LOGARITHMS:
        assert math.isfinite(getattr(result, name)), name
    assert all(decades is None or math.isfinite(decades) for decades in result.looseness.values())
    u = math.exp(-(r**2) / 4.0)
    expected = -0.5 * d * math.log(2.0) + math.log(abs((1.0 - u) * (1.0 - (k - 1) * u)))
    assert result.log_abs_separation == pytest.approx(expected, rel=1e-6)
    for name in ("bound_expected_out", "bound_separation_pinsker", "predicted_fpr", "certified_threshold"):
        assert math.isfinite(getattr(result, name)), name


def test_another_covariance_is_finite_in_4096_dimensions_too():
    d = 4096
    result = analyze(3.0 * np.eye(4, d), np.eye(d), np.zeros(d), ood_covariance=1.2 * np.eye(d))
    for name in LOGARITHMS:
        assert math.isfinite(getattr(result, name)), name
    # E exp f = (1 + s)^(−d/2) exp(−½ r² / (1 + s)) for four classes
    expected = math.log(4.0) - 0.5 * d * math.log(2.2) - 0.5 * 9.0 / 2.2
    assert result.log_expected_out == pytest.approx(expected)


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 10_000), scale=st.floats(0.01, 100.0))
def test_units_and_origin_of_the_features_change_nothing(seed, scale):
    case = configuration(seed, n_classes=3, dimension=4)
    rng = np.random.default_rng(seed)
    turn = scale * (np.eye(4) + 0.3 * rng.normal(size=(4, 4)))
    if np.linalg.cond(turn) > 100.0:
        return
    shift, covariance = rng.normal(size=4), case.gaussians.covariance
    here = analyze_gaussians(case.gaussians, case.ood_mean, ood_covariance=case.ood_covariance)
    there = analyze(
        case.gaussians.class_means @ turn + shift,
        turn.T @ covariance @ turn,
        case.ood_mean @ turn + shift,
        ood_covariance=turn.T @ case.ood_covariance @ turn,
        priors=case.gaussians.priors,
    )
    for name in (*LOGARITHMS, "bound_expected_out", "bound_separation_pinsker", "certified_threshold"):
        assert getattr(there, name) == pytest.approx(getattr(here, name), rel=1e-6, abs=1e-6), name


def test_a_singular_fit_is_analyzed_on_the_directions_that_vary():
    full = TiedGaussians.from_parameters([[0.0, 0.0], [3.0, 1.0]], np.eye(2))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        padded = TiedGaussians.from_parameters([[0.0, 0.0, 5.0], [3.0, 1.0, 5.0]], np.diag([1.0, 1.0, 0.0]))
    here = analyze_gaussians(full, [1.0, 1.0]).as_dict()
    there = analyze_gaussians(padded, [1.0, 1.0, 5.0]).as_dict()
    for name in LOGARITHMS:
        assert there[name] == pytest.approx(here[name])


def test_the_out_of_distribution_on_top_of_the_only_class_cannot_be_told_apart():
    result = analyze([[1.0, 2.0]], np.eye(2), [1.0, 2.0])
    assert (result.separation, result.separation_sign) == (0.0, 0)
    assert result.predicted_fpr == pytest.approx(0.95, abs=1e-3)
    assert result.fpr_floor == pytest.approx(0.95)
    assert result.bound_separation_pinsker == 0.0
    assert "separation D" in str(result)


def test_the_result_is_frozen_and_prints_as_a_table_with_every_quantity():
    result = analyze(10.0 * np.eye(10, 512), np.eye(512), np.zeros(512))
    with pytest.raises(dataclasses.FrozenInstanceError):
        result.separation = 1.0
    text = str(result)
    for word in ("E_in ES", "E_out ES", "separation D", "P22", "P23", "P24", "P25", "B2", "B3", "B4", "87.9 decades"):
        assert word in text, word
    assert len({line.index("  ") > 0 for line in text.splitlines()}) == 1


def test_the_papers_orientation_values_are_predicted():
    for k, expected in ((10, 0.33), (100, 0.56)):
        result = analyze(10.0 * np.eye(k, 512), np.eye(512), np.zeros(512))
        assert result.predicted_fpr == pytest.approx(expected, abs=0.01)


GOOD = {"class_means": [[0.0, 0.0], [3.0, 0.0]], "covariance": np.eye(2), "ood_mean": [1.0, 1.0]}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"covariance": [[1.0, 2.0], [2.0, 1.0]]}, "not positive semi-definite"),
        ({"covariance": [[1.0, 1.0], [1.0, 1.0]]}, "not positive definite: its rank is 1 but it has 2"),
        ({"covariance": np.diag([1.0, 0.0])}, "not positive definite"),
        ({"covariance": np.zeros((2, 2))}, "not positive definite: it is zero"),
        ({"covariance": "wide"}, "covariance cannot be read as numbers"),
        ({"priors": "uniform"}, "None for equal ones"),
        ({"covariance": [[1.0, 0.5], [0.0, 1.0]]}, "not symmetric"),
        ({"covariance": np.eye(3)}, "pass a 2 × 2 matrix"),
        ({"covariance": [[np.nan, 0.0], [0.0, 1.0]]}, "covariance row 0, column 0 is NaN"),
        ({"class_means": [[0.0, np.inf], [1.0, 1.0]]}, "class_means row 0, column 1 is infinity"),
        ({"class_means": [[0.0, 0.0, 0.0]]}, "pass a 3 × 3 matrix"),
        ({"ood_mean": [1.0, 1.0, 1.0]}, "the classes have 2 dimensions"),
        ({"ood_mean": [[1.0, 1.0], [2.0, 2.0]]}, "pass one mean"),
        ({"ood_mean": [np.nan, 0.0]}, "ood_mean row 0, column 0 is NaN"),
        ({"ood_mean": "far away"}, "numbers"),
        ({"ood_covariance": np.eye(3)}, "ood_covariance has shape"),
        ({"ood_covariance": [[1.0, 0.5], [0.0, 1.0]]}, "ood_covariance is not symmetric"),
        ({"ood_covariance": np.diag([1.0, -1.0])}, "ood_covariance is not positive semi-definite"),
        ({"ood_covariance": np.zeros((2, 2))}, "is zero"),
        ({"priors": [0.5, 0.6]}, "sum to 1"),
        ({"priors": [1.5, -0.5]}, "at least 0"),
        ({"priors": [1.0]}, "one weight per class"),
        ({"weights": [0.0, 0.0]}, "not all 0"),
        ({"weights": [1.0, np.nan]}, "at least 0"),
        ({"tpr": 0.0}, "strictly between 0 and 1"),
        ({"tpr": 1.0}, "strictly between 0 and 1"),
        ({"tpr": 95}, "strictly between 0 and 1"),
        ({"tpr": np.nan}, "strictly between 0 and 1"),
    ],
)
def test_bad_input_is_one_clear_error(changes, words):
    with pytest.raises(InputError, match=words) as caught:
        analyze(**(GOOD | changes))
    assert "\n" not in str(caught.value)


def test_bounds_that_are_infinite_for_a_singular_covariance_say_so():
    result = analyze([[0.0, 0.0], [9.0, 0.0]], np.eye(2), [4.5, 0.0], ood_covariance=np.diag([1.0, 0.0]))
    assert result.separation_sign == 1
    assert result.bound_separation_pinsker == math.inf
    assert result.looseness["bound_separation_pinsker"] is None
    assert "infinite: S is singular" in str(result)
    assert math.isfinite(result.bound_separation_total_variation)
