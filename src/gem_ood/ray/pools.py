"""Pools: how many workers hold a model, and what Ray is told of them."""

import gc
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import ray

from gem_ood.errors import InputError
from gem_ood.features import is_count

if TYPE_CHECKING:
    from ray.data import ActorPoolStrategy

__all__ = ["worker_pool"]

#: Ray counts processors in steps of this size.
CPU_STEP = 1e-4


def worker_pool(workers: Any, num_cpus: Any, num_gpus: Any) -> tuple["ActorPoolStrategy", float]:
    """Return the pool, and how many processors Ray is told that each of its workers takes.

    Args:
        workers: How many there are, or (least, most); None for as many as the machines of the cluster hold.
        num_cpus: The processors of each.
        num_gpus: The graphics cards of each.
    """
    from ray.data import ActorPoolStrategy

    if not _is_amount(num_cpus) or num_cpus == 0:
        raise InputError(f"num_cpus must be a number above 0 but is {num_cpus!r}; pass 1, say")
    if not _is_amount(num_gpus):
        raise InputError(f"num_gpus must be a number, 0 or more, but is {num_gpus!r}; pass 1 for a graphics card each")
    gc.collect()  # what failed elsewhere may hold a pool that the new one would wait for
    machines = [node["Resources"] for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]
    cpus = _amounts(machines, "CPU")
    if workers is None:
        most = _how_many(cpus, num_cpus) if num_gpus == 0 else _how_many(_amounts(machines, "GPU"), num_gpus)
        if most == 0:
            wanted = f"num_cpus={num_cpus:g} processors" if num_gpus == 0 else f"num_gpus={num_gpus:g} graphics cards"
            raise InputError(
                f"no machine of the cluster has {wanted}; ask for fewer, or pass workers= if the cluster will grow"
            )
        # Ray warns of a fixed number where there is less to do, as there is whenever only the first rows are asked for.
        strategy = ActorPoolStrategy(min_size=1, max_size=most, initial_size=most)
    else:
        least, most = _least_and_most(workers)
        strategy = ActorPoolStrategy(min_size=least, max_size=most)
    return strategy, _reserved(cpus, most, float(num_cpus))


def _is_amount(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value >= 0


def _amounts(machines: Sequence[Mapping[str, float]], kind: str) -> list[float]:
    return [resources[kind] for resources in machines if resources.get(kind, 0.0) > 0.0]


def _least_and_most(workers: Any) -> tuple[int, int]:
    pair = (workers, workers) if is_count(workers) else workers
    if isinstance(pair, tuple | list) and len(pair) == 2 and all(map(is_count, pair)) and pair[0] <= pair[1]:
        return int(pair[0]), int(pair[1])
    raise InputError(f"workers is {workers!r}; pass a whole number of at least 1, or two of them: (least, most)")


def _how_many(amounts: Sequence[float], each: float) -> int:
    """Return how many workers fit on machines that have so much each.

    >>> _how_many([16.0, 2.0], 4.0), _how_many([1.0], 0.1)
    (4, 10)
    """
    return sum(int(amount / each + 1e-9) for amount in amounts)


def _reserved(cpus: Sequence[float], workers: int, num_cpus: float) -> float:
    """Return how many processors Ray is told that a worker takes: so few that a pool leaves one for each machine.

    However the workers are then spread, some machine has a whole processor left, which the tasks around the pool need:
    without it they would wait for the workers, and the workers for their rows, forever.

    >>> _reserved([2.0], 2, 1.0), _reserved([16.0, 16.0], 32, 1.0), _reserved([8.0], 1, 2.0)
    (0.5, 0.9375, 2.0)
    """
    spare = sum(cpus) - len(cpus)
    return min(num_cpus, math.floor(spare / workers / CPU_STEP) * CPU_STEP) if cpus else num_cpus
