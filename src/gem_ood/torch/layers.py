"""Layers: where a model's features are, and how they are read during its own forward pass.

A linear layer gives its input, any other layer its output. Hooks are there only while a pass runs, unless
`attach` was called, and the model's results are never touched.
"""

import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from gem_ood.errors import InputError

__all__ = [
    "FeatureReader",
    "Layer",
    "Pool",
    "evaluating",
    "pooled",
    "refuse_compiled",
    "unwrapped",
    "without_compilation",
]

Layer = str | Callable[[Any], Any]
Pool = str | Callable[[Tensor], Tensor]

#: How a sequence of token vectors becomes one.
_TOKENS: dict[str, Callable[[Tensor], Tensor]] = {
    "first-token": lambda tokens: tokens[:, 0],
    "last-token": lambda tokens: tokens[:, -1],
    "mean-token": lambda tokens: tokens.mean(1),
}

#: Layers whose outputs of three axes are inputs × channels × positions; of others it cannot be told.
_POOLS = (nn.MaxPool1d, nn.AvgPool1d, nn.LPPool1d, nn.AdaptiveMaxPool1d, nn.AdaptiveAvgPool1d)
_POSITIONS_LAST = (nn.Conv1d, nn.ConvTranspose1d, nn.BatchNorm1d, nn.InstanceNorm1d, *_POOLS)


class FeatureReader:
    """Reads features of one layer while the model runs: "auto", the name of a layer, or a function of the output."""

    def __init__(self, model: nn.Module, layer: Layer, pool: Pool) -> None:
        if not (callable(pool) or pool in ("mean", *_TOKENS)):
            raise InputError(f"pool is {pool!r}; pass 'mean', {', '.join(map(repr, _TOKENS))}, or a function")
        refuse_compiled(model)
        self._model, self.layer, self.pool = model, _named_where_part(model, layer), pool
        self._linear = {name: part for name, part in unwrapped(model).named_modules() if isinstance(part, nn.Linear)}
        self._chosen = self._choose()
        self._attached: _Capture | None = None

    @property
    def name(self) -> str | None:
        """The name of the layer, once it is known; None for a function or before the first pass of "auto"."""
        return self._chosen if isinstance(self._chosen, str) else None

    @property
    def width(self) -> int | None:
        """How many features there are, where the layer tells."""
        module = None if self.name is None else self._linear.get(self.name)
        # A lazy layer has no width until it has seen a batch.
        return None if module is None or callable(self.pool) else module.in_features or None

    def _choose(self) -> str | None:
        if callable(self.layer):
            return None
        if self.layer != "auto":
            return _known_name(self._model, self.layer)
        if not self._linear:
            raise InputError(
                f"{type(unwrapped(self._model)).__name__} has no linear layer, so its features cannot be found; pass "
                f"layer= the name of the layer whose output they are, such as {_example_name(self._model)!r}"
            )
        # Where there are several, the one that runs last is known only after a pass.
        return next(iter(self._linear)) if len(self._linear) == 1 else None

    def attach(self) -> None:
        """Leave the hooks in place until `detach`: `torch.compile(..., fullgraph=True)` needs them there before."""
        if self._attached is None and not callable(self.layer):
            self._attached = _Capture(self._watched())
            self._attached.hook()

    def detach(self) -> None:
        """Take the hooks out of the model."""
        if self._attached is not None:
            self._attached.unhook()
            self._attached = None

    def run(self, model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, Tensor]:
        """Return the output of the model, or of a replica of it, and one row of features per input, from one pass."""
        if callable(self.layer):
            output = model(*args, **kwargs)
            features = self.layer(output)
            if not isinstance(features, Tensor):
                raise InputError(f"layer returned a {type(features).__name__}; let it return a tensor of features")
            return output, pooled(features, self.pool, "what layer returned")
        capture, devices = self._attached or _Capture(self._watched()), _device_order(self._model)
        capture.start(of_all_threads=devices is not None)
        try:
            if capture is self._attached:
                output = model(*args, **kwargs)
            else:
                with capture:
                    output = model(*args, **kwargs)
            name, features = self._taken(capture, devices)
        finally:
            capture.stop()
        layer = _modules(self._model)[name]
        return output, pooled(
            features,
            self.pool,
            f"layer {name!r}",
            channels_last=isinstance(layer, nn.Linear),
            positions_last=isinstance(layer, _POSITIONS_LAST),
        )

    def _watched(self) -> dict[str, nn.Module]:
        if self._chosen is not None:
            return {self._chosen: _modules(self._model)[self._chosen]}
        return dict(self._linear)

    def _taken(self, capture: "_Capture", devices: list[torch.device] | None) -> tuple[str, Any]:
        name, count, features = capture.take(devices)
        if name is None or features is None:
            refuse_compiled(self._model)
            wanted = "no linear layer" if self._chosen is None else f"layer {self._chosen!r} not at all"
            raise InputError(
                f"the forward pass ran {wanted}; pass layer= the name of a layer that it runs, such as "
                f"{_example_name(self._model)!r}"
            )
        if count > 1:
            raise InputError(
                f"layer {name!r} ran {count} times in one forward pass, so its features are not one row per input; "
                f"pass layer= the name of a layer that runs once, or a function of the model's output"
            )
        self._chosen = name
        return name, features


