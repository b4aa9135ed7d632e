"""The plane: two classes, what a classifier makes of them, and points that belong to neither (P40)."""

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gem_ood.gaussians import TiedGaussians, collect
from gem_ood.reports.plots import style
from gem_ood.scores import gem_scores
from gem_ood.simulation.settings import checked_whole_number
from gem_ood.thresholds import conformal_threshold

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["in_and_out"]

TPR = 0.95

#: Enough for both classes to have rows and for the threshold.
FEWEST_ROWS = 40

#: A classifier at least this sure of its class is called confident.
CONFIDENT = 0.99

CLASS_MEANS = ((-2.2, 0.0), (2.2, 0.0))
COVARIANCE = ((1.0, 0.45), (0.45, 1.0))
OOD_MEANS = ((-6.0, 2.6), (5.8, -2.8))
OOD_SCALE = 0.75

WIDTH, HEIGHT = 9.0, 5.0

#: Of the figure, in inches, so that panels of equal scales fill its width.
PAGE_HEIGHT, COLUMN_HEIGHT = 2.7, 4.55

GRID = 241


class _Scene(NamedTuple):
    rows: NDArray[np.float64]
    labels: NDArray[np.intp]
    ood: NDArray[np.float64]
    gaussians: TiedGaussians
    threshold: float


def in_and_out(*, n_rows: int = 240, random_state: int = 0, width: style.Width = "page") -> "Figure":
    """Return the two-panel picture of a confident classifier and of a detector that knows where its data end (P40).

    (a) Rows of two classes, the boundary of the Bayes classifier fitted to them and where it is at least 99 % sure.
    (b) The same with out-of-distribution rows, and the region that GEM calls in-distribution, whose threshold keeps
    95 % of new rows by conformal calibration on as many rows again.

    Args:
        n_rows: How many in-distribution rows to draw; half as many out-of-distribution ones are drawn.
        random_state: The seed of all rows.
        width: "page" puts the panels side by side, "column" one under the other.

    Example:
        >>> figure = in_and_out(n_rows=60)
        >>> [axes.get_title(loc="left") for axes in figure.axes]
        ['(a) In-distribution only', '(b) With OOD rows and GEM']
    """
    n_rows = checked_whole_number(n_rows, name="n_rows", smallest=FEWEST_ROWS)
    random_state = checked_whole_number(random_state, name="random_state", smallest=0)
    is_page = style.is_page(width)
    scene = _scene(n_rows, random_state)
    confident, refused = _shares(scene)
    with style.drawing():
        size = (style.DOUBLE_COLUMN, PAGE_HEIGHT) if is_page else (style.SINGLE_COLUMN, COLUMN_HEIGHT)
        figure = style.new_figure(*size)
        plain, guarded = figure.subplots(*((1, 2) if is_page else (2, 1)), sharex=True, sharey=True)
        for axes in (plain, guarded):
            _draw_classifier(axes, scene)
            axes.label_outer()
        _draw_detector(guarded, scene)
        style.letter([plain, guarded], ["In-distribution only", "With OOD rows and GEM"])
        _draw_legend(figure, guarded, n_columns=3 if is_page else 2)
        return style.finished(
            figure,
            title="Two classes, a confident classifier, and GEM's region at 95 %",
            description=(
                f"Panel (a): rows of two Gaussian classes with one covariance, the boundary of the classifier fitted "
                f"to them, and shaded where it is at least 99 % sure of a class. Panel (b): the same with "
                f"out-of-distribution rows; the classifier is that sure of {style.percent(confident)} of them. The "
                f"thick line encloses what GEM calls in-distribution at a threshold that keeps 95 % of new "
                f"in-distribution rows; it refuses {style.percent(refused)} of the out-of-distribution rows."
            ),
        )


def _scene(n_rows: int, random_state: int) -> _Scene:
    generator = np.random.default_rng(random_state)
    truth = TiedGaussians.from_parameters(CLASS_MEANS, COVARIANCE)
    rows, labels = truth.sample(n_rows, random_state=generator)
    held_out, _ = truth.sample(n_rows, random_state=generator)
    n_ood = n_rows // 2
    ood = np.array(OOD_MEANS)[np.arange(n_ood) % 2] + OOD_SCALE * generator.standard_normal((n_ood, 2))
    gaussians = TiedGaussians.from_statistics(collect(rows, labels))
    threshold = conformal_threshold(gem_scores(gaussians, held_out), tpr=TPR).value
    return _Scene(rows, labels, ood, gaussians, threshold)


def _shares(scene: _Scene) -> tuple[float, float]:
    """Return the shares of OOD rows of which the classifier is confident, and which GEM refuses."""
    is_confident = scene.gaussians.posterior(scene.ood).max(axis=1) >= CONFIDENT
    is_refused = gem_scores(scene.gaussians, scene.ood) < scene.threshold
    return float(is_confident.mean()), float(is_refused.mean())


def _grid() -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    across, up = np.linspace(-WIDTH, WIDTH, GRID), np.linspace(-HEIGHT, HEIGHT, GRID)
    return across, up, np.stack(np.meshgrid(across, up), axis=-1).reshape(-1, 2)


def _draw_classifier(axes: "Axes", scene: _Scene) -> None:
    across, up, points = _grid()
    second = scene.gaussians.posterior(points)[:, 1].reshape(GRID, GRID)
    looks = (("class 1", style.BLUE, "o", 1.0 - second), ("class 2", style.GREEN, "s", second))
    for place, (name, colour, marker, posterior) in enumerate(looks):
        axes.contourf(across, up, posterior, levels=[CONFIDENT, 1.1], colors=[colour], alpha=0.14)
        chosen = scene.rows[scene.labels == place]
        axes.plot(
            *chosen.T, marker, color=colour, markersize=2.6, markeredgecolor="white", markeredgewidth=0.3, label=name
        )
    axes.contour(across, up, second, levels=[0.5], colors=[style.BLACK], linewidths=0.9, linestyles="--")
    axes.set(xlim=(-WIDTH, WIDTH), ylim=(-HEIGHT, HEIGHT), aspect="equal")
    axes.set_xlabel("feature $x_1$")
    axes.set_ylabel("feature $x_2$")


def _draw_detector(axes: "Axes", scene: _Scene) -> None:
    across, up, points = _grid()
    scores = gem_scores(scene.gaussians, points).reshape(GRID, GRID)
    axes.plot(
        *scene.ood.T,
        "^",
        color=style.VERMILION,
        markersize=3.2,
        markeredgecolor="white",
        markeredgewidth=0.3,
        label="out-of-distribution",
    )
    axes.contour(across, up, scores, levels=[scene.threshold], colors=[style.BLACK], linewidths=1.6, linestyles="solid")


def _draw_legend(figure: "Figure", axes: "Axes", *, n_columns: int) -> None:
    from matplotlib.legend_handler import HandlerTuple
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    drawn = dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
    shades = tuple(Patch(facecolor=colour, alpha=0.25, linewidth=0) for colour in (style.BLUE, style.GREEN))
    entries = {
        **drawn,
        "classifier's boundary": Line2D([], [], color=style.BLACK, linewidth=0.9, linestyle="--"),
        "classifier at least 99 % sure": shades,
        "GEM's region at 95 % TPR": Line2D([], [], color=style.BLACK, linewidth=1.6),
    }
    figure.legend(
        list(entries.values()),
        list(entries),
        loc="outside lower center",
        ncols=n_columns,
        handler_map={tuple: HandlerTuple(ndivide=None, pad=0.0)},
    )
