"""What several checks of one run share, so that it is computed once a run and never outlives it."""

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, TypeVar

__all__ = ["shared", "sharing"]

Value = TypeVar("Value")


@dataclass(frozen=True)
class _Run:
    seed: int
    values: dict[Hashable, Any] = field(default_factory=dict)


_RUN: ContextVar[_Run] = ContextVar("run")


@contextmanager
def sharing(seed: int) -> Iterator[None]:
    """Let the checks inside share what they compute from this seed."""
    token = _RUN.set(_Run(seed))
    try:
        yield
    finally:
        _RUN.reset(token)


def shared(key: Hashable, compute: Callable[[int], Value]) -> Value:
    """Return what `compute` makes of the run's seed, computed where the first check asks for this key.

    >>> with sharing(7):
    ...     [shared("double", lambda seed: 2 * seed), shared("double", lambda seed: 0)]
    [14, 14]
    """
    run = _RUN.get()
    if key not in run.values:
        run.values[key] = compute(run.seed)
    found: Value = run.values[key]
    return found
