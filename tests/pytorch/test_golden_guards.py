"""Guards saved by earlier versions are still read, and judge as they did."""

import sys
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from gem_ood.torch import Ensemble, OODModel  # noqa: E402

GOLDEN = Path(__file__).parents[1] / "golden"
sys.path.append(str(GOLDEN))

from make_guards import model  # noqa: E402

FILES = sorted(GOLDEN.glob("guards-*/*.safetensors"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_guards_of_every_earlier_format_are_still_read(path):
    base = [model(), model(1)] if path.stem == "ensemble" else model()
    guard = (Ensemble if path.stem == "ensemble" else OODModel).load(base, path)
    with np.load(path.parent / "expected.npz", allow_pickle=False) as expected:
        queries, scores, p_values = (expected[key] for key in ("queries", path.stem, f"{path.stem}.p_values"))
    verdicts = guard.verdicts([torch.tensor(queries)])
    np.testing.assert_allclose(verdicts.score, scores, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(verdicts.p_value, p_values, atol=1e-9)
    assert guard.detector.threshold_.confidence == 0.95


def test_there_is_a_golden_guard_of_each_kind():
    assert [path.stem for path in FILES] == ["ensemble", "gem", "grad-norm", "mc-dropout", "odin"]
