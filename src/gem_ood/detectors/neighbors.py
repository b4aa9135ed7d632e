"""KNN and NNGuide: detectors that keep a bank of training rows and compare new rows with the nearest of them."""

from abc import abstractmethod
from typing import Any, ClassVar, Literal, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import clone
from sklearn.utils.validation import validate_data

from gem_ood.detectors.base import LOGIT_ROUNDING, Batches, Detector
from gem_ood.detectors.head import Head
from gem_ood.detectors.head_reading import FEATURE_ROUNDING, HeadDetector
from gem_ood.detectors.packing import class_names, take
from gem_ood.detectors.sampling import Part, Sample, Size, check_seed, check_size
from gem_ood.errors import FileFormatError, InputError, NotFittedError
from gem_ood.features import (
    as_features,
    as_labels,
    chunks,
    is_count,
    refuse_non_finite,
    rows_per_chunk,
    unit_length,
)
from gem_ood.scores import energy
from gem_ood.scores.neighbors import Bank, Clusters, ProductBank, cluster

__all__ = ["KNN", "NNGuide"]

#: What rounding may leave of a distance of zero between two rows of length one.
UNIT_ROUNDING = 1e-15


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


class _BankDetector(Detector):
    """What both share: a sample of rows that streams and merges, and the bank made from it when it is asked for."""

    #: Whether the bank keeps the labels of its rows.
    keeps_labels: ClassVar[bool]

    k: int
    bank: Size
    _sample: Sample | None = None
    _ready: Any = None

    @abstractmethod
    def _made(self, sample: Sample) -> Any:
        """Return the bank to search, from all rows kept."""

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

    @property
    def _seed(self) -> list[int] | None:
        # The seed itself deals the hold-out; which rows a bank keeps should not follow from that deal.
        return None if self.random_state is None else [self.random_state, 1]

    @property
    def _searched(self) -> Any:
        if self._ready is None:
            if self._sample is None:
                raise NotFittedError(f"this {type(self).__name__} is not fitted yet; call fit(features, labels) first")
            self._sample = self._sample.settled(self.bank)
            _check_rows(self._sample.n_kept, self.k, self.bank)
            self._ready = self._made(self._sample)
        return self._ready

    def _learn(self, batches: Batches, *, n_features: int, classes: NDArray[Any] | None) -> None:
        found: set[Any] = set()
        self._ready = None
        self._sample = self._add(Sample(), batches, n_features, found)
        self._name(found, classes, is_first=True)
        self._ready = self._searched

    def _add(self, sample: Sample, batches: Batches, n_features: int, found: set[Any]) -> Sample:
        """Return the sample with all rows of these batches added, and collect the labels met."""
        first_row = 0
        for X, y in batches:
            features = as_features(X)
            self._check_width(features, n_features)
            labels = None if y is None else as_labels(y, len(features))
            if labels is not None:
                found |= set(np.unique(labels).tolist())
            for rows in chunks(len(features), rows_per_chunk(n_features)):
                refuse_non_finite(features[rows], first_row=first_row + rows.start)
            kept = labels if self.keeps_labels else None
            sample = sample.add(features, kept, size=self.bank, seed=self._seed)
            first_row += len(features)
        return sample

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
            found: set[Any] = set()
            self._sample = self._add(self._sample or Sample(), [(features, y)], self.n_features_in_, found)
            self._name(found, None if classes is None else np.asarray(classes), is_first=is_first)
            self._ready = None
            self._forget_calibration()
        return self

    def merge(self, other: Self) -> Self:
        """Return a new, uncalibrated detector with the banks of both; neither of the two changes."""
        if type(other) is not type(self):
            raise InputError(f"cannot merge a {type(other).__name__} into a {type(self).__name__}; merge equal kinds")
        for part in (self, other):
            part._require_fit()
        if self._sample is None or other._sample is None:
            raise NotFittedError(f"this {type(self).__name__} is not fitted yet; call fit(features, labels) first")
        if other.n_features_in_ != self.n_features_in_:
            raise InputError(
                f"one fit has {self.n_features_in_} features and the other {other.n_features_in_}; merge fits of equal "
                f"features"
            )
        joined: Self = clone(self)
        joined.n_features_in_ = self.n_features_in_
        self._sample, other._sample = self._sample.settled(self.bank), other._sample.settled(other.bank)
        joined._sample = self._sample.merge(other._sample, size=self.bank)
        self._name_joined(joined, other)
        joined._ready = joined._searched
        return joined

    def _state(self) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        _ = self._searched  # settles the sample, and refuses one with too few rows
        sample = self._sample or Sample()
        part = sample.parts[0]
        tensors = {"bank.rows": part.rows}
        if part.draws is not None:
            tensors["bank.draws"] = part.draws
        return tensors, {"n_seen": sample.n_seen}

    def _restored(self, tensors: dict[str, NDArray[Any]], values: dict[str, Any]) -> Part:
        rows = take(tensors, "bank.rows", (None, None), itemsizes=(4, 8))
        draws = None if self.bank is None else take(tensors, "bank.draws", (len(rows),))
        part = Part(rows, None, draws)
        self._sample, self.n_features_in_ = Sample((part,), int(values["n_seen"])), rows.shape[1]
        return part


