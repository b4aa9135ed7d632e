"""What every library is given: labelled Gaussian features to fit and rows to score, in five shapes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import numpy as np

from gem_ood import GEM
from peers import Features, Labels, Peer

__all__ = ["ONE_ROW_SHAPES", "SHAPES", "Shape", "Workload", "workload"]

QUERIES = 10_000
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


@cache
def workload(shape: Shape) -> Workload:
    """The workload of this shape, drawn at its first use."""
    return Workload(shape)


class Workload:
    """Labelled Gaussian features to fit, rows to score, and each library's detector fitted once."""

    def __init__(self, shape: Shape, *, queries: int = QUERIES, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        self.shape = shape
        self._class_means = rng.standard_normal((shape.classes, shape.dimensions), dtype=np.float32)
        # A spread of 30 between columns: conditioned like penultimate features, and easy for every library.
        self._column_scales = np.geomspace(0.2, 6, shape.dimensions).astype(np.float32)
        # Every class has rows: what libraries do with a class that has none is a section of its own.
        self.labels: Labels = rng.permutation(np.arange(shape.rows) % shape.classes)
        self.features = self._draw(rng, self.labels)
        self.queries = self._draw(rng, rng.integers(shape.classes, size=queries))
        self._peer_detectors: dict[str, Any] = {}

    def _draw(self, rng: np.random.Generator, labels: Labels) -> Features:
        noise = rng.standard_normal((labels.size, self.shape.dimensions), dtype=np.float32)
        return (self._class_means[labels] + noise) * self._column_scales

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
        """Correlation of our scores with the peer's, sign turned, on the first rows."""
        operations_a_row = 2 * self.shape.classes * self.shape.dimensions**2
        rows = self.queries[: min(256, max(24, AGREEMENT_OPERATIONS // operations_a_row))]
        theirs = peer.scorer(self.peer_detector(peer), rows)()
        return float(np.corrcoef(self.detector.score_samples(rows), -theirs)[0, 1])
