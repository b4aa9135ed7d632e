"""The diagnosis of the Gaussian assumption against SciPy, textbook loops and simulation."""

import numpy as np
import pytest
from scipy import stats

from gem_ood.errors import InputError, RankWarning
from gem_ood.features import unit_length
from gem_ood.gaussians import TiedGaussians, collect
from gem_ood.theory import diagnose, diagnose_batches
from gem_ood.theory.distance_laws import CLOSE_DISTANCE, ROUGH_DISTANCE, judge, threshold_interval, worst


def _gaussians(rng, *, k=3, d=6):
    mixing = rng.normal(size=(d, d))
    return TiedGaussians.from_parameters(8.0 * rng.normal(size=(k, d)), mixing @ mixing.T + np.eye(d))


def _rows(gaussians, rng, n, noise):
    """Return rows with these standardised residuals around the class means, coloured by the tied covariance."""
    labels = rng.integers(0, gaussians.n_classes, n)
    colouring = np.linalg.cholesky(gaussians.covariance)
    return gaussians.class_means[labels] + noise((n, gaussians.n_features)) @ colouring.T, labels


@pytest.fixture
def rng():
    return np.random.default_rng(11)


@pytest.fixture
def gaussians(rng):
    return _gaussians(rng)


def test_gaussian_rows_are_close(gaussians, rng):
    # Close allows 5 points beyond sampling noise at 95 %: of 5,000 rows, Massart's bound on a miss is below 1e-20.
    rows, labels = _rows(gaussians, rng, 5000, rng.standard_normal)
    diagnosis = diagnose(gaussians, rows, labels)
    assert diagnosis.trust == "close"
    assert "describe these rows closely" in str(diagnosis)
    # 6 directions beyond 4 standard errors each: about 6e-4 under normality of the estimate.
    assert diagnosis.kurtosis.unusual == 0.0
    low, high = diagnosis.overall.beyond_interval
    assert low < 0.05 < high  # fails for 5 % of seeds


@pytest.mark.parametrize("kind", ["student", "skewed"])
def test_heavy_and_skewed_rows_are_poor(gaussians, rng, kind):
    # One direction of heavy or skewed noise is shared by all features, so that no central limit hides it.
    def student(shape):
        return stats.t.rvs(3, size=(shape[0], 1), random_state=rng) / np.sqrt(3.0) * rng.choice([-1, 1], shape)

    def skewed(shape):
        return 3.0 * (rng.exponential(size=shape) ** 2 - 2.0) / np.sqrt(20.0)

    rows, labels = _rows(gaussians, rng, 5000, {"student": student, "skewed": skewed}[kind])
    diagnosis = diagnose(gaussians, rows, labels)
    assert diagnosis.trust == "poor"
    assert "should not be relied on" in diagnosis.summary[-1]
    assert diagnosis.kurtosis.unusual > 0.5
    assert "e+" not in str(diagnosis)


def test_few_gaussian_rows_are_unclear_and_say_so(gaussians, rng):
    rows, labels = _rows(gaussians, rng, 60, rng.standard_normal)
    diagnosis = diagnose(gaussians, rows, labels)
    assert diagnosis.trust == "unclear"
    assert "With only 60 rows" in str(diagnosis)
    assert "closely" not in str(diagnosis)


def test_distances_means_shares_and_intervals_are_those_of_scipy(gaussians, rng):
    rows, labels = _rows(gaussians, rng, 700, lambda shape: 1.1 * rng.standard_normal(shape))
    diagnosis = diagnose(gaussians, rows, labels, tpr=0.9)
    inverse = np.linalg.inv(gaussians.covariance)
    own = np.array(
        [
            (x - gaussians.class_means[y]) @ inverse @ (x - gaussians.class_means[y])
            for x, y in zip(rows, labels, strict=True)
        ]
    )
    for fit, distances in [
        (diagnosis.overall, own),
        *((fit, own[labels == fit.name]) for fit in diagnosis.by_class),
    ]:
        assert fit.n_rows == len(distances)
        assert fit.ratio == pytest.approx(distances.mean() / 6)
        beyond = int(np.sum(distances > stats.chi2.ppf(0.9, 6)))
        assert fit.beyond == beyond / len(distances)
        exact = stats.binomtest(beyond, len(distances)).proportion_ci(method="exact")
        assert fit.beyond_interval == pytest.approx((exact.low, exact.high))
        assert fit.distance == pytest.approx(stats.kstest(distances, stats.chi2(6).cdf).statistic)
    assert diagnosis.quantiles[0.95] == pytest.approx((np.quantile(own, 0.95), stats.chi2.ppf(0.95, 6)))
    np.testing.assert_allclose(np.concatenate(diagnosis.distances_by_class), own[np.argsort(labels, kind="stable")])


