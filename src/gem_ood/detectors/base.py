"""Detector: the verbs that every detector shares, in scikit-learn's shape.

A subclass says how rows are scored (`_scores`), how they are explained (`_details`) and what it learns
(`_learn`); fitting, scores, saving and the checks of input live here once, what a threshold says in `Calibrated`.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from os import PathLike
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, OutlierMixin, clone
from sklearn.utils.validation import validate_data

from gem_ood.batches import Batches, OpenedBatches, SpreadBatches
from gem_ood.detectors.calibrated import Calibrated
from gem_ood.detectors.head import Head
from gem_ood.detectors.holdout import HoldOut
from gem_ood.detectors.results import Explanation, Verdicts
from gem_ood.errors import InputError, NotFittedError
from gem_ood.features import as_features, as_labels
from gem_ood.thresholds import as_probability

__all__ = ["Detector"]

#: What is learned depends on these options, so two fits are merged only if they agree in all of them that they have.
#: Every other option only says what is made of it: there the fit that is merged into decides.
MERGED_OPTIONS = ("head", "normalize", "bank")

#: Options that are either True or False, whichever detector has them.
FLAGS = ("normalize", "relative")


class Detector(Calibrated, OutlierMixin, BaseEstimator, ABC):
    """The common part of all detectors; not used by itself."""

    calibration: float | None
    random_state: int | None
    n_features_in_: int
    feature_names_in_: NDArray[Any]

    # What a subclass provides

    def _check_options(self) -> None:
        """Raise if an option is not one of those allowed, before any row is read."""
        as_probability(self.tpr, name="tpr")
        for name in FLAGS:
            value = getattr(self, name, False)
            if not isinstance(value, bool | np.bool_):
                raise InputError(f"{name} is {value!r}; pass True or False")

    def _declared(self, classes: ArrayLike | None, n_features: int) -> NDArray[Any] | None:
        """Return the class names that a caller declares, or None; raise if they cannot be those of such rows."""
        return None if classes is None else np.asarray(classes)

    def _check_order(self, batches: Batches) -> None:
        """Warn where class names that were found, not declared, are in an order that the rows contradict."""

    def _check_spread(self) -> None:
        """Raise if these options ask for more of rows that are spread than may come here."""

    @abstractmethod
    def _learn(self, batches: Batches, *, n_features: int, classes: NDArray[Any] | None) -> None:
        """Fit from re-iterable batches of checked rows."""

    @abstractmethod
    def _scores(self, features: NDArray[Any], nearest: NDArray[np.intp] | None = None) -> NDArray[np.float64]:
        """Score checked rows; fill `nearest` with the place of each row's nearest class where it is given."""

    @abstractmethod
    def _details(self, features: NDArray[Any]) -> tuple[NDArray[np.float64], NDArray[np.float64] | None]:
        """Return responsibilities and, where the detector has them, distances, each n × k."""

    @abstractmethod
    def _class_names(self, n_features: int) -> NDArray[Any]:
        """Return the names of the classes that rows of this width are compared with."""

    # Fitting

    def fit(self, X: ArrayLike, y: ArrayLike | None = None, *, classes: ArrayLike | None = None) -> Self:
        """Fit to in-distribution rows and their class labels; without labels all rows are one class.

        With `calibration` set, that share of the rows, drawn at random, is held back from the fit and calibrates
        the detector. Otherwise `fit` never calibrates: training rows would give a threshold that keeps far fewer
        new rows than it says (B6).

        Args:
            X: Rows of features, or of logits for a score of logits without a head.
            y: Their labels, whole numbers or strings.
            classes: All class names, for a detector of logits in their order; those of y, sorted, unless given.
        """
        self._check_options()
        features = as_features(X, min_rows=2)
        labels = None if y is None else as_labels(y, len(features))
        names = self._declared(classes, features.shape[1])
        with self._all_or_nothing():
            validate_data(self, X, reset=True, skip_check_array=True)
            self.n_features_in_ = features.shape[1]
            self._forget_calibration()
            split = None
            if self.calibration is not None:
                split = HoldOut.draw(features, labels, share=self.calibration, random_state=self.random_state)
            batches: Batches = [(features, labels)] if split is None else split.kept()
            self._learn(batches, n_features=features.shape[1], classes=names)
            if classes is None:
                self._check_order(batches)
            if split is not None:
                self.calibrate_scores(np.concatenate([self._evidence(rows) for rows in split.held()]))
        return self

    def fit_batches(self, batches: Batches, *, classes: ArrayLike | None = None) -> Self:
        """Fit to rows that come in batches, never holding more than one.

        Args:
            batches: A re-iterable of (features, labels or None), such as a list or an opened feature file; some
                detectors need several passes over it. Column names are taken from its `feature_names`, if it has any.
                Of `gem_ood.batches.SpreadBatches` the rows stay where they are, and sums of them come here.
            classes: All class names, where known, for a score of logits in their order; otherwise they are found on the
                way and sorted.
        """
        if self.calibration is not None:
            raise InputError(
                "calibration holds rows back from fit and cannot from batches; set it to None and calibrate"
            )
        if isinstance(batches, Iterator):
            raise InputError("batches is an iterator that can be read only once; pass a list or another re-iterable")
        self._check_options()
        if isinstance(batches, SpreadBatches):
            self._check_spread()
        opened, some, width = _opened(batches)
        with self._all_or_nothing():
            self.n_features_in_ = width
            self.__dict__.pop("feature_names_in_", None)
            columns = getattr(batches, "feature_names", None)
            if columns is not None:
                self.feature_names_in_ = np.array(columns, dtype=object)
            self._forget_calibration()
            names = self._declared(classes, self.n_features_in_)
            self._learn(opened, n_features=self.n_features_in_, classes=names)
            if classes is None:
                self._check_order(some)
        return self

    def _blank(self) -> Self:
        """Return a detector of the same options that has learned nothing: all that work on spread rows has to carry."""
        return type(self)(**self.get_params(deep=False))

    @contextmanager
    def _all_or_nothing(self) -> Iterator[None]:
        """Put the detector back as it was if the block fails: what it learned is replaced, never changed in place."""
        before = self.__dict__.copy()
        try:
            yield
        except BaseException:
            self.__dict__.clear()
            self.__dict__.update(before)
            raise

    def _merged(self, other: Self) -> Self:
        """Return a new detector of this kind to put what both learned into, after checking that they can be merged."""
        self._mergeable(other)
        joined: Self = clone(self)
        joined.n_features_in_ = self.n_features_in_
        if "feature_names_in_" in self.__dict__:
            joined.feature_names_in_ = self.feature_names_in_
        return joined

    def _mergeable(self, other: Self) -> None:
        """Raise unless these are two fits of one kind, to rows of one width, with the options that a merge needs."""
        if type(other) is not type(self):
            raise InputError(f"cannot merge a {type(other).__name__} into a {type(self).__name__}; merge equal kinds")
        for part in (self, other):
            Detector._require_fit(part)  # scores of logits work without a fit, but then have nothing to merge
        if other.n_features_in_ != self.n_features_in_:
            raise InputError(
                f"some rows have {self.n_features_in_} features and others {other.n_features_in_}; merge fits to rows "
                f"of one width"
            )
        columns = [getattr(part, "feature_names_in_", np.array([])).tolist() for part in (self, other)]
        if columns[0] != columns[1]:
            raise InputError("the two fits have columns of different names or order; merge fits to the same columns")
        for name in MERGED_OPTIONS:
            mine, its = getattr(self, name, None), getattr(other, name, None)
            if isinstance(mine, Head) and isinstance(its, Head):
                if not (np.array_equal(mine.weight, its.weight) and np.array_equal(mine.bias, its.bias)):
                    raise InputError("the two fits have heads of different weights; merge fits made with the same head")
            elif mine != its:
                given, other_value = (mine, its) if mine else (its, mine)
                raise InputError(
                    f"one fit has {name}={given!r} and the other {other_value!r}; merge fits made with the same options"
                )

    # Scores and verdicts

    def score_samples(self, X: ArrayLike) -> NDArray[np.float64]:
        """Return one score per row; higher = more in-distribution."""
        return self._scores(self._checked(X))

    def evidence(self, X: ArrayLike) -> NDArray[np.float64]:
        """Return what `calibrate_scores` wants of each row: its score, or one score per part of a combination."""
        return self._evidence(self._checked(X))

    def _evidence(self, features: NDArray[Any]) -> NDArray[np.float64]:
        return self._scores(features)

    def verdicts(self, X: ArrayLike) -> Verdicts:
        """Return score, nearest class and, once calibrated, p-value and verdict, from one pass over the rows."""
        features = self._checked(X)
        nearest = np.empty(len(features), dtype=np.intp)
        scores = self._scores(features, nearest)
        names = self._class_names(features.shape[1])[nearest]
        if not self.is_calibrated:
            return Verdicts(scores, names, None, None)
        return Verdicts(scores, names, self._p_values(scores), scores < self.offset_)

    def explain(self, X: ArrayLike) -> Explanation:
        """Return why each row is judged as it is: nearest class, responsibilities, distances, score, p-value."""
        features = self._checked(X)
        verdicts = self.verdicts(X)
        responsibilities, distances = self._details(features)
        return Explanation(
            classes=self._class_names(features.shape[1]),
            nearest_class=verdicts.nearest_class,
            responsibilities=responsibilities,
            distances=distances,
            scores=verdicts.score,
            threshold=self.offset_ if self.is_calibrated else None,
            p_values=verdicts.p_value,
            is_ood=verdicts.is_ood,
        )

    def score(self, X: ArrayLike, y: ArrayLike | None = None) -> float:
        """Return the mean score of the rows, for scikit-learn's model selection; labels are not used."""
        return float(np.mean(self.score_samples(X)))

    # What a caller may ask of it

    @property
    def reads_logits(self) -> bool:
        """Whether X is a classifier's logits rather than its features."""
        return False

    @property
    def uses_labels(self) -> bool:
        """Whether labels matter to the fit, beyond naming the classes."""
        return False

    # Input

    def _require_fit(self) -> None:
        if "n_features_in_" not in self.__dict__:
            raise NotFittedError(f"this {type(self).__name__} is not fitted yet; call fit(features, labels) first")

    def _checked(self, X: ArrayLike) -> NDArray[Any]:
        """Return X as rows of the width of the fit; the common case takes a microsecond."""
        self._require_fit()
        if (
            type(X) is np.ndarray
            and X.ndim == 2
            and X.dtype.kind == "f"
            and X.shape[0] > 0
            and X.shape[1] == self.n_features_in_
            and "feature_names_in_" not in self.__dict__
        ):
            return X
        features = as_features(X)
        self._check_width(features, self.n_features_in_)
        validate_data(self, X, reset=False, skip_check_array=True)
        return features

    @classmethod
    def _check_width(cls, features: NDArray[Any], expected: int) -> None:
        if features.shape[1] != expected:
            raise InputError(
                f"X has {features.shape[1]} features, but {cls.__name__} is expecting {expected} features as "
                f"input; pass the features it was fitted on"
            )

    # Storage

    def save(self, path: str | PathLike[str]) -> None:
        """Save everything to one safetensors file, all or nothing; `gem_ood.load` brings it back."""
        from gem_ood.detectors.saving import save

        save(self, path)

    @abstractmethod
    def _state(self) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        """Return what was learned as arrays and JSON values."""

    @abstractmethod
    def _restore(self, tensors: dict[str, NDArray[Any]], values: dict[str, Any]) -> None:
        """Take back what `_state` returned."""


def _opened(batches: Batches) -> tuple[Batches, Batches, int]:
    """Return the batches to learn from, those that may be looked at besides, and the width of their rows."""
    learned_from: Batches = batches
    if isinstance(batches, SpreadBatches):
        looked_at: Batches = batches.head()
        first = next(iter(looked_at), None)
    else:
        learned_from = looked_at = opened = OpenedBatches(batches)
        first = opened.first
    if first is None:
        raise InputError("batches is empty; pass at least one batch")
    return learned_from, looked_at, as_features(first[0]).shape[1]
