"""Exporting: a calibrated guard and its model as one ONNX graph, run beside PyTorch before it is written.

The graph maps the model's inputs to logits, score, p-value, verdict and nearest class, for batches of any size. Its
metadata says what the verdict promises.
"""

import copy
import inspect
import io
import json
import logging
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr
from dataclasses import asdict, dataclass
from os import PathLike
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from gem_ood._version import __version__
from gem_ood.detectors.saving import pack
from gem_ood.errors import FileFormatError, InputError, NotCalibratedError
from gem_ood.extras import require_extra
from gem_ood.storage import atomic_path
from gem_ood.torch.batches import as_batch, first_rows, mapped, moved, tensors_of
from gem_ood.torch.guarded import OODModel
from gem_ood.torch.judging import Judge, OODResult
from gem_ood.torch.layers import evaluating, unwrapped
from gem_ood.torch.streaming import Reading, device_of

__all__ = ["TOLERANCE", "DynamicShapes", "export_onnx", "read_metadata"]

#: How far a logit or a score of the graph may be from PyTorch's, as a share of its size and at least of one. Two
#: libraries that sum a network's float32 products in other orders differ by some 1e-6, which whitening enlarges.
TOLERANCE = 1e-4

#: Batches of these sizes are compared; none is the size of the batch that the graph was made from.
CHECKED_SIZES = (1, 5, 7)

#: How far inputs are moved for the comparison, in standard deviations of the example: not at all, as far as another
#: input of its kind, and far out of the distribution.
CHECKED_MOVES = (0.0, 1.0, 30.0)

#: Protocol buffers, and so an ONNX file with its weights inside, end here.
LARGEST_FILE = 2**31 - 1

PREFIX = "gem_ood."
OUTPUTS = OODResult._fields

#: Where the exporter and what it calls write to.
_LOGGERS = ("torch", "torch.onnx", "torch.export", "torch.__trace", "onnxscript", "onnx_ir")

DynamicShapes = Mapping[str, Mapping[int, str]]


def export_onnx(
    guard: OODModel,
    path: str | PathLike[str],
    example: Any = None,
    *,
    opset: int | None = None,
    dynamic_shapes: DynamicShapes | None = None,
    input_names: Sequence[str] | None = None,
    tolerance: float | None = None,
) -> None:
    """Write one ONNX graph from the model's inputs to logits, score, p_value, is_ood and nearest_class.

    Before anything is written, onnxruntime runs the graph on batches of several sizes, near the example and far from
    it: logits and scores must be PyTorch's within the tolerance, p-values and verdicts exactly those of the graph's
    own scores. Where they are not, an error says what differed and a file that was there stays as it was. The model
    is left as it was.

    nearest_class is the label itself, or, for labels that are strings, its place among the metadata's classes. An
    input with NaN in it is out of the distribution, whatever a runtime's own layers make of NaN, unless the model
    itself takes NaN for a number.

    Args:
        guard: A calibrated guard whose score needs no gradients.
        path: The file to write, such as "model.onnx".
        example: An input batch of any size: a tensor, a tuple of tensors, or a mapping with the names of the forward's
            arguments. Two inputs that the guard has seen, unless given.
        opset: The ONNX operator set; the exporter's own choice unless given.
        dynamic_shapes: Axes beside the batch whose size may change, by input: for sequences of any length,
            `{"input_ids": {1: "sequence"}, "attention_mask": {1: "sequence"}}`.
        input_names: What the inputs are called in the graph; the names of the forward's arguments unless given.
        tolerance: How far a logit or a score may be from PyTorch's, as a share of its size and at least of one;
            `TOLERANCE`, 1e-4, unless given.

    Raises:
        NotCalibratedError: The guard has no threshold yet.
        InputError: The guard cannot be exported, or the graph does not answer as PyTorch does.
        MissingExtraError: onnx, onnxscript or onnxruntime is not installed.

    >>> _ = torch.manual_seed(0)
    >>> loader = [(torch.randn(64, 2), torch.arange(64) % 2)]
    >>> from gem_ood import GEM
    >>> guard = OODModel(nn.Sequential(nn.Linear(2, 2)), GEM()).fit(loader).calibrate(loader)
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     export_onnx(guard, f"{folder}/model.onnx")
    ...     read_metadata(f"{folder}/model.onnx")["guarantee"]
    'Averaged over draws of the 64 calibration rows, at least 95% of new in-distribution rows are kept, ...'
    """
    tolerance = TOLERANCE if tolerance is None else tolerance
    _refuse_what_cannot_be_exported(guard, tolerance)
    require_extra("onnx", "onnx", "onnxscript", "onnxruntime", purpose="ONNX files")
    inputs = _Inputs.of(guard, example, input_names, dynamic_shapes)
    with atomic_path(path) as temporary, evaluating(guard), torch.no_grad():
        graph = _Graph(guard, inputs)
        with _quietly():
            document = _described(_exported(graph, inputs, opset), guard, inputs)
            _check(document, graph, inputs, tolerance)
        temporary.write_bytes(document)


