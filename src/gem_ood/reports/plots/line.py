"""The line: a density and four scores of it on one axis, and where each score ranks points wrongly (P41)."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gem_ood.errors import InputError
from gem_ood.gaussians import TiedGaussians
from gem_ood.reports.plots import style
from gem_ood.reports.plots.inversions import Inversions, ranking_inversions
from gem_ood.scores import gem_scores, linear_energy, mahalanobis_scores, msp

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["scores_in_one_dimension"]

#: How far beyond the outer means the axis reaches, in standard deviations.
REACH = 6.0

#: An odd number, so that the middle between two means is a point; fine enough to find the small inversions too.
N_POINTS = 16_001

#: Every so many points are drawn.
DRAWN_STEP = 10

#: A point ranked above another this many times likelier is marked as a gross inversion.
GROSS_FACTOR = 10.0


class _Look(NamedTuple):
    label: str
    row: str
    colour: str
    dashes: style.Dashes
    width: float


#: From the score with the most to say to the one with the least; the label states how the curve is scaled.
LOOKS = {
    "msp": _Look("MSP, as it is", "MSP", style.ORANGE, (0, (6, 1.5)), 1.3),
    "linear-energy": _Look("f′-energy, affine to [0, 1]", "f′-energy", style.GREEN, (0, (5, 1.5, 1, 1.5)), 1.3),
    "mahalanobis": _Look("exp(½ Mahalanobis)", "Mahalanobis", style.VERMILION, (0, (2.2, 1)), 1.3),
    "gem": _Look("exp(GEM) ÷ its peak", "GEM", style.BLUE, "-", 1.5),
}


def scores_in_one_dimension(*, means: Sequence[float] = (-2.0, 2.0), sigma: float = 1.0) -> "Figure":
    """Return the density, MSP, GEM, Mahalanobis and f'-energy of a one-dimensional mixture, inversions marked (P41).

    Rankings do not change under increasing functions, so each curve is scaled by one to share the axis: the density
    and exp(GEM) are divided by their peaks, where they are one curve, as GEM is log p plus a constant (E9); Mahalanobis
    M is drawn as exp(M/2); MSP as it is; the energy of the linear logits f' by a line onto [0, 1]. The lower panel
    marks every x that a score ranks above a likelier x', and the pair with the largest ratio of densities.

    Args:
        means: One mean per class, at least two of them distinct.
        sigma: The standard deviation that the classes share (E15).

    Example:
        >>> figure = scores_in_one_dimension()
        >>> [text.get_text() for text in figure.axes[1].get_yticklabels()]
        ['MSP', 'f′-energy', 'Mahalanobis', 'GEM']
    """
    centres = np.asarray(means, dtype=np.float64)
    if centres.ndim != 1 or not np.isfinite(centres).all() or len(np.unique(centres)) < 2:
        raise InputError(f"means is {means!r}; pass at least two distinct finite numbers")
    if not (np.isfinite(sigma) and sigma > 0.0):
        raise InputError(f"sigma is {sigma!r}; pass a positive standard deviation")
    gaussians = TiedGaussians.from_parameters(centres[:, np.newaxis], [[sigma**2]])
    x = np.linspace(centres.min() - REACH * sigma, centres.max() + REACH * sigma, N_POINTS)
    # Between classes that are far apart the density underflows; there all points are as good as equally unlikely.
    density = np.maximum(np.exp(gaussians.log_density(x[:, np.newaxis])), np.finfo(np.float64).tiny)
    scores = _scores(gaussians, x[:, np.newaxis])
    inversions = {name: ranking_inversions(density, score) for name, score in scores.items()}
    with style.drawing():
        figure = style.new_figure(style.SINGLE_COLUMN, 3.6)
        upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=[2.0, 1.15])
        _draw_curves(
            upper,
            x[::DRAWN_STEP],
            density[::DRAWN_STEP],
            {name: score[::DRAWN_STEP] for name, score in scores.items()},
        )
        _draw_inversions(lower, x, inversions)
        figure.legend(*_in_reading_order(upper), loc="outside upper center", ncols=2)
        return style.finished(
            figure,
            title="Density and scores in one dimension, with their ranking inversions",
            description=_description(x, inversions, centres, sigma),
        )


def _scores(gaussians: TiedGaussians, points: NDArray[np.float64]) -> dict[str, NDArray[np.float64]]:
    return {
        "msp": msp(gaussians.exponents(points)),
        "linear-energy": linear_energy(gaussians, points),
        "mahalanobis": mahalanobis_scores(gaussians, points),
        "gem": gem_scores(gaussians, points),
    }


def _scaled(name: str, score: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return an increasing function of a score that fits on the axis from 0 to 1."""
    if name == "gem":
        return np.asarray(np.exp(score - score.max()))
    if name == "mahalanobis":
        return np.asarray(np.exp(0.5 * score))
    return score if name == "msp" else np.asarray((score - score.min()) / np.ptp(score))


