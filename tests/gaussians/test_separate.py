"""SeparateGaussians and the statistics of each class, against SciPy and scikit-learn."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.special import logsumexp
from scipy.stats import multivariate_normal
from sklearn.covariance import ledoit_wolf, oas, shrunk_covariance
from sklearn.discriminant_analysis import QuadraticDiscriminantAnalysis

from gem_ood.errors import InputError, RankWarning
from gem_ood.features import unit_length
from gem_ood.gaussians import collect
from gem_ood.gaussians.class_statistics import ClassStatistics, add_fourth_moments, collect_classes, merge_classes
from gem_ood.gaussians.separate import SeparateGaussians

NAIVE = {
    "empirical": lambda rows: np.cov(rows.T, bias=True),
    "oas": lambda rows: oas(rows)[0],
    "ledoit-wolf": lambda rows: ledoit_wolf(rows)[0],
    0.1: lambda rows: shrunk_covariance(np.cov(rows.T, bias=True), 0.1),
    1.0: lambda rows: shrunk_covariance(np.cov(rows.T, bias=True), 1.0),
}


@pytest.fixture(name="uneven")
def uneven_classes():
    """Three classes of unlike covariance and size, with their labels, and rows to score."""
    generator = np.random.default_rng(3)
    parts = [
        generator.normal(size=(n, 4)) @ generator.normal(size=(4, 4)) + 3.0 * generator.normal(size=4)
        for n in (30, 50, 120)
    ]
    labels = np.repeat(["a", "b", "c"], [30, 50, 120])
    shuffle = generator.permutation(200)
    return np.vstack(parts)[shuffle], labels[shuffle], 4.0 * generator.normal(size=(60, 4))


def fitted(features, labels, covariance="empirical", **options):
    statistics = collect_classes([(features, labels)])
    if covariance == "ledoit-wolf":
        statistics = add_fourth_moments(statistics, [(features, labels)])
    return SeparateGaussians.from_statistics(statistics, covariance=covariance, **options)


def naive_log_densities(features, labels, rows, policy):
    columns = []
    for name in np.unique(labels):
        own = features[labels == name]
        columns.append(multivariate_normal(own.mean(axis=0), NAIVE[policy](own)).logpdf(rows))
    return np.stack(columns, axis=1)


@pytest.mark.parametrize("policy", NAIVE)
@pytest.mark.parametrize("priors", ["uniform", "empirical", [0.6, 0.3, 0.1]], ids=str)
def test_densities_and_posteriors_are_those_of_one_normal_law_per_class(uneven, policy, priors):
    features, labels, rows = uneven
    gaussians = fitted(features, labels, policy, priors=priors)
    expected = naive_log_densities(features, labels, rows, policy)
    weights = {"uniform": np.ones(3) / 3, "empirical": np.array([30, 50, 120]) / 200}.get(str(priors), priors)
    np.testing.assert_allclose(gaussians.log_densities(rows), expected, rtol=1e-10)
    np.testing.assert_allclose(gaussians.log_density(rows), logsumexp(expected, axis=1, b=weights), rtol=1e-10)
    joint = expected + np.log(weights)
    posterior = np.exp(joint - logsumexp(joint, axis=1, keepdims=True))
    np.testing.assert_allclose(gaussians.posterior(rows), posterior, rtol=1e-8, atol=1e-14)
    assert gaussians.classes.tolist() == ["a", "b", "c"]


def test_posteriors_are_those_of_quadratic_discriminant_analysis(uneven):
    features, labels, rows = uneven
    peer = QuadraticDiscriminantAnalysis(store_covariance=True).fit(features, labels)
    statistics = collect_classes([(features, labels)])
    scaled = []
    for part, covariance in zip(statistics.parts, peer.covariance_, strict=True):
        divisor = np.trace(part.scatter) / np.trace(covariance)  # the rows, or in older versions the rows less one
        assert divisor == pytest.approx(part.n_rows) or divisor == pytest.approx(part.n_rows - 1)
        scaled.append(replace(part, scatter=part.scatter * part.n_rows / divisor))
    gaussians = SeparateGaussians.from_statistics(ClassStatistics(tuple(scaled)), priors="empirical")
    np.testing.assert_allclose(gaussians.posterior(rows), peer.predict_proba(rows), rtol=1e-8, atol=1e-14)


def test_distances_are_mahalanobis_distances_under_each_classs_covariance(uneven):
    features, labels, rows = uneven
    distances = fitted(features, labels).squared_distances(rows)
    for column, name in enumerate("abc"):
        own = features[labels == name]
        centred, inverse = rows - own.mean(axis=0), np.linalg.inv(np.cov(own.T, bias=True))
        np.testing.assert_allclose(distances[:, column], np.einsum("ij,jk,ik->i", centred, inverse, centred), rtol=1e-9)


def test_a_far_origin_costs_no_more_than_the_rounding_of_the_means(uneven):
    features, labels, rows = uneven
    offset = np.array([2.0**30, -(2.0**29), 2.0**28, 0.0])
    step = 2.0**-20  # rows on a grid that the offset does not round
    features, rows = np.round(features / step) * step, np.round(rows / step) * step
    near, far = fitted(features, labels), fitted(features + offset, labels)
    # Only the means are rounded, by 2⁻²³; squares of the offset would be rounded by 2⁸.
    np.testing.assert_allclose(far.log_density(rows + offset), near.log_density(rows), rtol=1e-6)


def test_long_and_narrow_input_gives_the_scores_of_single_rows(uneven):
    features, labels, rows = uneven
    gaussians = fitted(features, labels)
    long = np.tile(rows, (800, 1))
    singly = np.concatenate([gaussians.log_density(row[np.newaxis]) for row in rows])
    np.testing.assert_allclose(gaussians.log_density(long), np.tile(singly, 800), rtol=1e-11)
    narrow = rows.astype(np.float32)
    np.testing.assert_array_equal(gaussians.log_density(narrow), gaussians.log_density(narrow.astype(np.float64)))


def test_batches_merges_and_one_pass_agree_and_find_classes_on_the_way(uneven):
    features, labels, _ = uneven
    order = np.argsort(labels, kind="stable")[::-1]  # class c comes first, a only in the last batches
    features, labels = features[order], labels[order]
    batches = [(features[start : start + 7], labels[start : start + 7]) for start in range(0, 200, 7)]
    streamed, once = collect_classes(batches), collect_classes([(features, labels)])
    halves = merge_classes(collect_classes(batches[:20]), collect_classes(batches[20:]))
    for statistics in (streamed, once, halves):
        assert statistics.classes.tolist() == ["a", "b", "c"]
        assert statistics.counts.tolist() == [30, 50, 120]
        for name, part in zip("abc", statistics.parts, strict=True):
            own = features[labels == name]
            np.testing.assert_allclose(part.means[0], own.mean(axis=0), rtol=1e-12)
            np.testing.assert_allclose(part.scatter, 1.0 * len(own) * np.cov(own.T, bias=True), rtol=1e-10, atol=1e-10)
    tied, expected = once.tied(), collect(features, labels)
    np.testing.assert_allclose(tied.scatter, expected.scatter, rtol=1e-12, atol=1e-10)
    np.testing.assert_allclose(tied.means, expected.means, rtol=1e-12)


def test_many_classes_in_long_input_are_told_apart():
    generator = np.random.default_rng(0)
    labels = generator.integers(0, 300, size=40_000)
    features = generator.normal(size=(40_000, 40)) + labels[:, np.newaxis]  # several chunks
    statistics = collect_classes([(features.astype(np.float32), labels)])
    for name in (0, 17, 299):
        own = features[labels == name].astype(np.float32).astype(np.float64)
        assert statistics.parts[name].n_rows == len(own)
        np.testing.assert_allclose(statistics.parts[name].means[0], own.mean(axis=0), rtol=1e-10)
        np.testing.assert_allclose(np.diag(statistics.parts[name].scatter), len(own) * own.var(axis=0), rtol=1e-9)


def test_rows_are_prepared_before_they_count(uneven):
    features, labels, _ = uneven
    prepared = collect_classes([(features, labels)], prepare=unit_length)
    expected = collect_classes([(unit_length(features), labels)])
    np.testing.assert_allclose(prepared.parts[1].scatter, expected.parts[1].scatter, rtol=1e-10, atol=1e-12)


def test_declared_classes_without_rows_are_left_out(uneven):
    features, labels, rows = uneven
    statistics = collect_classes([(features, labels)], classes=["c", "zebra", "b", "a"])
    assert statistics.counts.tolist() == [30, 50, 120, 0]
    gaussians = SeparateGaussians.from_statistics(statistics, priors=[0.2, 0.2, 0.1, 0.5])
    assert gaussians.classes.tolist() == ["a", "b", "c"]
    np.testing.assert_allclose(gaussians.priors, [0.4, 0.4, 0.2])
    np.testing.assert_array_equal(gaussians.log_densities(rows), fitted(features, labels).log_densities(rows))


def test_without_labels_there_is_one_gaussian(uneven):
    features, _, rows = uneven
    gaussians = fitted(features, None)
    expected = multivariate_normal(features.mean(axis=0), np.cov(features.T, bias=True)).logpdf(rows)
    np.testing.assert_allclose(gaussians.log_density(rows), expected, rtol=1e-10)
    np.testing.assert_array_equal(gaussians.posterior(rows), np.ones((60, 1)))
    assert gaussians.classes.tolist() == [0]


def test_a_class_without_full_rank_is_refused_by_name_and_shrinkage_mends_it(uneven):
    features, labels, rows = uneven
    few = np.concatenate([np.flatnonzero(labels != "b"), np.flatnonzero(labels == "b")[:3]])
    with pytest.raises(InputError, match=r"class 'b' has rank 2 of 4 dimensions \(rows: 3\).*covariance='oas'.*0\.1"):
        fitted(features[few], labels[few])
    for policy in ("oas", 0.1):
        found = fitted(features[few], labels[few], policy).log_densities(rows)
        np.testing.assert_allclose(found, naive_log_densities(features[few], labels[few], rows, policy), rtol=1e-8)


def test_a_dead_or_doubled_feature_is_refused_and_shrinkage_mends_it(uneven):
    features, labels, _ = uneven
    for column in (np.full(200, 1e6), features[:, 0], features[:, 0] + 2.0 * features[:, 1]):
        wide = np.column_stack([features, column])
        with pytest.raises(InputError, match="rank 4 of 5"):
            fitted(wide, labels)
        assert np.isfinite(fitted(wide, labels, 0.1).log_density(wide)).all()


@pytest.mark.parametrize("policy", ["empirical", "oas", 0.5])
def test_a_class_without_spread_is_refused_under_every_policy(uneven, policy):
    features, labels, _ = uneven
    for n_rows in (1, 5):
        padded = np.vstack([features, np.ones((n_rows, 4))])
        names = np.concatenate([labels, np.repeat("lone", n_rows)])
        with pytest.raises(InputError, match=rf"class 'lone' has no spread \(rows: {n_rows}\).*as GEM does"):
            fitted(padded, names, policy)


def test_a_row_beyond_float64_is_infinitely_far_and_keeps_the_priors(uneven):
    features, labels, _ = uneven
    gaussians = fitted(features, labels, priors="empirical")
    rows = np.array([[1e200] * 4, [-1e308] * 4, [1e150] * 4])
    np.testing.assert_array_equal(gaussians.log_density(rows)[:2], [-np.inf, -np.inf])
    assert np.isfinite(gaussians.log_density(rows)[2])
    np.testing.assert_allclose(gaussians.posterior(rows)[:2], np.tile(gaussians.priors, (2, 1)))
    np.testing.assert_allclose(gaussians.posterior(rows).sum(axis=1), 1.0)


def test_a_class_of_no_weight_takes_no_part(uneven):
    features, labels, rows = uneven
    gaussians = fitted(features, labels, priors=[0.5, 0.0, 0.5])
    joint = gaussians.log_densities(rows)[:, [0, 2]]
    np.testing.assert_allclose(gaussians.log_density(rows), logsumexp(joint, axis=1) + np.log(0.5), rtol=1e-12)
    assert (gaussians.posterior(rows)[:, 1] == 0.0).all()


def test_parts_that_are_not_of_one_fit_are_refused(uneven):
    features, labels, _ = uneven
    good = (features, labels)
    for other, message in (
        ((features, None), "labels"),
        ((features, np.zeros(200, dtype=int)), "whole numbers and others strings"),
        ((features[:, :3], labels), "4 features and others 3"),
    ):
        with pytest.raises(InputError, match=message):
            collect_classes([good, other])
        with pytest.raises(InputError, match=message):
            merge_classes(collect_classes([good]), collect_classes([other]))
    with pytest.raises(InputError, match="came without labels"):
        collect_classes([(features, None)], classes=["a", "b", "c"])
    with pytest.raises(InputError, match="'c', which is not among the 2 classes"):
        collect_classes([(features[labels == "c"], labels[labels == "c"])], classes=["a", "b"])
    with pytest.raises(InputError, match="batches is empty"):
        collect_classes([])


def test_bad_rows_are_named_by_their_place_in_all_batches(uneven):
    features, labels, _ = uneven
    bad = features.copy()
    bad[9, 2] = np.nan
    with pytest.raises(InputError, match="row 209, column 2 is NaN"):
        collect_classes([(features, labels), (bad, labels)])
    with pytest.raises(InputError, match="rescale"):
        collect_classes([(np.vstack([features, np.full((1, 4), 1e200)]), [*labels, "a"])])
    gaussians = fitted(features, labels)
    with pytest.raises(InputError, match="row 9, column 2 is NaN"):
        gaussians.log_density(bad)
    with pytest.raises(InputError, match="3 columns but the fit has 4"):
        gaussians.log_density(features[:, :3])
    assert gaussians.exponents(np.empty((0, 4))).shape == (0, 3)


def test_ledoit_wolf_needs_the_moments_that_a_merge_loses(uneven):
    features, labels, _ = uneven
    statistics = add_fourth_moments(collect_classes([(features, labels)]), [(features, labels)])
    for part, name in zip(statistics.parts, "abc", strict=True):
        own = features[labels == name]
        expected = np.sum(np.sum((own - own.mean(axis=0)) ** 2, axis=1) ** 2)
        assert part.fourth_moment == pytest.approx(expected, rel=1e-12)
    other = collect_classes([(features, np.where(labels == "a", "z", labels))])
    for merged in (merge_classes(statistics, other), merge_classes(other, statistics)):
        assert {part.fourth_moment for part in merged.parts} == {None}
        with pytest.raises(InputError, match="second pass"):
            SeparateGaussians.from_statistics(merged, covariance="ledoit-wolf")


def test_fitted_arrays_are_read_only(uneven):
    gaussians = fitted(uneven[0], uneven[1])
    for array in (gaussians.class_means, gaussians.priors, gaussians.factors[0].whitener):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0.0


def pooled_by_hand(features, labels, rows):
    """Friedman's shrinkage to the tied covariance, on the rows' span, in a loop."""
    classes, rank = np.unique(labels), np.linalg.matrix_rank(features - features.mean(axis=0))
    means = {name: features[labels == name].mean(axis=0) for name in classes}
    residuals = features - np.array([means[name] for name in labels])
    tied = residuals.T @ residuals / len(features)
    basis = np.linalg.svd(tied)[0][:, :rank]
    weight = rank + 2
    columns = []
    for name in classes:
        own = residuals[labels == name]
        covariance = (own.T @ own + weight * tied) / (len(own) + weight)
        gaussian = multivariate_normal(means[name] @ basis, basis.T @ covariance @ basis)
        columns.append(gaussian.logpdf(rows @ basis))
    return np.column_stack(columns)


@pytest.mark.parametrize("n_rows", [30, 3000])
def test_pooled_covariances_are_those_of_the_formula(n_rows):
    rng = np.random.default_rng(0)
    labels = np.arange(n_rows) % 3
    spread = rng.normal(size=(3, 4, 4))
    features = np.einsum("ni,nij->nj", rng.normal(size=(n_rows, 4)), spread[labels]) + labels[:, np.newaxis]
    gaussians = SeparateGaussians.from_statistics(collect_classes([(features, labels)]), covariance="pooled")
    rows = 3.0 * rng.normal(size=(20, 4))
    np.testing.assert_allclose(gaussians.log_densities(rows), pooled_by_hand(features, labels, rows), rtol=1e-9)
    np.testing.assert_allclose(gaussians.shrinkages, 6 / (n_rows / 3 + 6))


def test_pooled_covariances_need_no_class_of_full_rank():
    rng = np.random.default_rng(1)
    narrow = rng.normal(size=(40, 3))
    features = np.column_stack([narrow, narrow @ [1.0, -2.0, 0.5], np.full(40, 7.0)])  # a copy and a dead unit
    labels = np.where(np.arange(40) < 2, "few", "many")
    with pytest.warns(RankWarning, match="rank 3 of 5"):
        gaussians = SeparateGaussians.from_statistics(collect_classes([(features, labels)]), covariance="pooled")
    by_hand = pooled_by_hand(features, labels, features)
    np.testing.assert_allclose(gaussians.log_densities(features), by_hand, rtol=1e-9)
    assert {factor.rank for factor in gaussians.factors} == {3}


def test_too_many_covariances_are_refused_before_they_are_made():
    with pytest.raises(InputError, match=r"covariances of 300 classes of 1000 features are 3\.0e\+08 numbers"):
        collect_classes([(np.zeros((300, 1000)), np.arange(300))])
