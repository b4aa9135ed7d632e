"""Small networks and sets of pictures that the tests of extraction share."""

import numpy as np
import torch
from torch import Tensor, nn

from gem_ood.experiments import ImageSet

__all__ = ["PixelNet", "count_passes", "hooks", "inputs_of", "picture_set", "snapshot"]


class PixelNet(nn.Module):
    """Pictures of any size to three logits, with batch statistics and dropout, which tell training from evaluation."""

    pixel_mean = (0.5, 0.4, 0.3)
    pixel_std = (0.2, 0.25, 0.3)

    def __init__(self, *, seed: int = 0, n_classes: int = 3) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.conv = nn.Conv2d(3, 6, 3, padding=1)
            self.norm = nn.BatchNorm2d(6)
            self.drop = nn.Dropout(0.5)
            self.fc = nn.Linear(6, n_classes)
            self.norm.running_mean.normal_()

    def forward(self, pixels: Tensor) -> Tensor:
        return self.fc(self.features(pixels))

    def features(self, pixels: Tensor) -> Tensor:
        return self.drop(torch.tanh(self.norm(self.conv(pixels)))).mean((2, 3))


def picture_set(n: int = 60, *, name: str = "made", seed: int = 0, side: int = 6, labelled: bool = True) -> ImageSet:
    """Return pictures whose colours depend on their class."""
    rng = np.random.default_rng(seed)
    labels = np.arange(n) % 3
    pixels = rng.integers(0, 200, size=(n, side, side, 3)) + 50 * np.eye(3, dtype=int)[labels][:, None, None]
    return ImageSet(name, pixels.astype(np.uint8), labels if labelled else None)


def inputs_of(images: ImageSet, mean=PixelNet.pixel_mean, std=PixelNet.pixel_std) -> Tensor:
    """Return pictures as a network takes them, in the order of the formula and in float64 until the end."""
    normal = (images.images.astype(np.float64) / 255.0 - np.array(mean)) / np.array(std)
    return torch.from_numpy(normal.transpose(0, 3, 1, 2).astype(np.float32))


def count_passes(model: nn.Module) -> list[int]:
    """Return a list that grows by the number of rows at each pass of the model, whatever wraps it."""
    passes: list[int] = []
    model.register_forward_pre_hook(lambda _, args: passes.append(len(args[0])))
    return passes


def hooks(model: nn.Module) -> int:
    return sum(
        len(part._forward_hooks) + len(part._forward_pre_hooks) + len(part._backward_hooks) for part in model.modules()
    )


def snapshot(model: nn.Module) -> tuple[list[tuple[str, Tensor]], list[bool], int]:
    """Return everything of a model that a pass might change: weights, buffers, modes, hooks."""
    tensors = [(name, tensor.clone()) for name, tensor in model.state_dict().items()]
    return tensors, [part.training for part in model.modules()], hooks(model)
