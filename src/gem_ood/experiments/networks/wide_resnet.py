"""The wide residual network (Zagoruyko and Komodakis, 2016) behind the paper's tables (P47).

Tensors are named as in the published weights of the energy score's authors (conv1, block1.layer.0.bn1, ..., bn1, fc),
so that these load unchanged.
"""

import math
from collections.abc import Mapping
from operator import index
from os import PathLike
from typing import ClassVar, Self

import torch
from torch import Tensor, nn
from torch.nn import functional

from gem_ood.errors import FileFormatError, InputError
from gem_ood.experiments.networks.weights import matching_tensors, read_tensors, refuse_shape, some, unwrapped_names
from gem_ood.features import is_count

__all__ = ["IMAGE_SIDES", "WideResNet", "check_shape"]

STEM_CHANNELS = 16
STAGE_CHANNELS = (16, 32, 64)
STAGE_STRIDES = (1, 2, 2)

#: Beyond these a network would take more memory than any machine has.
DEEPEST, WIDEST = 1_000, 100

#: The side of the square of the last maps that is averaged: the whole of them for images of 32×32.
POOLED_SIDE = 8

#: The smallest and the largest side of an image whose last maps hold one such square, neither none nor several.
IMAGE_SIDES = (29, 60)


class WideResNet(nn.Module):
    """A classifier of small colour images with 64 × width features before its last layer, `fc`.

    The depth is 6n + 4: a stem, three stages of n blocks with two convolutions each, shortcuts and `fc`. Images have
    sides from 29 to 60 pixels; the last maps are averaged over their first 8×8 pixels, as the published network does.

    Args:
        depth: 6n + 4, 40 in the paper's tables.
        width: How many times as many channels as the narrow network has, 2 in the paper's tables.
        n_classes: How many logits.
        dropout: The share of activations between the convolutions of a block that training sets to zero.

    >>> network = WideResNet(depth=10, width=1).eval()
    >>> network(torch.zeros(4, 3, 32, 32)).shape
    torch.Size([4, 10])
    >>> sum(parameter.numel() for parameter in WideResNet().parameters())
    2243546
    >>> WideResNet(depth=20)
    Traceback (most recent call last):
        ...
    gem_ood.errors.InputError: depth must be 6n + 4 with n at least 1 but is 20; pass 10, 16, 22, 28 or 40, say
    """

    #: Mean and standard deviation of red, green and blue, of pixels from 0 to 1, that its inputs are normalised by.
    pixel_mean: ClassVar[tuple[float, float, float]] = (125.3 / 255.0, 123.0 / 255.0, 113.9 / 255.0)
    pixel_std: ClassVar[tuple[float, float, float]] = (63.0 / 255.0, 62.1 / 255.0, 66.7 / 255.0)

    def __init__(self, depth: int = 40, width: int = 2, *, n_classes: int = 10, dropout: float = 0.3) -> None:
        super().__init__()
        n_blocks = check_shape(depth, width, dropout=dropout, n_classes=n_classes)
        channels = [index(width) * narrow for narrow in STAGE_CHANNELS]
        self.conv1 = nn.Conv2d(3, STEM_CHANNELS, 3, padding=1, bias=False)
        self.block1 = _Stage(STEM_CHANNELS, channels[0], n_blocks, STAGE_STRIDES[0], dropout)
        self.block2 = _Stage(channels[0], channels[1], n_blocks, STAGE_STRIDES[1], dropout)
        self.block3 = _Stage(channels[1], channels[2], n_blocks, STAGE_STRIDES[2], dropout)
        self.bn1 = nn.BatchNorm2d(channels[2])
        self.fc = nn.Linear(channels[2], index(n_classes))
        nn.init.zeros_(self.fc.bias)
        for part in self.modules():
            if isinstance(part, nn.Conv2d):
                spread = math.sqrt(2.0 / (part.kernel_size[0] * part.kernel_size[1] * part.out_channels))
                nn.init.normal_(part.weight, std=spread)

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits (n, classes) of normalised images (n, 3, height, width)."""
        low, high = IMAGE_SIDES
        if not all(low <= side <= high for side in images.shape[-2:]):
            raise InputError(
                f"images must have sides from {low} to {high} pixels but have shape {tuple(images.shape)}; resize or "
                f"crop them to 32×32"
            )
        maps = self.block3(self.block2(self.block1(self.conv1(images))))
        maps = functional.relu(self.bn1(maps))
        features = functional.avg_pool2d(maps, POOLED_SIDE).flatten(start_dim=1)
        logits: Tensor = self.fc(features)
        return logits

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Self:
        """Return the network of a .safetensors, .pt or .pth file, in evaluation mode and on the CPU.

        Depth, width and number of classes are read off the names and shapes of the tensors. No code of the file is
        run. The "module." of DataParallel before every name is dropped.

        >>> import tempfile
        >>> from pathlib import Path
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder, "weights.pt")
        ...     torch.save(WideResNet(depth=16, width=1, n_classes=5).state_dict(), path)
        ...     network = WideResNet.load(path)
        >>> len(network.block1.layer), network.fc.in_features, network.fc.out_features, network.training
        (2, 64, 5, False)

        Raises:
            FileNotFoundError: There is no such file.
            FileFormatError: The file is damaged, truncated, or holds something else.
        """
        return cls.from_tensors(unwrapped_names(read_tensors(path)), name=str(path))

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor], *, name: str) -> Self:
        """Return the network of these tensors, in evaluation mode; `name` is what errors call them."""
        try:
            depth, width, n_classes = _infer_sizes(tensors)
            # Loading leaves the caller's random numbers alone, though fresh weights are drawn and then replaced.
            with torch.random.fork_rng(devices=[]), torch.device("cpu"):
                network = cls(depth, width, n_classes=n_classes)
            fitting = matching_tensors(tensors, network.state_dict())
        except FileFormatError as error:
            raise FileFormatError(f"{name} does not hold the weights of a WideResNet: {error}") from error
        network.load_state_dict(fitting)
        return network.eval()


class _Block(nn.Module):
    """Two convolutions, each of normalised and rectified maps, beside a shortcut.

    Where the channels stay the same the shortcut is the input as it came; else it is a convolution of 1×1 pixels of
    the normalised and rectified input.
    """

    def __init__(self, in_channels: int, channels: int, stride: int, dropout: float) -> None:
        super().__init__()
        self.dropout = dropout
        self.bn1 = nn.BatchNorm2d(in_channels)
        self.conv1 = nn.Conv2d(in_channels, channels, 3, stride=stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.convShortcut = (
            None if in_channels == channels else nn.Conv2d(in_channels, channels, 1, stride=stride, bias=False)
        )

    def forward(self, maps: Tensor) -> Tensor:
        ready = functional.relu(self.bn1(maps))
        hidden = functional.relu(self.bn2(self.conv1(ready)))
        if self.dropout:
            hidden = functional.dropout(hidden, self.dropout, training=self.training)
        shortcut = maps if self.convShortcut is None else self.convShortcut(ready)
        total: Tensor = shortcut + self.conv2(hidden)
        return total


class _Stage(nn.Module):
    """Blocks in a row, of which the first may change the channels and the size of the maps."""

    def __init__(self, in_channels: int, channels: int, n_blocks: int, stride: int, dropout: float) -> None:
        super().__init__()
        later = (_Block(channels, channels, 1, dropout) for _ in range(n_blocks - 1))
        self.layer = nn.Sequential(_Block(in_channels, channels, stride, dropout), *later)

    def forward(self, maps: Tensor) -> Tensor:
        result: Tensor = self.layer(maps)
        return result


def check_shape(depth: int, width: int, *, dropout: float, n_classes: int) -> int:
    """Return the number of blocks in a stage; raise if there is no such network."""
    if not is_count(depth, least=10) or depth % 6 != 4:
        raise InputError(f"depth must be 6n + 4 with n at least 1 but is {depth!r}; pass 10, 16, 22, 28 or 40, say")
    for name, value, remedy in (
        ("width", width, "pass 2 for the paper's network"),
        ("n_classes", n_classes, "pass how many logits, 10 or 100 for CIFAR"),
    ):
        if not is_count(value):
            raise InputError(f"{name} must be a whole number, at least 1, but is {value!r}; {remedy}")
    for name, value, most in (("depth", depth, DEEPEST), ("width", width, WIDEST)):
        if value > most:
            raise InputError(f"{name} is {value:,}, more than memory is likely to hold; pass at most {most:,}")
    if isinstance(dropout, bool) or not isinstance(dropout, int | float) or not 0.0 <= dropout < 1.0:
        raise InputError(f"dropout must lie in [0, 1) but is {dropout!r}; pass 0 for none")
    return (index(depth) - 4) // 6


def _infer_sizes(tensors: Mapping[str, Tensor]) -> tuple[int, int, int]:
    """Return depth, width and classes; the file has the bytes of all three, so that no header asks for more memory."""
    blocks = [name for name in tensors if name.startswith("block1.layer.") and name.endswith(".conv2.weight")]
    if not blocks or "fc.weight" not in tensors:
        absent = "fc.weight" if blocks else "block1.layer.0.conv2.weight"
        raise FileFormatError(f"there is no {absent} among its {some(tensors)}; rename them or pass another file")
    head = tensors["fc.weight"]
    n_classes, n_features = (max(1, side) for side in head.shape) if head.ndim == 2 else (1, 1)
    width = max(1, n_features // STAGE_CHANNELS[-1])
    refuse_shape("fc.weight", head, (n_classes, width * STAGE_CHANNELS[-1]))
    channels = width * STAGE_CHANNELS[0]
    for name in blocks:
        refuse_shape(name, tensors[name], (channels, channels, 3, 3))
    return 6 * len(blocks) + 4, width, n_classes
