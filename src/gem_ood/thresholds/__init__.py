"""From scores to verdicts: where to cut, how sure one row is, and which rows of many to flag.

Held-out in-distribution scores become a `Threshold` (empirical quantile, conformal or PAC), or conformal
p-values for new rows; p-values become a selection with a bounded share of false alarms. Where there are too many
scores to hold, `RankedScores` keep a few of them with their exact ranks, and serve for both. Higher score = more
in-distribution; a row is in when its score is at or above the threshold. Never calibrate on rows that the
detector was fitted on (B6).
"""

from gem_ood.thresholds.calibration import (
    Threshold,
    ThresholdOrder,
    choose_threshold,
    conformal_threshold,
    pac_threshold,
    quantile_threshold,
    rows_needed,
    threshold_order,
)
from gem_ood.thresholds.combination import Joining, check_joining, join_log_p_values, log_p_values
from gem_ood.thresholds.p_values import conformal_p_values
from gem_ood.thresholds.probability import as_probability
from gem_ood.thresholds.ranked import RankedScores, rank_scores
from gem_ood.thresholds.selection import benjamini_hochberg

__all__ = [
    "Joining",
    "RankedScores",
    "Threshold",
    "ThresholdOrder",
    "as_probability",
    "benjamini_hochberg",
    "check_joining",
    "choose_threshold",
    "conformal_p_values",
    "conformal_threshold",
    "join_log_p_values",
    "log_p_values",
    "pac_threshold",
    "quantile_threshold",
    "rank_scores",
    "rows_needed",
    "threshold_order",
]