def test_kurtosis_is_that_of_a_textbook_loop(gaussians, rng):
    rows, labels = _rows(gaussians, rng, 900, lambda shape: rng.standard_t(6, size=shape))
    residuals = np.array([x - gaussians.class_means[y] for x, y in zip(rows, labels, strict=True)])
    scales = np.sqrt(np.diag(gaussians.covariance))
    values, vectors = np.linalg.eigh(gaussians.covariance / np.outer(scales, scales))
    expected = [stats.kurtosis((residuals / scales) @ vectors[:, place]) for place in np.argsort(-values)]
    kurtosis = diagnose(gaussians, rows, labels).kurtosis
    np.testing.assert_allclose(kurtosis.by_direction, expected, rtol=1e-9)
    assert kurtosis.median == pytest.approx(np.median(expected))
    assert (kurtosis.low, kurtosis.high) == pytest.approx(tuple(np.quantile(expected, [0.05, 0.95])))
    assert kurtosis.largest == pytest.approx(max(expected))
    assert kurtosis.unusual == np.mean(np.abs(expected) > 4 * np.sqrt(24 / 900))


def test_batches_give_what_one_array_gives(gaussians, rng):
    rows, labels = _rows(gaussians, rng, 500, rng.standard_normal)
    whole = diagnose(gaussians, rows, labels)
    cuts = (1, 77, 300)
    parts = list(zip(np.split(rows, cuts), np.split(labels, cuts), strict=True))
    streamed = diagnose_batches(gaussians, iter(parts))
    assert streamed.overall == whole.overall
    assert streamed.by_class == whole.by_class
    np.testing.assert_allclose(streamed.kurtosis.by_direction, whole.kurtosis.by_direction, rtol=1e-12)


def test_without_labels_rows_count_for_the_nearest_class_and_it_is_said(rng):
    gaussians = TiedGaussians.from_parameters([[0.0, 0.0], [2.0, 0.0]], np.eye(2))
    rows, labels = _rows(gaussians, rng, 2000, rng.standard_normal)
    blind, seeing = diagnose(gaussians, rows), diagnose(gaussians, rows, labels)
    nearest = gaussians.squared_distances(rows).min(axis=1)
    assert blind.overall.ratio == pytest.approx(nearest.mean() / 2)
    assert blind.overall.ratio < seeing.overall.ratio
    assert not blind.has_labels
    assert "without labels" in str(blind)
    assert "without labels" not in str(seeing)


def test_one_class_needs_no_labels(rng):
    gaussian = TiedGaussians.from_parameters([[0.0]], [[4.0]])
    diagnosis = diagnose(gaussian, 2.0 * rng.standard_normal((1000, 1)))
    assert diagnosis.has_labels
    assert diagnosis.overall.ratio == pytest.approx(1.0, abs=4 * np.sqrt(2 / 1000))  # four standard errors


def test_estimated_parameters_give_the_law_of_hotelling():
    # 300 fits of 60 rows in 10 dimensions, 40 new rows each: means over fits within four standard errors.
    rng = np.random.default_rng(5)
    ratios, beyond, expected = [], [], None
    for _ in range(300):
        labels = np.arange(60) % 2
        gaussians = TiedGaussians.from_statistics(collect(rng.normal(size=(60, 10)) + 5.0 * labels[:, None], labels))
        new = np.arange(40) % 2
        fit = diagnose(gaussians, rng.normal(size=(40, 10)) + 5.0 * new[:, None], new, counts=[30, 30]).overall
        ratios.append(fit.ratio)
        beyond.append(fit.beyond)
        expected = fit
    assert expected.expected_ratio == pytest.approx((1 + 1 / 30) * 60 / (60 - 2 - 10 - 1))  # B6
    scale = (1 + 1 / 30) * 60 * 10 / (60 - 2 - 10 + 1)
    assert expected.expected_beyond == pytest.approx(stats.f.sf(stats.chi2.ppf(0.95, 10) / scale, 10, 60 - 2 - 10 + 1))
    for found, value in ((ratios, expected.expected_ratio), (beyond, expected.expected_beyond)):
        assert abs(np.mean(found) - value) < 4 * np.std(found, ddof=1) / np.sqrt(len(found))


