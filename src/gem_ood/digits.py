"""A real classifier of handwritten digits, and inputs that it was never trained for, from what scikit-learn ships.

A small network learns eight of the ten digits. The two digits it never saw, patches of scikit-learn's two photographs,
and corrupted test digits are out of its distribution.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gem_ood.detectors import Head

__all__ = ["HELD_OUT_DIGITS", "HIDDEN_UNITS", "SIDE", "Classifier", "DigitsCase", "make_case"]

HELD_OUT_DIGITS = (3, 8)
HIDDEN_UNITS = (64, 32)
PATCHES_PER_PHOTOGRAPH = 250
LARGEST_PIXEL = 16.0  # scikit-learn's digits count dark pixels in 4 × 4 blocks
SIDE = 8

Images = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Classifier:
    """A trained network cut before its last layer."""

    layers: list[tuple[NDArray[np.float64], NDArray[np.float64]]]
    head: Head

    @classmethod
    def train(cls, images: Images, labels: NDArray[Any], seed: int) -> "Classifier":
        """Return a network of rectified units, fitted to these rows."""
        from sklearn.neural_network import MLPClassifier

        network = MLPClassifier(HIDDEN_UNITS, alpha=1e-3, max_iter=300, tol=1e-3, random_state=seed)
        network.fit(images, labels)
        layers = list(zip(network.coefs_, network.intercepts_, strict=True))
        weight, bias = layers.pop()
        return cls(layers, Head(weight.T, bias))

    def features(self, images: Images) -> NDArray[np.float64]:
        """Return the activations before the last layer."""
        for weight, bias in self.layers:
            images = np.maximum(images @ weight + bias, 0.0)
        return images


@dataclass(frozen=True, eq=False)
class DigitsCase:
    """The classifier and its data, as pixels in [0, 1].

    Attributes:
        classifier: Trained on the training rows.
        train: Training rows.
        train_labels: Their digits.
        calibration: Held-out rows of the same digits.
        test: Others.
        test_labels: Their digits.
        ood: Rows that the classifier was never trained for, by name of the set.
        unseen_labels: The digits of the set "unseen digits".
        notes: What is left out, and why.
    """

    classifier: Classifier
    train: Images
    train_labels: NDArray[Any]
    calibration: Images
    test: Images
    test_labels: NDArray[Any]
    ood: Mapping[str, Images]
    unseen_labels: NDArray[Any]
    notes: tuple[str, ...]

    def ood_features(self) -> dict[str, NDArray[np.float64]]:
        """Return the activations of every out-of-distribution set."""
        return {name: self.classifier.features(rows) for name, rows in self.ood.items()}


def make_case(seed: int = 0) -> DigitsCase:
    """Return a classifier trained on half of the digits that it knows, and all other rows."""
    from sklearn.datasets import load_digits

    generator = np.random.default_rng(seed)
    images, digits = load_digits(return_X_y=True)
    images = images / LARGEST_PIXEL
    is_known = ~np.isin(digits, HELD_OUT_DIGITS)
    known = generator.permutation(np.flatnonzero(is_known))
    train, calibration, test = np.split(known, [len(known) // 2, 3 * len(known) // 4])
    classifier = Classifier.train(images[train], digits[train], seed)
    sets, notes = _ood_sets(images[test], images[~is_known], generator)
    return DigitsCase(
        classifier,
        train=images[train],
        train_labels=digits[train],
        calibration=images[calibration],
        test=images[test],
        test_labels=digits[test],
        ood=sets,
        unseen_labels=digits[~is_known],
        notes=notes,
    )


def _ood_sets(
    test: NDArray[np.float64], unseen: NDArray[np.float64], generator: np.random.Generator
) -> tuple[dict[str, NDArray[np.float64]], tuple[str, ...]]:
    shuffled = generator.permuted(test, axis=1)
    noisy = np.clip(test + generator.normal(scale=0.5, size=test.shape), 0.0, 1.0)
    corrupted = {"negatives": 1.0 - test, "shuffled pixels": shuffled, "noise": noisy}
    try:
        return {"unseen digits": unseen, "photographs": _patches(generator), **corrupted}, ()
    except ImportError:
        note = 'photographs are left out: their decoder is not installed; pip install "gem-ood[data]"'
        return {"unseen digits": unseen, **corrupted}, (note,)


def _patches(generator: np.random.Generator) -> NDArray[np.float64]:
    """Return random square patches of scikit-learn's two photographs, in grey, at the size of a digit."""
    from sklearn.datasets import load_sample_images

    rows = []
    for photograph in load_sample_images().images:
        grey = photograph.mean(axis=2) / 255.0
        for _ in range(PATCHES_PER_PHOTOGRAPH):
            zoom = int(generator.integers(2, 9))
            top = int(generator.integers(0, grey.shape[0] - zoom * SIDE))
            left = int(generator.integers(0, grey.shape[1] - zoom * SIDE))
            patch = grey[top : top + zoom * SIDE, left : left + zoom * SIDE]
            rows.append(patch.reshape(SIDE, zoom, SIDE, zoom).mean(axis=(1, 3)).ravel())
    return np.array(rows)
