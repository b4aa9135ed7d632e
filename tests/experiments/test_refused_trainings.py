"""Trainings that are refused before any work: recipes, sets and places that cannot be."""

import math

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from made_images import TINY, coloured  # noqa: E402

from gem_ood.errors import InputError  # noqa: E402
from gem_ood.experiments.image_sets import ImageSet  # noqa: E402
from gem_ood.experiments.networks.devices import resolved_device  # noqa: E402
from gem_ood.experiments.training import train_on  # noqa: E402
from gem_ood.experiments.training.running import TrainingOptions, train  # noqa: E402


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"depth": 12}, "depth must be 6n"),
        ({"width": 0}, "width must be a whole number"),
        ({"dropout": 1.0}, "dropout must lie"),
        ({"epochs": 0}, "epochs is 0; pass a whole number of at least 1"),
        ({"epochs": 1.5}, "epochs is 1.5; pass a whole number"),
        ({"batch_size": True}, "batch_size is True; pass a whole number"),
        ({"padding": -1}, "padding is -1; pass a whole number of at least 0"),
        ({"seed": -1}, "seed is -1; pass a whole number of at least 0"),
        ({"n_classes": 0}, "n_classes is 0; pass a whole number of at least 1"),
        ({"learning_rate": math.nan}, "learning_rate is nan; pass a finite number"),
        ({"learning_rate": 0.0}, "learning_rate is 0; pass a rate above 0"),
        ({"weight_decay": -1.0}, "weight_decay is -1.0; pass a finite number of at least 0"),
        ({"weight_decay": "5e-4"}, "weight_decay is '5e-4'; pass a finite number"),
        ({"momentum": 1.0}, r"momentum is 1; pass one in \[0, 1\)"),
        ({"flip": 1}, "flip is 1; pass True or False"),
        ({"device": "tpu"}, "device is 'tpu'; pass 'auto', 'cpu', 'cuda'"),
        ({"device": "cpu:0"}, "device is 'cpu:0'; pass"),
        ({"device": "cuda:one"}, "device is 'cuda:one'; pass the number of a GPU"),
    ],
)
def test_impossible_recipes_are_refused(options, message):
    with pytest.raises(InputError, match=message):
        TrainingOptions(**options)


def test_a_gpu_that_is_not_there_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(InputError, match=r"device is 'cuda:7', which cannot be used here .*; pass 'auto' or 'cpu'"):
        train(coloured(8), None, tmp_path / "w.pt", options=TrainingOptions(**TINY | {"device": "cuda:7"}))
    assert resolved_device("auto") == "cpu"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert [resolved_device(name) for name in ("auto", "cpu")] == ["cuda", "cpu"]


@pytest.mark.parametrize(
    ("images", "test_images", "message"),
    [
        (ImageSet("bare", coloured(4).images), None, "'bare' has no labels; pass images with the class of each"),
        (coloured(8), ImageSet("bare", coloured(4).images), "'bare' has no labels"),
        (coloured(8), coloured(9, n_classes=5, name="five"), "'five' has a label 4 but the network has 3 classes"),
        (
            ImageSet("large", np.zeros((2, 64, 64, 3), np.uint8), [0, 1]),
            None,
            "'large' has images of 64×64 pixels but the network takes sides from 29 to 60",
        ),
    ],
    ids=["no labels", "no test labels", "more classes", "large"],
)
def test_sets_that_do_not_fit_are_refused_before_any_work(images, test_images, message, tmp_path):
    with pytest.raises(InputError, match=message):
        train(images, test_images, tmp_path / "w.pt", options=TrainingOptions(**TINY))
    assert list(tmp_path.iterdir()) == []


def test_what_is_no_image_set_or_recipe_is_refused(tmp_path):
    images, out = coloured(8), tmp_path / "w.pt"
    pixels = torch.utils.data.TensorDataset(torch.zeros(8, 3, 32, 32), torch.zeros(8))
    with pytest.raises(InputError, match=r"train_set is a TensorDataset; pass ImageSet\(name, images, labels\)"):
        train(pixels, None, out)
    with pytest.raises(InputError, match="train_set is a NoneType; pass ImageSet"):
        train(None, None, out)
    with pytest.raises(InputError, match="test_set is a ndarray; pass ImageSet"):
        train(images, images.images, out)
    for options in ({"epochs": 1}, {}, 3):
        message = rf"options is a {type(options).__name__}; pass TrainingOptions\(epochs=..., ...\) or leave it out"
        with pytest.raises(InputError, match=message):
            train(images, None, out, options=options)
        with pytest.raises(InputError, match=message):
            train_on("cifar10", out, data=tmp_path, options=options)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("w.bin", "has the suffix '.bin' but weights are kept in"),
        ("no/w.pt", "the directory .* does not exist; create it first"),
        (f"{'w' * 240}.pt", "cannot be written"),
    ],
)
def test_places_that_cannot_be_written_are_refused_before_any_work(name, message, tmp_path):
    with pytest.raises(InputError, match=message):
        train(coloured(8), None, tmp_path / name, options=TrainingOptions(**TINY))
    assert list(tmp_path.iterdir()) == []
