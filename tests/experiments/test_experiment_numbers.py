"""An experiment's numbers, differences and verdicts against naive computations."""

import math
import re
from dataclasses import replace

import numpy as np
import pytest
from made_experiments import N_ID, constant, experiment

from gem_ood.comparison import MEAN, METRICS
from gem_ood.errors import InputError
from gem_ood.experiments import PAPER, PAPER_METHODS, PAPER_SETS, Draws, Protocol
from gem_ood.experiments.paper_numbers import PAPER_METRICS


def naive_mean(values):
    return math.fsum(values) / len(values)


def naive_spread(values):
    if len(values) == 1:
        return 0.0
    mean = naive_mean(values)
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))


def close(value):
    return pytest.approx(value, rel=0, abs=1e-13)


@pytest.mark.parametrize("metric", METRICS)
def test_values_and_spreads_are_those_of_the_draws(metric):
    result = experiment()
    for method in PAPER_METHODS:
        own = {ood: result.draws[method][ood].values[metric].tolist() for ood in PAPER_SETS}
        for ood, values in own.items():
            assert result.value(method, metric, ood) == close(naive_mean(values))
            assert result.spread(method, metric, ood) == close(naive_spread(values))
        assert result.value(method, metric) == close(naive_mean([naive_mean(values) for values in own.values()]))
        variance = math.fsum(naive_spread(values) ** 2 for values in own.values()) / 36
        assert result.spread(method, metric) == close(math.sqrt(variance))


def test_the_spread_of_a_mean_is_what_independent_draws_show():
    rng = np.random.default_rng(1)
    sigmas = dict(zip(PAPER_SETS, (0.01, 0.02, 0.03, 0.04, 0.05, 0.06), strict=True))
    draws = {
        ood: Draws({metric: rng.normal(0.5, sigma, 20_000) for metric in METRICS}) for ood, sigma in sigmas.items()
    }
    result = replace(experiment(methods=("gem",)), draws={"gem": draws})
    means = np.mean([draws[ood].values["fpr"] for ood in PAPER_SETS], axis=0)
    # The estimate of a standard deviation from 20,000 values has a relative error of 0.5 %.
    assert result.spread("gem", "fpr") == pytest.approx(np.std(means, ddof=1), rel=0.03)


def test_differences_are_to_the_printed_numbers():
    result = experiment()
    for method in PAPER_METHODS:
        for place, metric in enumerate(PAPER_METRICS):
            for ood in PAPER_SETS:
                printed = PAPER["cifar10"].sets[ood][method][place] / 100
                assert result.printed(method, metric, ood) == close(printed)
                assert result.difference(method, metric, ood) == close(result.value(method, metric, ood) - printed)
            printed = PAPER["cifar10"].main[method][place] / 100
            assert result.printed(method, metric) == close(printed)
            assert result.difference(method, metric) == close(result.value(method, metric) - printed)


@pytest.mark.parametrize(
    ("offset", "half_width", "verdict"),
    [
        (0.0, 0.0, "within"),
        (0.00005, 0.0, "within"),  # half of the last printed digit
        (-0.00005, 0.0, "within"),
        (0.00006, 0.0, "beyond"),
        (0.01, 0.005, "within"),
        (-0.01, 0.005, "within"),
        (0.0101, 0.005, "beyond"),
        (-0.0101, 0.005, "beyond"),
    ],
)
def test_a_number_is_within_two_standard_deviations_and_the_rounding(offset, half_width, verdict):
    # Draws at ± w around a centre, as many on either side, have a variance of w² · n / (n − 1).
    width = half_width * math.sqrt(9 / 10)
    values = [0.1342 + offset + sign * width for sign in (-1, 1)] * 5
    result = constant(values)
    assert result.spread("gem", "fpr", "svhn") == pytest.approx(half_width, abs=1e-12)
    assert result.verdict("gem", "fpr", "svhn") == verdict
    assert result.verdict("gem", "fpr") == verdict


def test_the_mean_over_fewer_sets_is_compared_with_the_papers_numbers_for_these():
    result = experiment(("svhn", "textures"))
    assert result.averaged == ("svhn", "textures")
    expected = (PAPER["cifar10"].sets["svhn"]["gem"][0] + PAPER["cifar10"].sets["textures"]["gem"][0]) / 200
    assert result.printed("gem", "fpr") == close(expected)
    assert "The paper's column is the mean of its numbers for the same sets: SVHN, Textures" in str(result)


def test_sets_that_the_paper_lacks_are_shown_but_not_averaged():
    result = experiment(("svhn", "noise", "textures"))
    assert result.averaged == ("svhn", "textures")
    assert result.value("gem", "fpr") == close(
        naive_mean([result.value("gem", "fpr", ood) for ood in ("svhn", "textures")])
    )
    assert result.printed("gem", "fpr", "noise") is None
    assert result.difference("gem", "fpr", "noise") is None
    assert result.verdict("gem", "fpr", "noise") is None
    assert "The mean leaves out what the paper does not have: noise" in str(result)


