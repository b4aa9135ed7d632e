"""Certification of detectors: predicted against measured, each score in its own units, and every refusal."""

import numpy as np
import pytest

from gem_ood import GEM, MSP, Mahalanobis
from gem_ood.errors import InputError, NotFittedError
from gem_ood.features import unit_length
from gem_ood.metrics import fpr_at_tpr
from gem_ood.theory import analyze_gaussians, certify, certify_batches
from gem_ood.theory.distance_laws import CLOSE_DISTANCE

N_ROWS = 20_000


class _World:
    """Three Gaussian classes of unequal frequency in eight dimensions, and a Gaussian of another covariance."""

    def __init__(self, seed=3):
        self.rng = np.random.default_rng(seed)
        self.mixing = self.rng.normal(size=(8, 8)) + 2.0 * np.eye(8)
        self.means = 1.2 * self.rng.normal(size=(3, 8)) @ self.mixing
        self.frequencies = np.array([0.6, 0.3, 0.1])
        self.ood_mixing = np.diag(np.linspace(0.3, 1.6, 8)) @ self.mixing

    def inside(self, n, *, is_balanced=True):
        labels = self.rng.choice(3, size=n, p=None if is_balanced else self.frequencies)
        return self.means[labels] + self.rng.normal(size=(n, 8)) @ self.mixing, labels

    def outside(self, n):
        return self.means.mean(axis=0) + self.rng.normal(size=(n, 8)) @ self.ood_mixing


@pytest.fixture(scope="module")
def world():
    return _World()


@pytest.fixture(scope="module")
def sets(world):
    """Rows to fit, to certify with, and out-of-distribution ones."""
    return world.inside(N_ROWS), world.inside(N_ROWS), world.outside(N_ROWS)


@pytest.fixture(scope="module")
def gem(sets):
    return GEM().fit(*sets[0])


@pytest.mark.parametrize("detector", [GEM(), Mahalanobis(), GEM(covariance="oas")], ids=["gem", "mahalanobis", "oas"])
def test_gaussian_rows_are_kept_as_predicted(sets, detector):
    fit, new, ood = sets
    result = certify(detector.fit(*fit), ood=ood, id=new[0], id_labels=new[1])
    asked, certified = result.rates
    # A share of 20,000 rows has a standard error below 0.0036, and so has the fit's: 0.02 is about four.
    assert 0.05 < asked.measured_fpr < 0.95
    assert result.predicted_fpr == pytest.approx(asked.measured_fpr, abs=0.02)
    assert asked.predicted_fpr_here == pytest.approx(asked.measured_fpr, abs=0.02)
    assert certified.predicted_fpr_here == pytest.approx(certified.measured_fpr, abs=0.02)
    assert certified.measured_tpr >= 0.95 - 4 * np.sqrt(0.05 * 0.95 / N_ROWS)
    assert certified.measured_fpr <= certified.fpr_bound
    assert result.trust == "close"
    assert not result.analysis.is_tied
    assert result.ood_covariance_from == "rows"
    assert "Whether out-of-distribution rows are Gaussian is not tested" in str(result)


def test_weighted_scores_are_certified_in_their_own_units(world):
    fit, new = world.inside(N_ROWS, is_balanced=False), world.inside(N_ROWS, is_balanced=False)
    for priors in ("empirical", [0.6, 0.3, 0.1]):
        detector = GEM(priors=priors).fit(*fit)
        result = certify(detector, ood=world.outside(N_ROWS), id=new[0], id_labels=new[1])
        asked, certified = result.rates
        assert asked.predicted_fpr == pytest.approx(asked.measured_fpr, abs=0.02)
        assert certified.measured_tpr >= 0.95 - 4 * np.sqrt(0.05 * 0.95 / N_ROWS)
        # weights that sum to one lower every score: in the units of the unweighted one, the threshold would be too high
        unweighted = analyze_gaussians(detector.gaussians_, np.zeros(8)).certified_threshold
        assert certified.threshold < unweighted


