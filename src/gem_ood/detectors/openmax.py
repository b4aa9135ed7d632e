"""OpenMax: the probability that a row belongs to none of the classes, by the tails of their distances."""

from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gem_ood.batches import Batches, reduce_rows
from gem_ood.detectors.head import Head
from gem_ood.detectors.head_reading import HeadDetector, feature_slack
from gem_ood.detectors.naming import names_found
from gem_ood.detectors.packing import refuse_damaged, take
from gem_ood.errors import FileFormatError, InputError
from gem_ood.features import is_count
from gem_ood.scores.openmax import DISTANCES, ActivationModel, ClassMeans, fit_weibull, openmax
from gem_ood.scores.probabilities import class_sums

__all__ = ["OpenMax"]

#: Distances are kept until this many wait, then all but the largest of each class are dropped.
ROWS_WAITING = 1 << 17

#: How far rounding may bring the log of a Weibull scale below the smallest it can be, 0.
SCALE_ROUNDING = 1e-9

#: How far rounding may move the mean logits of many rows, relative to the largest of them.
MEAN_ROUNDING = 1e-9


class OpenMax(HeadDetector):
    """OpenMax, which takes from the largest logits what an "unknown" logit then holds.

    Every class has the mean logits of its correctly classified rows and a Weibull distribution F of the largest
    distances of these rows to that mean. With v the logits of a row and i = 1 … α the rank of its α largest, those
    become v̂ = v · (1 − F(d) · (α + 1 − i)/α), the rest stay, and v̂₀ = Σ (v − v̂); P(unknown) is the softmax of v̂
    at v̂₀ (Bendale and Boult, CVPR 2016, algorithm 2). The score is log((1 − P)/P) = log Σ exp v̂ − v̂₀, which ranks
    rows as −P(unknown) does, but never rounds to a tie; P(unknown) = 1/(1 + exp(score)).

    The paper prints the weight (α − i)/α and e^{−(d/λ)^κ} in place of F, which would revise the rows near the mean; its
    authors' code, followed here, does not. Their code fits with libMR: the tail is moved so that its smallest distance
    is at 10,000 and the most likely Weibull distribution from zero is taken. So it is here, solved to full precision;
    libMR iterates to a tolerance of its own and gives no valid model where all distances are equal.

    A class with fewer correct rows than `tail_size` is fitted to those it has. One whose correct rows have no two
    different distances, or are none, has no model: its logit is never revised. At least one class must have a model.
    The cosine distance from or to a vector of zeros is 1.

    Args:
        head: The classifier's last layer, where X is features; without it X is logits.
        tail_size: How many of the largest distances of each class are fitted; 20 in the paper.
        alpha: How many of the largest logits are revised, all where there are fewer; 10 in the paper.
        distance: `"eucos"` (the paper's: Euclidean/200 + cosine), `"euclidean"` (also /200) or `"cosine"`.
        calibration: Share of the rows of `fit` to hold back and calibrate on; None never calibrates in `fit`.
        tpr: The share of in-distribution rows to keep where `calibrate` is not told otherwise.
        random_state: Seed of the hold-out.

    >>> rng = np.random.default_rng(0)
    >>> y = np.arange(100) % 2
    >>> X = rng.normal(size=(100, 2)) + 9.0 * np.eye(2)[y]
    >>> inside, outside = OpenMax().fit(X, y).score_samples([[9.0, 0.0], [9.0, 9.0]])
    >>> inside > 5.0, outside < -5.0
    (np.True_, np.True_)
    """

    _model: ActivationModel
    _distance: str  # that of the model, whatever the option says after the fit

    def __init__(
        self,
        *,
        head: Head | None = None,
        tail_size: int = 20,
        alpha: int = 10,
        distance: str = "eucos",
        calibration: float | None = None,
        tpr: float = 0.95,
        random_state: int | None = 0,
    ) -> None:
        self.head = head
        self.tail_size = tail_size
        self.alpha = alpha
        self.distance = distance
        self.calibration = calibration
        self.tpr = tpr
        self.random_state = random_state

    @property
    def uses_labels(self) -> bool:
        """Whether labels matter to the fit: they tell which rows are classified correctly."""
        return True

    def _check_options(self) -> None:
        super()._check_options()
        for name, value, least in (("tail_size", self.tail_size, 2), ("alpha", self.alpha, 1)):
            if not is_count(value, least=least):
                raise InputError(f"{name} is {value!r}; pass a whole number of at least {least}")
        if self.distance not in DISTANCES:
            raise InputError(f"distance is {self.distance!r}; pass one of {', '.join(map(repr, DISTANCES))}")

    def _learn(self, batches: Batches, *, n_features: int, classes: NDArray[Any] | None) -> None:
        self._check_head(n_features)
        n_logits = self._n_logits(n_features)
        names = names_found(batches) if classes is None else classes
        reader = self._blank()
        totals = reduce_rows(batches, partial(reader._totals, n_features=n_features, names=names), _Totals.merge)
        centres = ClassMeans(totals.means(), distance=self.distance)
        work = partial(reader._tails, n_features=n_features, names=names, centres=centres)
        tails = reduce_rows(batches, work, _Tails.merge)
        smallest, shapes, log_scales = np.zeros((3, n_logits))
        for place, tail in tails:
            shapes[place], log_scales[place] = fit_weibull(tail)
            smallest[place] = tail.min() if shapes[place] > 0.0 else 0.0
        if not shapes.any():
            raise InputError(
                "no class has two correctly classified rows at different distances from their mean; pass more rows, or "
                "labels and logits in the same order"
            )
        self._name_logits(totals.found, classes, n_features, anew=True)
        self._model, self._distance = ActivationModel(centres, smallest, shapes, log_scales), self.distance

    def _totals(self, batches: Batches, *, n_features: int, names: NDArray[Any] | None) -> "_Totals":
        n_logits = self._n_logits(n_features)
        sums, counts = np.zeros((n_logits, n_logits)), np.zeros(n_logits)
        found: set[Any] = set()
        for logits, places in self._correct(batches, n_features, names, found):
            with np.errstate(over="ignore", invalid="ignore"):
                sums += class_sums(logits, places, n_logits)
            counts += np.bincount(places, minlength=n_logits)
        return _Totals(sums, counts, found)

    def _tails(self, batches: Batches, *, n_features: int, names: NDArray[Any] | None, centres: ClassMeans) -> "_Tails":
        tails = _Tails(self._n_logits(n_features), int(self.tail_size))
        for logits, places in self._correct(batches, n_features, names):
            tails.add(places, centres.distances(logits, places[:, np.newaxis])[:, 0])
        tails.prune()
        return tails

    def _correct(
        self, batches: Batches, n_features: int, names: NDArray[Any] | None, found: set[Any] | None = None
    ) -> Iterator[tuple[NDArray[np.float64], NDArray[np.intp]]]:
        """Yield the logits of correctly classified rows and the places of their classes."""
        for chunk in self._chunks(batches, n_features, names, found):
            if chunk.places is None:
                continue
            is_correct = chunk.logits.argmax(axis=1) == chunk.places
            yield chunk.logits[is_correct].astype(np.float64, copy=False), chunk.places[is_correct]

    def _row_scores(self, features: NDArray[Any], logits: NDArray[np.float64]) -> NDArray[np.float64]:
        return openmax(logits, model=self._model, alpha=self.alpha)

    def _slack(self, scores: NDArray[np.float64], counts: NDArray[np.int64] | None = None) -> NDArray[np.float64]:
        return feature_slack(scores, counts)

    def _state(self) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        tensors, values = super()._state()
        model = self._model
        return tensors | {
            "openmax.means": model.centres.means,
            "openmax.smallest": model.smallest,
            "openmax.shapes": model.shapes,
            "openmax.log_scales": model.log_scales,
        }, values | {"distance": self._distance}

    def _restore(self, tensors: dict[str, NDArray[Any]], values: dict[str, Any]) -> None:
        super()._restore(tensors, values)
        n_logits = len(self.classes_)
        per_class = [take(tensors, f"openmax.{name}", (n_logits,)) for name in ("smallest", "shapes", "log_scales")]
        smallest, shapes, log_scales = per_class
        refuse_damaged((smallest < 0.0).any(), "openmax.smallest", "holds a negative distance")
        if (shapes < 0.0).any() or not shapes.any():
            raise FileFormatError("a Weibull shape of the file is negative, or all are zero; save the detector again")
        # The scale lies among the distances that were fitted, and the smallest of these is moved to the log of 1.
        refuse_damaged((log_scales < -SCALE_ROUNDING).any(), "openmax.log_scales", "holds no Weibull scales")
        means = take(tensors, "openmax.means", (n_logits, n_logits))
        # The mean is one of rows whose largest logit is that of the class.
        own = np.diag(means) + MEAN_ROUNDING * np.abs(means).max(axis=1)
        refuse_damaged((means.max(axis=1) > own).any(), "openmax.means", "holds no means of rows classified correctly")
        self._distance = values.get("distance", self.distance)  # that of the option where the file does not say
        refuse_damaged(self._distance not in DISTANCES, "distance", "is none that rows can be measured by")
        self._model = ActivationModel(ClassMeans(means, distance=self._distance), *per_class)


