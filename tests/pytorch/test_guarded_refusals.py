"""OODModel and what it shows: bad input refused in one line, a bar on a terminal, and nothing printed."""

import io
import sys
import threading

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from networks import (  # noqa: E402
    as_detector,
    blob_batches,
    blob_loader,
    blobs,
    mlp,
)
from rich.live import _RefreshThread  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils.data import TensorDataset  # noqa: E402

from gem_ood import GEM, MSP, Head, progress  # noqa: E402
from gem_ood.errors import InputError, NotFittedError  # noqa: E402
from gem_ood.torch import OODModel  # noqa: E402

TRAIN, HELD_OUT = blob_batches(300, seed=1), blob_batches(200, seed=2)
INPUTS = blobs(30, seed=3)[0]


@pytest.fixture
def model():
    return mlp()


@pytest.fixture
def guarded(model):
    return OODModel(model, GEM()).fit(TRAIN).calibrate(HELD_OUT)


# Bad input


def fitted():
    return as_detector(mlp(), TRAIN, HELD_OUT)


class Flattens(nn.Module):
    """Scores every step of a sequence by itself, as rows of one long batch, and averages the logits."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(4, 3)

    def forward(self, steps):
        return self.head(steps.flatten(0, 1)).unflatten(0, steps.shape[:2]).mean(1)


@pytest.mark.parametrize(
    ("attempt", "message"),
    [
        (lambda: OODModel(lambda inputs: inputs, GEM()), r"model is a function; pass a torch\.nn\.Module"),
        (lambda: OODModel(mlp(), "gem"), r"detector is a str; pass a detector such as GEM\(\)"),
        (lambda: OODModel(mlp(), GEM), r"detector is a ABCMeta; pass a detector such as GEM\(\)"),
        (lambda: OODModel(mlp(), GEM(), dtype=torch.float16), "dtype is torch.float16; pass torch.float64"),
        (lambda: OODModel(mlp(), GEM(), input_noise=-1.0), "input_noise is -1.0; pass a number of at least 0"),
        (
            lambda: OODModel(mlp(width=7), fitted(), "5"),
            "has 7 features in layer '5' but this GEM .* to 6",
        ),
        (
            lambda: OODModel(mlp(width=7), fitted())(INPUTS),
            "has 7 features in layer '5' but this GEM .* 6",
        ),
        (
            lambda: OODModel(mlp(), fitted(), "2")(INPUTS),
            "has 8 features in layer '2' but this GEM .* 6",
        ),
        (lambda: OODModel(mlp(), MSP().fit(np.eye(4)))(INPUTS), "has 3 logits but this MSP was fitted to 4"),
        (lambda: OODModel(mlp(), MSP(head=Head(np.ones((3, 5)))))(INPUTS), "has 6 features .* this MSP .* to 5"),
        (lambda: OODModel(mlp(), GEM(calibration=0.1)).fit(TRAIN), "calibration holds rows back from fit"),
        (lambda: OODModel(mlp(), GEM(covariance="none")).fit(TRAIN), "covariance is 'none'"),
        (
            lambda: OODModel(Flattens(), GEM()).fit([torch.zeros(6, 5, 4)], one_class=True),
            "gave 6 rows of logits but 30 rows of features in layer 'head', .*; pass pool= a function .*, or layer=",
        ),
    ],
    ids=[
        "a function for a model",
        "a name for a detector",
        "a class for a detector",
        "half precision",
        "negative noise",
        "wrong width at construction",
        "wrong width at the first pass",
        "wrong width of another layer",
        "wrong number of logits",
        "wrong width of a head",
        "hold-out in fit",
        "unknown covariance",
        "more rows of features than of logits",
    ],
)
def test_bad_input_is_refused_in_one_line(attempt, message):
    with pytest.raises(InputError, match=message) as caught:
        attempt()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", [GEM, MSP])
@pytest.mark.parametrize(
    ("loader", "message"),
    [
        (5, "loader is a int; pass a DataLoader"),
        (INPUTS, "loader is a Tensor; pass a DataLoader"),
        ({"input": INPUTS}, "loader is a dict; pass a DataLoader"),
        (TensorDataset(INPUTS), "loader is a TensorDataset, which yields single inputs; pass DataLoader"),
    ],
    ids=["a number", "a tensor", "a mapping", "a data set"],
)
def test_what_is_no_loader_is_refused_by_every_verb(kind, loader, message):
    guarded = OODModel(mlp(), kind()).fit(TRAIN)
    for verb in (guarded.fit, guarded.calibrate, guarded.score_samples, guarded.verdicts, guarded.features):
        with pytest.raises(InputError, match=message):
            verb(loader)


def test_rows_of_features_pooled_to_one_per_input_are_taken():
    def per_input(rows):
        return rows.unflatten(0, (-1, 5)).mean(1)

    steps = torch.randn(40, 5, 4, generator=torch.Generator().manual_seed(0))
    guarded = OODModel(Flattens(), GEM(), pool=per_input).fit([steps], one_class=True)
    assert guarded(steps[:6]).score.shape == (6,)


# Progress


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize(
    ("stream", "is_wanted"),
    [(Terminal, True), (Terminal, False), (io.StringIO, True)],
    ids=["terminal", "terminal, not wanted", "pipe"],
)
def test_a_bar_appears_on_a_terminal_only(monkeypatch, capsys, stream, is_wanted):
    monkeypatch.setattr(progress, "PATIENCE_SECONDS", -1.0)
    monkeypatch.setattr(sys, "stderr", stream())
    monkeypatch.setenv("TERM", "xterm")
    appears = stream is Terminal and is_wanted
    guarded = OODModel(mlp(), GEM()).fit(blob_loader(), progress=is_wanted)
    assert ("fit" in sys.stderr.getvalue()) is appears
    assert ("/300" in sys.stderr.getvalue()) is appears  # the loader tells how many rows there are
    guarded.calibrate(HELD_OUT, progress=is_wanted)
    assert ("calibrate" in sys.stderr.getvalue()) is appears
    assert capsys.readouterr().out == ""


def test_a_fit_that_fails_takes_its_bar_away(monkeypatch):
    monkeypatch.setattr(progress, "PATIENCE_SECONDS", -1.0)
    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setenv("TERM", "xterm")
    with pytest.raises(InputError, match="labels") as caught:
        OODModel(mlp(), GEM()).fit([*blob_batches(2000, 1000), (INPUTS, torch.rand(30))] * 2)
    assert "fit" in sys.stderr.getvalue()
    assert caught.value.__traceback__ is not None  # it holds the frames of the pass, which must not hold the bar
    for thread in threading.enumerate():
        if isinstance(thread, _RefreshThread):
            thread.join(10.0)
            assert not thread.is_alive()


def test_the_library_prints_nothing(model, capfd):
    guarded = OODModel(model, GEM()).fit(TRAIN).calibrate(HELD_OUT)
    guarded(INPUTS)
    guarded.verdicts(HELD_OUT)
    assert capfd.readouterr() == ("", "")
    assert "layer='5'" in repr(guarded)


def test_labels_that_are_numbers_here_and_text_there_are_refused():
    (inputs, labels), *_ = TRAIN
    with pytest.raises(InputError, match="labels are numbers in one batch and text in another"):
        OODModel(mlp(), GEM()).fit([(inputs, labels), (inputs, [f"class {label}" for label in labels])])


def test_a_guard_that_is_not_fitted_asks_for_a_loader():
    with pytest.raises(NotFittedError, match=r"this OODModel is not fitted yet; call fit\(train_loader\) first"):
        OODModel(mlp(), GEM())(INPUTS)


def test_path_and_model_in_the_wrong_order_are_told(tmp_path):
    with pytest.raises(InputError, match=r"path is a Sequential; pass load\(model, path\), the model first"):
        OODModel.load(tmp_path / "guard.safetensors", mlp())
