"""Every combination of GEM's options and both Mahalanobis scores against SciPy, and relative scores at their edges."""

from itertools import product

import numpy as np
import pytest
from scipy.special import logsumexp
from scipy.stats import multivariate_normal
from sklearn.base import clone
from sklearn.covariance import ledoit_wolf, oas, shrunk_covariance
from sklearn.preprocessing import normalize

from gem_ood import GEM, Mahalanobis, load
from gem_ood.detectors import make
from gem_ood.detectors.gaussian import RelativeMahalanobis
from gem_ood.errors import InputError, RankWarning
from gem_ood.gaussians import collect
from gem_ood.metrics import evaluate
from gem_ood.theory import certify

NAIVE = {  # rows centred already
    "empirical": lambda rows: rows.T @ rows / len(rows),
    "oas": lambda rows: oas(rows, assume_centered=True)[0],
    "ledoit-wolf": lambda rows: ledoit_wolf(rows, assume_centered=True)[0],
    0.1: lambda rows: shrunk_covariance(rows.T @ rows / len(rows), 0.1),
}
PRIORS = {"uniform": "uniform", "empirical": "empirical", "given": [0.7, 0.2, 0.1]}


@pytest.fixture(name="uneven")
def uneven_blobs(blobs):
    """The blobs with classes of unlike size: fit rows, labels, held-out rows."""
    features, labels, held_out, _ = blobs
    kept = (labels == 0) | ((labels == 1) & (np.arange(600) < 300)) | (np.arange(600) < 150)
    return features[kept], labels[kept], held_out


def naive_parts(features, labels, rows, covariance):
    """Return the log-densities of rows under each class and under the background, less their constants, by SciPy."""
    means = np.stack([features[labels == name].mean(axis=0) for name in np.unique(labels)])
    tied = NAIVE[covariance](features - means[labels])
    overall = features.mean(axis=0)

    def exponent(mean, matrix):
        law = multivariate_normal(mean, matrix)
        return law.logpdf(rows) - law.logpdf(mean)

    exponents = np.stack([exponent(mean, tied) for mean in means], axis=1)
    return exponents, exponent(overall, NAIVE[covariance](features - overall))


