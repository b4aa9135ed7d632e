"""The numbers that the paper prints in its tables (P44, P45, P46), in percent."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from gem_ood.comparison import MEAN

__all__ = ["ODIN_TEMPERATURE", "PAPER", "PAPER_METHODS", "PAPER_METRICS", "PAPER_SETS", "PaperTable"]

#: The methods of the tables by their names in the catalogue, in the order of the main table.
PAPER_METHODS = ("msp", "odin", "mahalanobis", "energy", "gem")

#: The six out-of-distribution sets, in the order of the tables of each set (P47).
PAPER_SETS = ("textures", "svhn", "places365", "lsun-c", "lsun-r", "isun")

#: What the three numbers of a cell are.
PAPER_METRICS = ("fpr", "auroc", "aupr_in")

#: ODIN's temperature, in its paper and in the catalogue.
ODIN_TEMPERATURE = 1000.0

Numbers = tuple[float, float, float]


@dataclass(frozen=True)
class PaperTable:
    """What the paper prints for one in-distribution set.

    Attributes:
        main: FPR95, AUROC and AUPR of each method in the main table, the means over six sets.
        sets: The same by set and method, from the tables in the appendix.
        id_error: The network's test error.
    """

    main: Mapping[str, Numbers]
    sets: Mapping[str, Mapping[str, Numbers]]
    id_error: float

    def value(self, method: str, metric: str, ood: str = MEAN) -> float | None:
        """Return a printed number as a fraction; None where the paper has none.

        >>> PAPER["cifar10"].value("gem", "fpr"), PAPER["cifar10"].value("knn", "fpr")
        (0.3721, None)
        """
        numbers = self.main.get(method) if ood == MEAN else self.sets.get(ood, {}).get(method)
        if numbers is None or metric not in PAPER_METRICS:
            return None
        return round(numbers[PAPER_METRICS.index(metric)] / 100.0, 4)

    def mean(self, method: str, metric: str, sets: tuple[str, ...]) -> float | None:
        """Return the mean over some of the sets: the printed one for all six, else that of the printed numbers."""
        if set(sets) == set(PAPER_SETS):
            return self.value(method, metric)
        values = [self.value(method, metric, ood) for ood in sets]
        known = [value for value in values if value is not None]
        return float(np.mean(known)) if known and len(known) == len(values) else None


#: What the paper prints, by in-distribution set: "cifar10" and "cifar100".
PAPER = {
    "cifar10": PaperTable(
        main={
            "msp": (51.04, 90.90, 97.92),
            "odin": (35.71, 91.09, 97.62),
            "mahalanobis": (36.96, 93.24, 98.47),
            "energy": (33.01, 91.88, 97.83),
            "gem": (37.21, 93.23, 98.47),
        },
        sets={
            "textures": {
                "msp": (59.28, 88.50, 97.16),
                "odin": (49.12, 84.97, 95.28),
                "mahalanobis": (15.14, 97.32, 99.41),
                "energy": (52.79, 85.22, 95.41),
                "gem": (15.06, 97.33, 99.41),
            },
            "svhn": {
                "msp": (48.49, 91.89, 98.27),
                "odin": (33.55, 91.96, 98.00),
                "mahalanobis": (12.86, 97.59, 99.47),
                "energy": (35.59, 90.96, 97.64),
                "gem": (13.42, 97.59, 99.47),
            },
            "places365": {
                "msp": (59.48, 88.20, 97.10),
                "odin": (57.40, 84.49, 95.82),
                "mahalanobis": (68.42, 84.41, 96.08),
                "energy": (40.14, 89.89, 97.30),
                "gem": (68.03, 84.44, 96.11),
            },
            "lsun-c": {
                "msp": (30.80, 95.65, 99.13),
                "odin": (15.52, 97.04, 99.33),
                "mahalanobis": (39.47, 94.09, 98.80),
                "energy": (8.26, 98.35, 99.66),
                "gem": (39.46, 94.13, 98.81),
            },
            "lsun-r": {
                "msp": (52.15, 91.37, 98.12),
                "odin": (26.62, 94.57, 98.77),
                "mahalanobis": (42.07, 93.29, 98.61),
                "energy": (27.58, 94.24, 98.67),
                "gem": (42.89, 93.27, 98.61),
            },
            "isun": {
                "msp": (56.03, 89.83, 97.74),
                "odin": (32.05, 93.50, 98.54),
                "mahalanobis": (43.80, 92.75, 98.46),
                "energy": (33.68, 92.62, 98.27),
                "gem": (44.41, 92.60, 98.42),
            },
        },
        id_error=5.16,
    ),
    "cifar100": PaperTable(
        main={
            "msp": (80.41, 75.53, 93.93),
            "odin": (74.64, 77.43, 94.23),
            "mahalanobis": (57.01, 82.70, 95.68),
            "energy": (73.60, 79.56, 94.87),
            "gem": (57.03, 82.67, 95.66),
        },
        sets={
            "textures": {
                "msp": (83.29, 73.34, 92.89),
                "odin": (79.27, 73.45, 92.75),
                "mahalanobis": (39.66, 90.79, 97.82),
                "energy": (79.41, 76.28, 93.63),
                "gem": (39.77, 90.93, 97.86),
            },
            "svhn": {
                "msp": (84.59, 71.44, 92.93),
                "odin": (84.66, 67.26, 91.38),
                "mahalanobis": (43.93, 90.52, 97.84),
                "energy": (85.82, 73.99, 93.65),
                "gem": (43.87, 90.49, 97.83),
            },
            "places365": {
                "msp": (82.84, 73.78, 93.29),
                "odin": (87.88, 71.63, 92.56),
                "mahalanobis": (90.12, 68.44, 91.21),
                "energy": (80.56, 75.44, 93.45),
                "gem": (90.43, 68.15, 91.08),
            },
            "lsun-c": {
                "msp": (66.54, 83.79, 96.35),
                "odin": (55.55, 87.73, 97.22),
                "mahalanobis": (98.47, 60.23, 90.32),
                "energy": (35.32, 93.53, 98.62),
                "gem": (98.31, 60.03, 90.22),
            },
            "lsun-r": {
                "msp": (82.42, 75.38, 94.06),
                "odin": (71.96, 81.82, 95.65),
                "mahalanobis": (33.35, 93.74, 98.64),
                "energy": (79.47, 79.23, 94.96),
                "gem": (33.13, 93.82, 98.66),
            },
            "isun": {
                "msp": (82.80, 75.46, 94.06),
                "odin": (68.51, 82.69, 95.80),
                "mahalanobis": (36.52, 92.48, 98.28),
                "energy": (81.04, 78.91, 94.91),
                "gem": (36.68, 92.52, 98.30),
            },
        },
        id_error=24.04,
    ),
}
