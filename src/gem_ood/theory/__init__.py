"""Theory: closed forms, bounds, predicted rates and certificates for Gaussian classes.

`analyze` gathers all of it for classes N(μ_i, Σ) and an out-of-distribution Gaussian; the pieces are functions of their
own. All of it assumes that the classes are Gaussian and their parameters known.
"""

from gem_ood.scores import gem_threshold
from gem_ood.theory.analysis import Analysis, analyze, analyze_gaussians
from gem_ood.theory.certificate import Certificate, certificate, fpr_floor
from gem_ood.theory.certification import Certification, Rates, certify, certify_batches
from gem_ood.theory.diagnosis import Diagnosis, Kurtosis, diagnose, diagnose_batches
from gem_ood.theory.distance_laws import DistanceFit, Trust
from gem_ood.theory.divergences import half_distance, kl_divergence, pinsker, pinsker_large, total_variation
from gem_ood.theory.expectations import log_expected_rescaled, log_expected_terms, log_overlap
from gem_ood.theory.prediction import Prediction, predict_fpr

__all__ = [
    "Analysis",
    "Certificate",
    "Certification",
    "Diagnosis",
    "DistanceFit",
    "Kurtosis",
    "Prediction",
    "Rates",
    "Trust",
    "analyze",
    "analyze_gaussians",
    "certificate",
    "certify",
    "certify_batches",
    "diagnose",
    "diagnose_batches",
    "fpr_floor",
    "gem_threshold",
    "half_distance",
    "kl_divergence",
    "log_expected_rescaled",
    "log_expected_terms",
    "log_overlap",
    "pinsker",
    "pinsker_large",
    "predict_fpr",
    "total_variation",
]
