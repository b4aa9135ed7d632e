"""The paper's three studies: FPR at 95 % TPR against distance (P37), dimension (P38) and number of classes (P39)."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gem_ood.errors import InputError
from gem_ood.simulation.running import Progress, for_each, simulate_settings
from gem_ood.simulation.sampling import Sampler
from gem_ood.simulation.scoring import SCORES
from gem_ood.simulation.settings import PROTOCOL, Setting
from gem_ood.theory import predict_fpr

__all__ = ["STUDIES", "Curve", "Point", "Study", "run_study"]

#: The studies by name: what varies, as the paper calls it and as a field of Setting, and the paper's grid (E13 for r).
STUDIES: dict[str, tuple[str, str, Sequence[float]]] = {
    "distance": ("r", "distance", range(1, 21)),
    "dimension": ("d", "dimension", range(100, 1001, 100)),
    "classes": ("k", "n_classes", range(10, 101, 10)),
}

#: The curves of the first two studies, as many classes as CIFAR-10 and CIFAR-100 have.
CURVES = (10, 100)


@dataclass(frozen=True, eq=False)
class Point:
    """One setting of a study: a false positive rate per run and score, and what theory predicts.

    Attributes:
        setting: What was drawn.
        value: The varied quantity.
        rates: One false positive rate per run, by score.
        predicted: The rate predicted without sampling (B3), by score.
    """

    setting: Setting
    value: float
    rates: Mapping[str, NDArray[np.float64]]
    predicted: Mapping[str, float]

    def mean(self, score: str = "gem") -> float:
        """Return the mean rate over runs."""
        return float(self.rates[score].mean())

    def spread(self, score: str = "gem") -> float:
        """Return the standard deviation over runs (divisor runs − 1), NaN for a single run."""
        rates = self.rates[score]
        return float(rates.std(ddof=1)) if len(rates) > 1 else float("nan")

    def standard_error(self, score: str = "gem") -> float:
        """Return the standard error of the mean, NaN for a single run."""
        return self.spread(score) / float(np.sqrt(len(self.rates[score])))


@dataclass(frozen=True, eq=False)
class Curve:
    """The points of one number of classes, or of several where that number is what varies."""

    n_classes: int | None
    points: tuple[Point, ...]


@dataclass(frozen=True, eq=False)
class Study:
    """The curves of one study, and how they were made.

    Attributes:
        name: "distance", "dimension" or "classes".
        varied: "r", "d" or "k".
        curves: One for each number of classes; one curve in the "classes" study.
        runs: Runs of each point.
        seed: The seed of all of them.
        sampler: "full" or "projected".
        tpr: The true positive rate at which rates are read.
    """

    name: str
    varied: str
    curves: tuple[Curve, ...]
    runs: int
    seed: int
    sampler: str
    tpr: float

    @property
    def points(self) -> tuple[Point, ...]:
        """The points of all curves."""
        return tuple(point for curve in self.curves for point in curve.points)

    def as_dict(self) -> dict[str, Any]:
        """Return everything as plain values for JSON; a spread of a single run is None."""
        return {
            "study": self.name,
            "varied": self.varied,
            "runs": self.runs,
            "seed": self.seed,
            "sampler": self.sampler,
            "tpr": self.tpr,
            "protocol": list(PROTOCOL),
            "curves": [
                {"n_classes": curve.n_classes, "points": [_point_as_dict(point) for point in curve.points]}
                for curve in self.curves
            ],
        }

    def as_columns(self) -> dict[str, NDArray[Any]]:
        """Return one row per point, score and run, as columns."""
        rows = [
            {
                "study": self.name,
                "varied": self.varied,
                "value": point.value,
                "n_classes": point.setting.n_classes,
                "dimension": point.setting.dimension,
                "distance": point.setting.distance,
                "score": score,
                "run": run,
                "fpr": float(rate),
                "predicted": point.predicted[score],
            }
            for point in self.points
            for score in SCORES
            for run, rate in enumerate(point.rates[score])
        ]
        return {name: np.array([row[name] for row in rows]) for name in rows[0]}


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

    A point's numbers do not depend on the rest of the grid (see `simulate_settings`). A setting that two studies share
    has the same numbers in both.

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
    if name not in STUDIES:
        raise InputError(f"the study is {name!r}; pass one of {', '.join(STUDIES)}")
    varied, field, paper_grid = STUDIES[name]
    counts = _curves(name, n_classes)
    values = _listed(paper_grid if grid is None else grid, name="grid")
    common = Setting(1, dimension, distance, sigma=sigma, n_in=n_in, n_out=n_out)
    settings = [
        replace(common, **{**({} if count is None else {"n_classes": count}), field: value})
        for count in counts
        for value in values
    ]
    rates = simulate_settings(settings, runs=runs, seed=seed, sampler=sampler, tpr=tpr, progress=progress)
    predictions = for_each(lambda one: _predicted(one, tpr), settings, cost=lambda one: one.dimension)
    points = iter(
        Point(setting, float(getattr(setting, field)), found, predicted)
        for setting, found, predicted in zip(settings, rates, predictions, strict=True)
    )
    curves = tuple(Curve(count, tuple(_take(points, len(values)))) for count in counts)
    return Study(name, varied, curves, int(runs), int(seed), sampler, float(tpr))


def _curves(name: str, n_classes: int | Iterable[int] | None) -> Sequence[int | None]:
    if name == "classes":
        if n_classes is not None:
            raise InputError(f"n_classes is {n_classes!r} but the classes study varies it; pass grid instead")
        return (None,)
    if n_classes is None:
        return CURVES
    return _listed((n_classes,) if isinstance(n_classes, int | np.integer) else n_classes, name="n_classes")


def _listed(values: Iterable[Any], *, name: str) -> list[Any]:
    try:
        listed = list(values)
    except TypeError as error:
        raise InputError(f"{name} is {values!r}; pass a list of numbers") from error
    if not listed:
        raise InputError(f"{name} is empty; pass at least one number")
    return listed


def _take(points: Iterator[Point], n: int) -> Iterator[Point]:
    for _ in range(n):
        yield next(points)


def _predicted(setting: Setting, tpr: float) -> dict[str, float]:
    found = predict_fpr(setting.gaussians(), np.zeros(setting.dimension), tpr=tpr)
    return {score: float(found[score].fpr) for score in SCORES}


def _point_as_dict(point: Point) -> dict[str, Any]:
    has_spread = len(next(iter(point.rates.values()))) > 1
    return {
        "value": point.value,
        "setting": asdict(point.setting),
        "scores": {
            score: {
                "rates": point.rates[score].tolist(),
                "mean": point.mean(score),
                "spread": point.spread(score) if has_spread else None,
                "standard_error": point.standard_error(score) if has_spread else None,
                "predicted": point.predicted[score],
            }
            for score in SCORES
        },
    }
