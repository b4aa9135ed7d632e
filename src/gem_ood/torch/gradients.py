"""ODIN and GradNorm: guards whose score needs gradients of the model itself.

Both have the verbs of `OODModel` and nothing to fit; `ReadyGuard` is what guards of that kind share.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Self

import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from gem_ood.detectors import MSP, Detector, MaxLogit
from gem_ood.errors import InputError
from gem_ood.scores import check_temperature
from gem_ood.torch.batches import Unpack, logits_of, mapped
from gem_ood.torch.distributed import without_synchronization
from gem_ood.torch.guarded import OODModel
from gem_ood.torch.modes import unwrapped
from gem_ood.torch.noise import recording_gradients, without_inference
from gem_ood.torch.rounding import DIRECTIONS_MARGIN, feature_rounding
from gem_ood.torch.row_gradients import Tap, is_plain_linear, row_norms, skeleton, weights_of
from gem_ood.torch.scorers import precise
from gem_ood.torch.streaming import Reading

__all__ = ["ODIN", "GradNorm", "ReadyGuard"]


class ReadyGuard(OODModel):
    """A guard that can be calibrated as soon as it is made, because there is nothing to learn; not used by itself."""

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
        """Run the model on the loader's first batch and forget the threshold; nothing is learned, so more is not read.

        It is here so that all guards can be used alike; `calibrate` works without.

        Args:
            loader: As in `OODModel.fit`; labels are not used.
            one_class: Changes nothing.
            classes: The names of the logits, in their order, where the score is one of logits.
            unpack: As in `OODModel.fit`.
            progress: Changes nothing.
            distributed: As in `OODModel.fit`, so that a process without inputs hears what the others saw.
        """
        if classes is not None and isinstance(self.detector, MaxLogit):
            raise InputError(
                f"the nearest class of this {type(self).__name__} is the place of its largest logit, which takes no "
                f"names; leave classes out"
            )
        return super().fit(loader, classes=classes, unpack=unpack, distributed=distributed)

    def _adopt(self, detector: Detector) -> Self:
        if type(detector) is not type(self.detector):
            raise InputError(
                f"this {type(self).__name__} scores with {type(self.detector).__name__} but was handed a "
                f"{type(detector).__name__}; make it with the options it was saved with"
            )
        return super()._adopt(detector)


class ODIN(ReadyGuard):
    """ODIN (Liang, Li and Srikant, 2018): the largest probability at a high temperature of an input moved by a step.

    The score is max softmax(logits(x′)/T) with x′ = x + noise · sign(∇ₓ log max softmax(logits(x)/T)). Logits of the
    result are those of the input as it came. Nothing is fitted.

    Args:
        model: Any classifier whose forward returns logits, or an output that has them.
        temperature: T.
        noise: The size of the step; 0 leaves it out, and with it the backward and the second forward pass.
        channel_std: What each channel of the input was divided by, so that the step is in units of the raw input, as
            in the authors' code.
        dtype: The precision of scores.

    >>> _ = torch.manual_seed(0)
    >>> guarded = ODIN(nn.Linear(2, 3), noise=0.1).calibrate([torch.randn(50, 2)])
    >>> guarded.score_samples([torch.zeros(1, 2)])
    array([0.33349421])
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        temperature: float = 1000.0,
        noise: float = 0.0014,
        channel_std: Sequence[float] | None = None,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        check_temperature(temperature)
        detector = MSP(temperature=float(temperature))
        super().__init__(model, detector, input_noise=noise, channel_std=channel_std, dtype=dtype)

    @property
    def temperature(self) -> float:
        """What logits are divided by."""
        assert isinstance(self.detector, MSP)
        return self.detector.temperature

    def _settings(self) -> dict[str, Any]:
        return {"noise": self.input_noise, "channel_std": self.channel_std and list(self.channel_std)}

    @classmethod
    def _restored(cls, model: Any, detector: Detector, settings: dict[str, Any]) -> Self:
        return cls(model, temperature=getattr(detector, "temperature", 1.0), **settings)._adopt(detector)


