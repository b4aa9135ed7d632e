"""The means of the studies, the balance of the classes, and every setting that is refused."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.spatial.distance import pdist

from gem_ood.errors import InputError
from gem_ood.simulation import Setting, study_means


@given(st.integers(1, 20), st.integers(0, 60), st.floats(0.0, 30.0))
def test_means_are_orthogonal_of_length_r_and_root_two_apart(k, more, r):
    means = study_means(k, k + more, r)
    np.testing.assert_allclose(means @ means.T, r**2 * np.eye(k), atol=1e-9)
    np.testing.assert_allclose(pdist(means), np.sqrt(2.0) * r, atol=1e-9)


@pytest.mark.parametrize(("k", "d"), [(10, 512), (100, 512), (100, 100), (3, 11), (1, 5)])
def test_means_have_equal_entries_on_half_open_blocks(k, d):
    s = d // k
    expected = np.zeros((k, d))
    for i in range(1, k + 1):
        for position in range((i - 1) * s, i * s):
            expected[i - 1, position] = 10.0 / np.sqrt(s)
    np.testing.assert_allclose(study_means(k, d, 10.0), expected, rtol=1e-15)


@given(st.integers(1, 50), st.integers(1, 400))
def test_class_counts_add_up_and_differ_by_at_most_one(k, n):
    counts = Setting(k, 50, 1.0, n_in=n).class_counts()
    assert len(counts) == k
    assert counts.sum() == n
    assert counts.max() - counts.min() <= 1


def test_the_gaussians_have_the_known_parameters():
    gaussians = Setting(3, 7, 2.0, sigma=1.5).gaussians()
    np.testing.assert_array_equal(gaussians.class_means, study_means(3, 7, 2.0))
    np.testing.assert_array_equal(gaussians.covariance, 2.25 * np.eye(7))


def test_projected_gaussians_keep_every_distance_in_units_of_sigma():
    setting = Setting(4, 30, 6.0, sigma=2.0)
    assert setting.projected_gaussians().n_features == 4
    np.testing.assert_allclose(
        pdist(setting.projected_gaussians().class_means), pdist(setting.gaussians().class_means) / 2.0
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"n_classes": 9}, "n_classes is 9 but dimension is 8.*pass n_classes of at most 8"),
        ({"n_classes": 0}, "n_classes is 0; pass a whole number of at least 1"),
        ({"n_classes": 2.5}, "n_classes is 2.5; pass a whole number"),
        ({"n_classes": True}, "n_classes is True; pass a whole number"),
        ({"dimension": -1}, "dimension is -1; pass a whole number of at least 1"),
        ({"n_in": 0}, "n_in is 0; pass a whole number of at least 1"),
        ({"n_out": -5}, "n_out is -5; pass a whole number of at least 1"),
        ({"distance": -0.5}, "distance is -0.5; pass an r of at least 0"),
        ({"distance": 1e16}, "distance is 1e\\+16; pass an r of at least 0 and at most 1e\\+15"),
        ({"distance": np.nan}, "distance is nan; pass a finite number"),
        ({"distance": np.inf}, "distance is inf; pass a finite number"),
        ({"distance": "far"}, "distance is 'far'; pass a finite number"),
        ({"sigma": 0.0}, "sigma is 0; pass a positive standard deviation"),
        ({"sigma": -1.0}, "sigma is -1; pass a positive standard deviation"),
        ({"sigma": 1e-200}, "sigma is 1e-200; pass a positive standard deviation"),
        ({"sigma": np.nan}, "sigma is nan; pass a finite number"),
    ],
)
def test_bad_settings_are_refused_with_a_remedy(changes, message):
    with pytest.raises(InputError, match=message):
        Setting(**{"n_classes": 2, "dimension": 8, "distance": 1.0, **changes})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((5, 4, 1.0), "n_classes is 5 but dimension is 4"),
        ((0, 4, 1.0), "n_classes is 0"),
        ((2, 0, 1.0), "dimension is 0"),
        ((2, 4, np.nan), "distance is nan"),
    ],
)
def test_means_that_do_not_exist_are_refused(arguments, message):
    with pytest.raises(InputError, match=message):
        study_means(*arguments)
