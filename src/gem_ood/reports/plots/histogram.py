"""Histograms of scores: in-distribution rows against each out-of-distribution set, with the threshold between them."""

import math
from collections.abc import Mapping
from decimal import Decimal
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from gem_ood.errors import InputError
from gem_ood.features import as_scores
from gem_ood.reports.panels.histograms import ScoreHistogram, score_histogram
from gem_ood.reports.plots import style
from gem_ood.reports.plots.names import plain, shown
from gem_ood.thresholds import Threshold

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["score_histograms"]

#: Panels side by side on a page, and how many a figure holds for each width.
PAGE_COLUMNS = 3
MOST_PANELS = {True: 18, False: 7}

#: Heights in inches: of a panel, of one alone, and of the legend and the axis's name.
PANEL_HEIGHT, SINGLE_HEIGHT, LEGEND_HEIGHT = 1.3, 1.9, 0.65

#: Longer names of sets are cut to these, in a page's panel and in a column's.
NAME_LENGTH = {True: 18, False: 30}

#: Bars of a set that are higher than this many of the highest in-distribution bars are cut, and their share is written.
HIGHEST = 1.5

#: The share of rows beyond the axis from which on it is written.
SAID_BEYOND = 0.005

#: Vermilion, dark enough for small letters.
DARK = "#8a3d00"


def score_histograms(
    id_scores: ArrayLike,
    ood_scores: Mapping[str, ArrayLike],
    *,
    threshold: Threshold | float | None = None,
    width: style.Width = "page",
) -> "Figure":
    """Return the histograms of in-distribution scores against each out-of-distribution set, a panel for each.

    All panels have the same axes, those of the in-distribution rows widened a little towards the others: rows beyond
    are in the last bar at that end, and their share is written there. Left of the threshold, rows are out.

    Args:
        id_scores: One score per in-distribution row; higher = more in-distribution. Infinities are allowed.
        ood_scores: The scores of each out-of-distribution set, by name; without any, in-distribution rows are alone.
        threshold: Where the detector cuts. A `Threshold`, such as a detector's `threshold_`, tells its guarantee too.
        width: "page" puts three panels side by side, "column" one under the other.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> figure = score_histograms(rng.normal(size=500), {"far": rng.normal(-4.0, 1.0, 500)}, threshold=-1.6)
        >>> figure.axes[0].get_title(loc="left")
        'far: 99.6 % out'
    """
    is_page = style.is_page(width)
    if len(ood_scores) > MOST_PANELS[is_page]:
        raise InputError(
            f"ood_scores has {len(ood_scores)} sets but a figure as wide as a {width} holds {MOST_PANELS[is_page]}; "
            f"draw several figures"
        )
    cut = threshold.value if isinstance(threshold, Threshold) else threshold
    found = score_histogram(id_scores, ood_scores, threshold=cut)
    flagged = None if cut is None else _flagged(id_scores, ood_scores, cut)
    with style.drawing():
        figure, panels = _new_panels(max(1, len(ood_scores)), is_page)
        names: list[str | None] = [*found.ood] if found.ood else [None]
        for axes, name in zip(panels, names, strict=True):
            _draw_panel(axes, found, name, cut)
        top = 1.15 * _highest(found)
        panels[0].set(xlim=(found.edges[0], found.edges[-1]), ylim=(0.0, top))
        if ood_scores:
            for axes, (ood, scores) in zip(panels, ood_scores.items(), strict=True):
                _say_what_is_cut(axes, found, ood, len(as_scores(scores)), top)
        _set_titles(panels, list(found.ood), flagged, NAME_LENGTH[is_page])
        figure.supxlabel("score (higher = more in-distribution)", fontsize=7.5)
        figure.supylabel("share of rows", fontsize=7.5)
        _draw_legend(figure, panels[0], threshold, is_page)
        return style.finished(
            figure,
            title="Scores of in- and out-of-distribution rows",
            description=_description(id_scores, ood_scores, threshold, flagged),
        )


def _flagged(id_scores: ArrayLike, ood_scores: Mapping[str, ArrayLike], cut: float) -> dict[str | None, float]:
    """Return the share of each set's rows that are out, in-distribution rows under None."""
    return {name: float(np.mean(as_scores(scores) < cut)) for name, scores in [(None, id_scores), *ood_scores.items()]}


def _new_panels(n: int, is_page: bool) -> "tuple[Figure, list[Axes]]":
    n_columns = (2 if n == 4 else min(n, PAGE_COLUMNS)) if is_page else 1
    n_rows = math.ceil(n / n_columns)
    height = LEGEND_HEIGHT + (SINGLE_HEIGHT if n_rows == 1 else n_rows * PANEL_HEIGHT)
    figure = style.new_figure(style.DOUBLE_COLUMN if is_page else style.SINGLE_COLUMN, height)
    grid = figure.subplots(n_rows, n_columns, sharex=True, sharey=True, squeeze=False)
    panels = list(grid.ravel())
    for place, axes in enumerate(panels):
        if place + n_columns >= n:  # the lowest of its column, over panels that are left out
            axes.tick_params(axis="x", labelbottom=True)
    for axes in panels[n:]:
        axes.remove()
    return figure, panels[:n]