class GradNorm(ReadyGuard):
    """GradNorm (Huang, Geng and Li, 2021): how strongly each input pulls on the weights of a layer.

    The score is the L1 norm of the gradient of KL(uniform ‖ softmax(logits/T)) with respect to the weights of the
    layer, input by input; biases, by which all parameters with "bias" in their own name are meant, do not count. For
    the linear layer that gives the logits it is ‖features‖₁ · ‖softmax(logits/T) − 1/k‖₁ / T, from a forward pass
    alone. The authors' code sums over classes where their paper averages: k times this score, in the same order.

    A weight that other layers share counts through this layer only. Of a parametrized weight, such as that of
    `weight_norm`, the parameters it is made from count (`original0` and `original1`) and not the weight itself; the
    closed form is that of a plain weight, and is not used there. Nothing is fitted.

    Args:
        model: Any classifier whose forward returns logits, or an output that has them.
        layer: "auto" for the linear layer that gives the logits, or the name of any layer or block that has weights.
        temperature: T.
        method: "closed-form"; "autograd", for any layer: one backward pass for the whole batch down to the layer, then
            each row's gradient through that layer alone; or "auto" for the first where it holds, else the second.
        dtype: The precision of scores.

    >>> model = nn.Linear(2, 2, bias=False)
    >>> _ = model.weight.data.copy_(torch.eye(2) * 50.0)
    >>> model = nn.Sequential(model)
    >>> GradNorm(model)(torch.tensor([[3.0, -1.0], [1.0, 1.0]])).score
    tensor([4., 0.], dtype=torch.float64)
    """

    def __init__(
        self,
        model: nn.Module,
        layer: str = "auto",
        *,
        temperature: float = 1.0,
        method: str = "auto",
        dtype: torch.dtype = torch.float64,
    ) -> None:
        if not isinstance(layer, str):
            raise InputError(f"layer is a {type(layer).__name__}; pass 'auto' or the name of a layer with weights")
        if method not in ("auto", "closed-form", "autograd"):
            raise InputError(f"method is {method!r}; pass 'auto', 'closed-form' or 'autograd'")
        check_temperature(temperature)
        # The rows are one column of ready scores, and the largest of one number is that number.
        super().__init__(model, MaxLogit(), layer, pool=_flattened, dtype=dtype)
        self.temperature, self.method = float(temperature), method
        self._rows_are_first = False
        #: Whether the layer's output is the logits, which the structure of the model says once and for all.
        self._is_closed_form: bool | None = False if method == "autograd" else None
        if self.layer is not None:
            weights_of(self._module(), self.layer)

    def _needs_features(self, detector: Detector) -> bool:
        return True

    def _settings(self) -> dict[str, Any]:
        return {"layer": self.layer or "auto", "temperature": self.temperature, "method": self.method}

    @classmethod
    def _restored(cls, model: Any, detector: Detector, settings: dict[str, Any]) -> Self:
        return cls(model, **settings)._adopt(detector)

    def _module(self) -> nn.Module:
        module: nn.Module = unwrapped(self.model).get_submodule(self.layer or "")
        return module

    def _read(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Reading:
        if self.layer is None:
            self._run(args, kwargs)  # the linear layer that gives the logits is known after a pass
        if self._is_closed_form is None:
            self._is_closed_form = self._gives_logits(args, kwargs)
        if self.method == "closed-form" and not self._is_closed_form:
            raise InputError(
                f"layer {self.layer!r} is not the linear layer whose output is the logits, and only that one has a "
                f"closed form; pass method='autograd'"
            )
        logits, norms = (self._in_closed_form if self._is_closed_form else self._by_autograd)(args, kwargs)
        return Reading(logits, norms[:, None], logits.argmax(1))

    def _rounding(self, reading: Reading) -> Tensor:
        """As `Judge.rounding`, in the precision of the network: the norms themselves are always wide."""
        return DIRECTIONS_MARGIN * feature_rounding(reading.logits.dtype) * reading.rows[:, 0].abs()

    # The closed form

    def _run(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
        assert self._reader is not None
        with torch.no_grad():
            output, features = self._reader.run(without_synchronization(self.model), args, kwargs, logits_of)
        return logits_of(output), features

    def _in_closed_form(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            logits, features = self._run(args, kwargs)
            lengths = features.to(precise(features)).abs().sum(1)
            pull = ((logits.to(lengths.dtype) / self.temperature).softmax(1) - 1.0 / logits.shape[1]).abs().sum(1)
            return logits, lengths * pull / self.temperature

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _gives_logits(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
        """Return whether the layer is a plain linear one and nothing but copies lies between its output and the logits.

        Numbers cannot say this: a ReLU after the layer shows only in inputs that have a negative logit.
        """
        layer = self._module()
        if not is_plain_linear(layer):
            return False
        tap = Tap(layer)
        with recording_gradients():
            args, kwargs = mapped((args, dict(kwargs)), without_inference)
            with tap:
                logits = logits_of(unwrapped(self.model)(*args, **kwargs))
        return tap.is_copied_to(logits)

    # Any layer

    def _by_autograd(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
        name, model = self.layer or "", unwrapped(self.model)
        tap = Tap(self._module())
        with recording_gradients():
            args, kwargs = mapped((args, dict(kwargs)), without_inference)
            with tap:
                logits = logits_of(model(*args, **kwargs))
            run = tap.taken(name, len(logits))
            if len(logits) == 0:
                return logits.detach(), logits.new_zeros(0, dtype=precise(logits))
            log_probabilities = (logits.to(precise(logits)) / self.temperature).log_softmax(1)
            divergences = -log_probabilities.mean(1)  # from the uniform distribution, up to a constant
            pulls = run.pulls(divergences)
            if not self._rows_are_first and len(logits) > 1:
                run.require_rows_first(divergences[0])
                self._rows_are_first = True
            norms = row_norms(skeleton(self._module()), weights_of(self._module(), name), run, pulls)
        return logits.detach(), norms.detach()


def _flattened(features: Tensor) -> Tensor:
    return features.flatten(1) if features.ndim > 1 else features[:, None]
