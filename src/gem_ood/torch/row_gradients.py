"""Row gradients: the gradient of each row's own loss in the weights of one layer, from one pass over the batch.

A `Tap` records what goes into the layer and cuts the graph at what comes out; one backward pass gives each row's pull
on that output, and each row's gradient then needs only the layer itself.
"""

import copy
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from gem_ood.errors import InputError
from gem_ood.features import chunks
from gem_ood.torch.layers import is_own_hook
from gem_ood.torch.scorers import precise

__all__ = ["Run", "Tap", "is_plain_linear", "row_norms", "skeleton", "weights_of"]

#: Gradients of this many bytes are held at a time: one matrix of weights for each row of a chunk.
CHUNK_BYTES = 64 << 20

#: Held while hooks come and go, so that a layer is never copied in between.
_HOOKS = threading.Lock()

#: Steps of a graph that change the type, shape or place of numbers, and not the numbers.
COPIES = (
    "AliasBackward",
    "CloneBackward",
    "ToCopyBackward",
    "UnsafeViewBackward",
    "ViewBackward",
    "ReshapeAliasBackward",
)

#: A layer run again on one row differs from its run on the batch by rounding only, which stays far below this share.
RERUN_TOLERANCE = 1e-2


def weights_of(layer: nn.Module, name: str) -> dict[str, Tensor]:
    """Return the parameters of a layer that are no biases; `name` is what errors call the layer.

    >>> list(weights_of(nn.Linear(2, 1), "fc"))
    ['weight']
    """

    def is_bias(path: str) -> bool:
        return "bias" in path.rpartition(".")[2] or "bias" in path.split(".")

    found = {path: weight.detach() for path, weight in layer.named_parameters() if not is_bias(path)}
    if not found:
        raise InputError(
            f"layer {name!r} is a {type(layer).__name__} without weights, so they have no gradient; pass layer= the "
            f"name of a layer that has some"
        )
    return found


def is_plain_linear(layer: nn.Module) -> bool:
    """Return whether the layer's output is its weight times its input plus its bias, and the weight is a parameter.

    >>> is_plain_linear(nn.Linear(2, 1)), is_plain_linear(nn.utils.parametrizations.weight_norm(nn.Linear(2, 1)))
    (True, False)
    """
    is_linear = isinstance(layer, nn.Linear) and type(layer).forward is nn.Linear.forward
    is_changed = not all(map(is_own_hook, layer._forward_hooks.values()))  # any other hook may change the output
    return is_linear and list(weights_of(layer, "")) == ["weight"] and not is_changed


