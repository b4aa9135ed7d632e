"""Threads for long work, as many as BLAS has. Work with BLAS is cut in so many parts, and BLAS gets one thread in each.

So the steps between the products (subtracting, exponentials, sums) run in parallel too, and the threads meet once
instead of at every product: on a busy machine each such meeting costs a turn of the scheduler.
"""

import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from functools import cache
from itertools import pairwise
from typing import Any, TypeVar

from threadpoolctl import ThreadpoolController

__all__ = [
    "LARGEST_MEMORY",
    "available_cores",
    "blas_alone",
    "blas_threads",
    "free_threads",
    "run_in_parts",
    "run_in_turns",
]

Result = TypeVar("Result")

#: Below this many floating-point operations, handing parts to threads costs more than it saves.
MIN_OPERATIONS = 1.5e8

#: All parts of one call together hold no more than this many bytes of working memory, unless one alone does.
LARGEST_MEMORY = 48 << 20

#: Up to so many operations BLAS loses less by having one thread than its others then take from what comes next. Up to
#: the lower bound it takes one of itself. Measured on two cores; on many, the upper bound may be too high.
LEAST_OPERATIONS_ALONE, MOST_OPERATIONS_ALONE = 1e5, 1.5e9

#: Turns of a thread: more would make up for a thread that waits, and cost the start of each.
MOST_TURNS = 8

#: Room for a BLAS that is told to use more threads than there are cores; a thread is started only when it is needed.
MOST_THREADS = 64
WORKER = "gem-ood-part"

_lock = threading.Lock()
_limits: list[Any] = []  # the limit in force and one entry for each call that relies on it
_threads_before: list[int] = []  # of BLAS, while a limit is in force
_at_work: list[None] = []  # one entry for each call whose parts are under way


def run_in_parts(
    work: Callable[[slice], Result],
    n_rows: int,
    *,
    operations: float,
    bytes_per_part: int = 0,
    most_threads: int | None = None,
    fewest_threads: int = 1,
) -> list[Result]:
    """Return the results of work on consecutive slices that cover the rows, in order.

    Short work is one slice in the calling thread, and there are never more slices than their memory or the caller
    allows. Work that is mostly outside BLAS asks for threads of its own, where BLAS has fewer. If several slices fail,
    the error of the first is raised.
    """
    n_threads = 1 if operations < MIN_OPERATIONS or _has_one_core() else max(blas_threads(), fewest_threads)
    n_threads = min(n_threads, n_rows, most_threads or n_rows, max(1, LARGEST_MEMORY // max(1, bytes_per_part)))
    if n_threads <= 1:
        return [work(slice(0, n_rows))]
    bounds = [n_rows * part // n_threads for part in range(n_threads + 1)]
    parts = [slice(start, stop) for start, stop in pairwise(bounds)]
    with _one_blas_thread_each():
        others: list[Future[Result]] = []
        _at_work.append(None)
        try:
            others.extend(_pool(os.getpid()).submit(work, part) for part in parts[1:])
            own = work(parts[0])
        finally:
            try:
                for other in others:  # they write to the caller's arrays
                    other.exception()  # waits and raises nothing; `futures.wait` would put a waiter on each first
            finally:
                if _at_work:  # a process forked amid the work begins with none
                    _at_work.pop()
        return [own, *(other.result() for other in others)]


def run_in_turns(
    work: Callable[[slice], Result], n_rows: int, *, operations: float, least_operations: float, multiple: int
) -> list[Result]:
    """Return the results of work outside BLAS on consecutive slices of the rows, which threads take as they get to it.

    A thread that the system lets wait holds up nobody: the caller takes the slices that it leaves. Each has at least
    half as many operations as are worth a thread, and a multiple of so many rows.
    """
    n_threads = 1 if operations < least_operations else free_threads()
    if n_threads <= 1:
        return [work(slice(0, n_rows))]
    n_turns = min(MOST_TURNS * n_threads, int(2.0 * operations / least_operations))
    size = -(-n_rows // (n_turns * multiple)) * multiple
    starts = range(0, n_rows, size)
    results: dict[int, Result] = {}
    turns = iter(starts)  # shared: each start goes to one thread

    def take_turns() -> None:
        try:
            for start in turns:
                results[start] = work(slice(start, min(start + size, n_rows)))
        except BaseException:
            deque(turns, maxlen=0)  # after an error nobody begins another
            raise

    others = [_pool(os.getpid()).submit(take_turns) for _ in range(n_threads - 1)]
    try:
        take_turns()
    finally:
        late = [other for other in others if not other.cancel()]  # those that began write to the caller's arrays
        for other in late:
            other.exception()
    for other in late:
        other.result()
    return [results[start] for start in starts]


@contextmanager
def blas_alone(operations: float) -> Iterator[None]:
    """Give BLAS one thread for what has so few operations.

    Its other threads look for work for some 30 ms after their last (OpenBLAS), on cores that the caller's next threads
    need: a fit that follows another one would wait for half of its rows.
    """
    is_short = LEAST_OPERATIONS_ALONE < operations < MOST_OPERATIONS_ALONE
    with _one_blas_thread_each() if is_short else nullcontext():
        yield


@cache
def _pool(_process: int) -> ThreadPoolExecutor:
    """Return threads that stay: new ones cost as much as short work does. A forked process gets its own."""
    return ThreadPoolExecutor(max(MOST_THREADS, os.cpu_count() or 1), thread_name_prefix=WORKER)


def _has_one_core() -> bool:
    """Return whether a call takes the core that it has: another thread of this process is at it already."""
    return bool(_at_work) or _is_worker()


def _is_worker() -> bool:
    """Return whether this is one of the threads: work that waits for others of its own pool could wait for ever."""
    return threading.current_thread().name.startswith(WORKER)


@cache
def _controller() -> ThreadpoolController:
    return ThreadpoolController().select(user_api="blas")


def available_cores() -> int:
    """Return how many cores this process may use.

    >>> available_cores() >= 1
    True
    """
    if hasattr(os, "sched_getaffinity"):  # Linux: a job may be held to some of the machine's cores
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def free_threads() -> int:
    """Return how many threads a call that begins now may share its work with, itself included.

    >>> free_threads() >= 1
    True
    """
    return 1 if _has_one_core() else blas_threads()


def blas_threads() -> int:
    """Return how many threads BLAS may use, or might but for a limit that is set here.

    >>> blas_threads() >= 1
    True
    """
    before = _threads_before[:1]  # another thread may lift the limit meanwhile
    return before[0] if before else min((library.num_threads for library in _controller().lib_controllers), default=1)


def _begin_anew() -> None:
    """Lift the limit in a forked process: of the threads that relied on it, at most the one that forked is in it."""
    try:
        _lift_limit()
        _at_work.clear()
    finally:
        _lock.release()


def _lift_limit() -> None:
    if _limits:
        _limits[0].restore_original_limits()
        _limits.clear()
        _threads_before.clear()


if hasattr(os, "register_at_fork"):  # nobody else holds the lock when the process is copied
    os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_begin_anew)


@contextmanager
def _one_blas_thread_each() -> Iterator[None]:
    # The limit is the process's: it is set by the first call and lifted by the last that overlap.
    with _lock:
        if _limits:
            _limits.append(None)
        else:
            n_threads = blas_threads()
            _limits.append(_controller().limit(limits=1))
            _threads_before.append(n_threads)
    try:
        yield
    finally:
        with _lock:
            if len(_limits) > 1:
                _limits.pop()
            else:  # none is left where this is a process forked amid the work
                _lift_limit()
