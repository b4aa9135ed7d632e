"""Calibration: the share of in-distribution rows that is kept, against the share that was asked for."""

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from gem_ood.reports.panels.kept import CONFIDENCE, KeptShares, kept_shares
from gem_ood.reports.plots import style
from gem_ood.thresholds import RankedScores, Threshold

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["asked_and_kept"]

HEIGHT = 3.1


def asked_and_kept(
    calibration_scores: ArrayLike | RankedScores,
    id_scores: ArrayLike,
    *,
    threshold: Threshold,
    width: style.Width = "column",
) -> "Figure":
    """Return the share of in-distribution rows that conformal thresholds keep, against the share asked for.

    The shade is where the share kept lies with probability 95 % if calibration and test rows are exchangeable: beyond
    it they differ, or scores are tied. The dot is the detector's own threshold.

    Args:
        calibration_scores: One score per calibration row, those that the detector's threshold is from, or its
            `ranked_calibration` where it has one.
        id_scores: One score per in-distribution test row.
        threshold: The detector's own threshold.
        width: "page" or "column".

    Example:
        >>> from gem_ood.thresholds import conformal_threshold
        >>> calibration, test = np.random.default_rng(0).normal(size=(2, 400))
        >>> figure = asked_and_kept(calibration, test, threshold=conformal_threshold(calibration, tpr=0.95))
        >>> figure.axes[0].get_title(loc="left")
        '93.0 % kept where 95 % were asked for'
    """
    found = kept_shares(calibration_scores, id_scores, threshold=threshold)
    with style.drawing():
        figure = style.new_figure(style.DOUBLE_COLUMN if style.is_page(width) else style.SINGLE_COLUMN, HEIGHT)
        axes = figure.subplots()
        _draw(axes, found)
        axes.set(xlabel="share of ID rows asked for", ylabel="share of ID rows kept")
        axes.set_title(
            f"{style.percent(found.own_realised, digits=1)} kept where {100.0 * found.own_asked:g} % were asked for"
        )
        figure.legend(loc="outside lower center", ncols=2)
        return style.finished(
            figure,
            title="Share of in-distribution rows asked for and kept",
            description=_description(found, threshold),
        )


def _draw(axes: "Axes", found: KeptShares) -> None:
    label = f"{style.percent(CONFIDENCE)} range if exchangeable"
    marker = "None"
    if len(found.asked) > 1:
        axes.fill_between(found.asked, found.low, found.high, color=style.GREY, alpha=0.35, linewidth=0, label=label)
    else:
        marker = "o"
        axes.vlines(found.asked, found.low, found.high, color=style.GREY, alpha=0.35, linewidth=6, label=label)
    ends = [min(found.asked[0], found.own_asked), 1.0]
    axes.plot(ends, ends, color=style.BLACK, linewidth=0.7, linestyle=(0, (5, 2)), label="as asked")
    axes.plot(found.asked, found.realised, color=style.BLUE, linewidth=1.3, marker=marker, markersize=3, label="kept")
    axes.plot(
        found.own_asked,
        found.own_realised,
        "o",
        color=style.VERMILION,
        markersize=4.5,
        zorder=5,
        clip_on=False,
        label="the detector's threshold",
    )
    lowest = min(found.low.min(), found.realised.min(), found.own_realised, ends[0])
    axes.set(xlim=(ends[0] - 0.01, 1.005), ylim=(lowest - 0.02 * (1.0 - lowest), 1.0 + 0.01 * (1.0 - lowest)))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(lambda share, _: f"{100.0 * share:g} %")


def _description(found: KeptShares, threshold: Threshold) -> str:
    is_inside = (found.low <= found.realised) & (found.realised <= found.high)
    return (
        f"For shares from {100.0 * found.asked[0]:g} % to {100.0 * found.asked[-1]:g} % asked for: the share of "
        f"{found.n_test:,} in-distribution test rows that the conformal threshold of {found.n_calibration:,} "
        f"calibration rows keeps, and the range where it lies with probability {style.percent(CONFIDENCE)} if all "
        f"these rows are exchangeable; {np.count_nonzero(is_inside)} of {len(found.asked)} lie inside. The detector's "
        f"own threshold was asked for {100.0 * found.own_asked:g} % and keeps "
        f"{style.percent(found.own_realised, digits=1)}. {threshold.guarantee}"
    )
