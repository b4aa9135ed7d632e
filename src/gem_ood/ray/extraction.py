"""Extraction: the features of a PyTorch model, computed by a pool of workers while a dataset streams through it.

Each worker holds the model once. Features go from there to whatever reads the dataset, such as a fit, and are kept
only where it is materialized or written.
"""

import copy
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from os import PathLike
from typing import TYPE_CHECKING, Any, Literal, NoReturn, get_args

import numpy as np
import pyarrow as pa
import ray
import torch
from numpy.typing import NDArray
from ray import cloudpickle
from torch import Tensor, nn

from gem_ood.errors import InputError
from gem_ood.features import is_count, refuse_non_finite
from gem_ood.ray.columns import PATH
from gem_ood.ray.failures import first_line
from gem_ood.ray.model_inputs import as_pictures, as_tensors, inputs_of, of_one_shape, place_of
from gem_ood.ray.opening import open_dataset
from gem_ood.ray.pools import worker_pool
from gem_ood.torch.batches import as_arguments, logits_of, moved
from gem_ood.torch.layers import FeatureReader, Layer
from gem_ood.torch.modes import evaluating, unwrapped, without_compilation
from gem_ood.torch.pooling import Pool
from gem_ood.torch.scorers import as_array
from gem_ood.torch.streaming import device_of

if TYPE_CHECKING:
    from ray.data import Dataset

__all__ = ["extract"]

Outputs = Literal["features", "logits", "both"]

Prepare = Callable[[NDArray[Any]], Any]


def extract(
    dataset: "Dataset | str | PathLike[str]",
    model: nn.Module | Callable[[], nn.Module],
    *,
    inputs: str = "image",
    outputs: Outputs = "features",
    layer: Layer = "auto",
    pool: Pool = "mean",
    prepare: Prepare | None = None,
    keep: Iterable[str] | None = None,
    batch_size: int = 64,
    workers: int | tuple[int, int] | None = None,
    num_cpus: float = 1.0,
    num_gpus: float = 0.0,
    device: str | None = None,
) -> "Dataset":
    """Return the dataset with the features of a model in place of its inputs, lazily: nothing runs before it is read.

    A pool of workers, each with the model in evaluation mode, does batch after batch, and rows stay beside their
    features. `gem_ood.ray.fit(extract(images, model), GEM())` goes from images to statistics and holds the features of
    a few blocks at a time; `.materialize()` or `.write_parquet(...)` of the result keeps them, which saves the model's
    passes where they are read again: by a fit that needs two passes, or by a calibration of many.

    A worker that dies is started again and does its rows again. One processor of each machine is left to the tasks
    that read the inputs and take the features: where the pool would fill the cluster, Ray is told that its workers
    take a little less than they do.

    Args:
        dataset: Any `ray.data.Dataset`, such as `ray.data.read_images(...)` returns, or the path of Parquet files.
        model: A classifier, which is sent to each machine once; or a function without arguments that returns one and
            is called in each worker, so that weights are read there.
        inputs: The column of what the model takes.
        outputs: "features", "logits" for scores of logits without a head, or "both"; so are the new columns called,
            and they hold float32.
        layer: As `gem_ood.torch.OODModel` has it: "auto" for the linear layer that gives the logits, the name of a
            layer, or a function from the model's output to features.
        pool: As `gem_ood.torch.OODModel` has it.
        prepare: From the inputs of a batch, an array n × ..., to what the model takes: an array, a tensor, or several
            in a tuple or mapping. Inputs of different shapes come as an array of arrays. Unless given, pictures of
            bytes, n × height × width or n × height × width × channels, become float32 in [0, 1], n × channels ×
            height × width, and everything else is passed as it is.
        keep: The columns that stay; all but the inputs unless given.
        batch_size: How many rows go through the model at once.
        workers: So many, or (least, most), between which Ray chooses; unless given, one for each `num_cpus`
            processors of the cluster, or for each `num_gpus` graphics cards, of which Ray lets idle ones go.
        num_cpus: The processors, and threads of PyTorch, of each worker.
        num_gpus: The graphics cards of each worker, or its share of one.
        device: Where the model runs: "cuda" with graphics cards and "cpu" without, unless given.

    Raises:
        InputError: An option, or the layer of a model, is not what it must be. What is found out later, such as a
            picture of another size, is an error of this kind when `fit`, `calibrate` or `write` read the dataset; from
            Ray's own verbs, such as `take_all`, it is Ray's error, with ours at the end of its text.
    """
    opened = open_dataset(dataset)
    _check_model(model, layer, device)
    _check_options(inputs, outputs, batch_size)
    kept = None if keep is None else _names(keep)
    strategy, reserved = worker_pool(workers, num_cpus, num_gpus)
    known = opened.schema(fetch_if_missing=False)  # where it takes no work to know it
    if known is not None:
        _check_columns(known.names, inputs, outputs, kept)
        if kept is not None:
            needed = {inputs, *kept, PATH}
            opened = opened.select_columns([name for name in known.names if name in needed])
    held, layer = _held(model, layer, pool, outputs)
    plan = _Plan(
        make=None if isinstance(model, nn.Module) else model,
        layer=layer,
        pool=pool,
        inputs=inputs,
        outputs=outputs,
        prepare=prepare,
        keep=kept,
        device=device or ("cuda" if num_gpus > 0 else "cpu"),
        n_threads=max(1, int(num_cpus)),
    )
    return opened.map_batches(
        ExtractFeatures,
        fn_constructor_kwargs={"plan": plan.packed(), "held": held},
        compute=strategy,
        batch_format="pyarrow",
        batch_size=int(batch_size),
        udf_modifying_row_count=False,  # so that the first rows of the result need only the first rows of the inputs
        # Ray warns of both kinds together, and gives a worker with a graphics card one processor by itself.
        num_cpus=None if num_gpus > 0 and reserved == 1.0 else reserved,
        num_gpus=num_gpus or None,
    )


