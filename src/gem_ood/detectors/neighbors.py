"""KNN and NNGuide: detectors that keep a bank of training rows and compare new rows with the nearest of them."""

from typing import Any, ClassVar, Literal, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from gem_ood.batches import Batches
from gem_ood.detectors.bank_base import BankDetector, Gathered, Ready
from gem_ood.detectors.calibrated import LOGIT_ROUNDING
from gem_ood.detectors.head import Head
from gem_ood.detectors.head_reading import HeadDetector, feature_slack
from gem_ood.detectors.naming import sorted_names
from gem_ood.detectors.packing import claim, class_names, refuse_damaged, take
from gem_ood.detectors.sampling import Sample, check_seed
from gem_ood.errors import InputError
from gem_ood.features import chunks, is_count, rows_per_chunk, unit_length
from gem_ood.scores import energy
from gem_ood.scores.neighbors import Bank, Clusters, ProductBank, cluster

__all__ = ["KNN", "NNGuide"]

#: What rounding may leave of a distance of zero between two rows of length one.
UNIT_ROUNDING = 1e-15


class _LabelledBank(NamedTuple):
    """The bank of KNN, the place of each of its rows' class, if classes were named, and the lists its rows are in.

    Lists are of the rows as they were scaled, or not, when they were made.
    """

    bank: Bank
    places: NDArray[np.intp] | None
    clusters: Clusters | None
    is_scaled: bool


class KNN(BankDetector):
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
            but at least 1,000 rows, a whole number keeps so many. From rows that are spread over a cluster, of which
            not all can be kept, the sample is drawn by content: it differs from that of `fit`, but is the same however
            the rows are parted.
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
    bank_options: ClassVar[tuple[str, ...]] = ("normalize", "bank", "index", "probes")
    classes_: NDArray[Any]

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

    def _made(self, sample: Sample) -> tuple[Sample, _LabelledBank]:
        clusters = self._clusters_of(sample) if self.index == "clusters" else None
        if self.index == "clusters" and clusters is None:
            order, clusters = cluster(sample.rows, prepare=self._prepare, random_state=self.random_state)
            sample = sample.ordered(order)
        return sample, self._labelled(sample, clusters)

    def _clusters_of(self, sample: Sample) -> Clusters | None:
        """Return the lists there are, if they are of these very rows under the options of now."""
        ready = self._ready
        if ready is None or ready.sample is not sample or ready.bank.is_scaled != self.normalize:
            return None
        clusters: Clusters | None = ready.bank.clusters
        return clusters

    def _labelled(self, sample: Sample, clusters: Clusters | None) -> _LabelledBank:
        rows, labels, _ = sample.parts[0]
        probes = self.probes if clusters is None or self.probes is None else min(self.probes, len(clusters.centres))
        bank = Bank.of(rows, self._prepare, clusters=clusters, probes=probes)
        places = None if labels is None else np.searchsorted(self.classes_, labels)
        return _LabelledBank(bank, places, clusters, self.normalize)

    @property
    def _clusters(self) -> Clusters | None:
        clusters: Clusters | None = self._searched.clusters
        return clusters

    def _name(self, found: set[Any], classes: NDArray[Any] | None, *, is_first: bool) -> None:
        known = set() if is_first or not self._is_labelled else set(self.classes_.tolist())
        names = known | found | (set() if classes is None or not found else set(classes.tolist()))
        self.classes_ = np.array(sorted_names(names)) if names else np.zeros(1, dtype=np.int64)

    @property
    def _is_labelled(self) -> bool:
        return self._sample is not None and self._sample.parts[0].labels is not None

    def _name_joined(self, joined: Self, other: Self) -> None:
        joined.classes_ = np.array(sorted_names(set(self.classes_.tolist()) | set(other.classes_.tolist())))

    def _class_names(self, n_features: int) -> NDArray[Any]:
        return self.classes_

    def _scores(self, features: NDArray[Any], nearest: NDArray[np.intp] | None = None) -> NDArray[np.float64]:
        bank, places, *_ = self._searched
        distances: NDArray[np.float64] = bank.kth_distances(features, self.k, nearest)
        if nearest is not None:
            nearest[:] = 0 if places is None else places[nearest]
        return np.subtract(0.0, distances, out=distances)

    def _details(self, features: NDArray[Any]) -> tuple[NDArray[np.float64], NDArray[np.float64] | None]:
        bank, places, *_ = self._searched
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

    def _slack(self, scores: NDArray[np.float64], counts: NDArray[np.int64] | None = None) -> NDArray[np.float64]:
        # Differences of two rows are exact to the last place, so a distance is relatively; but scaling to unit length
        # rounds each entry by its own size, which shows where the distance is near zero.
        return LOGIT_ROUNDING * np.abs(scores) + (UNIT_ROUNDING if self.normalize else 0.0)

    def _state(self) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        tensors, values = super()._state()
        _, places, clusters, _ = self._searched
        if places is not None:
            tensors["bank.places"] = places.astype(np.int64)
        if clusters is not None:
            tensors["clusters.centres"], tensors["clusters.radii"] = clusters.centres, clusters.radii
            tensors["clusters.bounds"] = clusters.bounds
        return tensors, values | {"classes": self.classes_.tolist(), "is_labelled": places is not None}

    def _restore(self, tensors: dict[str, NDArray[Any]], values: dict[str, Any]) -> None:
        self.classes_ = class_names(values["classes"], is_sorted=True)
        part = self._restored(tensors, values)
        if claim(values["is_labelled"], "is_labelled"):
            places = take(tensors, "bank.places", (len(part.rows),), kind="i")
            is_outside = ((places < 0) | (places >= len(self.classes_))).any()
            refuse_damaged(is_outside, "bank.places", "names classes that are not there")
            part = part._replace(labels=self.classes_[places])
        else:
            refuse_damaged(len(self.classes_) != 1, "classes", "names classes, but the rows have no labels")
        sample = Sample((part,), int(values["n_seen"]))
        self._sample = sample
        if self.index == "clusters" and sample.settled(self.bank) is sample:
            bank = self._labelled(sample, _listed(tensors, part.rows, self._prepare))
            self._ready = Ready(self._bank_options_now, sample, bank)
        _ = self._searched


