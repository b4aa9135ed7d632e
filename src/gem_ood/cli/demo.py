"""`gem-ood demo`: the whole job on data that ships with scikit-learn, in seconds and without a network."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gem_ood.cli.console import percent, print_json, print_table, print_text

if TYPE_CHECKING:
    from gem_ood.demonstration import Demonstration

__all__ = ["demo"]


def demo(
    out: Annotated[Path, typer.Option(help="Where to save the guarded classifier's detector.", dir_okay=False)] = Path(
        "gem-ood-demo.safetensors"
    ),
    seed: Annotated[int, typer.Option(min=0, help="Seed of the splits, the classifier and the corruptions.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")] = False,
) -> None:
    """Train a small classifier on digits, guard it with every detector, and show it inputs it was never trained for.

    Example: gem-ood demo
    """
    from gem_ood.demonstration import run
    from gem_ood.files import refuse_unwritable

    refuse_unwritable(out, (".safetensors",))
    result = run(path=out, seed=seed)
    if as_json:
        print_json(result.as_dict())
    else:
        _print(result)


def _print(result: "Demonstration") -> None:
    print_text(f"A classifier of the digits {result.known}, {result.n_train} training rows: {result.description}")
    print_text(f"Out-of-distribution sets: {', '.join(f'{name} ({n})' for name, n in result.ood_rows.items())}")
    for note in result.notes:
        print_text(f"Note: {note}")
    print_text("")
    print_text("Mean over the sets, in percent (FPR95: lower is better; AUROC, AUPR: higher)")
    rows = [
        [entry.name, percent(entry.fpr), percent(entry.auroc), percent(entry.aupr), percent(result.id_error)]
        for entry in result.detectors
    ]
    print_table(["method", "FPR95", "AUROC", "AUPR", "ID error"], rows)
    print_text("")
    print_text("FPR95 by set, in percent")
    sets = list(result.ood_rows)
    print_table(
        ["method", *sets],
        [[entry.name, *(percent(entry.fpr_by_set[name]) for name in sets)] for entry in result.detectors],
    )
    print_text("")
    print_text(f"The GEM detector, calibrated on {result.n_calibration} held-out rows, asked to keep 95 %:")
    print_text(f"  {result.guarantee}")
    print_text(f"  kept {percent(result.kept)} % of {result.n_test} new digits; flagged of each set:")
    print_text("  " + ", ".join(f"{name} {percent(share)} %" for name, share in result.flagged.items()))
    same = "the same to the bit" if result.is_identical else "DIFFERENT"
    print_text(f"  saved to {result.path} and loaded again: scores {same}")
    print_text("")
    print_text("One verdict, explained:")
    print_text(
        f"  a {result.example}, which the classifier never saw and calls a {result.example_prediction} with "
        f"{percent(result.example_confidence)} % confidence"
    )
    print_text(f"  {result.explanation}")
