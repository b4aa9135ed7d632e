"""Scores of a classifier's logits: MSP, MaxLogit and Energy. Higher = more in-distribution."""

from numbers import Real

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gem_ood.errors import InputError
from gem_ood.features import as_features, refuse_non_finite
from gem_ood.gaussians.log_sums import log_sum_exp

__all__ = ["check_temperature", "energy", "max_logit", "msp", "softmax"]


def msp(logits: ArrayLike, *, temperature: float = 1.0) -> NDArray[np.float64]:
    """Return the maximum softmax probability of each row (P3; Hendrycks and Gimpel, 2017).

    >>> msp([[0.0, 0.0], [100.0, 0.0]])
    array([0.5, 1. ])
    """
    scaled = _scaled(logits, temperature)
    largest = scaled.max(axis=1)
    return np.asarray(np.exp(largest - log_sum_exp(scaled, overwrite=True)))


def max_logit(logits: ArrayLike) -> NDArray[np.float64]:
    """Return the largest logit of each row (Hendrycks et al., 2022).

    >>> max_logit([[1.0, 3.0]])
    array([3.])
    """
    largest: NDArray[np.float64] = _scaled(logits, 1.0).max(axis=1)
    return largest


def energy(logits: ArrayLike, *, temperature: float = 1.0) -> NDArray[np.float64]:
    """Return the negative free energy T·log Σ exp(logit/T) of each row (P5; Liu et al., 2020).

    >>> energy([[0.0, 0.0]])
    array([0.69314718])
    """
    return temperature * log_sum_exp(_scaled(logits, temperature), overwrite=True)


def softmax(logits: ArrayLike) -> NDArray[np.float64]:
    """Return class probabilities, one row each.

    >>> softmax([[0.0, 0.0]])
    array([[0.5, 0.5]])
    """
    scaled = _scaled(logits, 1.0)
    scaled -= log_sum_exp(scaled)[:, np.newaxis]
    return np.exp(scaled, out=scaled)


def check_temperature(temperature: object) -> None:
    """Raise if this is no temperature.

    >>> check_temperature(1.0)
    """
    is_number = isinstance(temperature, Real) and not isinstance(temperature, bool)
    if not (is_number and 0.0 < float(temperature) < np.inf):  # type: ignore[arg-type]
        raise InputError(f"temperature is {temperature!r}; pass a positive number, 1.0 for none")


def _scaled(logits: ArrayLike, temperature: float) -> NDArray[np.float64]:
    """Return a float64 copy: the caller's logits are never written to."""
    check_temperature(temperature)
    values = as_features(logits, name="logits")
    if not np.isfinite(values).all():
        refuse_non_finite(values, name="logits")
    return values.astype(np.float64) if temperature == 1.0 else np.divide(values, temperature, dtype=np.float64)
