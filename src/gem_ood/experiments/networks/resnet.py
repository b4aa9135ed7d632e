"""The CIFAR variant of ResNet (He et al., 2016): three stages of basic blocks with shortcuts that have no parameters.

Tensors are named as is usual for this network (conv1, bn1, layer1.0.conv1, ..., linear), so that published weights
load unchanged.
"""

from collections.abc import Mapping
from operator import index
from os import PathLike
from typing import ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from gem_ood.errors import FileFormatError, InputError
from gem_ood.experiments.networks.pixels import normalized
from gem_ood.experiments.networks.weights import matching_tensors, read_tensors, refuse_shape, some
from gem_ood.features import is_count

__all__ = ["IMAGE_MEAN", "IMAGE_STD", "CifarResNet", "normalize_images"]

#: Mean and standard deviation of red, green and blue on ImageNet, by which the network's inputs are normalised.
IMAGE_MEAN = (0.485, 0.456, 0.406)
IMAGE_STD = (0.229, 0.224, 0.225)

IMAGE_SHAPE = (32, 32, 3)
STAGE_CHANNELS = (16, 32, 64)


class CifarResNet(nn.Module):
    """A classifier of 32×32 colour images with 64 features before its last layer, `linear`.

    The depth is 6n + 2: a stem, three stages of n blocks with two convolutions each, and `linear`. It is 56 in the
    real data's network; 20, 32, 44 and 110 are others of the original paper. Images of any other size pass too.

    >>> network = CifarResNet(depth=20, n_classes=10).eval()
    >>> network(torch.zeros(4, 3, 32, 32)).shape
    torch.Size([4, 10])
    >>> CifarResNet(depth=18)
    Traceback (most recent call last):
        ...
    gem_ood.errors.InputError: depth must be 6n + 2 with n at least 1 but is 18; pass 20, 32, 44, 56 or 110, say
    """

    #: Mean and standard deviation of red, green and blue, of pixels from 0 to 1, that its inputs are normalised by.
    pixel_mean: ClassVar[tuple[float, float, float]] = IMAGE_MEAN
    pixel_std: ClassVar[tuple[float, float, float]] = IMAGE_STD

    def __init__(self, depth: int = 56, n_classes: int = 10) -> None:
        super().__init__()
        n_blocks = _blocks_per_stage(depth)
        if not is_count(n_classes):
            raise InputError(
                f"n_classes must be a whole number, at least 1, but is {n_classes!r}; pass how many logits"
            )
        stem, middle, last = STAGE_CHANNELS
        self.conv1 = _convolution(3, stem)
        self.bn1 = nn.BatchNorm2d(stem)
        self.layer1 = _stage(stem, stem, n_blocks)
        self.layer2 = _stage(stem, middle, n_blocks)
        self.layer3 = _stage(middle, last, n_blocks)
        self.linear = nn.Linear(last, index(n_classes))

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits (n, classes) of normalised images (n, 3, height, width)."""
        maps = functional.relu(self.bn1(self.conv1(images)))
        maps = self.layer3(self.layer2(self.layer1(maps)))
        logits: Tensor = self.linear(maps.mean(dim=(2, 3)))
        return logits

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Self:
        """Return the network of a .safetensors, .pt or .pth file, in evaluation mode and on the CPU.

        Depth and number of classes are read off the names and shapes of the tensors. No code of the file is run.

        >>> import tempfile
        >>> from safetensors.torch import save_file
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save_file(CifarResNet(depth=14, n_classes=5).state_dict(), f"{folder}/weights.safetensors")
        ...     network = CifarResNet.load(f"{folder}/weights.safetensors")
        >>> len(network.layer1), network.linear.out_features, network.training
        (2, 5, False)

        Raises:
            FileNotFoundError: There is no such file.
            FileFormatError: The file is damaged, truncated, or holds something else.
        """
        return cls.from_tensors(read_tensors(path), name=str(path))

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor], *, name: str) -> Self:
        """Return the network of these tensors, in evaluation mode; `name` is what errors call them."""
        try:
            depth, n_classes = _infer_sizes(tensors)
            # Loading leaves the caller's random numbers alone, though fresh weights are drawn and then replaced.
            with torch.random.fork_rng(devices=[]), torch.device("cpu"):
                network = cls(depth, n_classes)
            fitting = matching_tensors(tensors, network.state_dict())
        except FileFormatError as error:
            raise FileFormatError(f"{name} does not hold the weights of a CIFAR ResNet: {error}") from error
        network.load_state_dict(fitting)
        return network.eval()


def normalize_images(images: NDArray[np.uint8]) -> Tensor:
    """Return uint8 images (n, 32, 32, 3) as the network's float32 input (n, 3, 32, 32).

    Pixels are divided by 255, then the mean of each colour is subtracted and its standard deviation divided by. The
    tensor keeps the array's order in memory (torch.channels_last), in which convolutions on a CPU are faster.

    >>> normalize_images(np.full((1, 32, 32, 3), 255, dtype=np.uint8))[0, :, 0, 0]
    tensor([2.2489, 2.4286, 2.6400])
    """
    if not isinstance(images, np.ndarray):
        raise InputError(f"images must be a NumPy array but is a {type(images).__name__}; pass numpy.asarray(images)")
    if images.shape[1:] != IMAGE_SHAPE:
        raise InputError(f"images must have shape (n, 32, 32, 3) but has {images.shape}; {_shape_remedy(images.shape)}")
    if images.dtype != np.uint8:
        raise InputError(f"images must have dtype uint8 but has {images.dtype}; pass whole pixel values from 0 to 255")
    return normalized(np.asarray(images), mean=IMAGE_MEAN, std=IMAGE_STD)


class _BasicBlock(nn.Module):
    """Two convolutions beside a shortcut; the first block of a later stage halves the maps and doubles the channels."""

    def __init__(self, in_channels: int, channels: int) -> None:
        super().__init__()
        self.new_channels = channels - in_channels
        self.conv1 = _convolution(in_channels, channels, stride=2 if self.new_channels else 1)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = _convolution(channels, channels)
        self.bn2 = nn.BatchNorm2d(channels)

    def forward(self, maps: Tensor) -> Tensor:
        hidden = functional.relu(self.bn1(self.conv1(maps)))
        total: Tensor = self.bn2(self.conv2(hidden)) + self._shortcut(maps)
        return total.relu_()  # in place on the sum only, which no hook has seen

    def _shortcut(self, maps: Tensor) -> Tensor:
        """Return the maps as they are, or (option A) every other pixel of them between channels of zeros."""
        if not self.new_channels:
            return maps
        before = self.new_channels // 2
        return functional.pad(maps[:, :, ::2, ::2], (0, 0, 0, 0, before, self.new_channels - before))


def _stage(in_channels: int, channels: int, n_blocks: int) -> nn.Sequential:
    later = (_BasicBlock(channels, channels) for _ in range(n_blocks - 1))
    return nn.Sequential(_BasicBlock(in_channels, channels), *later)


def _convolution(in_channels: int, channels: int, *, stride: int = 1) -> nn.Conv2d:
    convolution = nn.Conv2d(in_channels, channels, 3, stride=stride, padding=1, bias=False)
    nn.init.kaiming_normal_(convolution.weight, mode="fan_out", nonlinearity="relu")  # the original paper's start
    return convolution


def _blocks_per_stage(depth: int) -> int:
    if not is_count(depth, least=8) or depth % 6 != 2:
        raise InputError(f"depth must be 6n + 2 with n at least 1 but is {depth!r}; pass 20, 32, 44, 56 or 110, say")
    return (index(depth) - 2) // 6


def _shape_remedy(shape: tuple[int, ...]) -> str:
    if shape == IMAGE_SHAPE:
        return "pass one image as images[numpy.newaxis]"
    if shape[1:] == (3, 32, 32):
        return "move the colours last: images.transpose(0, 2, 3, 1)"
    return "resize and crop to 32×32 pixels of red, green and blue"


def _infer_sizes(tensors: Mapping[str, Tensor]) -> tuple[int, int]:
    """Return depth and number of classes; the file has the bytes of both, so that no header asks for more memory."""
    blocks = [name for name in tensors if name.startswith("layer1.") and name.endswith(".conv1.weight")]
    if not blocks or "linear.weight" not in tensors:
        absent = "linear.weight" if blocks else "layer1.0.conv1.weight"
        raise FileFormatError(f"there is no {absent} among its {some(tensors)}; rename them or pass another file")
    stem = STAGE_CHANNELS[0]
    for name in blocks:
        refuse_shape(name, tensors[name], (stem, stem, 3, 3))
    n_classes = len(tensors["linear.weight"]) if tensors["linear.weight"].ndim else 0
    refuse_shape("linear.weight", tensors["linear.weight"], (max(1, n_classes), STAGE_CHANNELS[-1]))
    return 6 * len(blocks) + 2, n_classes