def test_the_analysis_is_that_of_the_rows_mean_and_covariance(gem, sets):
    ood = sets[2]
    direct = analyze_gaussians(gem.gaussians_, ood.mean(axis=0), ood_covariance=np.cov(ood.T))
    analysis = certify(gem, ood=ood).analysis
    np.testing.assert_allclose(analysis.half_distances, direct.half_distances, rtol=1e-9)
    assert analysis.log_expected_out == pytest.approx(direct.log_expected_out, rel=1e-9)
    assert analysis.predicted_fpr == pytest.approx(direct.predicted_fpr, abs=4e-3)  # two sets of points
    assert analysis.certified_fpr == pytest.approx(direct.certified_fpr, rel=1e-6)


def test_measured_rates_are_shares_of_rows(gem, sets):
    (id_rows, id_labels), ood = sets[1], sets[2]
    asked, certified = certify(gem, ood=ood, id=id_rows, id_labels=id_labels, tpr=0.9).rates
    id_scores, ood_scores = gem.score_samples(id_rows), gem.score_samples(ood)
    assert asked.measured_fpr == fpr_at_tpr(id_scores, ood_scores, tpr=0.9)
    assert asked.measured_tpr == np.mean(id_scores >= asked.threshold)
    assert certified.measured_fpr == np.mean(ood_scores >= certified.threshold)
    low, high = certified.measured_fpr_interval
    assert low < certified.measured_fpr < high


def test_half_of_the_mahalanobis_threshold_is_that_of_gem(gem, sets):
    fit, _, ood = sets
    gem_rates = certify(gem, ood=ood).rates[-1]
    rates = certify(Mahalanobis().fit(*fit), ood=ood).rates[-1]
    assert rates.threshold == pytest.approx(2.0 * gem_rates.threshold)
    assert rates.measured_fpr <= gem_rates.measured_fpr


def test_normalised_detectors_are_certified_on_rows_of_unit_length(sets):
    fit, new, ood = sets
    scaled = certify(GEM(normalize=True).fit(*fit), ood=ood, id=new[0], id_labels=new[1])
    by_hand = certify(
        GEM().fit(unit_length(fit[0]), fit[1]), ood=unit_length(ood), id=unit_length(new[0]), id_labels=new[1]
    )
    assert scaled.predicted_fpr == pytest.approx(by_hand.predicted_fpr, abs=1e-6)
    assert scaled.rates[0].measured_fpr == by_hand.rates[0].measured_fpr
    assert scaled.diagnosis.overall.ratio == pytest.approx(by_hand.diagnosis.overall.ratio)
    detector = GEM(normalize=True).fit(*fit)
    near, far = (certify(detector, ood_mean=scale * np.arange(1.0, 9.0)).predicted_fpr for scale in (1.0, 100.0))
    assert near == far


def test_an_assumed_mean_is_analysed_but_nothing_is_measured(gem):
    mean = gem.gaussians_.class_means.mean(axis=0)
    direct = analyze_gaussians(gem.gaussians_, mean)
    result = certify(gem, ood_mean=mean)
    assert result.predicted_fpr == direct.predicted_fpr
    assert result.analysis.is_tied
    assert result.ood_covariance_from == "classes"
    assert all(rates.measured_fpr is None for rates in result.rates)
    assert "takes out-of-distribution rows" in str(result)
    assert "is not tested: pass held-out" in str(result)
    assert result.trust is None
    assert certify(gem, ood_mean=mean[np.newaxis]).predicted_fpr == result.predicted_fpr


def test_an_assumed_covariance_is_used(gem, sets):
    ood = sets[2]
    result = certify(gem, ood_mean=ood.mean(axis=0), ood_covariance=np.cov(ood.T))
    assert result.ood_covariance_from == "given"
    assert result.predicted_fpr == pytest.approx(certify(gem, ood=ood).predicted_fpr, abs=4e-3)
    # both draw 20,000 rows of one law: four standard errors of their difference
    there = certify(gem, ood=ood).rates[-1].predicted_fpr_here
    assert result.rates[-1].predicted_fpr_here == pytest.approx(there, abs=4 * np.sqrt(0.5 / N_ROWS))


