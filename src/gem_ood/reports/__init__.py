"""Reports: what the library knows, made visible.

`write` makes one self-contained HTML page of detectors and rows, and `gather` the `Report` behind it; `plots` draws
figures for print, `save_figure` writes one to a file, `paper_figures` makes those of the paper. `place_rows` places
features in the plane, for the figure `plots.feature_map`.
"""

from gem_ood.reports import plots
from gem_ood.reports.figures import paper_figures, save_figure
from gem_ood.reports.gathering import ReportOptions, gather, write
from gem_ood.reports.panels.curves import DetectionCurves
from gem_ood.reports.panels.histograms import ScoreHistogram
from gem_ood.reports.panels.kept import KeptShares
from gem_ood.reports.panels.maps import Places, place_rows
from gem_ood.reports.panels.quantiles import QuantileCurves
from gem_ood.reports.panels.surprises import Surprise
from gem_ood.reports.report import DetectorReport, DiagnosisReport, FeatureMap, Report, Run

__all__ = [
    "DetectionCurves",
    "DetectorReport",
    "DiagnosisReport",
    "FeatureMap",
    "KeptShares",
    "Places",
    "QuantileCurves",
    "Report",
    "ReportOptions",
    "Run",
    "ScoreHistogram",
    "Surprise",
    "gather",
    "paper_figures",
    "place_rows",
    "plots",
    "save_figure",
    "write",
]
