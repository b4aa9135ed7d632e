"""Ranking inversions against every pair, one by one."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gem_ood.errors import InputError
from gem_ood.gaussians import TiedGaussians
from gem_ood.reports.plots import ranking_inversions
from gem_ood.scores import gem_scores, linear_energy, mahalanobis_scores, msp

#: Few values, so that ties are common.
POINTS = st.lists(st.tuples(st.integers(1, 6), st.integers(-3, 3)), min_size=1, max_size=12)


@given(POINTS)
def test_inversions_are_those_of_every_pair(points):
    density, score = np.array(points, dtype=float).T
    found = ranking_inversions(density, score)
    for place in range(len(points)):
        factors = [density[other] / density[place] for other in range(len(points)) if score[other] < score[place]]
        expected = max([*factors, 1.0])
        assert found.factors[place] == expected
        assert found.is_inverted[place] == (expected > 1.0)
        if expected > 1.0:
            partner = found.partners[place]
            assert score[partner] < score[place]
            assert density[partner] / density[place] == expected
        else:
            assert found.partners[place] == -1


@given(POINTS)
def test_an_increasing_function_of_a_score_has_the_same_inversions(points):
    density, score = np.array(points, dtype=float).T
    plain, bent = ranking_inversions(density, score), ranking_inversions(density, np.exp(score) - 7.0)
    np.testing.assert_array_equal(plain.factors, bent.factors)


@given(POINTS)
def test_the_density_itself_has_none(points):
    density = np.array(points, dtype=float)[:, 0]
    assert ranking_inversions(density, np.log(density)).worst is None


def test_in_the_papers_mixture_gem_alone_is_aligned_with_the_density():
    x = np.linspace(-8.0, 8.0, 4001)[:, np.newaxis]
    gaussians = TiedGaussians.from_parameters([[-2.0], [2.0]], [[1.0]])
    density = np.exp(gaussians.log_density(x))
    assert ranking_inversions(density, gem_scores(gaussians, x)).worst is None
    for score in (msp(gaussians.exponents(x)), linear_energy(gaussians, x)):
        found = ranking_inversions(density, score)
        assert found.is_inverted[np.abs(x[:, 0]) > 4.0].all()
        assert found.factors.max() > 1e7
    found = ranking_inversions(density, mahalanobis_scores(gaussians, x))
    high, likelier = found.worst
    # At the middle two equal densities add up where Mahalanobis sees one: just inside x = 4 it is half as likely.
    assert abs(x[high, 0]) == pytest.approx(4.0, abs=0.01)
    assert x[likelier, 0] == pytest.approx(0.0, abs=1e-12)
    assert found.factors.max() == pytest.approx(2.0, abs=0.02)


def test_of_equally_bad_points_the_last_is_the_worst():
    assert ranking_inversions([1.0, 4.0, 1.0], [2.0, 1.0, 2.0]).worst == (2, 1)


@pytest.mark.parametrize(
    ("density", "score", "message"),
    [
        ([1.0, 2.0], [1.0], "score has 1 values but density has 2; pass one of each"),
        ([0.0, 2.0], [1.0, 1.0], "density must be positive and score finite"),
        ([1.0, 2.0], [1.0, np.inf], "density must be positive and score finite"),
        ([], [], "density is empty"),
    ],
)
def test_what_is_no_density_or_score_is_refused(density, score, message):
    with pytest.raises(InputError, match=message):
        ranking_inversions(density, score)
