"""compare: every number is that of the scores by hand, however the rows come."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest

import gem_ood.comparison.rows as rows_module
from gem_ood import GEM, MOS, MSP, Combine, Energy, Head, Mahalanobis
from gem_ood.comparison import Comparison, compare, scoring
from gem_ood.errors import InputError, NotFittedError
from gem_ood.metrics import evaluate

METRICS = ("fpr", "auroc", "aupr_in", "aupr_out", "detection_error")


@pytest.fixture
def case(blobs: Any) -> dict[str, Any]:
    features, labels, held_out, far = blobs
    near = 0.5 * held_out + 0.5 * held_out[::-1]
    head = Head(np.eye(3, 5), np.zeros(3))
    detectors = {
        "gem": GEM().fit(features, labels).calibrate(held_out[:200]),
        "unit": GEM(normalize=True).fit(features, labels),
        "energy": Energy(head=head).fit(features, labels),
    }
    return {
        "detectors": detectors,
        "id": held_out[200:],
        "ood": {"near": near[:150], "far": far},
        "labels": (np.arange(400) % 3)[200:],
    }


@pytest.mark.parametrize("convention", ["paper", "openood"])
@pytest.mark.parametrize("tpr", [0.95, 0.8])
def test_every_number_is_that_of_the_scores_by_hand(case: Any, convention: Any, tpr: float) -> None:
    result = compare(**case, tpr=tpr, convention=convention)
    assert (result.n_id, result.n_ood) == (200, {"near": 150, "far": 100})
    assert (result.tpr, result.convention, list(result.detectors)) == (tpr, convention, list(case["detectors"]))
    for name, detector in case["detectors"].items():
        one = result.detectors[name]
        id_scores = detector.score_samples(case["id"])
        expected = {
            key: evaluate(id_scores, detector.score_samples(rows), tpr=tpr, convention=convention)
            for key, rows in case["ood"].items()
        }
        assert one.evaluations == expected
        for metric in METRICS:
            mean = (getattr(expected["near"], metric) + getattr(expected["far"], metric)) / 2
            assert one.mean(metric) == one.value(metric) == pytest.approx(mean, rel=1e-15)
        assert one.id_error == np.mean(detector.verdicts(case["id"]).nearest_class != case["labels"])
        assert 0.0 < one.seconds_per_10k < 60.0
    gem = case["detectors"]["gem"]
    assert result.detectors["gem"].id_kept == 1.0 - gem.is_ood(case["id"]).mean()
    assert result.detectors["gem"].flagged == {key: gem.is_ood(rows).mean() for key, rows in case["ood"].items()}
    assert result.detectors["unit"].flagged is None
    assert result.detectors["unit"].id_kept is None


def test_intervals_are_those_of_evaluate(case: Any) -> None:
    options: dict[str, Any] = {"intervals": "bootstrap", "n_resamples": 30, "random_state": 3, "confidence": 0.9}
    result = compare(**case, **options)
    detector = case["detectors"]["unit"]
    expected = evaluate(detector.score_samples(case["id"]), detector.score_samples(case["ood"]["near"]), **options)
    assert result.detectors["unit"].evaluations["near"] == expected
    assert (result.intervals, result.confidence) == ("bootstrap", 0.9)
    assert list(compare(**case, intervals="delong").detectors["gem"].evaluations["far"].intervals or {}) == ["auroc"]


def test_the_interval_of_the_mean_draws_the_inside_rows_once_for_all_sets(case: Any) -> None:
    options: dict[str, Any] = {"intervals": "bootstrap", "n_resamples": 25, "random_state": 3, "confidence": 0.8}
    one = compare(**case, **options, tpr=0.9).detectors["unit"]
    detector, rng, means = case["detectors"]["unit"], np.random.default_rng(3), []
    inside = detector.score_samples(case["id"])
    outside = [detector.score_samples(rows) for rows in case["ood"].values()]
    for _ in range(25):
        drawn = rng.choice(inside, len(inside))
        pairs = [evaluate(drawn, rng.choice(scores, len(scores)), tpr=0.9) for scores in outside]
        means.append([sum(getattr(pair, metric) for pair in pairs) / 2 for metric in METRICS])
    low, high = np.quantile(means, [0.1, 0.9], axis=0)
    for place, metric in enumerate(METRICS):
        assert one.interval(metric) == pytest.approx((low[place], high[place]), rel=1e-12)
    assert compare(**case).detectors["unit"].mean_intervals is None
    assert compare(**case, intervals="delong").detectors["unit"].interval("auroc") is None
    alone = compare(case["detectors"], id=case["id"], ood={"far": case["ood"]["far"]}, **options).detectors["unit"]
    assert alone.interval("fpr") == alone.interval("fpr", "far") is not None


def test_long_evaluation_says_how_far_it_is(case: Any) -> None:
    calls: list[tuple[int, int]] = []
    compare(**case, on_evaluated=lambda *call: calls.append(call))
    assert calls == [(done, 1950) for done in (350, 650, 1000, 1300, 1650, 1950)]
    calls.clear()
    options: dict[str, Any] = {"intervals": "bootstrap", "n_resamples": 2}
    compare(**case, **options, on_evaluated=lambda *call: calls.append(call))
    assert calls[-1] == (3900, 3900)


def test_the_first_call_of_a_detector_is_not_timed(blobs: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    features, labels, held_out, far = blobs
    clock = [0.0]
    monkeypatch.setattr(scoring, "time", SimpleNamespace(perf_counter=lambda: clock[0]))

    class Lazy(GEM):
        """A detector that factors when it is first asked."""

        is_ready = False

        def _scores(self, rows: Any, nearest: Any = None) -> Any:
            clock[0] += 1.0 if self.is_ready else 100.0
            self.is_ready = True
            return super()._scores(rows, nearest)

    detectors = {name: Lazy().fit(features, labels) for name in ("one", "two")}
    result = compare(detectors, id=list(Batches(held_out, size=100)), ood={"far": far})
    assert [one.seconds_per_10k for one in result.detectors.values()] == [10_000 * 5 / 500] * 2


def test_the_error_is_not_measured_against_labels_that_are_no_names_of_the_classes(blobs: Any) -> None:
    features, labels, held_out, far = blobs
    from_one = np.arange(400) % 3 + 1
    head = Head(np.eye(3, 5), np.zeros(3))
    detectors = {
        "gem": GEM().fit(features, labels + 1),
        "places": MSP(head=head).fit(features),
        "mos": MOS(head=head, groups=[0, 0, 0]).fit(features),
        "combined": Combine([MOS(head=head, groups=[0, 0, 0]), Energy(head=head)]).fit(features),
    }
    result = compare(detectors, id=held_out, ood={"far": far}, labels=from_one).detectors
    assert result["gem"].id_error == np.mean(detectors["gem"].verdicts(held_out).nearest_class != from_one)
    assert {name: one.id_error for name, one in result.items() if name != "gem"} == dict.fromkeys(
        ("places", "mos", "combined")
    )
    by_place = compare(detectors, id=list(Batches(held_out, from_one - 1)), ood={"far": far}).detectors
    assert by_place["places"].id_error == np.mean(np.argmax(held_out[:, :3], axis=1) != from_one - 1)
    assert by_place["gem"].id_error is by_place["mos"].id_error is by_place["combined"].id_error is None
    late = np.concatenate([from_one[:399] - 1, [7]])
    assert compare(detectors, id=list(Batches(held_out, late)), ood={"far": far}).detectors["places"].id_error is None


def same(first: Comparison, second: Comparison) -> bool:
    """Whether two comparisons agree in everything but time."""

    def untimed(comparison: Comparison) -> dict[str, Any]:
        values = comparison.as_dict()
        for one in values["detectors"].values():
            one.pop("seconds_per_10k")
        return values

    return untimed(first) == untimed(second)


class Batches:
    """A re-iterable, as a data loader is one, that counts how often it was read."""

    def __init__(self, features: Any, labels: Any = None, size: int = 37) -> None:
        self.features, self.labels, self.size, self.n_read = features, labels, size, 0

    def __iter__(self) -> Iterator[Any]:
        self.n_read += 1
        for start in range(0, len(self.features), self.size):
            piece = slice(start, start + self.size)
            yield [self.features[piece], None if self.labels is None else self.labels[piece]]


def test_batches_generators_lists_and_frames_say_what_arrays_say(case: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = compare(**case)
    inside, labels, ood, detectors = case["id"], case["labels"], case["ood"], case["detectors"]
    batches = Batches(inside, labels)
    outside = {name: Batches(rows, np.zeros(len(rows), int)) for name, rows in ood.items()}
    assert same(compare(detectors, id=batches, ood=outside), expected)
    assert [rows.n_read for rows in (batches, *outside.values())] == [1, 1, 1]
    once = {name: iter([(rows[:0], None), (rows, None)]) for name, rows in ood.items()}
    assert same(compare(detectors, id=list(Batches(inside, labels)), ood=once), expected)
    lists = {name: rows.tolist() for name, rows in ood.items()}
    assert same(compare(detectors, id=inside.tolist(), ood=lists, labels=labels.tolist()), expected)
    frames = {"near": pd.DataFrame(ood["near"]), "far": pl.DataFrame(ood["far"])}
    assert same(compare(detectors, id=inside, ood=frames, labels=labels), expected)
    monkeypatch.setattr(rows_module, "BATCH_BYTES", 1)
    assert same(compare(**case), expected)


def test_a_frame_of_other_columns_is_refused(blobs: Any) -> None:
    features, labels, held_out, _ = blobs
    names = list("abcde")
    detectors = {"mine": GEM().fit(pd.DataFrame(features, columns=names), labels)}
    right, wrong = pd.DataFrame(held_out, columns=names), pd.DataFrame(held_out, columns=names[::-1])
    assert compare(detectors, id=right, ood={"same": right}).detectors["mine"].mean("auroc") == 0.5
    with pytest.raises(
        InputError, match=r"ood\['x'\]: the features are 'e', .* but the GEM detector 'mine' was fitted"
    ):
        compare(detectors, id=right, ood={"x": wrong})


def test_a_frame_may_have_columns_of_any_name(blobs: Any) -> None:
    features, labels, held_out, far = blobs
    names = ["n_features", "path", "feature_names", "is_choice_explicit", "shape"]
    fitted = [GEM().fit(pd.DataFrame(features, columns=names), labels)]
    result = compare(fitted, id=pd.DataFrame(held_out, columns=names), ood={"far": pd.DataFrame(far, columns=names)})
    expected = compare([GEM().fit(features, labels)], id=held_out, ood={"far": far})
    assert same(result, expected)
    with pytest.raises(InputError, match="the features are 'shape'"):
        compare(fitted, id=pd.DataFrame(held_out, columns=names[::-1]), ood={"far": far})


def test_a_sequence_is_named_by_the_registry(blobs: Any) -> None:
    features, labels, held_out, far = blobs

    class Mine(Mahalanobis):
        """A detector that is not registered."""

    fitted = [kind.fit(features, labels) for kind in (GEM(), GEM(normalize=True), Mahalanobis(), Mine(), MSP(), MSP())]
    result = compare(fitted, id=held_out, ood={"far": far})
    assert list(result.detectors) == ["GEM()", "GEM(normalize=True)", "mahalanobis", "Mine", "MSP() #5", "MSP() #6"]
    assert result.detectors["MSP() #5"].evaluations == result.detectors["MSP() #6"].evaluations


def test_a_score_of_logits_needs_no_fit_and_words_are_not_compared_with_places(blobs: Any) -> None:
    _, _, held_out, far = blobs
    words = np.array(["a", "b", "c"])[np.arange(400) % 3]
    unfitted = compare([MSP()], id=held_out, ood={"far": far}, labels=words).detectors["msp"]
    assert unfitted.evaluations["far"] == evaluate(MSP().score_samples(held_out), MSP().score_samples(far))
    assert unfitted.id_error is None
    by_place = compare([MSP()], id=held_out, ood={"far": far}, labels=np.argmax(held_out, axis=1))
    assert by_place.detectors["msp"].id_error == 0.0
    one_class = compare([GEM().fit(held_out)], id=held_out, ood={"far": far}, labels=np.zeros(400, int))
    assert one_class.detectors["gem"].id_error is None


def test_infinite_scores_are_ordinary(blobs: Any) -> None:
    features, labels, held_out, _ = blobs
    result = compare([GEM().fit(features, labels)], id=held_out, ood={"huge": np.full((3, 5), 1e200)})
    assert result.detectors["gem"].mean("auroc") == 1.0
    assert '"threshold"' in result.to_json()


def refusals(case: Any) -> dict[str, tuple[dict[str, Any], str]]:
    inside, ood = case["id"], case["ood"]
    with_nan = np.concatenate([ood["near"], [[0.0, np.nan, 0.0, 0.0, 0.0]]])
    return {
        "no detector": ({"detectors": {}}, "nothing to compare; pass at least one detector"),
        "one detector": ({"detectors": case["detectors"]["gem"]}, "detectors is a GEM; pass fitted detectors by name"),
        "no detectors": ({"detectors": ["gem"]}, "detectors holds a str; pass fitted detectors"),
        "another thing": ({"detectors": {"gem": GEM}}, "'gem' is a ABCMeta; pass a fitted detector"),
        "no name": ({"detectors": {" ": case["detectors"]["gem"]}}, "a detector is named ' '"),
        "no set": ({"ood": {}}, "nothing to compare; .* one out-of-distribution set"),
        "nameless sets": ({"ood": [inside]}, "ood is a list; pass the rows of each set by its name"),
        "number as name": ({"ood": {3: inside}}, "set is named 3; name each with a string"),
        "mean": ({"ood": {"mean": inside}}, "is named 'mean', as the mean over all sets is; rename it"),
        "narrow": (
            {"ood": {"near": inside[:, :4]}},
            r"ood\['near'\] has 4 features but the GEM detector 'gem' was fitted on 5; pass the features",
        ),
        "narrow batches": ({"ood": {"x": [(inside[:, :4], None)]}}, r"ood\['x'\] has 4 features but the GEM"),
        "one row": ({"id": inside[0]}, r"id must have two dimensions"),
        "no rows": ({"ood": {"x": [(inside[:0], None)]}}, r"ood\['x'\] holds no rows; pass at least one"),
        "nothing": ({"ood": {"x": []}}, r"ood\['x'\] must have two dimensions"),
        "NaN": ({"ood": {"x": list(Batches(with_nan))}}, r"ood\['x'\] row 150, column 1 is NaN"),
        "few labels": ({"labels": case["labels"][1:]}, "labels has 199 rows but features has 200"),
        "labels twice": ({"id": list(Batches(inside))}, "labels came beside id, whose batches carry their own"),
        "tpr": ({"tpr": 95}, "tpr must lie strictly between 0 and 1"),
        "convention": ({"convention": "mine"}, 'convention must be "paper" or "openood"'),
        "intervals": ({"intervals": "mine"}, 'intervals must be "bootstrap", "delong" or None'),
        "resamples": ({"intervals": "bootstrap", "n_resamples": 0}, "n_resamples must be a whole number"),
    }


def test_bad_input_is_refused_with_the_remedy(case: Any) -> None:
    for name, (change, message) in refusals(case).items():
        with pytest.raises(InputError, match=message):
            pytest.fail(f"{name}: {compare(**{**case, **change})}")


def test_an_unfitted_detector_is_refused_by_name(case: Any) -> None:
    with pytest.raises(NotFittedError, match="the GEM detector 'mine' is not fitted yet; call fit"):
        compare({**case["detectors"], "mine": GEM()}, id=case["id"], ood=case["ood"])


def test_a_detector_of_logits_among_those_of_features_is_told_to_take_a_head(case: Any) -> None:
    logits = MSP().fit(case["id"][:, :3])
    with pytest.raises(
        InputError, match=r"id has 5 features but the MSP detector 'msp' .* 3; it reads logits: give it a"
    ):
        compare({**case["detectors"], "msp": logits}, id=case["id"], ood=case["ood"])
    unfitted = Energy(head=Head(np.eye(3, 4)))
    with pytest.raises(InputError, match="id has 5 features but the Energy detector 'energy' was fitted on 4"):
        compare([unfitted], id=case["id"], ood=case["ood"])


def test_options_are_refused_before_a_row_is_scored(case: Any) -> None:
    rows = Batches(case["id"])
    with pytest.raises(InputError, match="tpr must lie"):
        compare(case["detectors"], id=rows, ood={"same": rows}, tpr=0.0)
    assert rows.n_read == 0
