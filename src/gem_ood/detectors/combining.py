"""Combine: several detectors with one verdict that keeps its guarantee.

The scores of the parts become conformal p-values, these are joined into one number, and that number is calibrated on
held-out rows like any other score (B9). The parts may depend on each other in any way: the threshold is not read from a
table for independent p-values but from rows that neither the parts nor their p-values have seen.
"""

import math
from collections.abc import Sequence
from copy import copy
from functools import partial
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import clone
from sklearn.utils.validation import validate_data

from gem_ood.batches import Batches, SpreadBatches
from gem_ood.detectors.base import Detector
from gem_ood.detectors.packing import refuse_damaged, take, take_draws, whole
from gem_ood.detectors.sampling import ContentSampler, Part, Sample
from gem_ood.errors import CalibrationSizeError, FileFormatError, InputError
from gem_ood.features import as_features, is_share
from gem_ood.thresholds import Joining, RankedScores, check_joining, join_log_p_values, log_p_values

__all__ = ["Combine"]

#: So many training rows stand in for the reference until `calibrate` brings held-out ones.
SAMPLE_ROWS = 2000

#: Joined scores are logs of p-values: steps of the reference, and a continuous tail beyond it.
JOINT_ROUNDING = 1e-9


class Combine(Detector):
    """Several detectors in one: their conformal p-values joined, and the result calibrated anew (B9).

    `calibrate` deals the held-out rows into two: the scores of the first lot are the reference among which a part's
    score has its p-value, and the joined p-values of the second set the threshold. Both guarantees therefore hold for
    the joint verdict, conformal and PAC, however the parts depend on each other. Before `calibrate`, a sample of the
    training rows is the reference: the ranking is there, but a network is surer of rows that it was trained on. The
    sample, at most 2,000 rows, is saved with the detector, so that a loaded one can stream and merge. From rows that
    are spread over a cluster it is drawn by content: it differs from that of `fit`, but is the same however the rows
    are parted.

    Args:
        detectors: The parts; `fit` fits copies of them. All must read features, through a head where they need one, or
            all logits. The first names the nearest class.
        method: `"fisher"` (Σ log p), `"minimum"` or `"cauchy"`, as `gem_ood.thresholds.join_log_p_values`.
        reference: The share of the calibration rows that serve as reference.
        calibration: Share of the rows of `fit` to hold back and calibrate on; None never calibrates in `fit`.
        tpr: The share of in-distribution rows to keep where `calibrate` is not told otherwise.
        random_state: Seed of the deal, of the sample and of the hold-out.

    Attributes:
        detectors_: The fitted parts.

    >>> from gem_ood import GEM, KNN
    >>> rng = np.random.default_rng(0)
    >>> X, y = rng.normal(size=(600, 2)) + 9.0 * (np.arange(600) % 2)[:, None], np.arange(600) % 2
    >>> both = Combine([GEM(), KNN(k=5, normalize=False)]).fit(X[:300], y[:300]).calibrate(X[300:], tpr=0.95)
    >>> both.predict([[0.0, 0.0], [9.0, 9.0], [4.5, 4.5]])
    array([ 1,  1, -1])
    """

    detectors_: list[Any]
    _sample: Sample | None = None
    _references: list[NDArray[np.float64]] | None = None

    def __init__(
        self,
        detectors: Sequence[Detector] = (),
        *,
        method: Joining = "fisher",
        reference: float = 0.5,
        calibration: float | None = None,
        tpr: float = 0.95,
        random_state: int | None = 0,
    ) -> None:
        self.detectors = detectors
        self.method = method
        self.reference = reference
        self.calibration = calibration
        self.tpr = tpr
        self.random_state = random_state

    @property
    def reads_logits(self) -> bool:
        """Whether X is logits: so it is if the parts read logits."""
        return len(self.detectors) > 0 and all(part.reads_logits for part in self.detectors)

    @property
    def uses_labels(self) -> bool:
        """Whether labels matter to the fit of any part."""
        return any(part.uses_labels for part in self.detectors)

    @property
    def classes_(self) -> NDArray[Any]:
        """Names of the classes, as the first part has them."""
        classes: NDArray[Any] = self.detectors_[0].classes_
        return classes

    def part_p_values(self, X: ArrayLike) -> NDArray[np.float64]:
        """Return the p-value of each row under each part, n × parts: which of them speak for out-of-distribution."""
        return np.exp(self._log_p(self._evidence(self._checked(X))))

    # Fitting

    def _check_options(self) -> None:
        super()._check_options()
        check_joining(self.method)
        if not is_share(self.reference) or self.reference in (0.0, 1.0):
            raise InputError(f"reference is {self.reference!r}; pass a share between 0 and 1, such as 0.5")
        if isinstance(self.detectors, Detector) or not isinstance(self.detectors, Sequence) or not self.detectors:
            raise InputError(f"detectors is {self.detectors!r}; pass a list of at least one detector")
        for part in self.detectors:
            if not isinstance(part, Detector):
                raise InputError(f"detectors holds a {type(part).__name__}; pass detectors such as GEM()")
            if part.calibration is not None:
                raise InputError(f"{part!r} has calibration set; set it on Combine instead")
            part._check_options()
        if len({part.reads_logits for part in self.detectors}) > 1:
            names = ", ".join(type(part).__name__ for part in self.detectors if part.reads_logits)
            raise InputError(f"{names} would read logits and the other parts features; pass head=Head(weight, bias)")

    def _learn(self, batches: Batches, *, n_features: int, classes: NDArray[Any] | None) -> None:
        parts: list[Detector] = [clone(part) for part in self.detectors]
        for part in parts:
            part.fit_batches(batches, classes=classes)
        sample = self._sampled(batches, n_features)
        self.detectors_, self._sample, self._references = parts, sample, None
        self._references = self._provisional()

    def _check_spread(self) -> None:
        for part in self.detectors:
            part._check_spread()

    def _sampled(self, batches: Batches, n_features: int) -> Sample:
        if isinstance(batches, SpreadBatches):
            sampler = ContentSampler.of(size=SAMPLE_ROWS, n_features=n_features, seed=self.random_state)
            return batches.reduce(partial(_sample_part, sampler=sampler), sampler.merge)
        sample = Sample()
        for X, _ in batches:
            sample = sample.add(as_features(X), size=SAMPLE_ROWS, seed=self.random_state)
        return sample

    def partial_fit(self, X: ArrayLike, y: ArrayLike | None = None, *, classes: ArrayLike | None = None) -> Self:
        """Add a batch of rows to what the parts learned; the threshold, if any, is forgotten.

        Every part must be able to stream. Arguments are those of the parts' own `partial_fit`.
        """
        self._check_options()
        self._require_verb("partial_fit", "stream; use fit or fit_batches")
        is_first = "detectors_" not in self.__dict__
        with self._all_or_nothing():
            features = as_features(X) if is_first else self._checked(X)
            validate_data(self, X, reset=is_first, skip_check_array=True)
            parts = [clone(part) for part in self.detectors] if is_first else [_twin(part) for part in self.detectors_]
            for part in parts:
                part.partial_fit(features, y, classes=classes)
            sample = (self._sample or Sample()).add(features, size=SAMPLE_ROWS, seed=self.random_state)
            self.detectors_, self._sample, self._references = parts, sample, None
            self.n_features_in_ = features.shape[1]
            self._forget_calibration()
        return self

    def merge(self, other: Self) -> Self:
        """Return a new, uncalibrated detector fitted to the rows of both; neither of the two changes."""
        if type(other) is not type(self) or len(other.detectors) != len(self.detectors):
            raise InputError("only a Combine of the same parts can be merged into this one; pass such a one")
        self._require_verb("merge", "be merged; fit to all rows at once")
        joined = self._merged(other)
        joined.detectors_ = [mine.merge(its) for mine, its in zip(self.detectors_, other.detectors_, strict=True)]
        joined._sample = self._kept_sample.merge(other._kept_sample, size=SAMPLE_ROWS)
        return joined

    def _require_verb(self, verb: str, remedy: str) -> None:
        for part in self.detectors:
            if not hasattr(part, verb):
                raise InputError(f"{type(part).__name__} cannot {remedy}")

    # Scores

    def _evidence(self, features: NDArray[Any], nearest: NDArray[np.intp] | None = None) -> NDArray[np.float64]:
        columns = []
        for place, part in enumerate(self.detectors_):  # the first of which names the nearest class
            columns.append(part._scores(part._checked(features), nearest if place == 0 else None))
        return np.column_stack(columns)

    def _scores(self, features: NDArray[Any], nearest: NDArray[np.intp] | None = None) -> NDArray[np.float64]:
        return join_log_p_values(self._log_p(self._evidence(features, nearest)), self.method)

    def _log_p(self, evidence: NDArray[np.float64]) -> NDArray[np.float64]:
        if self._references is None:
            self._references = self._provisional()
        columns = zip(self._references, evidence.T, strict=True)
        return np.column_stack([log_p_values(ordered, scores, assume_sorted=True) for ordered, scores in columns])

    @property
    def _kept_sample(self) -> Sample:
        self._require_fit()
        assert self._sample is not None  # every fit leaves one
        self._sample = self._sample.settled(SAMPLE_ROWS)
        return self._sample

    def _provisional(self) -> list[NDArray[np.float64]]:
        return self._ordered(self._evidence(self._kept_sample.rows))

    def _ordered(self, evidence: NDArray[np.float64]) -> list[NDArray[np.float64]]:
        """Return the reference of each part, lowered by rounding, so that a row ties with itself in any batch."""
        return [np.sort(scores) for scores in self._lowered(evidence).T]

    def _lowered(self, evidence: NDArray[np.float64]) -> NDArray[np.float64]:
        columns = zip(self.detectors_, evidence.T, strict=True)
        with np.errstate(invalid="ignore"):
            lowered = np.column_stack([scores - part._slack(scores) for part, scores in columns])
        return np.where(np.isinf(evidence), evidence, lowered)

    def _slack(self, scores: NDArray[np.float64], counts: NDArray[np.int64] | None = None) -> NDArray[np.float64]:
        return np.asarray(JOINT_ROUNDING * np.maximum(np.abs(scores), 1.0))

    def _details(self, features: NDArray[Any]) -> tuple[NDArray[np.float64], NDArray[np.float64] | None]:
        details: tuple[NDArray[np.float64], NDArray[np.float64] | None] = self.detectors_[0]._details(features)
        return details

    def _class_names(self, n_features: int) -> NDArray[Any]:
        names: NDArray[Any] = self.detectors_[0]._class_names(n_features)
        return names

    # Calibration

    def calibrate_scores(
        self,
        scores: ArrayLike,
        *,
        tpr: float | None = None,
        confidence: float | None = None,
        method: str | None = None,
        rounding: ArrayLike = 0.0,
    ) -> Self:
        """Set references and threshold from the `evidence` of held-out rows: one score per row and part.

        `rounding` is what may move the joined score of a row, one number or one per row, as in `Detector`.
        """
        self._require_fit()
        evidence, moves = np.asarray(scores, dtype=np.float64), np.asarray(rounding, dtype=np.float64)
        if evidence.ndim != 2 or evidence.shape[1] != len(self.detectors_):
            raise InputError(
                f"scores has shape {evidence.shape} but there are {len(self.detectors_)} parts; pass one score per row "
                f"and part, as evidence(X) returns"
            )
        if np.isnan(evidence).any():
            raise InputError(f"scores row {int(np.argmax(np.isnan(evidence).any(axis=1)))} holds NaN; mend that row")
        if moves.shape not in ((), (len(evidence),)):
            raise InputError(
                f"rounding has shape {moves.shape}; pass one number, or one for each of {len(evidence)} rows"
            )
        n_reference = max(1, math.floor(self.reference * len(evidence)))
        dealt = np.random.default_rng(self.random_state).permutation(len(evidence))
        first, second = np.sort(dealt[:n_reference]), np.sort(dealt[n_reference:])
        if len(second) == 0:
            raise CalibrationSizeError(f"{len(evidence)} row cannot be both reference and threshold; pass more rows")
        slack = moves if moves.ndim == 0 else moves[second]
        with self._all_or_nothing():
            self._references = self._ordered(evidence[first])
            # What rounding may do to the scores of the parts, it may do to the joined one.
            joint = join_log_p_values(self._log_p(self._lowered(evidence[second])), self.method)
            try:
                return super().calibrate_scores(joint, tpr=tpr, confidence=confidence, method=method, rounding=slack)
            except CalibrationSizeError as error:
                raise CalibrationSizeError(
                    f"{error} ({len(first)} of the {len(evidence)} rows serve as reference, the other {len(second)} "
                    f"set the threshold)"
                ) from error

    def calibrate_ranked(self, ranked: RankedScores, **options: Any) -> Self:
        """Raise: what calibrates a combination is one score per row and part, and these have no ranks."""
        raise InputError(
            "a Combine is calibrated on the scores of all its parts, row by row, which cannot be ranked; pass "
            "evidence(rows) of a sample of the rows to calibrate_scores"
        )

    # Storage

    def _state(self) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        from gem_ood.detectors.saving import pack

        references = self._references if self._references is not None else self._provisional()
        part, headers = self._kept_sample.parts[0], []
        tensors: dict[str, NDArray[Any]] = {"sample.rows": part.rows}
        if part.draws is not None:
            tensors["sample.draws"] = part.draws
        for place, (detector, ordered) in enumerate(zip(self.detectors_, references, strict=True)):
            arrays, header = pack(detector)
            tensors |= {f"part.{place}.{name}": array for name, array in arrays.items()}
            tensors[f"reference.{place}"] = ordered
            headers.append(header)
        return tensors, {"parts": headers, "n_seen": self._kept_sample.n_seen}

    def _restore(self, tensors: dict[str, NDArray[Any]], values: dict[str, Any]) -> None:
        from gem_ood.detectors.saving import unpack

        refuse_damaged(len(values["parts"]) != len(self.detectors), "parts", "differs in number from the options")
        self.detectors_, self._references = [], []
        for place, header in enumerate(values["parts"]):
            prefix = f"part.{place}."
            arrays = {name.removeprefix(prefix): array for name, array in tensors.items() if name.startswith(prefix)}
            self.detectors_.append(unpack(arrays, header, name=f"part {place}"))
            ordered = take(tensors, f"reference.{place}", (None,), is_finite=False)
            if len(ordered) == 0 or not (ordered[1:] >= ordered[:-1]).all():
                raise FileFormatError("a reference is empty or not in order; save the detector again")
            self._references.append(ordered)
        rows = take(tensors, "sample.rows", (None, None), itemsizes=(4, 8))
        draws, n_seen = take_draws(tensors, "sample.draws", len(rows)), whole(values["n_seen"], "n_seen")
        refuse_damaged(not 1 <= len(rows) <= min(n_seen, SAMPLE_ROWS), "sample.rows", f"is no sample of {n_seen} rows")
        self._sample, self.n_features_in_ = Sample((Part(rows, None, draws),), n_seen), rows.shape[1]
        widths = {part.n_features_in_ for part in self.detectors_}
        refuse_damaged(widths != {self.n_features_in_}, "parts", f"has parts of {widths} features")
        lengths = {len(ordered) for ordered in self._references}
        refuse_damaged(len(lengths) != 1, "reference", "has references of different rows")
        kinds = [type(part) for part in self.detectors_]
        if kinds != [type(part) for part in self.detectors]:
            raise FileFormatError("the parts differ from the options; save the detector again")


def _sample_part(batches: Batches, *, sampler: ContentSampler) -> Sample:
    sample = Sample()
    for X, _ in batches:
        sample = sampler.add(sample, as_features(X))
    return sampler.settled(sample)


def _twin(part: Detector) -> Any:
    """Return a copy that learns on without changing this one: what is learned is replaced, never changed in place.

    An accumulator at work is the exception, so the copy resumes from the statistics it has reached.
    """
    twin: Any = copy(part)
    if getattr(twin, "_accumulator", None) is not None:
        twin._statistics, twin._accumulator = twin.statistics_, None
    return twin