class _Totals(NamedTuple):
    """The sums of the logits of correctly classified rows of each class, how many they are, and all labels met."""

    sums: NDArray[np.float64]
    counts: NDArray[np.float64]
    found: set[Any]

    def merge(self, other: "_Totals") -> "_Totals":
        """Return the totals of the rows of both."""
        with np.errstate(over="ignore", invalid="ignore"):
            return _Totals(self.sums + other.sums, self.counts + other.counts, self.found | other.found)

    def means(self) -> NDArray[np.float64]:
        """Return the mean logits of each class; zeros for a class without rows."""
        if not np.isfinite(self.sums).all():
            raise InputError("the logits are too large for float64 to sum; scale them down")
        return np.asarray(self.sums / np.maximum(self.counts, 1.0)[:, np.newaxis])


class _Tails:
    """The largest distances of every class, kept while rows stream by."""

    def __init__(self, n_classes: int, size: int) -> None:
        self._n_classes = n_classes
        self._size = size
        self._limit = 2 * n_classes * size + ROWS_WAITING
        self._places: list[NDArray[np.intp]] = []
        self._distances: list[NDArray[np.float64]] = []
        self._n_waiting = 0

    def add(self, places: NDArray[np.intp], distances: NDArray[np.float64]) -> None:
        """Take the distances of rows of the classes at these places."""
        if not np.isfinite(distances).all():
            raise InputError("the logits are too large for float64 to hold their distances; scale them down")
        self._places.append(places)
        self._distances.append(distances)
        self._n_waiting += len(places)
        if self._n_waiting > self._limit:
            self.prune()

    def merge(self, other: "_Tails") -> "_Tails":
        """Return the largest distances of the rows of both."""
        joined = _Tails(self._n_classes, self._size)
        for tails in (self, other):
            for places, distances in zip(tails._places, tails._distances, strict=True):
                joined.add(places, distances)
        joined.prune()
        return joined

    def prune(self) -> None:
        """Drop all but the largest distances of each class."""
        if not self._n_waiting:
            return
        places, distances = np.concatenate(self._places), np.concatenate(self._distances)
        order = np.lexsort((-distances, places))
        places, distances = places[order], distances[order]
        rank = np.arange(len(places)) - np.searchsorted(places, places)
        kept = rank < self._size
        self._places, self._distances, self._n_waiting = [places[kept]], [distances[kept]], int(kept.sum())

    def __iter__(self) -> Iterator[tuple[int, NDArray[np.float64]]]:
        if not self._n_waiting:
            return
        self.prune()
        places, starts = np.unique(self._places[0], return_index=True)
        yield from zip(places.tolist(), np.split(self._distances[0], starts[1:]), strict=True)
