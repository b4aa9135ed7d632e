"""The three studies: their grids, the same numbers whatever the threads and the rest of the grid, the prediction."""

import json
import threading

import numpy as np
import pytest

from gem_ood.errors import InputError
from gem_ood.gaussians import parallel
from gem_ood.simulation import (
    SCORES,
    STUDIES,
    Setting,
    run_studies,
    run_study,
    running,
    sampling,
    simulate_settings,
    studies,
)
from gem_ood.simulation.running import for_each
from gem_ood.theory import predict_fpr

SMALL = {"n_in": 300, "n_out": 200, "runs": 3}


@pytest.fixture
def no_prediction(monkeypatch):
    """Leave the prediction out where a test is about the draws."""
    monkeypatch.setattr(studies, "_predicted", lambda *_: dict.fromkeys(SCORES, 0.5))


def have_cores(monkeypatch, n_cores):
    """Let BLAS have one thread and the process this many cores."""
    monkeypatch.setattr(parallel, "blas_threads", lambda: 1)
    for module in (running, sampling):
        monkeypatch.setattr(module, "available_cores", lambda: n_cores)


def settings_of(study):
    return [(point.setting.n_classes, point.setting.dimension, point.setting.distance) for point in study.points]


def test_the_grids_are_the_paper_s(no_prediction):
    options = {"n_in": 20, "n_out": 20, "runs": 1, "sampler": "projected"}
    found = {name: run_study(name, **options) for name in STUDIES}
    assert settings_of(found["distance"]) == [(k, 512, float(r)) for k in (10, 100) for r in range(1, 21)]
    assert settings_of(found["dimension"]) == [(k, d, 10.0) for k in (10, 100) for d in range(100, 1001, 100)]
    assert settings_of(found["classes"]) == [(k, 512, 10.0) for k in range(10, 101, 10)]
    assert [curve.n_classes for curve in found["distance"].curves] == [10, 100]
    assert [curve.n_classes for curve in found["classes"].curves] == [None]
    assert [study.varied for study in found.values()] == ["r", "d", "k"]
    assert [point.value for point in found["dimension"].curves[1].points] == [100.0 * i for i in range(1, 11)]


def test_the_paper_s_size_is_the_default(no_prediction):
    study = run_study("distance", grid=[3], n_classes=2, dimension=4, sampler="projected")
    assert (study.runs, study.seed, study.tpr) == (5, 0, 0.95)
    setting = study.points[0].setting
    assert (setting.n_in, setting.n_out, setting.sigma) == (20_000, 20_000, 1.0)


@pytest.mark.parametrize("sampler", ["full", "projected"])
def test_the_number_of_threads_changes_no_number(sampler, monkeypatch):
    settings = [Setting(k, 64, 5.0, n_in=300, n_out=200) for k in (3, 10, 30)]
    found, draw = [], running.draw_scores
    for n_threads in (1, 2, 3):
        have_cores(monkeypatch, n_threads)
        meeting, met = threading.Barrier(n_threads, timeout=30.0), set()

        def draw_together(*arguments, meeting=meeting, met=met, **options):
            thread = threading.get_ident()
            if thread not in met:  # a thread that is late would find nothing left to draw
                met.add(thread)
                meeting.wait()
            return draw(*arguments, **options)

        monkeypatch.setattr(running, "draw_scores", draw_together)
        found.append(simulate_settings(settings, runs=4, seed=3, sampler=sampler))
        assert len(met) == n_threads
    for other in found[1:]:
        for rates, expected in zip(other, found[0], strict=True):
            for score in SCORES:
                np.testing.assert_array_equal(rates[score], expected[score])


def test_a_point_does_not_depend_on_the_rest_of_the_grid(no_prediction):
    options = {**SMALL, "dimension": 60, "seed": 7}
    whole = run_study("distance", grid=[2, 4.5, 6], n_classes=(5, 20), **options)
    alone = run_study("distance", grid=[4.5], n_classes=20, **{**options, "runs": 2})
    shared = next(point for point in whole.curves[1].points if point.value == 4.5)
    for score in SCORES:
        np.testing.assert_array_equal(alone.points[0].rates[score], shared.rates[score][:2])


