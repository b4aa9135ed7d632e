"""The studies: how the false positive rate moves with distance, dimension and the number of classes (P43)."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gem_ood.errors import InputError
from gem_ood.reports.plots import style
from gem_ood.simulation import SCORES, Study

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from gem_ood.simulation import Curve

__all__ = ["study_curves"]


class _Look(NamedTuple):
    label: str
    colour: str
    markers: tuple[str, str]
    size: float


#: Drawn from the last to the first. Scores that nearly agree stay visible: a marker reaches out from under the next.
#: The first two curves have the first marker, filled and open, the next two the second.
LOOKS = {
    "gem": _Look("GEM", style.BLUE, ("o", "s"), 3.2),
    "mahalanobis": _Look("Mahalanobis", style.VERMILION, ("x", "+"), 4.6),
    "msp": _Look("MSP", style.ORANGE, ("^", "v"), 2.0),
    "linear-energy": _Look("f′-energy", style.GREEN, ("D", "p"), 3.4),
}

#: Panels from left to right, and the name of each axis.
AXES = {"distance": "distance $r$", "dimension": "dimension $d$", "classes": "number of classes $k$"}

#: One for each number of classes, the same in all panels and in the legend.
DASHES: tuple[style.Dashes, ...] = ("-", (0, (4, 1.5)), (0, (1, 1)), (0, (5, 1.5, 1, 1.5)))

#: Heights of a page's panels in a row, and of one of a column's stacked panels and what is around them, in inches.
PAGE_HEIGHT, PANEL_HEIGHT, LEGEND_HEIGHT = 2.75, 1.72, 0.75

#: A panel alone in a column is higher.
SINGLE_HEIGHT = 3.1


def study_curves(
    studies: Study | Iterable[Study], *, scores: Sequence[str] = SCORES, width: style.Width | None = None
) -> "Figure":
    """Return one panel per study: mean false positive rate with its spread over runs, and the B3 prediction (P43).

    GEM is drawn large, as markers over the thin line of its prediction; the other scores are smaller and lighter.
    Shades reach one spread (`Point.spread`) to each side; over 20,000 rows they are hardly wider than a line. A number
    of classes has one look in all panels; there are four.

    Args:
        studies: What `gem_ood.simulation.run_study` or `run_studies` returned, each study once.
        scores: Which scores to draw.
        width: "page" puts panels side by side, "column" one under the other; a column for one study if not given.

    Example:
        >>> from gem_ood.simulation import run_study
        >>> study = run_study("distance", runs=2, sampler="projected", grid=[5.0, 10.0], n_in=500, n_out=500)
        >>> [axes.get_xlabel() for axes in study_curves(study).axes]
        ['distance $r$']
    """
    ordered = _checked(studies, scores)
    places = _places(ordered)
    is_single = len(ordered) == 1
    is_page = style.is_page("column" if is_single and width is None else width or "page")
    with style.drawing():
        figure, panels = _new_panels(len(ordered), is_page)
        for axes, study in zip(panels, ordered, strict=True):
            _draw_study(axes, study, scores, places)
        for axes in panels[: 1 if is_page else None]:
            axes.set_ylabel(_rate_name(ordered))
        panels[0].set(ylim=(-0.02, 1.02), yticks=np.linspace(0.0, 1.0, 6))
        if is_single:
            panels[0].set_title(_fixed(ordered[0]))
        else:
            style.letter(panels, [_fixed(study) for study in ordered])
        entries = _legend(places, scores)
        figure.legend(list(entries.values()), list(entries), loc="outside lower center", ncols=4 if is_page else 2)
        return style.finished(
            figure, title="False positive rates in the simulation studies", description=_description(ordered, scores)
        )


def _checked(studies: Study | Iterable[Study], scores: Sequence[str]) -> list[Study]:
    given = [studies] if isinstance(studies, Study) else list(studies)
    unknown = [name for name in scores if name not in LOOKS]
    if unknown or not scores:
        raise InputError(f"scores is {list(scores)!r}; pass some of {', '.join(LOOKS)}")
    if not given:
        raise InputError("studies is empty; pass what gem_ood.simulation.run_study returned")
    names = [study.name for study in given]
    if len(set(names)) < len(names):
        raise InputError(f"studies has {', '.join(names)}; pass each study once")
    rates = list(dict.fromkeys(study.tpr for study in given))
    if len(rates) > 1:
        raise InputError(
            f"studies were read at tpr {' and '.join(f'{rate:g}' for rate in rates)} but share an axis; run them at one"
        )
    return sorted(given, key=lambda study: list(AXES).index(study.name))


def _places(studies: list[Study]) -> dict[int, int]:
    """Return which look each number of classes has, in all studies."""
    numbers = dict.fromkeys(
        curve.n_classes for study in studies for curve in study.curves if curve.n_classes is not None
    )
    if len(numbers) > len(DASHES):
        raise InputError(
            f"studies have curves of {len(numbers)} numbers of classes ({', '.join(map(str, numbers))}) but a figure "
            f"tells {len(DASHES)} apart; pass studies with fewer, or draw several figures"
        )
    return {number: place for place, number in enumerate(numbers)}


def _new_panels(n: int, is_page: bool) -> "tuple[Figure, list[Axes]]":
    if is_page:
        figure = style.new_figure(style.DOUBLE_COLUMN, PAGE_HEIGHT)
        return figure, list(figure.subplots(1, n, sharey=True, squeeze=False)[0])
    height = SINGLE_HEIGHT if n == 1 else n * PANEL_HEIGHT + LEGEND_HEIGHT
    figure = style.new_figure(style.SINGLE_COLUMN, height)
    return figure, list(figure.subplots(n, 1, sharey=True, squeeze=False)[:, 0])


def _draw_study(axes: "Axes", study: Study, scores: Sequence[str], places: dict[int, int]) -> None:
    for name in reversed([name for name in LOOKS if name in scores]):
        for curve in study.curves:
            _draw_curve(axes, curve, name, 0 if curve.n_classes is None else places[curve.n_classes])
    axes.set_xlabel(AXES[study.name])
    axes.locator_params(axis="x", steps=[1, 2, 5, 10])


def _draw_curve(axes: "Axes", curve: "Curve", name: str, place: int) -> None:
    look, is_main = LOOKS[name], name == "gem"
    x, mean, spread = _values(curve, name)
    axes.fill_between(x, mean - spread, mean + spread, color=look.colour, alpha=0.25, linewidth=0)
    if is_main:
        axes.plot(
            x,
            [point.predicted[name] for point in curve.points],
            color=style.BLACK,
            linestyle=DASHES[place],
            linewidth=0.6,
            zorder=3,
            label=f"{_tag(curve, name)} predicted",
        )
    axes.plot(
        x,
        mean,
        color=look.colour,
        linestyle="none" if is_main else DASHES[place],
        linewidth=0.8,
        alpha=1.0 if is_main else 0.8,
        zorder=4 if is_main else 2,
        label=_tag(curve, name),
        **_marker(look, place),
    )


def _tag(curve: "Curve", name: str) -> str:
    return name if curve.n_classes is None else f"{name} k={curve.n_classes}"


def _marker(look: _Look, place: int) -> dict[str, Any]:
    return {
        "marker": look.markers[place // 2],
        "markersize": look.size,
        "markerfacecolor": look.colour if place % 2 == 0 else "white",
        "markeredgecolor": look.colour,
        "markeredgewidth": 0.7,
    }


def _values(curve: "Curve", name: str) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    x = np.array([point.value for point in curve.points], dtype=np.float64)
    mean = np.array([point.mean(name) for point in curve.points])
    spread = np.array([point.spread(name) for point in curve.points])
    return x, mean, np.nan_to_num(spread)  # one run has no spread


def _rate_name(studies: list[Study]) -> str:
    return f"FPR at {100.0 * studies[0].tpr:g} % TPR"


def _fixed(study: Study) -> str:
    """Return what stays the same along a study's axis."""
    setting = study.curves[0].points[0].setting
    parts = {"distance": f"$r$ = {setting.distance:g}", "dimension": f"$d$ = {setting.dimension}"}
    kept = [text for name, text in parts.items() if name != study.name]
    return ", ".join([*kept, f"σ = {setting.sigma:g}"])