def test_inflation_by_estimation_is_told_from_the_shape_of_the_features(rng):
    labels = np.arange(500) % 2
    fitted = rng.normal(size=(500, 80)) + 3.0 * labels[:, None]
    gaussians = TiedGaussians.from_statistics(collect(fitted, labels))
    new = np.arange(4000) % 2
    gaussian_rows = rng.normal(size=(4000, 80)) + 3.0 * new[:, None]
    counted = diagnose(gaussians, gaussian_rows, new, counts=[250, 250])
    assert counted.trust == "poor"
    assert "that explains it" in str(counted)
    assert counted.overall.distance_estimated < 0.2 * counted.overall.distance
    heavy = 3.0 * new[:, None] + rng.normal(size=(4000, 80)) * rng.choice([0.5, 2.5], size=(4000, 1))
    assert "the rest is not for want of rows" in str(diagnose(gaussians, heavy, new, counts=[250, 250]))
    assert diagnose(gaussians, gaussian_rows, new).overall.expected_ratio is None


def test_a_shrunk_covariance_has_no_law_of_hotelling(rng):
    features = rng.normal(size=(200, 5))
    gaussians = TiedGaussians.from_statistics(collect(features), covariance=0.1)
    diagnosis = diagnose(gaussians, rng.normal(size=(50, 5)), counts=[200])
    assert diagnosis.n_fit is None
    assert diagnosis.overall.expected_beyond is None


def test_classes_of_unequal_spread_are_named_though_the_whole_may_fit(rng):
    gaussians = TiedGaussians.from_parameters([[0.0] * 8, [50.0] * 8], np.eye(8), classes=["calm", "wild"])
    names = np.array(["calm", "wild"])[np.arange(6000) % 2]
    spread = np.where(names == "calm", 0.6, 1.3)[:, None]
    diagnosis = diagnose(gaussians, (names == "wild")[:, None] * 50.0 + spread * rng.normal(size=(6000, 8)), names)
    assert diagnosis.trust == "poor"
    assert "for class calm to" in str(diagnosis)
    assert diagnosis.worst_classes(1)[0].name == "calm"
    assert [fit.name for fit in diagnosis.by_class] == ["calm", "wild"]


def test_units_of_the_features_do_not_matter(gaussians, rng):
    rows, labels = _rows(gaussians, rng, 400, lambda shape: rng.standard_t(5, size=shape))
    units = 10.0 ** np.arange(-3, 3)
    scaled = TiedGaussians.from_parameters(gaussians.class_means * units, gaussians.covariance * np.outer(units, units))
    here, there = diagnose(gaussians, rows, labels), diagnose(scaled, rows * units, labels)
    assert there.overall.ratio == pytest.approx(here.overall.ratio, rel=1e-9)
    np.testing.assert_allclose(there.kurtosis.by_direction, here.kurtosis.by_direction, rtol=1e-6)


def test_directions_without_variance_are_left_out(rng):
    rows = rng.normal(size=(3000, 4))
    rows = np.hstack([rows, rows[:, :1] + rows[:, 1:2], np.ones((3000, 1))])
    with pytest.warns(RankWarning):
        gaussians = TiedGaussians.from_statistics(collect(rows[:1500]))
    diagnosis = diagnose(gaussians, rows[1500:])
    assert diagnosis.rank == len(diagnosis.kurtosis.by_direction) == 4
    np.testing.assert_allclose(diagnosis.distances_by_class[0], gaussians.squared_distances(rows[1500:])[:, 0])
    assert diagnosis.trust == "close"


def test_a_single_row_is_no_reason_to_divide_by_zero(gaussians):
    diagnosis = diagnose(gaussians, gaussians.class_means[:1], [0])
    assert diagnosis.overall.ratio == 0.0
    assert np.isfinite(diagnosis.kurtosis.by_direction).all()


def test_a_single_row_is_spoken_of_in_the_singular(gaussians):
    text = str(diagnose(gaussians, gaussians.class_means[:1], [0]))
    assert "0 % of 1 row (0 % to 97.5 %) lies beyond" in text
    assert "With only 1 row, a departure of less than 100 points would not show" in text
    assert "1 rows" not in text
    assert "kurtosis" not in text  # one row has none


def test_one_direction_is_spoken_of_in_the_singular(rng):
    gaussian = TiedGaussians.from_parameters([[0.0]], [[1.0]])
    assert "of 1 direction:" in str(diagnose(gaussian, rng.normal(size=(500, 1))))


