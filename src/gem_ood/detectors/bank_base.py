"""BankDetector: what the detectors share that keep a bank of training rows and compare new rows with it."""

from abc import abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils.validation import validate_data

from gem_ood.batches import Batches, SpreadBatches
from gem_ood.detectors.base import Detector
from gem_ood.detectors.naming import labels_met
from gem_ood.detectors.packing import refuse_damaged, take, take_draws, whole
from gem_ood.detectors.sampling import ContentSampler, Part, Sample, Size, check_seed, check_size
from gem_ood.errors import InputError, NotFittedError
from gem_ood.features import as_features, as_labels, chunks, is_count, refuse_non_finite, rows_per_chunk

__all__ = ["BankDetector"]


class Ready(NamedTuple):
    """A bank to search, with the sample that it was made from and the options it was made by.

    It is one value, assigned at once: threads that score while another makes it see all of the old or all of the new.
    """

    options: tuple[Any, ...]
    sample: Sample
    bank: Any


class Gathered(NamedTuple):
    """A sample of rows, and the labels met among all of them."""

    sample: Sample
    found: set[Any]


class BankDetector(Detector):
    """A sample of rows that streams and merges, and the bank made from it when it is asked for."""

    #: Whether the bank keeps the labels of its rows.
    keeps_labels: ClassVar[bool]

    #: Options that the bank is made by: where one changes, it is made anew.
    bank_options: ClassVar[tuple[str, ...]]

    k: int
    bank: Size
    _sample: Sample | None = None
    _ready: Ready | None = None

    @abstractmethod
    def _made(self, sample: Sample) -> tuple[Sample, Any]:
        """Return the sample, in another order if need be, and the bank to search, and leave the detector as it is."""

    @abstractmethod
    def _name(self, found: set[Any], classes: NDArray[Any] | None, *, is_first: bool) -> None:
        """Name the classes by all labels met."""

    @abstractmethod
    def _name_joined(self, joined: Self, other: Self) -> None:
        """Name the classes of a merged detector."""

    def _check_options(self) -> None:
        super()._check_options()
        _check_bank(self.bank, self.k)
        if self.bank is not None:
            check_seed(self.random_state)

    def _check_spread(self) -> None:
        if self.bank is None:
            raise InputError(
                f"{type(self).__name__} with bank=None keeps all rows, and rows that are spread over a cluster are too "
                f"many; pass bank=10_000 for a sample of so many"
            )

    @property
    def _seed(self) -> list[int] | None:
        # The seed itself deals the hold-out; which rows a bank keeps should not follow from that deal.
        return None if self.random_state is None else [self.random_state, 1]

    @property
    def _searched(self) -> Any:
        return self._current.bank

    @property
    def _current(self) -> Ready:
        """The bank under the options of now; it is made when it is first asked for."""
        options, ready = self._bank_options_now, self._ready
        if ready is None or ready.options != options:
            if self._sample is None:
                raise NotFittedError(f"this {type(self).__name__} is not fitted yet; call fit(features, labels) first")
            self._check_options()
            sample = self._sample.settled(self.bank)
            _check_rows(sample.n_kept, self.k, self.bank)
            ready = Ready(options, *self._made(sample))
            self._ready = ready
            self._sample = ready.sample
        return ready

    @property
    def _bank_options_now(self) -> tuple[Any, ...]:
        return tuple(getattr(self, name) for name in self.bank_options)

    def _learn(self, batches: Batches, *, n_features: int, classes: NDArray[Any] | None) -> None:
        self._ready = None
        self._sample, found = self._gather(Sample(), batches, n_features)
        self._name(found, classes, is_first=True)
        _ = self._searched

    def _gather(self, sample: Sample, batches: Batches, n_features: int) -> Gathered:
        """Return the sample with all rows of these batches added, and the labels met; that of spread rows is new."""
        if isinstance(batches, SpreadBatches):
            assert self.bank is not None  # `_check_spread` has seen to it
            sampler = ContentSampler.of(size=self.bank, n_features=n_features, seed=self._seed)
            work = partial(_gather_part, kind=type(self), n_features=n_features, sampler=sampler)
            gathered: Gathered = batches.reduce(work, partial(_joined, sampler=sampler))
            return gathered
        add = partial(Sample.add, size=self.bank, seed=self._seed)
        return _gathered(batches, sample, add, kind=type(self), n_features=n_features)

    def partial_fit(self, X: ArrayLike, y: ArrayLike | None = None, *, classes: ArrayLike | None = None) -> Self:
        """Add a batch of rows to the bank; the threshold, if any, is forgotten.

        Args:
            X: Rows of features.
            y: Their labels, if the classes are to have names; for every batch or for none.
            classes: All class names, in the first call, where they are known.
        """
        self._check_options()
        is_first = self._sample is None
        with self._all_or_nothing():
            features = as_features(X) if is_first else self._checked(X)
            validate_data(self, X, reset=is_first, skip_check_array=True)
            self.n_features_in_ = features.shape[1]
            self._sample, found = self._gather(self._sample or Sample(), [(features, y)], self.n_features_in_)
            self._name(found, None if classes is None else np.asarray(classes), is_first=is_first)
            self._ready = None
            self._forget_calibration()
        return self

    def merge(self, other: Self) -> Self:
        """Return a new, uncalibrated detector with the banks of both; neither of the two changes."""
        joined = self._merged(other)
        assert self._sample is not None  # as both are fitted
        assert other._sample is not None
        self._sample, other._sample = self._sample.settled(self.bank), other._sample.settled(other.bank)
        joined._sample = self._sample.merge(other._sample, size=self.bank)
        self._name_joined(joined, other)
        _ = joined._searched
        return joined

    def _state(self) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        sample = self._current.sample  # settled, or refused where it has too few rows
        part = sample.parts[0]
        tensors = {"bank.rows": part.rows}
        if part.draws is not None:
            tensors["bank.draws"] = part.draws
        return tensors, {"n_seen": sample.n_seen}

    def _restored(self, tensors: dict[str, NDArray[Any]], values: dict[str, Any]) -> Part:
        rows = take(tensors, "bank.rows", (None, None), itemsizes=(4, 8))
        _check_rows(len(rows), self.k, self.bank)
        draws = None if self.bank is None else take_draws(tensors, "bank.draws", len(rows))
        part, n_seen = Part(rows, None, draws), whole(values["n_seen"], "n_seen")
        refuse_damaged(n_seen < len(rows), "n_seen", f"is {n_seen}, but {len(rows)} rows were kept")
        self._sample, self.n_features_in_ = Sample((part,), n_seen), rows.shape[1]
        return part


