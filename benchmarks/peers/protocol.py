"""What a peer has to offer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

__all__ = ["Features", "Labels", "Peer"]

Features = NDArray[np.float32] | NDArray[np.float64]
Labels = NDArray[np.int64]


class Peer(Protocol):
    """A library that fits class means with a tied covariance, and scores rows by them."""

    name: str
    #: The score, in a few words.
    computes: str
    #: Whether a fit costs k passes of scoring over its rows, so that it can only be timed on some of them.
    fits_by_scoring: bool

    def fitter(self, features: Features, labels: Labels, *, rows: int | None = None) -> Callable[[], Any]:
        """A call that returns a fitted detector; ``rows`` fits that many only, where a fit goes by scoring."""

    def scorer(self, detector: Any, features: Features) -> Callable[[], NDArray[Any]]:
        """A call that returns one score per row, higher = more out-of-distribution (the peers' sign)."""

    def detector(self, features: Features, labels: Labels) -> Any:
        """A fitted detector, however it comes about: for scoring alone."""
