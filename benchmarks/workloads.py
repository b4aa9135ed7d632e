"""What every library is given to fit and to score: Gaussian features, badly conditioned and real ones."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np

from gem_ood import GEM
from peers import Features, Labels, Peer

__all__ = ["ONE_ROW_SHAPES", "SHAPES", "Shape", "Workload", "conditioned", "real", "workload"]

QUERIES = 10_000
#: The condition number of a covariance that float32 is too coarse for: our rows are then scored in float64.
CONDITION = 1e5
#: Where the real features are, if they are anywhere; the tests look there too.
DATA = Path(os.environ.get("GEM_OOD_DATA", Path(__file__).parents[2] / "shared" / "data"))
REAL = "cifar10_resnet56"
# Enough for the scores of some hundred rows at most shapes, some seconds of a peer's time.
AGREEMENT_OPERATIONS = 200_000_000_000


@dataclass(frozen=True)
class Shape:
    """Features and classes of a model, and how many rows it is fitted to."""

    dimensions: int
    classes: int
    rows: int

    @property
    def key(self) -> str:
        """For the keys of sections."""
        return f"{self.dimensions}x{self.classes}"

    def __str__(self) -> str:
        return f"{self.dimensions:,} features, {self.classes:,} classes"


SHAPES = (
    Shape(64, 10, 50_000),
    Shape(128, 100, 50_000),
    Shape(512, 100, 50_000),
    Shape(768, 150, 50_000),
    Shape(2048, 1000, 50_000),
)
#: A caller of one row is often a small model: the target is for this one.
ONE_ROW_SHAPES = (Shape(128, 10, 50_000), *SHAPES)


class Workload:
    """Labelled features to fit, rows to score, and each library's detector fitted once."""

    def __init__(
        self, shape: Shape, features: Features, labels: Labels, queries: Features, *, kind: str = "", words: str = ""
    ) -> None:
        self.shape, self.features, self.labels, self.queries = shape, features, labels, queries
        #: Begins the keys of its sections; empty for the plain ones, which have the targets.
        self.kind = kind
        self._words = words
        self._peer_detectors: dict[str, Any] = {}

    @property
    def key(self) -> str:
        """For the keys of sections."""
        return f"{self.kind}-{self.shape.key}" if self.kind else self.shape.key

    def __str__(self) -> str:
        return f"{self.shape}{self._words}"

    @cached_property
    def detector(self) -> GEM:
        """Our detector, fitted at the first use."""
        return GEM().fit(self.features, self.labels)

    def peer_detector(self, peer: Peer) -> Any:
        """The peer's detector, fitted at the first use."""
        if peer.name not in self._peer_detectors:
            self._peer_detectors[peer.name] = peer.detector(self.features, self.labels)
        return self._peer_detectors[peer.name]

    def agreement(self, peer: Peer) -> float:
        """Correlation of our scores with the peer's, sign turned, on rows of all classes, which may be sorted."""
        operations_a_row = 2 * self.shape.classes * self.shape.dimensions**2
        n_rows = min(256, max(24, AGREEMENT_OPERATIONS // operations_a_row))
        rows = self.queries[:: len(self.queries) // n_rows][:n_rows]
        theirs = peer.scorer(self.peer_detector(peer), rows)()
        return float(np.corrcoef(self.detector.score_samples(rows), -theirs)[0, 1])


@cache
def workload(shape: Shape) -> Workload:
    """Gaussian features of this shape, drawn at their first use."""
    # Columns of unequal scale, otherwise hardly correlated: easy for every library.
    return _drawn(shape, np.geomspace(0.2, 6, shape.dimensions))


@cache
def conditioned(shape: Shape) -> Workload:
    """Gaussian features of which no direction is a column, and the smallest variance is tiny beside the largest."""
    turn = np.linalg.qr(np.random.default_rng(1).standard_normal((shape.dimensions, shape.dimensions)))[0]
    # From 1 upwards, so that no library's ridge of 1e-6 weighs.
    scales = np.geomspace(1.0, CONDITION**0.5, shape.dimensions)
    words = f", condition number {CONDITION:,.0f}"
    return _drawn(shape, scales[:, np.newaxis] * turn, kind="conditioned", words=words)


@cache
def real() -> Workload:
    """Penultimate features of a ResNet-56 on CIFAR-10; FileNotFoundError where they are not."""
    arrays = []
    for name in ("train", "test"):
        with np.load(DATA / REAL / f"{name}.npz", allow_pickle=False) as part:
            arrays.append((part["features"].astype(np.float32, copy=False), part["labels"].astype(np.int64)))
    (features, labels), (queries, _) = arrays
    shape = Shape(features.shape[1], len(np.unique(labels)), len(features))
    return Workload(shape, features, labels, queries, kind="real", words=" of a ResNet-56 on CIFAR-10")


def _drawn(shape: Shape, mixing: np.ndarray, *, kind: str = "", words: str = "") -> Workload:
    """Standard normal rows about means that are so too, times a scale for each column or a matrix."""
    rng = np.random.default_rng(0)
    mixing = mixing.astype(np.float32)
    class_means = rng.standard_normal((shape.classes, shape.dimensions), dtype=np.float32)

    def rows_of(labels: Labels) -> Features:
        rows = class_means[labels] + rng.standard_normal((labels.size, shape.dimensions), dtype=np.float32)
        return rows * mixing if mixing.ndim == 1 else rows @ mixing

    # Every class has rows: what libraries do with a class that has none is a section of its own.
    labels: Labels = rng.permutation(np.arange(shape.rows) % shape.classes)
    features = rows_of(labels)
    queries = rows_of(rng.integers(shape.classes, size=QUERIES))
    return Workload(shape, features, labels, queries, kind=kind, words=words)
