"""MSP, MaxLogit and Energy: detectors that score a classifier's logits.

X is features where a `head` is given, and logits where it is not. There is nothing to learn, so they can be
calibrated and used without `fit`; `fit` takes the width of the rows and the class names.
"""

from abc import abstractmethod
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import clone
from sklearn.utils import Tags
from sklearn.utils.validation import validate_data

from gem_ood.detectors.base import Batches, Detector
from gem_ood.detectors.head import Head
from gem_ood.detectors.packing import class_names
from gem_ood.errors import InputError, NotFittedError
from gem_ood.features import as_features, as_labels, chunks, refuse_non_finite, rows_per_chunk
from gem_ood.scores import check_temperature, energy, max_logit, msp, softmax

__all__ = ["MSP", "Energy", "LogitDetector", "MaxLogit"]


class LogitDetector(Detector):
    """What scores of logits share: reading features through the head, in chunks."""

    head: Head | None
    temperature: float = 1.0
    classes_: NDArray[Any]
    _labels: set[Any]

    @abstractmethod
    def _logit_scores(self, logits: NDArray[np.float64]) -> NDArray[np.float64]:
        """Score checked rows."""

    @property
    def reads_logits(self) -> bool:
        """Whether X is logits: so it is without a head."""
        return self.head is None

    def _check_options(self) -> None:
        check_temperature(self.temperature)
        if not isinstance(self.head, Head | None):
            raise InputError(f"head is a {type(self.head).__name__}; pass Head(weight, bias)")

    def _learn(self, batches: Batches, *, n_features: int, classes: NDArray[Any] | None) -> None:
        if self.head is not None and self.head.n_features != n_features:
            raise InputError(
                f"features has {n_features} columns but the head takes {self.head.n_features}; "
                f"pass the features that this head reads"
            )
        n_classes = n_features if self.head is None else self.head.n_classes
        found: set[Any] = set()
        first_row = 0
        for X, labels in batches:
            features = as_features(X)
            for rows in chunks(len(features), rows_per_chunk(n_features)):
                refuse_non_finite(features[rows], first_row=first_row + rows.start)
            first_row += len(features)
            if labels is not None and classes is None:
                found |= set(np.unique(as_labels(labels, len(features))).tolist())
        self._name_logits(sorted(found) if classes is None else classes.tolist(), n_classes)

    def _name_logits(self, names: list[Any], n_classes: int) -> None:
        """Labels name the logits, in their order, only if there is one for each."""
        self._labels = set(names)
        self.classes_ = np.array(names) if len(names) == n_classes else np.arange(n_classes)

    def partial_fit(self, X: ArrayLike, y: ArrayLike | None = None, *, classes: ArrayLike | None = None) -> Self:
        """Take the class names of one more batch; there is nothing else to learn. The threshold is forgotten."""
        self._check_options()
        seen = self._labels if "classes_" in self.__dict__ else set()
        before = self.__dict__.get("classes_")
        with self._all_or_nothing():
            is_first = "n_features_in_" not in self.__dict__
            features = as_features(X) if is_first else self._checked(X)
            validate_data(self, X, reset=is_first, skip_check_array=True)
            self.n_features_in_ = features.shape[1]
            names = None if classes is None else np.asarray(classes)
            self._learn([(features, y)], n_features=self.n_features_in_, classes=names)
            if names is None:
                joined = self._labels | seen
                in_order = [] if before is None else before.tolist()
                self._name_logits(in_order if set(in_order) == joined else sorted(joined), len(self.classes_))
            self._forget_calibration()
        return self

    def merge(self, other: Self) -> Self:
        """Return a new, uncalibrated detector that knows the class names of both."""
        if type(other) is not type(self):
            raise InputError(f"cannot merge a {type(other).__name__} into a {type(self).__name__}; merge equal kinds")
        for part in (self, other):
            if "n_features_in_" not in part.__dict__:
                raise NotFittedError(f"this {type(part).__name__} is not fitted yet; call fit(features, labels) first")
        if other.n_features_in_ != self.n_features_in_:
            raise InputError(
                f"one fit has {self.n_features_in_} features and the other {other.n_features_in_}; merge fits of equal "
                f"features"
            )
        joined: Self = clone(self)
        joined.n_features_in_ = self.n_features_in_
        names = self._labels | other._labels
        in_order = self.classes_.tolist()
        joined._name_logits(in_order if set(in_order) == names else sorted(names), len(self.classes_))
        return joined

    def _require_fit(self) -> None:
        """Nothing is learned, so nothing is missing."""

    def _checked(self, X: ArrayLike) -> NDArray[Any]:
        if "n_features_in_" in self.__dict__:
            return super()._checked(X)
        self._check_options()
        features = as_features(X)
        if self.head is not None and features.shape[1] != self.head.n_features:
            raise InputError(
                f"X has {features.shape[1]} features, but the head of this {type(self).__name__} is expecting "
                f"{self.head.n_features} features as input; pass the features that this head reads"
            )
        return features

    def calibrate(self, X: ArrayLike | None = None, **options: Any) -> Self:
        """Set the threshold from held-out rows, as `Detector.calibrate`; no fit is needed before."""
        if X is not None and "n_features_in_" not in self.__dict__:
            self.fit(X)
        return super().calibrate(X, **options)

    def _class_names(self, n_features: int) -> NDArray[Any]:
        if "classes_" in self.__dict__:
            return self.classes_
        return np.arange(n_features if self.head is None else self.head.n_classes)

    def _logits(self, features: NDArray[Any]) -> NDArray[Any]:
        return features if self.head is None else self.head.logits(features)

    def _scores(self, features: NDArray[Any], nearest: NDArray[np.intp] | None = None) -> NDArray[np.float64]:
        scores = np.empty(len(features))
        width = features.shape[1] + (0 if self.head is None else self.head.n_classes)
        for rows in chunks(len(features), rows_per_chunk(width)):
            refuse_non_finite(features[rows], first_row=rows.start)
            logits = self._logits(features[rows])
            if nearest is not None:
                np.argmax(logits, axis=1, out=nearest[rows])
            scores[rows] = self._logit_scores(logits)
        return scores

    def _details(self, features: NDArray[Any]) -> tuple[NDArray[np.float64], NDArray[np.float64] | None]:
        return softmax(self._logits(features)), None

    def _state(self) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        return {}, {"classes": self.classes_.tolist(), "labels": sorted(self._labels)}

    def _restore(self, tensors: dict[str, NDArray[Any]], values: dict[str, Any]) -> None:
        self.classes_ = class_names(values["classes"])
        if self.head is not None:
            self.n_features_in_ = self.head.n_features
        self._labels = set(values["labels"])

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.requires_fit = False
        return tags