@pytest.mark.parametrize(
    ("is_normalised", "relative", "priors", "covariance"), [*product([False, True], [False, True], PRIORS, NAIVE)]
)
def test_gem_with_any_options_is_what_scipy_makes_of_its_formula(uneven, is_normalised, relative, priors, covariance):
    features, labels, rows = uneven
    detector = GEM(priors=PRIORS[priors], covariance=covariance, normalize=is_normalised, relative=relative)
    scores = detector.fit(features, labels).score_samples(rows)
    if is_normalised:
        features, rows = normalize(features), normalize(rows)
    exponents, background = naive_parts(features, labels, rows, covariance)
    weights = {"uniform": np.ones(3), "empirical": np.bincount(labels) / len(labels)}.get(priors, PRIORS["given"])
    expected = logsumexp(exponents, axis=1, b=weights) - (background if relative else 0.0)
    np.testing.assert_allclose(scores, expected, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize(("is_normalised", "covariance"), [*product([False, True], NAIVE)])
def test_mahalanobis_scores_are_what_scipy_makes_of_their_formulas(uneven, is_normalised, covariance):
    features, labels, rows = uneven
    options = {"covariance": covariance, "normalize": is_normalised}
    plain = Mahalanobis(**options).fit(features, labels).score_samples(rows)
    relative = RelativeMahalanobis(**options).fit(features, labels).score_samples(rows)
    if is_normalised:
        features, rows = normalize(features), normalize(rows)
    exponents, background = naive_parts(features, labels, rows, covariance)
    np.testing.assert_allclose(plain, 2.0 * exponents.max(axis=1), rtol=1e-7, atol=1e-7)
    np.testing.assert_allclose(
        relative, 2.0 * (exponents - background[:, np.newaxis]).max(axis=1), rtol=1e-7, atol=1e-7
    )


def test_the_relative_distance_is_the_papers_loop_over_classes(uneven):
    features, labels, rows = uneven
    tied, overall = np.zeros((5, 5)), features.mean(axis=0)
    for row, label in zip(features, labels, strict=True):
        offset = row - features[labels == label].mean(axis=0)
        tied += np.outer(offset, offset) / len(features)
    background = np.linalg.inv(np.cov(features.T, bias=True))
    scores = RelativeMahalanobis().fit(features, labels).score_samples(rows[:20])
    for row, score in zip(rows, scores, strict=False):
        distances = []
        for name in range(3):
            offset = row - features[labels == name].mean(axis=0)
            distances.append(offset @ np.linalg.inv(tied) @ offset - (row - overall) @ background @ (row - overall))
        assert score == pytest.approx(-min(distances), rel=1e-8, abs=1e-8)


DETECTORS = [
    RelativeMahalanobis(),
    RelativeMahalanobis(covariance="oas", normalize=True),
    GEM(relative=True, priors="empirical", covariance=0.1),
    GEM(relative=True, priors=[0.7, 0.2, 0.1], normalize=True),
]


@pytest.mark.parametrize("detector", DETECTORS, ids=str)
def test_streamed_merged_and_collected_relative_fits_equal_one_fit(uneven, detector):
    features, labels, rows = uneven
    expected = clone(detector).fit(features, labels).score_samples(rows)
    streamed = clone(detector)
    for start in range(0, len(features), 41):
        part = slice(start, start + 41)
        streamed.partial_fit(features[part], labels[part], classes=[0, 1, 2])
    first, second = (clone(detector).fit(features[part], labels[part]) for part in (slice(0, 100), slice(100, None)))
    statistics = detector.collect([(features, labels)])
    for other in (streamed, first.merge(second), clone(detector).fit_statistics(statistics)):
        np.testing.assert_allclose(other.score_samples(rows), expected, rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("detector", [*DETECTORS, RelativeMahalanobis(covariance="ledoit-wolf")], ids=str)
def test_relative_fits_are_saved_to_the_bit_before_any_score_too(uneven, detector, tmp_path):
    features, labels, rows = uneven
    detector = clone(detector)
    if detector.covariance == "ledoit-wolf":
        detector.fit(features, labels)
    else:
        detector.partial_fit(features, labels)
    detector.save(tmp_path / "detector.safetensors")
    loaded = load(tmp_path / "detector.safetensors")
    assert type(loaded) is type(detector)
    assert loaded._background is not None
    np.testing.assert_array_equal(loaded.score_samples(rows), detector.score_samples(rows))
    np.testing.assert_array_equal(loaded.verdicts(rows).nearest_class, detector.verdicts(rows).nearest_class)


@pytest.mark.parametrize("kind", [RelativeMahalanobis, lambda: GEM(relative=True)], ids=["distance", "gem"])
def test_a_direction_without_variance_within_classes_counts_in_neither_part(uneven, kind):
    features, labels, rows = uneven
    expected = kind().fit(features, labels)
    for seed in range(3):  # an axis of its own, and one that is mixed with the others
        turn = np.eye(6) if seed == 0 else np.linalg.qr(np.random.default_rng(seed).normal(size=(6, 6)))[0]
        with pytest.warns(RankWarning, match="rank 5 of 6"):
            detector = kind().fit(np.column_stack([features, 4.0 * labels]) @ turn, labels)
        assert detector.background_.rank == 5
        on_support = np.column_stack([rows, np.full(len(rows), 4.0)]) @ turn
        far_off = np.column_stack([rows, np.full(len(rows), 1e4)]) @ turn
        if seed == 0:  # there the ignored direction is the new axis itself, wherever on it a row lies
            np.testing.assert_allclose(detector.score_samples(on_support), expected.score_samples(rows), rtol=1e-7)
            np.testing.assert_allclose(detector.score_samples(far_off), expected.score_samples(rows), rtol=1e-7)
        # No law of the rows makes a far row likelier than the most likely of them by orders of magnitude.
        assert detector.score_samples(far_off).max() < expected.score_samples(features).max() + 10.0


def test_a_relative_score_of_few_rows_has_an_upper_bound():
    generator = np.random.default_rng(0)
    labels = np.arange(30) % 3
    features = generator.normal(size=(30, 50)) + 3.0 * labels[:, np.newaxis]
    with pytest.warns(RankWarning, match="rank 27 of 50"):
        detector = RelativeMahalanobis().fit(features, labels)
    assert detector.background_.rank == 27
    # The covariance of all rows is that within classes and π_k(μ_k − μ_0)(μ_k − μ_0)ᵀ of each class k, so that the
    # distance to their mean exceeds no class distance by more than 1/π_k, which is 3 here.
    rows = 100.0 * generator.normal(size=(500, 50))
    assert detector.score_samples(rows).max() <= 3.0 + 1e-6
    assert detector.score_samples(features).max() <= 3.0 + 1e-9


def test_dead_and_doubled_features_change_no_relative_score(uneven):
    features, labels, rows = uneven
    expected = RelativeMahalanobis().fit(features, labels).score_samples(rows)

    def widened(part):
        return np.column_stack([part, np.zeros(len(part)), part[:, 0]])

    with pytest.warns(RankWarning, match="rank 5 of 7"):
        detector = RelativeMahalanobis().fit(widened(features), labels)
    np.testing.assert_allclose(detector.score_samples(widened(rows)), expected, rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("kind", [RelativeMahalanobis, lambda: GEM(relative=True)], ids=["distance", "gem"])
def test_narrow_rows_are_scored_wide_since_the_difference_is_small(kind):
    generator = np.random.default_rng(0)
    labels = np.arange(4000) % 4
    features = (generator.normal(size=(4000, 64)) + 0.1 * labels[:, np.newaxis]).astype(np.float32)
    detector = kind().fit(features, labels)
    assert detector.gaussians_.working_dtype(np.float32) == np.float32
    rows = (100.0 * generator.normal(size=(300, 64))).astype(np.float32)
    np.testing.assert_array_equal(detector.score_samples(rows), detector.score_samples(rows.astype(np.float64)))
    singly = np.concatenate([detector.score_samples(row[np.newaxis]) for row in rows])
    np.testing.assert_allclose(detector.score_samples(rows), singly, rtol=1e-9, atol=1e-7)
    rows[299, 5] = np.nan
    with pytest.raises(InputError, match="row 299, column 5 is NaN"):
        detector.score_samples(rows)


@pytest.mark.parametrize("covariance", NAIVE)
def test_extreme_rows_are_far_and_never_nan(uneven, covariance):
    features, labels, rows = uneven
    extreme = np.array([[1e200] * 5, [-1e308] * 5, [1e150] * 5, [0.0] * 5])
    for kind in (RelativeMahalanobis, GEM):
        detector = kind(covariance=covariance)
        if kind is GEM:
            detector.set_params(relative=True)
        scores = detector.fit(features, labels).calibrate(rows).score_samples(extreme)
        np.testing.assert_array_equal(scores[:2], [-np.inf, -np.inf])
        assert np.isfinite(scores[2:]).all()
        assert detector.is_ood(extreme[:3]).all()


def test_a_background_that_overflows_first_makes_no_row_infinitely_sure():
    generator = np.random.default_rng(0)
    features = generator.normal(size=(200, 3)) * np.array([1e-3, 1.0, 1.0])
    labels = np.arange(200) % 2
    detector = RelativeMahalanobis().fit(features, labels)
    detector._background = type(detector.gaussians_).from_parameters(np.zeros((1, 3)), 1e-12 * np.eye(3))
    scores = detector.score_samples([[0.0, 1e151, 0.0]])  # its distance to a class is finite, that to the rest is not
    np.testing.assert_array_equal(scores, [-np.inf])


def test_relative_scores_need_two_classes_and_say_so(uneven):
    features, _, rows = uneven
    for fit in (
        lambda: RelativeMahalanobis().fit(features),
        lambda: RelativeMahalanobis().fit(features, np.zeros(len(features), dtype=int)),
        lambda: RelativeMahalanobis().fit_statistics(collect(features)),
        lambda: RelativeMahalanobis().partial_fit(features).score_samples(rows),
        lambda: RelativeMahalanobis().partial_fit(features).merge(RelativeMahalanobis().partial_fit(features)),
    ):
        with pytest.raises(InputError, match=r"a relative score compares classes .* at least two classes"):
            fit()


def test_what_cannot_be_done_with_a_relative_distance_is_refused(uneven):
    features, labels, _ = uneven
    detector = RelativeMahalanobis().fit(features, labels)
    with pytest.raises(InputError, match="no log-density"):
        certify(detector, ood_mean=np.zeros(5))
    with pytest.raises(InputError, match="cannot merge a Mahalanobis into a RelativeMahalanobis"):
        detector.merge(Mahalanobis().fit(features, labels))
    with pytest.raises(InputError, match="cannot stream"):
        RelativeMahalanobis(covariance="ledoit-wolf").partial_fit(features, labels)
    with pytest.raises(InputError, match="covariance is 'ols'"):
        RelativeMahalanobis(covariance="ols").fit(features, labels)
    with pytest.raises(InputError, match="relative-mahalanobis has no option 'relative'"):
        make("relative-mahalanobis", relative=False)


def test_what_is_unusual_for_every_class_alike_cancels():
    generator = np.random.default_rng(0)
    labels = np.arange(6000) % 3
    features = generator.normal(size=(6000, 8))
    features[:, 0] += 9.0 * labels
    detector, plain = RelativeMahalanobis().fit(features, labels), Mahalanobis().fit(features, labels)
    row = np.array([[9.0, *np.zeros(7)]])
    common, between = row + 5.0 * np.eye(8)[7], row + 4.5 * np.eye(8)[0]
    assert plain.score_samples(row) - plain.score_samples(common) > 20.0
    assert abs(detector.score_samples(row) - detector.score_samples(common)) < 1.0
    assert detector.score_samples(row) - detector.score_samples(between) > 15.0


@pytest.mark.parametrize(
    ("detector", "expected"),  # FPR95 / AUROC in percent on svhn, textures, places, as measured in float64
    [
        (RelativeMahalanobis(), ((58.86, 89.39), (58.17, 88.45), (50.64, 89.73))),
        (GEM(relative=True), ((58.49, 89.40), (58.08, 88.46), (50.13, 89.75))),
    ],
    ids=str,
)
def test_the_figures_on_a_real_cifar10_network(cifar10, detector, expected):
    detector.fit(cifar10["train"]["features"], cifar10["train"]["labels"])
    id_scores = detector.score_samples(cifar10["test"]["features"])
    for set_name, (fpr, auroc) in zip(("svhn", "textures", "places"), expected, strict=True):
        result = evaluate(id_scores, detector.score_samples(cifar10[f"ood_{set_name}"]["features"]))
        assert 100 * result.fpr == pytest.approx(fpr, abs=0.05)
        assert 100 * result.auroc == pytest.approx(auroc, abs=0.05)


def test_the_torch_scorer_answers_the_same(uneven):
    torch = pytest.importorskip("torch")
    from gem_ood.torch.scorers import scorer

    features, labels, rows = uneven
    detector = RelativeMahalanobis().fit(features, labels)
    scores = scorer(detector)(torch.from_numpy(rows))
    np.testing.assert_allclose(scores.numpy(), detector.score_samples(rows), rtol=1e-9, atol=1e-9)
