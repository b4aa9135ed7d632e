"""ClassGaussians: its two scores against SciPy, streaming, merging, saving, and what it refuses."""

import numpy as np
import pytest
from scipy.special import logsumexp
from scipy.stats import multivariate_normal
from sklearn.base import clone
from sklearn.covariance import ledoit_wolf, oas, shrunk_covariance
from sklearn.preprocessing import normalize

from gem_ood import GEM, load
from gem_ood.detectors import make
from gem_ood.detectors.class_gaussians import ClassGaussians
from gem_ood.errors import FileFormatError, InputError, NotFittedError
from gem_ood.metrics import evaluate

NAIVE = {
    "empirical": lambda rows: np.cov(rows.T, bias=True),
    "oas": lambda rows: oas(rows)[0],
    "ledoit-wolf": lambda rows: ledoit_wolf(rows)[0],
    0.1: lambda rows: shrunk_covariance(np.cov(rows.T, bias=True), 0.1),
}


@pytest.fixture(name="stretched")
def stretched_blobs(blobs):
    """The blobs with classes of unlike size and spread."""
    features, labels, held_out, far = blobs
    kept = (labels < 2) | (np.arange(600) < 300)
    stretched = features[kept] * np.array([1.0, 0.5, 3.0])[labels[kept], np.newaxis]
    return stretched, labels[kept], held_out, far


@pytest.mark.parametrize("covariance", NAIVE)
@pytest.mark.parametrize("is_normalised", [False, True], ids=["as they are", "unit length"])
@pytest.mark.parametrize("priors", ["empirical", "uniform", [0.6, 0.3, 0.1]], ids=str)
@pytest.mark.parametrize("variant", ["mixture", "nearest"])
def test_scores_are_log_densities_of_one_normal_law_per_class(stretched, covariance, is_normalised, priors, variant):
    features, labels, rows, _ = stretched
    detector = ClassGaussians(priors=priors, covariance=covariance, normalize=is_normalised, variant=variant)
    scores = detector.fit(features, labels).score_samples(rows)
    if is_normalised:
        features, rows = normalize(features), normalize(rows)
    columns = []
    for name in range(3):
        own = features[labels == name]
        columns.append(multivariate_normal(own.mean(axis=0), NAIVE[covariance](own)).logpdf(rows))
    densities = np.stack(columns, axis=1)
    weights = {"empirical": np.bincount(labels) / len(labels), "uniform": np.ones(3) / 3}.get(str(priors), priors)
    expected = logsumexp(densities, axis=1, b=weights) if variant == "mixture" else densities.max(axis=1)
    np.testing.assert_allclose(scores, expected, rtol=1e-8, atol=1e-8)


def test_verdicts_name_the_class_of_the_highest_density(stretched):
    features, labels, rows, _ = stretched
    names = np.array(["ant", "bee", "cat"])[labels]
    detector = ClassGaussians(priors=[0.98, 0.01, 0.01]).fit(features, names)
    densities = detector.gaussians_.log_densities(rows)
    assert detector.verdicts(rows).nearest_class.tolist() == detector.classes_[densities.argmax(axis=1)].tolist()
    explanation = detector.explain(rows)
    np.testing.assert_allclose(explanation.distances**2, detector.gaussians_.squared_distances(rows))
    np.testing.assert_allclose(explanation.responsibilities, detector.gaussians_.posterior(rows))


def test_with_classes_of_one_covariance_it_nears_gem_and_with_unlike_ones_it_beats_it():
    generator = np.random.default_rng(0)

    def draw(n, spreads):
        labels = np.arange(n) % 2
        spread = np.array([[spreads[0], 1.0], [1.0, spreads[1]]])[labels]
        return generator.normal(size=(n, 2)) * spread + 12.0 * labels[:, np.newaxis], labels

    shared, separate = GEM(), ClassGaussians(priors="uniform")
    features, labels = draw(40_000, (1.0, 1.0))
    constant = shared.fit(features, labels).gaussians_.log_normalizer + np.log(2.0)
    gap = separate.fit(features, labels).score_samples(features) - (shared.score_samples(features) - constant)
    assert np.median(np.abs(gap)) < 0.05
    features, labels = draw(4000, (6.0, 6.0))
    ood = 6.0 * generator.normal(size=(2000, 2)) + 6.0
    auroc = [evaluate(each.score_samples(features), each.score_samples(ood)).auroc
             for each in (shared.fit(features, labels), separate.fit(features, labels))]  # fmt: skip
    assert auroc[1] > auroc[0] + 0.03


