"""Thresholds from held-out in-distribution scores: quantile, conformal and PAC (P10, P11, B5).

All three cut at one of the calibration scores themselves: the j-th smallest. They differ in j, and so in what
is known about the share of new in-distribution rows that the threshold keeps (the true positive rate, TPR).
"""

import math
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import betaincc

from gem_ood.errors import CalibrationSizeError, InputError
from gem_ood.features import as_scores, is_count
from gem_ood.thresholds.probability import as_probability

__all__ = [
    "Method",
    "Threshold",
    "ThresholdOrder",
    "choose_threshold",
    "conformal_threshold",
    "pac_threshold",
    "quantile_threshold",
    "rows_needed",
    "threshold_order",
]

Method = Literal["quantile", "conformal", "pac"]

#: What `pac_threshold` promises with unless told otherwise.
DEFAULT_CONFIDENCE = 0.99


@dataclass(frozen=True)
class Threshold:
    """A cut on scores, and what is known about it: a row is in when its score is at or above `value`.

    Attributes:
        value: The calibration score to cut at.
        tpr: The share of in-distribution rows that was asked to be kept.
        confidence: How sure the PAC guarantee is; None for the other methods.
        method: "quantile", "conformal" or "pac".
        n_rows: How many calibration rows there were.
        order: The j of B5: `value` is the j-th smallest calibration score, counted from 1.

    Example:
        >>> threshold = conformal_threshold(range(1000), tpr=0.95)
        >>> threshold.value, threshold.order
        (49.0, 50)
        >>> print(threshold.guarantee)
        Averaged over draws of the 1000 calibration rows, at least 95% of new in-distribution rows are kept,
        if new rows and calibration rows are exchangeable.
    """

    value: float
    tpr: float
    confidence: float | None
    method: Method
    n_rows: int
    order: int

    @property
    def guarantee(self) -> str:
        """What is promised, in one sentence."""
        kept = f"{_percent(self.tpr)} of"
        if self.method == "pac" and self.confidence is not None:
            return (
                f"With {_percent(self.confidence)} confidence over the draw of the {self.n_rows} calibration "
                f"rows, at least {kept} new in-distribution rows are kept, if new rows and calibration rows "
                f"are independent draws from one distribution."
            )
        if self.method == "conformal":
            return (
                f"Averaged over draws of the {self.n_rows} calibration rows, at least {kept} new "
                f"in-distribution rows are kept, if new rows and calibration rows are exchangeable."
            )
        return f"At least {kept} the {self.n_rows} calibration rows are kept; nothing is promised for new rows."


@dataclass(frozen=True)
class ThresholdOrder:
    """Which of the calibration scores a threshold cuts at, known from their number alone.

    Attributes:
        tpr: The share of in-distribution rows that was asked to be kept.
        confidence: How sure the PAC guarantee is; None for the other methods.
        method: "quantile", "conformal" or "pac".
        n_rows: How many calibration rows there are.
        order: The j of B5: the threshold is the j-th smallest calibration score, counted from 1.
    """

    tpr: float
    confidence: float | None
    method: Method
    n_rows: int
    order: int

    def at(self, value: float) -> Threshold:
        """Return the threshold, given the score of this order."""
        return Threshold(value, self.tpr, self.confidence, self.method, self.n_rows, self.order)


def quantile_threshold(scores: ArrayLike, *, tpr: float = 0.95, assume_sorted: bool = False) -> Threshold:
    """Return the largest of the scores that keeps at least the share tpr of these very rows.

    It is the field's usual threshold; about half of the time it keeps less than tpr of new rows.

    Args:
        scores: One score per held-out in-distribution row.
        tpr: The share of rows to keep.
        assume_sorted: Promise, unchecked, that the scores ascend, which saves sorting them.

    Example:
        >>> quantile_threshold([4.0, 1.0, 3.0, 2.0], tpr=0.75).value
        2.0
    """
    return choose_threshold(scores, tpr=tpr, method="quantile", assume_sorted=assume_sorted)


def conformal_threshold(scores: ArrayLike, *, tpr: float = 0.95, assume_sorted: bool = False) -> Threshold:
    """Return the threshold that keeps at least the share tpr of new in-distribution rows on average (B5).

    The average runs over calibration sets: one unlucky set may keep less. For a promise about the set at
    hand, use `pac_threshold`.

    Args:
        scores: One score per held-out in-distribution row, exchangeable with the rows to come.
        tpr: The share of rows to keep.
        assume_sorted: Promise, unchecked, that the scores ascend, which saves sorting them.

    Raises:
        CalibrationSizeError: There are fewer than `rows_needed(tpr=tpr)` rows.

    Example:
        >>> conformal_threshold(range(1, 20), tpr=0.95).value
        1.0
    """
    return choose_threshold(scores, tpr=tpr, method="conformal", assume_sorted=assume_sorted)


def pac_threshold(
    scores: ArrayLike,
    *,
    tpr: float = 0.95,
    confidence: float = DEFAULT_CONFIDENCE,
    assume_sorted: bool = False,
) -> Threshold:
    """Return the threshold that, with the given confidence, keeps at least the share tpr of new ID rows (B5).

    Args:
        scores: One score per held-out in-distribution row, drawn independently like the rows to come.
        tpr: The share of rows to keep.
        confidence: The probability, over the draw of the calibration rows, that the share is kept.
        assume_sorted: Promise, unchecked, that the scores ascend, which saves sorting them.

    Raises:
        CalibrationSizeError: There are fewer than `rows_needed(tpr=tpr, confidence=confidence)` rows.

    Example:
        >>> pac_threshold(range(1000), tpr=0.95, confidence=0.95).order
        39
    """
    as_probability(confidence, name="confidence")  # None stands for no default here
    return choose_threshold(scores, tpr=tpr, confidence=confidence, method="pac", assume_sorted=assume_sorted)