def test_all_cores_are_used_where_blas_has_one_thread(monkeypatch):
    have_cores(monkeypatch, 3)
    meeting = threading.Barrier(3, timeout=30.0)  # broken, and an error, unless three threads are at work at once
    assert sorted(for_each(lambda _: meeting.wait(), range(3), cost=float)) == [0, 1, 2]


def test_a_setting_that_studies_share_is_drawn_and_predicted_once(monkeypatch):
    drawn, predicted, calls = [], [], []
    draw, predict = running.draw_scores, studies._predicted
    monkeypatch.setattr(running, "draw_scores", lambda one, **options: drawn.append(one) or draw(one, **options))
    monkeypatch.setattr(studies, "_predicted", lambda one, tpr: predicted.append(one) or predict(one, tpr))
    options = {**SMALL, "dimension": 40, "distance": 4.0, "sampler": "projected", "seed": 2}
    grids = {"distance": [2, 4], "classes": [3, 5, 8]}
    found = run_studies(
        ["distance", "classes"], grids=grids, n_classes=(3, 5), progress=lambda *now: calls.append(now), **options
    )
    expected = {Setting(k, 40, r, n_in=300, n_out=200) for k, r in ((3, 2.0), (3, 4.0), (5, 2.0), (5, 4.0), (8, 4.0))}
    assert len(predicted) == 5
    assert set(predicted) == expected
    assert len(drawn) == 5 * SMALL["runs"]
    assert set(drawn) == expected
    assert calls == [(500 * (place + 1), 7500) for place in range(15)]
    alone = [
        run_study("distance", grid=[2, 4], n_classes=(3, 5), **options),
        run_study("classes", grid=[3, 5, 8], **options),
    ]
    assert [study.as_dict() for study in found] == [study.as_dict() for study in alone]


def test_several_studies_come_in_the_asked_order_and_are_all_three_by_default(no_prediction):
    options = {"n_in": 20, "n_out": 20, "runs": 1, "sampler": "projected", "n_classes": 2}
    grids = {"distance": [1], "dimension": [10], "classes": [2]}
    assert [study.name for study in run_studies(grids=grids, **options)] == ["distance", "dimension", "classes"]
    assert [study.name for study in run_studies(["classes", "distance"], grids=grids, **options)] == [
        "classes",
        "distance",
    ]


def test_runs_seeds_and_settings_are_drawn_apart():
    settings = [Setting(5, 60, 4.0, n_in=2000, n_out=2000), Setting(5, 60, 4.0 + 1e-9, n_in=2000, n_out=2000)]
    rates = [simulate_settings(settings, runs=3, seed=seed)[place]["gem"] for seed in (0, 1) for place in (0, 1)]
    assert len(np.unique(np.concatenate(rates))) > 8  # of 12; the same draws would give the same rate in two or more


@pytest.mark.parametrize("name", STUDIES)
def test_the_prediction_runs_through_the_points(name):
    # 0.01 is what is asked of the prediction; the runs' own error passes four of its estimates once in 200 points.
    grids = {"distance": [3, 11], "dimension": [200, 1000], "classes": [20, 50]}
    study = run_study(name, grid=grids[name], runs=8, sampler="projected", n_in=5000, n_out=5000)
    for point in study.points:
        for score in ("gem", "mahalanobis", "linear-energy", "msp"):
            assert abs(point.mean(score) - point.predicted[score]) < 0.01 + 4 * point.standard_error(score)


@pytest.mark.parametrize(
    "setting", [Setting(5, 60, 4.0), Setting(4, 30, 6.0, sigma=1.5), Setting(6, 6, 2.0, sigma=0.5), Setting(1, 20, 3.0)]
)
def test_the_prediction_is_that_of_the_theory_for_the_whole_covariance(setting):
    expected = predict_fpr(setting.gaussians(), np.zeros(setting.dimension), tpr=0.9)
    for score, rate in studies._predicted(setting, 0.9).items():
        assert rate == pytest.approx(expected[score].fpr, rel=1e-9, abs=1e-12)


