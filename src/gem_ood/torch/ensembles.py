"""MCDropout and Ensemble: guards that ask several classifiers, drawn from one model by dropout or trained apart.

Both answer with the logarithm of the members' mean probabilities as logits, and score how sure or how much of one
mind the members are. They have the verbs of `OODModel` and nothing to fit.
"""

import hashlib
import math
import threading
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from gem_ood.detectors import MSP, Detector, MaxLogit
from gem_ood.errors import InputError
from gem_ood.torch.batches import as_arguments, first_rows, logits_of, mapped, tensors_of
from gem_ood.torch.distributed import without_synchronization
from gem_ood.torch.gradients import ReadyGuard
from gem_ood.torch.modes import refuse_compiled, unwrapped
from gem_ood.torch.rounding import feature_rounding, largest_move
from gem_ood.torch.scorers import precise
from gem_ood.torch.streaming import Reading

__all__ = ["Ensemble", "MCDropout"]

#: The name of a dropout layer, and the which of its runs in a pass it is.
Call = tuple[str, int]

SCORES = ("msp", "entropy", "mutual-information")

#: α′ of self-normalizing networks (Klambauer et al., 2017): minus what a SELU unit is set to when it is dropped.
SELU_FLOOR = 1.7580993408473766


class _Committee(ReadyGuard):
    """What guards of several members share: their mean, and the three scores of it."""

    score: str

    def __init__(self, model: nn.Module, score: str, dtype: torch.dtype) -> None:
        if score not in SCORES:
            raise InputError(f"score is {score!r}; pass one of {', '.join(map(repr, SCORES))}")
        # Other scores than MSP come as one column, ready made, and the largest of one number is that number.
        super().__init__(model, MSP() if score == "msp" else MaxLogit(), dtype=dtype)
        self.score = score

    @classmethod
    def _restored(cls, model: Any, detector: Detector, settings: dict[str, Any]) -> Self:
        return cls(model, **settings)._adopt(detector)

    def extra_repr(self) -> str:
        """Return what the guard adds, for printing."""
        return ", ".join(f"{name}={value!r}" for name, value in self._settings().items())

    @abstractmethod
    def _members(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Tensor]:
        """Return the logits that each member gives."""

    def _read(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Reading:
        members = self._members(args, kwargs)
        log_mean, score = self._mean_and_score(_stacked(members))
        if self.score == "msp":
            return Reading(log_mean, log_mean, members=members)
        return Reading(log_mean, score[:, None], log_mean.argmax(1), members)

    def _mean_and_score(self, members: Tensor) -> tuple[Tensor, Tensor]:
        """Return the logarithm of the mean probabilities, and the score of each row, of members × rows × classes."""
        log_each = members.log_softmax(2)
        log_mean = log_each.logsumexp(0) - math.log(len(members))
        if self.score == "msp":
            return log_mean, log_mean.amax(1).exp()
        if self.score == "entropy":
            return log_mean, (log_mean.exp() * log_mean).sum(1)
        # The mean divergence of members from their mean, which is the entropy of the mean less the mean entropy
        # without their difference being lost to rounding; it is never negative.
        return log_mean, -(log_each.exp() * (log_each - log_mean)).sum(2).mean(0).clamp(min=0.0)

    @torch.no_grad()
    def _rounding(self, reading: Reading) -> Tensor:
        """As `Judge.rounding`, by moving the logits of all members: their mean does not show how large these were."""
        assert reading.members is not None
        members = _stacked(reading.members)
        shares = members.new_tensor([feature_rounding(logits.dtype) for logits in reading.members])
        steps = shares[:, None, None] * members.abs().amax(2, keepdim=True)
        return largest_move(lambda moved: self._mean_and_score(moved)[1], members, steps)


def _stacked(members: Sequence[Tensor]) -> Tensor:
    return torch.stack([logits.to(precise(logits)) for logits in members])


class Ensemble(_Committee):
    """A deep ensemble (Lakshminarayanan, Pritzel and Blundell, 2017): classifiers of the same classes, trained apart.

    Logits of the result are the logarithm of the members' mean probabilities. Nothing is fitted.
    `Ensemble.load(models, path)` takes the members again.

    Args:
        models: Two classifiers or more, whose forward takes the same input and returns logits of the same classes.
        score: "msp", the largest mean probability; "entropy", minus the entropy of the mean; or "mutual-information",
            minus what the entropy of the mean has over the mean entropy: how much members disagree.
        dtype: The precision of scores.

    >>> sure, unsure = nn.Linear(1, 2), nn.Linear(1, 2)
    >>> for model, slope in ((sure, 50.0), (unsure, 0.0)):
    ...     _ = model.weight.data.copy_(torch.tensor([[slope], [0.0]])), model.bias.data.zero_()
    >>> Ensemble([sure, unsure])(torch.tensor([[1.0]])).score.detach()
    tensor([0.7500], dtype=torch.float64)
    """

    model: nn.ModuleList

    def __init__(self, models: Iterable[nn.Module], *, score: str = "msp", dtype: torch.dtype = torch.float64) -> None:
        given: Any = models
        # A Sequential is a list of layers, not of classifiers.
        is_list = isinstance(given, Iterable) and isinstance(given, nn.ModuleList) == isinstance(given, nn.Module)
        members = list(given) if is_list else []
        if len(members) < 2 or not all(isinstance(member, nn.Module) for member in members):
            raise InputError(
                f"models is a {type(given).__name__} of {len(members)} classifiers; pass a list of two "
                f"torch.nn.Modules or more"
            )
        super().__init__(_Models(members), score, dtype)

    def _settings(self) -> dict[str, Any]:
        return {"score": self.score, "n_models": len(self.model)}

    @classmethod
    def _restored(cls, model: Any, detector: Detector, settings: dict[str, Any]) -> Self:
        n_models = settings.pop("n_models", None)
        restored = super()._restored(model, detector, settings)
        if n_models not in (None, len(restored.model)):
            raise InputError(
                f"the guard is of an ensemble of {n_models} models but {len(restored.model)} came; pass all of them"
            )
        return restored

    def _members(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Tensor]:
        if not args:
            args, kwargs = as_arguments(kwargs, self.model[0])
        found = [logits_of(without_synchronization(member)(*args, **kwargs)) for member in self.model]
        sizes = [logits.shape[1] for logits in found]
        place = next((place for place, size in enumerate(sizes) if size != sizes[0]), 0)
        if place:
            raise InputError(
                f"model 0 of the ensemble gave {sizes[0]} logits but model {place} gave {sizes[place]}; pass "
                f"classifiers of the same classes"
            )
        return found


class _Models(nn.ModuleList):
    """Members side by side; any keyword is taken, since which ones a member takes is asked of the member."""

    def forward(self, *args: Any, **kwargs: Any) -> list[Any]:
        return [member(*args, **kwargs) for member in self]


class MCDropout(_Committee):
    """Monte Carlo dropout (Gal and Ghahramani, 2016): the model's own sub-networks, drawn by its dropout layers.

    Each pass draws one mask per dropout layer from the seed, the number of the pass and the layer's name, and all
    inputs meet the same masks: a pass is one sub-network, the same in every call, so that an input's score depends on
    neither its batch nor the calls before. Everything else stays in evaluation mode. Each element of a mask is drawn
    from its own position in the input, counted from the start, so padding at the end changes nothing; padding at the
    start moves positions and with them the masks.

    Logits of the result are the logarithm of the passes' mean probabilities. Nothing is fitted. Only modules are
    reached (`nn.Dropout`, its 1d, 2d and 3d kinds, `nn.AlphaDropout`, `nn.FeatureAlphaDropout`): calls of
    `nn.functional.dropout` inside a forward, and the dropout inside `nn.LSTM` or `nn.MultiheadAttention`, stay off.

    Args:
        model: A classifier with dropout layers.
        n_passes: How many sub-networks are asked; each costs a forward pass.
        score: As in `Ensemble`.
        seed: Which sub-networks are drawn.
        dtype: The precision of scores.

    >>> _ = torch.manual_seed(0)
    >>> model = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 3))
    >>> guarded = MCDropout(model, score="mutual-information").calibrate([torch.randn(50, 2)])
    >>> guarded(torch.tensor([[0.0, 0.0], [90.0, -90.0]])).is_ood
    tensor([False,  True])
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        n_passes: int = 30,
        score: str = "msp",
        seed: int = 0,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        if not isinstance(n_passes, int) or n_passes < 2:
            raise InputError(f"n_passes is {n_passes!r}; pass a whole number of at least 2, such as 30")
        if not isinstance(seed, int):
            raise InputError(f"seed is {seed!r}; pass a whole number")
        super().__init__(model, score, dtype)
        refuse_compiled(self.model)
        self.n_passes, self.seed = n_passes, seed
        self._axes: dict[Call, int] = {}
        self._dropouts()

    def _settings(self) -> dict[str, Any]:
        return {"n_passes": self.n_passes, "score": self.score, "seed": self.seed}

    def _dropouts(self) -> dict[str, _DropoutNd]:
        """Return the dropout layers that do something, by name."""
        modules = unwrapped(self.model).named_modules()
        found = {name: part for name, part in modules if isinstance(part, _DropoutNd) and part.p > 0.0}
        if not found:
            raise InputError(
                f"{type(unwrapped(self.model)).__name__} has no dropout layer with p above 0, so its passes would all "
                f"be the same; pass a model that was trained with nn.Dropout, or use Ensemble"
            )
        return found

    def _members(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Tensor]:
        n_rows = next((tensor.shape[0] for tensor in tensors_of((args, kwargs)) if tensor.ndim), 1)
        if n_rows == 0:
            return [logits_of(unwrapped(self.model)(*args, **kwargs))] * self.n_passes
        self._find_axes(args, kwargs)
        masks = (_Masks(self._axes, n_rows, f"{self.seed}/{place}") for place in range(self.n_passes))
        return [self._pass(mask, args, kwargs) for mask in masks]

    def _pass(self, masks: "_Shapes | _Masks", args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Tensor:
        with ExitStack() as hooks:
            for name, part in self._dropouts().items():
                handle = part.register_forward_hook(_Hook(name, masks))
                hooks.callback(handle.remove)
            return logits_of(unwrapped(self.model)(*args, **kwargs))

    def _find_axes(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Learn along which axis of each dropout layer inputs lie: the one that grows from one input to two."""
        if self._axes:
            return
        one = first_rows((args, dict(kwargs)), 1)
        two = mapped(one, lambda tensor: torch.cat([tensor, tensor]) if tensor.ndim else tensor)
        shapes = []
        for arguments in (one, two):
            seen = _Shapes({})
            self._pass(seen, *arguments)
            shapes.append(seen.found)
        if not shapes[0]:
            raise InputError("no dropout layer of the model ran; pass a model whose forward runs its nn.Dropout layers")
        self._axes = {call: _grown_axis(call[0], shape, shapes[1].get(call)) for call, shape in shapes[0].items()}


def _grown_axis(name: str, one: tuple[int, ...], two: tuple[int, ...] | None) -> int:
    """Return the axis in which the shape for one input differs from that for two."""
    if two is not None and len(one) == len(two):
        grown = [place for place, (before, after) in enumerate(zip(one, two, strict=True)) if before != after]
        if len(grown) == 1 and two[grown[0]] == 2 * one[grown[0]]:
            return grown[0]
    raise InputError(
        f"dropout layer {name!r} saw shape {one} for one input and {two} for two, so inputs cannot be told apart in "
        f"it; pass a model that keeps them along one axis"
    )


class _Hook:
    """What a dropout layer, asleep in evaluation mode, is given to do while a pass runs in this thread."""

    def __init__(self, name: str, masks: "_Shapes | _Masks") -> None:
        self._name, self._masks, self._thread, self._n_calls = name, masks, threading.get_ident(), 0

    def __call__(self, layer: _DropoutNd, args: tuple[Any, ...], output: Tensor) -> Tensor | None:
        if threading.get_ident() != self._thread:
            return None
        self._n_calls += 1
        return self._masks(layer, (self._name, self._n_calls), output)


@dataclass(frozen=True)
class _Shapes:
    """Notes what each dropout layer sees, and drops nothing."""

    found: dict[Call, tuple[int, ...]]

    def __call__(self, layer: _DropoutNd, call: Call, output: Tensor) -> Tensor:
        self.found[call] = tuple(output.shape)
        return output


@dataclass(frozen=True)
class _Masks:
    """Drops what the sub-network of this key lacks, and scales the rest as training did."""

    axes: Mapping[Call, int]
    n_rows: int
    key: str

    def __call__(self, layer: _DropoutNd, call: Call, output: Tensor) -> Tensor:
        if call not in self.axes:
            raise InputError(
                f"dropout layer {call[0]!r} ran more often than it did for the first inputs; pass a model whose "
                f"forward runs the same layers for every input"
            )
        if layer.p >= 1.0:
            return output * 0.0
        is_kept = self._is_kept(layer, call, output).to(output.dtype)
        if not isinstance(layer, nn.AlphaDropout | nn.FeatureAlphaDropout):
            return output * is_kept / (1.0 - layer.p)
        # What is dropped becomes −α′, and an affine map restores mean zero and variance one.
        scale = 1.0 / math.sqrt((SELU_FLOOR**2 * layer.p + 1.0) * (1.0 - layer.p))
        return scale * (output * is_kept - SELU_FLOOR * (1.0 - is_kept) + SELU_FLOOR * layer.p)

    def _is_kept(self, layer: _DropoutNd, call: Call, output: Tensor) -> Tensor:
        """Return the mask, equal for all inputs."""
        axis = self.axes[call]
        sizes = [size if place < 2 or _drops_single_units(layer) else 1 for place, size in enumerate(output.shape)]
        # A layer may see several places per input, such as the windows of an image, one after the other.
        n_places = sizes.pop(axis) // self.n_rows
        words = _random_words(f"{self.key}/{call[0]}/{call[1]}", [n_places, *sizes], output.device)
        # The upper 53 bits of a word, as a share of all values they can have.
        is_kept = ((words >> 11) & ((1 << 53) - 1)) >= int(layer.p * (1 << 53))
        for_all = is_kept if n_places == 1 else torch.cat([is_kept] * self.n_rows)
        return for_all.movedim(0, axis)


def _drops_single_units(layer: _DropoutNd) -> bool:
    """Return whether the layer drops each unit by itself; the other kinds drop whole channels."""
    return isinstance(layer, nn.Dropout | nn.AlphaDropout)


def _random_words(key: str, sizes: Sequence[int], device: torch.device) -> Tensor:
    """Return a random 64-bit word for each position, the same whatever the sizes: no stream of numbers gives that.

    Each axis mixes its position into the word by the finalizer of SplitMix64 (Steele, Lea and Flood, 2014).
    """
    words = torch.tensor(_signed(int.from_bytes(hashlib.sha256(key.encode()).digest()[:8])), device=device)
    for size in sizes:
        positions = torch.arange(1, size + 1, device=device) * _signed(0x9E3779B97F4A7C15)
        words = words[..., None] + positions
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1)):
            # A shift keeps the sign, which the mask takes away: words are unsigned.
            words = (words ^ ((words >> shift) & ((1 << (64 - shift)) - 1))) * _signed(factor)
    return words


def _signed(word: int) -> int:
    """Return the same 64 bits as a signed number, which is what tensors have."""
    return word - (1 << 64) if word >= 1 << 63 else word
