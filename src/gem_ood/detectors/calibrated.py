"""Calibrated: what a threshold from held-out rows makes of scores, for every detector.

The scores of these rows, or ranks of some of them where they are too many to hold, give the threshold, p-values and
verdicts.
"""

from abc import ABC, abstractmethod
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gem_ood.detectors.lowering import lowered_ranks, lowered_scores
from gem_ood.errors import InputError, NotCalibratedError
from gem_ood.features import as_scores
from gem_ood.thresholds import RankedScores, Threshold, benjamini_hochberg, choose_threshold, conformal_p_values
from gem_ood.thresholds.ranked import ranked_p_values

__all__ = ["LOGIT_ROUNDING", "Calibrated"]

#: Scores of logits are computed in float64, a few operations from the logits.
LOGIT_ROUNDING = 1e-12


class Calibrated(ABC):
    """What has scores and can be given a threshold; the part of `Detector` that needs nothing else."""

    tpr: float
    threshold_: Threshold
    calibration_scores_: NDArray[np.float64]
    calibration_ranks_: NDArray[np.int64] | None = None
    offset_: float

    # What a subclass provides

    @abstractmethod
    def score_samples(self, X: ArrayLike) -> NDArray[np.float64]:
        """Return one score per row; higher = more in-distribution."""

    @abstractmethod
    def evidence(self, X: ArrayLike) -> NDArray[np.float64]:
        """Return what `calibrate_scores` wants of each row."""

    @abstractmethod
    def _require_fit(self) -> None:
        """Raise unless there is something to score rows by."""

    def _slack(self, scores: NDArray[np.float64], counts: NDArray[np.int64] | None = None) -> NDArray[np.float64]:
        """Return how far rounding may move each of these scores; each stands for so many rows, or for one.

        A higher score less its slack is no lower than a lower one less its own.
        """
        return LOGIT_ROUNDING * np.abs(scores)

    # Calibration

    @property
    def is_calibrated(self) -> bool:
        """Whether the detector has a threshold."""
        return hasattr(self, "threshold_")

    def calibrate(
        self,
        X: ArrayLike | None = None,
        *,
        tpr: float | None = None,
        confidence: float | None = None,
        method: str | None = None,
    ) -> Self:
        """Set the threshold from held-out in-distribution rows; without X, move it using the rows of last time.

        Args:
            X: Rows that the fit has not seen.
            tpr: The share of in-distribution rows to keep; the detector's own `tpr` unless given.
            confidence: Ask for the PAC guarantee: with this confidence, at least `tpr` of new rows are kept.
            method: `"conformal"` (the default), `"pac"` (the default with confidence) or `"quantile"`.

        Raises:
            CalibrationSizeError: Too few rows for the guarantee; the message says how many are needed.
        """
        if X is not None:
            return self.calibrate_scores(self.evidence(X), tpr=tpr, confidence=confidence, method=method)
        self._require_calibration()
        return self._set_threshold(self.ranked_calibration or self.calibration_scores_, tpr, confidence, method)

    def calibrate_scores(
        self,
        scores: ArrayLike,
        *,
        tpr: float | None = None,
        confidence: float | None = None,
        method: str | None = None,
        rounding: ArrayLike = 0.0,
    ) -> Self:
        """Set the threshold from the `evidence` of held-out rows, as `calibrate` does from the rows themselves.

        The scores are lowered by what rounding may change in a row's score when it comes in a batch of another size:
        a row that ties with a calibration row must count as tied, or the guarantee would not hold for ties. `rounding`
        is the change to allow for where the rows themselves are computed, as a network's features are: one number, or
        one per score.
        """
        given = as_scores(scores)
        ordered = np.sort(lowered_scores(given, self._slack(given), rounding))
        return self._set_threshold(ordered, tpr, confidence, method)

    def calibrate_ranked(
        self,
        ranked: RankedScores,
        *,
        tpr: float | None = None,
        confidence: float | None = None,
        method: str | None = None,
        rounding: float = 0.0,
    ) -> Self:
        """Set the threshold from the scores of more held-out rows than can be held, ranked by `rank_scores`.

        In place of one score per row the detector keeps the ranked values, and so does its file. The threshold is that
        of `calibrate_scores` where the score of its order was kept, else the nearest value below, which keeps all that
        is promised; so it is too when `calibrate` moves the threshold later. P-values exceed those of all scores by the
        precision of `rank_scores` at the most, and keep their guarantee.

        Args:
            ranked: The scores of rows that the fit has not seen, as `score_samples` has them.
            tpr: The share of in-distribution rows to keep; the detector's own `tpr` unless given.
            confidence: Ask for the PAC guarantee: with this confidence, at least `tpr` of new rows are kept.
            method: `"conformal"` (the default), `"pac"` (the default with confidence) or `"quantile"`.
            rounding: As in `calibrate_scores`, one number.

        Raises:
            CalibrationSizeError: Too few rows for the guarantee; the message says how many are needed.

        >>> from gem_ood import GEM
        >>> from gem_ood.thresholds import rank_scores, threshold_order
        >>> rng = np.random.default_rng(0)
        >>> detector = GEM().fit(rng.normal(size=(100, 2)))
        >>> batches = [(detector.score_samples(rng.normal(size=(10_000, 2))), None) for _ in range(10)]
        >>> ranked = rank_scores(batches, orders=lambda n: [threshold_order(n, tpr=0.95).order])
        >>> detector.calibrate_ranked(ranked, tpr=0.95).threshold_.n_rows
        100000
        >>> len(detector.calibration_scores_) < 10_000
        True
        """
        self._require_fit()
        if not isinstance(ranked, RankedScores):
            raise InputError(f"ranked is a {type(ranked).__name__}; pass RankedScores, or scores to calibrate_scores")
        slack = self._slack(ranked.values, ranked.counts)
        return self._set_threshold(lowered_ranks(ranked, slack, rounding), tpr, confidence, method)

    @property
    def ranked_calibration(self) -> RankedScores | None:
        """What `calibrate_ranked` left of the calibration; None where `calibration_scores_` has one score per row."""
        if self.calibration_ranks_ is None:
            return None
        return RankedScores(self.calibration_scores_, self.calibration_ranks_, self.threshold_.n_rows)

    # Verdicts

    def decision_function(self, X: ArrayLike) -> NDArray[np.float64]:
        """Return score minus threshold: negative is out-of-distribution."""
        self._require_calibration()
        return self.score_samples(X) - self.offset_

    def predict(self, X: ArrayLike) -> NDArray[np.int64]:
        """Return +1 for rows in the distribution and −1 for rows out of it."""
        return np.where(self.is_ood(X), -1, 1)

    def is_ood(self, X: ArrayLike) -> NDArray[np.bool_]:
        """Return True for rows out of the distribution."""
        self._require_calibration()
        return self.score_samples(X) < self.offset_

    def p_values(self, X: ArrayLike) -> NDArray[np.float64]:
        """Return the conformal p-value of each row under "in-distribution"; small speaks for out."""
        self._require_calibration()
        return self._p_values(self.score_samples(X))

    def select_ood(self, X: ArrayLike, *, level: float = 0.1) -> NDArray[np.bool_]:
        """Return which rows of a batch to flag so that the expected share of false alarms among them is ≤ level."""
        return benjamini_hochberg(self.p_values(X), level=level)

    # What is kept

    def _set_threshold(
        self, kept: RankedScores | NDArray[np.float64], tpr: float | None, confidence: float | None, method: Any
    ) -> Self:
        options: dict[str, Any] = {"tpr": self.tpr if tpr is None else tpr, "confidence": confidence, "method": method}
        if isinstance(kept, RankedScores):
            threshold = kept.threshold(**options)
            self.calibration_scores_, self.calibration_ranks_ = kept.values, kept.ranks
        else:
            threshold = choose_threshold(kept, assume_sorted=True, **options)
            self.calibration_scores_, self.calibration_ranks_ = kept, None
        self.threshold_, self.offset_ = threshold, threshold.value
        return self

    def _p_values(self, scores: NDArray[np.float64]) -> NDArray[np.float64]:
        if self.calibration_ranks_ is None:
            return conformal_p_values(self.calibration_scores_, scores, assume_sorted=True)
        return ranked_p_values(self.calibration_scores_, self.calibration_ranks_, self.threshold_.n_rows, scores)

    def _forget_calibration(self) -> None:
        for name in ("threshold_", "calibration_scores_", "calibration_ranks_", "offset_"):
            self.__dict__.pop(name, None)

    def _require_calibration(self) -> None:
        if not self.is_calibrated:
            self._require_fit()
            raise NotCalibratedError(
                f"this {type(self).__name__} has no threshold yet; call calibrate(held_out_features, tpr=0.95) with "
                f"in-distribution rows that the fit has not seen"
            )