def _draw_panel(axes: "Axes", found: ScoreHistogram, name: str | None, cut: float | None) -> None:
    axes.stairs(found.id, found.edges, fill=True, color=style.SKY, alpha=0.6, label="in-distribution")
    axes.stairs(found.id, found.edges, color=style.BLUE, linewidth=0.7)
    if name is not None:
        shares = found.ood[name]
        axes.stairs(shares, found.edges, fill=True, color=style.VERMILION, alpha=0.35, label="out-of-distribution")
        axes.stairs(shares, found.edges, color=style.VERMILION, linewidth=0.9)
    if cut is not None and math.isfinite(cut):
        axes.axvline(cut, color=style.BLACK, linewidth=0.9, linestyle=(0, (4, 1.5)), label="threshold")
    axes.yaxis.set_major_formatter(lambda share, _: f"{100.0 * share:g} %")
    axes.locator_params(axis="y", nbins=4, steps=[1, 2, 5, 10])
    axes.locator_params(axis="x", nbins=6)


def _highest(found: ScoreHistogram) -> float:
    """Return the height that all panels have room for: of every bar, but those of other sets that are far higher."""
    own = float(found.id.max())
    bars = np.concatenate([found.id, *found.ood.values()])
    return float(bars[bars <= HIGHEST * own].max())


def _say_what_is_cut(axes: "Axes", found: ScoreHistogram, name: str, n_rows: int, top: float) -> None:
    """Write the share of the rows beyond an end, and of the highest bar that the panel has no room for."""
    below, above = (count / n_rows for count in found.ood_beyond[name])
    is_beyond = np.zeros(len(found.id), dtype=np.bool_)
    is_beyond[0], is_beyond[-1] = below >= SAID_BEYOND, above >= SAID_BEYOND
    if is_beyond[0]:
        _write(axes, f"◂ {style.percent(below)} beyond", "left")
    if is_beyond[-1]:
        _write(axes, f"{style.percent(above)} beyond ▸", "right")
    highest = float(found.ood[name][~is_beyond].max())
    if highest > top:
        _write(axes, f"bars up to {style.percent(highest)}", "left", line=int(is_beyond[0]))


def _write(axes: "Axes", text: str, side: str, *, line: int = 0) -> None:
    axes.text(
        0.03 if side == "left" else 0.97,
        0.98 - 0.12 * line,
        text,
        transform=axes.transAxes,
        ha=side,
        va="top",
        fontsize=6.5,
        color=DARK,
        bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 0.6},
    )


def _set_titles(
    panels: "list[Axes]", names: list[str], flagged: Mapping[str | None, float] | None, length: int
) -> None:
    titles = shown(names, length=length)
    if flagged is not None:
        titles = [
            f"{title}: {style.percent(flagged[name], digits=1)} out" for title, name in zip(titles, names, strict=True)
        ]
    if len(titles) == 1:
        panels[0].set_title(titles[0])
    elif titles:
        style.letter(panels, titles)


def _draw_legend(figure: "Figure", axes: "Axes", threshold: Threshold | float | None, is_page: bool) -> None:
    handles, labels = axes.get_legend_handles_labels()
    if isinstance(threshold, Threshold):
        labels = [_promise(threshold) if label == "threshold" else label for label in labels]
    figure.legend(handles, labels, loc="outside upper center", ncols=3 if is_page else 2)


def _promise(threshold: Threshold) -> str:
    r"""Return a threshold's guarantee in a legend's words.

    >>> _promise(Threshold(-3.0, 0.95, 0.99, "pac", 100, 1))
    'threshold: keeps, 99 % sure,\n≥ 95 % of new ID rows'
    """
    kept = f"≥ {_exact_percent(threshold.tpr)} of"
    if threshold.method == "pac" and threshold.confidence is not None:
        return f"threshold: keeps, {_exact_percent(threshold.confidence)} sure,\n{kept} new ID rows"
    if threshold.method == "conformal":
        return f"threshold: keeps on average\n{kept} new ID rows"
    return f"threshold: keeps {kept}\ncalibration rows, no promise"


def _exact_percent(share: float) -> str:
    # As many digits as were asked: rounding up would promise more than is kept.
    return f"{(100 * Decimal(str(share))).normalize():f} %"


def _description(
    id_scores: ArrayLike,
    ood_scores: Mapping[str, ArrayLike],
    threshold: Threshold | float | None,
    flagged: Mapping[str | None, float] | None,
) -> str:
    def counted(name: str | None, scores: ArrayLike) -> str:
        out = "" if flagged is None else f", {style.percent(flagged[name], digits=1)} of them out"
        n_rows = len(as_scores(scores))
        return f"{n_rows:,} {'row' if n_rows == 1 else 'rows'}{out}"

    sentences = [f"Histograms of the scores of in-distribution rows ({counted(None, id_scores)})"]
    if ood_scores:
        listed = "; ".join(f"{plain(name)} ({counted(name, scores)})" for name, scores in ood_scores.items())
        sentences[0] += f" against those of out-of-distribution sets, a panel for each: {listed}"
    sentences[0] += "."
    sentences.append("Rows beyond the axis are in the last bar at that end. A higher score is more in-distribution.")
    if threshold is not None:
        value = threshold.value if isinstance(threshold, Threshold) else threshold
        sentences.append(f"Rows that score below the threshold, {value:.4g}, are out.")
    if isinstance(threshold, Threshold):
        sentences.append(threshold.guarantee)
    return " ".join(sentences)
