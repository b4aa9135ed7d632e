"""The paper's three studies: FPR at 95 % TPR against distance (P37), dimension (P38) and number of classes (P39)."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gem_ood.errors import InputError
from gem_ood.simulation.results import Curve, Point, Study
from gem_ood.simulation.running import Draws, Progress, Rates, for_each
from gem_ood.simulation.sampling import Sampler
from gem_ood.simulation.scoring import SCORES
from gem_ood.simulation.settings import Setting, listed
from gem_ood.theory.prediction import Predictor

__all__ = ["STUDIES", "run_studies", "run_study"]

#: The studies by name: what varies, as the paper calls it and as a field of Setting, and the paper's grid (E13 for r).
STUDIES: dict[str, tuple[str, str, Sequence[float]]] = {
    "distance": ("r", "distance", range(1, 21)),
    "dimension": ("d", "dimension", range(100, 1001, 100)),
    "classes": ("k", "n_classes", range(10, 101, 10)),
}

#: The curves of the first two studies, as many classes as CIFAR-10 and CIFAR-100 have.
CURVES = (10, 100)

#: Seed of the points that predictions are averaged over; that of the drawn rows does not touch them.
PREDICTION_SEED = 0


def run_study(
    name: str,
    *,
    runs: int = 5,
    seed: int = 0,
    sampler: Sampler = "full",
    tpr: float = 0.95,
    grid: Iterable[float] | None = None,
    n_classes: int | Iterable[int] | None = None,
    n_in: int = 20_000,
    n_out: int = 20_000,
    sigma: float = 1.0,
    dimension: int = 512,
    distance: float = 10.0,
    progress: Progress | None = None,
) -> Study:
    """Return one of the paper's studies, at the paper's size unless told otherwise.

    A point's numbers do not depend on the rest of the grid (see `simulate_settings`).

    Args:
        name: "distance" (P37), "dimension" (P38) or "classes" (P39).
        runs: Runs of each point.
        seed: A whole number of at least 0.
        sampler: "full", or "projected" for the exact reduction (B3), which is far quicker.
        tpr: The true positive rate at which rates are read.
        grid: Values of what varies; the paper's, if not given.
        n_classes: The number of classes of each curve, 10 and 100 if not given; the "classes" study varies it.
        n_in: In-distribution rows of each run.
        n_out: Out-of-distribution rows of each run.
        sigma: Standard deviation in every direction.
        dimension: d, where it does not vary.
        distance: r, where it does not vary.
        progress: Called with the rows drawn so far and in all.

    Example:
        >>> study = run_study("distance", grid=[2, 6, 12], n_classes=5, dimension=50, sampler="projected", n_in=2000)
        >>> [round(point.mean(), 1) for point in study.curves[0].points]
        [1.0, 0.4, 0.0]
        >>> all(abs(point.mean() - point.predicted["gem"]) < 0.05 for point in study.points)
        True
    """
    _refuse_unknown(name)
    if name == "classes" and n_classes is not None:
        raise InputError(f"n_classes is {n_classes!r} but the classes study varies it; pass grid instead")
    (study,) = run_studies(
        [name],
        runs=runs,
        seed=seed,
        sampler=sampler,
        tpr=tpr,
        grids=None if grid is None else {name: grid},
        n_classes=n_classes,
        n_in=n_in,
        n_out=n_out,
        sigma=sigma,
        dimension=dimension,
        distance=distance,
        progress=progress,
    )
    return study


def run_studies(
    names: Iterable[str] = tuple(STUDIES),
    *,
    runs: int = 5,
    seed: int = 0,
    sampler: Sampler = "full",
    tpr: float = 0.95,
    grids: Mapping[str, Iterable[float]] | None = None,
    n_classes: int | Iterable[int] | None = None,
    n_in: int = 20_000,
    n_out: int = 20_000,
    sigma: float = 1.0,
    dimension: int = 512,
    distance: float = 10.0,
    progress: Progress | None = None,
) -> list[Study]:
    """Return several studies, in order; a setting that they share is drawn and predicted once.

    A study has the numbers that `run_study` gives it, whose other options mean the same here.

    The names are some of "distance", "dimension" and "classes". The grids are values of what varies by the name of the
    study, the paper's where it is not named. n_classes is for the first two; the "classes" study varies its own.

    Example:
        >>> sizes = {"n_in": 500, "n_out": 500, "sampler": "projected", "n_classes": 10}
        >>> one, other = run_studies(["distance", "classes"], grids={"distance": [5, 10], "classes": [10, 20]}, **sizes)
        >>> one.points[1].setting == other.points[0].setting, one.points[1].rates is other.points[0].rates
        (True, True)
    """
    draws = Draws.checked(runs=runs, seed=seed, sampler=sampler, tpr=tpr)
    common = Setting(1, dimension, distance, sigma=sigma, n_in=n_in, n_out=n_out)
    plans = _plans(listed(names, name="names", of="names of studies"), common, grids or {}, n_classes)
    settings = list(dict.fromkeys(setting for plan in plans for curve in plan.curves for setting in curve))
    rates = draws.counting(settings, progress)

    def work(setting: Setting) -> tuple[Rates, dict[str, float]]:
        return rates(setting), _predicted(setting, draws.tpr)

    results = for_each(work, settings, cost=lambda setting: setting.n_rows * setting.dimension)
    found = dict(zip(settings, results, strict=True))
    return [plan.study(found, draws) for plan in plans]


@dataclass(frozen=True, eq=False)
class _Plan:
    """The settings of each curve of a study."""

    name: str
    curves: list[list[Setting]]

    def study(self, found: Mapping[Setting, tuple[Rates, dict[str, float]]], draws: Draws) -> Study:
        varied, field, _ = STUDIES[self.name]
        curves = tuple(
            Curve(
                None if field == "n_classes" else settings[0].n_classes,
                tuple(Point(setting, float(getattr(setting, field)), *found[setting]) for setting in settings),
            )
            for settings in self.curves
        )
        return Study(self.name, varied, curves, draws.runs, draws.seed, draws.sampler, draws.tpr)


def _plans(
    names: list[str],
    common: Setting,
    grids: Mapping[str, Iterable[float]],
    n_classes: int | Iterable[int] | None,
) -> list[_Plan]:
    counts = _counts(n_classes)
    for name in [*names, *grids]:
        _refuse_unknown(name)
    plans = []
    for name in names:
        _, field, paper_grid = STUDIES[name]
        values = listed(grids.get(name, paper_grid), name="grid")
        curves = [{}] if field == "n_classes" else [{"n_classes": count} for count in counts]
        settings = [[replace(common, **{**curve, field: value}) for value in values] for curve in curves]
        plans.append(_Plan(name, settings))
    return plans


def _refuse_unknown(name: Any) -> None:
    if not isinstance(name, str) or name not in STUDIES:
        raise InputError(f"the study is {name!r}; pass one of {', '.join(STUDIES)}")


def _counts(n_classes: int | Iterable[int] | None) -> list[Any]:
    if n_classes is None:
        return list(CURVES)
    return listed((n_classes,) if isinstance(n_classes, int | np.integer) else n_classes, name="n_classes")


def _predicted(setting: Setting, tpr: float) -> dict[str, float]:
    """Return the rates that `gem_ood.theory.predict_fpr` gives."""
    predictor = Predictor(setting.whitened(), PREDICTION_SEED)
    return {score: float(predictor.predict(score, tpr).fpr) for score in SCORES}
