"""gather and write: every number of a report is that of the rows by hand, whatever comes."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gem_ood import GEM, MSP, Combine, Energy, Head, Mahalanobis, compare
from gem_ood.errors import InputError, MissingExtraError
from gem_ood.files import open_features
from gem_ood.reports import Report, gather, write

HOSTILE = "</script><img src=x onerror=alert(1)>"


@pytest.fixture
def case(blobs: Any) -> dict[str, Any]:
    features, labels, held_out, far = blobs
    near = 0.5 * held_out + 0.5 * held_out[::-1]
    detectors = {
        "gem": GEM().fit(features, labels).calibrate(held_out[:200]),
        "energy": Energy(head=Head(np.eye(3, 5), np.zeros(3))).fit(features, labels),
    }
    return {
        "detectors": detectors,
        "id": held_out[200:],
        "ood": {"near": near[:150], "far": far},
        "labels": (np.arange(400) % 3)[200:],
        "map": "pca",
    }


def test_the_metrics_are_those_of_compare(case: Any) -> None:
    report = gather(**case)
    del case["map"]
    expected = compare(**case)
    assert report.comparison.as_dict(time=False) == expected.as_dict(time=False)
    shown = report.as_dict()["comparison"]["detectors"]
    assert shown["gem"]["evaluations"]["near"]["fpr"] == expected.detectors["gem"].evaluations["near"].fpr


def test_the_lead_is_the_best_detector_that_has_a_threshold(case: Any) -> None:
    assert gather(**case).comparison.ranking("fpr") == ("gem", "energy")
    assert gather(**case).lead == "gem"
    case["detectors"] = {
        "gem": GEM().fit(*_training(case)),
        "energy": case["detectors"]["energy"].calibrate(case["id"]),
    }
    assert gather(**case).comparison.ranking("fpr") == ("gem", "energy")
    assert gather(**case).lead == "energy"
    case["detectors"]["energy"] = Energy(head=Head(np.eye(3, 5), np.zeros(3))).fit(*_training(case))
    assert gather(**case).lead == "gem"


def _training(case: Any) -> tuple[Any, Any]:
    return case["id"], case["labels"]


def test_the_headline_tells_what_is_kept_and_flagged(case: Any) -> None:
    gem = case["detectors"]["gem"]
    report = gather(**case)
    kept = 1.0 - gem.is_ood(case["id"]).mean()
    assert f"asked to keep 95 %, its threshold keeps {100 * kept:.1f} % of 200 in-distribution rows" in report.headline
    for name, rows in case["ood"].items():
        assert f"{100 * gem.is_ood(rows).mean():.1f} % ({name})" in report.headline


def test_surprising_rows_are_the_extremes_of_the_scores(case: Any) -> None:
    gem = case["detectors"]["gem"]
    surprises = gather(**case).detectors["gem"].surprises
    assert len(surprises) == 20
    inside = np.argsort(gem.score_samples(case["id"]), kind="stable")[:10]
    assert [one.row for one in surprises if one.ood is None] == inside.tolist()
    assert [one.label for one in surprises[:10]] == [str(case["labels"][row]) for row in inside]
    outside = [
        (-score, name, row) for name, rows in case["ood"].items() for row, score in enumerate(gem.score_samples(rows))
    ]
    assert [(one.ood, one.row) for one in surprises[10:]] == [place[1:] for place in sorted(outside)[:10]]
    first = surprises[0]
    explanation = gem.explain(case["id"][inside[:1]])
    assert first.nearest_class == str(explanation.nearest_class[0])
    assert first.distance == pytest.approx(explanation.distances.min())
    assert first.is_ood is bool(explanation.is_ood[0])
    assert all(one.distance is None and one.p_value is None for one in gather(**case).detectors["energy"].surprises)


def test_batches_of_any_size_give_the_report_of_one_array(case: Any) -> None:
    whole = gather(**case).as_dict()
    rows, labels = case["id"], case["labels"]
    starts = [0, 1, 8, 90]
    batches = [(rows[slice(*ends)], labels[slice(*ends)]) for ends in zip(starts, [*starts[1:], None], strict=True)]
    parts = gather(**(case | {"id": batches, "labels": None})).as_dict()
    assert _numbers(parts) == pytest.approx(_numbers(whole), rel=1e-9)
    assert [one["row"] for one in parts["detectors"]["gem"]["surprises"]] == [
        one["row"] for one in whole["detectors"]["gem"]["surprises"]
    ]


def _numbers(document: Any) -> list[float]:
    """Return every number of a report but times."""
    if isinstance(document, dict):
        return [number for key, one in document.items() if key != "seconds_per_10k" for number in _numbers(one)]
    if isinstance(document, list):
        return [number for one in document for number in _numbers(one)]
    return [document] if isinstance(document, float | int) else []


def test_a_file_is_named_as_the_source(case: Any, tmp_path: Path) -> None:
    np.savez(tmp_path / "id.npz", features=case["id"], labels=case["labels"])
    report = gather(**(case | {"id": open_features(tmp_path / "id.npz"), "labels": None}))
    assert report.run.inputs[0] == ("in-distribution", str(tmp_path / "id.npz"), 200)
    assert report.run.inputs[1] == ("near", "ndarray", 150)


def test_without_an_ood_set_there_is_a_report_of_what_is_kept(case: Any) -> None:
    case |= {"ood": None}
    report = gather(**case)
    kept = 1.0 - case["detectors"]["gem"].is_ood(case["id"]).mean()
    assert report.headline.startswith(f"gem keeps {100 * kept:.1f} % of 200 in-distribution rows; what it catches is")
    assert any("No out-of-distribution set was given" in caveat for caveat in report.caveats)
    assert all(one.ood is None for one in report.detectors["gem"].surprises)
    assert len(report.detectors["gem"].surprises) == 20
    assert report.as_dict()["comparison"]["detectors"]["gem"]["mean"]["fpr"] is None
    assert "<html" in report.to_html()
    text = report.comparison.to_text(layout="long", time=False)
    assert text.splitlines()[0].split() == ["detector", "ID", "error", "ID", "kept"]
    assert "200 in-distribution rows and no out-of-distribution set" in text
    assert ",fpr," not in report.comparison.to_csv()


def test_one_class_needs_no_labels(case: Any) -> None:
    case["detectors"] = {"one": GEM().fit(case["id"]).calibrate(case["id"])}
    case |= {"labels": None}
    report = gather(**case)
    assert report.diagnosis is not None
    assert set(report.as_dict()["map"]["classes"]) == {"0"}
    assert report.as_dict()["map"]["class_from"] == "nearest class by one"


@pytest.mark.parametrize("n_rows", [1, 3])
def test_few_rows_give_a_report_that_says_so(case: Any, n_rows: int) -> None:
    case |= {"id": case["id"][:n_rows], "labels": case["labels"][:n_rows]}
    case |= {"ood": {"far": case["ood"]["far"][:n_rows]}, "map": "auto"}
    report = gather(**case)
    assert any(f"the in-distribution set ({n_rows}) and far ({n_rows})" in caveat for caveat in report.caveats)
    assert len(report.detectors["gem"].surprises) == 2 * n_rows
    assert report.map is not None
    assert report.map.method == "PCA"
    assert "<html" in report.to_html()


@pytest.mark.parametrize("n_features", [1, 2])
def test_rows_of_few_dimensions_have_a_map_too(n_features: int) -> None:
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(90, n_features))
    report = gather([GEM().fit(rows).calibrate(rows)], id=rows, ood={"far": rows + 9.0}, map="pca")
    assert report.map is not None
    assert report.map.points.shape == (180, 2)
    assert np.isfinite(report.map.points).all()


def test_names_with_html_and_other_scripts_are_escaped(case: Any, tmp_path: Path) -> None:
    names = np.array([HOSTILE, "Zürich 数字", 'a & "b"'])
    features, codes = _training(case)
    labels = names[codes]
    gem = GEM().fit(features, labels).calibrate(features)
    report = write(
        tmp_path / "r.html", {HOSTILE: gem}, id=features, labels=labels, ood={f"{HOSTILE}!": features + 9.0}, map="pca"
    )
    page = (tmp_path / "r.html").read_text(encoding="utf-8")
    assert HOSTILE not in page
    assert "<img src=x" not in page
    assert "Zürich 数字" in page
    assert report.as_dict()["map"]["classes"] == sorted(names.tolist())


def test_a_million_rows_are_drawn_as_a_stated_sample(case: Any) -> None:
    rng = np.random.default_rng(0)
    case["id"] = rng.normal(size=(1_000_000, 5)).astype(np.float32)
    case["labels"] = None
    del case["detectors"]["energy"]
    report = gather(**case)
    document = report.as_dict()
    assert (document["n_id"], document["map"]["n_rows"]) == (1_000_000, 1_000_250)
    assert document["map"]["n_drawn"] == 1_000 + 150 + 100
    assert "1,000 of 1,000,000 in-distribution rows" in document["map"]["note"]
    assert len(json.dumps(document)) < 400_000


def test_the_map_holds_the_rows_it_names(case: Any) -> None:
    case["map_rows"] = 100
    drawn = gather(**case).map
    assert drawn is not None
    assert np.bincount(drawn.sets).tolist() == [50, 25, 25]
    gem, rows = case["detectors"]["gem"], drawn.rows[drawn.sets == 2]
    assert drawn.is_ood["gem"][drawn.sets == 2].tolist() == gem.is_ood(case["ood"]["far"][rows]).tolist()
    assert drawn.is_ood["energy"] is None
    inside = drawn.rows[drawn.sets == 0]
    assert list(drawn.classes[:50]) == [str(label) for label in case["labels"][inside]]
    assert set(drawn.classes[50:]) == {None}


def test_pictures_of_surprising_rows_are_shown(case: Any) -> None:
    pictures = np.zeros((200, 8, 8), dtype=np.uint8)
    report = gather(**case, images={"id": pictures})
    rows = {one.row for part in report.detectors.values() for one in part.surprises if one.ood is None}
    assert set(report.images) == {(None, row) for row in rows}
    shown = report.as_dict()
    keys = {one["image"] for one in shown["detectors"]["gem"]["surprises"]} - {None}
    assert keys <= set(shown["images"])
    assert all(uri.startswith("data:image/png;base64,") for uri in shown["images"].values())


def test_the_diagnosis_is_of_the_gaussian_part_of_a_combination(case: Any) -> None:
    features, labels = _training(case)
    joined = Combine([MSP(head=Head(np.eye(3, 5), np.zeros(3))), Mahalanobis()]).fit(features, labels)
    case["detectors"] = {"joined": joined}
    report = gather(**case)
    assert report.diagnosis is not None
    assert report.diagnosis.detector == "joined"


def test_labels_that_the_fit_does_not_know_leave_the_diagnosis_out_with_a_reason(case: Any) -> None:
    case["labels"] = case["labels"] + 7
    report = gather(**case)
    assert report.diagnosis is None
    assert any(caveat.startswith("No Gaussian diagnosis: labels holds 7, 8, 9") for caveat in report.caveats)


@pytest.mark.parametrize("n_without", [8, 150])
def test_labels_of_only_some_rows_are_left_alone(case: Any, n_without: int) -> None:
    rows, labels = case["id"], case["labels"]
    case["id"] = [(rows[:n_without], None), (rows[n_without:], labels[n_without:])]
    report = gather(**(case | {"labels": None}))
    assert "Only some in-distribution rows have labels, so no label is used." in report.caveats
    assert report.map is not None
    assert report.map.class_from == "nearest class by gem"
    nearest = case["detectors"]["gem"].verdicts(rows[report.map.rows[:200]]).nearest_class
    assert list(report.map.classes[:200]) == [str(name) for name in nearest]
    assert {one.label for one in report.detectors["gem"].surprises} == {None}


def test_rows_that_all_lie_on_their_mean_leave_the_diagnosis_out(case: Any) -> None:
    mean = case["detectors"]["gem"].gaussians_.class_means[:1]
    report = gather(**(case | {"id": np.repeat(mean, 30, axis=0), "labels": None}))
    assert report.diagnosis is None
    assert "No Gaussian diagnosis: all rows lie on their class mean." in report.caveats


def test_tied_scores_of_one_law_are_not_called_different(case: Any) -> None:
    rng = np.random.default_rng(0)
    rows = rng.integers(0, 2, size=(900, 5)).astype(float)
    gem = GEM(covariance=0.1).fit(rows[:300]).calibrate(rows[300:600], tpr=0.8)
    report = gather({"gem": gem}, id=rows[600:], map=None)
    assert any(finding.endswith("as it does here.") for finding in report.findings)


def test_no_gaussian_detector_leaves_the_diagnosis_out_with_a_reason(case: Any) -> None:
    del case["detectors"]["gem"]
    report = gather(**case)
    assert report.diagnosis is None
    assert any("no detector here has Gaussian classes" in caveat for caveat in report.caveats)


def _calibrated_nearer(case: Any, scale: float, tpr: float = 0.95) -> Report:
    """Return a report on a detector whose calibration rows lie so much nearer to their class than the others."""
    gem = case["detectors"]["gem"]
    means = gem.gaussians_.class_means[case["labels"]]
    gem.calibrate(means + scale * (case["id"] - means), tpr=tpr)
    return gather(**case)


def test_a_threshold_from_nearer_rows_does_not_fit_and_the_headline_says_so(case: Any) -> None:
    report = _calibrated_nearer(case, 0.3)
    kept = report.comparison.detectors["gem"].id_kept
    start = f"The threshold of gem does not fit these rows: asked to keep 95 %, it keeps {100 * kept:.1f} % of 200 "
    assert report.headline.startswith(start)
    assert any("It is less: these rows are harder" in finding for finding in report.findings)
    assert "does not fit these rows" in gather(**(case | {"ood": None})).headline


def test_a_threshold_from_farther_rows_keeps_more(case: Any) -> None:
    report = _calibrated_nearer(case, 3.0, tpr=0.8)
    assert any("It is more: these rows are easier" in finding for finding in report.findings)


def test_a_share_just_outside_of_its_range_is_put_down_to_chance(case: Any) -> None:
    for scale in np.linspace(0.7, 1.0, 31):
        report = _calibrated_nearer(case, scale)
        kept = report.detectors["gem"].kept
        assert kept is not None
        if 0.001 <= kept.own_chance < 0.04:
            assert any("chance alone brings about one time in twenty" in finding for finding in report.findings)
            assert "does not fit" not in report.headline
            return
    pytest.fail("no scale gives such a share")


@pytest.mark.parametrize(("n_rows", "is_few"), [(99, True), (100, False)])
def test_sets_of_fewer_than_a_hundred_rows_are_called_small(case: Any, n_rows: int, is_few: bool) -> None:
    report = gather(**(case | {"ood": {"far": np.repeat(case["ood"]["far"], 2, axis=0)[:n_rows]}}))
    assert any(caveat.startswith(f"Few rows: far ({n_rows})") for caveat in report.caveats) == is_few


def test_a_row_at_the_threshold_is_kept_on_the_map(case: Any) -> None:
    gem = case["detectors"]["gem"].calibrate_scores(case["detectors"]["gem"].score_samples(case["id"]))
    gem.offset_ = float(np.median(gem.score_samples(case["id"])))
    case["id"] = case["id"][np.argsort(gem.score_samples(case["id"]))[:101]]
    drawn = gather({"gem": gem}, id=case["id"], map="pca").map
    assert drawn is not None
    assert drawn.is_ood["gem"].tolist() == (gem.score_samples(case["id"]) < gem.offset_)[drawn.rows].tolist()


def test_without_sets_the_whole_sample_is_of_the_rows_at_hand(case: Any) -> None:
    drawn = gather(**(case | {"ood": None, "map_rows": 120})).map
    assert drawn is not None
    assert len(drawn.points) == 120
    assert "120 of 200 in-distribution rows." in drawn.note


def test_the_diagnosis_of_a_unit_length_fit_is_of_rows_of_unit_length(case: Any) -> None:
    from gem_ood.features import unit_length
    from gem_ood.theory import diagnose

    features, labels = _training(case)
    unit = GEM(normalize=True).fit(features, labels)
    report = gather({"unit": unit}, id=features, labels=labels, map=None)
    expected = diagnose(unit.gaussians_, unit_length(features), labels, counts=unit.statistics_.counts)
    assert report.diagnosis is not None
    assert report.diagnosis.diagnosis.overall == expected.overall


def test_a_fit_without_labels_is_diagnosed_without_them(case: Any) -> None:
    one = GEM().fit(case["id"])
    report = gather({"one": one}, id=case["id"], labels=case["labels"], map=None)
    assert report.diagnosis is not None


def test_of_tied_scores_the_first_rows_are_shown_whatever_the_batches(case: Any) -> None:
    rows = np.repeat(case["id"][:1], 60, axis=0)
    for size in (60, 7, 1):
        batches = [(rows[start : start + size], None) for start in range(0, 60, size)]
        report = gather({"gem": case["detectors"]["gem"]}, id=batches, map=None)
        assert [one.row for one in report.detectors["gem"].surprises] == list(range(20))


def test_the_best_of_each_metric_are_marked(case: Any) -> None:
    report = gather(**case)
    best = report.as_dict()["best"]
    assert best == {
        metric: {ood: list(report.comparison.best(metric, ood)) for ood in ("near", "far", "mean")}
        for metric in ("fpr", "auroc", "aupr_in")
    }


def test_classes_that_are_numbers_come_by_their_value(case: Any) -> None:
    labels = np.array([10, 9, -2])[case["labels"]]
    report = gather({"gem": GEM().fit(case["id"], labels)}, id=case["id"], labels=labels, map="pca")
    assert report.as_dict()["map"]["classes"] == ["-2", "9", "10"]


def test_the_headline_names_the_share_that_was_asked_for(case: Any) -> None:
    case["detectors"]["gem"].calibrate(tpr=0.5)
    assert "asked to keep 50 %, its threshold keeps " in gather(**case).headline


def test_a_better_detector_without_a_threshold_is_named(case: Any) -> None:
    case["ood"] = {"far": case["ood"]["far"]}
    case["detectors"]["energy"].calibrate(case["id"])
    case["detectors"]["gem"] = GEM().fit(*_training(case))
    report = gather(**case)
    assert report.lead == "energy"
    assert any(finding.startswith("gem is better but has no threshold yet: ") for finding in report.findings)


def test_equal_shares_are_told_once(case: Any) -> None:
    far = case["ood"]["far"]
    headline = gather(**(case | {"ood": {"far": far, "farther": far + 9.0}})).headline
    assert headline.endswith("and flags 100.0 % of the others.")


def test_a_detector_that_flags_everything_is_not_praised(case: Any) -> None:
    gem = case["detectors"]["gem"]
    report = gather(
        **(case | {"ood": {"same law": case["detectors"]["gem"].gaussians_.sample(300, random_state=1)[0]}})
    )
    assert " hardly at all" in report.headline
    gem.calibrate(np.repeat(gem.gaussians_.class_means, 50, axis=0))
    everything = gather(**(case | {"ood": {"same law": gem.gaussians_.sample(300, random_state=1)[0]}}))
    assert everything.comparison.detectors["gem"].flagged["same law"] > 0.99
    assert everything.headline.startswith("The threshold of gem does not fit these rows")
    assert " hardly at all" in everything.headline


@pytest.mark.parametrize("names", [["--5", "-", "²"], ["1" * 400, "-3", "10"], ["<b>", "", " "]])
def test_any_class_name_can_be_drawn(case: Any, names: list[str]) -> None:
    labels = np.array(names)[case["labels"]]
    gem = GEM().fit(case["id"], labels)
    report = gather({"gem": gem}, id=case["id"], labels=labels, map="pca")
    assert sorted(report.as_dict()["map"]["classes"]) == sorted(names)
    assert "<html" in report.to_html()


def test_a_target_that_cannot_be_written_is_refused_before_the_work(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be written"):
        write(Path("/proc/r.html"), [], id=[[0.0]])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"detectors": []}, "pass at least one fitted detector"),
        ({"map_rows": 0}, "map_rows is 0"),
        ({"map_rows": 100_000}, "map_rows is 100000; pass a whole number from 1 to 4,000"),
        ({"images": {"nowhere": []}}, "images are given for 'nowhere', but there are only 'id', 'near', 'far'"),
        ({"ood": {"mean": [[0.0] * 5]}}, "rename it"),
        ({"ood": {"in-distribution": [[0.0] * 5]}}, "rename it"),
        ({"ood": [[0.0] * 5]}, "ood is a list"),
        ({"tpr": 1.5}, "tpr"),
        ({"map": "tsne"}, "map"),
        ({"id": np.full((3, 5), np.nan), "labels": None}, "row 0"),
    ],
)
def test_bad_input_is_refused_by_name(case: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        gather(**(case | options))


def test_nothing_is_written_where_the_report_fails(case: Any, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="row 0"):
        write(tmp_path / "r.html", **(case | {"id": np.full((3, 5), np.nan), "labels": None}))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "message"), [("r.pdf", "suffix .html"), ("no/r.html", "does not exist"), (".", "suffix .html")]
)
def test_a_path_that_cannot_be_written_is_refused_before_the_work(tmp_path: Path, name: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        write(tmp_path / name, [], id=[[0.0]])


def test_without_the_extra_the_remedy_is_named(case: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "plotly", None)
    with pytest.raises(MissingExtraError, match=r'pip install "gem-ood\[report\]"'):
        gather(**case)


def test_a_report_is_a_value_with_all_its_parts(case: Any) -> None:
    report = gather(**case, command="gem-ood evaluate ...", notes=["left out: mos"])
    assert isinstance(report, Report)
    assert report.run.command == "gem-ood evaluate ..."
    assert "Left out: mos." in report.caveats
    assert report.run.versions["numpy"] == np.__version__
    assert report.detectors["gem"].kept is not None
    assert report.detectors["gem"].kept.own_realised == report.comparison.detectors["gem"].id_kept
