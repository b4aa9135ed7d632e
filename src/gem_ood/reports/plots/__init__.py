"""Plots: figures for print; each function returns a matplotlib figure, sized for a paper's column or page.

They need `pip install "gem-ood[report]"`, and leave pyplot and its settings alone. `caption` returns the title and the
description that every figure carries.
"""

from gem_ood.reports.plots.inversions import Inversions, ranking_inversions
from gem_ood.reports.plots.line import scores_in_one_dimension
from gem_ood.reports.plots.plane import in_and_out
from gem_ood.reports.plots.quantiles import quantile_quantile
from gem_ood.reports.plots.studies import study_curves
from gem_ood.reports.plots.style import caption

__all__ = [
    "Inversions",
    "caption",
    "in_and_out",
    "quantile_quantile",
    "ranking_inversions",
    "scores_in_one_dimension",
    "study_curves",
]
