"""Scores: pure functions from logits, exponents or features to one number per row; higher = more in-distribution."""

from gem_ood.gaussians.log_sums import log_sum_exp
from gem_ood.scores.gaussian import (
    gem,
    gem_scores,
    linear_energy,
    log_rescaled,
    mahalanobis,
    mahalanobis_scores,
    weighted_gem,
)
from gem_ood.scores.gradients import grad_norm
from gem_ood.scores.ideal_classifier import gem_threshold, ideal
from gem_ood.scores.logits import check_temperature, energy, max_logit, msp, softmax

__all__ = [
    "check_temperature",
    "energy",
    "gem",
    "gem_scores",
    "gem_threshold",
    "grad_norm",
    "ideal",
    "linear_energy",
    "log_rescaled",
    "log_sum_exp",
    "mahalanobis",
    "mahalanobis_scores",
    "max_logit",
    "msp",
    "softmax",
    "weighted_gem",
]