class MSP(LogitDetector):
    """Maximum softmax probability (P3; Hendrycks and Gimpel, 2017), with an optional temperature.

    Args:
        head: The classifier's last layer, where X is features; without it X is logits.
        temperature: Logits are divided by it; ODIN without input noise is temperature 1,000.
        calibration: Share of the rows of `fit` to hold back and calibrate on; None never calibrates in `fit`.
        tpr: The share of in-distribution rows to keep where `calibrate` is not told otherwise.
        random_state: Seed of the hold-out.

    >>> MSP().fit([[9.0, 0.0], [0.0, 9.0]]).score_samples([[0.0, 0.0]])
    array([0.5])
    """

    def __init__(
        self,
        *,
        head: Head | None = None,
        temperature: float = 1.0,
        calibration: float | None = None,
        tpr: float = 0.95,
        random_state: int | None = 0,
    ) -> None:
        self.head = head
        self.temperature = temperature
        self.calibration = calibration
        self.tpr = tpr
        self.random_state = random_state

    def _logit_scores(self, logits: NDArray[np.float64]) -> NDArray[np.float64]:
        return msp(logits, temperature=self.temperature)


class MaxLogit(LogitDetector):
    """The largest logit (Hendrycks et al., 2022).

    Args:
        head: The classifier's last layer, where X is features; without it X is logits.
        calibration: Share of the rows of `fit` to hold back and calibrate on; None never calibrates in `fit`.
        tpr: The share of in-distribution rows to keep where `calibrate` is not told otherwise.
        random_state: Seed of the hold-out.

    >>> MaxLogit().fit([[9.0, 0.0], [0.0, 9.0]]).score_samples([[1.0, 4.0]])
    array([4.])
    """

    def __init__(
        self,
        *,
        head: Head | None = None,
        calibration: float | None = None,
        tpr: float = 0.95,
        random_state: int | None = 0,
    ) -> None:
        self.head = head
        self.calibration = calibration
        self.tpr = tpr
        self.random_state = random_state

    def _logit_scores(self, logits: NDArray[np.float64]) -> NDArray[np.float64]:
        return max_logit(logits)


class Energy(LogitDetector):
    """The negative free energy T·log Σ exp(logit/T) (P5; Liu et al., 2020).

    Args:
        head: The classifier's last layer, where X is features; without it X is logits.
        temperature: T; 1 in the paper.
        calibration: Share of the rows of `fit` to hold back and calibrate on; None never calibrates in `fit`.
        tpr: The share of in-distribution rows to keep where `calibrate` is not told otherwise.
        random_state: Seed of the hold-out.

    >>> Energy(head=Head([[1.0], [1.0]])).fit([[1.0], [2.0]]).score_samples([[0.0]])
    array([0.69314718])
    """

    def __init__(
        self,
        *,
        head: Head | None = None,
        temperature: float = 1.0,
        calibration: float | None = None,
        tpr: float = 0.95,
        random_state: int | None = 0,
    ) -> None:
        self.head = head
        self.temperature = temperature
        self.calibration = calibration
        self.tpr = tpr
        self.random_state = random_state

    def _logit_scores(self, logits: NDArray[np.float64]) -> NDArray[np.float64]:
        return energy(logits, temperature=self.temperature)
