"""A progress bar for long work: rows, rate and time left, on a terminal only."""

import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

__all__ = ["PATIENCE_SECONDS", "RowProgress"]

#: Work that is done sooner shows no bar.
PATIENCE_SECONDS = 2.0


class RowProgress:
    """Counts the rows of files as they are read and, once the work has lasted a while, shows a bar on stderr.

    >>> from gem_ood.progress import RowProgress
    >>> with RowProgress() as progress:
    ...     on_rows = progress.watch("train.npz", 200)
    ...     on_rows(100)
    ...     on_rows(200)
    >>> progress.n_rows
    200
    """

    def __init__(self) -> None:
        self.n_rows = 0
        self._started = time.monotonic()
        self._bar: Any = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def watch(self, name: str, total: int | None) -> "_Watch":
        """Return what to call with the number of rows read so far; reading a file again starts at one batch."""
        return _Watch(self, name, total)

    def watch_total(self, name: str) -> Callable[[int, int], None]:
        """Return what to call with the rows done so far and in all, where their number is known only by then."""
        watches: list[_Watch] = []

        def on_rows(n_done: int, n_total: int) -> None:
            if not watches:
                watches.append(self.watch(name, n_total))
            watches[0](n_done)

        return on_rows

    def bar(self) -> Any:
        """Return the bar if it is time for one, and None otherwise."""
        if self._bar is None and time.monotonic() - self._started > PATIENCE_SECONDS:
            from rich.console import Console

            console = Console(stderr=True)
            if console.is_terminal:
                self._bar = _new_bar(console)
                self._bar.start()
        return self._bar


class _Watch:
    def __init__(self, progress: RowProgress, name: str, total: int | None) -> None:
        self._progress, self._name, self._total = progress, name, total
        self._task: Any = None

    def __call__(self, n_rows: int) -> None:
        self._progress.n_rows = n_rows
        bar = self._progress.bar()
        if bar is None:
            return
        if self._task is None:
            self._task = bar.add_task(self._name, total=self._total)
        bar.update(self._task, completed=n_rows)


def _new_bar(console: Any) -> Any:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TextColumn, TimeRemainingColumn
    from rich.text import Text

    class Rate(ProgressColumn):
        def render(self, task: Any) -> Text:
            return Text("" if task.speed is None else f"{task.speed:,.0f} rows/s")

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("rows"),
        Rate(),
        TimeRemainingColumn(),
    )
    return Progress(*columns, console=console, transient=True)
