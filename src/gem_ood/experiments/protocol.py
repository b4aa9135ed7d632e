"""The protocol of the paper's tables (P47): random draws of each out-of-distribution set, measured one by one.

The in-distribution test set is always whole; a draw takes a fifth of its number from each other set, ten draws are
averaged, and all methods meet the same draws. AUPR depends on that ratio.
"""

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from numbers import Real
from typing import Self

import numpy as np
from numpy.typing import NDArray

from gem_ood.comparison import METRICS
from gem_ood.errors import InputError
from gem_ood.features import is_count
from gem_ood.metrics import evaluate
from gem_ood.thresholds import as_probability

__all__ = ["Draws", "Protocol", "Scores", "measure_draws"]

Scores = NDArray[np.float64]


@dataclass(frozen=True)
class Protocol:
    """How sets are drawn and metrics read.

    Attributes:
        n_draws: How many random draws of each out-of-distribution set are averaged.
        share: Rows of a draw for each in-distribution row; None takes every set whole, once.
        tpr: The true positive rate at which the false positive rate is read.
        seed: Of the draws; the same seed draws the same rows of a set, whatever other sets there are.

    >>> Protocol().n_rows(n_id=10_000, n_ood=26_032), Protocol.whole().n_rows(n_id=10_000, n_ood=26_032)
    (2000, 26032)
    """

    n_draws: int = 10
    share: float | None = 0.2
    tpr: float = 0.95
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least in (("n_draws", 1), ("seed", 0)):
            value = getattr(self, name)
            if not is_count(value, least=least):
                raise InputError(f"{name} must be a whole number, at least {least}, but is {value!r}; pass another")
        if self.share is not None and not _is_positive(self.share):
            raise InputError(f"share must be a number above 0 but is {self.share!r}; pass 0.2, or None for whole sets")
        as_probability(self.tpr, name="tpr")

    @classmethod
    def whole(cls, *, tpr: float = 0.95, seed: int = 0) -> Self:
        """Return the protocol without draws: every set whole, once. The seed is for sets that are cut when read."""
        return cls(n_draws=1, share=None, tpr=tpr, seed=seed)

    def n_rows(self, *, n_id: int, n_ood: int) -> int:
        """Return how many rows a draw has: the share, rounded down as the authors do, or all of a smaller set."""
        if self.share is None:
            return n_ood
        # The share as it is written: 0.29 · 100 is 28.999... in floating point, and would be a row short.
        return min(n_ood, max(1, math.floor(Fraction(str(self.share)) * n_id)))

    def rows(self, name: str, *, n_id: int, n_ood: int) -> list[NDArray[np.int64]]:
        """Return the rows of each draw of a set of this name, without repetition within a draw; one draw if whole."""
        n_rows = self.n_rows(n_id=n_id, n_ood=n_ood)
        if n_rows == n_ood:
            return [np.arange(n_ood)]
        own = int.from_bytes(hashlib.sha256(name.encode(errors="surrogatepass")).digest()[:8])
        generator = np.random.default_rng([self.seed, own])
        return [np.sort(generator.permutation(n_ood)[:n_rows]) for _ in range(self.n_draws)]


@dataclass(frozen=True)
class Draws:
    """The metrics of one method on one set, draw by draw, as fractions.

    >>> Draws({"fpr": np.array([0.2, 0.4])}).mean("fpr"), Draws({"fpr": np.array([0.5])}).spread("fpr")
    (0.30000000000000004, 0.0)
    """

    values: Mapping[str, Scores]

    def mean(self, metric: str) -> float:
        """Return the mean over the draws."""
        return float(np.mean(self.values[metric]))

    @property
    def has_spread(self) -> bool:
        """Whether there are several draws; a set that is taken whole has one."""
        return all(len(values) > 1 for values in self.values.values())

    def spread(self, metric: str) -> float:
        """Return the standard deviation of one draw, estimated from all; 0 where there is but one."""
        values = self.values[metric]
        return float(np.std(values, ddof=1)) if len(values) > 1 else 0.0


def measure_draws(id_scores: Scores, ood_scores: Scores, rows: list[NDArray[np.int64]], *, tpr: float = 0.95) -> Draws:
    """Return every metric on every draw, in the paper's convention.

    >>> measure_draws(np.array([2.0, 3.0]), np.array([0.0, 4.0]), [np.array([0]), np.array([1])]).values["auroc"]
    array([1., 0.])
    """
    found = [evaluate(id_scores, ood_scores[chosen], tpr=tpr, convention="paper") for chosen in rows]
    return Draws({metric: np.array([getattr(one, metric) for one in found]) for metric in METRICS})


def _is_positive(value: object) -> bool:
    return not isinstance(value, bool) and isinstance(value, Real) and 0.0 < float(value) < math.inf