def test_the_mix_of_classes_is_compared_with_the_priors(rng):
    gaussians = TiedGaussians.from_parameters(
        9.0 * np.eye(3), np.eye(3), priors=[0.5, 0.4, 0.1], classes=["a", "b", "c"]
    )
    labels = np.repeat(["a", "b", "c"], [1000, 2000, 3000])
    rows = 9.0 * np.eye(3)[np.repeat([0, 1, 2], [1000, 2000, 3000])] + rng.normal(size=(6000, 3))
    for diagnosis in (diagnose(gaussians, rows, labels), diagnose(gaussians, rows)):
        mix = diagnosis.mix
        assert mix.names == ("a", "b", "c")
        assert mix.found == pytest.approx((1 / 6, 1 / 3, 1 / 2), abs=1e-3)
        # without labels, priors are counts of 20,000 rows: four standard errors are 0.014
        assert mix.expected == pytest.approx((0.5, 0.4, 0.1), abs=0.014)
        assert mix.distance == pytest.approx(0.4, abs=0.014)
        assert 0.35 < mix.shown_distance < mix.distance
        assert diagnosis.trust == "poor"
    assert "another mix of classes than the priors assume: 50 % are nearest to class c, where" in str(diagnosis)
    assert diagnose(gaussians, rows, labels).overall.shown_distance < CLOSE_DISTANCE


def test_the_effect_of_the_mix_is_the_most_by_which_own_terms_move(rng):
    priors, found = np.array([0.6, 0.3, 0.1, 0.0]), np.array([0.1, 0.3, 0.5, 0.1])
    gaussians = TiedGaussians.from_parameters(20.0 * np.eye(4, 5), np.eye(5), priors=priors)
    labels = np.repeat(np.arange(4), (10_000 * found).astype(int))
    mix = diagnose(gaussians, gaussians.class_means[labels] + rng.normal(size=(10_000, 5)), labels).mix
    shares = [
        np.sum((found - priors)[:3] * stats.chi2.cdf(2.0 * (np.log(priors[:3]) - threshold), 5))
        for threshold in np.linspace(-40.0, 0.0, 20_000)
    ]
    massart = np.sqrt(0.5 * np.log(2 / 0.05) / 10_000)
    # chance takes its part off, but not off the tenth whose class has no prior
    assert mix.shown_effect == pytest.approx(max(np.abs(shares).max() - massart, 0.1), abs=1e-3)
    # the mean of the distance is at most this, and McDiarmid's bound gives the rest
    explained = 0.5 * np.sqrt(priors * (1 - priors) / 10_000).sum() + np.sqrt(np.log(20) / 20_000)
    assert mix.shown_distance == pytest.approx(0.5 * np.abs(found - priors).sum() - explained)


def test_equal_priors_make_another_mix_rough_but_not_poor(rng):
    # Such a score counts all classes alike, so distances and thresholds keep; the floor does not.
    gaussians = TiedGaussians.from_parameters(9.0 * np.eye(3), np.eye(3))
    labels = np.repeat([0, 1, 2], [5000, 500, 500])
    diagnosis = diagnose(gaussians, 9.0 * np.eye(3)[labels] + rng.normal(size=(6000, 3)), labels)
    assert diagnosis.mix.shown_effect == 0.0
    assert diagnosis.trust == "rough"
    assert "83.3 % are of class 0, where 33.3 % are expected. The certified TPR hardly" in str(diagnosis)


@pytest.mark.parametrize("has_labels", [True, False])
def test_a_mix_drawn_from_the_priors_is_chance(has_labels):
    # Overlapping classes: without labels the nearest class is often another. 5 % of draws may show something by either
    # bound, which both are far from tight: more than 4 of 20 have a probability below 3e-3.
    gaussians = TiedGaussians.from_parameters([[0.0], [1.5], [3.0]], [[1.0]], priors=[0.8, 0.15, 0.05])
    n_shown = 0
    for seed in range(20):
        rows, labels = gaussians.sample(300, random_state=seed)
        mix = diagnose(gaussians, rows, labels if has_labels else None).mix
        n_shown += mix.shown_distance > 0.0 or mix.shown_effect > 0.0
    assert n_shown <= 4


def test_the_interval_of_a_threshold_holds_the_true_one_as_often_as_it_says(rng):
    n_held = 0
    for _ in range(1000):
        low, high = threshold_interval(rng.normal(size=150), 0.95)
        n_held += low <= stats.norm.ppf(0.05) <= high
    # At least 95 %, exactly P(3 <= B <= 13): four standard errors below.
    exact = stats.binom.cdf(13, 150, 0.05) - stats.binom.cdf(2, 150, 0.05)
    assert exact > 0.95
    assert n_held / 1000 > exact - 4 * np.sqrt(exact * (1 - exact) / 1000)
    assert threshold_interval(np.zeros(1), 0.95) == (-np.inf, np.inf)