def test_the_projected_sampler_needs_no_square_matrix(monkeypatch):
    monkeypatch.setattr(Setting, "gaussians", lambda _: pytest.fail("built a d × d covariance"))
    study = run_study("dimension", grid=[4096], n_classes=3, sampler="projected", **SMALL)
    assert 0.0 < study.points[0].predicted["gem"] < 1.0


def test_the_prediction_knows_sigma_and_the_asked_rate():
    options = {"grid": [5.0], "n_classes": 4, "dimension": 30, "n_in": 20_000, "sampler": "projected"}
    study = run_study("distance", tpr=0.8, sigma=2.0, **options)
    (point,) = study.points
    assert 0.05 < point.predicted["gem"] < 0.95
    assert abs(point.mean() - point.predicted["gem"]) < 0.01 + 4 * point.standard_error()


def test_means_and_spreads_are_those_of_the_runs(no_prediction):
    study = run_study("classes", grid=[2, 3], dimension=40, distance=3.0, **SMALL)
    point = study.points[0]
    rates = point.rates["msp"]
    assert rates.shape == (3,)
    assert point.mean("msp") == pytest.approx(sum(rates) / 3)
    assert point.spread("msp") == pytest.approx(np.sqrt(sum((rates - rates.mean()) ** 2) / 2))
    assert point.standard_error("msp") == pytest.approx(point.spread("msp") / np.sqrt(3))


def test_as_dict_is_plain_json_with_every_rate_and_choice(no_prediction):
    study = run_study("dimension", grid=[20, 40], n_classes=[2, 4], seed=4, **SMALL)
    found = json.loads(json.dumps(study.as_dict(), allow_nan=False))
    assert (found["study"], found["varied"], found["runs"], found["seed"]) == ("dimension", "d", 3, 4)
    assert any("half-open" in line for line in found["protocol"])
    point = found["curves"][1]["points"][0]
    assert found["curves"][1]["n_classes"] == 4
    assert (point["value"], point["setting"]["n_out"]) == (20.0, 200)
    expected = study.curves[1].points[0]
    for score in SCORES:
        assert point["scores"][score]["rates"] == expected.rates[score].tolist()
        assert point["scores"][score]["mean"] == expected.mean(score)
        assert point["scores"][score]["spread"] == expected.spread(score)
        assert point["scores"][score]["predicted"] == 0.5


def test_a_single_run_has_no_spread(no_prediction):
    study = run_study("classes", grid=[2], dimension=40, n_in=50, n_out=50, runs=1)
    assert np.isnan(study.points[0].spread())
    assert study.as_dict()["curves"][0]["points"][0]["scores"]["gem"]["spread"] is None


def test_columns_have_one_row_per_point_score_and_run(no_prediction):
    study = run_study("classes", grid=[2, 3], dimension=40, **SMALL)
    columns = study.as_columns()
    assert {len(values) for values in columns.values()} == {2 * 4 * 3}
    chosen = (columns["score"] == "mahalanobis") & (columns["value"] == 3.0)
    np.testing.assert_array_equal(columns["fpr"][chosen], study.points[1].rates["mahalanobis"])
    np.testing.assert_array_equal(columns["run"][chosen], [0, 1, 2])


def test_every_row_of_the_columns_says_how_it_was_drawn(no_prediction):
    options = {"sigma": 2.0, "tpr": 0.9, "seed": 6, "sampler": "projected"}
    columns = run_study("classes", grid=[2, 3], dimension=40, **options, **SMALL).as_columns()
    for name, value in {**options, "n_in": 300, "n_out": 200, "dimension": 40, "distance": 10.0}.items():
        assert columns[name].tolist() == [value] * 24, name