@pytest.mark.parametrize("options", [{}, {"covariance": "oas", "variant": "nearest"}, {"normalize": True}], ids=str)
def test_partial_fits_and_merges_equal_one_fit(stretched, options):
    features, labels, held_out, _ = stretched
    expected = ClassGaussians(**options).fit(features, labels).score_samples(held_out)
    streamed = ClassGaussians(**options)
    for start in range(0, len(features), 37):
        rows = slice(start, start + 37)
        streamed.partial_fit(features[rows], labels[rows], classes=[0, 1, 2])
    np.testing.assert_allclose(streamed.score_samples(held_out), expected, rtol=1e-8)
    first, second = (clone(streamed).fit(features[rows], labels[rows]) for rows in (slice(0, 200), slice(200, None)))
    before = first.calibrate(held_out).score_samples(held_out)
    merged = first.merge(second)
    np.testing.assert_allclose(merged.score_samples(held_out), expected, rtol=1e-8)
    np.testing.assert_array_equal(first.score_samples(held_out), before)
    assert first.is_calibrated
    assert not merged.is_calibrated


def test_a_stream_may_begin_with_too_few_rows_and_ends_well(stretched):
    features, labels, held_out, _ = stretched
    parts = [ClassGaussians().partial_fit(features[:4], labels[:4], classes=[0, 1, 2])]
    with pytest.raises(InputError, match="class 0 has rank 1 of 5 dimensions"):
        parts[0].score_samples(held_out)
    parts.append(ClassGaussians().partial_fit(features[4:8], labels[4:8], classes=[0, 1, 2]))
    joined = parts[0].merge(parts[1]).partial_fit(features[8:], labels[8:])
    expected = ClassGaussians().fit(features, labels).score_samples(held_out)
    np.testing.assert_allclose(joined.score_samples(held_out), expected, rtol=1e-9)


def test_batches_show_their_classes_on_the_way(stretched):
    features, labels, held_out, _ = stretched
    order = np.argsort(labels, kind="stable")
    batches = [(features[rows], labels[rows]) for rows in np.array_split(order, 9)]
    for covariance in ("empirical", "ledoit-wolf"):
        detector = ClassGaussians(covariance=covariance)
        expected = clone(detector).fit(features, labels).score_samples(held_out)
        np.testing.assert_allclose(detector.fit_batches(batches).score_samples(held_out), expected, rtol=1e-9)
        assert detector.classes_.tolist() == [0, 1, 2]


def test_the_hold_out_fits_on_the_rest_and_calibrates_on_the_held_rows(stretched):
    features, labels, _, far = stretched
    detector = ClassGaussians(calibration=0.25, random_state=3).fit(features, labels)
    assert detector.statistics_.n_rows + detector.threshold_.n_rows == len(features)
    assert detector.is_ood(far).mean() > 0.9


@pytest.mark.parametrize(
    "options", [{}, {"covariance": "ledoit-wolf"}, {"priors": [0.5, 0.25, 0.25], "variant": "nearest"}], ids=str
)
def test_saved_and_loaded_scores_are_the_same_to_the_bit(stretched, tmp_path, options):
    features, labels, held_out, far = stretched
    names = np.array(["ant", "bee", "cat"])[labels]
    detector = ClassGaussians(**options).fit(features, names).calibrate(held_out)
    detector.save(tmp_path / "detector.safetensors")
    loaded = load(tmp_path / "detector.safetensors")
    assert type(loaded) is ClassGaussians
    for rows in (held_out, far, held_out[:1], held_out.astype(np.float32)):
        np.testing.assert_array_equal(loaded.score_samples(rows), detector.score_samples(rows))
        np.testing.assert_array_equal(loaded.p_values(rows), detector.p_values(rows))
        np.testing.assert_array_equal(loaded.explain(rows).responsibilities, detector.explain(rows).responsibilities)
    np.testing.assert_array_equal(loaded.gaussians_.shrinkages, detector.gaussians_.shrinkages)
    for mine, theirs in zip(loaded.statistics_.parts, detector.statistics_.parts, strict=True):
        assert mine.fourth_moment == theirs.fourth_moment
        np.testing.assert_array_equal(mine.scatter, theirs.scatter)