# What is sent to the workers


@dataclass(frozen=True)
class _Plan:
    """What each worker is told; `make` is the function that returns the model, where that is how it comes."""

    make: Callable[[], nn.Module] | None
    layer: Layer
    pool: Pool
    inputs: str
    outputs: Outputs
    prepare: Prepare | None
    keep: tuple[str, ...] | None
    device: str
    n_threads: int

    def packed(self) -> bytes:
        """Return the plan as bytes: a worker that cannot open them is still one that can say so."""
        try:
            return bytes(cloudpickle.dumps(self))  # type: ignore[no-untyped-call]
        except Exception as error:
            raise InputError(
                f"model, layer, pool or prepare is a function that cannot be sent to workers ({_named(error)}); let it "
                f"use nothing but modules, numbers and arrays"
            ) from error


def _held(model: Any, layer: Layer, pool: Pool, outputs: Outputs) -> tuple[list[Any], Layer]:
    """Return a reference to the model in Ray's memory, if it is one, and its layer by name, which must be there."""
    if not isinstance(model, nn.Module):
        return [], layer
    inner = without_compilation(model)
    if outputs != "logits":
        reader = FeatureReader(inner, layer, pool)
        layer = reader.name or reader.layer
    inner = unwrapped(inner)  # what spreads a model over graphics cards of this machine is of no use on another
    if device_of(inner) not in (None, torch.device("cpu")):
        inner = copy.deepcopy(inner).cpu()  # not every machine has this one's graphics cards
    try:
        return [ray.put(inner)], layer
    except Exception as error:
        raise InputError(
            f"the {type(inner).__name__} cannot be sent to workers ({_named(error)}); pass a function without "
            f"arguments that makes it there"
        ) from error


class ExtractFeatures:
    """A worker of the pool: it holds the model and turns a batch of inputs into one of features.

    Args:
        plan: A packed plan.
        held: A reference to the model, or nothing where the plan makes it.
    """

    def __init__(self, plan: bytes, held: Sequence[Any] = ()) -> None:
        self._shape: tuple[int, ...] | None = None
        self._failure: Exception | None = None
        try:
            self._open(cloudpickle.loads(plan), held)
        except Exception as error:  # raised with the first batch: Ray would start a worker that fails here anew
            self._failure = error

    def _open(self, plan: _Plan, held: Sequence[Any]) -> None:
        torch.set_num_threads(plan.n_threads)
        made = ray.get(held[0]) if plan.make is None else plan.make()
        if not isinstance(made, nn.Module):
            raise InputError(f"model returned a {type(made).__name__}; let it return a torch.nn.Module")
        self._plan, self._model = plan, without_compilation(made).to(plan.device)
        self._reader = None
        if plan.outputs != "logits":
            self._reader = FeatureReader(self._model, plan.layer, plan.pool)

    def __call__(self, batch: pa.Table) -> pa.Table:
        """Return the batch with features or logits instead of its inputs."""
        if isinstance(self._failure, InputError):
            raise self._failure
        if self._failure is not None:
            raise InputError(
                f"a worker could not get the model ready ({_named(self._failure)}); every machine of the cluster needs "
                f"the modules, files and device that it asks for: see runtime_env of ray.init"
            ) from self._failure
        plan = self._plan
        kept = _check_columns(batch.column_names, plan.inputs, plan.outputs, plan.keep)
        result = batch.select(kept)
        if batch.num_rows == 0:
            return result
        paths = batch.column(PATH) if PATH in batch.column_names else None
        for name, rows in self._read(inputs_of(batch, plan.inputs, paths), paths).items():
            result = result.append_column(name, pa.FixedShapeTensorArray.from_numpy_ndarray(rows))
        return result

    def _read(self, inputs: NDArray[Any], paths: Any) -> dict[str, NDArray[np.float32]]:
        given = self._prepared(inputs, paths)
        try:
            args, kwargs = as_arguments(given, self._model)
            device = torch.device(self._plan.device)
            with evaluating(self._model), torch.inference_mode():
                found = self._run(moved(args, device), moved(kwargs, device))
                arrays = {name: as_array(rows).astype(np.float32, order="C") for name, rows in found.items()}
        except (InputError, MemoryError) as error:
            _refuse(error, paths)
        except Exception as error:
            remedy = "make batch_size smaller" if "out of memory" in str(error) else "see what it takes"
            raise InputError(
                f"{place_of(paths)}the model failed on a batch of {_shape(given)} ({_named(error)}); {remedy}, or pass "
                f"prepare= a function that makes of a batch what the model takes"
            ) from error
        for name, rows in arrays.items():
            _check_rows(rows, name, len(inputs), paths)
        return arrays

    def _run(self, args: tuple[Any, ...], kwargs: Any) -> dict[str, Tensor]:
        if self._reader is None:
            return {"logits": logits_of(self._model(*args, **kwargs))}
        output, features = self._reader.run(self._model, args, kwargs, logits_of)
        return {"features": features} | ({"logits": logits_of(output)} if self._plan.outputs == "both" else {})

    def _prepared(self, inputs: NDArray[Any], paths: Any) -> Any:
        if self._plan.prepare is None:
            equal = of_one_shape(inputs, self._plan.inputs, paths, like=self._shape)
            self._shape = equal.shape[1:]
            return as_tensors(as_pictures(equal))
        try:
            return as_tensors(self._plan.prepare(np.require(inputs, requirements="W")))  # a copy, if it is Ray's
        except Exception as error:
            raise InputError(
                f"{place_of(paths)}prepare failed on a batch of {len(inputs)} rows ({_named(error)}); it takes an "
                f"array n × ..., or, of inputs of different shapes, an array of n arrays"
            ) from error


