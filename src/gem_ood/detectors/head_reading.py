"""HeadDetector: what detectors share that read a classifier's logits, and with a head also its features.

X is features where a `head` is given, and logits where it is not. `LogitDetector` has nothing to learn; what learns
sums over the rows is in `summing.py`.
"""

import operator
import warnings
from abc import abstractmethod
from collections.abc import Iterator
from functools import partial
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils import Tags
from sklearn.utils.validation import validate_data

from gem_ood.batches import Batches, reduce_rows
from gem_ood.detectors.base import Detector
from gem_ood.detectors.head import Head
from gem_ood.detectors.naming import labels_met, places_of, sorted_names
from gem_ood.detectors.packing import class_names
from gem_ood.errors import FileFormatError, InputError, LabelOrderWarning
from gem_ood.features import as_features, as_labels, chunks, refuse_non_finite, rows_per_chunk
from gem_ood.scores import softmax

__all__ = [
    "Chunk",
    "HeadDetector",
    "LogitDetector",
    "feature_slack",
]

#: By how much a score that is a difference of larger terms may move between batches of different size, relative to
#: the usual size of these scores.
FEATURE_ROUNDING = 1e-10

#: So many rows tell whether labels are in the order of the logits.
ROWS_TO_CHECK_NAMES = 10_000


def feature_slack(scores: NDArray[np.float64], counts: NDArray[np.int64] | None = None) -> NDArray[np.float64]:
    """Return how far rounding may move scores that are differences of larger terms.

    Each score stands for so many rows, or for one: the usual size is the median of all.

    >>> feature_slack(np.array([0.0, 1.0, -3.0])).tolist()
    [1e-10, 1e-10, 3e-10]
    >>> feature_slack(np.array([0.0, 1.0, -3.0]), np.array([1, 1, 3])).tolist()
    [3e-10, 3e-10, 3e-10]
    """
    sizes = np.abs(scores)
    return np.asarray(
        FEATURE_ROUNDING * np.maximum(sizes, np.median(sizes if counts is None else _middle(sizes, counts)))
    )