class _Capture:
    """The last of the watched layers to run, how often it ran, and its features; each thread has its own.

    Nothing is kept of passes that nobody started: it would hold their features and their graph.
    """

    def __init__(self, watched: Mapping[str, nn.Module]) -> None:
        self._watched = dict(watched)
        self._seen: dict[int | torch.device, tuple[str, dict[str, int], Any] | None] = {}
        self._is_of_all_threads = False
        self._handles: list[Any] = []

    def hook(self) -> None:
        for name, module in self._watched.items():
            if isinstance(module, nn.Linear):
                self._handles.append(module.register_forward_pre_hook(_Keep(self, name).before, with_kwargs=True))
            else:
                self._handles.append(module.register_forward_hook(_Keep(self, name).after))

    def unhook(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def __enter__(self) -> None:
        self.hook()

    def __exit__(self, *error: object) -> None:
        self.unhook()

    def start(self, *, of_all_threads: bool = False) -> None:
        """Keep what runs from now on in this thread, or in all: the replicas of DataParallel run in their own."""
        self._seen[_thread()], self._is_of_all_threads = None, of_all_threads

    def stop(self) -> None:
        """Keep nothing more, and forget what was not taken."""
        if self._is_of_all_threads:
            self._seen.clear()
        self._seen.pop(_thread(), None)
        self._is_of_all_threads = False

    def keep(self, name: str, features: Any) -> None:
        found: Any = _tensor_in(features)
        place: int | torch.device = _thread()
        if self._is_of_all_threads and isinstance(found, Tensor):
            place = found.device  # a thread that has ended may leave its number to the next
        elif place not in self._seen:
            return
        before = self._seen.get(place)
        counts = {} if before is None else before[1]
        counts[name] = counts.get(name, 0) + 1
        self._seen[place] = (name, counts, found)

    def take(self, devices: list[torch.device] | None) -> tuple[str | None, int, Any]:
        """Return name, count and features; with several devices, their rows joined in the order of the devices."""
        own = [self._seen.pop(_thread(), None)] if devices is None else list(self._seen.values())
        seen = [entry for entry in own if entry is not None]
        if not seen:
            return None, 0, None
        name, counts, features = seen[0]
        if devices is not None and all(isinstance(part, Tensor) for _, _, part in seen):
            parts = sorted((part for _, _, part in seen), key=lambda part: devices.index(part.device))
            features = torch.cat([part.to(devices[0]) for part in parts])
        return name, counts[name], features


class _Keep:
    """The hook of one layer; methods, unlike closures, follow a deep copy of the model."""

    def __init__(self, capture: _Capture, name: str) -> None:
        self._capture, self._name = capture, name

    def before(self, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any] | None = None) -> None:
        # Another thread may meet this hook while it is being removed; keyword arguments are then left out.
        self._capture.keep(self._name, args[0] if args else (kwargs or {}).get("input"))

    def after(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        self._capture.keep(self._name, output)


def _thread() -> int:
    # A compiled pass runs in one thread and cannot ask which.
    return 0 if torch.compiler.is_compiling() else threading.get_ident()


def unwrapped(model: nn.Module) -> nn.Module:
    """Return the model inside DataParallel and DistributedDataParallel.

    >>> unwrapped(DataParallel(nn.Linear(2, 1)))
    Linear(in_features=2, out_features=1, bias=True)
    """
    while isinstance(model, DataParallel | DistributedDataParallel):
        model = model.module
    return model


def without_compilation(model: nn.Module) -> nn.Module:
    """Return the model inside `torch.compile`: compiled code does not run hooks that came after it was compiled.

    >>> without_compilation(nn.Identity())
    Identity()
    """
    if not _is_compiled_copy(model):
        return model
    warnings.warn(
        "the model is compiled, and compiled code cannot be looked into; it is run uncompiled: compile the guarded "
        "model instead, torch.compile(OODModel(model, detector))",
        UserWarning,
        stacklevel=3,
    )
    inner: nn.Module = model._orig_mod  # type: ignore[assignment]
    return inner


def refuse_compiled(model: nn.Module) -> None:
    """Raise if the model was compiled in place or inside a wrapper, where it cannot be run uncompiled.

    >>> refuse_compiled(nn.Identity())
    """
    parts = [model]
    while isinstance(parts[-1], DataParallel | DistributedDataParallel):
        parts.append(parts[-1].module)
    if _is_compiled_copy(parts[-1]) or any(getattr(part, "_compiled_call_impl", None) is not None for part in parts):
        raise InputError(
            f"the {type(model).__name__} is compiled, by model.compile() or inside its wrapper, and compiled code "
            f"cannot be looked into; pass it uncompiled, and compile the guarded model: torch.compile(OODModel(model, "
            f"detector))"
        )


def _is_compiled_copy(model: nn.Module) -> bool:
    return isinstance(getattr(model, "_orig_mod", None), nn.Module)


def _device_order(model: nn.Module) -> list[torch.device] | None:
    """Return the devices among which DataParallel spreads the rows, in the order of the rows; None for one device."""
    if isinstance(model, DataParallel) and len(model.device_ids) > 1:
        return [torch.device(model.src_device_obj.type, place) for place in model.device_ids]
    return None


def _modules(model: nn.Module) -> dict[str, nn.Module]:
    return dict(unwrapped(model).named_modules(remove_duplicate=False))


def _known_name(model: nn.Module, name: str) -> str:
    """Return the name of a layer inside the wrappers, whose own `named_modules` puts "module." before it."""
    modules, inner = _modules(model), name
    while isinstance(model, DataParallel | DistributedDataParallel) and isinstance(inner, str) and inner not in modules:
        model, inner = model.module, inner.removeprefix("module.")
    if inner not in modules or not inner:
        raise InputError(
            f"layer is {name!r}, which is no layer of {type(unwrapped(model)).__name__}; pass 'auto', a function, or "
            f"a name from model.named_modules(), such as {_example_name(model)!r}"
        )
    return inner


def _named_where_part(model: nn.Module, layer: Layer) -> Layer:
    """Return the name of a layer that was passed as the layer itself."""
    if not isinstance(layer, nn.Module):
        return layer
    names = [name for name, part in _modules(model).items() if part is layer and name]
    return names[0] if names else layer


def _example_name(model: nn.Module) -> str:
    names = [name for name, _ in unwrapped(model).named_children()]
    return names[-1] if names else "layer"


def _tensor_in(features: Any) -> Any:
    """Return the tensor in what a layer gave, where it has a known form."""
    features = getattr(features, "last_hidden_state", features)  # as Hugging Face's encoders return it
    is_tuple = isinstance(features, tuple) and features and isinstance(features[0], Tensor)
    return features[0] if is_tuple else features


def pooled(
    features: Any, pool: Pool, source: str, *, channels_last: bool = False, positions_last: bool = False
) -> Tensor:
    """Return one row of features per input: spatial maps are averaged over their positions, as the paper does (P19).

    Channels come before the positions, as convolutions have them, or last, as a linear layer takes them. Three axes
    are read as inputs × channels × positions only where this is known; they might be inputs × tokens × features.

    >>> pooled(torch.tensor([[[[1.0, 3.0]], [[0.0, 8.0]]]]), "mean", "layer 'conv'")
    tensor([[2., 4.]])
    """
    features = _tensor_in(features)
    if not isinstance(features, Tensor):
        raise InputError(f"{source} gave a {type(features).__name__}; pass a layer that gives a tensor")
    if callable(pool):
        features = pool(features)
    elif pool == "mean" and features.ndim > (2 if positions_last else 3):
        features = features.flatten(1, -2).mean(1) if channels_last else features.flatten(2).mean(2)
    elif pool in _TOKENS and features.ndim == 3:
        features = _TOKENS[pool](features)
    if not isinstance(features, Tensor) or features.ndim != 2:
        shape = tuple(features.shape) if isinstance(features, Tensor) else type(features).__name__
        raise InputError(
            f"{source} gave features of shape {shape} where one row per input was expected; pass pool= "
            f"{', '.join(map(repr, _TOKENS))} if they are inputs × tokens × features, lambda maps: maps.mean(2) if "
            f"they are inputs × channels × positions, or another function that makes rows of them"
        )
    return features


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Hold the model in evaluation mode until the block ends, then give every part its own mode back.

    >>> model = nn.Dropout()
    >>> with evaluating(model):
    ...     model.training
    False
    >>> model.training
    True
    """
    if torch.compiler.is_compiling():
        training = [module for module in model.modules() if module.training]
        _set_training(training, False)
        try:
            yield
        finally:
            _set_training(training, True)
    else:
        modules = list(model.modules())
        _hold(modules)
        try:
            yield
        finally:
            _release(modules)


#: How many threads hold a module in evaluation mode, and whether it was training before the first of them. Two models
#: may share modules, as a wrapper and what it wraps do.
_HELD: dict[int, tuple[int, bool]] = {}
_MODES = threading.Lock()


def _hold(modules: list[nn.Module]) -> None:
    with _MODES:
        for module in modules:
            count, was_training = _HELD.get(id(module), (0, module.training))
            _HELD[id(module)] = (count + 1, was_training)
        _set_training([module for module in modules if module.training], False)


def _release(modules: list[nn.Module]) -> None:
    with _MODES:
        for module in modules:
            count, was_training = _HELD.pop(id(module))
            if count > 1:
                _HELD[id(module)] = (count - 1, was_training)
            elif was_training:
                _set_training([module], True)


def _set_training(modules: list[nn.Module], is_training: bool) -> None:
    for module in modules:
        module.training = is_training
