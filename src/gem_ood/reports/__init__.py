"""Reports: what the library knows, made visible.

`plots` draws figures, `save_figure` writes one to a file, `paper_figures` makes those of the paper.
"""

from gem_ood.reports import plots
from gem_ood.reports.figures import paper_figures, save_figure

__all__ = ["paper_figures", "plots", "save_figure"]
