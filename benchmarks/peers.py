"""The peers, pytorch-ood and oodeel, called on features that are already in memory.

``fitter`` and ``scorer`` return a call without arguments: tensors are made outside of it, so that only the
peer's own arithmetic is timed, under ``torch.inference_mode``. Modules that the peers import but that this
arithmetic never touches (torchvision, faiss) are replaced by empty stand-ins.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

__all__ = ["PEERS", "Oodeel", "Peer", "PytorchOOD"]

Features = NDArray[np.float32]
Labels = NDArray[np.int64]

# oodeel takes the diagonal of a rows x rows matrix per class, so it must be fed in batches. 128 is its own
# default in ``_fit_to_dataset`` and was the fastest of 32, 64, 128, 256 and 512 here.
OODEEL_BATCH_ROWS = 128
# What the peers look up while they are imported, found with a recording stand-in.
STAND_INS = {
    "torchvision": (),
    "torchvision.transforms": ("Compose",),
    "torchvision.models": (),
    "torchvision.models.resnet": ("BasicBlock", "Bottleneck", "ResNet"),
    "faiss": ("IndexFlatL2",),
}


class Peer(Protocol):
    """A library that fits class means with a tied covariance and scores by the nearest class."""

    name: str

    def fitter(self, features: Features, labels: Labels) -> Callable[[], Any]:
        """A call that returns a fitted detector."""

    def scorer(self, detector: Any, features: Features) -> Callable[[], NDArray[np.float32]]:
        """A call that returns one score per row, higher = more out-of-distribution (the peers' sign)."""


def _torch() -> Any:
    """PyTorch with the stand-ins in place and the thread count of this run."""
    import os

    import torch

    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    for name, attributes in STAND_INS.items():
        if name in sys.modules:
            continue
        module = ModuleType(name)
        module.__path__ = []
        for attribute in attributes:
            setattr(module, attribute, type(attribute, (), {}))
        sys.modules[name] = module
        parent, _, child = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], child, module)
    return torch


def _under_inference_mode(torch: Any, function: Callable[[], Any]) -> Callable[[], Any]:
    def call() -> Any:
        with torch.inference_mode():
            return function()

    return call


class PytorchOOD:
    """pytorch-ood: ``Mahalanobis(None).fit_features`` and ``predict_features``, all rows in one call."""

    name = "pytorch-ood 0.4.0"

    def fitter(self, features: Features, labels: Labels) -> Callable[[], Any]:
        """See ``Peer``."""
        torch = _torch()
        from pytorch_ood.detector import Mahalanobis

        z, y = torch.from_numpy(features), torch.from_numpy(labels)
        return _under_inference_mode(torch, lambda: Mahalanobis(None).fit_features(z, y))

    def scorer(self, detector: Any, features: Features) -> Callable[[], NDArray[np.float32]]:
        """See ``Peer``."""
        torch = _torch()
        z = torch.from_numpy(features)
        return _under_inference_mode(torch, lambda: detector.predict_features(z).numpy())

    def metrics(self, id_scores: NDArray[Any], ood_scores: NDArray[Any], *, same_four: bool) -> Callable[[], Any]:
        """A call of ``OODMetrics``, or of only the four metrics that gem-ood reports too."""
        torch = _torch()
        from pytorch_ood.metrics import AUPR, AUROC, FPRAtTPR, MetricCollection, OODMetrics

        outlier_scores = torch.from_numpy(-np.concatenate([id_scores, ood_scores]))
        labels = torch.cat([torch.zeros(id_scores.size), -torch.ones(ood_scores.size)]).long()

        def evaluate() -> Any:
            four = [AUROC(), AUPR("id"), AUPR("ood"), FPRAtTPR(0.95)]
            collection = MetricCollection(four) if same_four else OODMetrics()
            return collection.update(scores=outlier_scores, labels=labels).compute()

        return _under_inference_mode(torch, evaluate)


class Oodeel:
    """oodeel: the parts of ``Mahalanobis(eps=0)`` that ``fit`` and ``score`` call on extracted features.

    Its public verbs take a model and a ``DataLoader``; what those add would be charged to oodeel, so
    ``_fit_layer`` and ``_score_layer`` are called directly, with a tensor, which also spares a copy.
    """

    name = "oodeel 0.4.0"

    def fitter(self, features: Features, labels: Labels) -> Callable[[], Any]:
        """See ``Peer``."""
        torch = _torch()
        from oodeel.methods import Mahalanobis
        from oodeel.utils import TorchOperator

        z = torch.from_numpy(features)

        def fit() -> Any:
            detector = Mahalanobis(eps=0)
            detector.op = TorchOperator()
            detector._fit_layer(0, z, {"labels": labels})
            return detector

        return _under_inference_mode(torch, fit)

    def scorer(self, detector: Any, features: Features) -> Callable[[], NDArray[np.float32]]:
        """See ``Peer``."""
        torch = _torch()
        batches = torch.from_numpy(features).split(OODEEL_BATCH_ROWS)
        return _under_inference_mode(
            torch, lambda: np.concatenate([detector._score_layer(0, batch, {}) for batch in batches])
        )


PEERS: tuple[Peer, ...] = (PytorchOOD(), Oodeel())