def read_metadata(path: str | PathLike[str]) -> dict[str, Any]:
    """Return what an exported file says of its guard: threshold, guarantee, detector, classes and versions.

    Raises:
        FileNotFoundError: There is no such file.
        FileFormatError: The file is damaged or was not written by `export_onnx`.
    """
    require_extra("onnx", "onnx", purpose="ONNX files")
    import onnx
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

    try:
        entries = onnx.load(path, load_external_data=False).metadata_props
    except DecodeError as error:
        raise FileFormatError(f"{path} is not a readable ONNX file ({error}); export the guard again") from error
    found = {entry.key.removeprefix(PREFIX): entry.value for entry in entries if entry.key.startswith(PREFIX)}
    if not found:
        raise FileFormatError(f"{path} holds no guard; pass a file that export_onnx wrote")
    return {name: json.loads(value) for name, value in found.items()}


# What can be exported


def _refuse_what_cannot_be_exported(guard: OODModel, tolerance: float) -> None:
    if not isinstance(guard, OODModel):
        raise InputError(f"guard is a {type(guard).__name__}; pass an OODModel")
    guard.detector._require_fit()
    if not guard.detector.is_calibrated:
        raise NotCalibratedError(
            f"this {type(guard).__name__} has no threshold yet, so its graph could give no verdict; call "
            f"calibrate(held_out_loader, tpr=0.95) before export_onnx"
        )
    if guard.input_noise:
        raise InputError(
            f"input_noise is {guard.input_noise}, which needs gradients, and an ONNX graph has none; guard the model "
            f"without noise, fit and calibrate it, and export that"
        )
    if type(guard)._read_to_score is not OODModel._read_to_score:
        raise InputError(
            f"a {type(guard).__name__} needs more of the model than one forward pass, and an ONNX graph has no more; "
            f"export an OODModel with a detector of features or logits, such as GEM()"
        )
    if not 0.0 < tolerance < 1.0:
        raise InputError(f"tolerance is {tolerance!r}; pass a number between 0 and 1, such as {TOLERANCE}")
    n_bytes = sum(tensor.nbytes for tensor in (*guard.parameters(), *guard.buffers()))
    if n_bytes > LARGEST_FILE:
        raise InputError(
            f"the model has {n_bytes / 2**30:.1f} GiB of weights but an ONNX file ends at 2 GiB; export it in half "
            f"precision, or export its last layers alone and guard those"
        )


# Inputs


class _Axis(NamedTuple):
    """One axis whose size may change: which input, which axis of it, and the name of its size."""

    place: int
    axis: int
    name: str


@dataclass(frozen=True)
class _Inputs:
    """The tensors among the model's arguments in the order of the graph's inputs, and how the arguments hold them."""

    template: tuple[tuple[Any, ...], dict[str, Any]]
    names: tuple[str, ...]
    tensors: tuple[Tensor, ...]
    axes: tuple[_Axis, ...]

    @classmethod
    def of(
        cls, guard: OODModel, example: Any, names: Sequence[str] | None, dynamic_shapes: DynamicShapes | None
    ) -> "_Inputs":
        template = moved(first_rows(_arguments(guard, example), max(CHECKED_SIZES)), device_of(guard.model))
        tensors = tuple(tensor.detach().clone() for tensor in tensors_of(template))  # none from inference mode
        sizes = {len(tensor) for tensor in tensors if tensor.ndim}
        if len(sizes) != 1 or 0 in sizes:
            raise InputError(
                f"example holds {_shapes(tensors)}; pass tensors with the same number of rows, at least one"
            )
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


