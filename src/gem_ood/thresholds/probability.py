"""A probability as the caller wrote it: 0.95 means 19/20 here, not the nearest binary fraction."""

from fractions import Fraction
from typing import SupportsFloat

from gem_ood.errors import InputError

__all__ = ["as_probability"]


def as_probability(value: SupportsFloat, *, name: str) -> Fraction:
    """Return the number strictly between 0 and 1 that value prints as, exactly.

    A float holds 0.9 only approximately, and `1 - 0.9` is below 0.1: an order statistic computed from it
    would be off by one. The shortest decimal that a float prints as is what its author meant, in single
    precision too.

    Example:
        >>> as_probability(0.95, name="tpr")
        Fraction(19, 20)
        >>> as_probability(95, name="tpr")
        Traceback (most recent call last):
            ...
        gem_ood.errors.InputError: tpr must lie strictly between 0 and 1 but is 95; pass a fraction like 0.95
    """
    probability = None
    if not isinstance(value, str | bytes):
        try:
            probability = Fraction(str(value))  # str: repr(numpy.float32(0.95)) is no number
        except ValueError:  # NaN, infinity, None, an array, ...
            probability = None
    if probability is None or not 0 < probability < 1:
        raise InputError(f"{name} must lie strictly between 0 and 1 but is {value!r}; pass a fraction like 0.95")
    return probability
