"""What a study found: a false positive rate per run, score and setting, beside the predicted one."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gem_ood.simulation.scoring import SCORES
from gem_ood.simulation.settings import PROTOCOL, Setting

__all__ = ["Curve", "Point", "Study"]


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
        """Return everything as plain values for JSON, PROTOCOL too; a spread of a single run is None."""
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
        """Return one row per point, score and run, as columns: what was drawn, how, and the rate."""
        rows = [
            {
                "study": self.name,
                "varied": self.varied,
                "value": point.value,
                "n_classes": point.setting.n_classes,
                "dimension": point.setting.dimension,
                "distance": point.setting.distance,
                "sigma": point.setting.sigma,
                "n_in": point.setting.n_in,
                "n_out": point.setting.n_out,
                "sampler": self.sampler,
                "seed": self.seed,
                "tpr": self.tpr,
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