class _LabelledBank(NamedTuple):
    """The bank of KNN and the place of each of its rows' class, if classes were named."""

    bank: Bank
    places: NDArray[np.intp] | None


class KNN(_BankDetector):
    """The distance to the k-th nearest training row (Sun, Ming, Zhu and Li, ICML 2022).

    The score is −‖z − z₍ₖ₎‖₂, where z is the row scaled to unit length and z₍ₖ₎ the k-th nearest of the training rows,
    scaled alike. (The authors' code reports squared distances, which rank rows the same.) A row of zeros has no
    direction and stays zero, at distance 1 from every other. Neighbours are found exactly: float32 only draws up a
    short list, and float64 decides, so scores do not depend on the batch.

    Labels are not needed; they name the classes of `verdicts` and `explain`: the nearest class is that of the nearest
    row of the bank, responsibilities are each class's share of the k nearest, and distances lead to the nearest row of
    each class (infinite for a class without rows in the bank).

    Args:
        k: Which neighbour; 50 in the paper for CIFAR-10, 200 for CIFAR-100 and 1,000 for ImageNet with all its rows.
            Where the bank is a share of the rows, take the same share of k.
        normalize: Scale every row to unit length first, as the paper does.
        bank: Which training rows to keep: None keeps all, a share (the paper's α) keeps about that share at random
            but at least 1,000 rows, a whole number keeps so many.
        index: `"exact"` compares each row with the whole bank. `"clusters"` sorts the bank into about √n lists by
            k-means when it is fitted, and each row visits only some of them.
        probes: How many lists a row visits. None visits all that can hold a neighbour, so scores stay exact: that pays
            where rows are wide and classes compact and far apart, and may cost more than it saves where they are not.
            A number makes scores approximate: no distance is ever too small, so no score too high. (Of 708 lists over
            500,000 rows of 64 features, 64 gave 99.9 % of the rows their exact score, almost three times as fast.)
        calibration: Share of the rows of `fit` to hold back and calibrate on; None never calibrates in `fit`.
        tpr: The share of in-distribution rows to keep where `calibrate` is not told otherwise.
        random_state: Seed of the hold-out, of the rows that a bank keeps, and of k-means.

    >>> KNN(k=2, normalize=False).fit([[0.0], [1.0], [5.0]]).score_samples([[0.0], [9.0]])
    array([-1., -8.])
    """

    keeps_labels: ClassVar[bool] = True
    classes_: NDArray[Any]
    _clusters: Clusters | None = None

    def __init__(
        self,
        *,
        k: int = 50,
        normalize: bool = True,
        bank: float | int | None = None,
        index: Literal["exact", "clusters"] = "exact",
        probes: int | None = None,
        calibration: float | None = None,
        tpr: float = 0.95,
        random_state: int | None = 0,
    ) -> None:
        self.k = k
        self.normalize = normalize
        self.bank = bank
        self.index = index
        self.probes = probes
        self.calibration = calibration
        self.tpr = tpr
        self.random_state = random_state

    def _check_options(self) -> None:
        super()._check_options()
        if self.index not in ("exact", "clusters"):
            raise InputError(f"index is {self.index!r}; pass 'exact' or 'clusters'")
        if self.index == "clusters":
            check_seed(self.random_state)
        if self.probes is None:
            return
        if self.index == "exact":
            raise InputError(f"probes={self.probes!r} needs index='clusters'; leave it out to search the whole bank")
        if not is_count(self.probes):
            raise InputError(f"probes is {self.probes!r}; pass a whole number of at least 1, or None for exact scores")

    @property
    def _prepare(self) -> Any:
        return unit_length if self.normalize else None

    def _made(self, sample: Sample) -> _LabelledBank:
        if self.index == "clusters" and self._clusters is None:
            order, self._clusters = cluster(sample.rows, prepare=self._prepare, random_state=self.random_state)
            self._sample = sample = sample.ordered(order)
        rows, labels, _ = sample.parts[0]
        bank = Bank.of(rows, self._prepare, clusters=self._clusters, probes=self.probes)
        return _LabelledBank(bank, None if labels is None else np.searchsorted(self.classes_, labels))

    def _name(self, found: set[Any], classes: NDArray[Any] | None, *, is_first: bool) -> None:
        self._clusters = None  # of the rows there were before
        known = set() if is_first or not self._is_labelled else set(self.classes_.tolist())
        names = known | found | (set() if classes is None or not found else set(classes.tolist()))
        self.classes_ = _sorted_names(names) if names else np.zeros(1, dtype=np.int64)

    @property
    def _is_labelled(self) -> bool:
        return self._sample is not None and self._sample.parts[0].labels is not None

    def merge(self, other: Self) -> Self:
        """Return a new, uncalibrated detector with the banks of both; neither of the two changes."""
        if isinstance(other, KNN) and other.normalize != self.normalize:
            raise InputError("one fit has normalize=True and the other False; merge fits made with the same options")
        return super().merge(other)

    def _name_joined(self, joined: Self, other: Self) -> None:
        joined.classes_ = _sorted_names(set(self.classes_.tolist()) | set(other.classes_.tolist()))

    def _class_names(self, n_features: int) -> NDArray[Any]:
        return self.classes_

    def _scores(self, features: NDArray[Any], nearest: NDArray[np.intp] | None = None) -> NDArray[np.float64]:
        bank, places = self._searched
        distances: NDArray[np.float64] = bank.kth_distances(features, self.k, nearest)
        if nearest is not None:
            nearest[:] = 0 if places is None else places[nearest]
        return np.subtract(0.0, distances, out=distances)

    def _details(self, features: NDArray[Any]) -> tuple[NDArray[np.float64], NDArray[np.float64] | None]:
        bank, places = self._searched
        shape = (len(features), len(self.classes_))
        if places is None:
            return np.ones(shape), bank.kth_distances(features, 1)[:, np.newaxis]
        neighbours = places[bank.nearest_rows(features, self.k)[1]]
        shares, distances = np.zeros(shape), np.full(shape, np.inf)
        for place in range(len(self.classes_)):
            shares[:, place] = np.mean(neighbours == place, axis=1)
            members = bank.rows[places == place]
            if len(members):
                distances[:, place] = Bank.of(members, self._prepare).kth_distances(features, 1)
        return shares, distances

    def _slack(self, scores: NDArray[np.float64]) -> NDArray[np.float64]:
        # Differences of two rows are exact to the last place, so a distance is relatively; but scaling to unit length
        # rounds each entry by its own size, which shows where the distance is near zero.
        return LOGIT_ROUNDING * np.abs(scores) + (UNIT_ROUNDING if self.normalize else 0.0)

    def _state(self) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        tensors, values = super()._state()
        places = self._searched.places
        if places is not None:
            tensors["bank.places"] = places.astype(np.int64)
        if self._clusters is not None:
            tensors["clusters.centres"], tensors["clusters.radii"] = self._clusters.centres, self._clusters.radii
            tensors["clusters.bounds"] = self._clusters.bounds
        return tensors, values | {"classes": self.classes_.tolist(), "is_labelled": places is not None}

    def _restore(self, tensors: dict[str, NDArray[Any]], values: dict[str, Any]) -> None:
        self.classes_ = class_names(values["classes"])
        part = self._restored(tensors, values)
        n_rows, n_features = part.rows.shape
        if values["is_labelled"]:
            places = take(tensors, "bank.places", (n_rows,), kind="i")
            _refuse_outside(places, len(self.classes_), "bank.places")
            self._sample = Sample((part._replace(labels=self.classes_[places]),), int(values["n_seen"]))
        if self.index == "clusters":
            centres = take(tensors, "clusters.centres", (None, n_features))
            bounds = take(tensors, "clusters.bounds", (len(centres) + 1,), kind="i")
            if bounds[0] != 0 or bounds[-1] != n_rows or (np.diff(bounds) < 0).any():
                raise FileFormatError(
                    "the file's array 'clusters.bounds' does not cut the bank; save the detector again"
                )
            self._clusters = Clusters(centres, take(tensors, "clusters.radii", (len(centres),)), bounds)
        self._ready = self._searched