def _axes(names: tuple[str, ...], tensors: tuple[Tensor, ...], shapes: DynamicShapes) -> Iterator[_Axis]:
    unknown = set(shapes) - set(names)
    if unknown:
        raise InputError(f"dynamic_shapes names {min(unknown)!r}, which is no input; the inputs are {', '.join(names)}")
    for place, (name, tensor) in enumerate(zip(names, tensors, strict=True)):
        if tensor.ndim:
            yield _Axis(place, 0, "batch")
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
                yield _Axis(place, axis, size)


# The graph


class _Graph(nn.Module):
    """The guard as a function of tensors alone; it holds the very model and judge that the guard holds."""

    def __init__(self, guard: OODModel, inputs: _Inputs) -> None:
        super().__init__()
        shared = copy.copy(guard)
        # What spreads rows over devices is no part of the answer.
        shared._modules = {**guard._modules, "model": unwrapped(guard.model)}
        self._held, self._inputs = (shared,), inputs  # a tuple, so that the guard's own state is not exported twice
        try:
            rows = self.read(inputs.traced()).rows
        except InputError:
            raise
        except Exception as error:  # whatever a model raises
            raise InputError(
                f"the model cannot run on the example: {_cause(error)}; pass example= inputs as its forward takes them"
            ) from error
        self.model, self.judge = shared.model, shared._current_judge(rows)
        self.training = False
        if not self.judge.scorer.is_differentiable:
            raise InputError(
                f"a {type(guard.detector).__name__} has no form that ONNX knows; export one of GEM, Mahalanobis, MSP, "
                f"MaxLogit and Energy"
            )
        self._marked = tuple(place for place in range(len(inputs.tensors)) if self._suffers_nan(place))

    @property
    def guard(self) -> OODModel:
        """The guard, on the model without what wraps it."""
        return self._held[0]

    def _suffers_nan(self, place: int) -> bool:
        """Whether NaN in this input comes out in the features: a model that fills in missing values takes it."""
        tensors = self._inputs.traced()
        if not _can_hold_nan(tensors[place]):
            return False
        tensors[place] = torch.full_like(tensors[place], torch.nan)
        try:
            return not bool(self.read(tensors).rows.isfinite().all())
        except Exception:  # a model may also refuse it, and a graph cannot
            return True

    def read(self, tensors: Sequence[Tensor]) -> Reading:
        """Return what the guard reads of these inputs."""
        return self.guard._read_to_score(*self._inputs.arguments(tensors))

    def judged(self, tensors: Sequence[Tensor]) -> OODResult:
        """Return the guard's own answer."""
        return self.guard._judged(self.read(tensors))

    def forward(self, *tensors: Tensor) -> tuple[Tensor | None, ...]:
        reading = self.read(tensors)
        rows = reading.rows
        for tensor in (tensors[place] for place in self._marked):
            # The largest of some numbers and NaN is NaN in PyTorch, but a number in some runtimes.
            is_nan = tensor.isnan().flatten(1).any(1) if tensor.ndim > 1 else tensor.isnan()
            rows = torch.where(is_nan.unsqueeze(1), torch.nan, rows)
        return tuple(self.guard._judged(reading._replace(rows=rows)))


def _can_hold_nan(tensor: Tensor) -> bool:
    return tensor.is_floating_point() and tensor.ndim > 0


def _exported(graph: _Graph, inputs: _Inputs, opset: int | None) -> Any:
    """Return the graph as an ONNX model."""
    shapes: list[dict[int, Any]] = [{} for _ in inputs.tensors]
    for place, axis, _ in inputs.axes:
        shapes[place][axis] = torch.export.Dim.DYNAMIC
    try:
        program = torch.export.export(graph, tuple(inputs.traced()), dynamic_shapes=(tuple(shapes),), strict=False)
        exported = torch.onnx.export(
            program,
            (),
            dynamo=True,
            verbose=False,
            opset_version=opset,
            input_names=list(inputs.names),
            output_names=list(OUTPUTS),
        )
        assert exported is not None
        model = exported.model_proto
    except InputError:
        raise
    except Exception as error:  # the exporter raises whatever its many parts raise
        kind = type(graph.guard)
        remedy = "change that part of the model's forward, or pass an example= or opset= that it can take"
        if kind is not OODModel:
            remedy = f"an OODModel, with a detector such as GEM(), may be exported where this {kind.__name__} is not"
        raise InputError(
            f"PyTorch's exporter cannot make an ONNX graph of this model: {_cause(error)}; {remedy}"
        ) from error
    used = next(entry.version for entry in model.opset_import if not entry.domain)
    if opset is not None and used != opset:
        raise InputError(f"opset is {opset} but the exporter could only write {used}; pass opset={used} or none")
    return model


