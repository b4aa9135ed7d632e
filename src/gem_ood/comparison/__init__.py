"""Comparison: detectors side by side on one in-distribution set and many others, in the form of the paper's tables.

`compare` scores every row once and returns a `Comparison`, which prints as text, Markdown, LaTeX, CSV or JSON;
`fit_methods` fits the catalogue, or some of it, to the rows that the detectors are to know.
"""

from gem_ood.comparison.comparing import compare
from gem_ood.comparison.fitting import FittedMethods, fit_methods
from gem_ood.comparison.measured import MEAN, METRICS, DetectorComparison, Measurements
from gem_ood.comparison.results import Comparison

__all__ = [
    "MEAN",
    "METRICS",
    "Comparison",
    "DetectorComparison",
    "FittedMethods",
    "Measurements",
    "compare",
    "fit_methods",
]