class NNGuide(_BankDetector, HeadDetector):
    """Nearest-neighbour guidance of the energy (Park, Jung and Teoh, ICCV 2023).

    The score is G(z)·E(z), where E is the energy log Σ exp(logit) and the guidance G(z) the mean of the k largest of
    E(zᵢ)·cos(z, zᵢ) over the training rows zᵢ of the bank. A row of zeros has no direction: its guidance, and so its
    score, is 0. The product ranks rows as meant where energies are positive, as those of trained classifiers are.

    Args:
        head: The classifier's last layer; X is the features that it reads.
        k: How many neighbours guide; 10 in the paper.
        bank: Which training rows to keep: a share keeps about that share at random but at least 1,000 rows (1 % is the
            paper's for ImageNet), a whole number keeps so many, None keeps all.
        calibration: Share of the rows of `fit` to hold back and calibrate on; None never calibrates in `fit`.
        tpr: The share of in-distribution rows to keep where `calibrate` is not told otherwise.
        random_state: Seed of the hold-out and of the rows that a bank keeps.

    >>> detector = NNGuide(head=Head([[1.0, 0.0], [0.0, 1.0]]), k=1).fit([[4.0, 0.0], [0.0, 4.0]])
    >>> detector.score_samples([[4.0, 0.0], [2.0, 2.0]]).round(3)
    array([16.146,  7.652])
    """

    needs_head: ClassVar[bool] = True
    keeps_labels: ClassVar[bool] = False

    def __init__(
        self,
        *,
        head: Head | None = None,
        k: int = 10,
        bank: float | int | None = 0.01,
        calibration: float | None = None,
        tpr: float = 0.95,
        random_state: int | None = 0,
    ) -> None:
        self.head = head
        self.k = k
        self.bank = bank
        self.calibration = calibration
        self.tpr = tpr
        self.random_state = random_state

    def _made(self, sample: Sample) -> ProductBank:
        rows = sample.rows
        guides = np.empty(rows.shape)
        for part in chunks(len(rows), rows_per_chunk(rows.shape[1] + self._n_logits(rows.shape[1]))):
            guides[part] = unit_length(rows[part]) * energy(self._logits(rows[part]))[:, np.newaxis]
        return ProductBank.of(guides)

    def _add(self, sample: Sample, batches: Batches, n_features: int, found: set[Any]) -> Sample:
        self._check_head(n_features)
        return super()._add(sample, batches, n_features, found)

    def _name(self, found: set[Any], classes: NDArray[Any] | None, *, is_first: bool) -> None:
        n_logits = self._n_logits(self.n_features_in_)
        if classes is not None:
            self._name_logits(classes.tolist(), n_logits)
        elif is_first:
            self._name_logits(_sorted_names(found).tolist(), n_logits)
        else:
            self._join_names(self.classes_.tolist(), self._labels | found, n_logits)

    def _name_joined(self, joined: Self, other: Self) -> None:
        joined._join_names(self.classes_.tolist(), self._labels | other._labels, len(self.classes_))

    def _row_scores(self, features: NDArray[Any], logits: NDArray[np.float64]) -> NDArray[np.float64]:
        guidance = self._searched.mean_largest(unit_length(features), self.k)
        with np.errstate(over="ignore"):
            scores: NDArray[np.float64] = guidance * energy(logits)
        largest = np.finfo(np.float64).max
        return np.clip(scores, -largest, largest, out=scores)

    def _slack(self, scores: NDArray[np.float64]) -> NDArray[np.float64]:
        sizes = np.abs(scores)
        return np.asarray(FEATURE_ROUNDING * np.maximum(sizes, np.median(sizes)))

    def _state(self) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        tensors, values = super()._state()
        _, names = HeadDetector._state(self)
        return tensors, values | names

    def _restore(self, tensors: dict[str, NDArray[Any]], values: dict[str, Any]) -> None:
        HeadDetector._restore(self, tensors, values)
        self._restored(tensors, values)
        self._check_head(self.n_features_in_)
        self._ready = self._searched


def _sorted_names(names: set[Any]) -> NDArray[Any]:
    if len({isinstance(name, str) for name in names}) > 1:
        raise InputError("some labels are whole numbers and others strings; pass labels of one kind")
    return np.array(sorted(names))


def _refuse_outside(places: NDArray[np.int64], n_classes: int, name: str) -> None:
    if ((places < 0) | (places >= n_classes)).any():
        raise FileFormatError(f"the file's array {name!r} names classes that are not there; save the detector again")
