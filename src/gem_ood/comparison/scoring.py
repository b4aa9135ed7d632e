"""Scoring: every row of every set read once and judged by every detector, before any metric is chosen."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils.validation import check_is_fitted

from gem_ood.comparison.measured import check_set_name
from gem_ood.comparison.rows import RowSet, as_row_set
from gem_ood.detectors import MOS, Combine, Detector
from gem_ood.detectors.columns import without_names_warning
from gem_ood.detectors.registry import name_of
from gem_ood.detectors.results import Verdicts
from gem_ood.errors import InputError, NotFittedError

__all__ = ["Answers", "Rows", "ScoredBatch", "ScoredSets", "check_sets", "named_detectors", "score_sets"]

#: An array of features, or batches of (features, labels or None) such as an opened feature file.
Rows = ArrayLike | Iterable[tuple[ArrayLike, ArrayLike | None]]

#: A detector's first call on this many rows is not timed: it loads and factors what later calls find ready.
WARM_UP_ROWS = 8


@dataclass(frozen=True, eq=False)
class ScoredBatch:
    """Some rows as they pass by, for whoever wants more of them than scores.

    Attributes:
        ood: The name of their out-of-distribution set; None for in-distribution rows.
        first_row: The place of the first of them in its set.
        features: The rows.
        labels: Their labels, of in-distribution rows that have some.
        verdicts: By name of the detector.
    """

    ood: str | None
    first_row: int
    features: NDArray[Any]
    labels: NDArray[Any] | None
    verdicts: Mapping[str, Verdicts]


@dataclass
class Answers:
    """What one detector said of one set, gathered batch by batch."""

    is_calibrated: bool
    batches: list[NDArray[np.float64]] = field(default_factory=list)
    n_rows: int = 0
    n_flagged: int = 0
    n_wrong: int | None = 0
    seconds: float = 0.0

    @property
    def scores(self) -> NDArray[np.float64]:
        """One score per row."""
        if len(self.batches) > 1:
            self.batches = [np.concatenate(self.batches)]
        return self.batches[0]

    @property
    def flagged(self) -> float | None:
        """The share of rows that the threshold flags, if there is one."""
        return self.n_flagged / self.n_rows if self.is_calibrated else None


@dataclass(frozen=True, eq=False)
class ScoredSets:
    """The answers of every detector on every set.

    Attributes:
        id: On the in-distribution rows, by name of the detector.
        ood: By name of the out-of-distribution set, then of the detector; may be empty.
    """

    id: Mapping[str, Answers]
    ood: Mapping[str, Mapping[str, Answers]]

    @property
    def n_id(self) -> int:
        """Number of in-distribution rows."""
        return next(iter(self.id.values())).n_rows

    @property
    def n_ood(self) -> dict[str, int]:
        """Number of out-of-distribution rows, by name of the set."""
        return {key: next(iter(answers.values())).n_rows for key, answers in self.ood.items()}


def score_sets(
    detectors: Mapping[str, Detector],
    *,
    id: Rows,
    ood: Mapping[str, Rows],
    labels: ArrayLike | None = None,
    on_batch: Callable[[ScoredBatch], None] | None = None,
) -> ScoredSets:
    """Return what named detectors say of every row; `on_batch` sees the rows too, which are not kept."""
    check_sets(ood)
    inside = as_row_set(id, "id", labels=labels, with_labels=True)
    outside = {name: as_row_set(rows, f"ood[{name!r}]") for name, rows in ood.items()}
    for rows in (inside, *outside.values()):  # as much as can be known before the long work
        for name, detector in detectors.items():
            rows.refuse_detector(name, detector, rows.n_features)
    id_answers = _answers(detectors, inside, None, on_batch)
    return ScoredSets(id_answers, {name: _answers(detectors, rows, name, on_batch) for name, rows in outside.items()})


def check_sets(ood: Mapping[str, object]) -> None:
    """Raise if these are no sets by name."""
    if not isinstance(ood, Mapping):
        raise InputError(
            f"ood is a {type(ood).__name__}; pass the rows of each set by its name, such as {{'noise': X}}"
        )
    for name in ood:
        check_set_name(name)


def _answers(
    detectors: Mapping[str, Detector], rows: RowSet, ood: str | None, on_batch: Callable[[ScoredBatch], None] | None
) -> dict[str, Answers]:
    answers = {name: Answers(detector.is_calibrated) for name, detector in detectors.items()}
    n_read = 0
    for features, labels in rows.batches():
        verdicts: dict[str, Verdicts] = {}
        for name, detector in detectors.items():
            rows.refuse_detector(name, detector, features.shape[1])
            if ood is None and n_read == 0:
                _verdicts(name, detector, features[:WARM_UP_ROWS])
            verdicts[name] = _add(answers[name], name, detector, features, labels)
        if on_batch is not None:
            on_batch(ScoredBatch(ood, n_read, features, labels, verdicts))
        n_read += len(features)
    return answers


def _add(
    answers: Answers, name: str, detector: Detector, features: NDArray[Any], labels: NDArray[Any] | None
) -> Verdicts:
    started = time.perf_counter()
    verdicts = _verdicts(name, detector, features)
    answers.seconds += time.perf_counter() - started
    answers.batches.append(verdicts.score)
    answers.n_rows += len(features)
    if verdicts.is_ood is not None:
        answers.n_flagged += int(np.count_nonzero(verdicts.is_ood))
    classes = _classes(detector, features.shape[1])
    answers.n_wrong = _add_wrong(answers.n_wrong, classes, verdicts.nearest_class, labels)
    return verdicts


def _verdicts(name: str, detector: Detector, features: NDArray[Any]) -> Verdicts:
    try:
        with without_names_warning():
            return detector.verdicts(features)
    except (InputError, NotFittedError) as error:
        raise type(error)(f"{name}: {error}") from error


def _add_wrong(
    n_wrong: int | None, classes: NDArray[Any] | None, nearest: NDArray[Any], labels: NDArray[Any] | None
) -> int | None:
    if n_wrong is None or labels is None or classes is None or len(classes) < 2:
        return None
    # Places of logits are no names: labels that are words, or count from 1, would all be called wrong.
    if (classes.dtype.kind == "U") != (labels.dtype.kind == "U") or not np.isin(labels, classes).all():
        return None
    return n_wrong + int(np.count_nonzero(nearest != labels))


def _classes(detector: Detector, n_features: int) -> NDArray[Any] | None:
    """Return the names of a detector's classes; None for MOS, which counts the "others" logits among its places."""
    naming = detector
    while isinstance(naming, Combine):  # its first part names the nearest class
        naming = naming.detectors_[0]
    return None if isinstance(naming, MOS) else naming._class_names(n_features)


