"""Input noise: move each input a small step in the direction in which its score rises, then score it again.

Liang et al. (ODIN, 2018) and Lee et al. (2018): in-distribution inputs gain more from the step than others do.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from gem_ood.errors import InputError
from gem_ood.torch.batches import Arguments, mapped, tensors_of

__all__ = ["check_noise", "recording_gradients", "with_noise", "without_inference"]


def check_noise(noise: object, channel_std: Sequence[float] | None) -> None:
    """Raise if this is no size of a step.

    >>> check_noise(0.0014, None)
    """
    if isinstance(noise, bool) or not (isinstance(noise, Real) and 0.0 <= float(noise) < math.inf):
        raise InputError(f"input_noise is {noise!r}; pass a number of at least 0, such as 0.0014; 0 for none")
    if channel_std is not None and not _are_positive(channel_std):
        raise InputError(
            f"channel_std is {channel_std!r}; pass the positive number that divided each channel, such as (0.2, 0.2, "
            f"0.2)"
        )


def _are_positive(values: Any) -> bool:
    try:
        return all(0.0 < value < math.inf for value in values)
    except (TypeError, ValueError, RuntimeError):  # no sequence, or of no single numbers, as NumPy and PyTorch say it
        return False


def with_noise(
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    rising: Callable[[tuple[Any, ...], Mapping[str, Any]], Tensor],
    *,
    noise: float,
    channel_std: Sequence[float] | None = None,
) -> Arguments:
    """Return the inputs moved by `noise` times the sign of the gradient of what rises with each row's score.

    Rows do not see each other: the gradient of the sum is, row by row, the gradient of the row's own value. Where a
    gradient is not a number, as for an input so far out that its score overflows, there is no step.

    >>> with_noise((torch.tensor([[1.0, -1.0]]),), {}, lambda args, kwargs: -args[0].square().sum(1), noise=0.5)
    ((tensor([[ 0.5000, -0.5000]]),), {})
    """
    moving = _moving(args, kwargs)
    with recording_gradients():
        leaf = moving.detach().clone().requires_grad_()
        # A copy, since a model that begins with an operation in place must not change a leaf.
        given = leaf.clone()
        inputs = mapped((args, kwargs), lambda tensor: given if tensor is moving else without_inference(tensor))
        values = rising(*inputs)
        gradient = None
        if values.requires_grad:
            (gradient,) = torch.autograd.grad(values.sum(), leaf, allow_unused=True)
    if gradient is None:
        raise InputError(
            "input noise needs gradients, but none passes from the score back to the input: the model detaches its "
            "input or runs under torch.no_grad, or its detector has no differentiable form; let gradients through, or "
            "use input_noise=0"
        )
    step = noise * gradient.sign()  # the sign of what is not a number is 0
    if channel_std is not None:
        step = step / _per_channel(step, channel_std)
    moved: Arguments = mapped((args, kwargs), lambda tensor: moving + step if tensor is moving else tensor)
    return moved


def _moving(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Tensor:
    """Return the one input that can be moved: token ids and masks cannot."""
    found = list(tensors_of((args, kwargs)))
    moving = [tensor for tensor in found if tensor.is_floating_point() and tensor.ndim > 1]
    if len(moving) != 1:
        kinds = ", ".join(str(tensor.dtype) for tensor in found)
        raise InputError(
            f"input noise moves one floating-point input, but {len(moving)} came among ({kinds}); pass images or "
            f"embeddings alone, or use input_noise=0"
        )
    return moving[0]


def _per_channel(step: Tensor, channel_std: Sequence[float]) -> Tensor:
    if step.shape[1] != len(channel_std):
        raise InputError(
            f"channel_std has {len(channel_std)} numbers but the input has {step.shape[1]} channels; pass one for each"
        )
    return step.new_tensor(channel_std).view(1, -1, *(1 for _ in range(step.ndim - 2)))


@contextmanager
def recording_gradients() -> Iterator[None]:
    """Record gradients until the block ends, also inside `torch.no_grad` and `torch.inference_mode`.

    >>> with torch.inference_mode(), recording_gradients():
    ...     torch.ones(1, requires_grad=True).exp().requires_grad
    True
    """
    with torch.inference_mode(False), torch.enable_grad():
        try:
            yield
        except RuntimeError as error:
            if "inference tensor" not in str(error).lower():
                raise
            raise InputError(
                "the model holds tensors that were made under torch.inference_mode, which cannot carry gradients; make "
                "or load the model outside of it"
            ) from error


def without_inference(tensor: Tensor) -> Tensor:
    """Return the tensor without its history, as one that gradients may be recorded with.

    >>> with torch.inference_mode():
    ...     made = torch.ones(1)
    >>> without_inference(made).is_inference()
    False
    """
    return tensor.clone() if tensor.is_inference() else tensor.detach()