def test_where_the_paper_has_no_set_all_are_averaged_and_nothing_is_compared():
    result = experiment(("noise", "blur"))
    assert result.averaged == ("noise", "blur")
    assert result.printed("gem", "fpr") is None
    assert "The paper's column" not in str(result)
    assert result.n_within() == (0, 0)
    assert result.error_verdict() == "within"  # draws do not change it, so it is not among those
    assert "Within the spread of draws" not in str(result)


def test_methods_that_the_paper_lacks_are_compared_with_nothing():
    result = experiment(methods=("gem", "knn"))
    assert result.printed("knn", "auroc") is None
    assert result.verdict("knn", "auroc", "svhn") is None
    assert result.verdict("gem", "auroc", "svhn") is not None


def test_without_the_paper_nothing_is_compared():
    result = experiment(paper=None)
    assert result.printed("gem", "fpr") is None
    assert result.error_verdict() is None
    assert result.n_within() == (0, 0)
    assert "paper's" not in str(result)


def test_the_aupr_of_whole_sets_is_at_another_ratio_and_has_no_difference():
    result = experiment(protocol=Protocol.whole())
    assert result.printed("gem", "aupr_in", "svhn") == 0.9947
    for ood in (*PAPER_SETS, MEAN):
        assert result.difference("gem", "aupr_in", ood) is None
        assert result.difference("gem", "auroc", ood) is not None
    assert "AUPR depends on the ratio of rows, which is not the paper's five to one for Textures, SVHN" in str(result)


def test_one_set_at_another_ratio_takes_the_difference_of_the_mean_too():
    sizes = {ood: 199 if ood == "svhn" else 5000 for ood in PAPER_SETS}
    result = experiment(n_ood=sizes)
    assert [ood for ood in PAPER_SETS if result.difference("gem", "aupr_in", ood) is None] == ["svhn"]
    assert result.difference("gem", "aupr_in") is None
    assert result.n_drawn("svhn") == 199
    assert result.n_drawn("isun") == 200
    assert "Taken whole, once, as there are too few to draw from: SVHN" in str(result)


def test_a_false_positive_rate_at_another_true_positive_rate_is_not_compared():
    result = experiment(protocol=Protocol(tpr=0.9))
    assert result.printed("gem", "fpr") is None
    assert result.difference("gem", "fpr", "svhn") is None
    assert result.verdict("gem", "auroc", "svhn") is not None
    assert result.gain()[1] is None
    assert "FPR90 ↓" in str(result)
    assert "FPR90 of GEM minus that of Energy" in str(result)
    assert "FPR95" not in str(result)


@pytest.mark.parametrize("tpr", [0.95, np.float32(0.95)])
def test_the_papers_true_positive_rate_may_be_any_kind_of_number(tpr):
    assert experiment(protocol=Protocol(tpr=tpr)).printed("gem", "fpr") == 0.3721


@pytest.mark.parametrize(
    ("error", "verdict"), [(0.0516, "within"), (0.05164, "within"), (0.05166, "beyond"), (None, None)]
)
def test_the_error_of_the_network_is_the_papers_as_rounded_or_not(error, verdict):
    result = experiment(id_error=error)
    assert result.error_verdict() == verdict
    assert ("ID error ↓" in str(result)) == (error is not None)


def test_verdicts_are_counted_over_both_tables():
    result = experiment()
    cells = [
        (method, metric, ood) for method in PAPER_METHODS for metric in PAPER_METRICS for ood in (*PAPER_SETS, MEAN)
    ]
    expected = 0  # the error of the network is none of them
    for method, metric, ood in cells:
        limit = 2 * result.spread(method, metric, ood) + 0.00005
        expected += abs(result.value(method, metric, ood) - result.printed(method, metric, ood)) <= limit
    assert result.n_within() == (expected, len(cells))
    assert f"Within the spread of draws: {expected} of {len(cells)} numbers" in str(result)


def test_the_numbers_of_a_single_set_are_counted_once():
    assert constant([0.1342, 0.1342]).n_within() == (1, 3)  # FPR95 is the paper's, AUROC and AUPR are not


