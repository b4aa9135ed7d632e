"""Modes: how a model is run when it is read: in evaluation mode, uncompiled, and known inside its wrappers."""

import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from gem_ood.errors import InputError

__all__ = ["evaluating", "refuse_compiled", "unwrapped", "without_compilation"]


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
    if torch.compiler.is_dynamo_compiling():  # `is_compiling` is true of all threads while one compiles
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