def _cause(error: BaseException) -> str:
    """Return, in one line, what went wrong first."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = [line.strip(" -.:;") for line in str(error).splitlines() if line.strip(" -.:;")]
    if len(lines) > 1 and lines[0].startswith("Constraints violated"):
        return lines[1].split(". ")[0]  # which axis was held fixed, without the exporter's own advice
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


@contextmanager
def _quietly() -> Iterator[None]:
    """Keep what the exporter warns of, logs and prints to itself: what counts of it comes as an error."""
    loggers = [logging.getLogger(name) for name in _LOGGERS]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.CRITICAL + 1)
        with warnings.catch_warnings(), redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


# Metadata


def _described(model: Any, guard: OODModel, inputs: _Inputs) -> bytes:
    """Return the file's bytes: axes by name, no traces of the machine that made it, and what the guard promises."""
    import onnx

    graph = model.graph
    values = (*graph.input, *graph.output, *graph.value_info)
    sizes = {graph.input[place].type.tensor_type.shape.dim[axis].dim_param: name for place, axis, name in inputs.axes}
    for size in (size for value in values for size in value.type.tensor_type.shape.dim):
        if size.dim_param:
            size.dim_param = re.sub(r"\w+", lambda found: sizes.get(found[0], found[0]), size.dim_param)
    for part in (graph, *graph.node, *graph.initializer, *values):
        part.ClearField("metadata_props")
        part.ClearField("doc_string")
    detector, threshold = guard.detector, guard.detector.threshold_
    header = pack(detector)[1]
    classes = getattr(detector, "classes_", detector._class_names(detector.n_features_in_))
    n_logits = graph.output[0].type.tensor_type.shape.dim[1].dim_value
    if detector.reads_logits and len(classes) != n_logits:  # a score that comes ready made is one column
        classes = np.arange(n_logits)
    entries = {
        **{("threshold" if name == "value" else name): value for name, value in asdict(threshold).items()},
        "guarantee": threshold.guarantee,
        "guard": type(guard).__name__,
        "settings": guard._settings(),
        "detector": header["detector"],
        "options": header["options"],
        "layer": guard.layer,
        "classes": classes.tolist(),
        "versions": {"gem-ood": __version__, "torch": torch.__version__, "onnx": onnx.__version__},
    }
    described = {PREFIX + name: json.dumps(value, ensure_ascii=False) for name, value in entries.items()}
    onnx.helper.set_model_props(model, described)
    document: bytes = model.SerializeToString()
    return document


# The comparison with PyTorch


