"""ROC and precision-recall curves of several detectors on one out-of-distribution set."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from gem_ood.errors import InputError
from gem_ood.features import as_scores
from gem_ood.metrics import Evaluation, evaluate
from gem_ood.reports.panels.curves import DetectionCurves, detection_curves
from gem_ood.reports.plots import style
from gem_ood.reports.plots.names import plain, shown

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["precision_recall_curves", "roc_curves"]

#: A figure tells this many detectors apart; of more, the best by area are drawn.
MOST_CURVES = 12

#: Longer names of detectors are cut, so that the legend fits a column.
NAME_LENGTH = 15

#: Heights in inches: of the axes with what is written at them, and of a line of the legend.
AXES_HEIGHT, LINE_HEIGHT = 2.9, 0.145

COLOURS = (style.BLUE, style.VERMILION, style.GREEN, style.ORANGE, style.PURPLE, style.BLACK)
DASHES: tuple[style.Dashes, ...] = (
    "-",
    (0, (4, 1.5)),
    (0, (1, 1)),
    (0, (5, 1.2, 1, 1.2)),
    (0, (8, 1.5)),
    (0, (2, 1.2)),
)

#: A detector's scores of in-distribution rows and of out-of-distribution rows.
BothScores = tuple[ArrayLike, ArrayLike]


class _Measured(NamedTuple):
    name: str
    curves: DetectionCurves
    evaluation: Evaluation
    area: float

    @property
    def precision(self) -> float:
        """The precision where the false positive rate is read."""
        n_right = self.evaluation.tpr * self.evaluation.n_id
        return n_right / (n_right + self.evaluation.fpr * self.evaluation.n_ood)


def roc_curves(scores: Mapping[str, BothScores], *, tpr: float = 0.95, width: style.Width = "column") -> "Figure":
    """Return the ROC curves of detectors, each with its AUROC and its false positive rate at the rate tpr marked.

    In-distribution rows are positive; of more than 12 detectors, those with the highest AUROC are drawn.

    Args:
        scores: For each detector by name, its scores of the in-distribution rows and of the out-of-distribution rows.
        tpr: The true positive rate at which the false positive rate is marked, as `gem_ood.metrics.evaluate` reads it.
        width: "page" puts the legend at the side, "column" under the curves.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> figure = roc_curves({"GEM": (rng.normal(size=900), rng.normal(-2.0, 1.0, 900))})
        >>> [text.get_text() for text in figure.legends[0].get_texts()]
        ['GEM 92.3 %']
    """
    is_page = style.is_page(width)
    measured = _measured(scores, tpr, "auroc")
    with style.drawing():
        figure, axes = _new_axes(min(len(measured), MOST_CURVES), is_page)
        axes.plot([0.0, 1.0], [0.0, 1.0], color=style.GREY, linewidth=0.6, zorder=1)
        axes.axhline(tpr, color=style.GREY, linewidth=0.7, linestyle=(0, (1, 1.2)), zorder=1)
        for place, one in enumerate(drawn := _best(measured)):
            _draw(axes, place, one.curves.fpr, one.curves.tpr, (one.evaluation.fpr, one.evaluation.tpr))
        axes.set(xlabel="false positive rate (OOD rows kept)", ylabel="true positive rate (ID rows kept)")
        _set_limits(axes, 0.0)
        _draw_legend(
            figure, axes, drawn, _legend_title("AUROC", drawn, measured, f"FPR at {100.0 * tpr:g} %"), is_page=is_page
        )
        return style.finished(
            figure, title="ROC curves of detectors", description=_description("ROC", "AUROC", drawn, measured, tpr)
        )


def precision_recall_curves(
    scores: Mapping[str, BothScores], *, tpr: float = 0.95, width: style.Width = "column"
) -> "Figure":
    """Return the precision-recall curves of detectors, each with its AUPR, and marked where recall is tpr.

    In-distribution rows are positive; of more than 12 detectors, those with the highest AUPR are drawn. The thin line
    is what chance has, the share of in-distribution rows; it moves the curves too, so compare within one figure.

    Args:
        scores: For each detector by name, its scores of the in-distribution rows and of the out-of-distribution rows.
        tpr: The recall at which a point is marked: there `gem_ood.metrics.evaluate` reads the false positive rate.
        width: "page" puts the legend at the side, "column" under the curves.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> figure = precision_recall_curves({"GEM": (rng.normal(size=900), rng.normal(-2.0, 1.0, 900))})
        >>> [text.get_text() for text in figure.legends[0].get_texts()]
        ['GEM 92.2 %']
    """
    is_page = style.is_page(width)
    measured = _measured(scores, tpr, "aupr_in")
    with style.drawing():
        figure, axes = _new_axes(min(len(measured), MOST_CURVES), is_page)
        chances = {one.evaluation.n_id / (one.evaluation.n_id + one.evaluation.n_ood) for one in measured}
        for chance in chances if len(chances) == 1 else ():
            axes.axhline(chance, color=style.GREY, linewidth=0.6, zorder=1)
        axes.axvline(tpr, color=style.GREY, linewidth=0.7, linestyle=(0, (1, 1.2)), zorder=1)
        for place, one in enumerate(drawn := _best(measured)):
            _draw(axes, place, one.curves.recall, one.curves.precision, (one.evaluation.tpr, one.precision))
        axes.set(xlabel="recall (ID rows kept)", ylabel="precision (kept rows that are ID)")
        _set_limits(axes, _lowest_precision(drawn))
        _draw_legend(figure, axes, drawn, _legend_title("AUPR", drawn, measured, f"{100.0 * tpr:g} %"), is_page=is_page)
        return style.finished(
            figure,
            title="Precision-recall curves of detectors",
            description=_description("Precision-recall", "AUPR", drawn, measured, tpr),
        )


def _measured(scores: Mapping[str, BothScores], tpr: float, area: str) -> list[_Measured]:
    if not scores:
        raise InputError("scores is empty; pass the scores of at least one detector")
    measured = []
    for name, both in scores.items():
        if not isinstance(both, tuple | list) or len(both) != 2:
            raise InputError(
                f"scores[{name!r}] is no pair; pass a tuple of in-distribution scores and out-of-distribution scores"
            )
        inside, outside = (as_scores(both[side], name=f"scores[{name!r}][{side}]") for side in (0, 1))
        evaluation = evaluate(inside, outside, tpr=tpr)
        measured.append(_Measured(name, detection_curves(inside, outside), evaluation, getattr(evaluation, area)))
    return measured


def _best(measured: list[_Measured]) -> list[_Measured]:
    """Return the detectors to draw, in the order given."""
    kept = {one.name for one in sorted(measured, key=lambda one: -one.area)[:MOST_CURVES]}
    return [one for one in measured if one.name in kept]


def _new_axes(n_curves: int, is_page: bool) -> "tuple[Figure, Axes]":
    if is_page:
        figure = style.new_figure(style.DOUBLE_COLUMN, AXES_HEIGHT)
    else:
        n_lines = -(-n_curves // 2) + 1
        figure = style.new_figure(style.SINGLE_COLUMN, AXES_HEIGHT + LINE_HEIGHT * n_lines)
    return figure, figure.subplots()


def _draw(axes: "Axes", place: int, x: ArrayLike, y: ArrayLike, marked: tuple[float, float]) -> None:
    colour, dashes = _look(place)
    # Later ones lie on top: through their gaps a curve under them is seen.
    axes.plot(x, y, color=colour, linestyle=dashes, linewidth=1.1, zorder=3.0 + 0.01 * place)
    axes.plot(*marked, "o", color=colour, markersize=3.2, zorder=4.0 + 0.01 * place, clip_on=False)


def _look(place: int) -> tuple[str, style.Dashes]:
    """Return colour and dashes, which differ from those of every other curve; the first six have dashes of their own.

    >>> _look(0) != _look(6), len({_look(place) for place in range(12)})
    (True, 12)
    """
    n_looks = len(COLOURS)
    return COLOURS[place % n_looks], DASHES[(place + 3 * (place // n_looks)) % n_looks]


def _set_limits(axes: "Axes", low: float) -> None:
    axes.set(xlim=(-0.01, 1.01), ylim=(low - 0.01 * (1.0 - low), 1.0 + 0.01 * (1.0 - low)))


def _lowest_precision(drawn: list[_Measured]) -> float:
    """Return where the axis begins: at the lowest precision, without the teeth that few kept rows have."""
    lowest = min(float(one.curves.precision[one.curves.recall >= 0.05].min()) for one in drawn)
    return float(np.floor(10.0 * lowest) / 10.0)


def _draw_legend(figure: "Figure", axes: "Axes", drawn: list[_Measured], title: str, *, is_page: bool) -> None:
    names = shown([one.name for one in drawn], length=NAME_LENGTH)
    figure.legend(
        [line for line in axes.get_lines() if line.get_zorder() > 2.0 and line.get_marker() == "None"],
        [f"{name} {style.percent(one.area, digits=1)}" for name, one in zip(names, drawn, strict=True)],
        title=title,
        title_fontsize=7,
        loc="outside right upper" if is_page else "outside lower center",
        ncols=1 if is_page or len(drawn) == 1 else 2,
    )


def _legend_title(area: str, drawn: list[_Measured], measured: list[_Measured], marked: str) -> str:
    which = "" if len(drawn) == len(measured) else f", the {len(drawn)} best of {len(measured)}"
    return f"{area}{which} (dots: {marked} TPR)"


def _description(curve: str, area: str, drawn: list[_Measured], measured: list[_Measured], tpr: float) -> str:
    listed = "; ".join(
        f"{plain(one.name)} ({area} {style.percent(one.area, digits=1)}, FPR at {100.0 * tpr:g} % TPR "
        f"{style.percent(one.evaluation.fpr, digits=1)})"
        for one in drawn
    )
    numbers = sorted({(one.evaluation.n_id, one.evaluation.n_ood) for one in drawn})
    rows = " or ".join(f"{n_id:,} in- and {n_ood:,} out-of-distribution rows" for n_id, n_ood in numbers)
    of_all = "" if len(drawn) == len(measured) else f" The {len(drawn)} best of {len(measured)} detectors are drawn."
    return (
        f"{curve} curves, in-distribution rows being positive, of {rows}: {listed}.{of_all} Dots mark where the false "
        f"positive rate (FPR) is read, where in-distribution rows kept (TPR) are nearest to {100.0 * tpr:g} %."
    )
