"""OODModel: a classifier with its guard, fitted and calibrated over loaders, judging in one forward pass."""

from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import closing
from itertools import islice
from os import PathLike
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from gem_ood.detectors import Detector, LogitDetector
from gem_ood.errors import InputError, NotFittedError
from gem_ood.torch.batches import Arguments, Batch, Unpack, logits_of, opened
from gem_ood.torch.distributed import together, without_synchronization
from gem_ood.torch.judging import OODResult
from gem_ood.torch.layers import FeatureReader, Layer
from gem_ood.torch.modes import evaluating, without_compilation
from gem_ood.torch.noise import check_noise, with_noise
from gem_ood.torch.pooling import Pool
from gem_ood.torch.ranks import calibrate_on_ranks, fit_on_ranks, gathered
from gem_ood.torch.rounding import noise_rounding
from gem_ood.torch.storing import StoredGuard
from gem_ood.torch.streaming import Reading, RowBatches, device_of, refuse_non_finite_rows, require_loader
from gem_ood.torch.whole_loaders import LoaderGuard, Scored

__all__ = ["OODModel"]


class OODModel(LoaderGuard, StoredGuard):
    """A classifier with a guard: it answers with the model's logits and what the detector says of each input.

    The model is used as it is and never changed. A detector of features reads the input of the linear layer that
    gives the logits (P19) or of the layer asked for; a score of logits without a head reads the model's own logits.

    Args:
        model: Any classifier whose forward returns logits, or an output that has them.
        detector: An array detector such as `GEM()`, fitted or not. It is used, not copied: give each guard its own.
        layer: "auto" for the linear layer that gives the logits, the name of a layer (a linear layer gives its input,
            any other its output), or a function from the model's output to features.
        pool: How features that are no rows become rows: "mean" averages spatial maps over their positions;
            "first-token", "last-token" or "mean-token" of a sequence; or a function.
        input_noise: Size of the step that moves each input towards a higher score before it is scored; needs one
            backward and one more forward pass.
        channel_std: What each channel of the input was divided by, so that the noise is in units of the raw input.
        dtype: The precision of scores.

    >>> _ = torch.manual_seed(0)
    >>> model = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> train, held_out = [(torch.randn(200, 2), torch.arange(200) % 2)], [torch.randn(100, 2)]
    >>> from gem_ood import GEM
    >>> guarded = OODModel(model, GEM(covariance=0.1)).fit(train).calibrate(held_out)
    >>> guarded(torch.tensor([[0.0, 0.0], [60.0, -80.0]])).is_ood
    tensor([False,  True])
    """

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
        model = without_synchronization(self.model)
        if self._reader is None:
            logits = logits_of(model(*args, **kwargs))
            return Reading(logits, logits)
        output, features = self._reader.run(model, args, kwargs, logits_of)
        logits = logits_of(output)
        if _is_eager() and len(features) != len(logits):
            raise InputError(
                f"the model gave {len(logits)} rows of logits but {len(features)} rows of features in layer "
                f"{self.layer!r}, where one of each per input was expected; pass pool= a function that makes one row "
                f"per input, or layer= another layer"
            )
        return Reading(logits, features)

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

        def readings() -> Generator[tuple[Batch, Reading]]:
            require_loader(loader)
            read = islice(loader, 1) if is_of_logits else loader
            return self._readings(read, "fit", unpack, progress and not is_of_logits, to_score=False)

        batches = RowBatches(
            loader,
            readings,
            with_labels=not one_class and not is_of_logits,
            need_labels=not one_class and self.detector.uses_labels,
        )
        with closing(batches):
            if distributed:
                fit_on_ranks(self.detector, batches, classes)
            else:
                self.detector.fit_batches(batches, classes=classes)
        return self._adopt(self.detector)

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

        def collect() -> Scored:
            readings = self._readings(loader, "calibrate", unpack, progress, to_score=True)
            return self._calibration_scores(readings, may_be_empty=distributed)

        scores, rounding, n_columns = gathered(together(collect), self.detector) if distributed else collect()
        if self.input_noise:
            rounding = rounding + noise_rounding(scores)

        def set_threshold() -> Detector:
            return self.detector.calibrate_scores(
                scores, tpr=tpr, confidence=confidence, method=method, rounding=rounding
            )

        with self.detector._all_or_nothing():
            self._learn_width(n_columns)
            if distributed:
                calibrate_on_ranks(set_threshold)
            else:
                set_threshold()
        return self._adopt(self.detector)

    def _learn_width(self, n_columns: int | None) -> None:
        """Tell a score of logits that was never fitted how many there are, which is all that it can learn."""
        detector = self.detector
        if n_columns is not None and isinstance(detector, LogitDetector) and "n_features_in_" not in detector.__dict__:
            detector.partial_fit(np.zeros((1, n_columns)))

    # Judging

    def forward(self, *args: Any, **kwargs: Any) -> OODResult:
        """Return logits, score, p-value, verdict and nearest class of each input, from one pass of the model.

        Arguments are those of the model; a batch that is a mapping may also be passed whole.
        """
        if len(args) == 1 and not kwargs and isinstance(args[0], Mapping):
            args, kwargs = opened(args[0], self.model)
        if _is_eager():
            self._require_detector()
        with evaluating(self.model):
            reading = self._read_to_score(args, kwargs)
        if _is_eager():
            kind = "logits" if self._reader is None else "features"
            refuse_non_finite_rows(reading.rows, f"the model's {kind}")
            self._remember(args, kwargs)
        return self._judged(reading)

    def _require_detector(self) -> None:
        self._check_kind(self.detector)
        try:
            self.detector._require_fit()
        except NotFittedError as error:
            raise NotFittedError(
                f"this {type(self).__name__} is not fitted yet; call fit(train_loader) first"
            ) from error
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
        self._judge = None
        if "n_features_in_" in detector.__dict__:
            # Compiled code takes the judge that is there: it must be the one of this fit and this threshold.
            self._new_judge(detector.n_features_in_, device_of(self.model))
        return self

    def _take_layer(self, name: Any) -> None:
        if self._reader is not None and isinstance(name, str) and name != "auto":
            self._reader.take(name)

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
            kind = "logits" if detector.reads_logits else f"features in layer {self.layer or 'auto'!r}"
            raise InputError(
                f"the model has {width} {kind} but this {type(detector).__name__} was fitted to {expected}; guard the "
                f"model it was fitted on, name its layer, or fit again"
            )

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


def _is_eager() -> bool:
    """Return whether this pass runs as written, so that numbers and shapes are there to be looked at."""
    return not torch.compiler.is_dynamo_compiling() and not torch.compiler.is_exporting()
