"""Draw the figures of the explanation page, `docs/gem.md`, as SVG: the same bytes on every run.

Run it from the repository's root, with the folder to write to: `python docs/figures.py docs/images`. It needs the
extra `report`. The paper's own figures come from `gem-ood figures`.
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gem_ood import GEM
from gem_ood.gaussians import TiedGaussians
from gem_ood.reports import save_figure
from gem_ood.reports.plots import style
from gem_ood.scores import gem_scores, linear_energy
from gem_ood.theory import analyze

__all__ = ["calibration", "draw_all", "far_from_everything", "negative_separation"]

TPR = 0.95


# What the energy cannot see (B7)


def far_from_everything() -> Any:
    """Return GEM's and the linear energy's landscapes around two classes, with odd rows far out along both (B7)."""
    classes = TiedGaussians.from_parameters([[-2.0, 0.5], [2.0, 0.5]], [[1.0, 0.3], [0.3, 0.8]])
    rows, labels = classes.sample(200, random_state=0)
    odd = np.array([5.5, 3.5]) + 0.6 * np.random.default_rng(1).normal(size=(60, 2))
    held_out, _ = classes.sample(20_000, random_state=2)
    across, up = np.linspace(-7.0, 7.5, 91), np.linspace(-4.5, 5.5, 71)
    points = np.stack(np.meshgrid(across, up), axis=-1).reshape(-1, 2)
    kept = {}
    with style.drawing():
        figure = style.new_figure(style.DOUBLE_COLUMN, 2.75)
        panels = figure.subplots(1, 2, sharex=True, sharey=True)
        for axes, score in zip(panels, (gem_scores, linear_energy), strict=True):
            heights = score(classes, points).reshape(len(up), len(across))
            threshold = float(np.quantile(score(classes, held_out), 1.0 - TPR))
            shares = np.quantile(heights, np.linspace(0.0, 1.0, 9))
            axes.contourf(across, up, heights, levels=shares, cmap="Blues", alpha=0.75)
            axes.contour(
                across, up, heights, levels=[threshold], colors=[style.BLACK], linewidths=1.5, linestyles="solid"
            )
            _mark(axes, rows[labels == 0], style.BLUE, "o", "class 1")
            _mark(axes, rows[labels == 1], style.GREEN, "s", "class 2")
            _mark(axes, odd, style.VERMILION, "^", "out-of-distribution")
            axes.set(xlabel="feature $x_1$", aspect="equal")
            kept[score.__name__] = float((score(classes, odd) >= threshold).mean())
        panels[0].set_ylabel("feature $x_2$")
        style.letter(panels, ["GEM: falls in every direction", "Energy of the linear logits: rises outwards"])
        handles, names = panels[0].get_legend_handles_labels()
        figure.legend(handles, names, loc="outside lower center", ncols=3)
        return style.finished(
            figure,
            title="What the energy of the linear logits cannot see",
            description=(
                f"Two classes and out-of-distribution rows beyond one of them. Darker is a higher score, and the black "
                f"line is a threshold at 95 % TPR. (a) GEM keeps a region around the classes and "
                f"{style.percent(kept['gem_scores'])} of the odd rows. (b) The energy of the linear logits rises "
                f"outwards without end, so rows far beyond either class are kept, and "
                f"{style.percent(kept['linear_energy'])} of the odd rows."
            ),
        )


# Where the separation is negative (E5), and what the bounds say (E3)


def negative_separation() -> Any:
    """Return predicted FPR95 against the distance, shaded where D < 0 (E5, E8), and bound beside truth (E3)."""
    distances = np.concatenate([[0.5], np.arange(1.0, 17.0)])
    with style.drawing():
        figure = style.new_figure(style.DOUBLE_COLUMN, 2.75)
        rates, sizes = figure.subplots(1, 2)
        for n_classes, dashes in ((10, "-"), (100, "--")):
            results = [
                analyze(distance * np.eye(n_classes, 512), np.eye(512), np.zeros(512), tpr=TPR)
                for distance in distances
            ]
            rates.plot(distances, [result.predicted_fpr for result in results], dashes, color=style.BLUE)
            rates.plot(distances, [result.predicted_fpr_optimal for result in results], dashes, color=style.GREEN)
            limit = 2.0 * np.sqrt(np.log(n_classes - 1.0))
            rates.axvspan(0.0, limit, color=style.VERMILION, alpha=0.13, linewidth=0)
            rates.axvline(limit, color=style.GREY, linestyle=dashes, linewidth=0.8)
            if n_classes == 10:
                _draw_bounds(sizes, distances, results)
        rates.text(0.15, 0.03, "$D$ < 0", color=style.VERMILION, transform=rates.get_xaxis_transform())
        rates.set(xlabel="distance $r$", ylabel="FPR at 95 % TPR, predicted", xlim=(0.0, 16.0), ylim=(-0.02, 1.02))
        rates.legend(handles=_looks(), loc="upper right")
        sizes.set(xlabel="distance $r$", ylabel="log$_{10}$", xlim=(0.0, 16.0))
        sizes.legend(loc="center left", bbox_to_anchor=(0.0, 0.62))
        style.letter([rates, sizes], ["Rates, $d$ = 512", "Mean scores and the bound, $k$ = 10"])
        return style.finished(
            figure,
            title="Where the separation D is negative, and how loose the bound is",
            description=(
                "(a) The false positive rate that theory predicts in the paper's own simulation, for 10 and 100 "
                "classes in 512 dimensions. Shaded: where D is negative, up to r = 2 √ln(k − 1); GEM's rate is about "
                "0.95 there and first rises. The best possible score, the energy of the linear logits, is near zero "
                "long before GEM. (b) The mean of ES over in-distribution and out-of-distribution rows, and the "
                "paper's bound on the latter, which stays near 10 while the truth is more than 70 decades below."
            ),
        )


def _looks() -> list[Any]:
    """Return what colours and dashes mean, in fewer words than one entry for each line."""
    from matplotlib.lines import Line2D

    entries = {
        "GEM": {"color": style.BLUE},
        "best possible": {"color": style.GREEN},
        "$k$ = 10": {"color": style.BLACK},
        "$k$ = 100": {"color": style.BLACK, "linestyle": "--"},
    }
    return [Line2D([], [], label=name, **look) for name, look in entries.items()]


def _draw_bounds(axes: Any, distances: NDArray[np.float64], results: list[Any]) -> None:
    decade = np.log(10.0)
    axes.plot(
        distances,
        [np.log10(result.bound_expected_out) for result in results],
        color=style.VERMILION,
        linestyle="--",
        label="the paper's bound on E$_{out}$ ES (P22)",
    )
    axes.plot(
        distances, [result.log_expected_in / decade for result in results], color=style.BLUE, label="E$_{in}$ ES, exact"
    )
    axes.plot(
        distances,
        [result.log_expected_out / decade for result in results],
        color=style.BLACK,
        linestyle=":",
        label="E$_{out}$ ES, exact",
    )


# Training rows are no calibration rows (B6)


def calibration(*, n_train: int = 1500, dimension: int = 200) -> Any:
    """Return the GEM scores of training and of new rows, and the two thresholds that they would give (B6)."""
    rng = np.random.default_rng(0)
    training, labels = rng.normal(size=(n_train, dimension)), np.arange(n_train) % 10
    held_out, new = rng.normal(size=(2, 5000, dimension))
    detector = GEM().fit(training, labels)
    new_scores = detector.score_samples(new)
    with style.drawing():
        figure = style.new_figure(style.DOUBLE_COLUMN, 2.4)
        axes = figure.subplots()
        every = np.concatenate([detector.score_samples(training), new_scores])
        bins = np.linspace(*np.quantile(every, [0.0005, 0.9995]), 70)
        looks = {
            "training rows": (training, style.VERMILION, "--"),
            "held-out rows": (held_out, style.BLUE, "-"),
        }
        kept = []
        for name, (rows, colour, dashes) in looks.items():
            axes.hist(detector.score_samples(rows), bins, density=True, color=colour, alpha=0.35, label=name)
            threshold = detector.calibrate(rows, tpr=TPR).threshold_.value
            kept.append(style.percent((new_scores >= threshold).mean()))
            axes.axvline(
                threshold,
                color=colour,
                linestyle=dashes,
                label=f"their 95 % threshold keeps {kept[-1]} of new rows",
            )
        axes.set(xlabel="GEM score", ylabel="density", yticks=[])
        figure.legend(loc="outside lower center", ncols=2)
        return style.finished(
            figure,
            title="Training rows score higher than new rows do",
            description=(
                f"Histograms of the GEM scores of {n_train:,} training rows and of 5,000 held-out rows of the same "
                f"distribution in {dimension} dimensions. The training rows score higher, as means and covariance were "
                f"fitted to them. A threshold that keeps 95 % of the training rows keeps {kept[0]} of new rows; one "
                f"from held-out rows keeps {kept[1]}."
            ),
        )


def _mark(axes: Any, rows: NDArray[np.float64], colour: str, marker: str, name: str) -> None:
    axes.plot(*rows.T, marker, color=colour, markersize=2.8, markeredgecolor="white", markeredgewidth=0.3, label=name)


FIGURES = {
    "far-from-everything": far_from_everything,
    "negative-separation": negative_separation,
    "calibration": calibration,
}


def draw_all(folder: Path) -> list[Path]:
    """Write every figure into a folder that exists, and return the paths."""
    return [save_figure(draw(), folder / f"{name}.svg") for name, draw in FIGURES.items()]


if __name__ == "__main__":
    for path in draw_all(Path(sys.argv[1] if len(sys.argv) > 1 else "docs/images")):
        print(path)