class NNGuide(BankDetector, HeadDetector):
    """Nearest-neighbour guidance of the energy (Park, Jung and Teoh, ICCV 2023).

    The score is G(z)·E(z), where E is the energy log Σ exp(logit) and the guidance G(z) the mean of the k largest of
    E(zᵢ)·cos(z, zᵢ) over the training rows zᵢ of the bank. A row of zeros has no direction: its guidance, and so its
    score, is 0. The product ranks rows as meant where energies are positive, as those of trained classifiers are.

    Args:
        head: The classifier's last layer; X is the features that it reads.
        k: How many neighbours guide; 10 in the paper.
        bank: Which training rows to keep: a share keeps about that share at random but at least 1,000 rows (1 % is the
            paper's for ImageNet), a whole number keeps so many, None keeps all. From rows that are spread over a
            cluster, of which not all can be kept, the sample is drawn by content: it differs from that of `fit`, but is
            the same however the rows are parted.
        calibration: Share of the rows of `fit` to hold back and calibrate on; None never calibrates in `fit`.
        tpr: The share of in-distribution rows to keep where `calibrate` is not told otherwise.
        random_state: Seed of the hold-out and of the rows that a bank keeps.

    >>> detector = NNGuide(head=Head([[1.0, 0.0], [0.0, 1.0]]), k=1).fit([[4.0, 0.0], [0.0, 4.0]])
    >>> detector.score_samples([[4.0, 0.0], [2.0, 2.0]]).round(3)
    array([16.146,  7.652])
    """

    needs_head: ClassVar[bool] = True
    keeps_labels: ClassVar[bool] = False
    bank_options: ClassVar[tuple[str, ...]] = ("head", "bank")

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

    def _made(self, sample: Sample) -> tuple[Sample, ProductBank]:
        rows = sample.rows
        guides = np.empty(rows.shape)
        for part in chunks(len(rows), rows_per_chunk(rows.shape[1] + self._n_logits(rows.shape[1]))):
            guides[part] = unit_length(rows[part]) * energy(self._logits(rows[part]))[:, np.newaxis]
        return sample, ProductBank.of(guides)

    def _gather(self, sample: Sample, batches: Batches, n_features: int) -> Gathered:
        self._check_head(n_features)
        return super()._gather(sample, batches, n_features)

    def _name(self, found: set[Any], classes: NDArray[Any] | None, *, is_first: bool) -> None:
        self._name_logits(found, classes, self.n_features_in_, anew=is_first)

    def _name_joined(self, joined: Self, other: Self) -> None:
        joined._join_names(self, other)

    def _row_scores(self, features: NDArray[Any], logits: NDArray[np.float64]) -> NDArray[np.float64]:
        guidance = self._searched.mean_largest(unit_length(features), self.k)
        with np.errstate(over="ignore"):
            scores: NDArray[np.float64] = guidance * energy(logits)
        largest = np.finfo(np.float64).max
        return np.clip(scores, -largest, largest, out=scores)

    def _slack(self, scores: NDArray[np.float64], counts: NDArray[np.int64] | None = None) -> NDArray[np.float64]:
        return feature_slack(scores, counts)

    def _state(self) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        tensors, values = super()._state()
        _, names = HeadDetector._state(self)
        return tensors, values | names

    def _restore(self, tensors: dict[str, NDArray[Any]], values: dict[str, Any]) -> None:
        HeadDetector._restore(self, tensors, values)
        self._restored(tensors, values)
        self._check_head(self.n_features_in_)
        _ = self._searched


def _listed(tensors: dict[str, NDArray[Any]], rows: NDArray[Any], prepare: Any) -> Clusters:
    """Return the lists of a file, where they hold every row once and none of it lies outside the radius of its list."""
    centres = take(tensors, "clusters.centres", (None, rows.shape[1]))
    radii = take(tensors, "clusters.radii", (len(centres),))
    bounds = take(tensors, "clusters.bounds", (len(centres) + 1,), kind="i")
    cuts = bounds[0] == 0 and bounds[-1] == len(rows) and bool((bounds[1:] >= bounds[:-1]).all())
    refuse_damaged(not cuts, "clusters.bounds", "does not cut the bank")
    refuse_damaged((radii < 0.0).any(), "clusters.radii", "holds a negative radius")
    lists = np.repeat(np.arange(len(centres)), np.diff(bounds))
    for part in chunks(len(rows), rows_per_chunk(rows.shape[1])):
        prepared = rows[part].astype(np.float64) if prepare is None else prepare(rows[part])
        offsets = np.abs(prepared / 2.0 - centres[lists[part]] / 2.0)  # halves, whose difference is within float64
        sizes = np.maximum(offsets.max(axis=1), np.finfo(np.float64).tiny)
        offsets /= sizes[:, np.newaxis]
        is_outside = sizes * np.sqrt(np.vecdot(offsets, offsets)) > radii[lists[part]] / 2.0
        refuse_damaged(is_outside.any(), "clusters.radii", "leaves rows outside their list")
    return Clusters(centres, radii, bounds)
