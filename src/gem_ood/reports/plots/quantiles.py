"""Quantiles of squared Mahalanobis distances against χ²: how near the classes come to the theory's Gaussians."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from gem_ood.features import as_scores
from gem_ood.reports.panels.quantiles import (
    CONFIDENCE,
    NAMED_CLASSES,
    QuantileCurve,
    QuantileCurves,
    chi2_curves,
    fewest_rows,
    levels,
)
from gem_ood.reports.plots import style
from gem_ood.reports.plots.names import shown

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["quantile_quantile"]

#: Longer names of classes are cut, so that the legend fits a column.
NAME_LENGTH = 14

#: The probability whose point is marked.
MARKED = 0.95

#: Axes are logarithmic where values span more than this factor.
LINEAR_SPAN = 100.0

CLASS_COLOURS = (style.SKY, style.ORANGE, style.GREEN, style.PURPLE)
CLASS_DASHES: tuple[style.Dashes, ...] = ("-", (0, (4, 1.5)), (0, (1, 1)))


def quantile_quantile(
    distances_by_class: Sequence[ArrayLike], degrees_of_freedom: float, *, names: Sequence[object] | None = None
) -> "Figure":
    """Return the χ² quantile–quantile figure of squared Mahalanobis distances of rows to their own class mean.

    Rows of Gaussian classes lie on the diagonal, inside the pointwise 95 % band that order statistics of χ² fill (they
    are Beta on the scale of the cdf); above it the tails are heavier than the theory's. Bold: the rows of all classes
    together. Light: each class, or for more than 12 classes the band from the lowest to the highest; classes with fewer
    than half the rows of the median class would cut its ends off and are left out of it.

    Args:
        distances_by_class: Squared distances of held-out rows, one array per class. Training rows are nearer (B6).
        degrees_of_freedom: Of χ²: the rank of the covariance.
        names: Names of the classes; their places if not given.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> figure = quantile_quantile([rng.chisquare(8, 200), rng.chisquare(8, 300)], 8, names=["cat", "dog"])
        >>> figure.axes[0].get_xlabel()
        'quantile of χ² with 8 degrees of freedom'
    """
    curves = chi2_curves(distances_by_class, degrees_of_freedom, names=names)
    classes = [as_scores(distances) for distances in distances_by_class]
    law = stats.chi2(degrees_of_freedom)
    together = np.sort(np.concatenate(classes))
    with style.drawing():
        figure = style.new_figure(style.SINGLE_COLUMN, 3.5 if len(classes) <= 4 else 3.9)
        axes = figure.subplots()
        axes.fill_between(
            curves.band.expected,
            curves.band.low,
            curves.band.high,
            color=style.GREY,
            alpha=0.35,
            linewidth=0,
            label=f"{style.percent(CONFIDENCE)} band if Gaussian",
        )
        _draw_classes(axes, curves, len(classes))
        _draw_curve(axes, curves.together, label="all rows", color=style.BLACK, linewidth=1.8, zorder=5)
        _set_axes(axes, law, together)
        share = _draw_marked_point(axes, law, together)
        axes.set_xlabel(f"quantile of χ² with {degrees_of_freedom:g} degrees of freedom")
        axes.set_ylabel("squared Mahalanobis distance")
        _draw_legend(figure, axes, len(classes))
        return style.finished(
            figure,
            title="Squared Mahalanobis distances against χ²",
            description=(
                f"Ordered squared distances of {len(together)} rows of {len(classes)} classes to their class means, "
                f"against quantiles of χ² with {degrees_of_freedom:g} degrees of freedom. Gaussian rows lie on the "
                f"diagonal, inside the shaded pointwise {style.percent(CONFIDENCE)} band of all rows together. "
                f"{style.percent(share, digits=1)} of the rows lie under the {style.percent(MARKED)} point of χ², "
                f"{law.ppf(MARKED):.4g}.{_left_out(classes)}"
            ),
        )


def _left_out(classes: list[NDArray[np.float64]]) -> str:
    fewest = fewest_rows(classes)
    n_small = sum(len(distances) < fewest for distances in classes)
    if len(classes) <= NAMED_CLASSES or n_small == 0:
        return ""
    return f" The band of the classes leaves out {n_small} of them, of fewer than {fewest} rows."


def _draw_curve(axes: "Axes", curve: QuantileCurve, **look: Any) -> None:
    axes.plot(curve.expected, curve.found, **look)


def _draw_classes(axes: "Axes", curves: QuantileCurves, n_classes: int) -> None:
    labels = shown([curve.name for curve in curves.classes], length=NAME_LENGTH)
    for place, (curve, label) in enumerate(zip(curves.classes, labels, strict=True)):
        colour, dashes = CLASS_COLOURS[place % 4], CLASS_DASHES[place // 4]
        _draw_curve(axes, curve, label=label, color=colour, linestyle=dashes, linewidth=0.8, zorder=3)
    band = curves.class_band
    if band is None:
        return
    which = f"classes of ≥ {band.fewest} rows,\n" if band.n_classes < n_classes else "classes, "
    axes.fill_between(
        band.expected,
        band.low,
        band.high,
        color=style.SKY,
        alpha=0.45,
        linewidth=0,
        label=f"{band.n_classes} {which}lowest to highest",
    )


def _set_axes(axes: "Axes", law: Any, together: NDArray[np.float64]) -> None:
    """Set both axes alike, logarithmic for a wide range, with the diagonal through them."""
    ends = law.ppf(levels(len(together), np.array([0, len(together) - 1])))
    positive = together[together > 0.0]
    low, high = min(ends[0], positive[0]), max(ends[1], positive[-1])
    if high > LINEAR_SPAN * low:
        axes.set(xscale="log", yscale="log", xlim=(ends[0] / 1.15, ends[1] * 1.15), ylim=(low / 1.3, high * 1.3))
    else:
        pad = 0.04 * (high - low)
        axes.set(xlim=(ends[0] - pad, ends[1] + pad), ylim=(low - pad, high + pad))
    span = [min(low, ends[0]), max(high, ends[1])]
    axes.plot(span, span, color=style.BLACK, linewidth=0.7, linestyle=(0, (5, 2)), zorder=4, label="diagonal")


def _draw_marked_point(axes: "Axes", law: Any, together: NDArray[np.float64]) -> float:
    """Mark the 95 % point of χ² and return the share of rows that lie under it."""
    point = float(law.ppf(MARKED))
    share = float(np.mean(together <= point))
    for draw in (axes.axvline, axes.axhline):
        draw(point, color=style.VERMILION, linewidth=0.7, linestyle=(0, (1, 1.2)), zorder=2)
    axes.plot(point, point, "o", color=style.VERMILION, markersize=3.5, zorder=6)
    axes.set_title(
        f"{style.percent(share, digits=1)} of rows under χ²'s {style.percent(MARKED)} point, {point:.4g} (dotted)",
        fontsize=7.5,
    )
    return share


def _draw_legend(figure: "Figure", axes: "Axes", n_classes: int) -> None:
    """Draw the legend below: first what every figure has, then the classes."""
    handles, labels = axes.get_legend_handles_labels()
    order = [len(labels) - 2, 0, len(labels) - 1, *range(1, len(labels) - 2)]
    n_columns = 3 if 4 < n_classes <= NAMED_CLASSES else 2
    figure.legend(
        [handles[place] for place in order],
        [labels[place] for place in order],
        loc="outside lower center",
        ncols=n_columns,
    )
