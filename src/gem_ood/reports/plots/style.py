"""The one place that draws through matplotlib: sizes, fonts, colours, and figures that belong to no global state.

Figures are made without pyplot, and settings hold inside `drawing` only, so a caller's own plots are left as they
are. Colours are Okabe and Ito's, told apart by colour-blind readers; markers and dashes differ too, for grey print.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from gem_ood.errors import InputError
from gem_ood.extras import require_extra

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import LayoutEngine

__all__ = [
    "BLACK",
    "BLUE",
    "DOUBLE_COLUMN",
    "GREEN",
    "GREY",
    "ORANGE",
    "PRINT_DPI",
    "PURPLE",
    "SINGLE_COLUMN",
    "SKY",
    "VERMILION",
    "YELLOW",
    "Dashes",
    "Width",
    "caption",
    "drawing",
    "finished",
    "is_page",
    "letter",
    "new_figure",
    "percent",
    "require_matplotlib",
]

#: Widths of a paper's column and page, in inches.
SINGLE_COLUMN, DOUBLE_COLUMN = 3.4, 7.0

#: Which of the two a figure is drawn for.
Width = Literal["page", "column"]

PRINT_DPI = 300

#: White space around the parts of a figure, in inches.
MARGIN = 0.03

#: Tick labels depend on the size of the axes and the other way round; a few rounds settle them.
LAYOUT_PASSES = 5

BLACK, GREY = "#000000", "#7f7f7f"
BLUE, SKY, GREEN, YELLOW = "#0072b2", "#56b4e9", "#009e73", "#f0e442"
ORANGE, VERMILION, PURPLE = "#e69f00", "#d55e00", "#cc79a7"

#: A line style as matplotlib takes it: a name, or an offset and the lengths of dashes and gaps in points.
Dashes = Any

#: The font comes with matplotlib and letters are not hinted, so that text is as wide on every machine.
SETTINGS: dict[str, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 7.5,
    "axes.labelsize": 7.5,
    "axes.titlesize": 8,
    "legend.fontsize": 7,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "text.hinting": "none",
    "mathtext.fontset": "dejavusans",
    "mathtext.default": "it",
    "axes.linewidth": 0.6,
    "axes.edgecolor": "#404040",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlelocation": "left",
    "axes.labelpad": 3,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.minor.width": 0.4,
    "ytick.minor.width": 0.4,
    "xtick.major.size": 2.5,
    "ytick.major.size": 2.5,
    "lines.linewidth": 1.2,
    "lines.solid_capstyle": "round",
    "hatch.linewidth": 0.5,
    "legend.frameon": False,
    "legend.handlelength": 2.4,
    "legend.columnspacing": 1.4,
    "legend.handletextpad": 0.6,
    "legend.labelspacing": 0.35,
    "legend.borderaxespad": 0.2,
    "figure.dpi": PRINT_DPI,
    "savefig.dpi": PRINT_DPI,
    "svg.fonttype": "path",
    "svg.hashsalt": "gem-ood",
    "pdf.fonttype": 42,
}


def is_page(width: str) -> bool:
    """Return whether a figure is as wide as a page; the other width is a column's.

    >>> is_page("page"), is_page("column")
    (True, False)
    """
    if width not in get_args(Width):
        raise InputError(f'width is {width!r}; pass "page" or "column"')
    return width == "page"


def require_matplotlib() -> None:
    """Raise, with the command that installs it, if matplotlib is absent.

    >>> require_matplotlib()
    """
    require_extra("report", "matplotlib.figure", purpose="figures")


@contextmanager
def drawing() -> Iterator[None]:
    """Hold this style's settings, and none of the caller's, until the block ends.

    >>> import matplotlib
    >>> before = dict(matplotlib.rcParams)
    >>> with drawing():
    ...     matplotlib.rcParams["font.size"]
    7.5
    >>> dict(matplotlib.rcParams) == before
    True
    """
    require_matplotlib()
    import matplotlib.style

    with matplotlib.rc_context():
        matplotlib.style.use(["default", SETTINGS])
        yield


def new_figure(width: float, height: float) -> "Figure":
    """Return an empty figure of this size in inches, with a canvas of its own; call it inside `drawing`.

    >>> with drawing():
    ...     new_figure(3.4, 2.0).get_size_inches().tolist()
    [3.4, 2.0]
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    figure = Figure(figsize=(width, height), layout=ConstrainedLayoutEngine(w_pad=MARGIN, h_pad=MARGIN))
    FigureCanvasAgg(figure)
    return figure


def finished(figure: "Figure", *, title: str, description: str) -> "Figure":
    """Return the figure with its caption and its layout settled, so that each file of it looks the same.

    Solving the layout again on each save would move axes by fractions of a pixel from file to file.

    >>> with drawing():
    ...     figure = new_figure(3.4, 2.0)
    ...     axes = figure.subplots()
    ...     caption(finished(figure, title="Scores", description="Nothing is drawn."))
    ('Scores', 'Nothing is drawn.')
    """
    engine = figure.get_layout_engine()
    if engine is not None:
        _settle(figure, engine)
        figure.set_layout_engine("none")
    figure.set_label(f"{title}\n{description}")
    return figure


def _settle(figure: "Figure", engine: "LayoutEngine") -> None:
    before = None
    for _ in range(LAYOUT_PASSES):
        engine.execute(figure)
        places = [np.round(axes.get_position().extents, 3).tolist() for axes in figure.axes]
        if places == before:
            return
        before = places


def caption(figure: "Figure") -> tuple[str, str]:
    """Return a figure's title and its description, both empty if it has none; files carry them for readers.

    >>> from matplotlib.figure import Figure
    >>> caption(Figure())
    ('', '')
    """
    title, _, description = str(figure.get_label()).partition("\n")
    return title, description


def letter(axes: "Sequence[Axes]", titles: Sequence[str]) -> None:
    """Write (a), (b), ... and a title over each of several panels.

    >>> with drawing():
    ...     panels = new_figure(7.0, 2.0).subplots(1, 2)
    ...     letter(panels, ["distance", "dimension"])
    >>> panels[1].get_title(loc="left")
    '(b) dimension'
    """
    for place, (panel, title) in enumerate(zip(axes, titles, strict=True)):
        panel.set_title(f"({chr(ord('a') + place)}) {title}", loc="left")


def percent(share: float, *, digits: int = 0) -> str:
    """Return a share as figures and captions write it.

    >>> percent(0.95), percent(0.9361, digits=1)
    ('95 %', '93.6 %')
    """
    return f"{100.0 * share:.{digits}f} %"