# What is refused


def _check_options(inputs: Any, outputs: Any, batch_size: Any) -> None:
    if not isinstance(inputs, str):
        raise InputError(f"inputs is {inputs!r}; pass the name of a column")
    if outputs not in get_args(Outputs):
        raise InputError(f"outputs is {outputs!r}; pass {', '.join(map(repr, get_args(Outputs)))}")
    if not is_count(batch_size):
        raise InputError(f"batch_size must be a whole number, at least 1, but is {batch_size!r}; pass 64, say")


def _check_model(model: Any, layer: Any, device: Any) -> None:
    if not isinstance(model, nn.Module) and not callable(model):
        raise InputError(
            f"model is a {type(model).__name__}; pass a torch.nn.Module, or a function without arguments that returns "
            f"one"
        )
    if not isinstance(model, nn.Module) and isinstance(layer, nn.Module):
        raise InputError("layer is a module, but the model is made in the workers; pass the name of its layer")
    try:
        torch.device("cpu" if device is None else device)
    except (RuntimeError, TypeError) as error:
        raise InputError(f"device is {device!r}, which PyTorch does not know; pass 'cpu' or 'cuda'") from error


def _names(keep: Iterable[str]) -> tuple[str, ...]:
    names = (keep,) if isinstance(keep, str) else tuple(keep)
    wrong = [name for name in names if not isinstance(name, str)]
    if wrong or len(set(names)) < len(names):
        raise InputError(f"keep is {names!r}; pass names of columns, each once")
    return names


def _check_columns(present: Sequence[str], inputs: str, outputs: Outputs, keep: tuple[str, ...] | None) -> list[str]:
    """Return the columns that stay; raise if one that is needed is not there, or is called as a new one will be."""
    kept = [name for name in present if name != inputs] if keep is None else list(keep)
    shown = ", ".join(map(repr, present)) or "none"
    for name, option in [(inputs, "inputs"), *((name, "keep") for name in kept)]:
        if name not in present:
            raise InputError(f"the dataset has no column {name!r}; it has {shown}: name another with {option}=")
    new = ("features", "logits") if outputs == "both" else (outputs,)
    taken = [name for name in kept if name in new]
    if taken:
        raise InputError(
            f"the dataset has a column {taken[0]!r}, as the model's {taken[0]} will be called; leave it out of "
            f"keep=, or rename it before: dataset.rename_columns({{{taken[0]!r}: 'old_{taken[0]}'}})"
        )
    return kept


def _check_rows(rows: NDArray[np.float32], name: str, n_inputs: int, paths: Any) -> None:
    if len(rows) != n_inputs:
        raise InputError(
            f"{place_of(paths)}the model gave {len(rows)} rows of {name} for {n_inputs} inputs, where one of each was "
            f"expected; pass pool= a function that makes one row per input, or layer= another layer"
        )
    wrong = np.flatnonzero(~np.isfinite(rows).all(axis=1))
    if len(wrong):
        row = int(wrong[0])
        what = f"{place_of(paths, row)}the model's {name}, in a batch of {n_inputs} counted from 0,"
        refuse_non_finite(rows[row : row + 1], first_row=row, name=what, remedy="mend the input or the model")


def _refuse(error: Exception, paths: Any) -> NoReturn:
    place = place_of(paths)
    if isinstance(error, InputError) and place:
        raise type(error)(f"{place}{error}") from error
    raise error


def _shape(given: Any) -> str:
    parts = given if isinstance(given, tuple) else given.values() if isinstance(given, dict) else [given]
    return " and ".join(
        f"shape {tuple(part.shape)} and type {part.dtype}" if isinstance(part, Tensor) else type(part).__name__
        for part in parts
    )


def _named(error: BaseException) -> str:
    return f"{type(error).__name__}: {first_line(str(error))}"
