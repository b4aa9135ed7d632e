"""The peers: libraries that fit class means with a tied covariance, called on features that are already in memory.

``fitter`` and ``scorer`` return a call without arguments: each library's own form of the features is made outside of
it, so that only the library's own arithmetic is timed. Where a library has a quick and a slow way, the quick one is
taken, public or not.
"""

from __future__ import annotations

from peers.protocol import Features, Labels, Peer
from peers.scikit import PyOD, ScikitCovariance, ScikitDiscriminant, ScikitMixture
from peers.with_torch import MultiMahalanobis, Oodeel, OodeelAtOnce, PytorchOOD

__all__ = ["ALL_PAIRS", "PEERS", "RELATED", "Features", "Labels", "Peer"]

#: Those whose score ranks rows as GEM does: they fit, score, and are compared in both.
PEERS: tuple[Peer, ...] = (PytorchOOD(), Oodeel(), ScikitMixture(), PyOD())
#: Estimators of the same means and covariance whose scores are another quantity: their fits are compared.
RELATED: tuple[Peer, ...] = (ScikitCovariance(), ScikitDiscriminant())
#: Peers that build a rows x rows matrix per class and keep its diagonal, with all rows in one call.
ALL_PAIRS: tuple[Peer, ...] = (MultiMahalanobis(), OodeelAtOnce())
