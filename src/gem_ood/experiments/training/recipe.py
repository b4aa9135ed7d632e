"""The recipe of training, what is told while it goes on, and what comes of it."""

import math
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from gem_ood.errors import InputError
from gem_ood.experiments.networks.wide_resnet import check_shape

__all__ = ["EpochResult", "Progress", "TrainingOptions", "TrainingResult", "learning_rate"]


@dataclass(frozen=True, kw_only=True)
class TrainingOptions:
    """The recipe by which a WideResNet is trained; the defaults are those of the paper's networks (P47).

    Stochastic gradient descent on the cross-entropy; the learning rate falls from step to step along half a cosine.

    Attributes:
        depth: Of the network, 6n + 4.
        width: How many times as many channels as the narrow network has.
        dropout: The share of activations that is set to zero within a block.
        n_classes: How many logits; one more than the largest training label unless given.
        epochs: How often every image is seen.
        batch_size: How many images a step sees; the last of an epoch may see fewer.
        learning_rate: At the first step.
        final_learning_rate: What the rate falls towards; a rate that begins below it stays as it is.
        momentum: The share of the last direction that the next one keeps.
        nesterov: Whether the gradient counts as of where the momentum leads; without momentum it changes nothing.
        weight_decay: How strongly all weights are drawn to zero.
        padding: By how many pixels, at most, an image is moved in each direction; what comes in is black.
        flip: Whether half of the images are mirrored.
        seed: The same seed gives the same weights, on the same machine with as many threads.
        device: "auto" (a GPU if there is one), "cpu", "cuda", or "cuda:1" for the second GPU.
        mixed_precision: Whether a GPU multiplies in bfloat16, or float16 where it lacks that; a CPU never does.

    >>> TrainingOptions().epochs
    100
    >>> TrainingOptions(batch_size=0)
    Traceback (most recent call last):
        ...
    gem_ood.errors.InputError: batch_size is 0; pass a whole number of at least 1
    """

    depth: int = 40
    width: int = 2
    dropout: float = 0.3
    n_classes: int | None = None
    epochs: int = 100
    batch_size: int = 128
    learning_rate: float = 0.1
    final_learning_rate: float = 1e-6
    momentum: float = 0.9
    nesterov: bool = True
    weight_decay: float = 5e-4
    padding: int = 4
    flip: bool = True
    seed: int = 0
    device: str = "auto"
    mixed_precision: bool = True

    def __post_init__(self) -> None:
        check_shape(self.depth, self.width, dropout=self.dropout, n_classes=self.n_classes or 1)
        least = {"epochs": 1, "batch_size": 1, "padding": 0, "seed": 0, "n_classes": 1}
        for name, low in least.items():
            value = getattr(self, name)
            if name == "n_classes" and value is None:
                continue
            if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < low:
                raise InputError(f"{name} is {value!r}; pass a whole number of at least {low}")
        for name in ("learning_rate", "final_learning_rate", "momentum", "weight_decay"):
            value = getattr(self, name)
            is_number = isinstance(value, int | float | np.floating) and not isinstance(value, bool)
            if not is_number or not 0.0 <= value < math.inf:
                raise InputError(f"{name} is {value!r}; pass a finite number of at least 0")
        if self.learning_rate <= 0.0:
            raise InputError(f"learning_rate is {self.learning_rate:g}; pass a rate above 0")
        if self.momentum >= 1.0:
            raise InputError(f"momentum is {self.momentum:g}; pass one in [0, 1)")
        for name in ("nesterov", "flip", "mixed_precision"):
            if not isinstance(getattr(self, name), bool):
                raise InputError(f"{name} is {getattr(self, name)!r}; pass True or False")
        kind, _, number = str(self.device).partition(":")
        if kind not in ("auto", "cpu", "cuda") or (kind != "cuda" and ":" in self.device):
            raise InputError(f"device is {self.device!r}; pass 'auto', 'cpu', 'cuda' or 'cuda:1', say")
        if ":" in self.device and not number.isdecimal():
            raise InputError(f"device is {self.device!r}; pass the number of a GPU, such as 'cuda:0'")


def learning_rate(options: TrainingOptions, step: int, n_steps: int) -> float:
    """Return the learning rate of a step, counted from 0: half a cosine from the first rate towards the final one.

    >>> [round(learning_rate(TrainingOptions(), step, 100), 4) for step in (0, 50, 99)]
    [0.1, 0.05, 0.0]
    """
    high = options.learning_rate
    low = min(high, options.final_learning_rate)
    return low + 0.5 * (high - low) * (1.0 + math.cos(math.pi * step / n_steps))


@dataclass(frozen=True)
class Progress:
    """How far training is, and how well it does.

    Attributes:
        epoch: The one that goes on, from 1.
        n_epochs: How many there are.
        step: How many steps are done in all.
        n_steps: How many there are.
        n_images: How many images this epoch has seen.
        n_epoch_images: How many it will have seen.
        loss: The mean cross-entropy of the images of this epoch so far.
        accuracy: The share of them that was classified right, augmented and before the step that learned from them.
        learning_rate: Of the last step.
        images_per_second: Of this epoch, since the program started.
        test_accuracy: After the last epoch that is complete, if there is a test set and such an epoch.
    """

    epoch: int
    n_epochs: int
    step: int
    n_steps: int
    n_images: int
    n_epoch_images: int
    loss: float
    accuracy: float
    learning_rate: float
    images_per_second: float
    test_accuracy: float | None


@dataclass(frozen=True)
class EpochResult:
    """What came of one epoch.

    Attributes:
        epoch: From 1.
        loss: The mean cross-entropy of its images.
        accuracy: The share of them that was classified right, augmented and before the step that learned from them.
        test_accuracy: The share of the test images that is classified right after it; None without a test set.
        learning_rate: Of its last step.
        seconds: How long it took, its test included.
    """

    epoch: int
    loss: float
    accuracy: float
    test_accuracy: float | None
    learning_rate: float
    seconds: float


@dataclass(frozen=True)
class TrainingResult:
    """What came of a training.

    Attributes:
        path: The file of the weights.
        options: The recipe, with the device and the number of classes that it came to.
        history: What came of each epoch.
        n_parameters: How many numbers were learned.
        resumed_from: The step of the checkpoint that this call went on from; None if it began anew.
    """

    path: Path
    options: TrainingOptions
    history: tuple[EpochResult, ...] = field(repr=False)
    n_parameters: int
    resumed_from: int | None

    @property
    def test_accuracy(self) -> float | None:
        """The share of the test images that the trained network classifies right; None without a test set."""
        return self.history[-1].test_accuracy

    def as_dict(self) -> dict[str, Any]:
        """Return everything as plain values."""
        return {
            "weights": str(self.path),
            "options": asdict(self.options),
            "epochs": [asdict(epoch) for epoch in self.history],
            "test_accuracy": self.test_accuracy,
            "n_parameters": self.n_parameters,
            "resumed_from": self.resumed_from,
        }
