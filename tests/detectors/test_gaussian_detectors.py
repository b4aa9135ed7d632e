"""GEM and Mahalanobis: streaming, merging, options, the hold-out, and the figures on real features."""

from dataclasses import replace

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.preprocessing import normalize

from gem_ood import GEM, MSP, Energy, Head, Mahalanobis, load
from gem_ood.errors import InputError
from gem_ood.features import unit_length
from gem_ood.gaussians import Accumulator, collect, fourth_moment
from gem_ood.metrics import evaluate
from gem_ood.scores import gem_scores


def test_partial_fits_equal_one_fit(blobs):
    features, labels, held_out, _ = blobs
    whole = GEM().fit(features, labels)
    streamed = GEM()
    for start in range(0, len(features), 37):
        streamed.partial_fit(features[start : start + 37], labels[start : start + 37], classes=[0, 1, 2])
    np.testing.assert_allclose(streamed.score_samples(held_out), whole.score_samples(held_out), rtol=1e-9)


def test_a_loaded_detector_goes_on_learning(blobs, tmp_path):
    features, labels, held_out, _ = blobs
    GEM().fit(features[:300], labels[:300]).save(tmp_path / "half.safetensors")
    resumed = load(tmp_path / "half.safetensors").partial_fit(features[300:], labels[300:])
    whole = GEM().fit(features, labels)
    np.testing.assert_allclose(resumed.score_samples(held_out), whole.score_samples(held_out), rtol=1e-9)


def test_merged_fits_equal_one_fit_and_leave_the_parts_alone(blobs):
    features, labels, held_out, _ = blobs
    first, second = GEM().fit(features[:250], labels[:250]), GEM().fit(features[250:], labels[250:])
    before = first.score_samples(held_out)
    merged = first.calibrate(held_out).merge(second)
    expected = GEM().fit(features, labels).score_samples(held_out)
    np.testing.assert_allclose(merged.score_samples(held_out), expected, rtol=1e-9)
    np.testing.assert_array_equal(first.score_samples(held_out), before)
    assert first.is_calibrated
    assert not merged.is_calibrated


@pytest.mark.parametrize("kind", [GEM, Mahalanobis])
@pytest.mark.parametrize("options", [{}, {"covariance": "oas"}, {"covariance": 0.3}, {"normalize": True}], ids=str)
def test_a_fit_from_statistics_is_the_fit_on_their_rows(blobs, kind, options):
    features, labels, held_out, _ = blobs
    collected = collect(features, labels, prepare=unit_length if options.get("normalize") else None)
    detector = kind(**options).fit(held_out).calibrate(held_out).fit_statistics(collected)
    expected = kind(**options).fit(features, labels)
    np.testing.assert_array_equal(detector.score_samples(held_out), expected.score_samples(held_out))
    assert not detector.is_calibrated
    assert detector.classes_.tolist() == [0, 1, 2]


@pytest.mark.parametrize("priors", ["empirical", [0.7, 0.2, 0.1]], ids=["empirical", "given"])
def test_a_relative_fit_from_statistics_keeps_priors_and_goes_on_learning(blobs, priors):
    features, labels, held_out, _ = blobs
    detector = GEM(relative=True, priors=priors).fit_statistics(collect(features[:400], labels[:400]))
    expected = GEM(relative=True, priors=priors).fit(features[:400], labels[:400])
    np.testing.assert_allclose(detector.score_samples(held_out), expected.score_samples(held_out), rtol=1e-12)
    detector.partial_fit(features[400:], labels[400:])
    whole = GEM(relative=True, priors=priors).fit(features, labels)
    np.testing.assert_allclose(detector.score_samples(held_out), whole.score_samples(held_out), rtol=1e-8, atol=1e-8)


def test_ledoit_wolf_from_statistics_needs_their_fourth_moment(blobs):
    features, labels, held_out, _ = blobs
    collected = collect(features, labels)
    moment = fourth_moment(collected, [(features, labels)])
    detector = GEM(covariance="ledoit-wolf").fit_statistics(replace(collected, fourth_moment=moment))
    expected = GEM(covariance="ledoit-wolf").fit(features, labels)
    assert detector.gaussians_.shrinkage > 0.0
    np.testing.assert_array_equal(detector.score_samples(held_out), expected.score_samples(held_out))
    for options, given in (({}, collected), ({"relative": True}, replace(collected, fourth_moment=moment))):
        with pytest.raises(InputError, match="needs a second pass over the rows"):
            GEM(covariance="ledoit-wolf", **options).fit_statistics(given)


