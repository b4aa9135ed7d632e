"""`gem-ood figures`: the paper's figures, made anew."""

from pathlib import Path
from typing import Annotated

import typer

from gem_ood.cli.console import print_json, print_text
from gem_ood.cli.options import Json, Sampler
from gem_ood.progress import RowProgress

__all__ = ["figures"]


def figures(
    *,
    out: Annotated[Path, typer.Option(metavar="DIR", help="The directory to write to; it is made if absent.")],
    runs: Annotated[int, typer.Option(metavar="N", help="How often each point of the simulations is drawn.")] = 5,
    seed: Annotated[int, typer.Option(metavar="N", help="The same seed gives the same files.")] = 0,
    sampler: Sampler = "full",
    json: Json = False,
) -> None:
    """Draw the paper's figures for print, as PNG and SVG, as wide as a page and as a column.

    The simulations are drawn beside what theory predicts.

    Example: gem-ood figures --out figures
    """
    from gem_ood.reports import paper_figures

    with RowProgress() as progress:
        paths = paper_figures(out, runs=runs, seed=seed, sampler=sampler, progress=progress.watch_total("simulations"))
    if json:
        print_json({"files": paths, "runs": runs, "seed": seed, "sampler": sampler})
        return
    for path in paths:
        print_text(str(path))
