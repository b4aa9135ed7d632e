"""Ours beside the peers, called in the same way."""

from __future__ import annotations

import textwrap
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gem_ood import GEM
from gem_ood.errors import RankWarning
from peers import PEERS, RELATED, Features, Labels, Peer

__all__ = ["OURS", "Ours", "first_words", "fitting_libraries", "libraries"]

OURS = "gem-ood"
WIDEST_MESSAGE = 90


class Ours:
    """gem-ood as a ``Peer``: ``GEM().fit`` and ``score_samples``, its sign turned."""

    name = OURS
    computes = "log-sum-exp over classes"
    fits_by_scoring = False

    def fitter(self, features: Features, labels: Labels, *, rows: int | None = None) -> Callable[[], GEM]:
        """See ``Peer``."""

        def fit() -> GEM:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", RankWarning)  # some cases are singular on purpose
                return GEM().fit(features[:rows], labels[:rows])

        return fit

    def scorer(self, detector: Any, features: Features) -> Callable[[], NDArray[np.float64]]:
        """See ``Peer``."""
        return lambda: -detector.score_samples(features)

    def detector(self, features: Features, labels: Labels) -> GEM:
        """See ``Peer``."""
        return self.fitter(features, labels)()


def libraries(*, with_peers: bool) -> tuple[Peer, ...]:
    """Ours, and the peers that fit and score where asked for."""
    return (Ours(), *PEERS) if with_peers else (Ours(),)


def fitting_libraries(*, with_peers: bool) -> tuple[Peer, ...]:
    """The same, and those that only fit what the others fit."""
    return (*libraries(with_peers=with_peers), *(RELATED if with_peers else ()))


def first_words(error: BaseException) -> str:
    """What a library ended with, short enough for the cell of a table."""
    return textwrap.shorten(f"error: {type(error).__name__}: {error}", WIDEST_MESSAGE, placeholder=" ...")
