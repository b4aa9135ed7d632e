"""Input noise: move each input a small step in the direction in which its score rises, then score it again.

Liang et al. (ODIN, 2018) and Lee et al. (2018): in-distribution inputs gain more from the step than others do.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from gem_ood.errors import InputError
from gem_ood.torch.batches import mapped, tensors_of

__all__ = ["check_noise", "with_noise"]


def check_noise(noise: float, channel_std: Sequence[float] | None) -> None:
    """Raise if this is no size of a step.

    >>> check_noise(0.0014, None)
    """
    if not (isinstance(noise, int | float) and 0.0 <= noise < float("inf")):
        raise InputError(f"input_noise is {noise!r}; pass a number of at least 0, such as 0.0014; 0 for none")
    if channel_std is not None and not all(std > 0.0 for std in channel_std):
        raise InputError(f"channel_std is {channel_std!r}; pass the positive number that divided each channel")


def with_noise(
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    rising: Callable[[tuple[Any, ...], dict[str, Any]], Tensor],
    *,
    noise: float,
    channel_std: Sequence[float] | None = None,
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the inputs moved by `noise` times the sign of the gradient of what rises with each row's score.

    Rows do not see each other: the gradient of the sum is, row by row, the gradient of the row's own value.
    """
    moving = [tensor for tensor in tensors_of((args, kwargs)) if tensor.is_floating_point() and tensor.ndim > 1]
    if len(moving) != 1:
        kinds = ", ".join(str(tensor.dtype) for tensor in tensors_of((args, kwargs)))
        raise InputError(
            f"input noise moves one floating-point input, but {len(moving)} came among ({kinds}); pass images or "
            f"embeddings alone, or use input_noise=0"
        )
    with torch.inference_mode(False), torch.enable_grad():
        # Inference tensors cannot carry gradients, so every input is taken afresh.
        leaf = moving[0].detach().clone().requires_grad_()
        inputs = mapped((args, kwargs), lambda tensor: leaf if tensor is moving[0] else tensor.detach().clone())
        (gradient,) = torch.autograd.grad(rising(*inputs).sum(), leaf)
    step = noise * gradient.sign()
    if channel_std is not None:
        if moving[0].shape[1] != len(channel_std):
            raise InputError(
                f"channel_std has {len(channel_std)} numbers but the input has {moving[0].shape[1]} channels; pass one "
                f"per channel"
            )
        step = step / step.new_tensor(channel_std).view(1, -1, *(1 for _ in range(step.ndim - 2)))
    moved: tuple[tuple[Any, ...], dict[str, Any]] = mapped(
        (args, kwargs), lambda tensor: moving[0] + step if tensor is moving[0] else tensor
    )
    return moved
