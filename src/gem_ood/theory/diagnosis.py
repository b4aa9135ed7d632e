"""How Gaussian the classes really are, told from held-out rows: distances against χ², kurtosis by direction, class mix.

The rates of this room assume classes N(μ_i, Σ) with known parameters and priors; how far that may be trusted on a
network's own features only rows that the fit has not seen can tell.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import eigh
from scipy.special import chdtri

from gem_ood.errors import InputError
from gem_ood.features import as_features, as_labels, chunks, refuse_non_finite, rows_per_chunk
from gem_ood.gaussians import TiedGaussians
from gem_ood.theory.distance_laws import (
    MODEL_ROWS,
    ClassMix,
    DistanceFit,
    DistanceLaws,
    Trust,
    checked_counts,
    compare_mix,
    judge_fits,
    judge_mix,
    worst,
)
from gem_ood.theory.wording import KURTOSIS_ERRORS, diagnosis_sentences
from gem_ood.thresholds import as_probability

__all__ = ["Diagnosis", "Kurtosis", "diagnose", "diagnose_batches"]

#: Where the realised quantiles of the distances are read.
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95, 0.99)


@dataclass(frozen=True, eq=False)
class Kurtosis:
    """Excess kurtosis of residuals x − μ_class, all classes together; 0 for Gaussian rows of one covariance.

    The directions are the eigenvectors of the tied correlation matrix, each feature in units of its own spread, from
    the one with the most variance to the one with the least. Classes that differ in covariance raise it too.

    Attributes:
        by_direction: One value per direction.
        median: Of the directions.
        low: Their 5 % quantile.
        high: Their 95 % quantile.
        largest: The largest.
        standard_error: Of one value, if rows are Gaussian: sqrt(24 / n).
        unusual: Share of directions beyond 4 standard errors, on either side.
    """

    by_direction: NDArray[np.float64]
    median: float
    low: float
    high: float
    largest: float
    standard_error: float
    unusual: float


@dataclass(frozen=True, eq=False)
class Diagnosis:
    """How far held-out rows agree with Gaussian classes of one covariance and these priors.

    Attributes:
        trust: `"close"`, `"rough"` or `"poor"`; `"unclear"` where no departure shows but the rows are too few to show
            one of 5 points. The worse of what distances and what the mix of classes allow; a mix that is off by more
            is `"rough"` at best.
        tpr: The share that the χ² point is expected to keep.
        n_rows: How many rows.
        rank: Degrees of freedom of χ².
        has_labels: Whether distances are to a row's own class, or to the nearest, which is never farther.
        n_fit: Rows behind the fit, where known and its covariance is not shrunk.
        overall: All rows together.
        by_class: Each class that has rows.
        mix: The classes of the rows beside the priors, which predicted and certified rates assume.
        quantiles: By probability, the realised quantile of the squared distances and that of χ².
        kurtosis: By direction.
        distances_by_class: The squared distances, in the order of `by_class`.
    """

    trust: Trust
    tpr: float
    n_rows: int
    rank: int
    has_labels: bool
    n_fit: int | None
    overall: DistanceFit
    by_class: tuple[DistanceFit, ...]
    mix: ClassMix
    quantiles: Mapping[float, tuple[float, float]]
    kurtosis: Kurtosis
    distances_by_class: tuple[NDArray[np.float64], ...]

    @property
    def summary(self) -> tuple[str, ...]:
        """What was found, in plain sentences."""
        return diagnosis_sentences(self)

    def worst_classes(self, n_classes: int = 10) -> list[DistanceFit]:
        """Return the classes that are farthest from χ², the farthest first."""
        return sorted(self.by_class, key=lambda fit: -fit.distance)[:n_classes]

    def as_dict(self) -> dict[str, Any]:
        """Return everything but the distances of single rows, by name."""
        kept = ("trust", "tpr", "n_rows", "rank", "has_labels", "n_fit", "overall", "by_class", "mix", "kurtosis")
        quantiles = {f"{level:g}": {"found": a, "expected": b} for level, (a, b) in self.quantiles.items()}
        return {**{name: getattr(self, name) for name in kept}, "quantiles": quantiles, "summary": self.summary}

    def __str__(self) -> str:
        return "\n".join(self.summary)


def diagnose(
    gaussians: TiedGaussians,
    features: ArrayLike,
    labels: ArrayLike | None = None,
    *,
    counts: ArrayLike | None = None,
    tpr: float = 0.95,
) -> Diagnosis:
    """Return how far in-distribution rows that the fit has not seen agree with these Gaussians.

    Args:
        gaussians: The classes, with the priors that rates assume.
        features: Held-out rows; rows of the fit are nearer to its means than new ones (B6).
        labels: Their classes; without them each row counts for the nearest class, which makes distances too small.
        counts: Rows of each class behind the fit, to tell what estimating the parameters explains.
        tpr: The share that the χ² point is expected to keep.

    >>> rng = np.random.default_rng(0)
    >>> gaussians = TiedGaussians.from_parameters([[0.0, 0.0], [9.0, 0.0]], np.eye(2))
    >>> rows, names = gaussians.sample(5000, random_state=0)
    >>> diagnose(gaussians, rows, names).trust
    'close'
    >>> diagnose(gaussians, rows + rng.standard_t(2, size=rows.shape), names).trust
    'poor'
    """
    return diagnose_batches(gaussians, [(features, labels)], counts=counts, tpr=tpr)


def diagnose_batches(
    gaussians: TiedGaussians,
    batches: Iterable[tuple[ArrayLike, ArrayLike | None]],
    *,
    counts: ArrayLike | None = None,
    tpr: float = 0.95,
    prepare: Callable[[NDArray[Any]], NDArray[Any]] | None = None,
) -> Diagnosis:
    """Return `diagnose` of rows that come in batches, keeping one distance of each row.

    `prepare` is applied to the features first, such as `gem_ood.features.unit_length` for a normalised fit.
    """
    residuals = Residuals(gaussians, counts=counts, tpr=tpr, prepare=prepare)
    for features, labels in batches:
        residuals.add(features, labels)
    return residuals.diagnosis()


class Residuals:
    """Folds batches of rows into the distances and moments that a diagnosis needs."""

    def __init__(
        self,
        gaussians: TiedGaussians,
        *,
        counts: ArrayLike | None = None,
        tpr: float = 0.95,
        prepare: Callable[[NDArray[Any]], NDArray[Any]] | None = None,
    ) -> None:
        self._gaussians, self._prepare = gaussians, prepare
        self._tpr = float(as_probability(tpr, name="tpr"))
        self._counts = checked_counts(counts, gaussians)
        self._directions = principal_whitener(gaussians)
        self._power_sums = np.zeros((4, gaussians.rank))
        self._distances: list[NDArray[np.float64]] = []
        self._codes: list[NDArray[np.intp]] = []
        self._n_rows = 0
        self._has_labels: bool | None = None

    def add(self, features: ArrayLike, labels: ArrayLike | None = None) -> None:
        """Take in one batch."""
        rows = as_features(features)
        self._gaussians.check_width(rows)
        has_labels = labels is not None or self._gaussians.n_classes == 1  # the only class is the own one
        if self._has_labels not in (None, has_labels):
            raise InputError("some batches have labels and some have not; pass labels with all of them or with none")
        self._has_labels = has_labels
        codes = None if labels is None else _codes(labels, self._gaussians.classes, len(rows))
        for part in chunks(len(rows), rows_per_chunk(3 * self._gaussians.n_features + self._gaussians.n_classes)):
            self._add_chunk(rows[part], None if codes is None else codes[part], self._n_rows + part.start)
        self._n_rows += len(rows)

    def _add_chunk(self, chunk: NDArray[Any], codes: NDArray[np.intp] | None, first_row: int) -> None:
        refuse_non_finite(chunk, first_row=first_row)
        prepared = chunk.astype(np.float64) if self._prepare is None else self._prepare(chunk)
        if codes is None:
            codes = self._gaussians.exponents(prepared).argmax(axis=1)
        with np.errstate(over="ignore", invalid="ignore"):
            residuals = (prepared - self._gaussians.class_means[codes]) @ self._directions
            squares = residuals**2
            distances = squares.sum(axis=1)
            powers = (residuals, squares, squares * residuals, squares**2)
        if not np.isfinite(powers[3]).all():
            row = first_row + int(np.argmin(np.isfinite(powers[3]).all(axis=1)))
            raise InputError(f"features row {row} is so far from every class that its powers overflow; mend that row")
        self._power_sums += [power.sum(axis=0) for power in powers]
        self._distances.append(distances)
        self._codes.append(codes)

    def diagnosis(self) -> Diagnosis:
        """Return the diagnosis of all rows added."""
        if self._n_rows == 0:
            raise InputError("there are no rows to diagnose; pass at least one held-out in-distribution row")
        distances, codes = np.concatenate(self._distances), np.concatenate(self._codes)
        laws = DistanceLaws(self._gaussians, self._counts, self._tpr)
        places = [place for place in range(self._gaussians.n_classes) if (codes == place).any()]
        split = tuple(distances[codes == place] for place in places)
        by_class = tuple(
            laws.fit(part, np.full(len(part), place), name=self._gaussians.classes[place].item())
            for place, part in zip(places, split, strict=True)
        )
        overall, rank = laws.fit(distances, codes, name=None), self._gaussians.rank
        mix = self._mix(codes)
        found, expected = np.quantile(distances, QUANTILES), 1.0 - self._tpr
        return Diagnosis(
            trust=worst(judge_fits(overall, by_class, expected), judge_mix(mix, expected, self._n_rows)),
            tpr=self._tpr,
            n_rows=self._n_rows,
            rank=rank,
            has_labels=bool(self._has_labels),
            n_fit=laws.n_fit,
            overall=overall,
            by_class=by_class,
            mix=mix,
            quantiles={
                level: (float(value), float(chdtri(rank, 1.0 - level)))
                for level, value in zip(QUANTILES, found, strict=True)
            },
            kurtosis=_kurtosis(self._power_sums / self._n_rows, self._n_rows),
            distances_by_class=split,
        )

    def _mix(self, codes: NDArray[np.intp]) -> ClassMix:
        gaussians = self._gaussians
        counts = np.bincount(codes, minlength=gaussians.n_classes)
        # Where classes overlap, nearest classes have other shares than the classes themselves.
        return compare_mix(gaussians, counts, None if self._has_labels else _nearest_counts(gaussians))


def _nearest_counts(gaussians: TiedGaussians) -> NDArray[np.int64]:
    """Return how many of MODEL_ROWS rows drawn from these Gaussians are nearest to each class."""
    means, generator = gaussians.whitened_means, np.random.default_rng(0)
    half_norms, counts = 0.5 * np.vecdot(means, means), np.zeros(gaussians.n_classes, dtype=np.int64)
    for part in chunks(MODEL_ROWS, rows_per_chunk(gaussians.rank + gaussians.n_classes)):
        codes = generator.choice(gaussians.n_classes, size=part.stop - part.start, p=gaussians.priors)
        rows = generator.standard_normal((len(codes), gaussians.rank)) + means[codes]
        counts += np.bincount((rows @ means.T - half_norms).argmax(axis=1), minlength=gaussians.n_classes)
    return counts


def principal_whitener(gaussians: TiedGaussians) -> NDArray[np.float64]:
    """Return the whitener whose columns are the eigenvectors of the tied correlation matrix, most variance first.

    Distances are the same under every whitener; along these directions, kurtosis has a meaning too.
    """
    varying = gaussians.factor.whitener.any(axis=1)
    scales = np.sqrt(np.diag(gaussians.covariance)[varying])
    correlation = gaussians.covariance[np.ix_(varying, varying)] / scales[:, np.newaxis] / scales
    eigenvalues, vectors = eigh(correlation, check_finite=False)
    kept = slice(len(eigenvalues) - gaussians.rank, None)
    whitener = np.zeros((gaussians.n_features, gaussians.rank))
    whitener[varying] = (vectors[:, kept] / np.sqrt(eigenvalues[kept]) / scales[:, np.newaxis])[:, ::-1]
    return whitener


def _kurtosis(moments: NDArray[np.float64], n_rows: int) -> Kurtosis:
    mean, second, third, fourth = moments
    variance = second - mean**2
    central = fourth - 4.0 * mean * third + 6.0 * mean**2 * second - 3.0 * mean**4
    # One row has no spread, and rows that never vary in a direction say nothing about its tails.
    has_spread = variance > 1e-12 * np.maximum(second, 1e-300)
    excess = np.where(has_spread, central / np.where(has_spread, variance, 1.0) ** 2 - 3.0, 0.0)
    error = math.sqrt(24.0 / n_rows)
    low, median, high = (float(value) for value in np.quantile(excess, (0.05, 0.5, 0.95)))
    unusual = float(np.mean(np.abs(excess) > KURTOSIS_ERRORS * error))
    return Kurtosis(excess, median, low, high, float(excess.max()), error, unusual)


def _codes(labels: ArrayLike, classes: NDArray[Any], n_rows: int) -> NDArray[np.intp]:
    values = as_labels(labels, n_rows)
    if (values.dtype.kind == "U") != (classes.dtype.kind == "U"):
        raise InputError(
            f"labels such as {values[0].item()!r} are of another kind than the classes of the fit, such as "
            f"{classes[0].item()!r}; pass the labels that the fit knows"
        )
    order = np.argsort(classes)
    codes = order[np.minimum(np.searchsorted(classes, values, sorter=order), len(classes) - 1)]
    unknown = np.unique(values[classes[codes] != values])
    if len(unknown):
        named = ", ".join(repr(value.item()) for value in unknown[:5]) + (", ..." if len(unknown) > 5 else "")
        raise InputError(
            f"labels holds {named}, no class of the fit, which has {len(classes)} such as {classes[0].item()!r}; pass "
            f"in-distribution rows, or leave the labels out"
        )
    return np.asarray(codes)
