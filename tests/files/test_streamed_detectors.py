"""Detectors on files answer as they do on arrays."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gem_ood import GEM, MSP, Combine
from gem_ood.comparison import compare
from gem_ood.errors import InputError
from gem_ood.files import calibrate_on_file, open_features, reading, score_file, streaming
from gem_ood.metrics import evaluate

rng = np.random.default_rng(0)
MEANS = 4.0 * rng.normal(size=(3, 6))


def draw(n_rows: int) -> tuple[Any, Any]:
    labels = rng.integers(0, 3, n_rows)
    return MEANS[labels] + rng.normal(size=(n_rows, 6)), labels


TRAIN, HELD_OUT, TEST = draw(600), draw(400), draw(300)
NOISE = 5.0 * rng.normal(size=(200, 6))


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "BATCH_BYTES", 1)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, (features, labels) in {"train": TRAIN, "held_out": HELD_OUT, "test": TEST}.items():
        np.savez(tmp_path / f"{name}.npz", features=features, labels=labels)
    np.save(tmp_path / "noise.npy", NOISE)
    return tmp_path


@pytest.mark.parametrize("covariance", ["empirical", "oas", "ledoit-wolf", 0.1])
def test_a_file_fits_and_scores_as_its_arrays_do(covariance: Any, folder: Path) -> None:
    streamed = GEM(covariance=covariance).fit_batches(open_features(folder / "train.npz"))
    whole = GEM(covariance=covariance).fit(*TRAIN)
    calibrate_on_file(streamed, open_features(folder / "held_out.npz"), tpr=0.9)
    whole.calibrate(HELD_OUT[0], tpr=0.9)
    parts = list(score_file(streamed, open_features(folder / "test.npz")))
    expected = whole.verdicts(TEST[0])
    np.testing.assert_allclose(np.concatenate([part.score for part in parts]), expected.score, rtol=1e-9)
    np.testing.assert_array_equal(np.concatenate([part.is_ood for part in parts]), expected.is_ood)
    np.testing.assert_array_equal(np.concatenate([part.nearest_class for part in parts]), expected.nearest_class)


def test_of_very_many_rows_the_same_threshold_and_ranked_scores_are_kept(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streaming, "KEPT_SCORES", 1999)
    many = draw(2000)[0]
    np.save(folder / "many.npy", many)
    ranked, whole = GEM().fit(*TRAIN), GEM().fit(*TRAIN)
    for options in ({"tpr": 0.95}, {"tpr": 0.3}, {"tpr": 0.9, "confidence": 0.99}):
        calibrate_on_file(ranked, open_features(folder / "many.npy"), **options)
        whole.calibrate(many, **options)
        assert ranked.calibration_ranks_ is not None
        assert len(ranked.calibration_scores_) < len(many)
        assert ranked.threshold_.order == whole.threshold_.order
        assert ranked.threshold_.value == pytest.approx(whole.threshold_.value, rel=1e-12)
    ratios = ranked.p_values(TEST[0]) / whole.p_values(TEST[0])
    assert ratios.min() >= 1.0 - 1e-12
    assert 1.0 < ratios.max() <= 1.001 + 1e-12

    joined = Combine([GEM(), GEM(normalize=True)]).fit(*TRAIN)
    assert calibrate_on_file(joined, open_features(folder / "many.npy")).calibration_ranks_ is None


def test_a_comparison_holds_the_metrics_of_each_pair(folder: Path) -> None:
    detectors = {
        "gem": GEM().fit(*TRAIN).calibrate(HELD_OUT[0]),
        "msp": MSP().fit(*TRAIN),
    }
    comparison = compare(
        detectors, id=open_features(folder / "test.npz"), ood={"noise": open_features(folder / "noise.npy")}, tpr=0.9
    )
    assert (comparison.n_id, comparison.n_ood) == (300, {"noise": 200})
    for name, detector in detectors.items():
        expected = evaluate(detector.score_samples(TEST[0]), detector.score_samples(NOISE), tpr=0.9)
        found = comparison.detectors[name].evaluations["noise"]
        assert found.threshold == pytest.approx(expected.threshold, rel=1e-12)  # rows come in other batches
        assert replace(found, threshold=expected.threshold) == expected
        assert comparison.detectors[name].mean("auroc") == expected.auroc
    gem, msp = comparison.detectors["gem"], comparison.detectors["msp"]
    assert gem.id_kept == pytest.approx(1.0 - detectors["gem"].is_ood(TEST[0]).mean())
    assert gem.flagged == {"noise": pytest.approx(detectors["gem"].is_ood(NOISE).mean())}
    assert gem.id_error == pytest.approx(np.mean(detectors["gem"].verdicts(TEST[0]).nearest_class != TEST[1]))
    assert msp.id_kept is None
    assert msp.flagged is None


def test_words_are_not_compared_with_column_numbers(folder: Path) -> None:
    np.savez(folder / "words.npz", features=TEST[0], labels=np.array(["a", "b", "c"])[TEST[1]])
    noise = {"noise": open_features(folder / "noise.npy")}
    detectors = {"msp": MSP().fit(TRAIN[0]), "one class": GEM().fit(TRAIN[0])}
    comparison = compare(detectors, id=open_features(folder / "words.npz"), ood=noise)
    assert comparison.detectors["msp"].id_error is None
    assert comparison.detectors["one class"].id_error is None


def test_rows_of_another_width_are_refused_with_the_file_named(folder: Path) -> None:
    np.save(folder / "narrow.npy", NOISE[:, :4])
    detector = GEM().fit(*TRAIN)
    narrow = open_features(folder / "narrow.npy")
    message = r"narrow.npy has 4 features but the GEM detector was fitted on 6"
    with pytest.raises(InputError, match=message):
        list(score_file(detector, narrow))
    with pytest.raises(InputError, match=message):
        calibrate_on_file(detector, narrow)
    with pytest.raises(InputError, match=r"narrow.npy has 4 features but the GEM detector 'mine' was fitted on 6"):
        compare({"mine": detector}, id=open_features(folder / "test.npz"), ood={"narrow": narrow})
    with pytest.raises(InputError, match="nothing to compare"):
        compare({}, id=narrow, ood={})


def test_a_score_of_logits_that_was_never_fitted_takes_a_file_of_any_width(folder: Path) -> None:
    parts = score_file(MSP(), open_features(folder / "noise.npy"))
    np.testing.assert_allclose(np.concatenate([part.score for part in parts]), MSP().score_samples(NOISE), rtol=1e-12)
    logits = MSP().fit(TRAIN[0][:, :3])
    with pytest.raises(
        InputError, match=r"noise.npy has 6 features but the MSP detector was fitted on 3; it reads log"
    ):
        list(score_file(logits, open_features(folder / "noise.npy")))
