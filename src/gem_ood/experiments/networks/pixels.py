"""Pixels: bytes of images made into a network's input."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["normalized"]


def normalized(
    images: NDArray[np.uint8], *, mean: Sequence[float], std: Sequence[float], device: torch.device | None = None
) -> Tensor:
    """Return images (n, height, width, 3) as a network's input (n, 3, height, width).

    Pixels are divided by 255, then the mean of each colour is subtracted and its standard deviation divided by. The
    tensor keeps the array's order in memory (torch.channels_last), in which convolutions on a CPU are faster.

    >>> normalized(np.full((1, 2, 2, 3), 255, dtype=np.uint8), mean=(0.5, 0.5, 0.0), std=(0.5, 0.25, 1.0))[0, :, 0, 0]
    tensor([1.0000, 2.0000, 1.0000])
    """
    n, height, width, _ = images.shape
    # Factors as long as a row of pixels: three at a time would leave most of the processor's lanes idle.
    scale = torch.tensor(np.tile(1.0 / (255.0 * np.asarray(std)), width), dtype=torch.get_default_dtype())
    shift = torch.tensor(np.tile(-np.asarray(mean) / np.asarray(std), width), dtype=torch.get_default_dtype())
    # PyTorch warns of arrays that are read-only, as memory maps are; these, and flipped ones, are copied.
    rows = torch.from_numpy(np.require(images, requirements=["C", "W"])).view(n, height, width * 3).to(device)
    normal = torch.addcmul(shift.to(device), rows.to(shift.dtype), scale.to(device))
    return normal.view(n, height, width, 3).permute(0, 3, 1, 2)