def test_statistics_that_cannot_be_fitted_are_refused_and_change_nothing(blobs):
    features, labels, held_out, _ = blobs
    detector = GEM().fit(features, labels).calibrate(held_out)
    before = detector.score_samples(held_out)
    damaged = collect(features, labels)
    damaged.means[1, 2] = np.nan
    for given, message in (
        (features, "statistics is of type ndarray; pass gem_ood.gaussians.Statistics"),
        (Accumulator(n_features=5, classes=[0, 1]).statistics(), "the fit has no rows"),
        (collect(features[:1], labels[:1]), "no feature varies within a class"),
        (damaged, r"statistics.means row 1, column 2 is NaN"),
    ):
        with pytest.raises(InputError, match=message):
            detector.fit_statistics(given)
        np.testing.assert_array_equal(detector.score_samples(held_out), before)
        assert detector.is_calibrated
    for options, message in (
        ({"calibration": 0.1}, "cannot from statistics"),
        ({"covariance": "ols"}, "covariance is 'ols'"),
        ({"relative": True}, "at least two classes"),
    ):
        with pytest.raises(InputError, match=message):
            GEM(**options).fit_statistics(collect(features))


def test_fits_of_different_kinds_cannot_be_merged(blobs):
    fitted = GEM().fit(blobs[0], blobs[1])
    with pytest.raises(InputError, match="cannot merge a Mahalanobis into a GEM"):
        fitted.merge(Mahalanobis().fit(blobs[0], blobs[1]))
    with pytest.raises(InputError, match="normalize=True and the other False"):
        fitted.merge(GEM(normalize=True).fit(blobs[0], blobs[1]))


def test_an_unseen_class_in_partial_fit_is_refused_and_changes_nothing(blobs):
    features, labels, held_out, _ = blobs
    detector = GEM().partial_fit(features, labels)
    before = detector.score_samples(held_out)
    with pytest.raises(InputError, match="row 0 is 7, which is not among the 3 classes"):
        detector.partial_fit(features[:2], [7, 0])
    np.testing.assert_array_equal(detector.score_samples(held_out), before)


def test_a_bad_row_in_partial_fit_is_refused_and_changes_nothing(blobs):
    features, labels, held_out, _ = blobs
    detector = GEM().partial_fit(features, labels)
    before = detector.score_samples(held_out)
    long = np.tile(features, (400, 1))
    long[-1, 0] = np.nan
    with pytest.raises(InputError, match=f"row {len(long) - 1}, column 0 is NaN"):
        detector.partial_fit(long, np.tile(labels, 400))
    np.testing.assert_array_equal(detector.score_samples(held_out), before)


def test_partial_fit_with_labels_missing_or_of_another_kind_is_refused(blobs):
    detector = GEM().partial_fit(blobs[0], blobs[1])
    with pytest.raises(InputError, match="came without labels"):
        detector.partial_fit(blobs[0])
    with pytest.raises(InputError, match=r"labels are strings .* but the classes are whole numbers"):
        detector.partial_fit(blobs[0][:1], ["a"])


def test_without_labels_there_is_one_gaussian(blobs):
    features, _, held_out, _ = blobs
    detector = GEM().fit(features)
    assert detector.gaussians_.n_classes == 1
    centred = held_out - features.mean(axis=0)
    inverse = np.linalg.inv(np.cov(features.T, bias=True))
    expected = -0.5 * np.einsum("ij,jk,ik->i", centred, inverse, centred)
    np.testing.assert_allclose(detector.score_samples(held_out), expected, rtol=1e-9)


def test_priors_weigh_the_classes(blobs):
    features, labels, held_out, _ = blobs
    weights = np.array([0.7, 0.2, 0.1])
    weighted = GEM(priors=weights).fit(features, labels)
    exponents = weighted.gaussians_.exponents(held_out)
    np.testing.assert_allclose(weighted.score_samples(held_out), np.log(np.exp(exponents) @ weights), rtol=1e-9)
    counted = GEM(priors="empirical").fit(features[:100], labels[:100])
    np.testing.assert_allclose(counted.gaussians_.priors, np.bincount(labels[:100]) / 100)


def test_normalised_scores_are_those_of_rows_of_unit_length(blobs):
    features, labels, held_out, _ = blobs
    plain = GEM().fit(normalize(features), labels).score_samples(normalize(held_out))
    detector = GEM(normalize=True).fit(features, labels)
    np.testing.assert_allclose(detector.score_samples(held_out), plain, rtol=1e-8)
    np.testing.assert_allclose(detector.score_samples(17.0 * held_out), plain, rtol=1e-8)
    assert np.isfinite(detector.score_samples(np.zeros((1, 5)))).all()


def test_relative_scores_subtract_one_background_gaussian(blobs):
    features, labels, held_out, _ = blobs
    detector = GEM(relative=True).fit(features, labels)
    plain, background = GEM().fit(features, labels), GEM().fit(features)
    expected = plain.score_samples(held_out) - background.score_samples(held_out)
    np.testing.assert_allclose(detector.score_samples(held_out), expected, rtol=1e-8, atol=1e-9)
    for unlabelled in (lambda: GEM(relative=True).fit(features), lambda: GEM(relative=True).partial_fit(features)):
        with pytest.raises(InputError, match="at least two classes"):
            unlabelled().score_samples(held_out)


