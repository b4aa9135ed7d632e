"""Storing: what of a guarded model goes into its own file and into a `state_dict`.

The file is the detector's, with one more entry in its header: which guard it was and with what settings. The model's
weights stay in the user's own checkpoint.
"""

from os import PathLike
from typing import Any, ClassVar, Self

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from gem_ood import storage
from gem_ood.detectors import Detector
from gem_ood.detectors.saving import pack, unpack
from gem_ood.errors import FileFormatError, InputError

__all__ = ["StoredGuard"]

_STATE = "the guard in this state_dict"


class StoredGuard(nn.Module):
    """A guard that can be saved without its model and put on it again; subclasses are found by name."""

    detector: Detector
    dtype: torch.dtype
    _kinds: ClassVar[dict[str, type["StoredGuard"]]] = {}

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        StoredGuard._kinds[cls.__name__] = cls

    def _settings(self) -> dict[str, Any]:
        """Return the options that make this guard again, as JSON values; None for what a file cannot hold."""
        raise NotImplementedError

    def _adopt(self, detector: Detector) -> Self:
        """Take this detector, if it fits the model."""
        raise NotImplementedError

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

        Options replace what was saved; a layer or pool that is a function is not in the file and must be given again.

        Raises:
            FileNotFoundError: There is no such file.
            FileFormatError: The file is damaged, truncated, foreign, or from a newer version.
            InputError: The model has other features than the detector was fitted to.
        """
        tensors, header = storage.read(path)
        detector = unpack(tensors, header, name=str(path))
        kind, settings = _guard(header, cls.__name__, str(path))
        found = StoredGuard._kinds.get(kind)
        if found is None or not issubclass(found, cls):
            raise FileFormatError(
                f"{path} holds a guard of kind {kind!r}, not {cls.__name__}; load it with gem_ood.torch.{kind}.load"
            )
        if "dtype" in settings:
            settings["dtype"] = getattr(torch, str(settings["dtype"]), None)
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

    def _packed(self) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        tensors, header = pack(self.detector)
        settings = {**self._settings(), "dtype": str(self.dtype).removeprefix("torch.")}
        return tensors, {**header, "guard": {"kind": type(self).__name__, "settings": settings}}

    def get_extra_state(self) -> Tensor:
        """Return the detector as bytes, so that a `state_dict` holds the guard beside the model's weights."""
        if "n_features_in_" not in self.detector.__dict__:
            return torch.empty(0, dtype=torch.uint8)
        tensors, header = self._packed()
        return torch.frombuffer(bytearray(storage.pack(tensors=tensors, header=header)), dtype=torch.uint8)

    def set_extra_state(self, state: Tensor) -> None:
        """Take the detector back from the bytes of `get_extra_state`; its arrays are read and nothing is run."""
        if state.numel() == 0:
            return
        tensors, header = storage.unpack(state.cpu().numpy().tobytes(), name=_STATE)
        kind, settings = _guard(header, "detector alone", _STATE)
        if kind != type(self).__name__:
            raise FileFormatError(f"{_STATE} is a {kind}, not a {type(self).__name__}; load it into a {kind}")
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