def test_a_loaded_detector_with_an_absent_class_goes_on_learning(stretched, tmp_path):
    features, labels, held_out, _ = stretched
    early = labels != 2
    detector = ClassGaussians().partial_fit(features[early], labels[early], classes=[0, 1, 2])
    detector.save(tmp_path / "early.safetensors")
    loaded = load(tmp_path / "early.safetensors")
    np.testing.assert_array_equal(loaded.score_samples(held_out), detector.score_samples(held_out))
    assert loaded.gaussians_.classes.tolist() == [0, 1]
    loaded.partial_fit(features[~early], labels[~early])
    expected = ClassGaussians().fit(features, labels).score_samples(held_out)
    np.testing.assert_allclose(loaded.score_samples(held_out), expected, rtol=1e-9)


def test_a_file_that_lacks_a_class_is_refused(stretched):
    from gem_ood.detectors.saving import pack, unpack

    tensors, header = pack(ClassGaussians().fit(stretched[0], stretched[1]))
    for name, damaged in (
        ("gaussians.whiteners", tensors["gaussians.whiteners"][:2]),
        ("statistics.scatters", tensors["statistics.scatters"][:, :4]),
        ("gaussians.priors", tensors["gaussians.priors"][:2]),
    ):
        with pytest.raises(FileFormatError, match=name):
            unpack(tensors | {name: damaged}, header, name="file")


def test_without_labels_there_is_one_gaussian(stretched):
    features, _, held_out, _ = stretched
    expected = multivariate_normal(features.mean(axis=0), np.cov(features.T, bias=True)).logpdf(held_out)
    detector = ClassGaussians().fit(features)
    np.testing.assert_allclose(detector.score_samples(held_out), expected, rtol=1e-9)
    streamed = ClassGaussians().partial_fit(features[:300]).partial_fit(features[300:])
    np.testing.assert_allclose(streamed.score_samples(held_out), expected, rtol=1e-9)
    with pytest.raises(InputError, match="labels"):
        detector.partial_fit(features, stretched[1])
    with pytest.raises(InputError, match="labels"):
        detector.merge(ClassGaussians().fit(features, stretched[1]))


def test_a_class_of_too_few_rows_is_refused_and_shrinkage_mends_it(stretched):
    features, labels, held_out, _ = stretched
    kept = np.concatenate([np.flatnonzero(labels != 1), np.flatnonzero(labels == 1)[:4]])
    detector = ClassGaussians().fit(features, labels)
    before = detector.score_samples(held_out)
    with pytest.raises(InputError, match=r"class 1 has rank 3 of 5 dimensions \(rows: 4\).*covariance='oas'"):
        detector.fit(features[kept], labels[kept])
    np.testing.assert_array_equal(detector.score_samples(held_out), before)
    assert np.isfinite(ClassGaussians(covariance="oas").fit(features[kept], labels[kept]).score_samples(held_out)).all()
    with pytest.raises(InputError, match=r"class 1 has no spread \(rows: 1\)"):
        ClassGaussians(covariance="oas").fit(features[kept[:-3]], labels[kept[:-3]])


def test_a_bad_batch_is_refused_and_changes_nothing(stretched):
    features, labels, held_out, _ = stretched
    detector = ClassGaussians().fit(features, labels).calibrate(held_out)
    before = detector.score_samples(held_out)
    missing, huge = features.copy(), features.copy()
    missing[-1, 0], huge[-1] = np.nan, 1e200
    for X, y, options, message in (
        (missing, labels, {}, f"row {len(features) - 1}, column 0 is NaN"),
        (huge, labels, {}, "rescale"),
        (features, labels + 1, {}, "3, which is not among the 3 classes"),
        (features, None, {}, "labels"),
        (features[:, :4], labels, {}, "expecting 5 features"),
        (features, labels, {"classes": [0, 1, 2, 3]}, "declare all of them in the first call"),
    ):
        with pytest.raises(InputError, match=message):
            detector.partial_fit(X, y, **options)
        np.testing.assert_array_equal(detector.score_samples(held_out), before)
        assert detector.is_calibrated