def _draw_curves(
    axes: "Axes", x: NDArray[np.float64], density: NDArray[np.float64], scores: dict[str, NDArray[np.float64]]
) -> None:
    axes.fill_between(
        x, 0.0, density / density.max(), color=style.GREY, alpha=0.35, linewidth=0, label="density p(x) ÷ its peak"
    )
    for name, score in scores.items():
        look = LOOKS[name]
        axes.plot(
            x, _scaled(name, score), color=look.colour, linestyle=look.dashes, linewidth=look.width, label=look.label
        )
    axes.set(xlim=(x[0], x[-1]), ylim=(0.0, 1.04), yticks=[0.0, 0.5, 1.0])
    axes.set_ylabel("scaled value")


def _draw_inversions(axes: "Axes", x: NDArray[np.float64], inversions: dict[str, Inversions]) -> None:
    """Draw one row per score: where it ranks x too high, where grossly, and its worst pair."""
    step = x[1] - x[0]
    for place, (name, found) in enumerate(inversions.items()):
        colour = LOOKS[name].colour
        for is_marked, height, alpha in ((found.is_inverted, 0.34, 0.35), (found.factors >= GROSS_FACTOR, 0.34, 0.9)):
            bars = [(x[first] - step / 2, x[last] - x[first] + step) for first, last in _runs(is_marked)]
            axes.broken_barh(bars, (place - 0.42, height), color=colour, alpha=alpha, linewidth=0)
        _draw_worst_pair(axes, x, found, place)
    axes.set(ylim=(len(inversions) - 0.45, -0.6), yticks=range(len(inversions)))
    axes.set_yticklabels([LOOKS[name].row for name in inversions])
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.set_xlabel("$x$")
    axes.locator_params(axis="x", nbins=9, steps=[1, 2, 5, 10])
    axes.set_title(f"$x$ ranked above a likelier $x'$ (dark: ≥ {GROSS_FACTOR:g}× likelier)", fontsize=7, pad=3)


def _draw_worst_pair(axes: "Axes", x: NDArray[np.float64], found: Inversions, place: int) -> None:
    if found.worst is None:
        axes.text(float(np.mean(x[[0, -1]])), place, "no inversion", ha="center", va="center", fontsize=6.5)
        return
    high, likelier = (float(x[index]) for index in found.worst)
    height = place + 0.2
    axes.annotate(
        "",
        (high, height),
        (likelier, height),
        arrowprops={
            "arrowstyle": "-|>",
            "linewidth": 0.6,
            "mutation_scale": 5,
            "shrinkA": 0,
            "shrinkB": 0,
            "facecolor": style.BLACK,
        },
    )
    axes.plot(likelier, height, "o", color=style.BLACK, markersize=2.6)
    side = -1.0 if high > likelier else 1.0  # the text goes where the arrow does not
    axes.annotate(
        f"{_times(found.factors.max())} less likely",
        (likelier, height),
        (5.0 * side, -0.3),
        textcoords="offset points",
        ha="left" if side > 0 else "right",
        va="center",
        fontsize=6.5,
    )


def _runs(is_marked: NDArray[np.bool_]) -> list[tuple[int, int]]:
    """Return the first and last place of each run of marked points."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], is_marked, [False]]).astype(np.int8)))
    return [(int(first), int(end) - 1) for first, end in edges.reshape(-1, 2)]


def _times(factor: float) -> str:
    """Return a factor as it is read aloud: 1.9×, or by the power of ten under it.

    >>> _times(1.94), _times(3.2e6)
    ('1.9×', 'over 10⁶×')
    """
    if factor < 1000.0:
        return f"{factor:.2g}×" if factor < 100.0 else f"{factor:.0f}×"
    return "over 10" + str(int(np.log10(factor))).translate(str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")) + "×"


def _in_reading_order(axes: "Axes") -> "tuple[list[Artist], list[str]]":
    """Return the legend's handles and labels with the density first, then the scores from GEM on."""
    handles, labels = axes.get_legend_handles_labels()
    return [handles[0], *reversed(handles[1:])], [labels[0], *reversed(labels[1:])]


def _description(
    x: NDArray[np.float64], inversions: dict[str, Inversions], means: NDArray[np.float64], sigma: float
) -> str:
    listed = ", ".join(f"{mean:g}" for mean in means)
    facts = []
    for name, found in inversions.items():
        if found.worst is None:
            facts.append(f"{LOOKS[name].row} ranks no point above a likelier one.")
            continue
        high, likelier = found.worst
        facts.append(
            f"{LOOKS[name].row} ranks x = {x[high]:.3g} above x = {x[likelier]:.3g}, which is "
            f"{found.factors.max():.3g} times likelier."
        )
    return (
        f"A mixture of Gaussians with means {listed} and standard deviation {sigma:g}. Upper panel: the density and "
        f"exp(GEM), each divided by its peak; exp(M/2) of the Mahalanobis score M; MSP as it is; the energy of the "
        f"linear logits, affine to [0, 1] over the range shown. Lower panel: bars mark every x that a score ranks "
        f"above a likelier x', dark where x' is at least {GROSS_FACTOR:g} times likelier; the arrow leads from x' to x "
        f"for the worst pair. " + " ".join(facts)
    )
