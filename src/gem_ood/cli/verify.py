"""`gem-ood verify`: every claim of the paper, its errata and what goes beyond it, checked on the spot."""

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Self

import typer

from gem_ood.cli.console import print_json, print_table, print_text
from gem_ood.cli.options import Json
from gem_ood.progress import PATIENCE_SECONDS

if TYPE_CHECKING:
    from gem_ood.claims import Result

__all__ = ["verify"]

ON_CHANCE = "Where rows are drawn, a check fails beyond 5 standard errors (s.e.): 6 in 10 million times by chance."

#: Some verdict is not the documented one.
EXIT_DIFFERENT = 1


def verify(
    *,
    item: Annotated[
        list[str] | None,
        typer.Option("--item", metavar="NAME", help="Only this item, such as P22, E5 or B3; may be repeated."),
    ] = None,
    seed: Annotated[int, typer.Option(metavar="N", help="The same seed gives the same figures.")] = 0,
    json: Json = False,
) -> None:
    """Check every claim of the paper (P1-P39), its errata (E1-E15) and what goes beyond it (B1-B9), in about a minute.

    Example: gem-ood verify --item P22 --item E5

    Exit code 1 if a verdict is not the documented one.
    """
    from gem_ood.claims import verify as check

    with _ItemProgress() as progress:
        results = check(item, seed=seed, progress=progress)
    if json:
        document = {"seed": seed, "results": [_as_dict(result) for result in results], "summary": _summary(results)}
        print_json(document | {"on_chance": ON_CHANCE})
    else:
        rows = [[result.item, result.statement, result.computed, result.verdict] for result in results]
        print_table(["item", "statement", "computed", "verdict"], rows, n_names=4)
        print_text(ON_CHANCE)
        print_text(_summary(results))
    if not all(result.is_as_documented for result in results):
        raise typer.Exit(EXIT_DIFFERENT)


def _as_dict(result: "Result") -> dict[str, Any]:
    return {
        "item": result.item,
        "statement": result.statement,
        "computed": result.computed,
        "verdict": result.verdict,
        "documented": str(result.documented),
        "is_as_documented": result.is_as_documented,
        "seconds": round(result.seconds, 3),
    }


def _summary(results: Sequence["Result"]) -> str:
    from gem_ood.claims import Verdict

    def count(verdict: Verdict, one: str, many: str) -> str:
        n = sum(result.found is verdict for result in results)
        return f"{n} {one if n == 1 else many}"

    counts = [
        count(Verdict.HOLDS, "holds", "hold"),
        count(Verdict.LOOSE, "holds loosely", "hold loosely"),
        count(Verdict.CORRECTED, "false as printed and corrected here", "false as printed and corrected here"),
    ]
    if any(result.found is Verdict.FAILS for result in results):
        counts.append(count(Verdict.FAILS, "fails", "fail"))
    others = [f"{result.item} ({result.documented})" for result in results if not result.is_as_documented]
    end = f"not as documented: {', '.join(others)}" if others else "all verdicts are the documented ones"
    return f"{len(results)} item{'' if len(results) == 1 else 's'}: {', '.join(counts)}; {end}"


class _ItemProgress:
    """Shows the item at work and how many are done, on a terminal only, once the work has lasted a while."""

    def __init__(self) -> None:
        self._started = time.monotonic()
        self._bar: Any = None
        self._task: Any = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def __call__(self, n_done: int, n_all: int, item: str) -> None:
        if self._bar is None and time.monotonic() - self._started > PATIENCE_SECONDS:
            from rich.console import Console

            console = Console(stderr=True)
            if console.is_terminal:
                self._bar = _new_bar(console)
                self._task = self._bar.add_task("", total=n_all)
                self._bar.start()
        if self._bar is not None:
            self._bar.update(self._task, completed=n_done, description=item)


def _new_bar(console: Any) -> Any:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description:>4}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=console, transient=True)
