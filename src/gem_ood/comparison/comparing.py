"""compare: every row scored once by every detector, and the metrics of what came out."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gem_ood.comparison.measured import DetectorComparison
from gem_ood.comparison.resampling import mean_intervals
from gem_ood.comparison.results import Comparison
from gem_ood.comparison.scoring import Answers, Rows, ScoredSets, named_detectors, score_sets
from gem_ood.detectors import Detector
from gem_ood.errors import InputError
from gem_ood.metrics import Evaluation, evaluate

__all__ = ["MeasureOptions", "compare", "measure"]


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
    named = named_detectors(detectors)
    if not named or (isinstance(ood, Mapping) and not ood):
        raise InputError("nothing to compare; pass at least one detector and one out-of-distribution set")
    options = MeasureOptions(tpr, convention, intervals, confidence, n_resamples, random_state)
    options.check()
    return measure(score_sets(named, id=id, ood=ood, labels=labels), options, on_evaluated=on_evaluated)


@dataclass(frozen=True)
class MeasureOptions:
    """How scores become metrics; the arguments of `compare`."""

    tpr: float = 0.95
    convention: Literal["paper", "openood"] = "paper"
    intervals: Literal["bootstrap", "delong"] | None = None
    confidence: float = 0.95
    n_resamples: int = 200
    random_state: int | np.random.Generator | None = 0

    def check(self) -> None:
        """Raise before the long work what `evaluate` would raise after it."""
        quick = None if self.intervals == "bootstrap" else self.intervals
        evaluate([1.0, 2.0], [0.0, 1.5], intervals=quick, **self.of_evaluate())

    def of_evaluate(self) -> dict[str, Any]:
        """Return all but the kind of intervals, as `evaluate` takes them."""
        names = ("tpr", "convention", "confidence", "n_resamples", "random_state")
        return {name: getattr(self, name) for name in names}


def measure(
    scored: ScoredSets, options: MeasureOptions, *, on_evaluated: Callable[[int, int], None] | None = None
) -> Comparison:
    """Return the metrics of rows that are scored; without an out-of-distribution set there are none but kept shares."""
    n_id, n_ood = scored.n_id, scored.n_ood
    n_passes = 2 if options.intervals == "bootstrap" and len(n_ood) > 1 else 1  # the sets, then their mean
    n_scores = n_passes * len(scored.id) * sum(n_id + n_rows for n_rows in n_ood.values())
    measuring = _Measuring(options.intervals, options.of_evaluate(), n_scores, on_evaluated)
    compared = {
        name: _compared(inside, {key: answers[name] for key, answers in scored.ood.items()}, measuring)
        for name, inside in scored.id.items()
    }
    return Comparison(
        compared, n_id, n_ood, float(options.tpr), options.convention, options.intervals, float(options.confidence)
    )


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


def _compared(inside: Answers, outside: Mapping[str, Answers], measuring: _Measuring) -> DetectorComparison:
    id_scores, ood_scores = inside.scores, {key: answers.scores for key, answers in outside.items()}
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
