"""Head: a classifier's last linear layer, through which a score of logits reads features."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gem_ood.errors import InputError
from gem_ood.features import as_features, refuse_non_finite

__all__ = ["Head"]


@dataclass(frozen=True, eq=False, repr=False)
class Head:
    """Weight (k × m) and bias (k,) of the last layer: logits = features @ weight.T + bias.

    >>> Head([[1.0, 0.0], [0.0, 2.0]], [0.5, 0.0]).logits(np.array([[1.0, 3.0]]))
    array([[1.5, 6. ]])
    """

    weight: NDArray[np.float64]
    bias: NDArray[np.float64]

    def __init__(self, weight: ArrayLike, bias: ArrayLike | None = None) -> None:
        checked = np.array(as_features(weight, name="head weight"), dtype=np.float64)
        refuse_non_finite(checked, name="head weight")
        if callable(getattr(bias, "detach", None)):  # a torch tensor that may track gradients
            bias = bias.detach()  # type: ignore[union-attr]
        offsets = np.zeros(len(checked)) if bias is None else np.array(np.asarray(bias), dtype=np.float64)
        if offsets.shape != (len(checked),):
            raise InputError(
                f"head bias has shape {offsets.shape} but head weight has {len(checked)} rows; pass one bias per class"
            )
        refuse_non_finite(offsets[np.newaxis], name="head bias")
        object.__setattr__(self, "weight", checked)
        object.__setattr__(self, "bias", offsets)

    def __repr__(self) -> str:
        return f"Head({self.n_classes} classes, {self.n_features} features)"

    @property
    def n_classes(self) -> int:
        """How many logits come out."""
        return int(self.weight.shape[0])

    @property
    def n_features(self) -> int:
        """How many features go in."""
        return int(self.weight.shape[1])

    def logits(self, features: NDArray[Any]) -> NDArray[np.float64]:
        """Return the logits of these rows, in float64."""
        logits: NDArray[np.float64] = np.matmul(features, self.weight.T, dtype=np.float64)
        logits += self.bias
        return logits
