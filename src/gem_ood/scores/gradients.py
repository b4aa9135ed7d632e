"""GradNorm of a last linear layer in closed form. Higher = more in-distribution."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gem_ood.errors import InputError
from gem_ood.features import as_features, refuse_non_finite
from gem_ood.scores.logits import check_temperature, softmax

__all__ = ["grad_norm"]


def grad_norm(features: ArrayLike, logits: ArrayLike, *, temperature: float = 1.0) -> NDArray[np.float64]:
    """Return the L1 norm of the gradient of KL(uniform ‖ softmax(logits/T)) in the last layer's weights, row by row.

    With logits = features · Wᵀ + b and p = softmax(logits/T), the divergence has the gradient (p − 1/k)/T in the
    logits and its outer product with the features in W, so the norm is ‖features‖₁ · ‖p − 1/k‖₁ / T (Huang, Geng and
    Li, 2021, section 4). Their published code sums over the classes where the paper averages: k times this.

    Args:
        features: What the last layer takes, n × m.
        logits: What it gives, n × k.
        temperature: T; 1 in the paper.

    >>> grad_norm([[3.0, -1.0], [3.0, -1.0]], [[0.0, 0.0], [100.0, 0.0]])
    array([0., 4.])
    """
    check_temperature(temperature)
    rows = as_features(features)
    values = as_features(logits, name="logits")
    if len(rows) != len(values):
        raise InputError(f"features has {len(rows)} rows but logits has {len(values)}; pass one row of each per input")
    for array, name in ((rows, "features"), (values, "logits")):
        refuse_non_finite(array, name=name)
    probabilities = softmax(np.divide(values, temperature, dtype=np.float64))
    probabilities -= 1.0 / values.shape[1]
    lengths: NDArray[np.float64] = np.abs(rows, dtype=np.float64).sum(axis=1)
    pull: NDArray[np.float64] = np.abs(probabilities, out=probabilities).sum(axis=1) / temperature
    return lengths * pull