def test_fits_that_cannot_be_joined_are_refused(stretched):
    features, labels, held_out, _ = stretched
    detector = ClassGaussians().fit(features, labels)
    with pytest.raises(InputError, match="cannot merge a GEM into a ClassGaussians"):
        detector.merge(GEM().fit(features, labels))
    with pytest.raises(InputError, match="normalize=True and the other False"):
        detector.merge(ClassGaussians(normalize=True).fit(features, labels))
    with pytest.raises(InputError, match="5 features and others 4"):
        detector.merge(ClassGaussians().fit(features[:, :4], labels))
    with pytest.raises(NotFittedError, match=r"call fit\(features, labels\) first"):
        detector.merge(ClassGaussians())
    twice = ClassGaussians(covariance="ledoit-wolf").fit(features, labels)
    for join in (lambda: twice.merge(twice), lambda: twice.partial_fit(features, labels)):
        with pytest.raises(InputError, match="needs two passes"):
            join()
    with pytest.raises(NotFittedError, match=r"call fit\(features, labels\) first"):
        ClassGaussians().score_samples(held_out)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"covariance": "tied"}, "covariance is 'tied'; pass one of empirical, pooled"),
        ({"covariance": 1.5}, "shrinkage share between 0 and 1"),
        ({"priors": "given"}, "priors is 'given'; pass 'empirical'"),
        ({"priors": [0.5, 0.5]}, "there are 3 classes; pass one weight per class"),
        ({"variant": "max"}, "variant is 'max'; pass 'mixture' or 'nearest'"),
    ],
)
def test_bad_options_are_refused(stretched, options, message):
    with pytest.raises(InputError, match=message):
        ClassGaussians(**options).fit(stretched[0], stretched[1])


def test_extreme_rows_have_a_score_and_never_nan(stretched):
    features, labels, held_out, _ = stretched
    for options in ({}, {"variant": "nearest"}, {"normalize": True}):
        detector = ClassGaussians(**options).fit(features, labels).calibrate(held_out)
        rows = np.array([[0.0] * 5, [1e150] * 5, [-1e200] * 5, [1e-300] * 5])
        scores = detector.score_samples(rows)
        assert not np.isnan(scores).any()
        assert np.isfinite(scores[[0, 1, 3]]).all()
        assert not np.isnan(detector.explain(rows).responsibilities).any()
        if not options.get("normalize"):
            assert scores[2] == -np.inf
            assert detector.is_ood(rows[1:3]).all()
    large = ClassGaussians().fit(1e140 * features, labels)
    expected = ClassGaussians().fit(features, labels).score_samples(held_out) - 5 * np.log(1e140)
    np.testing.assert_allclose(large.score_samples(1e140 * held_out), expected, rtol=1e-9)


def test_long_input_is_scored_as_its_rows_and_bad_rows_keep_their_number(stretched):
    features, labels, held_out, _ = stretched
    long = np.tile(held_out, (300, 1))
    for detector in (ClassGaussians(), ClassGaussians(normalize=True)):
        expected = np.tile(detector.fit(features, labels).score_samples(held_out), 300)
        np.testing.assert_allclose(detector.score_samples(long), expected, rtol=1e-10)
        spoiled = long.copy()
        spoiled[119_999, 3] = np.inf
        with pytest.raises(InputError, match="row 119999, column 3 is infinity"):
            detector.score_samples(spoiled)


def test_it_is_made_by_name():
    assert isinstance(make("class-gaussians", variant="nearest"), ClassGaussians)


def test_the_figures_on_a_real_cifar10_network(cifar10):
    detector = ClassGaussians().fit(cifar10["train"]["features"], cifar10["train"]["labels"])
    id_scores = detector.score_samples(cifar10["test"]["features"])
    # FPR95 / AUROC in percent, as measured in float64
    for set_name, fpr, auroc in (("svhn", 85.51, 84.26), ("textures", 40.00, 91.76), ("places", 70.88, 83.03)):
        result = evaluate(id_scores, detector.score_samples(cifar10[f"ood_{set_name}"]["features"]))
        assert 100 * result.fpr == pytest.approx(fpr, abs=0.05)
        assert 100 * result.auroc == pytest.approx(auroc, abs=0.05)
