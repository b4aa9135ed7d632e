"""Batches: what loaders yield and models return, in one form.

A batch is a tensor, a tuple (inputs, labels, ...), or a mapping with the labels under a usual name; an output is a
tensor of logits, a tuple that begins with one, or an object with `logits`, as Hugging Face's models return.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from gem_ood.errors import InputError
from gem_ood.torch.modes import unwrapped

__all__ = ["Arguments", "Batch", "Unpack", "as_arguments", "as_batch", "first_rows", "logits_of", "moved"]

#: Where a mapping keeps its labels, in the order in which they are looked for.
LABEL_NAMES = ("labels", "label", "targets", "target", "y")

#: What a model's forward takes, by place and by name.
Arguments = tuple[tuple[Any, ...], Mapping[str, Any]]

Unpack = Callable[[Any], tuple[Any, Any]]


@dataclass(frozen=True)
class Batch:
    """The arguments of one forward pass, and the labels if there are any."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    labels: NDArray[Any] | None

    @property
    def n_rows(self) -> int:
        """How many inputs there are."""
        return next((len(value) for value in tensors_of((self.args, self.kwargs)) if value.ndim), 0)


def as_batch(item: Any, model: nn.Module, unpack: Unpack | None = None) -> Batch:
    """Return what a loader yielded as arguments and labels.

    Of a tuple without `unpack`, the first part is the inputs and the second the labels; what follows the labels is
    left aside. A second part that cannot be labels is refused: it may be an input, such as the mask of token ids.

    >>> as_batch((torch.zeros(2, 3), torch.tensor([0, 1])), nn.Linear(3, 2)).labels
    array([0, 1])
    """
    if unpack is not None:
        inputs, labels = _pair(unpack(item))
    elif isinstance(item, Mapping):
        inputs, labels = _without_labels(item)
    elif isinstance(item, tuple | list) and item:
        inputs, labels = item[0], _second_as_labels(item) if len(item) > 1 else None
    else:
        inputs, labels = item, None
    args, kwargs = as_arguments(inputs, model)
    return Batch(args, kwargs, None if labels is None else _labels(labels))


def _without_labels(mapping: Mapping[str, Any]) -> tuple[dict[str, Any], Any]:
    """Return the inputs of a mapping and its labels: what stands under the first of their usual names."""
    name = next((name for name in LABEL_NAMES if name in mapping), None)
    inputs = {key: value for key, value in mapping.items() if key != name}
    return inputs, None if name is None else mapping[name]


def _pair(unpacked: Any) -> tuple[Any, Any]:
    if not isinstance(unpacked, tuple | list) or len(unpacked) != 2:
        raise InputError(
            f"unpack returned a {type(unpacked).__name__}; let it return (inputs, labels), with None for no labels"
        )
    inputs, labels = unpacked
    return inputs, labels


def _second_as_labels(item: Sequence[Any]) -> NDArray[Any] | None:
    if item[1] is None:
        return None
    labels = _labels(item[1])
    is_column = labels.ndim == 1 or (labels.ndim == 2 and labels.shape[1] == 1)
    # Whole numbers may come as floats; with more to follow, floats are more likely another input.
    if not is_column or (len(item) > 2 and labels.dtype.kind == "f"):
        last = "batch[-1]" if len(item) > 2 else "None"
        raise InputError(
            f"the loader yielded {len(item)} parts of which the second has shape {labels.shape} and type "
            f"{labels.dtype}, where one label per input was expected; pass unpack= a function that returns (inputs, "
            f"labels), such as lambda batch: ((batch[0], batch[1]), {last}) if the model takes both"
        )
    return labels


def as_arguments(inputs: Any, model: nn.Module) -> Arguments:
    """Return inputs as the arguments of the model's forward: a mapping by keyword, a tuple by place.

    >>> as_arguments({"pixels": torch.zeros(1)}, nn.Linear(1, 1))
    ((tensor([0.]),), {})
    """
    if isinstance(inputs, Mapping):
        taken = _accepted(model)
        if taken is not None and len(inputs) == 1 and not taken & set(inputs):
            return tuple(inputs.values()), {}  # one input under the data set's own name
        unknown = [] if taken is None else [str(name) for name in inputs if name not in taken]
        if unknown:
            raise InputError(
                f"the loader's mapping holds {', '.join(map(repr, unknown))}, which the forward of "
                f"{type(unwrapped(model)).__name__} does not take; leave it out, or pass unpack= a function that "
                f"returns (inputs, labels)"
            )
        return (), dict(inputs)
    if isinstance(inputs, tuple | list):
        return tuple(inputs), {}
    if not isinstance(inputs, Tensor):
        raise InputError(
            f"the loader yielded inputs of type {type(inputs).__name__}; let it yield tensors, tuples (inputs, "
            f"labels) or mappings, or pass unpack= a function that returns (inputs, labels)"
        )
    return (inputs,), {}


