"""Checkpoints: all that a training needs to go on as if it had never stopped, in one file, written whole or not."""

import glob
import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gem_ood import storage
from gem_ood.errors import FileFormatError, InputError
from gem_ood.experiments.training.recipe import EpochResult
from gem_ood.locking import locked_at_once

__all__ = [
    "Checkpoint",
    "alone",
    "checkpoint_path",
    "load_checkpoint",
    "lower_rate",
    "refuse_taken",
    "remove_leftovers",
    "save_checkpoint",
]

KIND = "training checkpoint"

_START_OVER = "or start over with restart=True (--restart)"


@dataclass(frozen=True)
class Checkpoint:
    """The state of a training between two steps.

    Attributes:
        step: How many steps are done.
        tensors: Weights, buffers and momenta of the network, and the losses and hits of the epoch's steps.
        history: What came of the epochs that are complete.
        seconds: How long the epoch under way has lasted.
        scaler: The state of the scaling of gradients in float16, where there is one.
    """

    step: int
    tensors: Mapping[str, NDArray[Any]]
    history: tuple[EpochResult, ...]
    seconds: float
    scaler: Mapping[str, Any] | None = None


def checkpoint_path(out: Path) -> Path:
    """Return where the checkpoint of a training is that will write its weights to `out`.

    >>> checkpoint_path(Path("weights.pt")).name
    'weights.pt.checkpoint'
    """
    return out.with_name(f"{out.name}.checkpoint")


def save_checkpoint(
    path: Path, checkpoint: Checkpoint, *, identity: Mapping[str, Any], machine: Mapping[str, Any]
) -> None:
    """Write a checkpoint, all or nothing; the one before stays until the new one is complete.

    Args:
        path: The file.
        checkpoint: What to write.
        identity: What must be the same for the training to go on: the recipe and the data.
        machine: What should be the same for the result to have the same bits.
    """
    for name, array in checkpoint.tensors.items():
        # One that could only go on to fail must not take the place of one that is sound.
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise InputError(
                f"training went astray by step {checkpoint.step:,}: {name.partition('.')[2] or name} is not finite any "
                f"more; {lower_rate(path)}"
            )
    header = {
        "kind": KIND,
        "step": checkpoint.step,
        "seconds": checkpoint.seconds,
        "history": [asdict(epoch) for epoch in checkpoint.history],
        "scaler": checkpoint.scaler,
        "identity": dict(identity),
        "machine": dict(machine),
    }
    header["digest"] = _digest(checkpoint.tensors, header)
    with storage.naming(path):
        storage.write(path, tensors=checkpoint.tensors, header=header)


def load_checkpoint(path: Path, *, identity: Mapping[str, Any], machine: Mapping[str, Any]) -> Checkpoint:
    """Return the checkpoint of a file; warn if it comes of another machine.

    Raises:
        FileFormatError: The file is damaged, truncated, or no checkpoint.
        InputError: It is the checkpoint of another recipe or of other data.
    """
    try:
        tensors, header = storage.read(path)
        if header.get("kind") != KIND:
            raise FileFormatError(f"it is a {header.get('kind')!r}")
        found = dict(header["identity"])
        history = tuple(EpochResult(**epoch) for epoch in header["history"])
        checkpoint = Checkpoint(int(header["step"]), tensors, history, float(header["seconds"]), header.get("scaler"))
        if header["digest"] != _digest(tensors, header):
            raise FileFormatError("its contents have another checksum than when they were written")
        written_by = dict(header["machine"])
    except (FileFormatError, KeyError, TypeError, ValueError) as error:
        raise FileFormatError(
            f"the checkpoint {path} is damaged, truncated or of another kind ({error!r}); put back a copy of it, "
            f"{_START_OVER}"
        ) from error
    _refuse_another(path, found, identity)
    _warn_of_another(path, written_by, machine)
    return checkpoint


def refuse_taken(out: Path, *, restart: bool) -> None:
    """Raise if there are weights in the file already, and no checkpoint of a training that will replace them."""
    if out.exists() and not restart and not checkpoint_path(out).exists():
        raise InputError(
            f"{out} is there already, and no checkpoint to go on from; name another file, or replace it with "
            f"restart=True (--restart)"
        )


def lower_rate(checkpoint: Path) -> str:
    """Return the advice for a training that went astray; `checkpoint` is where its checkpoint would be."""
    out = checkpoint.with_name(checkpoint.name.removesuffix(".checkpoint"))
    restart = " and restart=True (--restart)" if checkpoint.exists() or out.exists() else ""
    return f"start over with a lower learning_rate (--learning-rate){restart}"


@contextmanager
def alone(out: Path) -> Iterator[None]:
    """Keep other trainings off the weights in this file and off their checkpoint; raise if one is at them.

    The lock of one that was killed is lifted by the system, so that it never has to be removed by hand.
    """
    target = Path(os.path.realpath(out))  # weights are written where a link leads
    lock = target.with_name(f".{target.name}.lock")
    with ExitStack() as stack:
        with storage.naming(lock):
            is_ours = stack.enter_context(locked_at_once(lock))
        if not is_ours:
            raise InputError(f"another training writes {out}; wait for it or name another file")
        yield


def remove_leftovers(path: Path) -> None:
    """Remove what a kill in the middle of writing this file has left beside it."""
    pattern = f".{glob.escape(path.stem)}.{'[0-9a-f]' * 8}{glob.escape(path.suffix)}"
    for leftover in path.parent.glob(pattern):
        leftover.unlink(missing_ok=True)


def _digest(tensors: Mapping[str, NDArray[Any]], header: Mapping[str, Any]) -> str:
    told = ("kind", "step", "seconds", "history", "scaler", "identity", "machine")
    return storage.digest(tensors, {name: header[name] for name in told})


def _refuse_another(path: Path, found: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    changes = [
        f"{name} was {_shown(found.get(name))} and is {_shown(wanted.get(name))}"
        for name in dict.fromkeys((*wanted, *found))
        if found.get(name) != wanted.get(name)
    ]
    if changes:
        raise InputError(
            f"{path} is the checkpoint of another training: {'; '.join(changes)}; pass what it was begun with, name "
            f"another file for the weights, {_START_OVER}"
        )


def _shown(value: Any) -> str:
    return "not given" if value is None else str(value)


def _warn_of_another(path: Path, found: Mapping[str, Any], here: Mapping[str, Any]) -> None:
    changes = [
        f"{name} was {found.get(name)} and is {value}" for name, value in here.items() if found.get(name) != value
    ]
    if changes:
        warnings.warn(
            f"{path} was written on another machine or with another set-up ({'; '.join(changes)}); training goes on "
            f"from it, but the weights may differ in their last digits from those of an unbroken run",
            stacklevel=5,
        )
