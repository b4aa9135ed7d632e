"""SummedDetector: what detectors share that learn sums over the rows, and so stream and merge."""

from abc import abstractmethod
from functools import partial
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils.validation import validate_data

from gem_ood.batches import Batches, reduce_rows
from gem_ood.detectors.head_reading import Chunk, HeadDetector, feature_slack
from gem_ood.detectors.naming import names_found
from gem_ood.detectors.packing import take
from gem_ood.errors import NotFittedError
from gem_ood.features import as_features

__all__ = ["SummedDetector"]

Sums = dict[str, NDArray[np.float64]]


class _Read(NamedTuple):
    """What rows add up to, and the labels met; no sums of no rows."""

    sums: Sums | None
    found: set[Any]


class SummedDetector(HeadDetector):
    """A detector that learns from sums over the rows: batches add up, so it streams, and two fits merge by adding.

    A subclass says what rows add (`_terms`) and what scoring makes of the totals (`_settle`).
    """

    #: Options that `_settle` reads: where one changes, the totals are settled anew.
    settling_options: ClassVar[tuple[str, ...]] = ()

    _sums: Sums | None = None
    _settled: tuple[tuple[Any, ...], Any] | None = None

    @abstractmethod
    def _terms(self, chunk: Chunk) -> Sums:
        """Return what these rows add to the sums: float64 arrays whose shapes do not depend on the rows."""

    @abstractmethod
    def _settle(self, sums: Sums) -> Any:
        """Return what scoring needs, from the totals; raise InputError where these overflow or allow no score at all.

        Rows may be yet to come, also after a merge or a load: what only some scores lack is refused by those scores.
        """

    def _settle_fit(self, batches: Batches, sums: Sums) -> Any:
        """Return what scoring needs after a fit, where the batches can be read again for what sums do not tell."""
        return self._settle(sums)

    def _settle_loaded(self, sums: Sums, values: dict[str, Any]) -> Any:
        """Return what scoring needed when the detector was saved."""
        return self._settle(sums)

    @property
    def _learned(self) -> Any:
        """What was settled from all rows so far; after `partial_fit` or new options, when it is first asked for."""
        options = self._options_now
        if self._settled is None or self._settled[0] != options:
            if self._sums is None:
                raise NotFittedError(f"this {type(self).__name__} is not fitted yet; call fit(features, labels) first")
            self._check_options()
            self._settled = options, self._settle(self._sums)
        return self._settled[1]

    @property
    def _options_now(self) -> tuple[Any, ...]:
        return tuple(getattr(self, name) for name in self.settling_options)

    def _learn(self, batches: Batches, *, n_features: int, classes: NDArray[Any] | None) -> None:
        self._check_head(n_features)
        names = names_found(batches) if classes is None and self.uses_labels else classes
        work = partial(self._blank()._add_batches, n_features=n_features, names=names)
        self._sums, found = reduce_rows(batches, work, _joined)
        self._name_logits(found, classes, n_features, anew=True)
        self._settled = self._options_now, self._settle_fit(batches, self._sums or {})

    def partial_fit(self, X: ArrayLike, y: ArrayLike | None = None, *, classes: ArrayLike | None = None) -> Self:
        """Add a batch of rows to what was learned; the threshold, if any, is forgotten.

        Args:
            X: Rows of features, or of logits where there is no head.
            y: Their labels, where the detector uses them or they name the logits.
            classes: All class names in the order of the logits, in the first call, where they are not 0 to k − 1.
        """
        self._check_options()
        is_first = self._sums is None
        with self._all_or_nothing():
            features = as_features(X) if is_first else self._checked(X)
            validate_data(self, X, reset=is_first, skip_check_array=True)
            self.n_features_in_ = features.shape[1]
            self._check_head(self.n_features_in_)
            names = self._declared(classes, self.n_features_in_)
            if names is not None and not is_first:
                self._refuse_other_names(self._full_names(names.tolist(), self.n_features_in_), set(names.tolist()))
            if names is None and self.uses_labels:
                names = names_found([(features, y)]) if is_first else self.classes_
            self._sums, found = self._add_batches([(features, y)], self.n_features_in_, names, before=self._sums)
            self._settled = None
            self._name_logits(found, classes, self.n_features_in_, anew=is_first)
            self._forget_calibration()
        return self

    def merge(self, other: Self) -> Self:
        """Return a new, uncalibrated detector fitted to the rows of both; neither of the two changes."""
        joined = self._merged(other)
        joined._sums = _added(self._sums or {}, other._sums or {})
        joined._join_names(self, other)
        _ = joined._learned  # refuses what cannot be scored
        return joined

    def _add_batches(
        self, batches: Batches, n_features: int, names: NDArray[Any] | None, *, before: Sums | None = None
    ) -> _Read:
        """Return the sums there were before with the terms of all rows added, and the labels met."""
        found: set[Any] = set()
        sums = before
        for chunk in self._chunks(batches, n_features, names, found):
            terms = self._terms(chunk)
            sums = terms if sums is None else _added(sums, terms)
        return _Read(sums, found)

    def _slack(self, scores: NDArray[np.float64], counts: NDArray[np.int64] | None = None) -> NDArray[np.float64]:
        return feature_slack(scores, counts)

    def _pack_sums(self, sums: Sums) -> dict[str, NDArray[Any]]:
        return {f"sums.{name}": total for name, total in sums.items()}

    def _unpack_sums(self, tensors: dict[str, NDArray[Any]]) -> Sums:
        row = np.zeros((1, len(self.classes_) if self.head is None else self.head.n_features))
        pattern = self._terms(Chunk(row, self._logits(row), np.zeros(1, dtype=np.intp)))
        return {name: take(tensors, f"sums.{name}", zero.shape) for name, zero in pattern.items()}

    def _state(self) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        tensors, values = super()._state()
        return tensors | self._pack_sums(self._sums or {}), values

    def _restore(self, tensors: dict[str, NDArray[Any]], values: dict[str, Any]) -> None:
        super()._restore(tensors, values)
        self._sums = self._unpack_sums(tensors)
        self._settled = self._options_now, self._settle_loaded(self._sums, values)


def _joined(one: _Read, other: _Read) -> _Read:
    return _Read(_added(one.sums or {}, other.sums or {}), one.found | other.found)


def _added(one: Sums, other: Sums) -> Sums:
    with np.errstate(over="ignore", invalid="ignore"):  # `_settle` refuses what overflows, and says what to do
        return {name: total + other[name] for name, total in one.items()}