def choose_threshold(
    scores: ArrayLike,
    *,
    tpr: float = 0.95,
    confidence: float | None = None,
    method: Method | None = None,
    assume_sorted: bool = False,
) -> Threshold:
    """Return the threshold of the named method; without a name, PAC if a confidence is asked, else conformal.

    Args:
        scores: One score per held-out in-distribution row.
        tpr: The share of rows to keep.
        confidence: How sure the PAC guarantee is; method="pac" alone means 0.99. The other methods have none.
        method: "quantile", "conformal" or "pac".
        assume_sorted: Promise, unchecked, that the scores ascend, which saves sorting them.

    Example:
        >>> choose_threshold(range(1000), confidence=0.99).method
        'pac'
    """
    array = as_scores(scores)
    chosen = threshold_order(len(array), tpr=tpr, confidence=confidence, method=method)
    ordered = array if assume_sorted else np.partition(array, chosen.order - 1)
    return chosen.at(float(ordered[chosen.order - 1]))


def threshold_order(
    n_rows: int, *, tpr: float = 0.95, confidence: float | None = None, method: Method | None = None
) -> ThresholdOrder:
    """Return which of n_rows calibration scores, in order, is the threshold: `choose_threshold` without the scores.

    Args:
        n_rows: How many held-out in-distribution rows there are.
        tpr: The share of rows to keep.
        confidence: How sure the PAC guarantee is; method="pac" alone means 0.99. The other methods have none.
        method: "quantile", "conformal" or "pac".

    Raises:
        CalibrationSizeError: There are fewer than `rows_needed` rows.

    Example:
        >>> threshold_order(100_000_000, tpr=0.95).order
        5000000
    """
    if not is_count(n_rows):
        raise InputError(f"n_rows is {n_rows!r}; pass the number of calibration rows")
    if method is None:
        method = "conformal" if confidence is None else "pac"
    if method not in ("quantile", "conformal", "pac"):
        raise InputError(f'method must be "quantile", "conformal", "pac" or None but is {method!r}; pass one of these')
    if confidence is not None and method != "pac":
        raise InputError(
            f'method="{method}" has no confidence but confidence is {confidence!r}; pass method="pac", or drop one'
        )
    share, sureness, n = as_probability(tpr, name="tpr"), None, int(n_rows)
    if method == "quantile":
        order = math.floor((1 - share) * n) + 1
    elif method == "conformal":
        order = math.floor((1 - share) * (n + 1))
    else:
        sureness = as_probability(DEFAULT_CONFIDENCE if confidence is None else confidence, name="confidence")
        order = _pac_order(n, share, sureness)
    if order < 1:
        _refuse_too_few(n, share, sureness)
    return ThresholdOrder(float(share), None if sureness is None else float(sureness), method, n, order)


def rows_needed(*, tpr: float, confidence: float | None = None) -> int:
    """Return the smallest number of calibration rows with which the guarantee can be given.

    Example:
        >>> rows_needed(tpr=0.95), rows_needed(tpr=0.95, confidence=0.99)
        (19, 90)
    """
    sureness = None if confidence is None else as_probability(confidence, name="confidence")
    return _rows_needed(as_probability(tpr, name="tpr"), sureness)


def _rows_needed(share: Fraction, sureness: Fraction | None) -> int:
    if sureness is None:
        return math.ceil(1 / (1 - share)) - 1
    n_rows = max(1, math.ceil(math.log(1 - sureness) / math.log(share)))
    # The quotient of logarithms rounds; the test that the threshold itself uses decides.
    while n_rows > 1 and _misses_rarely(1, n_rows - 1, share, sureness):
        n_rows -= 1
    while not _misses_rarely(1, n_rows, share, sureness):
        n_rows += 1
    return n_rows


def _pac_order(n_rows: int, share: Fraction, sureness: Fraction) -> int:
    enough, too_many = 0, n_rows + 1  # the order wanted is the last one that misses rarely enough
    while too_many - enough > 1:
        middle = (enough + too_many) // 2
        if _misses_rarely(middle, n_rows, share, sureness):
            enough = middle
        else:
            too_many = middle
    return enough


def _misses_rarely(order: int, n_rows: int, share: Fraction, sureness: Fraction) -> bool:
    # P(Bin(n, α) <= j - 1) <= δ, the binomial tail written as an incomplete beta function, which takes any n.
    tail = betaincc(order, n_rows - order + 1, float(1 - share))
    return bool(tail <= float(1 - sureness))


def _refuse_too_few(n_rows: int, share: Fraction, sureness: Fraction | None) -> None:
    promise = f"tpr={float(share)}" + ("" if sureness is None else f" with confidence={float(sureness)}")
    lower = "tpr" if sureness is None else "tpr or confidence"
    raise CalibrationSizeError(
        f"{promise} needs at least {_rows_needed(share, sureness)} calibration rows but {n_rows} came; pass "
        f"more rows, or ask for a lower {lower}"
    )


def _percent(share: float) -> str:
    # As many digits as were asked: rounding 0.99999999 to 100 % would promise more than is kept.
    return f"{(100 * Decimal(str(share))).normalize():f}%"
