"""Export inputs: the tensors among a model's arguments, their names in a graph, and the axes that may change."""

import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from gem_ood.errors import InputError
from gem_ood.torch.batches import as_batch, first_rows, mapped, moved, tensors_of
from gem_ood.torch.guarded import OODModel
from gem_ood.torch.judging import OODResult
from gem_ood.torch.modes import unwrapped
from gem_ood.torch.streaming import device_of

__all__ = ["CHECKED_SIZES", "OUTPUTS", "Axis", "DynamicShapes", "GraphInputs", "can_hold_nan", "cause_of", "shapes_of"]

#: Batches of these sizes are compared; none is the size of the batch that the graph was made from.
CHECKED_SIZES = (1, 5, 7)

OUTPUTS = OODResult._fields

DynamicShapes = Mapping[str, Mapping[int, str]]


class Axis(NamedTuple):
    """One axis whose size may change: which input, which axis of it, and the name of its size."""

    place: int
    axis: int
    name: str


@dataclass(frozen=True)
class GraphInputs:
    """The tensors among the model's arguments in the order of the graph's inputs, and how the arguments hold them."""

    template: tuple[tuple[Any, ...], dict[str, Any]]
    names: tuple[str, ...]
    tensors: tuple[Tensor, ...]
    axes: tuple[Axis, ...]

    @classmethod
    def of(
        cls, guard: OODModel, example: Any, names: Sequence[str] | None, dynamic_shapes: DynamicShapes | None
    ) -> "GraphInputs":
        """Return the inputs of an example, or of what the guard has seen, under these names."""
        template = moved(first_rows(_arguments(guard, example), max(CHECKED_SIZES)), device_of(guard.model))
        tensors = tuple(tensor.detach().clone() for tensor in tensors_of(template))  # none from inference mode
        sizes = {len(tensor) for tensor in tensors if tensor.ndim}
        if len(sizes) != 1 or 0 in sizes:
            raise InputError(
                f"example holds {shapes_of(tensors)}; pass tensors with the same number of rows, at least one"
            )
        if isinstance(names, str):
            names = (names,)
        called = tuple(_names(guard.model, template)) if names is None else tuple(names)
        _check_names(called, len(tensors))
        return cls(template, called, tensors, tuple(_axes(called, tensors, dynamic_shapes or {})))

    def arguments(self, tensors: Sequence[Tensor]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the model's arguments with these tensors in place of the example's."""
        remaining = iter(tensors)
        found: tuple[tuple[Any, ...], dict[str, Any]] = mapped(self.template, lambda _: next(remaining))
        return found

    def rows(self, n_rows: int) -> list[Tensor]:
        """Return so many rows of the example, which begins again where it ends."""
        places = torch.arange(n_rows)
        return [tensor[places.to(tensor.device) % len(tensor)] if tensor.ndim else tensor for tensor in self.tensors]

    def traced(self) -> list[Tensor]:
        """Return the batch to make the graph from: sizes of 0 and 1, and sizes that agree, would be taken for fixed."""
        taken = {self.tensors[axis.place].shape[axis.axis] for axis in self.axes if axis.axis}
        return self.rows(next(size for size in range(2, 4 + len(taken)) if size not in taken))


def _arguments(guard: OODModel, example: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if example is None:
        if guard._example is None:
            raise InputError(
                "the guard has seen no input since it was loaded, and export runs the model once; pass example= a "
                "batch of inputs"
            )
        args, kwargs = guard._example
        return args, dict(kwargs)
    if not isinstance(example, Tensor | Mapping | tuple | list):
        raise InputError(
            f"example is a {type(example).__name__}; pass a tensor, a tuple of tensors, or a mapping of names to them"
        )
    batch = as_batch(example if isinstance(example, Mapping) else (example,), guard.model)
    return batch.args, dict(batch.kwargs)


def _names(model: nn.Module, template: tuple[tuple[Any, ...], dict[str, Any]]) -> Iterator[str]:
    args, kwargs = template
    model = unwrapped(model[0] if isinstance(model, nn.ModuleList) else model)  # members all take the same
    parameters = inspect.signature(model.forward).parameters.values()
    known = [
        parameter.name
        for parameter in parameters
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    ]
    known += [f"input_{place}" for place in range(len(known), len(args))]
    for name, value in (*zip(known, args, strict=False), *kwargs.items()):
        count = len(list(tensors_of(value)))
        yield from [name] if count == 1 else [f"{name}_{place}" for place in range(count)]


def _check_names(names: tuple[str, ...], n_inputs: int) -> None:
    if len(names) != n_inputs:
        raise InputError(
            f"input_names has {len(names)} names but the model takes {n_inputs} tensors; pass one for each"
        )
    if len(set(names) | set(OUTPUTS)) != len(names) + len(OUTPUTS):
        raise InputError(
            f"the inputs are called {', '.join(names)}, but names must differ from each other and from "
            f"{', '.join(OUTPUTS)}; pass input_names="
        )


def _axes(names: tuple[str, ...], tensors: tuple[Tensor, ...], shapes: DynamicShapes) -> Iterator[Axis]:
    unknown = set(shapes) - set(names)
    if unknown:
        raise InputError(f"dynamic_shapes names {min(unknown)!r}, which is no input; the inputs are {', '.join(names)}")
    for place, (name, tensor) in enumerate(zip(names, tensors, strict=True)):
        if tensor.ndim:
            yield Axis(place, 0, "batch")
        for axis, size in shapes.get(name, {}).items():
            if not 0 <= axis < tensor.ndim or (axis == 0) != (size == "batch"):
                raise InputError(
                    f"dynamic_shapes has axis {axis} of {name!r} as {size!r}, but {name!r} has axes 0 to "
                    f"{tensor.ndim - 1}, of which axis 0 alone is 'batch'; name another axis"
                )
            if axis and tensor.shape[axis] < 2:
                raise InputError(
                    f"axis {axis} of {name!r} has size {tensor.shape[axis]} in the example, from which no graph for "
                    f"other sizes can be made; pass an example with at least 2"
                )
            if axis:
                yield Axis(place, axis, size)


def can_hold_nan(tensor: Tensor) -> bool:
    """Return whether rows of this tensor may hold NaN.

    >>> can_hold_nan(torch.zeros(1)), can_hold_nan(torch.arange(3))
    (True, False)
    """
    return tensor.is_floating_point() and tensor.ndim > 0


def shapes_of(tensors: Sequence[Tensor]) -> str:
    """Return the shapes of tensors in words.

    >>> shapes_of([torch.zeros(2, 3)])
    '(2, 3)'
    """
    return ", ".join(str(tuple(tensor.shape)) for tensor in tensors) or "no tensor at all"


def cause_of(error: BaseException) -> str:
    """Return, in one line, what went wrong first.

    >>> cause_of(ValueError("no such file"))
    'ValueError: no such file'
    """
    while error.__cause__ is not None:
        error = error.__cause__
    lines = [line.strip(" -.:;") for line in str(error).splitlines() if line.strip(" -.:;")]
    if len(lines) > 1 and lines[0].startswith("Constraints violated"):
        return lines[1].split(". ")[0]  # which axis was held fixed, without the exporter's own advice
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