def named_detectors(detectors: Mapping[str, Detector] | Sequence[Detector]) -> dict[str, Detector]:
    """Return fitted detectors by name: those given, or those of the registry for a sequence."""
    if not isinstance(detectors, Mapping | Sequence):
        raise InputError(f"detectors is a {type(detectors).__name__}; pass fitted detectors by name, or a list of them")
    named = dict(detectors) if isinstance(detectors, Mapping) else _by_registered_name(detectors)
    for name, detector in named.items():
        if not isinstance(name, str) or not name.strip():
            raise InputError(f"a detector is named {name!r}; name each with a string that is not empty")
        if not isinstance(detector, Detector):
            raise InputError(f"{name!r} is a {type(detector).__name__}; pass a fitted detector")
        try:
            check_is_fitted(detector)
        except NotFittedError as error:
            raise NotFittedError(
                f"the {type(detector).__name__} detector {name!r} is not fitted yet; call fit(features, labels) first"
            ) from error
    return named


def _by_registered_name(detectors: Sequence[Any]) -> dict[str, Detector]:
    for detector in detectors:
        if not isinstance(detector, Detector):
            raise InputError(f"detectors holds a {type(detector).__name__}; pass fitted detectors")
    names = [_registered_name(detector) for detector in detectors]
    names = [
        " ".join(repr(detector).split()) if names.count(name) > 1 else name
        for name, detector in zip(names, detectors, strict=True)
    ]
    # Equal options too, such as one detector fitted to two sets: then only their places tell them apart.
    names = [f"{name} #{place + 1}" if names.count(name) > 1 else name for place, name in enumerate(names)]
    return dict(zip(names, detectors, strict=True))


def _registered_name(detector: Detector) -> str:
    try:
        return name_of(detector)
    except InputError:
        return type(detector).__name__
