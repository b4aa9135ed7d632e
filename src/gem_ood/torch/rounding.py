"""Rounding: how far a score may move when the same input comes in a batch of another size.

A network then adds up its products in another order. A calibration row must count as tied with itself all the same,
so thresholds are lowered by this much.
"""

import math
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["feature_rounding", "largest_move", "noise_rounding"]

#: By how many steps of its precision a network may move a feature, as a share of the row's largest, between batches of
#: different size, whose products it adds up in another order. A ResNet-56 showed 20 in float32; in half precision,
#: products are added up in float32 and rounded once.
WIDE_STEPS, NARROW_STEPS = 32.0, 2.0

#: Scores are allowed to move by so much more than the directions that were tried show.
DIRECTIONS_MARGIN = 2.0

#: The same with input noise, a sign of which may turn, as a share of the middle half of scores: about three times what
#: a ResNet-56 showed under ODIN.
NOISE_ROUNDING = 1e-3


def noise_rounding(scores: NDArray[np.float64]) -> float:
    """Return how far scores with input noise may move when their input comes in a batch of another size.

    >>> noise_rounding(np.array([0.0, 1.0, 2.0, 3.0, 4.0]))
    0.002
    """
    finite = scores[np.isfinite(scores)]
    return float(NOISE_ROUNDING * np.subtract(*np.quantile(finite, [0.75, 0.25]))) if len(finite) else 0.0


def feature_rounding(dtype: torch.dtype) -> float:
    """Return by what share of a row's largest feature a network of this precision may move the row's features.

    >>> feature_rounding(torch.float32)
    3.814697265625e-06
    """
    if dtype in (torch.float16, torch.bfloat16):
        return NARROW_STEPS * torch.finfo(dtype).eps
    # Rows that a guard made from probabilities are in float64 even where its network is not.
    return WIDE_STEPS * torch.finfo(torch.float32).eps


def largest_move(score: Callable[[Tensor], Tensor], values: Tensor, steps: Tensor) -> Tensor:
    """Return the largest change of each row's score when its values are moved by these steps in a few fixed directions.

    Rows are the axis before the last; what differs along the others moves apart. A score that is or becomes infinite
    is allowed no change.

    >>> largest_move(lambda rows: rows.sum(1), torch.zeros(1, 1), torch.ones(1, 1))
    tensor([2.])
    """
    scores = score(values).to(values.dtype)
    largest = torch.zeros_like(scores)
    shape = [*values.shape[:-2], 1, values.shape[-1]]
    for signs in _directions(math.prod(shape)).to(values):
        largest = torch.maximum(
            largest, (score(values + steps * signs.view(shape)) - scores).abs().nan_to_num(0.0, 0.0)
        )
    return DIRECTIONS_MARGIN * largest


def _directions(n_columns: int) -> Tensor:
    """Return rows of signs, the same in every call, in which no two columns have the same signs throughout.

    Two columns that always moved together would hide a score that depends on their difference, as probabilities do.
    """
    n_directions = max(4, (n_columns - 1).bit_length())
    codes = torch.randperm(1 << n_directions, generator=torch.Generator().manual_seed(0))[:n_columns]
    return 2 * ((codes >> torch.arange(n_directions)[:, None]) & 1) - 1
