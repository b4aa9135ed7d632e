"""pytorch-ood and oodeel, in float32 and under ``torch.inference_mode``.

Modules that they import but that the measured arithmetic never touches (torchvision, faiss) are replaced by empty
stand-ins. The tests load this file by its path to write the peers' scores, so it imports nothing from beside it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from peers.protocol import Features, Labels

__all__ = [
    "STAND_INS",
    "MultiMahalanobis",
    "Oodeel",
    "OodeelAtOnce",
    "PytorchOOD",
    "load_torch",
    "pytorch_ood_metrics",
    "under_inference_mode",
    "without_stand_ins",
]

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


def load_torch() -> Any:
    """PyTorch with the stand-ins in place and the thread count of this run."""
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


@contextmanager
def without_stand_ins() -> Iterator[None]:
    """Take the stand-ins away for an import that looks for the real modules and can do without them."""
    taken = {name: sys.modules.pop(name) for name in STAND_INS if _is_stand_in(name)}
    try:
        yield
    finally:
        sys.modules.update(taken)


def _is_stand_in(name: str) -> bool:
    return name in sys.modules and sys.modules[name].__spec__ is None


def under_inference_mode(torch: Any, function: Callable[[], Any]) -> Callable[[], Any]:
    """The same call without a record for gradients, which none of the measured work needs."""

    def call() -> Any:
        with torch.inference_mode():
            return function()

    return call


class PytorchOOD:
    """pytorch-ood: ``Mahalanobis(None).fit_features`` and ``predict_features``, all rows in one call."""

    name = "pytorch-ood 0.4.0"
    computes = "half the squared distance to the nearest class, class by class"
    fits_by_scoring = False

    def fitter(self, features: Features, labels: Labels, *, rows: int | None = None) -> Callable[[], Any]:
        """See ``Peer``."""
        torch = load_torch()
        from pytorch_ood.detector import Mahalanobis

        z, y = torch.from_numpy(features[:rows]), torch.from_numpy(labels[:rows])
        return under_inference_mode(torch, lambda: Mahalanobis(None).fit_features(z, y))

    def scorer(self, detector: Any, features: Features) -> Callable[[], NDArray[Any]]:
        """See ``Peer``."""
        torch = load_torch()
        z = torch.from_numpy(features)
        return under_inference_mode(torch, lambda: detector.predict_features(z).numpy())

    def detector(self, features: Features, labels: Labels) -> Any:
        """See ``Peer``."""
        return self.fitter(features, labels)()


class MultiMahalanobis(PytorchOOD):
    """pytorch-ood's detector of several layers, given one: it takes the diagonal of a rows x rows matrix per class."""

    name = "pytorch-ood 0.4.0 MultiMahalanobis"
    computes = "half the squared distance to the nearest class, by a rows x rows matrix per class"

    def fitter(self, features: Features, labels: Labels, *, rows: int | None = None) -> Callable[[], Any]:
        """See ``Peer``."""
        torch = load_torch()
        from pytorch_ood.detector import MultiMahalanobis as Detector

        z, y = torch.from_numpy(features[:rows]), torch.from_numpy(labels[:rows])
        layers = [torch.nn.Identity()]
        return under_inference_mode(torch, lambda: Detector(layers).fit_structured([z], y))

    def scorer(self, detector: Any, features: Features) -> Callable[[], NDArray[Any]]:
        """See ``Peer``."""
        torch = load_torch()
        z = torch.from_numpy(features)
        return under_inference_mode(torch, lambda: detector.predict_structured([z]).numpy())


class Oodeel:
    """oodeel: the parts of ``Mahalanobis(eps=0)`` that ``fit`` and ``score`` call on extracted features.

    Its public verbs take a model and a ``DataLoader``; what those add would be charged to oodeel, so
    ``_fit_layer`` and ``_score_layer`` are called directly, with a tensor, which also spares a copy.
    """

    name = "oodeel 0.4.0"
    computes = f"half the squared distance to the nearest class, in batches of {OODEEL_BATCH_ROWS} rows"
    fits_by_scoring = False
    batch_rows: int | None = OODEEL_BATCH_ROWS

    def fitter(self, features: Features, labels: Labels, *, rows: int | None = None) -> Callable[[], Any]:
        """See ``Peer``."""
        torch = load_torch()
        from oodeel.methods import Mahalanobis
        from oodeel.utils import TorchOperator

        z, y = torch.from_numpy(features[:rows]), labels[:rows]

        def fit() -> Any:
            detector = Mahalanobis(eps=0)
            detector.op = TorchOperator()
            detector._fit_layer(0, z, {"labels": y})
            return detector

        return under_inference_mode(torch, fit)

    def scorer(self, detector: Any, features: Features) -> Callable[[], NDArray[Any]]:
        """See ``Peer``."""
        torch = load_torch()
        batches = torch.from_numpy(features).split(self.batch_rows or len(features))
        return under_inference_mode(
            torch, lambda: np.concatenate([detector._score_layer(0, batch, {}) for batch in batches])
        )

    def detector(self, features: Features, labels: Labels) -> Any:
        """See ``Peer``."""
        return self.fitter(features, labels)()


class OodeelAtOnce(Oodeel):
    """oodeel as a caller meets it who passes all rows in one batch."""

    name = "oodeel 0.4.0, one batch"
    computes = "half the squared distance to the nearest class, by a rows x rows matrix per class"
    batch_rows = None


def pytorch_ood_metrics(
    id_scores: NDArray[Any], ood_scores: NDArray[Any], *, same_four: bool
) -> Callable[[], dict[str, float]]:
    """A call of pytorch-ood's ``OODMetrics``, or of only the four metrics that gem-ood reports too."""
    torch = load_torch()
    from pytorch_ood.metrics import AUPR, AUROC, FPRAtTPR, MetricCollection, OODMetrics

    outlier_scores = torch.from_numpy(-np.concatenate([id_scores, ood_scores]))
    labels = torch.cat([torch.zeros(id_scores.size), -torch.ones(ood_scores.size)]).long()

    def evaluate() -> Any:
        four = [AUROC(), AUPR("id"), AUPR("ood"), FPRAtTPR(0.95)]
        collection = MetricCollection(four) if same_four else OODMetrics()
        return collection.update(scores=outlier_scores, labels=labels).compute()

    return under_inference_mode(torch, evaluate)