def _legend(places: dict[int, int], scores: Sequence[str]) -> "dict[str, Artist]":
    from matplotlib.lines import Line2D

    entries: dict[str, Artist] = {}
    for number, place in places.items():
        marker = _marker(_Look("", style.BLACK, LOOKS["gem"].markers, 2.8), place)
        entries[f"$k$ = {number}"] = Line2D([], [], color=style.BLACK, linestyle=DASHES[place], linewidth=0.8, **marker)
    for name in (name for name in LOOKS if name in scores):
        look, is_main = LOOKS[name], name == "gem"
        entries["GEM, simulated" if is_main else look.label] = Line2D(
            [], [], color=look.colour, linestyle="none" if is_main else "-", linewidth=0.8, **_marker(look, 0)
        )
        if is_main:
            entries["GEM, predicted"] = Line2D([], [], color=style.BLACK, linewidth=0.6)
    return entries


def _description(studies: list[Study], scores: Sequence[str]) -> str:
    runs = sorted({study.runs for study in studies})
    names = ", ".join(LOOKS[name].label for name in LOOKS if name in scores)
    panels = "; ".join(f"{AXES[study.name]} ({_fixed(study)})".replace("$", "") for study in studies)
    sentences = [
        f"{_rate_name(studies)} of {names} against {panels}.",
        "One run, without a spread; lower is better."
        if runs == [1]
        else f"Mean of {', '.join(map(str, runs))} runs, shaded one spread to each side; lower is better.",
    ]
    if "gem" in scores:
        sentences.append("The thin black line is the rate that theory predicts for GEM, without sampling.")
    if "linear-energy" in scores:
        sentences.append("Against these out-of-distribution rows, N(0, σ²I), no score is better than the f′-energy.")
    return " ".join(sentences)
