"""Residuals and virtual logits against scikit-learn's PCA, projections written out, and the paper's softmax."""

import numpy as np
import pytest
from scipy.special import softmax
from sklearn.decomposition import PCA

from gem_ood.errors import InputError
from gem_ood.scores.subspaces import ResidualSpace, residual, residual_space, virtual_logit

GENERATOR = np.random.default_rng(3)
ROWS = GENERATOR.normal(size=(80, 6)) @ GENERATOR.normal(size=(6, 6)) + 4.0
NEW = GENERATOR.normal(size=(30, 6)) * 5.0
LOGITS = 2.0 * GENERATOR.normal(size=(30, 4))
ORIGIN = GENERATOR.normal(size=6)


def covariance_of(rows):
    return np.cov(rows.T, bias=True)


@pytest.fixture(name="space")
def space_about_an_origin():
    return residual_space(covariance_of(ROWS), ROWS.mean(axis=0), origin=ORIGIN, dimension=4)


def test_the_residual_is_what_projecting_on_the_leading_directions_leaves(space):
    centred = ROWS - ORIGIN
    leading = np.linalg.svd(centred)[2][:4]
    expected = []
    for row in NEW:
        offset = row - ORIGIN
        projected = sum((offset @ direction) * direction for direction in leading)
        expected.append(-np.linalg.norm(offset - projected))
    np.testing.assert_allclose(residual(NEW, space), expected, rtol=1e-9)


def test_about_the_mean_it_is_the_reconstruction_error_of_principal_components():
    space = residual_space(covariance_of(ROWS), ROWS.mean(axis=0), origin=ROWS.mean(axis=0), dimension=2)
    model = PCA(n_components=2).fit(ROWS)
    errors = np.linalg.norm(NEW - model.inverse_transform(model.transform(NEW)), axis=1)
    np.testing.assert_allclose(space.norms(NEW), errors, rtol=1e-9)


def test_the_basis_is_orthonormal_and_completes_the_subspace(space):
    assert space.basis.shape == (6, 2)
    np.testing.assert_allclose(space.basis.T @ space.basis, np.eye(2), atol=1e-13)
    assert not space.holds_all


def test_the_virtual_logit_ranks_rows_as_its_softmax_probability_does(space):
    scores = virtual_logit(NEW, LOGITS, space, alpha=0.7)
    for row, logits, score in zip(NEW, LOGITS, scores, strict=True):
        virtual = 0.7 * np.linalg.norm((row - ORIGIN) @ space.basis)
        probability = softmax([*logits, virtual])[-1]
        np.testing.assert_allclose(1.0 / (1.0 + np.exp(score)), probability, rtol=1e-10)


def test_a_subspace_has_no_more_dimensions_than_its_rows_span():
    flat = np.zeros((6, 6))
    flat[0, 0] = 3.0
    space = residual_space(flat, np.zeros(6), origin=np.zeros(6), dimension=4)
    assert space.holds_all
    np.testing.assert_allclose(space.norms(NEW), np.linalg.norm(NEW[:, 1:], axis=1), rtol=1e-12)


def test_rows_in_the_subspace_have_no_residual_at_all():
    direction = np.array([1.0, 2.0, 3.0]) / np.sqrt(14.0)
    space = residual_space(np.outer(direction, direction), np.zeros(3), origin=np.zeros(3), dimension=1)
    np.testing.assert_array_equal(space.norms(np.array([[1.0], [-1e9], [1e-9]]) * direction), 0.0)


@pytest.mark.parametrize("size", [1e150, 1e200, 1.7e308])
def test_huge_rows_keep_their_length(size):
    space = ResidualSpace(np.array([0.0, 0.0, 1.0]), np.eye(3)[:, 1:], holds_all=False)
    rows = np.array([[size, 0.6, 1.8], [0.0, size, 1.0], [size, -size / 2, 1.0]])
    np.testing.assert_allclose(space.norms(rows)[1:], [size, size / 2], rtol=1e-12)
    assert np.isfinite(space.norms(rows)).all()


def test_a_row_beyond_float64_is_infinitely_far_and_never_nan():
    space = ResidualSpace(np.full(2, -1.7e308), np.eye(2), holds_all=False)
    np.testing.assert_array_equal(residual(np.full((1, 2), 1.7e308), space), -np.inf)


def test_long_inputs_are_read_in_chunks_and_checked_to_the_end(space):
    rows = np.zeros((200_000, 6), dtype=np.float32)
    assert np.ptp(space.norms(rows)) < 1e-12
    rows[-1, 5] = np.nan
    with pytest.raises(InputError, match="row 199999, column 5 is NaN"):
        space.norms(rows)


def test_unequal_rows_and_overflowing_origins_are_refused(space):
    with pytest.raises(InputError, match="features has 30 rows but logits has 29"):
        virtual_logit(NEW, LOGITS[1:], space, alpha=1.0)
    with pytest.raises(InputError, match="rescale the features"):
        residual_space(np.eye(2), np.zeros(2), origin=[1e200, 0.0], dimension=1)