def _gathered(
    batches: Batches,
    sample: Sample,
    add: Callable[[Sample, NDArray[Any], NDArray[Any] | None], Sample],
    *,
    kind: type[BankDetector],
    n_features: int,
) -> Gathered:
    """Return the sample with all these rows added, after checking them, and the labels met."""
    found: set[Any] = set()
    first_row = 0
    for X, y in batches:
        features = as_features(X)
        kind._check_width(features, n_features)
        labels = None if y is None else as_labels(y, len(features))
        found |= labels_met(labels, len(features))
        for rows in chunks(len(features), rows_per_chunk(n_features)):
            refuse_non_finite(features[rows], first_row=first_row + rows.start)
        sample = add(sample, features, labels if kind.keeps_labels else None)
        first_row += len(features)
    return Gathered(sample, found)


def _gather_part(batches: Batches, *, kind: type[BankDetector], n_features: int, sampler: ContentSampler) -> Gathered:
    sample, found = _gathered(batches, Sample(), sampler.add, kind=kind, n_features=n_features)
    return Gathered(sampler.settled(sample), found)


def _joined(one: Gathered, other: Gathered, *, sampler: ContentSampler) -> Gathered:
    return Gathered(sampler.merge(one.sample, other.sample), one.found | other.found)


def _check_bank(bank: Any, k: Any) -> None:
    if not is_count(k):
        raise InputError(f"k is {k!r}; pass a whole number of neighbours, at least 1")
    check_size(bank, name="bank")
    if is_count(bank) and bank < k:
        raise InputError(f"bank={bank} keeps fewer rows than k={k} neighbours; pass a larger bank or a smaller k")


def _check_rows(n_kept: int, k: int, bank: Size) -> None:
    if n_kept < k:
        kept = "" if bank is None else f" in the bank (bank={bank})"
        raise InputError(
            f"k={k} neighbours were asked of n_samples={n_kept} rows{kept}; pass at least {k} rows or a smaller k"
        )