def test_progress_counts_every_row(no_prediction):
    calls = []
    run_study("classes", grid=[2, 3], dimension=40, progress=lambda *numbers: calls.append(numbers), **SMALL)
    assert calls == [(500 * (place + 1), 3000) for place in range(6)]


def test_an_error_ends_the_work_of_all_threads(monkeypatch):
    have_cores(monkeypatch, 2)
    done, failed = [], threading.Event()

    def work(task):
        if task == 0:
            failed.set()
            raise InputError("the first task")
        failed.wait(10.0)
        done.append(task)

    with pytest.raises(InputError, match="the first task"):
        for_each(work, range(1000), cost=lambda task: -task)
    assert len(done) < 999


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "depth"}, "the study is 'depth'; pass one of distance, dimension, classes"),
        ({"runs": 0}, "runs is 0; pass a whole number of at least 1"),
        ({"runs": 2.0}, "runs is 2.0; pass a whole number"),
        ({"seed": -1}, "seed is -1; pass a whole number of at least 0"),
        ({"sampler": "fast"}, "sampler is 'fast'"),
        ({"tpr": 95}, "tpr must lie strictly between 0 and 1 but is 95"),
        ({"grid": []}, "grid is empty; pass a list of numbers"),
        ({"grid": 3.0}, "grid is 3.0; pass a list of numbers"),
        ({"grid": "12"}, "grid is '12'; pass a list of numbers"),
        ({"n_classes": "10"}, "n_classes is '10'; pass a list of numbers"),
        ({"name": ["distance"]}, r"the study is \['distance'\]; pass one of distance, dimension, classes"),
        ({"name": ["distance"], "grid": [1]}, r"the study is \['distance'\]; pass one of"),
        ({"seed": True}, "seed is True; pass a whole number"),
        ({"grid": [1.0, np.nan]}, "distance is nan"),
        ({"n_classes": []}, "n_classes is empty"),
        ({"n_classes": 513}, "n_classes is 513 but dimension is 512"),
        ({"name": "classes", "n_classes": 10}, "n_classes is 10 but the classes study varies it; pass grid"),
        ({"name": "dimension", "grid": [50]}, "n_classes is 100 but dimension is 50"),
        ({"sigma": 0.0}, "sigma is 0"),
    ],
)
def test_bad_studies_are_refused_before_anything_is_drawn(arguments, message, monkeypatch):
    monkeypatch.setattr("gem_ood.simulation.running.draw_scores", lambda *_, **__: pytest.fail("drew rows"))
    with pytest.raises(InputError, match=message):
        run_study(**{"name": "distance", **arguments})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"names": "distance"}, "names is 'distance'; pass a list of names of studies"),
        ({"names": []}, "names is empty; pass a list of names of studies"),
        ({"names": ["distance", "depth"]}, "the study is 'depth'; pass one of"),
        ({"grids": {"depth": [1]}}, "the study is 'depth'; pass one of"),
        ({"grids": {"classes": []}}, "grid is empty; pass a list of numbers"),
    ],
)
def test_bad_lists_of_studies_are_refused_before_anything_is_drawn(arguments, message, monkeypatch):
    monkeypatch.setattr("gem_ood.simulation.running.draw_scores", lambda *_, **__: pytest.fail("drew rows"))
    with pytest.raises(InputError, match=message):
        run_studies(**arguments)


def test_settings_may_come_from_a_generator():
    settings = [Setting(2, 8, r, n_in=50, n_out=50) for r in (1.0, 2.0)]
    found = simulate_settings((setting for setting in settings), runs=2)
    expected = simulate_settings(settings, runs=2)
    assert [{name: rates.tolist() for name, rates in one.items()} for one in found] == [
        {name: rates.tolist() for name, rates in one.items()} for one in expected
    ]


@pytest.mark.parametrize("settings", [[(2, 8, 1.0)], ["distance"], 7, [Setting(2, 8, 1.0), None]])
def test_what_is_no_setting_is_refused(settings):
    with pytest.raises(InputError, match=r"settings has .*; pass a list of gem_ood.simulation.Setting"):
        simulate_settings(settings)