def test_the_worst_of_several_is_the_least_trust():
    assert worst("close", "unclear") == "unclear"
    assert worst("poor", "rough", "close") == "poor"


def test_the_dictionary_holds_no_single_rows(gaussians, rng):
    rows, labels = _rows(gaussians, rng, 100, rng.standard_normal)
    values = diagnose(gaussians, rows, labels).as_dict()
    assert "distances_by_class" not in values
    assert values["mix"].expected == pytest.approx((1 / 3, 1 / 3, 1 / 3))
    assert values["quantiles"]["0.95"]["expected"] == pytest.approx(stats.chi2.ppf(0.95, 6))


@pytest.mark.parametrize(
    ("shown", "beyond", "n_rows", "trust"),
    [
        (0.0, 0.05, 10_000, "close"),
        (CLOSE_DISTANCE, 0.075, 10_000, "close"),
        (0.0, 0.05, 500, "unclear"),
        (CLOSE_DISTANCE + 0.01, 0.05, 500, "rough"),
        (0.0, 0.08, 10_000, "rough"),
        (ROUGH_DISTANCE + 0.01, 0.05, 10_000, "poor"),
        (0.0, 0.16, 10_000, "poor"),
    ],
)
def test_trust_follows_the_documented_limits(shown, beyond, n_rows, trust):
    assert judge(shown, beyond, 0.05, n_rows) == trust


@pytest.mark.parametrize(
    ("tpr", "beyond", "trust"),
    [(0.8, 0.22, "close"), (0.8, 0.23, "rough"), (0.8, 0.31, "poor"), (0.99, 0.015, "close"), (0.99, 0.04, "poor")],
)
def test_the_share_beyond_is_limited_in_points_and_by_a_factor(tpr, beyond, trust):
    assert judge(0.0, beyond, 1.0 - tpr, 10_000) == trust


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"labels": [0, 7, 9, 1]}, "labels holds 7, 9, no class of the fit"),
        ({"labels": ["a", "b", "a", "b"]}, "of another kind"),
        ({"labels": [0, 1]}, "labels has 2 rows"),
        ({"features": np.zeros((4, 5))}, "5 columns but the fit has 6"),
        ({"features": np.full((4, 6), np.nan)}, "row 0, column 0 is NaN"),
        ({"features": np.full((4, 6), 1e200)}, "row 0 is so far"),
        ({"tpr": 1.0}, "tpr"),
        ({"counts": [5, 5]}, "counts must be 3 whole numbers"),
        ({"counts": [5, 0, 5]}, "counts must be 3 whole numbers"),
        ({"counts": [5.5, 1.0, 5.0]}, "counts must be 3 whole numbers"),
    ],
)
def test_bad_input_is_refused(gaussians, change, words):
    arguments = {"features": np.zeros((4, 6)), "labels": [0, 1, 2, 0]} | change
    with pytest.raises(InputError, match=words):
        diagnose(gaussians, arguments.pop("features"), arguments.pop("labels"), **arguments)


def test_batches_must_agree_on_labels_and_hold_rows(gaussians):
    with pytest.raises(InputError, match="some batches have labels"):
        diagnose_batches(gaussians, [(np.zeros((2, 6)), [0, 1]), (np.zeros((2, 6)), None)])
    with pytest.raises(InputError, match="no rows to diagnose"):
        diagnose_batches(gaussians, [])


def test_real_features_are_far_from_gaussian(cifar10):
    statistics = collect(cifar10["train"]["features"], cifar10["train"]["labels"])
    gaussians, test = TiedGaussians.from_statistics(statistics), cifar10["test"]
    diagnosis = diagnose(gaussians, test["features"], test["labels"], counts=statistics.counts)
    assert diagnosis.trust == "poor"
    assert 1.0 < diagnosis.overall.ratio < 1.2
    assert 0.15 < diagnosis.overall.beyond < 0.35
    assert diagnosis.overall.expected_beyond < 0.06
    assert "It is not for want of rows: 50,000 are enough" in str(diagnosis)
    assert "mix of classes" not in str(diagnosis)
    prepared = collect(cifar10["train"]["features"], cifar10["train"]["labels"], prepare=unit_length)
    batches = [(test["features"], test["labels"])]
    scaled = diagnose_batches(TiedGaussians.from_statistics(prepared), batches, prepare=unit_length)
    assert scaled.trust == "poor"