@dataclass(frozen=True)
class Run:
    """What went into a layer and came out of it during one pass of the model, for so many inputs of the model."""

    name: str
    n_rows: int
    inputs: list[Any]
    structure: Any
    outputs: list[Tensor]

    def pulls(self, losses: Tensor) -> dict[int, Tensor]:
        """Return the gradient of the losses in each output of the layer that they depend on, by its place."""
        found: Sequence[Tensor | None] = []
        if losses.requires_grad:
            found = torch.autograd.grad(losses.sum(), self.outputs, retain_graph=True, allow_unused=True)
        pulls = {place: pull for place, pull in enumerate(found) if pull is not None}
        if not pulls:
            raise InputError(
                f"no gradient passes from the logits back to layer {self.name!r}: the model detaches what comes after "
                f"it or runs under torch.no_grad; let gradients through, or pass layer= a later one"
            )
        if any(pull.ndim == 0 or len(pull) % self.n_rows for pull in pulls.values()):
            raise self._other_axis()
        return pulls

    def require_rows_first(self, first: Tensor) -> None:
        """Raise if what the first input's loss depends on is not the first part of the layer's output."""
        for gradient in torch.autograd.grad(first, self.outputs, retain_graph=True, allow_unused=True):
            # Infinities of one row reach others as what is not a number, which is no dependence.
            if gradient is not None and bool((self.by_row(gradient)[1:].abs() > 0.0).any()):
                raise self._other_axis()

    def _other_axis(self) -> InputError:
        shapes = ", ".join(str(tuple(part.shape)) for part in self.outputs)
        return InputError(
            f"layer {self.name!r} gave {shapes} for {self.n_rows} inputs, not one after the other along the first "
            f"axis, so their gradients cannot be told apart; pass another layer=, use batch_first=True, or batches of 1"
        )

    def by_row(self, tensor: Tensor) -> Tensor:
        """Return the part of each input along a new first axis; a layer may see several rows per input."""
        return tensor.detach().reshape(self.n_rows, len(tensor) // self.n_rows, *tensor.shape[1:])

    @property
    def is_of_rows(self) -> list[bool]:
        """Which inputs of the layer have a part for each row, as its first tensor has; the others are shared."""
        sizes = [len(part) for part in self.inputs if isinstance(part, Tensor) and part.ndim]
        n_parts = sizes[0] if sizes and sizes[0] % self.n_rows == 0 else -1
        return [isinstance(part, Tensor) and part.ndim > 0 and len(part) == n_parts for part in self.inputs]


class Tap:
    """Hooks that copy what goes into a layer and cut the graph at what comes out, while a pass runs."""

    def __init__(self, layer: nn.Module) -> None:
        self._layer, self._thread = layer, threading.get_ident()
        self._inputs: list[Any] = []
        self._outputs: list[list[Tensor]] = []
        self._handed_on: Any = None
        self._handles: list[Any] = []

    def __enter__(self) -> None:
        with _HOOKS:
            self._handles = [
                self._layer.register_forward_pre_hook(self._before, with_kwargs=True),
                self._layer.register_forward_hook(self._after),
            ]

    def __exit__(self, *error: object) -> None:
        with _HOOKS:
            for handle in self._handles:
                handle.remove()

    def _before(self, layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> None:
        # Another thread may meet this hook while it is being removed; keyword arguments are then left out.
        if threading.get_ident() == self._thread:
            # A copy, since the layer or what follows it may write into its input.
            self._inputs.append(tree_map(_copied, (args, kwargs)))

    def _after(self, layer: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
        if threading.get_ident() != self._thread:
            return None
        parts, structure = tree_flatten(output)
        leaves = [part.detach().clone().requires_grad_() if _is_floating(part) else part for part in parts]
        self._outputs.append([leaf for leaf in leaves if _is_floating(leaf)])
        # What comes next may write into its input, which a leaf does not allow but its copy does.
        copies = [leaf.clone() if _is_floating(leaf) else leaf for leaf in leaves]
        self._handed_on = copies[0]
        return tree_unflatten(copies, structure)

    def is_copied_to(self, logits: Tensor) -> bool:
        """Return whether these logits are what the layer gave in its one run, with nothing but copies in between."""
        if len(self._outputs) != 1 or len(self._outputs[0]) != 1 or self._outputs[0][0].shape != logits.shape:
            return False
        (leaf,), step = self._outputs[0], logits.grad_fn
        if step is not None:
            while step is not None and step.name().rstrip("0123456789") in COPIES:
                step = step.next_functions[0][0]
            return getattr(step, "variable", None) is leaf
        # A forward that records no graph still hands on the tensor itself, and counts what is written into it.
        if logits is not self._handed_on:
            return False
        return torch.equal(logits, leaf) if logits.is_inference() else logits._version == 0

    def taken(self, name: str, n_rows: int) -> Run:
        """Return the one run of the layer."""
        if len(self._outputs) != 1:
            times = f"{len(self._outputs)} times" if self._outputs else "not at all"
            raise InputError(
                f"layer {name!r} ran {times} in one forward pass, where its gradient needs exactly one run; pass "
                f"layer= the name of a layer that runs once"
            )
        return Run(name, n_rows, *tree_flatten(self._inputs[0]), self._outputs[0])


def _is_floating(part: Any) -> bool:
    return isinstance(part, Tensor) and part.is_floating_point()


def _copied(part: Any) -> Any:
    return part.detach().clone() if isinstance(part, Tensor) else part


def skeleton(layer: nn.Module) -> nn.Module:
    """Return a copy of the layer that shares its tensors and hooks: another's weights can be put in without harm."""
    shared: dict[int, Any] = {}
    for module in layer.modules():
        held = (*module._parameters.values(), *module._buffers.values(), *module.__dict__.values())
        hooks = (*module._forward_hooks.values(), *module._forward_pre_hooks.values())
        shared |= {id(part): part for part in (*(part for part in held if isinstance(part, Tensor)), *hooks)}
    with _HOOKS:
        return copy.deepcopy(layer, shared)


def row_norms(layer: nn.Module, weights: dict[str, Tensor], run: Run, pulls: dict[int, Tensor]) -> Tensor:
    """Return, for each input, the L1 norm of the gradient in these weights of the layer that pulls on it."""
    of_rows = run.is_of_rows
    given = [part for part, is_of_row in zip(run.inputs, of_rows, strict=True) if is_of_row]
    outputs = [run.outputs[place] for place in pulls]
    columns = [[run.by_row(part) for part in parts] for parts in (given, outputs, pulls.values())]

    def again(parts: list[Tensor], own: dict[str, Tensor]) -> list[Tensor]:
        """Return what the layer gives for one row with these weights."""
        rest = iter(parts)
        inputs = [next(rest) if is_of_row else part for part, is_of_row in zip(run.inputs, of_rows, strict=True)]
        args, kwargs = tree_unflatten(inputs, run.structure)
        output = torch.func.functional_call(layer, own, args, kwargs)
        floating = [part for part in tree_flatten(output)[0] if _is_floating(part)]
        return [floating[place] for place in pulls]

    def for_vmap(parts: list[Tensor], outputs: list[Tensor], pulls: list[Tensor]) -> tuple[Tensor, Tensor]:
        rerun = torch.func.vjp(lambda own: again(parts, own), weights)
        return _norm(rerun[1](pulls)[0].values()), _difference(rerun[0], outputs)

    def for_one(parts: list[Tensor], outputs: list[Tensor], pulls: list[Tensor]) -> tuple[Tensor, Tensor]:
        own = {name: weight.clone().requires_grad_() for name, weight in weights.items()}
        found = again(parts, own)
        gradients = torch.autograd.grad(found, list(own.values()), pulls, allow_unused=True)
        return _norm(gradients), _difference(found, outputs)

    norms, differences = zip(*_by_chunk(for_vmap, for_one, columns, _rows_at_once(weights, columns)), strict=True)
    if bool((torch.cat(differences) > RERUN_TOLERANCE).any()):
        raise InputError(
            f"layer {run.name!r} gives other outputs for a row alone than in its batch, so rows have no gradient of "
            f"their own; pass layer= the name of another layer"
        )
    return torch.cat(norms)


_ForRows = Callable[..., tuple[Tensor, Tensor]]


def _by_chunk(
    for_vmap: _ForRows, for_one: _ForRows, columns: list[list[Tensor]], size: int
) -> Iterator[tuple[Tensor, Tensor]]:
    for rows in chunks(len(columns[1][0]), size):
        parts = [[part[rows] for part in column] for column in columns]
        try:
            with warnings.catch_warnings():
                # vmap goes through an operator it does not know row by row, and advises to ask for better.
                warnings.filterwarnings("ignore", message="There is a performance drop")
                found: tuple[Tensor, Tensor] = torch.func.vmap(for_vmap)(*parts)
        except RuntimeError:
            # Some layers do what vmap cannot follow; one row at a time everything can be followed.
            singly = [for_one(*row) for row in zip(*(zip(*column, strict=True) for column in parts), strict=True)]
            found = (torch.stack([norm for norm, _ in singly]), torch.stack([gap for _, gap in singly]))
        yield found


def _rows_at_once(weights: dict[str, Tensor], columns: list[list[Tensor]]) -> int:
    held = sum(weight.numel() * weight.element_size() for weight in weights.values())
    held += sum(part[0].numel() * part.element_size() for column in columns for part in column)
    return max(1, CHUNK_BYTES // max(1, held))


def _norm(gradients: Iterable[Tensor | None]) -> Tensor:
    total = [part.abs().sum(dtype=precise(part)) for part in gradients if part is not None]
    return torch.stack(total).sum()


def _difference(again: list[Tensor], outputs: list[Tensor]) -> Tensor:
    """Return the largest gap between two runs, as a share of the largest output."""
    gaps = [
        ((one - other).abs().amax() / (1.0 + other.abs().amax())).to(precise(other))
        for one, other in zip(again, outputs, strict=True)
    ]
    return torch.stack(gaps).amax()
