"""Small networks, loaders and comparisons that the tests of guards share."""

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from gem_ood import GEM
from gem_ood.detectors import Detector
from gem_ood.torch import OODResult

__all__ = [
    "ConvNet",
    "Counted",
    "NearestMean",
    "as_detector",
    "assert_same_results",
    "blob_batches",
    "blob_loader",
    "extracted",
    "features_of",
    "hook_counts",
    "mlp",
    "training_flags",
]

#: Centres of three classes of inputs in four dimensions.
CENTRES = torch.tensor([[4.0, 0.0, 0.0, 0.0], [0.0, 4.0, 0.0, 0.0], [0.0, 0.0, 4.0, 0.0]])


def blobs(n: int, *, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Return n inputs in four dimensions and their labels, 0 to 2."""
    labels = torch.arange(n) % 3
    return CENTRES[labels] + torch.randn(n, 4, generator=torch.Generator().manual_seed(seed)), labels


def blob_batches(n: int = 300, size: int = 50, *, seed: int = 0) -> list[tuple[Tensor, Tensor]]:
    inputs, labels = blobs(n, seed=seed)
    return list(zip(inputs.split(size), labels.split(size), strict=True))


def blob_loader(n: int = 300, size: int = 64, *, shuffle: bool = False, seed: int = 0) -> DataLoader:
    return DataLoader(TensorDataset(*blobs(n, seed=seed)), batch_size=size, shuffle=shuffle)


def mlp(*, seed: int = 0, width: int = 6) -> nn.Sequential:
    """Return a classifier with dropout and batch statistics, which tell training from evaluation."""
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, width), nn.Dropout(0.5), nn.Linear(width, 3)
    )


def features_of(model: nn.Module, inputs: Tensor, *, last: int = -1) -> Tensor:
    """Return what goes into the last layer of a sequential model, computed without any hook."""
    was_training = model.training
    with torch.no_grad():
        features = model.eval()[:last](inputs)
    model.train(was_training)
    return features


class Counted(nn.Module):
    """A model that counts how often its forward runs."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.inner, self.n_calls = model, 0

    def forward(self, inputs: Tensor) -> Tensor:
        self.n_calls += 1
        return self.inner(inputs)


class ConvNet(nn.Module):
    """Images of one channel, 8 × 8; a block of maps, their mean, and a head defined before the rest."""

    def __init__(self, *, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.head = nn.Linear(5, 3)
        self.block = nn.Sequential(nn.Conv2d(1, 5, 3), nn.ReLU())

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.block(images).mean((2, 3)))


def hook_counts(model: nn.Module) -> int:
    """Return how many hooks of any kind are in a model."""
    return sum(
        len(part._forward_hooks) + len(part._forward_pre_hooks) + len(part._backward_hooks) for part in model.modules()
    )


def training_flags(model: nn.Module) -> list[bool]:
    return [part.training for part in model.modules()]


def once(batches: list[tuple[Tensor, Tensor]]) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield batches that can be read only once."""
    yield from batches


def extracted(model, batches):
    inputs = torch.cat([inputs for inputs, _ in batches])
    labels = torch.cat([labels for _, labels in batches])
    return features_of(model, inputs).numpy(), labels.numpy()


def as_detector(model, train, held_out):
    """Return GEM fitted and calibrated on features taken out of the model beforehand."""
    return GEM().fit(*extracted(model, train)).calibrate(extracted(model, held_out)[0])


def assert_same_results(found, expected, *, rtol=1e-9):
    assert isinstance(found, OODResult)
    torch.testing.assert_close(found.logits, expected.logits)
    torch.testing.assert_close(found.score, expected.score, rtol=rtol, atol=1e-9)
    for name in ("p_value", "is_ood", "nearest_class"):
        mine, other = getattr(found, name), getattr(expected, name)
        assert (mine is None and other is None) or torch.equal(mine, other), name


class NearestMean(Detector):
    """A detector of a user's own: minus the distance to the nearest class mean."""

    def __init__(self, *, calibration=None, tpr=0.95, random_state=0):
        self.calibration, self.tpr, self.random_state = calibration, tpr, random_state

    def _learn(self, batches, *, n_features, classes):
        rows, labels = (np.concatenate(parts) for parts in zip(*batches, strict=True))
        self.classes_ = np.unique(labels)
        self.means_ = np.stack([rows[labels == name].mean(axis=0) for name in self.classes_])

    def _distances(self, features):
        return np.linalg.norm(features[:, np.newaxis] - self.means_, axis=2)

    def _scores(self, features, nearest=None):
        distances = self._distances(features)
        if nearest is not None:
            nearest[...] = distances.argmin(axis=1)
        return -distances.min(axis=1)

    def _details(self, features):
        raise NotImplementedError

    def _class_names(self, n_features):
        return self.classes_

    def _state(self):
        raise NotImplementedError

    def _restore(self, tensors, values):
        raise NotImplementedError
