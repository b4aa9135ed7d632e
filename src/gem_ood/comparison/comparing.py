"""compare: every row scored once by every detector, and the metrics of what came out."""

import time
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils.validation import check_is_fitted

from gem_ood.comparison.results import MEAN, Comparison, DetectorComparison
from gem_ood.comparison.rows import RowSet, open_rows
from gem_ood.detectors import Detector
from gem_ood.detectors.registry import name_of
from gem_ood.errors import InputError, NotFittedError
from gem_ood.metrics import evaluate

__all__ = ["compare"]

#: An array of features, or batches of (features, labels or None) such as an opened feature file.
Rows = ArrayLike | Iterable[tuple[ArrayLike, ArrayLike | None]]


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
) -> Comparison:
    """Return how well detectors tell one in-distribution set from others; print the result for a table.

    Each set is read once, in batches, and only scores are kept. All detectors read the same rows: give one that scores
    logits the classifier's `head`, so that it reads features as the others do.

    Args:
        detectors: Fitted detectors by name, or a sequence of them, named by the registry.
        id: In-distribution rows that no fit has seen: an array, or batches such as an opened feature file.
        ood: Out-of-distribution rows, by name of the set.
        labels: One label per row of an `id` that is an array; then the error of the nearest class is measured too.
        tpr: The true positive rate at which the false positive rate is read.
        convention: Of the metrics, as `gem_ood.metrics.evaluate`.
        intervals: Of the metrics, as `gem_ood.metrics.evaluate`; so are the three that follow.
        confidence: Of each interval.
        n_resamples: How many bootstrap resamples to draw.
        random_state: Seed or generator of the resamples.

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
    inside = open_rows(id, "id", labels=labels, with_labels=True)
    outside = {name: open_rows(rows, f"ood[{name!r}]") for name, rows in ood.items()}
    for rows in (inside, *outside.values()):  # as much as can be known before the long work
        for name, detector in named.items():
            rows.refuse_detector(name, detector, rows.n_features)
    id_answers = _answers(named, inside)
    ood_answers = {name: _answers(named, rows) for name, rows in outside.items()}
    options: dict[str, Any] = {
        "tpr": tpr,
        "convention": convention,
        "intervals": intervals,
        "confidence": confidence,
        "n_resamples": n_resamples,
        "random_state": random_state,
    }
    compared = {
        name: _compared(id_answers[name], {key: answers[name] for key, answers in ood_answers.items()}, options)
        for name in named
    }
    any_name = next(iter(named))
    n_ood = {key: answers[any_name].n_rows for key, answers in ood_answers.items()}
    n_id = id_answers[any_name].n_rows
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


def _compared(inside: _Answers, outside: Mapping[str, _Answers], options: dict[str, Any]) -> DetectorComparison:
    id_scores = inside.joined()
    seconds = inside.seconds + sum(answers.seconds for answers in outside.values())
    n_rows = inside.n_rows + sum(answers.n_rows for answers in outside.values())
    flagged = {key: answers.flagged for key, answers in outside.items()}
    return DetectorComparison(
        evaluations={key: evaluate(id_scores, answers.joined(), **options) for key, answers in outside.items()},
        id_error=None if inside.n_wrong is None else inside.n_wrong / inside.n_rows,
        id_kept=None if inside.flagged is None else 1.0 - inside.flagged,
        flagged={key: share for key, share in flagged.items() if share is not None} if inside.is_calibrated else None,
        seconds_per_10k=10_000 * seconds / n_rows,
    )


def _answers(detectors: Mapping[str, Detector], rows: RowSet) -> dict[str, _Answers]:
    answers = {name: _Answers(detector.is_calibrated) for name, detector in detectors.items()}
    for features, labels in rows.batches():
        for name, detector in detectors.items():
            rows.refuse_detector(name, detector, features.shape[1])
            _add(answers[name], name, detector, features, labels)
    return answers


def _add(answers: _Answers, name: str, detector: Detector, features: NDArray[Any], labels: NDArray[Any] | None) -> None:
    with warnings.catch_warnings():
        # Batches are arrays; the names of their columns were compared before.
        warnings.filterwarnings("ignore", "X does not have valid feature names", UserWarning)
        started = time.perf_counter()
        try:
            verdicts = detector.verdicts(features)
        except (InputError, NotFittedError) as error:
            raise type(error)(f"{name}: {error}") from error
        answers.seconds += time.perf_counter() - started
    answers.scores.append(verdicts.score)
    answers.n_rows += len(features)
    if verdicts.is_ood is not None:
        answers.n_flagged += int(np.count_nonzero(verdicts.is_ood))
    answers.n_wrong = _add_wrong(answers.n_wrong, detector, verdicts.nearest_class, labels)


def _add_wrong(
    n_wrong: int | None, detector: Detector, nearest: NDArray[Any], labels: NDArray[Any] | None
) -> int | None:
    if n_wrong is None or labels is None or len(getattr(detector, "classes_", (0, 1))) < 2:
        return None
    # Column numbers of logits are not comparable with labels that are words.
    if (nearest.dtype.kind == "U") != (labels.dtype.kind == "U"):
        return None
    return n_wrong + int(np.count_nonzero(nearest != labels))


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
        if not isinstance(name, str) or not name.strip():
            raise InputError(f"an out-of-distribution set is named {name!r}; name each with a string that is not empty")
    if MEAN in ood:
        raise InputError(f"an out-of-distribution set is named {MEAN!r}, as the mean over all sets is; rename it")


def _check_numbers(tpr: float, convention: Any, intervals: Any, confidence: float, n_resamples: int) -> None:
    """Raise before the long work what `evaluate` would raise after it."""
    quick = None if intervals == "bootstrap" else intervals
    evaluate(
        [1.0, 2.0], [0.0, 1.5], tpr=tpr, convention=convention, intervals=quick, confidence=confidence,
        n_resamples=n_resamples,
    )  # fmt: skip
