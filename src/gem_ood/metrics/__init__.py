"""How well scores tell in-distribution rows from out-of-distribution ones (P49 to P53).

`evaluate` gives every number at once, in a named convention and on request with intervals; the small
functions give one number each. Higher score = more in-distribution. These are for judging a detector on rows
with known answers: never set a threshold with them, `gem_ood.thresholds` does that.
"""

from gem_ood.metrics.classification import error_rate
from gem_ood.metrics.curve import Curve, roc_curve
from gem_ood.metrics.evaluation import Evaluation, aupr, auroc, evaluate, fpr_at_tpr

__all__ = ["Curve", "Evaluation", "aupr", "auroc", "error_rate", "evaluate", "fpr_at_tpr", "roc_curve"]
