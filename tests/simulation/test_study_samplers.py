"""Both samplers against a naive run of the protocol, against each other, and what the paper says of the rates.

Seeds are fixed, so a test passes always or never; the stated probabilities are those with which a correct sampler would
have failed under a seed not looked at.
"""

import numpy as np
import pytest
from scipy.special import logsumexp
from scipy.stats import ks_2samp, ortho_group

from gem_ood.errors import InputError
from gem_ood.gaussians import TiedGaussians
from gem_ood.metrics import auroc, fpr_at_tpr
from gem_ood.scores import gem_scores, mahalanobis_scores
from gem_ood.simulation import SCORES, Setting, draw_scores, sampling, simulate_once, simulate_settings


def naive_rate(k, d, r, n, generator):
    """One run of the protocol, from the paper's text, in float64."""
    s = d // k
    means = np.zeros((k, d))
    for i in range(k):
        means[i, i * s : (i + 1) * s] = r / np.sqrt(s)

    def score(x):
        squares = (x**2).sum(axis=1)[:, None] - 2.0 * x @ means.T + (means**2).sum(axis=1)
        return logsumexp(-0.5 * squares, axis=1)

    inside = np.sort(score(generator.normal(size=(n, d)) + means[np.arange(n) % k]))
    outside = score(generator.normal(size=(n, d)))
    return np.mean(outside >= inside[n // 20])


def standard_errors_apart(first, second):
    """The difference of two means in standard errors, both estimated from their runs."""
    error = np.sqrt(np.var(first, ddof=1) / len(first) + np.var(second, ddof=1) / len(second))
    return abs(np.mean(first) - np.mean(second)) / max(error, 1e-12)


@pytest.mark.parametrize(("k", "orientation"), [(10, 0.33), (100, 0.56)])
def test_rates_at_the_paper_s_size_agree_with_a_naive_run(k, orientation):
    # 16 runs in all have 14 degrees of freedom: four standard errors are passed with probability 0.0013.
    n, generator = 4000, np.random.default_rng(11)
    rates = simulate_settings([Setting(k, 512, 10.0, n_in=n, n_out=n)], runs=8, seed=5)[0]["gem"]
    naive = [naive_rate(k, 512, 10.0, n, generator) for _ in range(8)]
    assert standard_errors_apart(rates, naive) < 4.0
    assert abs(rates.mean() - orientation) < 0.02


@pytest.mark.parametrize("side", [0, 1], ids=["in", "out"])
def test_both_samplers_draw_scores_of_one_distribution(side):
    # Eight comparisons at 1e-4 each: a sound pair fails with probability below 8e-4.
    setting = Setting(8, 64, 4.0, sigma=2.0, n_in=6000, n_out=6000)
    full = draw_scores(setting, random_state=1)[side]
    projected = draw_scores(setting, random_state=2, sampler="projected")[side]
    for name in SCORES:
        assert ks_2samp(full[name], projected[name]).pvalue > 1e-4, name


@pytest.mark.parametrize(("k", "d", "r"), [(10, 128, 6.0), (50, 128, 5.0), (40, 40, 4.0), (1, 32, 5.0)])
def test_both_samplers_give_the_same_rates(k, d, r):
    # 30 degrees of freedom, four settings of up to four scores: probability of a failure below 0.007.
    setting = [Setting(k, d, r, n_in=2000, n_out=2000)]
    full = simulate_settings(setting, runs=16, seed=0)[0]
    projected = simulate_settings(setting, runs=16, seed=0, sampler="projected")[0]
    for name in SCORES:
        assert standard_errors_apart(full[name], projected[name]) < 4.0, name


def test_translation_and_rotation_leave_rates_alone():
    # P36; 22 degrees of freedom, two scores: probability of a failure 0.0013.
    setting = Setting(6, 36, 5.0, n_in=3000, n_out=3000)
    generator = np.random.default_rng(4)
    rotation, shift = ortho_group.rvs(36, random_state=generator), 7.0 * generator.standard_normal(36)
    moved = TiedGaussians.from_parameters(setting.gaussians().class_means @ rotation + shift, np.eye(36))
    rates = simulate_settings([setting], runs=12, seed=1)[0]
    found = {"gem": [], "mahalanobis": []}
    for _ in range(12):
        inside = np.repeat(moved.class_means, 500, axis=0) + generator.standard_normal((3000, 36))
        outside = shift + generator.standard_normal((3000, 36))
        for name, score in (("gem", gem_scores), ("mahalanobis", mahalanobis_scores)):
            found[name].append(fpr_at_tpr(score(moved, inside), score(moved, outside)))
    for name, moved_rates in found.items():
        assert standard_errors_apart(rates[name], moved_rates) < 4.0, name


def test_near_classes_score_below_the_outside_and_the_rate_rises_before_it_falls():
    # E5: D < 0 for r < 2 sqrt(ln 9) = 2.96. The AUROC of 20,000 rows a side has a standard error of 0.003.
    inside, outside = draw_scores(Setting(10, 20, 1.5), random_state=0, sampler="projected")
    assert auroc(inside["gem"], outside["gem"]) < 0.5 - 4 * 0.003
    settings = [Setting(10, 20, r) for r in (0.5, 1.5, 4.0)]
    low, peak, far = (rates["gem"] for rates in simulate_settings(settings, runs=8, sampler="projected"))
    assert peak.mean() > low.mean()
    assert standard_errors_apart(peak, low) > 4.0
    assert far.mean() < low.mean()


def test_the_likelihood_ratio_beats_every_other_score():
    rates = simulate_once(Setting(10, 128, 4.0), random_state=0, sampler="projected")  # E8
    assert min(rates, key=rates.get) == "linear-energy"


@pytest.mark.parametrize("sampler", ["full", "projected"])
def test_only_r_in_units_of_sigma_matters(sampler):
    # E11; doubling is exact in binary, so the same draws give the same rates.
    sizes = {"n_in": 500, "n_out": 500}
    plain = simulate_once(Setting(5, 40, 4.0, **sizes), random_state=3, sampler=sampler)
    assert simulate_once(Setting(5, 40, 8.0, sigma=2.0, **sizes), random_state=3, sampler=sampler) == plain


@pytest.mark.parametrize("sampler", ["full", "projected"])
@pytest.mark.parametrize(("r", "sigma"), [(1e15, 1.0), (1.0, 1e-15), (1e15, 1e-15)])
def test_classes_at_any_distance_are_told_apart(r, sigma, sampler):
    rates = simulate_once(Setting(5, 40, r, sigma=sigma, n_in=50, n_out=50), random_state=0, sampler=sampler)
    assert rates["gem"] == rates["mahalanobis"] == 0.0


@pytest.mark.parametrize("sampler", ["full", "projected"])
def test_at_distance_zero_every_score_is_blind(sampler):
    # A rate of 2,000 rows at a threshold of as many has a standard error of 0.007.
    rates = simulate_once(Setting(5, 40, 0.0, n_in=2000, n_out=2000), random_state=0, sampler=sampler)
    for name in ("gem", "mahalanobis"):
        assert abs(rates[name] - 0.95) < 4 * 0.007


def test_the_size_of_a_chunk_does_not_change_the_rows(monkeypatch):
    setting = Setting(6, 40, 5.0, n_in=101, n_out=57)
    whole = draw_scores(setting, random_state=9)
    monkeypatch.setattr(sampling, "CHUNK_BYTES", 7 * 4 * 40)
    for side, cut in zip(whole, draw_scores(setting, random_state=9), strict=True):
        for name in SCORES:
            np.testing.assert_allclose(cut[name], side[name], rtol=1e-5, atol=1e-4)


def test_one_side_does_not_depend_on_the_size_of_the_other():
    few = draw_scores(Setting(3, 40, 2.0, n_in=50, n_out=60), random_state=1)
    many = draw_scores(Setting(3, 40, 2.0, n_in=90, n_out=60), random_state=1)
    np.testing.assert_array_equal(few[1]["gem"], many[1]["gem"])
    assert (len(few[0]["gem"]), len(many[0]["gem"])) == (50, 90)


def test_the_same_state_gives_the_same_rates_and_another_gives_others():
    setting = Setting(3, 40, 3.0, n_in=400, n_out=400)
    assert simulate_once(setting, random_state=1) == simulate_once(setting, random_state=1)
    assert simulate_once(setting, random_state=1) != simulate_once(setting, random_state=2)
    first, second = (simulate_once(setting, random_state=np.random.default_rng(1)) for _ in range(2))
    assert first == second


def test_a_lower_true_positive_rate_keeps_fewer_of_the_others():
    setting = Setting(3, 40, 3.0, n_in=400, n_out=400)
    rates = [simulate_once(setting, random_state=1, tpr=tpr)["gem"] for tpr in (0.5, 0.8, 0.95)]
    assert rates[0] < rates[1] < rates[2]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"random_state": -1}, "random_state is -1; pass a whole number of at least 0"),
        ({"random_state": True}, "random_state is True; pass a whole number of at least 0"),
        ({"random_state": 1.5}, "random_state is 1.5; pass a whole number of at least 0"),
        ({"random_state": "x"}, "random_state is 'x'; pass a whole number of at least 0"),
        ({"sampler": "half"}, 'sampler is \'half\'; pass "full" or "projected"'),
        ({"tpr": 1.0}, "tpr must lie strictly between 0 and 1"),
    ],
)
def test_bad_options_of_a_run_are_refused(options, message):
    with pytest.raises(InputError, match=message):
        simulate_once(Setting(2, 4, 1.0, n_in=20, n_out=20), **options)
