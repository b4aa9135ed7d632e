"""The demonstration behind `gem-ood demo`: a real classifier, real data that ships with scikit-learn, every detector.

A small network learns eight of the ten handwritten digits. The two digits it never saw, patches of scikit-learn's
two photographs, and corrupted test digits are out of its distribution.
"""

import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gem_ood.comparison import Comparison, compare
from gem_ood.detectors import GEM, KNN, MSP, Detector, Energy, Head, Mahalanobis, MaxLogit, load, recommended
from gem_ood.errors import RankWarning
from gem_ood.metrics import error_rate
from gem_ood.scores import softmax

__all__ = ["Demonstration", "DetectorResult", "run"]

HELD_OUT_DIGITS = (3, 8)
HIDDEN_UNITS = (64, 32)
PATCHES_PER_PHOTOGRAPH = 250
LARGEST_PIXEL = 16.0  # scikit-learn's digits count dark pixels in 4 × 4 blocks
SIDE = 8


@dataclass(frozen=True)
class DetectorResult:
    """One line of the main table: means over the out-of-distribution sets, and the FPR95 of each."""

    name: str
    fpr: float
    auroc: float
    aupr: float
    fpr_by_set: Mapping[str, float]


@dataclass(frozen=True)
class Demonstration:
    """Everything the demonstration found."""

    description: str
    known: str
    n_train: int
    n_calibration: int
    n_test: int
    id_error: float
    ood_rows: Mapping[str, int]
    notes: tuple[str, ...]
    detectors: tuple[DetectorResult, ...]
    guarantee: str
    kept: float
    flagged: Mapping[str, float]
    path: str
    is_identical: bool
    example: str
    example_prediction: str
    example_confidence: float
    explanation: str

    def as_dict(self) -> dict[str, Any]:
        """Return the same as plain values."""
        return asdict(self)


@dataclass(frozen=True, eq=False)
class _Classifier:
    """A trained network cut before its last layer."""

    layers: list[tuple[NDArray[np.float64], NDArray[np.float64]]]
    head: Head

    @classmethod
    def train(cls, images: NDArray[np.float64], labels: NDArray[Any], seed: int) -> "_Classifier":
        from sklearn.neural_network import MLPClassifier

        network = MLPClassifier(HIDDEN_UNITS, alpha=1e-3, max_iter=300, tol=1e-3, random_state=seed)
        network.fit(images, labels)
        layers = list(zip(network.coefs_, network.intercepts_, strict=True))
        weight, bias = layers.pop()
        return cls(layers, Head(weight.T, bias))

    def features(self, images: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the activations before the last layer."""
        for weight, bias in self.layers:
            images = np.maximum(images @ weight + bias, 0.0)
        return images


def run(*, path: str | Path, seed: int = 0) -> Demonstration:
    """Train, fit, calibrate, compare, save, load and explain; the detector is saved at `path`."""
    from sklearn.datasets import load_digits

    generator = np.random.default_rng(seed)
    images, digits = load_digits(return_X_y=True)
    images = images / LARGEST_PIXEL
    is_known = ~np.isin(digits, HELD_OUT_DIGITS)
    known = generator.permutation(np.flatnonzero(is_known))
    train, calibration, test = np.split(known, [len(known) // 2, 3 * len(known) // 4])
    classifier = _Classifier.train(images[train], digits[train], seed)
    sets, notes = _ood_sets(images[test], images[~is_known], generator)
    features = {name: classifier.features(rows) for name, rows in sets.items()}
    test_features = classifier.features(images[test])
    train_features, labels = classifier.features(images[train]), digits[train]

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", RankWarning)  # units that never fire are ordinary: a note, not an alarm
        detectors = {name: kind.fit(train_features, labels) for name, kind in _detectors(classifier.head).items()}
    notes += tuple(dict.fromkeys(str(warning.message) for warning in caught))
    for detector in detectors.values():
        detector.calibrate(classifier.features(images[calibration]), tpr=0.95)
    results = _results(compare(detectors, id=test_features, ood=features))
    gem = detectors["GEM"]
    gem.save(path)
    loaded = load(path)
    everything = np.vstack([test_features, *features.values()])
    logits = classifier.head.logits(test_features)
    classes = np.unique(labels)

    example = _most_confident_mistake(gem, features["unseen digits"], classifier.head)
    confidence = softmax(classifier.head.logits(features["unseen digits"][example : example + 1]))[0]
    return Demonstration(
        description=f"{' + '.join(map(str, HIDDEN_UNITS))} hidden units",
        known=", ".join(map(str, classes)),
        n_train=len(train),
        n_calibration=len(calibration),
        n_test=len(test),
        id_error=error_rate(digits[test], classes[logits.argmax(axis=1)]),
        ood_rows={name: len(rows) for name, rows in sets.items()},
        notes=notes,
        detectors=results,
        guarantee=loaded.threshold_.guarantee,
        kept=float(np.mean(~loaded.is_ood(test_features))),
        flagged={name: float(np.mean(loaded.is_ood(rows))) for name, rows in features.items()},
        path=str(path),
        is_identical=bool(np.array_equal(loaded.score_samples(everything), gem.score_samples(everything))),
        example=f"handwritten {digits[~is_known][example]}",
        example_prediction=str(classes[confidence.argmax()]),
        example_confidence=float(confidence.max()),
        explanation=str(loaded.explain(features["unseen digits"][example : example + 1])),
    )


def _detectors(head: Head) -> dict[str, Detector]:
    """Return the paper's five (ODIN at its own temperature, without input noise), some others, and the all-rounder."""
    return {
        "MSP": MSP(head=head),
        "ODIN (no noise)": MSP(head=head, temperature=1000.0),
        "MaxLogit": MaxLogit(head=head),
        "Energy": Energy(head=head),
        "Mahalanobis": Mahalanobis(),
        "GEM": GEM(),
        "GEM, unit length": GEM(normalize=True),
        "KNN": KNN(k=10),
        "All-rounder": recommended(head=head),
    }


def _results(comparison: Comparison) -> tuple[DetectorResult, ...]:
    return tuple(
        DetectorResult(
            name=name,
            fpr=one.mean("fpr"),
            auroc=one.mean("auroc"),
            aupr=one.mean("aupr_in"),
            fpr_by_set={key: evaluation.fpr for key, evaluation in one.evaluations.items()},
        )
        for name, one in comparison.detectors.items()
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


def _most_confident_mistake(detector: Detector, features: NDArray[np.float64], head: Head) -> int:
    """Return the flagged row that the classifier is surest about."""
    confidence = softmax(head.logits(features)).max(axis=1)
    return int(np.argmax(np.where(detector.is_ood(features), confidence, 0.0)))
