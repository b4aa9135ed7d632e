"""`gem-ood figures`: the paper's figures, made anew."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Literal

import typer

from gem_ood.cli.console import print_json, print_text
from gem_ood.cli.options import Json
from gem_ood.cli.progress import RowProgress

__all__ = ["figures"]


def figures(
    *,
    out: Annotated[Path, typer.Option(metavar="DIR", help="The directory to write to; it is made if absent.")],
    runs: Annotated[int, typer.Option(metavar="N", help="How often each point of the simulations is drawn.")] = 5,
    seed: Annotated[int, typer.Option(metavar="N", help="The same seed gives the same files.")] = 0,
    sampler: Annotated[
        Literal["full", "projected"],
        typer.Option(help="Rows of d numbers, or their exact reduction, which is far quicker."),
    ] = "full",
    json: Json = False,
) -> None:
    """Draw the paper's figures for print, as PNG and SVG, the simulations beside what theory predicts.

    Example: gem-ood figures --out figures
    """
    from gem_ood.reports import paper_figures

    with RowProgress() as progress:
        paths = paper_figures(out, runs=runs, seed=seed, sampler=sampler, progress=_Bars(progress))
    if json:
        print_json({"files": paths, "runs": runs, "seed": seed, "sampler": sampler})
        return
    for path in paths:
        print_text(str(path))


class _Bars:
    """Starts a bar for each study as its first rows are drawn."""

    def __init__(self, progress: RowProgress) -> None:
        self._progress = progress
        self._watches: dict[str, Callable[[int], None]] = {}

    def __call__(self, name: str, n_done: int, n_total: int) -> None:
        if name not in self._watches:
            self._watches[name] = self._progress.watch(name, n_total)
        self._watches[name](n_done)
