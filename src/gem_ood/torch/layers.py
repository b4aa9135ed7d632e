"""Layers: where a model's features are, and how they are read during its own forward pass.

A linear layer gives its input, any other layer its output, copied before the model can overwrite it. Hooks are there
only while a pass runs, unless `attach` was called, and the model's results are never touched.
"""

import inspect
import threading
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from gem_ood.errors import InputError
from gem_ood.torch.modes import refuse_compiled, unwrapped
from gem_ood.torch.pooling import TOKENS, Pool, pooled, tensor_in

__all__ = ["FeatureReader", "Layer", "is_own_hook"]

Layer = str | Callable[[Any], Any]

#: Layers whose outputs of three axes are inputs × channels × positions; of others it cannot be told.
_POOLS = (nn.MaxPool1d, nn.AvgPool1d, nn.LPPool1d, nn.AdaptiveMaxPool1d, nn.AdaptiveAvgPool1d)
_POSITIONS_LAST = (nn.Conv1d, nn.ConvTranspose1d, nn.BatchNorm1d, nn.InstanceNorm1d, *_POOLS)


class FeatureReader:
    """Reads features of one layer while the model runs: "auto", the name of a layer, or a function of the output."""

    def __init__(self, model: nn.Module, layer: Layer, pool: Pool) -> None:
        if not (callable(pool) or pool in ("mean", *TOKENS)):
            raise InputError(f"pool is {pool!r}; pass 'mean', {', '.join(map(repr, TOKENS))}, or a function")
        refuse_compiled(model)
        self._model, self.layer, self.pool = model, _named_where_part(model, layer), pool
        self._linear = {name: part for name, part in unwrapped(model).named_modules() if isinstance(part, nn.Linear)}
        self._chosen = self._choose()
        self._attached: _Capture | None = None
        self._mask_place = _place_of_mask(model)

    def take(self, name: str) -> None:
        """Read this layer, as a stored guard did, where "auto" has not yet found one."""
        if self.layer == "auto" and self._chosen is None:
            self._chosen = _known_name(self._model, name)
            if self._attached is not None:
                self.detach()
                self.attach()

    @property
    def name(self) -> str | None:
        """The name of the layer, once it is known; None for a function or before the first pass of "auto"."""
        return self._chosen if isinstance(self._chosen, str) else None

    @property
    def width(self) -> int | None:
        """How many features there are, where the layer tells."""
        # Where there is one linear layer, it is the one that is read or none is.
        only = next(iter(self._linear)) if self.layer == "auto" and len(self._linear) == 1 else ""
        module = self._linear.get(self.name or only)
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
        return None  # which of them gives the logits is known only after a pass

    def attach(self) -> None:
        """Leave the hooks in place until `detach`: `torch.compile(..., fullgraph=True)` needs them there before."""
        if self._attached is None and not callable(self.layer):
            self._attached = self._capture()
            self._attached.hook()

    def detach(self) -> None:
        """Take the hooks out of the model."""
        if self._attached is not None:
            self._attached.unhook()
            self._attached = None

    def run(
        self, model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], logits_of: Callable[[Any], Tensor]
    ) -> tuple[Any, Tensor]:
        """Return the output of the model, or of a replica of it, and one row of features per input, from one pass.

        `logits_of` finds the logits in the output, by which the first pass of "auto" tells the layer that gives them.
        """
        mask = kwargs.get("attention_mask")
        if self._mask_place is not None and self._mask_place < len(args):
            mask = args[self._mask_place]
        if callable(self.layer):
            output = model(*args, **kwargs)
            features = self.layer(output)
            if not isinstance(features, Tensor):
                raise InputError(f"layer returned a {type(features).__name__}; let it return a tensor of features")
            return output, pooled(features, self.pool, "what layer returned", mask=mask)
        if self._attached is None:
            output, name, features = self._run_hooked(model, args, kwargs, logits_of)
        else:
            output, name, features = self._run_captured(self._attached, model, args, kwargs, logits_of)
        layer = _modules(self._model)[name]
        return output, pooled(
            features,
            self.pool,
            f"layer {name!r}",
            channels_last=isinstance(layer, nn.Linear),
            positions_last=isinstance(layer, _POSITIONS_LAST),
            mask=mask,
        )

    # Code that was compiled from the same forward without hooks would be taken here, and would not run them.
    @torch.compiler.disable(reason="hooks last one pass; attach() the guard before")  # type: ignore[no-untyped-call,untyped-decorator]
    def _run_hooked(self, model: nn.Module, *call: Any) -> tuple[Any, str, Any]:
        capture = self._capture()
        with capture:
            return self._run_captured(capture, model, *call)

    def _run_captured(
        self,
        capture: "_Capture",
        model: nn.Module,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        logits_of: Callable[[Any], Tensor],
    ) -> tuple[Any, str, Any]:
        devices = _device_order(self._model)
        capture.start(self._chosen, of_all_threads=devices is not None)
        try:
            output = model(*args, **kwargs)
            return output, *self._taken(capture, devices, lambda: logits_of(output))
        finally:
            capture.stop()

    def _capture(self) -> "_Capture":
        if self._chosen is not None:
            return _Capture({self._chosen: _modules(self._model)[self._chosen]})
        return _Capture(self._linear, are_candidates=True)

    def _taken(
        self, capture: "_Capture", devices: list[torch.device] | None, logits: Callable[[], Tensor]
    ) -> tuple[str, Any]:
        passes = capture.take(devices)
        runs = passes[0] if passes else {}
        if not runs or (self._chosen is not None and self._chosen not in runs):
            refuse_compiled(self._model)
            wanted = "no linear layer" if self._chosen is None else f"layer {self._chosen!r} not at all"
            raise InputError(
                f"the forward pass ran {wanted}; pass layer= the name of a layer that it runs, such as "
                f"{_example_name(self._model)!r}"
            )
        name = _giving(logits(), runs) if self._chosen is None else self._chosen
        if runs[name].times > 1:
            raise InputError(
                f"layer {name!r} ran {runs[name].times} times in one forward pass, so its features are not one row per "
                f"input; pass layer= the name of a layer that runs once, or a function of the model's output"
            )
        self._chosen = name
        parts = [runs[name].features for runs in passes]
        if devices is None or not all(isinstance(part, Tensor) for part in parts):
            return name, parts[0]
        return name, torch.cat([part.to(devices[0]) for part in parts])


