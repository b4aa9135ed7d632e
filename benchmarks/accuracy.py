"""How exact each library's scores are: compared with the same score in extended precision, from the same rows.

Rows are drawn in float64, rounded to float32 and then taken as exact, by the libraries and by the reference. A second
table has the same rows given as float64, for callers who can afford it.

- The reference is of the score that the library itself computes, for which it knows the factor and the constant:
  gem-ood log Σ exp(−½ d²); scikit-learn and PyOD the same, with equal weights and the constant of the density, which
  is subtracted; oodeel ½ d² to the nearest class; pytorch-ood that divided by the number of rows, since its covariance
  is a sum, which is multiplied again.
  A ridge that a library adds to the covariance unasked (1e-6 in scikit-learn, PyOD and pytorch-ood) counts as error.
- The error of a row is |score − reference| / max(|reference|, m) for m dimensions, as docs/numerics.md promises it: a
  score can pass through zero. A library's error is the largest of all rows, in- and out-of-distribution.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gem_ood.metrics import auroc
from libraries import OURS, first_words, libraries
from peers import Features, Labels, Peer
from reference import Extended, Reference, fit_reference, log_sum_exp
from sections import Section, Table
from timing import Measurement

__all__ = ["accuracy"]

DIMENSIONS, CLASSES, ROWS, QUERIES = 64, 8, 4_000, 400
#: Out-of-distribution rows have this much more noise, in every direction alike: one that a library gets wrong shows.
OOD_SCALE = 1.25
#: What docs/numerics.md promises: the error where the condition number of the correlations is at most this.
PROMISES = ((1e4, 1e-6), (1e8, 1e-4))


@dataclass(frozen=True)
class Draw:
    """How rows are made: noise of standard deviation 1 in each direction, stretched, turned, scaled and moved."""

    name: str
    rows: int = ROWS
    #: Of the covariance: directions are stretched by this, turned so that each column has its share of all.
    condition: float = 1.0
    #: Between the smallest and the largest column, after turning.
    column_spread: float = 1.0
    #: Standard deviations from the origin to all rows, and between the classes.
    offset: float = 0.0
    apart: float = 2.0


DRAWS = (
    Draw("plain"),
    Draw("offset of 1e3 standard deviations", offset=1e3),
    Draw("offset of 1e4 standard deviations", offset=1e4),
    Draw("condition number 1e4", condition=1e4),
    Draw("condition number 1e6", condition=1e6),
    Draw("condition number 1e8", condition=1e8),
    Draw("classes 100 standard deviations apart", apart=100),
    Draw("classes 3,000 standard deviations apart", apart=3_000),
    Draw("few rows: 16 more than dimensions", rows=DIMENSIONS + 16),
    Draw("columns from 1e-3 to 1e3", column_spread=1e6),
)


class Case:
    """Rows to fit, rows to score (first in-, then out-of-distribution), and what the reference says of them."""

    def __init__(self, draw: Draw, *, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        self.name = draw.name
        stretch = np.geomspace(1.0, draw.condition**-0.5, DIMENSIONS)
        turn = np.linalg.qr(rng.standard_normal((DIMENSIONS, DIMENSIONS)))[0]
        scales = np.geomspace(draw.column_spread**-0.5, draw.column_spread**0.5, DIMENSIONS)
        directions = rng.standard_normal((CLASSES, DIMENSIONS))
        means = draw.apart * directions / np.linalg.norm(directions, axis=1, keepdims=True)

        def rows(labels: Labels, scale: float = 1.0) -> Features:
            noise = scale * rng.standard_normal((labels.size, DIMENSIONS))
            whole = (means[labels] + noise) * stretch @ turn * scales + draw.offset * scales
            return whole.astype(np.float32)

        self.labels: Labels = np.arange(draw.rows) % CLASSES
        self.features = rows(self.labels)
        places = np.arange(QUERIES) % CLASSES
        self.queries = np.concatenate([rows(places), rows(places, OOD_SCALE)])

    @cached_property
    def reference(self) -> Reference:
        """Fitted to the same rows."""
        return fit_reference(self.features, self.labels)

    @cached_property
    def half_distances(self) -> Extended:
        """½ d² of each query to each class."""
        return self.reference.squared_distances(self.queries) / 2

    @property
    def promise(self) -> float | None:
        """The error that we promise here, if any."""
        return next((error for condition, error in PROMISES if self.reference.condition <= condition), None)


@dataclass(frozen=True)
class Formula:
    """The score that a library computes: ``expected`` of half squared distances, once its own is put right."""

    expected: Callable[[Extended], Extended]
    put_right: Callable[[Extended, Reference], Extended]


def _mixture(half_distances: Extended) -> Extended:
    return -log_sum_exp(-half_distances)


def _nearest(half_distances: Extended) -> Extended:
    return half_distances.min(axis=1)


def _without_constant(scores: Extended, reference: Reference) -> Extended:
    """A negative log-density of the mixture with equal weights, less all that does not depend on the row."""
    n_classes, dimensions = reference.class_means.shape
    turned = np.longdouble(dimensions) * np.log(2 * np.longdouble(np.pi)) + reference.log_determinant
    return scores - turned / 2 - np.log(np.longdouble(n_classes))


FORMULAS = {
    "gem-ood": Formula(_mixture, lambda scores, _: scores),
    "pytorch-ood": Formula(_nearest, lambda scores, reference: scores * reference.n_rows),
    "oodeel": Formula(_nearest, lambda scores, _: scores),
    "scikit-learn": Formula(_mixture, _without_constant),
    "PyOD": Formula(_mixture, _without_constant),
}


@dataclass(frozen=True)
class Finding:
    """The largest error and the AUROC, or what the library did instead."""

    error: float = np.nan
    auroc: float = np.nan
    failure: str = ""

    def __str__(self) -> str:
        return self.failure or f"{self.error:.0e}, AUROC {self.auroc:.3f}"


def accuracy(*, with_peers: bool) -> list[Section]:
    """The largest relative error of each library's scores, and the AUROC that they leave, case by case."""
    compared, cases = libraries(with_peers=with_peers), [Case(draw) for draw in DRAWS]
    return [_section(np.dtype(dtype), compared, cases) for dtype in (np.float32, np.float64)]