def opened(mapping: Mapping[str, Any], model: nn.Module) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return a batch that is a mapping as arguments of the model: by keyword, without labels, if it takes their names.

    >>> opened({"input": torch.zeros(1), "labels": torch.zeros(1)}, nn.Linear(1, 1))
    ((), {'input': tensor([0.])})
    """
    inputs, _ = _without_labels(mapping)
    taken = _accepted(model)
    if taken is None or set(inputs) <= taken:
        return (), inputs
    return (tuple(inputs.values()), {}) if len(inputs) == 1 else ((mapping,), {})


def _accepted(model: nn.Module) -> set[str] | None:
    """Return the names that the model's forward takes, or None if it takes any."""
    parameters = inspect.signature(unwrapped(model).forward).parameters
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values()):
        return None
    return set(parameters)


def _labels(labels: Any) -> NDArray[Any]:
    if isinstance(labels, Tensor):
        labels = (labels.float() if labels.dtype == torch.bfloat16 else labels).detach().cpu().numpy()
    array = np.asarray(labels)
    if array.ndim == 0:
        raise InputError(f"the loader yielded one label, {labels!r}, for a whole batch; let it yield one per input")
    return array


def moved(value: Any, device: torch.device | None) -> Any:
    """Return the same arguments with their tensors on this device.

    >>> moved(({"x": torch.zeros(1)}, "text"), torch.device("cpu"))
    ({'x': tensor([0.])}, 'text')
    """
    if device is None:
        return value
    # Only copies to a device wait for their turn there; one to the processor would be read before it is complete.
    non_blocking = device.type != "cpu"
    return mapped(value, lambda tensor: tensor.to(device, non_blocking=non_blocking))


def first_rows(value: Any, n_rows: int) -> Any:
    """Return the same arguments with only the first rows of their tensors.

    >>> first_rows((torch.arange(4),), 2)
    (tensor([0, 1]),)
    """
    return mapped(value, lambda tensor: tensor[:n_rows] if tensor.ndim else tensor)


def mapped(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Return tuples, lists and mappings with every tensor in them changed.

    >>> mapped([torch.zeros(1), 3], lambda tensor: tensor + 1)
    [tensor([1.]), 3]
    """
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, Mapping):
        return {key: mapped(part, change) for key, part in value.items()}
    if isinstance(value, tuple | list):
        parts = [mapped(part, change) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    return value


def tensors_of(value: Any) -> Iterator[Tensor]:
    """Yield every tensor in tuples, lists and mappings.

    >>> len(list(tensors_of(((torch.zeros(1),), {"mask": torch.ones(1)}))))
    2
    """
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from tensors_of(part)
    elif isinstance(value, tuple | list):
        for part in value:
            yield from tensors_of(part)


def logits_of(output: Any) -> Tensor:
    """Return the logits, n × k, in a model's output.

    A tuple that begins with a single number is refused: it is a loss, and which of the parts after it are the logits
    is not said.

    >>> logits_of((torch.zeros(1, 2), "attentions")).shape
    torch.Size([1, 2])
    """
    found = output
    if isinstance(output, Mapping):
        found = output.get("logits")
    elif hasattr(output, "logits"):
        found = output.logits
    elif isinstance(output, tuple | list) and output:
        found = output[0]
        if isinstance(found, Tensor) and found.ndim == 0:
            raise InputError(
                f"the model returned a {type(output).__name__} that begins with a single number, as it does with a "
                f"loss when it is passed labels; leave labels out, or wrap it in a module that returns its logits"
            )
    if not isinstance(found, Tensor) or found.ndim != 2:
        shape = f"a tensor of shape {tuple(found.shape)}" if isinstance(found, Tensor) else type(found).__name__
        raise InputError(
            f"the model returned {type(output).__name__} whose logits are {shape}, where one row of logits per input "
            f"was expected; guard a classifier, or wrap it in a module that returns its logits"
        )
    return found
