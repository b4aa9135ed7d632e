"""OODModel: a classifier with its guard, fitted and calibrated over loaders, judging in one forward pass."""

from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import closing
from itertools import chain, islice
from os import PathLike
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from gem_ood.detectors import Detector, GaussianDetector, LogitDetector, Verdicts
from gem_ood.errors import InputError
from gem_ood.gaussians import Statistics
from gem_ood.torch import distributed as processes
from gem_ood.torch.batches import Batch, Unpack, first_rows, logits_of, mapped
from gem_ood.torch.judging import Judge, OODResult, model_rounding
from gem_ood.torch.layers import FeatureReader, Layer, Pool, evaluating, without_compilation
from gem_ood.torch.noise import check_noise, with_noise
from gem_ood.torch.scorers import as_array
from gem_ood.torch.storing import StoredGuard
from gem_ood.torch.streaming import Reading, RowBatches, device_of, read_loader, refuse_non_finite_rows

__all__ = ["OODModel"]

Arguments = tuple[tuple[Any, ...], Mapping[str, Any]]


class OODModel(StoredGuard):
    """A classifier with a guard: it answers with the model's logits and what the detector says of each input.

    The model is used as it is and never changed. A detector of features reads the input of the last linear layer
    (P19) or of the layer asked for; a score of logits without a head reads the model's own logits.

    Args:
        model: Any classifier whose forward returns logits, or an output that has them.
        detector: An array detector such as `GEM()`, fitted or not.
        layer: "auto" for the linear layer that runs last, the name of a layer (a linear layer gives its input, any
            other its output), or a function from the model's output to features.
        pool: How features that are no rows become rows: "mean" averages spatial maps over their positions;
            "first-token", "last-token" or "mean-token" of a sequence; or a function.
        input_noise: Size of the step that moves each input towards a higher score before it is scored; needs one
            backward and one more forward pass.
        channel_std: What each channel of the input was divided by, so that the noise is in units of the raw input.
        dtype: The precision of scores.

    >>> _ = torch.manual_seed(0)
    >>> model = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> loader = [(torch.randn(64, 2), torch.arange(64) % 2) for _ in range(4)]
    >>> from gem_ood import GEM
    >>> guarded = OODModel(model, GEM(covariance=0.1)).fit(loader).calibrate(loader)
    >>> guarded(torch.tensor([[0.0, 0.0], [60.0, -80.0]])).is_ood
    tensor([False,  True])
    """

    _judge: Judge | None

    def __init__(
        self,
        model: nn.Module,
        detector: Detector,
        layer: Layer = "auto",
        *,
        pool: Pool = "mean",
        input_noise: float = 0.0,
        channel_std: Sequence[float] | None = None,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        super().__init__()
        if not isinstance(model, nn.Module):
            raise InputError(f"model is a {type(model).__name__}; pass a torch.nn.Module")
        if not isinstance(detector, Detector):
            raise InputError(f"detector is a {type(detector).__name__}; pass a detector such as GEM()")
        if dtype not in (torch.float32, torch.float64):
            raise InputError(f"dtype is {dtype}; pass torch.float64 or torch.float32")
        check_noise(input_noise, channel_std)
        self.model = without_compilation(model)
        self.input_noise, self.dtype = float(input_noise), dtype
        self.channel_std = None if channel_std is None else tuple(map(float, channel_std))
        self._reader = FeatureReader(self.model, layer, pool) if self._needs_features(detector) else None
        if self._reader is None and layer != "auto":
            FeatureReader(self.model, layer, pool)  # not read, but a wrong name is refused all the same
        self._example: Arguments | None = None
        self.register_module("_judge", None)
        self.detector = detector
        self._adopt(detector)

    def _needs_features(self, detector: Detector) -> bool:
        return not detector.reads_logits

    @property
    def layer(self) -> str | None:
        """The name of the layer whose features are read; None before "auto" has seen a batch, or for a function."""
        return None if self._reader is None else self._reader.name

    def extra_repr(self) -> str:
        """Return what the guard adds, for printing."""
        return f"detector={self.detector}, layer={self.layer!r}"

    # What a guard of another kind changes

    def _read(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Reading:
        """Return logits and the rows that the detector is fitted to, from one forward pass."""
        if self._reader is None:
            logits = logits_of(self.model(*args, **kwargs))
            return Reading(logits, logits)
        output, features = self._reader.run(self.model, args, kwargs)
        return Reading(logits_of(output), features)

    def _read_to_score(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Reading:
        """Return logits and the rows that are scored: with input noise, those of the moved inputs."""
        if self.input_noise == 0.0:
            return self._read(args, kwargs)
        logits: list[Tensor] = []

        def rising(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Tensor:
            reading = self._read(args, kwargs)
            logits.append(reading.logits.detach())
            return self._current_judge(reading.rows).scorer.ascent(reading.rows)

        moved = with_noise(args, dict(kwargs), rising, noise=self.input_noise, channel_std=self.channel_std)
        return self._read(*moved)._replace(logits=logits[0])

    def _settings(self) -> dict[str, Any]:
        """Return the options that make this guard again, as JSON values."""
        reader = self._reader
        pool = "mean" if reader is None else reader.pool
        return {
            "layer": self.layer or "auto" if reader is None or not callable(reader.layer) else None,
            "pool": None if callable(pool) else pool,
            "input_noise": self.input_noise,
            "channel_std": None if self.channel_std is None else list(self.channel_std),
        }

    # Fitting and calibration

    def fit(
        self,
        loader: Iterable[Any],
        *,
        one_class: bool = False,
        classes: ArrayLike | None = None,
        unpack: Unpack | None = None,
        progress: bool = True,
        distributed: bool = False,
    ) -> Self:
        """Fit the detector to the features of a loader's inputs, in one pass that holds about a thousand of them.

        A score of logits has nothing to learn but their number: it reads the first batch only.

        Args:
            loader: Yields tensors, tuples (inputs, labels, ...) or mappings with "labels".
            one_class: Leave labels aside and fit one Gaussian to all rows.
            classes: All labels, where known; otherwise they are found on the way, and logits are numbered.
            unpack: From what the loader yields to (inputs, labels), where it yields something else.
            progress: Show a bar on a terminal once the pass has lasted two seconds.
            distributed: Join the statistics of all processes of the default group, each with its own part of the
                data, so that every process holds the same fit.
        """
        is_of_logits = isinstance(self.detector, LogitDetector)
        if is_of_logits:
            loader, progress, distributed = list(islice(loader, 1)), False, False
        batches = RowBatches(
            loader,
            lambda: self._readings(loader, "fit", unpack, progress, to_score=False),
            with_labels=not one_class and not is_of_logits,
            need_labels=not one_class and isinstance(self.detector, GaussianDetector),
        )
        with closing(batches):
            if distributed:
                self._fit_distributed(batches, classes)
            else:
                self.detector.fit_batches(batches, classes=classes)
        return self._adopt(self.detector)

    def _fit_distributed(self, batches: RowBatches, classes: ArrayLike | None) -> None:
        detector = self.detector
        if not isinstance(detector, GaussianDetector):
            raise InputError(f"a {type(detector).__name__} has no statistics to join; fit it without distributed=True")

        def collect() -> Statistics | None:
            opened = iter(batches)
            first = next(opened, None)  # a process may have no data at all
            return None if first is None else detector.collect(chain([first], opened), classes=classes)

        detector.fit_statistics(processes.all_reduce(processes.together(collect)))

    def calibrate(
        self,
        loader: Iterable[Any] | None = None,
        *,
        tpr: float | None = None,
        confidence: float | None = None,
        method: str | None = None,
        unpack: Unpack | None = None,
        progress: bool = True,
        distributed: bool = False,
    ) -> Self:
        """Set the threshold from held-out inputs, in one pass; without a loader, move it using the last scores.

        Args:
            loader: In-distribution inputs that neither the model's training nor the fit has seen; labels are not used.
            tpr: The share of in-distribution inputs to keep; the detector's own `tpr` unless given.
            confidence: Ask for the PAC guarantee: with this confidence, at least `tpr` of new inputs are kept.
            method: `"conformal"` (the default), `"pac"` (the default with confidence) or `"quantile"`.
            unpack: As in `fit`.
            progress: As in `fit`.
            distributed: Use the scores of all processes of the default group.

        Raises:
            CalibrationSizeError: Too few inputs for the guarantee; the message says how many are needed.
        """
        if loader is None:
            self.detector.calibrate(tpr=tpr, confidence=confidence, method=method)
            return self._adopt(self.detector)

        def collect() -> NDArray[np.float64]:
            readings = self._readings(loader, "calibrate", unpack, progress, to_score=True)
            return self._collect_scores(readings, may_be_empty=distributed)

        scores = processes.gather_scores(processes.together(collect)) if distributed else collect()
        rounding = model_rounding(scores, with_noise=self.input_noise > 0.0)
        self.detector.calibrate_scores(scores, tpr=tpr, confidence=confidence, method=method, rounding=rounding)
        return self._adopt(self.detector)

    # Whole loaders

    def score_samples(
        self, loader: Iterable[Any], *, unpack: Unpack | None = None, progress: bool = True
    ) -> NDArray[np.float64]:
        """Return the score of every input of a loader; higher = more in-distribution."""
        return self._collect_scores(self._readings(loader, "score", unpack, progress, to_score=True))

    def verdicts(self, loader: Iterable[Any], *, unpack: Unpack | None = None, progress: bool = True) -> Verdicts:
        """Return score, nearest class and, once calibrated, p-value and verdict of every input of a loader."""
        results = []
        for _, reading in self._readings(loader, "score", unpack, progress, to_score=True):
            with torch.inference_mode():
                results.append(self._judged(reading)[1:])
        _require_rows(results)
        columns: dict[str, Any] = {}
        for name, parts in zip(OODResult._fields[1:], zip(*results, strict=True), strict=True):
            columns[name] = None if parts[0] is None else np.concatenate([part.cpu().numpy() for part in parts])
        names = getattr(self.detector, "classes_", np.empty(0))
        if names.dtype.kind not in "iuf":  # tensors hold no strings, but arrays do
            columns["nearest_class"] = names[columns["nearest_class"]]
        return Verdicts(**columns)

    def features(
        self, loader: Iterable[Any], *, unpack: Unpack | None = None, progress: bool = True
    ) -> tuple[NDArray[Any], NDArray[Any] | None]:
        """Return the rows that the detector takes, one per input of a loader, and the labels if it has any.

        They serve the array detectors, or a feature file, in place of the model.
        """
        rows, labels = [], []
        for batch, reading in self._readings(loader, "features", unpack, progress, to_score=False):
            rows.append(as_array(reading.rows))
            labels.append(batch.labels)
        _require_rows(rows)
        known = [part for part in labels if part is not None]
        return np.concatenate(rows), np.concatenate(known) if len(known) == len(rows) else None

    def _readings(
        self, loader: Iterable[Any], purpose: str, unpack: Unpack | None, progress: bool, *, to_score: bool
    ) -> Generator[tuple[Batch, Reading]]:
        if to_score:
            self._require_detector()
        read = self._read_to_score if to_score else self._read
        found = read_loader(self.model, loader, read, purpose=purpose, unpack=unpack, progress=progress)
        for batch, reading in found:
            self._remember(batch.args, batch.kwargs)
            yield batch, reading

    def _collect_scores(
        self, readings: Iterable[tuple[Batch, Reading]], *, may_be_empty: bool = False
    ) -> NDArray[np.float64]:
        scores = [np.empty(0)]
        for _, reading in readings:
            with torch.inference_mode():
                scores.append(as_array(self._current_judge(reading.rows).scorer(reading.rows)).astype(np.float64))
            if "n_features_in_" not in self.detector.__dict__:
                # A score of logits learns nothing but their number.
                self.detector.partial_fit(np.zeros((1, reading.rows.shape[1])))
        if not may_be_empty:
            _require_rows(scores[1:])
        return np.concatenate(scores)

    # Judging

    def forward(self, *args: Any, **kwargs: Any) -> OODResult:
        """Return logits, score, p-value, verdict and nearest class of each input, from one pass of the model."""
        is_eager = not torch.compiler.is_compiling() and not torch.compiler.is_exporting()
        if is_eager:
            self._require_detector()
        with evaluating(self.model):
            reading = self._read_to_score(args, kwargs)
        if is_eager:
            refuse_non_finite_rows(reading.rows, "the model's features")
            self._remember(args, kwargs)
        return self._judged(reading)

    def _judged(self, reading: Reading) -> OODResult:
        score, p_value, is_ood, nearest = self._current_judge(reading.rows)(reading.rows)
        return OODResult(
            reading.logits, score, p_value, is_ood, nearest if reading.nearest is None else reading.nearest
        )

    def _current_judge(self, rows: Tensor) -> Judge:
        judge = self._judge
        if judge is not None and torch.compiler.is_compiling():
            return judge
        self._check_width(self.detector, rows.shape[1])
        if judge is not None and judge.is_of(self.detector, rows.device):
            return judge
        made: Judge = self._new_judge(rows.shape[1], rows.device)
        return made

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _new_judge(self, n_columns: int, device: torch.device | None) -> Judge:
        with torch.inference_mode(False):  # what is made in inference mode cannot take part in gradients later
            judge = Judge(self.detector, n_columns=n_columns, dtype=self.dtype).to(device)
        self._judge = judge
        return judge

    def _require_detector(self) -> None:
        self._check_kind(self.detector)
        self.detector._require_fit()
        if self.input_noise and self._judge is not None and not self._judge.scorer.is_differentiable:
            raise InputError(
                f"input noise needs gradients, which do not pass through a {type(self.detector).__name__}; use "
                f"input_noise=0"
            )

    def _adopt(self, detector: Detector) -> Self:
        """Take this detector, after checking it against the width of the layer where that is known."""
        self._check_kind(detector)
        if self._reader is not None and self._reader.width is not None:
            self._check_width(detector, self._reader.width)
        self.detector = detector
        if "n_features_in_" in detector.__dict__:
            # Compiled code takes the judge that is there: it must be the one of this fit and this threshold.
            self._new_judge(detector.n_features_in_, device_of(self.model))
        return self

    def _check_kind(self, detector: Detector) -> None:
        if self._needs_features(detector) != (self._reader is not None):
            came, own = ("logits", "features") if detector.reads_logits else ("features", "logits")
            raise InputError(
                f"a {type(detector).__name__} of {came} cannot replace one of {own}; make the guard with a "
                f"{type(detector).__name__}"
            )

    def _check_width(self, detector: Detector, width: int) -> None:
        head = getattr(detector, "head", None)
        expected = getattr(detector, "n_features_in_", width if head is None else head.n_features)
        if expected != width:
            kind = "logits" if detector.reads_logits else f"features in layer {self.layer!r}"
            raise InputError(
                f"the model has {width} {kind} but this {type(detector).__name__} was fitted to {expected}; guard the "
                f"model it was fitted on, name its layer, or fit again"
            )

    def _remember(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Keep two inputs for `export_onnx`, which must run the model once."""
        if self._example is None:
            example: Arguments = mapped(first_rows((args, dict(kwargs)), 2), lambda part: part.detach().cpu().clone())
            self._example = example

    # Shipping

    def export_onnx(
        self,
        path: str | PathLike[str],
        example: Any = None,
        *,
        opset: int | None = None,
        dynamic_shapes: Mapping[str, Mapping[int, str]] | None = None,
        input_names: Sequence[str] | None = None,
        tolerance: float | None = None,
    ) -> None:
        """Write one ONNX graph from the model's inputs to logits, score, p-value, verdict and nearest class.

        See `gem_ood.torch.exporting.export_onnx`, which this calls, for the options and for what is checked.
        """
        from gem_ood.torch.exporting import export_onnx

        export_onnx(
            self,
            path,
            example,
            opset=opset,
            dynamic_shapes=dynamic_shapes,
            input_names=input_names,
            tolerance=tolerance,
        )

    # Hooks

    def attach(self) -> Self:
        """Leave the hooks in the model until `detach`, which lets `torch.compile(..., fullgraph=True)` see them.

        Everything else works without: hooks are then there only while a pass runs.
        """
        if self._reader is not None:
            self._reader.attach()
        return self

    def detach(self) -> nn.Module:
        """Take the hooks, if any were left, out of the model, and return the model as it was."""
        if self._reader is not None:
            self._reader.detach()
        return self.model

    def __enter__(self) -> Self:
        return self.attach()

    def __exit__(self, *error: object) -> None:
        self.detach()


def _require_rows(parts: Sequence[Any]) -> None:
    if not parts:
        raise InputError("the loader yielded no batch; pass one with at least one row")
