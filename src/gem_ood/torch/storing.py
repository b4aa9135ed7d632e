"""Storing: what of a guarded model goes into its own file and into a `state_dict`.

The file is the detector's, with one more entry in its header: which guard it was and with what settings. The model's
weights stay in the user's own checkpoint.
"""

from abc import ABC, abstractmethod
from inspect import signature
from os import PathLike
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import clone
from torch import Tensor, nn

from gem_ood import storage
from gem_ood.detectors import Detector
from gem_ood.detectors.saving import pack, unpack
from gem_ood.errors import FileFormatError, InputError

__all__ = ["StoredGuard"]

_STATE = "the guard in this state_dict"


class StoredGuard(nn.Module, ABC):
    """A guard that can be saved without its model and put on it again; subclasses are found by name."""

    detector: Detector
    dtype: torch.dtype
    _kinds: ClassVar[dict[str, type["StoredGuard"]]] = {}

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        StoredGuard._kinds[cls.__name__] = cls

    @abstractmethod
    def _settings(self) -> dict[str, Any]:
        """Return the options that make this guard again, as JSON values; None for what a file cannot hold."""

    @abstractmethod
    def _adopt(self, detector: Detector) -> Self:
        """Take this detector, if it fits the model."""

    @abstractmethod
    def _take_layer(self, name: Any) -> None:
        """Read the layer that was stored, where this guard has not yet found its own."""

    @classmethod
    def _restored(cls, model: Any, detector: Detector, settings: dict[str, Any]) -> Self:
        """Return the guard of these settings with this detector."""
        return cls(model, detector, **settings)

    def save(self, path: str | PathLike[str]) -> None:
        """Save the guard, without the model, to one safetensors file beside the model's own checkpoint.

        `OODModel.load(model, path)` puts it on the model again, on any device; `gem_ood.load` reads the detector alone.
        """
        tensors, header = self._packed()
        storage.write(path, tensors=tensors, header=header)

    @classmethod
    def load(cls, model: Any, path: str | PathLike[str], **options: Any) -> Self:
        """Return the model with the guard saved at this path.

        A layer or pool that is a function is not in the file and must be given again; `dtype` may be another. Other
        options would give scores that the fit and the threshold are not of, and are refused. A file of a detector alone
        has neither layer nor pool, so `OODModel.load` takes them.

        Raises:
            FileNotFoundError: There is no such file.
            FileFormatError: The file is damaged, truncated, foreign, or from a newer version.
            InputError: The model has other features than the detector was fitted to, or an option changes scores.
        """
        if not isinstance(path, str | PathLike):
            raise InputError(f"path is a {type(path).__name__}; pass load(model, path), the model first")
        tensors, header = storage.read(path)
        detector = unpack(tensors, header, name=str(path))
        kind, settings = _guard(header, cls.__name__, str(path))
        found = StoredGuard._kinds.get(kind)
        if found is None or not issubclass(found, cls):
            raise FileFormatError(
                f"{path} holds a guard of kind {kind!r}, not {cls.__name__}; load it with gem_ood.torch.{kind}.load"
            )
        if "guard" not in header and "detector" not in signature(cls).parameters:
            raise FileFormatError(
                f"{path} holds a detector alone, and a {cls.__name__} scores otherwise than a detector by itself; load "
                f"it with gem_ood.torch.OODModel.load, or make a new {cls.__name__} and calibrate it"
            )
        if "dtype" in settings:
            settings["dtype"] = _dtype(settings["dtype"], str(path))
        found._refuse_changes(settings, options, str(path))
        settings |= options
        absent = [name for name, value in settings.items() if value is None and name in ("layer", "pool")]
        if absent:
            raise InputError(
                f"the {absent[0]} of the guard in {path} was a function, which a file cannot hold; pass {absent[0]}= it"
            )
        try:
            return found._restored(model, detector, settings)
        except TypeError as error:
            if options:
                raise
            raise FileFormatError(
                f"{path} does not hold the settings of a whole {kind} ({error}); save the guard again"
            ) from error

    @classmethod
    def _refuse_changes(cls, settings: dict[str, Any], options: dict[str, Any], path: str) -> None:
        """Raise if an option would give other scores than the stored fit and threshold are of."""
        parameters = signature(cls).parameters
        for name, value in options.items():
            is_for_this_model = name in ("layer", "pool") and settings.get(name) is None
            if name not in parameters or name == "dtype" or is_for_this_model:
                continue  # a name that no guard takes is refused by its constructor
            # A file of a detector alone has no settings: its scores are those of a guard made without options.
            expected = settings.get(name) if settings else parameters[name].default
            if (settings and name not in settings) or _as_json(value) != expected:
                raise InputError(
                    f"{name}={value!r} would change the scores that the fit and the threshold in {path} are of; leave "
                    f"it out, or make a new {cls.__name__} with it and calibrate that"
                )

    def _packed(self) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        tensors, header = pack(self.detector)
        settings = {**self._settings(), "dtype": str(self.dtype).removeprefix("torch.")}
        return tensors, {**header, "guard": {"kind": type(self).__name__, "settings": settings}}

    def get_extra_state(self) -> Tensor:
        """Return the detector as bytes, so that a `state_dict` holds the guard beside the model's weights.

        There are none where it is neither fitted nor calibrated.
        """
        if "n_features_in_" not in self.detector.__dict__ and not self.detector.is_calibrated:
            return torch.empty(0, dtype=torch.uint8)
        tensors, header = self._packed()
        return torch.frombuffer(bytearray(storage.pack(tensors=tensors, header=header)), dtype=torch.uint8)

    def set_extra_state(self, state: Tensor) -> None:
        """Take the detector back from the bytes of `get_extra_state`; its arrays are read and nothing is run.

        The state of a guard that was not fitted makes this one unfitted too: it comes with other weights, of which a
        fit and a threshold from before would say nothing.
        """
        if state.numel() == 0:
            self._adopt(clone(self.detector))
            return
        tensors, header = storage.unpack(state.cpu().numpy().tobytes(), name=_STATE)
        kind, settings = _guard(header, "detector alone", _STATE)
        if kind != type(self).__name__:
            raise FileFormatError(f"{_STATE} is a {kind}, not a {type(self).__name__}; load it into a {kind}")
        self._take_layer(settings.get("layer"))
        self._require_same(settings)
        self._adopt(unpack(tensors, header, name=_STATE))

    def _require_same(self, settings: dict[str, Any]) -> None:
        """Raise if scores of the stored guard mean something else here."""
        for name, own in self._settings().items():
            stored = settings.get(name, own)
            if stored != own and not (name == "layer" and "auto" in (stored, own)):
                raise InputError(
                    f"{_STATE} was made with {name}={stored!r} and this one with {name}={own!r}; make it with the same"
                )


def _guard(header: dict[str, Any], default: str, name: str) -> tuple[str, dict[str, Any]]:
    """Return the kind and the settings of a guard; a file of a detector alone has none."""
    if "guard" not in header:
        return default, {}
    try:
        return str(header["guard"]["kind"]), dict(header["guard"]["settings"])
    except (TypeError, KeyError, ValueError) as error:
        raise FileFormatError(f"{name} has a damaged header ({error!r}); save the guard again") from error


def _dtype(name: Any, path: str) -> torch.dtype:
    found = {"float32": torch.float32, "float64": torch.float64}.get(str(name))
    if found is None:
        raise FileFormatError(f"{path} has the unknown dtype {name!r} in its header; save the guard again")
    return found


def _as_json(value: Any) -> Any:
    return list(value) if isinstance(value, tuple | np.ndarray) else value
