"""`gem-ood figures`: the paper's figures, made anew."""

from pathlib import Path
from typing import Annotated

from gem_ood.cli.console import print_json
from gem_ood.cli.options import Json, Runs, Sampler, Seed, out_option
from gem_ood.cli.voice import step, tell, watching

__all__ = ["figures"]


def figures(
    *,
    out: Annotated[Path, out_option("Write the figures to this directory, which is made if absent.", metavar="DIR")],
    runs: Runs = 5,
    seed: Seed = 0,
    sampler: Sampler = "full",
    json: Json = False,
) -> None:
    """Draw the paper's figures for print, as PNG and SVG, as wide as a page and as a column.

    The simulations are drawn beside what theory predicts.

    Examples:
        gem-ood figures --out figures
        gem-ood figures --out figures --sampler projected --runs 2
    """
    from gem_ood.reports import paper_figures

    with watching() as progress, step("drawing the figures"):
        paths = paper_figures(out, runs=runs, seed=seed, sampler=sampler, progress=progress.watch_total("simulations"))
    if json:
        print_json({"files": paths, "runs": runs, "seed": seed, "sampler": sampler})
        return
    for path in paths:
        tell(str(path))