SINGLE = {
    "whole sets": {"protocol": Protocol.whole()},
    "one draw": {"n_draws": 1},
    "sets of as many rows as a draw": {"n_ood": N_ID // 5},
    "smaller sets": {"n_ood": 30},
}


@pytest.mark.parametrize("case", SINGLE)
def test_one_draw_has_a_difference_but_no_verdict(case):
    result = experiment(**SINGLE[case])
    for ood in (*PAPER_SETS, MEAN):
        assert not result.has_spread(ood)
        for method in PAPER_METHODS:
            expected = result.value(method, "auroc", ood) - result.printed(method, "auroc", ood)
            assert result.difference(method, "auroc", ood) == expected
            assert [result.verdict(method, metric, ood) for metric in PAPER_METRICS] == [None] * 3
    assert result.n_within() == (0, 0)
    text = str(result)
    assert "No verdict on Textures, SVHN, Places365, LSUN-Crop, LSUN-Resize, iSUN, nor on a mean over these" in text
    assert "±" not in text
    assert "Within the spread" not in text
    assert "ID error: ≈ equal as rounded, ≠ not" in text
    # The error of the network alone has a sign, once in each row of the main table and once in its note.
    assert (text.count("≈"), text.count("≠")) == (len(PAPER_METHODS) + 1, 1)


def test_a_set_of_one_draw_takes_the_verdict_of_the_mean_too_and_no_other():
    sizes = {ood: 199 if ood == "svhn" else 5000 for ood in PAPER_SETS}
    result = experiment(n_ood=sizes)
    assert [ood for ood in (*PAPER_SETS, MEAN) if not result.has_spread(ood)] == ["svhn", MEAN]
    assert [ood for ood in (*PAPER_SETS, MEAN) if result.verdict("gem", "auroc", ood) is None] == ["svhn", MEAN]
    assert result.n_within()[1] == 5 * len(PAPER_METHODS) * len(PAPER_METRICS)
    assert "No verdict on SVHN, nor on a mean over these: one draw has no spread" in str(result)
    assert "±: standard deviation of a draw" in str(result)


def test_a_set_of_the_users_own_that_has_one_draw_costs_no_verdict():
    result = experiment(("svhn", "noise"), n_ood={"svhn": 5000, "noise": 20})
    assert result.has_spread()
    assert result.verdict("gem", "fpr") is not None
    assert "No verdict" not in str(result)


def test_a_set_of_one_row_more_than_a_draw_is_drawn_from():
    result = experiment(n_ood=N_ID // 5 + 1)
    assert result.n_drawn("svhn") == N_ID // 5
    assert len(result.draws["gem"]["svhn"].values["fpr"]) == 10
    assert result.verdict("gem", "aupr_in") is not None
    assert "SVHN 200 of 201" in str(result)
    assert "Taken whole" not in str(result)


@pytest.mark.parametrize("n_id", [1000, 1001, 1002, 1003, 1004])
def test_a_fifth_rounded_down_is_the_papers_ratio(n_id):
    result = replace(experiment(), n_id=n_id)
    assert result.n_drawn("svhn") == 200
    assert result.is_at_ratio()
    assert result.difference("gem", "aupr_in", "svhn") is not None


@pytest.mark.parametrize("seed", [0, 1, 2, 3])
def test_the_gain_is_printed_as_gem_minus_energy(seed):
    result = experiment(seed=seed)
    shown, printed = re.search(
        r"FPR95 of GEM minus that of Energy: (\S+) points, (\S+) in the paper", str(result)
    ).groups()
    points = 100 * (result.value("gem", "fpr") - result.value("energy", "fpr"))
    assert shown == f"{points:+.2f}".replace("-", "−")
    assert printed == "+4.20"  # 37.21 − 33.01


def test_the_gains_of_both_signs_are_among_those():
    assert {experiment(seed=seed).gain()[0] > 0.0 for seed in range(4)} == {True, False}


def test_the_gain_is_energy_minus_gem():
    result = experiment(paper="cifar100")
    own, printed = result.gain()
    assert own == close(result.value("energy", "fpr") - result.value("gem", "fpr"))
    assert printed == close(0.1657)
    assert "−16.57 in the paper" in str(result)
    assert experiment(methods=("gem", "msp")).gain() is None
    assert experiment(paper=None).gain()[1] is None


def test_what_is_not_there_is_refused_by_name():
    result = experiment(("svhn", "isun"), methods=("gem",))
    for ask in (result.value, result.spread, result.printed, result.difference, result.verdict):
        with pytest.raises(InputError, match="there is no method 'knn'; choose among gem"):
            ask("knn", "fpr")
        with pytest.raises(InputError, match="there is no metric 'fpr95'; choose among fpr, auroc"):
            ask("gem", "fpr95")
        with pytest.raises(InputError, match="there is no set 'textures'; choose among svhn, isun, mean"):
            ask("gem", "fpr", "textures")
    with pytest.raises(InputError, match="there is no set 'far'"):
        result.n_drawn("far")
    with pytest.raises(InputError, match="there is no set 'far'"):
        replace(result, paper=None).printed("gem", "fpr", "far")