def _middle(sizes: NDArray[np.float64], counts: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the two numbers in the middle of these, each as often as it counts."""
    order = np.argsort(sizes)
    up_to, n_rows = np.cumsum(counts[order]), int(counts.sum())
    places = np.searchsorted(up_to, [(n_rows - 1) // 2, n_rows // 2], side="right")
    return np.asarray(sizes[order[places]])


class Chunk(NamedTuple):
    """A few checked rows: their features, their logits, and the places of their labels among the logits if needed."""

    features: NDArray[Any]
    logits: NDArray[np.float64]
    places: NDArray[np.intp] | None


class HeadDetector(Detector):
    """What detectors of logits share: reading features through the head, in chunks, and the names of the logits."""

    #: Whether the score is one of features and logits together, so that it cannot be had from logits alone.
    needs_head: ClassVar[bool] = False

    head: Head | None
    classes_: NDArray[Any]
    _labels: set[Any]

    @abstractmethod
    def _row_scores(self, features: NDArray[Any], logits: NDArray[np.float64]) -> NDArray[np.float64]:
        """Score checked rows; the logits are a working copy where a head gave them, and the caller's otherwise."""

    @property
    def reads_logits(self) -> bool:
        """Whether X is logits: so it is without a head."""
        return self.head is None and not self.needs_head

    def _check_options(self) -> None:
        super()._check_options()
        if not isinstance(self.head, Head | None):
            raise InputError(f"head is a {type(self.head).__name__}; pass Head(weight, bias)")
        if self.needs_head and self.head is None:
            raise InputError(
                f"{type(self).__name__} scores features together with their logits but has no head; pass "
                f"head=Head(weight, bias), the classifier's last layer"
            )

    def _check_head(self, n_features: int) -> None:
        if self.head is not None and self.head.n_features != n_features:
            raise InputError(
                f"features has {n_features} columns but the head takes {self.head.n_features}; "
                f"pass the features that this head reads"
            )

    def _n_logits(self, n_features: int) -> int:
        return n_features if self.head is None else self.head.n_classes

    def _name_logits(self, found: set[Any], classes: ArrayLike | None, n_features: int, *, anew: bool) -> None:
        """Name the logits by the classes declared, or else by all labels met, if there is one for each logit.

        Labels met are sorted, but where they are names that the logits already have, the order of these stays.
        """
        known = [] if anew or "classes_" not in self.__dict__ else self.classes_.tolist()
        met = found if not known else found | self._labels
        names = np.asarray(classes).tolist() if classes is not None else known
        if classes is None and set(known) != met:
            names = sorted_names(met)
        self._labels = set(names) if classes is not None else met
        self.classes_ = self._full_names(names, n_features)

    def _full_names(self, names: list[Any], n_features: int) -> NDArray[Any]:
        """Return these names if there is one for each logit, and else the numbers of the logits."""
        n_logits = self._n_logits(n_features)
        return np.array(names) if len(names) == n_logits else np.arange(n_logits)

    def _join_names(self, one: Self, other: Self) -> None:
        """Name the logits as two fits that are merged do together."""
        self.classes_, self._labels = one.classes_, one._labels
        self._name_logits(other._labels, None, one.n_features_in_, anew=False)

    def _declared(self, classes: ArrayLike | None, n_features: int) -> NDArray[Any] | None:
        names = super()._declared(classes, n_features)
        has_logits = self.head is not None or self.reads_logits
        if names is not None and has_logits and len(names) != self._n_logits(n_features):
            raise InputError(
                f"classes has {len(names)} names but the classifier has {self._n_logits(n_features)} logits; pass one "
                f"name for each, in their order"
            )
        return names

    def _check_order(self, batches: Batches) -> None:
        """Warn where words name the logits in sorted order, and most rows contradict it."""
        if self.classes_.dtype.kind != "U":
            return
        n_rows = n_right = 0
        for X, y in batches:
            if y is None or n_rows >= ROWS_TO_CHECK_NAMES:
                break
            features = as_features(X)[:ROWS_TO_CHECK_NAMES]
            labels = as_labels(y, len(as_features(X)))[: len(features)]
            predicted = self.classes_[np.argmax(self._logits(features), axis=1)]
            n_rows, n_right = n_rows + len(features), n_right + int(np.count_nonzero(predicted == labels))
        if n_right < n_rows / 2:
            warnings.warn(
                f"only {n_right} of {n_rows} rows are classified as their label if the logits are, in sorted order, "
                f"{', '.join(self.classes_[:3].tolist())}, ...; if they are in another order, pass classes, all names "
                f"in that order",
                LabelOrderWarning,
                stacklevel=3,
            )

    def _mergeable(self, other: Self) -> None:
        super()._mergeable(other)
        self._refuse_other_names(other.classes_, other._labels)

    def _refuse_other_names(self, classes: NDArray[Any], labels: set[Any]) -> None:
        """Raise where the logits of two fits, or of two batches, have other names or the same in another order.

        A fit that has met no name for some logit contradicts none, unless labels chose what it learned.
        """
        mine, its = self.classes_.tolist(), classes.tolist()
        are_named = set(mine) == self._labels and set(its) == labels
        if mine == its or not (self.uses_labels or are_named):
            return
        place = next(place for place, (ours, theirs) in enumerate(zip(mine, its, strict=True)) if ours != theirs)
        raise InputError(
            f"logit {place} is that of class {mine[place]!r} in one fit and of {its[place]!r} in the other; pass the "
            f"same classes, all names in the order of the logits, to both fits"
        )

    def _class_names(self, n_features: int) -> NDArray[Any]:
        if "classes_" in self.__dict__:
            return self.classes_
        return np.arange(self._n_logits(n_features))

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
            scores[rows] = self._row_scores(features[rows], logits)
        return scores

    def _details(self, features: NDArray[Any]) -> tuple[NDArray[np.float64], NDArray[np.float64] | None]:
        return softmax(self._logits(features)), None

    def _chunks(
        self, batches: Batches, n_features: int, names: NDArray[Any] | None = None, found: set[Any] | None = None
    ) -> Iterator[Chunk]:
        """Yield checked chunks of rows with their logits and, where labels are used, the places these name."""
        n_logits, first_row = self._n_logits(n_features), 0
        for X, y in batches:
            features = as_features(X)
            self._check_width(features, n_features)
            labels = None if y is None else as_labels(y, len(features))
            if labels is None and self.uses_labels:
                raise InputError(f"{type(self).__name__} learns from labelled rows; pass labels")
            if found is not None:
                found |= labels_met(labels, len(features))
            places = places_of(labels, names, n_logits) if self.uses_labels and labels is not None else None
            for rows in chunks(len(features), rows_per_chunk(n_features + n_logits)):
                refuse_non_finite(features[rows], first_row=first_row + rows.start)
                yield Chunk(features[rows], self._logits(features[rows]), None if places is None else places[rows])
            first_row += len(features)

    def _state(self) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        return {}, {"classes": self.classes_.tolist(), "labels": sorted(self._labels)}

    def _restore(self, tensors: dict[str, NDArray[Any]], values: dict[str, Any]) -> None:
        self.classes_ = class_names(values["classes"])
        if self.head is not None:
            self.n_features_in_ = self.head.n_features
            if len(self.classes_) != self.head.n_classes:
                raise FileFormatError("the classes are not as many as the head's logits; save the detector again")
        self._labels = set(values["labels"])


class LogitDetector(HeadDetector):
    """A detector with nothing to learn: it can be calibrated and used without `fit`, which only takes class names."""

    @abstractmethod
    def _row_scores(self, features: NDArray[Any], logits: NDArray[np.float64]) -> NDArray[np.float64]:
        """Score checked rows."""

    def _learn(self, batches: Batches, *, n_features: int, classes: NDArray[Any] | None) -> None:
        self._name_logits(self._read(batches, n_features), classes, n_features, anew=True)

    def _read(self, batches: Batches, n_features: int) -> set[Any]:
        """Check all rows, and return the labels met."""
        self._check_head(n_features)
        return reduce_rows(batches, partial(_read_part, kind=type(self), n_features=n_features), operator.or_)

    def partial_fit(self, X: ArrayLike, y: ArrayLike | None = None, *, classes: ArrayLike | None = None) -> Self:
        """Take the class names of one more batch; there is nothing else to learn. The threshold is forgotten."""
        self._check_options()
        with self._all_or_nothing():
            is_first = "n_features_in_" not in self.__dict__
            features = as_features(X) if is_first else self._checked(X)
            validate_data(self, X, reset=is_first, skip_check_array=True)
            self.n_features_in_ = features.shape[1]
            found = self._read([(features, y)], self.n_features_in_)
            self._name_logits(found, self._declared(classes, self.n_features_in_), self.n_features_in_, anew=False)
            self._forget_calibration()
        return self

    def merge(self, other: Self) -> Self:
        """Return a new, uncalibrated detector that knows the class names of both."""
        joined = self._merged(other)
        joined._join_names(self, other)
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

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.requires_fit = False
        return tags


def _read_part(batches: Batches, *, kind: type[Detector], n_features: int) -> set[Any]:
    """Check these rows of a fit of this kind, and return the labels met."""
    found: set[Any] = set()
    first_row = 0
    for X, y in batches:
        features = as_features(X)
        kind._check_width(features, n_features)
        for rows in chunks(len(features), rows_per_chunk(n_features)):
            refuse_non_finite(features[rows], first_row=first_row + rows.start)
        first_row += len(features)
        found |= labels_met(y, len(features))
    return found