class _Run(NamedTuple):
    """What is known of a layer that ran; the output only where it may be the logits themselves."""

    times: int
    features: Any
    columns: int | None = None
    output: Tensor | None = None


def _giving(logits: Tensor, runs: Mapping[str, _Run]) -> str:
    """Return the name of the layer that gives the logits: they are its output, or it alone has as many columns."""
    n_logits = logits.shape[-1]
    found = [name for name, run in runs.items() if run.output is not None and run.output is logits]
    found = found or [name for name, run in runs.items() if run.columns == n_logits]
    if len(found) == 1:
        return found[0]
    names = ", ".join(map(repr, list(found or runs)[-5:]))
    raise InputError(
        f"the {n_logits} logits are not the output of any one linear layer that ran, and "
        f"{'several have' if found else 'none has'} as many outputs ({names}); pass layer= the name of the layer to "
        f"read: a linear layer gives its input, any other its output"
    )


class _Capture:
    """The watched layers that ran, how often, and the features of those that may be asked for; each thread has its own.

    Nothing is kept of passes that nobody started: it would hold their features and their graph.
    """

    def __init__(self, watched: Mapping[str, nn.Module], *, are_candidates: bool = False) -> None:
        self._watched, self._are_candidates = dict(watched), are_candidates
        self._seen: dict[int | torch.device, dict[str, _Run]] = {}
        self._only: str | None = None
        self._is_of_all_threads = False
        self._handles: list[Any] = []

    def hook(self) -> None:
        for name, module in self._watched.items():
            keep = _Keep(self, name)
            if self._are_candidates:
                self._handles.append(module.register_forward_hook(keep.around, with_kwargs=True))
            elif isinstance(module, nn.Linear):
                self._handles.append(module.register_forward_pre_hook(keep.before, with_kwargs=True))
            else:
                self._handles.append(module.register_forward_hook(keep.after))

    def unhook(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def __enter__(self) -> None:
        self.hook()

    def __exit__(self, *error: object) -> None:
        self.unhook()

    def start(self, only: str | None = None, *, of_all_threads: bool = False) -> None:
        """Keep what runs from now on in this thread, or in all: the replicas of DataParallel run in their own."""
        self._seen[_thread()], self._only, self._is_of_all_threads = {}, only, of_all_threads

    def stop(self) -> None:
        """Keep nothing more, and forget what was not taken."""
        if self._is_of_all_threads:
            self._seen.clear()
        self._seen.pop(_thread(), None)
        self._is_of_all_threads = False

    def keep(self, name: str, given: Any, output: Any = None) -> None:
        found: Any = tensor_in(given)
        place: int | torch.device = _thread()
        if self._is_of_all_threads and isinstance(found, Tensor):
            place = found.device  # a thread that has ended may leave its number to the next
        elif place not in self._seen:
            return
        if self._only not in (None, name):
            return
        runs = self._seen.setdefault(place, {})
        columns = output.shape[-1] if isinstance(output, Tensor) and output.ndim else None
        may_be_logits = isinstance(output, Tensor) and output.ndim == 2
        rivals = [other for other, run in runs.items() if columns is not None and run.columns == columns]
        for rival in rivals:
            if runs[rival].output is None:  # it could win only by its columns, which another has too
                runs[rival] = runs[rival]._replace(features=None)
        times = runs[name].times + 1 if name in runs else 1
        may_win = times == 1 and (may_be_logits or not rivals)
        # What comes after the layer may overwrite the tensor in place.
        features = (found.clone() if isinstance(found, Tensor) else found) if may_win else None
        runs[name] = _Run(times, features, columns, output if may_be_logits else None)

    def take(self, devices: list[torch.device] | None) -> list[dict[str, _Run]]:
        """Return the layers that ran, by device in their order where there are several."""
        if devices is None:
            return [self._seen.pop(_thread(), {})]
        places: list[int | torch.device] = [*devices, _thread()]
        return [self._seen[place] for place in places if self._seen.get(place)]


class _Keep:
    """The hook of one layer; methods, unlike closures, follow a deep copy of the model."""

    def __init__(self, capture: _Capture, name: str) -> None:
        self._capture, self._name = capture, name

    def before(self, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any] | None = None) -> None:
        # Another thread may meet this hook while it is being removed; keyword arguments are then left out.
        self._capture.keep(self._name, args[0] if args else (kwargs or {}).get("input"))

    def around(self, module: nn.Module, args: tuple[Any, ...], *rest: Any) -> None:
        kwargs = rest[0] if len(rest) == 2 else {}
        self._capture.keep(self._name, args[0] if args else kwargs.get("input"), rest[-1])

    def after(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        self._capture.keep(self._name, output)


def _thread() -> int:
    # A compiled pass runs in one thread and cannot ask which; `is_compiling` is true of all threads while one compiles.
    return 0 if torch.compiler.is_dynamo_compiling() else threading.get_ident()


def _place_of_mask(model: nn.Module) -> int | None:
    """Return at which place the model's forward takes the attention mask, if it does."""
    try:
        names = list(inspect.signature(unwrapped(model).forward).parameters)
    except (TypeError, ValueError):
        return None  # not every module tells
    return names.index("attention_mask") if "attention_mask" in names else None


def is_own_hook(hook: Any) -> bool:
    """Return whether a hook is one that reads features here.

    >>> is_own_hook(print)
    False
    """
    return isinstance(getattr(hook, "__self__", None), _Keep)


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
    if not names:
        raise InputError(
            f"layer is a {type(layer).__name__} that is no part of {type(unwrapped(model)).__name__}; pass a layer of "
            f"the model or its name, such as {_example_name(model)!r}, or a function of the model's output"
        )
    return names[0]


def _example_name(model: nn.Module) -> str:
    names = [name for name, _ in unwrapped(model).named_children()]
    return names[-1] if names else "layer"
