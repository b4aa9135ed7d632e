"""Exporting: a calibrated guard and its model as one ONNX graph, run beside PyTorch before it is written.

The graph maps the model's inputs to logits, score, p-value, verdict and nearest class, for batches of any size. Its
metadata says what the verdict promises.
"""

import copy
import io
import json
import logging
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr
from dataclasses import asdict
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from gem_ood._version import __version__
from gem_ood.detectors.saving import pack
from gem_ood.errors import FileFormatError, InputError, NotCalibratedError
from gem_ood.extras import require_extra
from gem_ood.storage import atomic_path
from gem_ood.torch.export_checking import check_graph
from gem_ood.torch.export_inputs import OUTPUTS, DynamicShapes, GraphInputs, can_hold_nan, cause_of
from gem_ood.torch.guarded import OODModel
from gem_ood.torch.judging import OODResult
from gem_ood.torch.modes import evaluating, unwrapped
from gem_ood.torch.streaming import Reading

__all__ = ["TOLERANCE", "DynamicShapes", "export_onnx", "read_metadata"]

#: How far a logit or a score of the graph may be from PyTorch's, as a share of its size and at least of one. Two
#: libraries that sum a network's float32 products in other orders differ by some 1e-6, which whitening enlarges.
TOLERANCE = 1e-4

#: Protocol buffers, and so an ONNX file with its weights inside, end here.
LARGEST_FILE = 2**31 - 1

PREFIX = "gem_ood."

#: Where the exporter and what it calls write to.
_LOGGERS = ("torch", "torch.onnx", "torch.export", "torch.__trace", "onnxscript", "onnx_ir")


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
    inputs = GraphInputs.of(guard, example, input_names, dynamic_shapes)
    with atomic_path(path) as temporary, evaluating(guard), torch.no_grad():
        graph = _Graph(guard, inputs)
        with _quietly():
            document = _described(_exported(graph, inputs, opset), guard, inputs)
            check_graph(document, graph.judged, graph.judge, inputs, tolerance=tolerance)
        temporary.write_bytes(document)


def read_metadata(path: str | PathLike[str]) -> dict[str, Any]:
    """Return what an exported file says of its guard: threshold, guarantee, detector, classes and versions.

    Raises:
        FileNotFoundError: There is no such file.
        FileFormatError: The file is damaged or was not written by `export_onnx`.
    """
    require_extra("onnx", "onnx", purpose="ONNX files")
    import onnx

    if not Path(path).is_file():
        raise FileNotFoundError(f"{path} is no file; pass the path of an exported model")
    try:
        entries = onnx.load(path, load_external_data=False).metadata_props
        found = {entry.key.removeprefix(PREFIX): entry.value for entry in entries if entry.key.startswith(PREFIX)}
        described: dict[str, Any] = {name: json.loads(value) for name, value in found.items()}
    except Exception as error:  # whatever the parser raises at bytes that are no model
        raise FileFormatError(f"{path} is not a readable ONNX file ({error}); export the guard again") from error
    if not described:
        raise FileFormatError(f"{path} holds no guard; pass a file that export_onnx wrote")
    return described


# What can be exported


def _refuse_what_cannot_be_exported(guard: OODModel, tolerance: float) -> None:
    if not isinstance(guard, OODModel):
        raise InputError(f"guard is a {type(guard).__name__}; pass an OODModel")
    guard._require_detector()
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
    if not isinstance(tolerance, int | float) or not 0.0 < tolerance < 1.0:
        raise InputError(f"tolerance is {tolerance!r}; pass a number between 0 and 1, such as {TOLERANCE}")
    n_bytes = sum(tensor.nbytes for tensor in (*guard.parameters(), *guard.buffers()))
    if n_bytes > LARGEST_FILE:
        raise InputError(
            f"the model has {n_bytes / 2**30:.1f} GiB of weights but an ONNX file ends at 2 GiB; export it in half "
            f"precision, or export its last layers alone and guard those"
        )


# The graph


class _Graph(nn.Module):
    """The guard as a function of tensors alone; it holds the very model and judge that the guard holds."""

    def __init__(self, guard: OODModel, inputs: GraphInputs) -> None:
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
                f"the model cannot run on the example: {cause_of(error)}; pass example= inputs as its forward takes "
                f"them"
            ) from error
        self.model, self.judge = shared.model, shared._current_judge(rows)
        self.training = False
        if not self.judge.scorer.is_differentiable:
            raise InputError(
                f"a {type(guard.detector).__name__} has no form that ONNX knows; export one of GEM, Mahalanobis, "
                f"RelativeMahalanobis, MSP, MaxLogit and Energy"
            )
        self._marked = tuple(place for place in range(len(inputs.tensors)) if self._suffers_nan(place))

    @property
    def guard(self) -> OODModel:
        """The guard, on the model without what wraps it."""
        return self._held[0]

    def _suffers_nan(self, place: int) -> bool:
        """Whether NaN in this input comes out in the features: a model that fills in missing values takes it."""
        tensors = self._inputs.traced()
        if not can_hold_nan(tensors[place]):
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


def _exported(graph: _Graph, inputs: GraphInputs, opset: int | None) -> Any:
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
            f"PyTorch's exporter cannot make an ONNX graph of this model: {cause_of(error)}; {remedy}"
        ) from error
    used = next(entry.version for entry in model.opset_import if not entry.domain)
    if opset is not None and used != opset:
        raise InputError(f"opset is {opset} but the exporter could only write {used}; pass opset={used} or none")
    return model


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


def _described(model: Any, guard: OODModel, inputs: GraphInputs) -> bytes:
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