def test_one_row_gives_a_mean_and_the_classes_covariance(gem, sets):
    one, same = sets[2][:1], np.repeat(sets[2][:1], 5, axis=0)
    for ood, words in ((one, "One out-of-distribution row has no covariance"), (same, "rows do not vary")):
        result = certify(gem, ood=ood)
        assert result.analysis.is_tied
        assert result.ood_covariance_from == "classes"
        assert words in str(result)
    measured = str(certify(gem, ood=one, id=sets[1][0], id_labels=sets[1][1]))
    assert "of 1 row, " in measured
    assert "do not vary" not in measured


def test_few_rows_and_an_ill_conditioned_fit_still_have_a_prediction(world):
    # Whitening such a covariance afterwards would leave eigenvalues below zero by far more than rounding.
    scales = np.logspace(0, -5, 40)
    rotation = np.linalg.qr(world.rng.normal(size=(40, 40)))[0]
    detector = GEM().fit((world.rng.normal(size=(4000, 40)) * scales) @ rotation)
    result = certify(detector, ood=0.1 + (world.rng.normal(size=(7, 40)) * scales) @ rotation)
    assert 0.0 <= result.predicted_fpr <= 1.0
    assert "7 out-of-distribution rows vary in fewer than 40 directions" in str(result)


def test_calibration_scores_stand_in_for_rows(sets):
    fit, new, ood = sets
    detector = GEM().fit(*fit).calibrate(new[0], tpr=0.9)
    result = certify(detector, ood=ood)
    asked, own, certified = result.rates
    assert result.id_scores_from == "calibration"
    assert result.diagnosis is None
    assert result.trust == "close"
    # Massart: 20,000 calibration rows and as many of the model exceed 0.02 apart about once in 3,000 seeds.
    assert result.calibration_distance < 0.02
    assert asked.measured_tpr == pytest.approx(0.95, abs=1e-3)
    assert (own.threshold, own.asked_tpr) == (detector.offset_, 0.9)
    assert own.measured_fpr == np.mean(~detector.is_ood(ood))
    assert certified.measured_tpr == np.mean(detector.calibration_scores_ >= certified.threshold)
    assert "diagnosis by class and direction" in str(result)
    assert result.n_id_scores == N_ROWS
    assert "; chance explains up to 0.96." in str(result)  # Massart: 100 sqrt(log(40) / (2 * 20,000))


def test_one_calibration_row_shows_nothing_and_it_is_said(gem, sets):
    detector = GEM().fit(*sets[0]).calibrate_scores(gem.score_samples(sets[1][0][:1]), tpr=0.5)
    result = certify(detector, ood=sets[2])
    assert "The scores of 1 calibration row are " in str(result)
    assert "chance explains up to 100." in str(result)
    assert result.trust == "unclear"


def test_calibration_scores_of_heavy_tails_are_distrusted(sets, world):
    fit, new, ood = sets
    centres = world.means[new[1]]
    heavy = centres + (new[0] - centres) * world.rng.choice([0.5, 2.0], size=(N_ROWS, 1))
    for detector in (GEM(), Mahalanobis()):
        result = certify(detector.fit(*fit).calibrate(heavy), ood=ood)
        assert result.trust == "poor"
        assert result.calibration_distance > 0.15