@pytest.mark.parametrize("options", [{}, {"covariance": "ledoit-wolf"}, {"relative": True}])
def test_the_hold_out_fits_on_the_rest_and_calibrates_on_the_held_rows(blobs, options):
    features, labels, _, far = blobs
    detector = GEM(calibration=0.25, random_state=3, **options).fit(features, labels)
    assert detector.statistics_.n_rows == 450
    assert detector.threshold_.n_rows == 150
    assert detector.is_ood(far).mean() > 0.9
    again = clone(detector).fit(features, labels)
    assert again.offset_ == detector.offset_
    other = clone(detector).set_params(random_state=4).fit(features, labels)
    assert other.offset_ != detector.offset_


@pytest.mark.parametrize("share", [0.0, 1.0, -1, True, 1.5])
def test_a_hold_out_share_that_is_none_is_refused(share, blobs):
    with pytest.raises(InputError, match="share between 0 and 1"):
        GEM(calibration=share).fit(blobs[0], blobs[1])


def test_training_rows_are_no_calibration_rows_b6():
    generator = np.random.default_rng(0)
    features, labels = generator.normal(size=(1500, 200)), np.arange(1500) % 10
    fresh, held_out = generator.normal(size=(2, 2000, 200))
    detector = GEM().fit(features, labels)
    on_training = detector.calibrate(features, tpr=0.95).predict(fresh)
    on_held_out = detector.calibrate(held_out, tpr=0.95).predict(fresh)
    assert (on_training == 1).mean() < 0.75
    # A binomial share over 2,000 rows and 2,000 calibration rows: 0.95 ± 0.03 is over four standard errors.
    assert (on_held_out == 1).mean() == pytest.approx(0.95, abs=0.03)


def test_batches_that_can_be_read_once_are_refused(blobs):
    with pytest.raises(InputError, match="only once"):
        GEM().fit_batches(iter([(blobs[0], blobs[1])]))
    with pytest.raises(InputError, match="batches is empty"):
        GEM().fit_batches([])
    with pytest.raises(InputError, match="calibration holds rows back"):
        GEM(calibration=0.1).fit_batches([(blobs[0], blobs[1])])


def test_false_discovery_selection_flags_the_far_rows(blobs):
    features, labels, held_out, far = blobs
    detector = GEM().fit(features, labels).calibrate(held_out)
    flagged = detector.select_ood(np.vstack([held_out[:50], far]), level=0.1)
    assert flagged[50:].all()
    assert flagged[:50].mean() < 0.3


EXPECTED = {  # FPR95 / AUROC in percent on svhn, textures, places, as measured in float64
    "msp": ((67.70, 89.00), (67.33, 85.93), (65.50, 87.52)),
    "energy": ((40.07, 92.80), (57.25, 85.43), (45.12, 90.18)),
    "mahalanobis": ((52.50, 90.21), (34.67, 92.67), (79.02, 79.03)),
    "gem": ((52.49, 90.20), (34.67, 92.66), (79.19, 78.99)),
}


@pytest.mark.parametrize("name", EXPECTED)
def test_the_figures_on_a_real_cifar10_network(cifar10, name):
    head = Head(cifar10["head"]["weight"], cifar10["head"]["bias"])
    detector = {"msp": MSP(head=head), "energy": Energy(head=head), "mahalanobis": Mahalanobis(), "gem": GEM()}[name]
    detector.fit(cifar10["train"]["features"], cifar10["train"]["labels"])
    id_scores = detector.score_samples(cifar10["test"]["features"])
    for set_name, (fpr, auroc) in zip(("svhn", "textures", "places"), EXPECTED[name], strict=True):
        result = evaluate(id_scores, detector.score_samples(cifar10[f"ood_{set_name}"]["features"]))
        assert 100 * result.fpr == pytest.approx(fpr, abs=0.05)
        assert 100 * result.auroc == pytest.approx(auroc, abs=0.05)


def test_the_guarantee_holds_on_a_real_network(cifar10):
    rows = cifar10["test"]["features"]
    detector = GEM().fit(cifar10["train"]["features"], cifar10["train"]["labels"])
    scores = detector.score_samples(rows)
    generator = np.random.default_rng(0)
    kept = []
    for _ in range(200):
        order = generator.permutation(len(rows))
        detector.calibrate_scores(scores[order[:1000]], tpr=0.95)
        kept.append(np.mean(scores[order[1000:]] >= detector.offset_))
    # The mean of 200 splits has a standard error of about 0.0005.
    assert np.mean(kept) >= 0.949


def test_scores_reach_the_same_value_through_either_room(blobs):
    detector = GEM().fit(blobs[0], blobs[1])
    np.testing.assert_array_equal(detector.score_samples(blobs[2]), gem_scores(detector.gaussians_, blobs[2]))
