"""`gem-ood verify`: every claim of the paper, its errata and what goes beyond it, checked on the spot."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gem_ood.cli.completing import complete_item
from gem_ood.cli.console import print_json, print_table, print_text
from gem_ood.cli.options import Json, Seed
from gem_ood.cli.voice import detail, tell, watching

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
        typer.Option(
            "--item",
            metavar="NAME",
            help="Only this item, such as P22, E5 or B3; repeatable.",
            autocompletion=complete_item,
        ),
    ] = None,
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """Check every claim of the paper, its errata and what goes beyond it, with a verdict for each.

    The claims are P1 to P39, the errata E1 to E15, and B1 to B9 go beyond; all take about a minute. Exit code 1 if a
    verdict is not the documented one.

    Examples:
        gem-ood verify --item P22 --item E5
        gem-ood verify --json
    """
    from gem_ood.claims import verify as check

    with watching("items") as progress:
        results = check(item, seed=seed, progress=progress.watch_named())
    for result in results:
        detail(f"{result.item}: {result.seconds:.2f} s")
    if json:
        document = {"seed": seed, "results": [_as_dict(result) for result in results], "summary": _summary(results)}
        print_json(document | {"on_chance": ON_CHANCE})
    else:
        rows = [[result.item, result.statement, result.computed, result.verdict] for result in results]
        print_table(["item", "statement", "computed", "verdict"], rows, n_names=4)
        tell(ON_CHANCE)
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
