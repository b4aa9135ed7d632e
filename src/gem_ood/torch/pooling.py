"""Pooling: from what a layer gave, maps or tokens, to one row of features per input."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from gem_ood.errors import InputError

__all__ = ["TOKENS", "Pool", "pooled", "tensor_in"]

Pool = str | Callable[[Tensor], Tensor]

#: How one token stands for a sequence.
TOKENS = ("first-token", "last-token", "mean-token")


def tensor_in(features: Any) -> Any:
    """Return the tensor in what a layer gave, where it has a known form.

    >>> tensor_in((torch.zeros(1), "attentions"))
    tensor([0.])
    """
    features = getattr(features, "last_hidden_state", features)  # as Hugging Face's encoders return it
    is_tuple = isinstance(features, tuple) and features and isinstance(features[0], Tensor)
    return features[0] if is_tuple else features


def pooled(
    features: Any,
    pool: Pool,
    source: str,
    *,
    channels_last: bool = False,
    positions_last: bool = False,
    mask: Any = None,
) -> Tensor:
    """Return one row of features per input: spatial maps are averaged over their positions, as the paper does (P19).

    Channels come before the positions, as convolutions have them, or last, as a linear layer takes them. Three axes
    are read as inputs × channels × positions only where this is known; they might be inputs × tokens × features. Tokens
    that a mask, inputs × tokens, leaves out are padding and do not count.

    >>> pooled(torch.tensor([[[[1.0, 3.0]], [[0.0, 8.0]]]]), "mean", "layer 'conv'")
    tensor([[2., 4.]])
    """
    features = tensor_in(features)
    if not isinstance(features, Tensor):
        raise InputError(f"{source} gave a {type(features).__name__}; pass a layer that gives a tensor")
    if callable(pool):
        features = pool(features)
    elif pool == "mean" and features.ndim > (2 if positions_last else 3):
        features = features.flatten(1, -2).mean(1) if channels_last else features.flatten(2).mean(2)
    elif pool in TOKENS and features.ndim == 3:
        features = _one_token(features, pool, mask)
    elif features.ndim == 1:
        raise InputError(
            f"{source} gave features of shape {tuple(features.shape)} where one row per input was expected; add a "
            f"batch axis: inputs[None], or, for one feature per input, pass pool=lambda features: features[:, None]"
        )
    if not isinstance(features, Tensor) or features.ndim != 2:
        shape = tuple(features.shape) if isinstance(features, Tensor) else type(features).__name__
        raise InputError(
            f"{source} gave features of shape {shape} where one row per input was expected; pass pool= "
            f"{', '.join(map(repr, TOKENS))} if they are inputs × tokens × features, lambda maps: maps.mean(2) if "
            f"they are inputs × channels × positions, or another function that makes rows of them"
        )
    return features


def _one_token(tokens: Tensor, pool: str, mask: Any) -> Tensor:
    """Return one vector per sequence; graphs of any length need this without a look at the numbers."""
    if not isinstance(mask, Tensor) or mask.shape != tokens.shape[:2]:
        return tokens.mean(1) if pool == "mean-token" else tokens[:, 0 if pool == "first-token" else -1]
    is_token = mask.to(tokens.device) != 0
    if pool == "mean-token":
        # Halves overflow in a sum, and padding may be NaN, which no weight of zero removes.
        kept = tokens.where(is_token[:, :, None], 0.0).to(torch.promote_types(tokens.dtype, torch.float32))
        return (kept.sum(1) / is_token.sum(1, keepdim=True).clamp(min=1)).to(tokens.dtype)
    places = torch.arange(1, tokens.shape[1] + 1, device=tokens.device)
    ranks = places if pool == "last-token" else tokens.shape[1] + 1 - places
    place = (is_token * ranks).argmax(1)
    return tokens.gather(1, place[:, None, None].expand(-1, 1, tokens.shape[2])).squeeze(1)
