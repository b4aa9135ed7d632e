"""Reports: what the library knows, made visible.

`write` makes one self-contained HTML page of detectors and rows, and `gather` the `Report` behind it; `plots` draws
figures for print, `save_figure` writes one to a file, `paper_figures` makes those of the paper.
"""

from gem_ood.reports import plots
from gem_ood.reports.figures import paper_figures, save_figure
from gem_ood.reports.gathering import gather, write
from gem_ood.reports.report import DetectorReport, DiagnosisReport, FeatureMap, Report, Run

__all__ = [
    "DetectorReport",
    "DiagnosisReport",
    "FeatureMap",
    "Report",
    "Run",
    "gather",
    "paper_figures",
    "plots",
    "save_figure",
    "write",
]