def _check(document: bytes, graph: _Graph, inputs: _Inputs, tolerance: float) -> None:
    """Raise unless onnxruntime answers as PyTorch does."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # what fails is raised here, and need not be printed too
    try:
        session = onnxruntime.InferenceSession(document, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime has a class of its own for every kind of failure
        raise InputError(
            f"onnxruntime cannot load the graph: {_cause(error)}; export the model in float32, or pass another opset="
        ) from error
    for tensors, is_example in _batches(inputs):
        try:
            answer = graph.judged(tensors)
        except Exception as error:
            if not is_example:
                continue  # inputs that were made up need not be such as the model takes
            raise InputError(
                f"the model cannot run on inputs of shape {_shapes(tensors)}: {_cause(error)}; let its forward take "
                f"batches of any size"
            ) from error
        what: str | None
        try:
            feed = {name: tensor.cpu().numpy() for name, tensor in zip(inputs.names, tensors, strict=True)}
            found = [torch.from_numpy(np.asarray(part)) for part in session.run(list(OUTPUTS), feed)]
        except Exception as error:
            what = f"it cannot run on inputs of shape {_shapes(tensors)} ({_cause(error)})"
        else:
            what = next(_differences(mapped(tuple(answer), Tensor.cpu), found, graph.judge, tolerance), None)
        if what:
            raise InputError(
                f"the graph does not answer as PyTorch does, and nothing was written: {what}; look in the model's "
                f"forward for what depends on the size of the batch, on Python values or on chance, or pass another "
                f"tolerance="
            )


def _batches(inputs: _Inputs) -> Iterator[tuple[list[Tensor], bool]]:
    """Yield batches to compare, each with whether it is the example's own rows; both verdicts should occur."""
    generator = torch.Generator().manual_seed(0)
    for n_rows in CHECKED_SIZES:
        for move in CHECKED_MOVES:
            yield [_moved_about(tensor, move, generator) for tensor in inputs.rows(n_rows)], move == 0.0
    n_rows = CHECKED_SIZES[-1]
    longer = inputs.rows(n_rows)
    for place, axis, _ in inputs.axes:
        if axis:  # more of the end: to cut a sequence might leave nothing but its padding
            end = longer[place].narrow(axis, longer[place].shape[axis] - 1, 1)
            longer[place] = torch.cat([longer[place], end], dim=axis)
    yield longer, False
    for place, tensor in enumerate(inputs.rows(n_rows)):
        if _can_hold_nan(tensor):
            entries = tensor.reshape(n_rows, -1).clone()
            spots = torch.randint(entries.shape[1], (n_rows - 1,), generator=generator)  # one row stays whole
            entries[torch.arange(n_rows - 1), spots] = torch.nan
            broken = inputs.rows(n_rows)
            broken[place] = entries.view(tensor.shape)
            yield broken, False


def _moved_about(tensor: Tensor, move: float, generator: torch.Generator) -> Tensor:
    """Return rows moved by so many standard deviations; of what is no number on a scale, other rows."""
    if not move or not tensor.ndim:
        return tensor
    if not tensor.is_floating_point():
        return tensor[torch.randint(len(tensor), (len(tensor),), generator=generator).to(tensor.device)]
    finite = tensor[tensor.isfinite()].double()
    spread = float(finite.std()) if len(finite) > 1 else 0.0
    noise = torch.randn(tensor.shape, generator=generator).to(tensor)
    return tensor + move * (spread or 1.0) * noise


def _differences(answer: Sequence[Tensor], found: Sequence[Tensor], judge: Judge, tolerance: float) -> Iterator[str]:
    """Yield what of the graph's answer is not as PyTorch has it."""
    for name, expected, came in zip(OUTPUTS, answer, found, strict=True):
        if expected.shape != came.shape:
            yield f"{name} has shape {tuple(came.shape)} and not {tuple(expected.shape)}"
    logits, scores, p_values, is_ood, nearest = found
    is_scored = answer[1].isfinite()
    if not torch.equal(scores[~is_scored], answer[1][~is_scored]):
        yield f"inputs that have no score got {scores[~is_scored].tolist()}"
    for name, came, expected in (("logits", logits, answer[0]), ("scores", scores[:, None], answer[1][:, None])):
        gaps = (came - expected)[is_scored].double().abs()
        shares = gaps / expected[is_scored].double().abs().amax(1, keepdim=True).clamp(min=1.0)
        if not bool((shares <= tolerance).all()):
            yield f"{name} differ by {float(shares.max()):.1g} of their size, beyond tolerance={tolerance:g}"
    # Exact, so that p-values and verdicts are PyTorch's unless a score is within the tolerance of a calibration score.
    own, ordered, threshold = scores.to(judge.labels.device), judge.calibration, judge.threshold
    assert ordered is not None
    assert threshold is not None
    gaps = (p_values - judge._p_values(own).cpu()).abs()
    if not bool((gaps < 0.5 / (len(ordered) + 1)).all()):
        yield f"p-values differ by {float(gaps.max()):.1g} from those of the graph's own scores"
    if not torch.equal(is_ood, (own < threshold).cpu()):
        yield "verdicts are not those of the graph's own scores"
    if not torch.equal(nearest[is_scored], answer[4][is_scored]):
        yield "nearest classes differ"


def _shapes(tensors: Sequence[Tensor]) -> str:
    return ", ".join(str(tuple(tensor.shape)) for tensor in tensors) or "no tensor at all"