def _section(dtype: np.dtype[Any], compared: Sequence[Peer], cases: Sequence[Case]) -> Section:
    measurements: list[Measurement] = []
    rows: list[Sequence[str]] = []
    for case in cases:
        found = [_find(library, case, dtype) for library in compared]
        samples = () if found[0].failure else (found[0].error,)
        measurements.append(
            Measurement(f"{OURS}, {case.name}", samples, "", at_most=case.promise, failure=found[0].failure)
        )
        references = [f"{_auroc(score(case.half_distances)):.3f}" for score in (_mixture, _nearest)]
        rows.append((case.name, f"{case.reference.condition:.0e}", *references, *map(str, found)))
    by_whom = [f"AUROC by {score} of the reference" for score in ("log-sum-exp", "nearest class")]
    headings = ("", "condition of the correlations", *by_whom, *(library.name for library in compared))
    title = f"Accuracy, {dtype} rows: largest relative error of a score, {DIMENSIONS} features, {CLASSES} classes"
    return Section(f"accuracy-{dtype}", title, measurements=measurements, table=Table(headings, rows))


def _find(library: Peer, case: Case, dtype: np.dtype[Any]) -> Finding:
    features, queries = case.features.astype(dtype), case.queries.astype(dtype)
    formula = next(formula for word, formula in FORMULAS.items() if library.name.startswith(word))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            scores = library.scorer(library.detector(features, case.labels), queries)()
    except Exception as error:  # a peer may fail in any way, and its cell says how
        return Finding(failure=first_words(error))
    if not np.isfinite(scores).all():
        return Finding(failure="NaN or infinite scores")
    expected = formula.expected(case.half_distances)
    ours = formula.put_right(np.asarray(scores, np.longdouble), case.reference)
    errors = np.abs(ours - expected) / np.maximum(np.abs(expected), DIMENSIONS)
    return Finding(float(errors.max()), _auroc(scores))


def _auroc(scores: NDArray[Any]) -> float:
    """Of in- against out-of-distribution queries, by scores that are higher for the latter."""
    id_scores, ood_scores = np.split(-np.asarray(scores, np.float64), 2)
    return float(auroc(id_scores, ood_scores))
