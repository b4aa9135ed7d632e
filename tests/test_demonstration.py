"""The demonstration: what it must show, with and without the optional decoder of photographs."""

import sys

import numpy as np
import pytest

from gem_ood import load
from gem_ood.demonstration import run
from gem_ood.digits import HELD_OUT_DIGITS


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    return run(path=tmp_path_factory.mktemp("demo") / "demo.safetensors", seed=0)


def test_every_detector_stands_in_the_table_with_every_set(result):
    names = [entry.name for entry in result.detectors]
    papers = ["MSP", "ODIN (no noise)", "MaxLogit", "Energy", "Mahalanobis", "GEM"]
    assert names == [*papers, "GEM, unit length", "KNN", "All-rounder"]
    for entry in result.detectors:
        assert entry.fpr_by_set.keys() == result.ood_rows.keys()
        assert entry.fpr == pytest.approx(np.mean(list(entry.fpr_by_set.values())))
        assert entry.auroc > 0.7


def test_the_classifier_is_a_real_one(result):
    assert 0.0 < result.id_error < 0.1
    assert not set(result.known.split(", ")) & {str(digit) for digit in HELD_OUT_DIGITS}


def test_the_detector_is_saved_loaded_and_keeps_its_promise(result):
    assert result.is_identical
    assert load(result.path).threshold_.n_rows == result.n_calibration
    # 360 calibration and 360 test rows: five standard errors of the share kept are 0.08.
    assert result.kept == pytest.approx(0.95, abs=0.08)


def test_one_verdict_is_explained(result):
    assert result.explanation.startswith("row 0: out-of-distribution")
    assert "at distance" in result.explanation
    assert result.example in {f"handwritten {digit}" for digit in HELD_OUT_DIGITS}


def test_without_the_decoder_the_photographs_are_left_out_and_the_rest_runs(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "PIL", None)
    result = run(path=tmp_path / "demo.safetensors")
    assert "photographs" not in result.ood_rows
    assert any('pip install "gem-ood[data]"' in note for note in result.notes)
    assert len(result.ood_rows) == 4
