"""compare: every row scored once by every detector, and the metrics of what came out."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils.validation import check_is_fitted

from gem_ood.comparison.measured import DetectorComparison, check_set_name
from gem_ood.comparison.resampling import mean_intervals
from gem_ood.comparison.results import Comparison
from gem_ood.comparison.rows import RowSet, as_row_set
from gem_ood.detectors import MOS, Combine, Detector
from gem_ood.detectors.columns import without_names_warning
from gem_ood.detectors.registry import name_of
from gem_ood.detectors.results import Verdicts
from gem_ood.errors import InputError, NotFittedError
from gem_ood.metrics import Evaluation, evaluate

__all__ = ["compare"]

#: An array of features, or batches of (features, labels or None) such as an opened feature file.
Rows = ArrayLike | Iterable[tuple[ArrayLike, ArrayLike | None]]

#: A detector's first call on this many rows is not timed: it loads and factors what later calls find ready.
WARM_UP_ROWS = 8


def compare(
    detectors: Mapping[str, Detector] | Sequence[Detector],
    *,
    id: Rows,
    ood: Mapping[str, Rows],
    labels: ArrayLike | None = None,
    tpr: float = 0.95,
    convention: Literal["paper", "openood"] = "paper",
    intervals: Literal["bootstrap", "delong"] | None = None,
    confidence: float = 0.95,
    n_resamples: int = 200,
    random_state: int | np.random.Generator | None = 0,
    on_evaluated: Callable[[int, int], None] | None = None,
) -> Comparison:
    """Return how well detectors tell one in-distribution set from others; print the result for a table.

    Each set is read once, in batches, and only scores are kept. All detectors read the same rows: give one that scores
    logits the classifier's `head`, so that it reads features as the others do.

    Args:
        detectors: Fitted detectors by name, or a sequence of them, named by the registry.
        id: In-distribution rows that no fit has seen: an array, or batches such as an opened feature file.
        ood: Out-of-distribution rows, by name of the set.
        labels: One label per row of an `id` that is an array; then the error of the nearest class is measured too,
            of every detector whose classes bear these names.
        tpr: The true positive rate at which the false positive rate is read.
        convention: Of the metrics, as `gem_ood.metrics.evaluate`.
        intervals: Of the metrics, as `gem_ood.metrics.evaluate`; so are the three that follow. The mean over several
            sets has an interval where they are bootstrapped.
        confidence: Of each interval.
        n_resamples: How many bootstrap resamples to draw.
        random_state: Seed or generator of the resamples.
        on_evaluated: Called with the number of scores, of how many, that are evaluated so far: intervals take long.

    Example:
        >>> from gem_ood import GEM
        >>> rng = np.random.default_rng(0)
        >>> train, test, noise = (rng.normal(size=(n, 4)) for n in (200, 100, 50))
        >>> detectors = {"gem": GEM().fit(train), "unit length": GEM(normalize=True).fit(train)}
        >>> result = compare(detectors, id=test, ood={"noise": 3.0 * noise, "far": 9.0 + noise})
        >>> result.best("fpr", "noise"), result.detectors["gem"].mean("fpr")
        (('gem',), 0.02)
        >>> print(result.to_text(metrics=["fpr", "auroc"], time=False))
                           noise                far                 mean
        detector     FPR95 ↓  AUROC ↑    FPR95 ↓  AUROC ↑    FPR95 ↓  AUROC ↑
        gem            4.00*   98.94*      0.00*  100.00*      2.00*   99.47*
        unit length   92.00    51.26     100.00    16.80      96.00    34.03
        * best on its set, as rounded
        In percent, paper convention: 100 in-distribution rows against noise (50), far (50)
    """
    named = _named(detectors)
    _check_sets(named, ood)
    _check_numbers(tpr, convention, intervals, confidence, n_resamples)
    inside = as_row_set(id, "id", labels=labels, with_labels=True)
    outside = {name: as_row_set(rows, f"ood[{name!r}]") for name, rows in ood.items()}
    for rows in (inside, *outside.values()):  # as much as can be known before the long work
        for name, detector in named.items():
            rows.refuse_detector(name, detector, rows.n_features)
    id_answers = _answers(named, inside, warm_up=True)
    ood_answers = {name: _answers(named, rows) for name, rows in outside.items()}
    options: dict[str, Any] = {
        "tpr": tpr,
        "convention": convention,
        "confidence": confidence,
        "n_resamples": n_resamples,
        "random_state": random_state,
    }
    any_name = next(iter(named))
    n_ood = {key: answers[any_name].n_rows for key, answers in ood_answers.items()}
    n_id = id_answers[any_name].n_rows
    n_passes = 2 if intervals == "bootstrap" and len(n_ood) > 1 else 1  # the sets, then their mean
    n_scores = n_passes * len(named) * sum(n_id + n_rows for n_rows in n_ood.values())
    measuring = _Measuring(intervals, options, n_scores, on_evaluated)
    compared = {
        name: _compared(id_answers[name], {key: answers[name] for key, answers in ood_answers.items()}, measuring)
        for name in named
    }
    return Comparison(compared, n_id, n_ood, float(tpr), convention, intervals, float(confidence))


@dataclass
class _Answers:
    """What one detector said of one set, gathered batch by batch."""

    is_calibrated: bool
    scores: list[NDArray[np.float64]] = field(default_factory=list)
    n_rows: int = 0
    n_flagged: int = 0
    n_wrong: int | None = 0
    seconds: float = 0.0

    def joined(self) -> NDArray[np.float64]:
        return np.concatenate(self.scores)

    @property
    def flagged(self) -> float | None:
        return self.n_flagged / self.n_rows if self.is_calibrated else None


@dataclass
class _Measuring:
    """Scores become metrics and intervals, with word of how far it is."""

    intervals: Literal["bootstrap", "delong"] | None
    options: dict[str, Any]
    n_scores: int
    on_evaluated: Callable[[int, int], None] | None
    n_done: int = 0

    def evaluated(self, inside: NDArray[np.float64], outside: NDArray[np.float64]) -> Evaluation:
        evaluation = evaluate(inside, outside, intervals=self.intervals, **self.options)
        self._advance(inside, outside)
        return evaluation

    def mean_intervals(
        self, inside: NDArray[np.float64], outside: Sequence[NDArray[np.float64]]
    ) -> dict[str, tuple[float, float]] | None:
        if self.intervals != "bootstrap" or len(outside) < 2:
            return None
        found = mean_intervals(inside, outside, **self.options)
        for scores in outside:
            self._advance(inside, scores)
        return found

    def _advance(self, inside: NDArray[np.float64], outside: NDArray[np.float64]) -> None:
        self.n_done += len(inside) + len(outside)
        if self.on_evaluated is not None:
            self.on_evaluated(self.n_done, self.n_scores)


def _compared(inside: _Answers, outside: Mapping[str, _Answers], measuring: _Measuring) -> DetectorComparison:
    id_scores, ood_scores = inside.joined(), {key: answers.joined() for key, answers in outside.items()}
    seconds = inside.seconds + sum(answers.seconds for answers in outside.values())
    n_rows = inside.n_rows + sum(answers.n_rows for answers in outside.values())
    flagged = {key: answers.flagged for key, answers in outside.items()}
    return DetectorComparison(
        evaluations={key: measuring.evaluated(id_scores, scores) for key, scores in ood_scores.items()},
        id_error=None if inside.n_wrong is None else inside.n_wrong / inside.n_rows,
        id_kept=None if inside.flagged is None else 1.0 - inside.flagged,
        flagged={key: share for key, share in flagged.items() if share is not None} if inside.is_calibrated else None,
        seconds_per_10k=10_000 * seconds / n_rows,
        mean_intervals=measuring.mean_intervals(id_scores, list(ood_scores.values())),
    )


def _answers(detectors: Mapping[str, Detector], rows: RowSet, *, warm_up: bool = False) -> dict[str, _Answers]:
    answers = {name: _Answers(detector.is_calibrated) for name, detector in detectors.items()}
    for features, labels in rows.batches():
        for name, detector in detectors.items():
            rows.refuse_detector(name, detector, features.shape[1])
            if warm_up and answers[name].n_rows == 0:
                _verdicts(name, detector, features[:WARM_UP_ROWS])
            _add(answers[name], name, detector, features, labels)
    return answers


def _add(answers: _Answers, name: str, detector: Detector, features: NDArray[Any], labels: NDArray[Any] | None) -> None:
    started = time.perf_counter()
    verdicts = _verdicts(name, detector, features)
    answers.seconds += time.perf_counter() - started
    answers.scores.append(verdicts.score)
    answers.n_rows += len(features)
    if verdicts.is_ood is not None:
        answers.n_flagged += int(np.count_nonzero(verdicts.is_ood))
    classes = _classes(detector, features.shape[1])
    answers.n_wrong = _add_wrong(answers.n_wrong, classes, verdicts.nearest_class, labels)


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


def _named(detectors: Mapping[str, Detector] | Sequence[Detector]) -> dict[str, Detector]:
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


def _check_sets(detectors: Mapping[str, Detector], ood: Mapping[str, Rows]) -> None:
    if not isinstance(ood, Mapping):
        raise InputError(
            f"ood is a {type(ood).__name__}; pass the rows of each set by its name, such as {{'noise': X}}"
        )
    if not detectors or not ood:
        raise InputError("nothing to compare; pass at least one detector and one out-of-distribution set")
    for name in ood:
        check_set_name(name)


def _check_numbers(tpr: float, convention: Any, intervals: Any, confidence: float, n_resamples: int) -> None:
    """Raise before the long work what `evaluate` would raise after it."""
    quick = None if intervals == "bootstrap" else intervals
    evaluate(
        [1.0, 2.0], [0.0, 1.5], tpr=tpr, convention=convention, intervals=quick, confidence=confidence,
        n_resamples=n_resamples,
    )  # fmt: skip