def test_the_side_that_is_not_gaussian_is_named(gem, sets, world):
    (rows, labels), ood = sets[1], sets[2]
    centres = world.means[labels]
    heavy = centres + (rows - centres) * world.rng.choice([0.5, 2.0], size=(N_ROWS, 1))
    inside = certify(gem, ood=ood, id=heavy, id_labels=labels)
    assert "mostly that the in-distribution rows do not follow the fitted Gaussians" in str(inside)
    assert inside.trust == "poor"
    # half of the rows are a class's own: no Gaussian of that mean and covariance is kept as often
    split = np.concatenate([rows[: N_ROWS // 2], ood[: N_ROWS // 2] + 60.0])
    outside = certify(gem, ood=split, id=rows, id_labels=labels)
    assert "mostly that the out-of-distribution rows are not Gaussian" in str(outside)
    assert outside.trust == "close"
    few = certify(gem, ood=split[:: N_ROWS // 60], id=rows, id_labels=labels)
    assert "rows are not Gaussian, or are too few for their covariance in 8 directions" in str(few)


@pytest.mark.parametrize(("n_id", "tpr"), [(1, 0.95), (10, 0.999), (30, 0.95)])
def test_few_in_distribution_rows_are_not_called_another_law(gem, sets, n_id, tpr):
    (rows, labels), ood = sets[1], sets[2]
    result = certify(gem, ood=ood, id=rows[:n_id], id_labels=labels[:n_id], tpr=tpr)
    low, high = result.rates[0].predicted_fpr_here_interval
    assert low <= result.predicted_fpr <= high
    assert "mostly" not in str(result)
    assert result.trust == "unclear"
    if n_id < 30:  # the threshold is far from the one that keeps such a share
        assert "So few in-distribution rows leave open where the threshold" in str(result)


@pytest.mark.parametrize("n_ood", [1, 12])
def test_few_gaussian_out_of_distribution_rows_are_not_called_another_law(gem, sets, n_ood):
    # An exact interval of 95 % misses in at most 5 % of draws: more than 3 of 10 have a probability of about 1e-3.
    (rows, labels), ood = sets[1], sets[2]
    texts = [
        str(certify(gem, ood=ood[n_ood * draw : n_ood * (draw + 1)], id=rows[:2000], id_labels=labels[:2000]))
        for draw in range(10)
    ]
    assert sum("are not Gaussian" in text for text in texts) <= 3
    assert not any("in-distribution rows do not follow" in text for text in texts)


@pytest.mark.parametrize("has_labels", [True, False])
def test_another_mix_of_classes_is_no_other_shape(sets, has_labels):
    fit, (rows, labels), ood = sets
    result = certify(GEM(priors=[0.5, 0.5, 0.0]).fit(*fit), ood=ood, id=rows, id_labels=labels if has_labels else None)
    text = str(result)
    kind = "of" if has_labels else "nearest to"
    assert "The held-out rows have another mix of classes than the priors assume: " in text
    assert f"% are {kind} class 2, where " in text
    assert "mostly that the in-distribution rows have another mix of classes" in text
    assert "closely" not in text
    assert "not Gaussian" not in text
    assert "want of rows" not in text
    assert result.rates[-1].measured_tpr < 0.9
    assert result.trust == "poor"


@pytest.mark.parametrize(("share", "trusts"), [(0.05, ("close",)), (0.1, ("rough", "poor")), (0.2, ("poor",))])
def test_a_certified_threshold_that_loses_too_many_rows_is_not_trusted(gem, sets, share, trusts):
    # Rows are chosen so that this share of them is below the threshold, which is to lose 5 %.
    (rows, labels), ood = sets[1], sets[2]
    scores = gem.score_samples(rows)
    is_lost = scores < certify(gem, ood=ood).rates[-1].threshold
    n_lost = 250
    kept = np.flatnonzero(~is_lost)[: round(n_lost * (1 - share) / share)]
    chosen = np.concatenate([np.flatnonzero(is_lost)[:n_lost], kept])
    result = certify(gem, ood=ood, id=rows[chosen], id_labels=labels[chosen])
    assert result.rates[-1].measured_tpr == pytest.approx(1 - share, abs=1e-3)
    assert result.trust in trusts


def test_the_rates_themselves_lower_trust_where_distances_do_not(world, sets):
    # Nine classes in one place score higher than the tenth alone, which no distance to the own class shows.
    means = np.vstack([np.zeros((9, 8)), [[0.0] * 7 + [9.0]]])
    labels = np.arange(20_000) % 10
    detector = GEM().fit(means[labels] + world.rng.normal(size=(20_000, 8)), labels)
    new = np.where(np.arange(6000) % 50 == 0, np.arange(6000) // 50 % 9, 9)
    rows = means[new] + world.rng.normal(size=(6000, 8))
    result = certify(detector, ood_mean=[0.0] * 7 + [6.0], id=rows, id_labels=new)
    assert result.rates[0].shown_gap > CLOSE_DISTANCE
    assert result.rates[-1].measured_tpr > 0.94
    assert (result.diagnosis.trust, result.trust) == ("rough", "poor")
    assert "farther off than distances and classes alone would suggest" in str(result)
    assert "mostly that the in-distribution rows have another mix of classes" in str(result)


def test_bounds_that_underflow_are_written_as_powers(gem, sets):
    result = certify(gem, ood=sets[2] + 40.0)
    assert result.rates[-1].fpr_bound == 0.0
    exponent = result.analysis.log_certified_fpr / np.log(10.0)
    assert f"at most a share of 10^{exponent:.1f} of Gaussian" in str(result)
    assert "at most next to none of Gaussian" in str(certify(gem, ood=sets[2] + 1e4))


def test_batches_give_what_arrays_give(gem, sets):
    (rows, labels), ood = sets[1], sets[2]
    whole = certify(gem, ood=ood, id=rows, id_labels=labels)
    cuts = (5, 6000)
    streamed = certify_batches(
        gem,
        ood=((part, None) for part in np.split(ood, cuts)),
        id=zip(np.split(rows, cuts), np.split(labels, cuts), strict=True),
    )
    # Rounding may turn the axes that the points of the prediction lie on; both are within its standard error.
    assert streamed.predicted_fpr == pytest.approx(whole.predicted_fpr, abs=6 * whole.analysis.prediction_error)
    assert streamed.rates[0].measured_fpr == whole.rates[0].measured_fpr
    assert streamed.diagnosis.overall == whole.diagnosis.overall


def test_a_fit_without_labels_has_one_class_whatever_the_rows_say(sets):
    (rows, labels), ood = sets[1], sets[2]
    result = certify(GEM().fit(sets[0][0]), ood=ood, id=rows, id_labels=labels + 100)
    assert len(result.diagnosis.by_class) == 1
    assert "without labels" not in str(result)


def test_a_declared_class_without_rows_is_left_out(sets):
    rows, labels = sets[0]
    detector = GEM().partial_fit(rows, labels, classes=[0, 1, 2, 3])
    result = certify(detector, ood=sets[2], id=sets[1][0], id_labels=sets[1][1])
    assert result.diagnosis.n_fit == N_ROWS


def test_all_of_it_is_in_the_dictionary(gem, sets):
    values = certify(gem, ood=sets[2], id=sets[1][0]).as_dict()
    assert values["analysis"]["n_classes"] == 3
    assert values["diagnosis"]["n_rows"] == N_ROWS
    assert values["summary"][0].startswith("Where 95 %")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({}, "pass either ood"),
        ({"ood": np.zeros((2, 8)), "ood_mean": np.zeros(8)}, "pass either ood"),
        ({"ood": np.zeros((2, 8)), "ood_covariance": np.eye(8)}, "ood_covariance goes with ood_mean"),
        ({"ood_mean": np.zeros(7)}, r"ood_mean has shape \(7,\) but the detector was fitted on 8 features"),
        ({"ood_mean": np.zeros((2, 8))}, r"ood_mean has shape \(2, 8\)"),
        ({"ood_mean": np.full(8, np.inf)}, "ood_mean row 0, column 0 is infinity"),
        ({"ood_mean": ["a"] * 8}, "ood_mean has dtype <U1; every value must be a number"),
        ({"ood_mean": np.ones(8) + 1j}, "ood_mean has dtype complex128. Complex data not supported"),
        ({"ood_mean": [[1.0], [2.0, 3.0]]}, "cannot be read as numbers"),
        ({"ood_mean": np.zeros(8), "ood_covariance": -np.eye(8)}, "not positive semi-definite"),
        ({"ood": np.zeros((2, 7))}, "7 features"),
        ({"ood": np.full((2, 8), np.nan)}, "is NaN"),
        ({"ood": np.zeros((2, 8)), "tpr": 0.0}, "tpr"),
        ({"ood": np.zeros((2, 8)), "id_labels": [0, 1]}, "id_labels came without id"),
        ({"ood": np.zeros((2, 8)), "id": np.zeros((2, 8)), "id_labels": [0, 5]}, "labels holds 5, no class"),
    ],
)
def test_bad_input_is_refused(gem, change, words):
    with pytest.raises(InputError, match=words):
        certify(gem, **change)


def test_batches_without_rows_are_refused(gem):
    with pytest.raises(InputError, match="ood holds no rows"):
        certify_batches(gem, ood=[])
    with pytest.raises(InputError, match="no rows to diagnose"):
        certify_batches(gem, ood_mean=np.zeros(8), id=[])


def test_detectors_that_the_theory_does_not_cover_are_refused(sets):
    fit = sets[0]
    with pytest.raises(InputError, match="is relative to a background"):
        certify(GEM(relative=True).fit(*fit), ood=fit[0])
    with pytest.raises(InputError, match="not a MSP"):
        certify(MSP().fit(fit[0], fit[1]), ood=fit[0])
    with pytest.raises(NotFittedError):
        certify(GEM(), ood=fit[0])


@pytest.mark.parametrize(("name", "measured"), [("ood_svhn", 0.5249), ("ood_textures", 0.3467), ("ood_places", 0.7919)])
def test_real_features_show_how_little_the_prediction_is_worth(cifar10, name, measured):
    test = cifar10["test"]
    detector = GEM().fit(cifar10["train"]["features"], cifar10["train"]["labels"])
    result = certify(detector, ood=cifar10[name]["features"], id=test["features"], id_labels=test["labels"])
    asked, certified = result.rates
    assert asked.measured_fpr == pytest.approx(measured, abs=5e-4)
    assert asked.predicted_fpr < asked.measured_fpr - 0.2
    assert certified.measured_tpr < 0.85
    assert result.trust == "poor"
    assert "should not be relied on here" in result.summary[-1]


def test_few_rows_that_are_off_are_not_said_to_show_no_departure():
    rng = np.random.default_rng(1)
    detector = GEM().fit(rng.normal(size=(3000, 3)), np.zeros(3000, int))
    rows = 1.12 * rng.normal(size=(300, 3))
    result = certify(detector, ood_mean=[3.0, 0.0, 0.0], id=rows, id_labels=np.zeros(300, int))
    assert result.trust == "unclear"
    assert "No departure" not in str(result)
    assert "No large departure" in str(result)


def test_nearly_all_is_not_called_all():
    rng = np.random.default_rng(0)
    labels = np.zeros(3000, int)
    detector = GEM().fit(rng.normal(size=(3000, 3)), labels)
    result = certify(
        detector, ood=rng.normal(size=(500, 3)) + 3.0, id=rng.normal(size=(3000, 3)), id_labels=labels, tpr=0.9999
    )
    assert "at least 99.99 % of rows" in str(result)
    assert "at least 100 %" not in str(result)


def test_rows_of_a_class_without_prior_are_not_explained_by_chance():
    rng = np.random.default_rng(3)
    means, labels = 4.0 * np.eye(3, 4), np.arange(600) % 3
    detector = GEM(priors=[0.5, 0.5, 0.0]).fit(rng.normal(size=(600, 4)) + means[labels], labels)
    held_out = np.array([2] * 18 + [0, 1] * 141)
    rows = rng.normal(size=(300, 4)) + means[held_out]
    result = certify(detector, ood_mean=[-3.0, -3.0, -3.0, 0.0], id=rows, id_labels=held_out)
    assert result.diagnosis is not None
    assert result.diagnosis.mix.is_off
    assert result.trust in ("rough", "poor")
    assert "another mix of classes" in str(result)
