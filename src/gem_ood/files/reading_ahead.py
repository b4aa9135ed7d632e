"""Reading ahead: a thread prepares the next items while the caller works on this one."""

import threading
from collections import deque
from collections.abc import Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

__all__ = ["N_AHEAD", "read_ahead"]

Item = TypeVar("Item")

#: So many items at most are ready or being made, beside the one that the caller has: one alone would leave the thread
#: idle whenever the caller is late.
N_AHEAD = 2

_END = object()


def read_ahead(items: Iterator[Item], *, n_ahead: int = N_AHEAD) -> Generator[Item, None, None]:
    """Yield the items in order, each made by another thread while the caller works on those before it.

    An error comes in the place of the item that could not be made. The thread ends with the last item, with an error,
    and when this generator is closed, as it is where the caller stops early or fails.

    >>> list(read_ahead(iter("abc")))
    ['a', 'b', 'c']
    """
    # Python ends the threads of a pool at exit even if nobody closed this generator.
    pool = ThreadPoolExecutor(1, thread_name_prefix="gem-ood-reading")
    at_work = threading.Lock()

    def make() -> object:
        with at_work:
            return next(items, _END)

    try:
        ahead: deque[Future[object]] = deque(pool.submit(make) for _ in range(n_ahead))
        while True:
            item = ahead.popleft().result()
            if item is _END:
                return
            ahead.append(pool.submit(make))
            yield item  # type: ignore[misc]
            del item  # or the caller's batch would be held while the next is waited for
    finally:
        pool.shutdown(cancel_futures=True)
        if isinstance(items, Generator):
            with at_work:  # Ctrl-C while the thread starts leaves one that the pool does not wait for
                items.close()
