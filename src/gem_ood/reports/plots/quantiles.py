"""Quantiles of squared Mahalanobis distances against χ²: how near the classes come to the theory's Gaussians."""

import math
import re
import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from gem_ood.errors import InputError
from gem_ood.features import as_scores
from gem_ood.reports.plots import style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["quantile_quantile"]

#: More classes than these are drawn as one band from the lowest to the highest.
NAMED_CLASSES = 12

#: Longer names of classes are cut, so that the legend fits a column.
NAME_LENGTH = 14

#: The confidence of the pointwise band, and the probability whose point is marked.
CONFIDENCE, MARKED = 0.95, 0.95

#: Points drawn of each curve; more would lie on one another.
DRAWN_POINTS = 300

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
    classes = _checked_distances(distances_by_class)
    labels = _checked_names(names, len(classes))
    if not (np.isfinite(degrees_of_freedom) and degrees_of_freedom > 0):
        raise InputError(f"degrees_of_freedom is {degrees_of_freedom!r}; pass a positive number, the covariance's rank")
    law = stats.chi2(degrees_of_freedom)
    together = np.sort(np.concatenate(classes))
    with style.drawing():
        figure = style.new_figure(style.SINGLE_COLUMN, 3.5 if len(classes) <= 4 else 3.9)
        axes = figure.subplots()
        _draw_band(axes, law, len(together))
        _draw_classes(axes, law, classes, labels)
        _draw_curve(axes, law, together, label="all rows", color=style.BLACK, linewidth=1.8, zorder=5)
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
    fewest = _fewest_rows(classes)
    n_small = sum(len(distances) < fewest for distances in classes)
    if len(classes) <= NAMED_CLASSES or n_small == 0:
        return ""
    return f" The band of the classes leaves out {n_small} of them, of fewer than {fewest} rows."


def _checked_distances(distances_by_class: Sequence[ArrayLike]) -> list[NDArray[np.float64]]:
    if len(distances_by_class) == 0:
        raise InputError("distances_by_class is empty; pass one array of squared distances per class")
    classes = [
        as_scores(distances, name=f"distances_by_class[{place}]") for place, distances in enumerate(distances_by_class)
    ]
    for place, distances in enumerate(classes):
        if not (np.isfinite(distances) & (distances >= 0.0)).all():
            raise InputError(
                f"distances_by_class[{place}] holds a negative or infinite value; pass squared Mahalanobis distances"
            )
    if not any(distances.any() for distances in classes):
        raise InputError("all distances are 0; pass squared distances of rows to their class mean")
    return classes


def _checked_names(names: Sequence[object] | None, n_classes: int) -> list[str]:
    if names is None:
        return [f"class {place}" for place in range(n_classes)]
    if len(names) != n_classes:
        raise InputError(f"names has {len(names)} names but there are {n_classes} classes; name each class once")
    # A dollar sign would start a formula, and a leading underscore would hide the class from the legend.
    shown = [name if len(name) <= NAME_LENGTH else f"{name[: NAME_LENGTH - 1]}…" for name in map(str, names)]
    return [re.sub("^_", " _", name).replace("$", r"\$") for name in shown]


def _drawn_places(n_rows: int) -> NDArray[np.intp]:
    """Return which order statistics to draw: all of few rows, else ever denser towards both ends."""
    if n_rows <= DRAWN_POINTS:
        return np.arange(n_rows)
    levels = stats.logistic.cdf(np.linspace(-np.log(2 * n_rows), np.log(2 * n_rows), DRAWN_POINTS))
    return np.unique(np.clip((levels * n_rows).astype(np.intp), 0, n_rows - 1))


def _levels(n_rows: int, places: NDArray[np.intp]) -> NDArray[np.float64]:
    return np.asarray((places + 0.5) / n_rows)


def _draw_curve(axes: "Axes", law: Any, ordered: NDArray[np.float64], **look: Any) -> None:
    places = _drawn_places(len(ordered))
    axes.plot(law.ppf(_levels(len(ordered), places)), ordered[places], **look)


def _draw_band(axes: "Axes", law: Any, n_rows: int) -> None:
    places = _drawn_places(n_rows)
    tail = 0.5 * (1.0 - CONFIDENCE)
    # The i-th of n ordered uniform numbers is Beta(i, n − i + 1).
    ranks = places + 1.0
    low, high = (law.ppf(stats.beta.ppf(level, ranks, n_rows - ranks + 1.0)) for level in (tail, 1.0 - tail))
    axes.fill_between(
        law.ppf(_levels(n_rows, places)),
        low,
        high,
        color=style.GREY,
        alpha=0.35,
        linewidth=0,
        label=f"{style.percent(CONFIDENCE)} band if Gaussian",
    )


def _draw_classes(axes: "Axes", law: Any, classes: list[NDArray[np.float64]], labels: list[str]) -> None:
    if len(classes) == 1:
        return
    if len(classes) <= NAMED_CLASSES:
        for place, (distances, label) in enumerate(zip(classes, labels, strict=True)):
            colour, dashes = CLASS_COLOURS[place % 4], CLASS_DASHES[place // 4]
            _draw_curve(
                axes, law, np.sort(distances), label=label, color=colour, linestyle=dashes, linewidth=0.8, zorder=3
            )
        return
    _draw_class_band(axes, law, classes)


def _fewest_rows(classes: list[NDArray[np.float64]]) -> int:
    """Return how many rows a class needs to be in the band: the fewest decide how far into the tails it reaches."""
    return max(2, math.ceil(statistics.median(len(distances) for distances in classes) / 2.0))


def _draw_class_band(axes: "Axes", law: Any, classes: list[NDArray[np.float64]]) -> None:
    fewest = _fewest_rows(classes)
    kept = [distances for distances in classes if len(distances) >= fewest]
    if len(kept) < 2:
        return
    smallest = min(len(distances) for distances in kept)
    levels = _levels(smallest, _drawn_places(smallest))
    quantiles = np.array([np.quantile(distances, levels, method="hazen") for distances in kept])
    which = f"classes of ≥ {fewest} rows,\n" if len(kept) < len(classes) else "classes, "
    axes.fill_between(
        law.ppf(levels),
        quantiles.min(axis=0),
        quantiles.max(axis=0),
        color=style.SKY,
        alpha=0.45,
        linewidth=0,
        label=f"{len(kept)} {which}lowest to highest",
    )


def _set_axes(axes: "Axes", law: Any, together: NDArray[np.float64]) -> None:
    """Set both axes alike, logarithmic for a wide range, with the diagonal through them."""
    ends = law.ppf(_levels(len(together), np.array([0, len(together) - 1])))
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
