"""Plots: figures for print; each function returns a matplotlib figure, sized for a paper's column or page.

They need `pip install "gem-ood[report]"`, and leave pyplot and its settings alone. `caption` returns the title and the
description that every figure carries.
"""

from gem_ood.reports.plots.curves import precision_recall_curves, roc_curves
from gem_ood.reports.plots.histogram import score_histograms
from gem_ood.reports.plots.inversions import Inversions, ranking_inversions
from gem_ood.reports.plots.kept import asked_and_kept
from gem_ood.reports.plots.line import scores_in_one_dimension
from gem_ood.reports.plots.maps import feature_map
from gem_ood.reports.plots.plane import in_and_out
from gem_ood.reports.plots.quantiles import quantile_quantile
from gem_ood.reports.plots.studies import study_curves
from gem_ood.reports.plots.style import caption

__all__ = [
    "Inversions",
    "asked_and_kept",
    "caption",
    "feature_map",
    "in_and_out",
    "precision_recall_curves",
    "quantile_quantile",
    "ranking_inversions",
    "roc_curves",
    "score_histograms",
    "scores_in_one_dimension",
    "study_curves",
]
