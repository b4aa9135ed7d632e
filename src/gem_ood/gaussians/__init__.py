"""Gaussians: from rows of features to k Gaussians with one tied covariance.

`collect` or an `Accumulator` turns rows into `Statistics`; `merge` joins them; a covariance policy and
`TiedGaussians.from_statistics` turn them into a fitted value that answers for distances, densities and posteriors.
"""

from gem_ood.gaussians.class_statistics import ClassStatistics, collect_classes, merge_classes
from gem_ood.gaussians.covariance import CovariancePolicy, Factor, check_policy, factorize, tied_covariance
from gem_ood.gaussians.separate import SeparateGaussians
from gem_ood.gaussians.statistics import Accumulator, Statistics, collect, fourth_moment, merge
from gem_ood.gaussians.tied import Priors, TiedGaussians

__all__ = [
    "Accumulator",
    "ClassStatistics",
    "CovariancePolicy",
    "Factor",
    "Priors",
    "SeparateGaussians",
    "Statistics",
    "TiedGaussians",
    "check_policy",
    "collect",
    "collect_classes",
    "factorize",
    "fourth_moment",
    "merge",
    "merge_classes",
    "tied_covariance",
]
