"""A progress bar for long work: what is done, the rate and the time left, on a terminal only."""

import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

__all__ = ["PATIENCE_SECONDS", "RowProgress"]

#: Work that is done sooner shows no bar.
PATIENCE_SECONDS = 2.0


class RowProgress:
    """Counts the rows of files as they are read and, once the work has lasted a while, shows a bar on stderr.

    Args:
        unit: What is counted.
        is_shown: Whether a bar may be shown at all.

    >>> from gem_ood.progress import RowProgress
    >>> with RowProgress() as progress:
    ...     on_rows = progress.watch("train.npz", 200)
    ...     on_rows(100)
    ...     on_rows(200)
    >>> progress.n_rows
    200
    """

    def __init__(self, *, unit: str = "rows", is_shown: bool = True) -> None:
        self.n_rows = 0
        self._unit, self._is_shown = unit, is_shown
        self._started = time.monotonic()
        self._bar: Any = None
        self._is_ended = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Take the bar away, if it is shown: other lines, or the bar of the next work, have its place."""
        if self._bar is not None:
            self._bar.stop()

    def watch(self, name: str, total: int | None) -> "_Watch":
        """Return what to call with the number of rows read so far; reading a file again starts at one batch."""
        return _Watch(self, name, total)

    def watch_total(self, name: str) -> Callable[[int, int], None]:
        """Return what to call with the rows done so far and in all, where their number is known only by then."""
        named = self.watch_named()

        def on_rows(n_done: int, n_total: int) -> None:
            named(n_done, n_total, name)

        return on_rows

    def watch_named(self) -> Callable[[int, int, str], None]:
        """Return what to call with how many are done, how many there are, and the name of the work at hand."""
        watches: list[_Watch] = []

        def on_done(n_done: int, n_total: int, name: str) -> None:
            if not watches:
                watches.append(self.watch(name, n_total))
            watches[0](n_done, name=name)

        return on_done

    def watch_each(self) -> Callable[[str, int, int | None], None]:
        """Return what to call with the name of some work, how much of it is done, and how much there is if known."""
        watches: dict[str, _Watch] = {}

        def on_done(name: str, n_done: int, n_total: int | None) -> None:
            if name not in watches:
                watches[name] = self.watch(name, n_total)
            watches[name](n_done, total=n_total)

        return on_done

    def say(self, name: str) -> None:
        """Show at once that work of unknown length has begun, such as a call into another library."""
        bar = self.bar(at_once=True)
        if bar is not None:
            bar.add_task(name, total=None)

    def end(self) -> None:
        """Let the work end, in whatever thread, where it next tells how far it is: there a KeyboardInterrupt is raised.

        A signal reaches only the main thread, which then waits for the others.
        """
        self._is_ended = True

    def count(self, n_rows: int) -> None:
        """Take down how many rows are done."""
        if self._is_ended:
            raise KeyboardInterrupt
        self.n_rows = n_rows

    def bar(self, *, at_once: bool = False) -> Any:
        """Return the bar if it is time for one, and None otherwise."""
        is_time = at_once or time.monotonic() - self._started > PATIENCE_SECONDS
        if self._is_shown and self._bar is None and is_time:
            from rich.console import Console

            console = Console(stderr=True)
            if console.is_terminal and not console.is_dumb_terminal:  # a dumb one cannot take a line back
                self._bar = _new_bar(console, self._unit)
                self._bar.start()
        return self._bar


class _Watch:
    def __init__(self, progress: RowProgress, name: str, total: int | None) -> None:
        self._progress, self._name, self._total = progress, name, total
        self._task: Any = None

    def __call__(self, n_rows: int, *, name: str | None = None, total: int | None = None) -> None:
        """Show how far it is; a total that was not known at first may come later."""
        self._progress.count(n_rows)
        is_news = total is not None and total != self._total
        self._total = total if is_news else self._total
        bar = self._progress.bar()
        if bar is None:
            return
        if self._task is None:
            self._name = name or self._name
            self._task = bar.add_task(self._name, total=self._total)
        if name in (None, self._name):
            bar.update(self._task, completed=n_rows)
        else:
            self._name = str(name)
            bar.update(self._task, completed=n_rows, description=self._name)
        if is_news:
            bar.update(self._task, total=total)


def _new_bar(console: Any, unit: str) -> Any:
    from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn, TimeRemainingColumn
    from rich.table import Column
    from rich.text import Text

    class Done(ProgressColumn):
        def render(self, task: Any) -> Text:
            if task.total is None and not task.completed:
                return Text("")
            total = "?" if task.total is None else _short(task.total)
            return Text(f"{_short(task.completed)}/{total} {unit}")

    class Rate(ProgressColumn):
        def render(self, task: Any) -> Text:
            return Text("" if task.speed is None else f"{_short(task.speed)} {unit}/s")

    def whole() -> Column:
        return Column(no_wrap=True)

    # The other columns take some 45 signs: a bar that breaks into two lines could not be taken back.
    name = Column(no_wrap=True, overflow="ellipsis", max_width=max(8, console.width - 50))
    columns = (
        TextColumn("{task.description}", markup=False, table_column=name),
        BarColumn(bar_width=max(5, min(40, console.width - 70))),
        Done(whole()),
        Rate(whole()),
        TimeRemainingColumn(elapsed_when_finished=True, table_column=whole()),
    )
    return Progress(*columns, console=console, transient=True)


def _short(number: float) -> str:
    """Return a number in few signs.

    >>> _short(0.25), _short(12), _short(9_999), _short(480_000), _short(3_200_000)
    ('0.2', '12', '9,999', '480k', '3.2M')
    """
    if number < 10.0 and number != int(number):
        return f"{number:.1f}"
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if number >= size:
            scaled = number / (1e3 if letter == "k" else size)
            return f"{scaled:.1f}{letter}" if scaled < 10.0 else f"{scaled:.0f}{letter}"
    return f"{number:,.0f}"
