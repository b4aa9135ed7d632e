"""`gem-ood demo`: the whole job on data that ships with scikit-learn, in seconds and without a network."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gem_ood.cli.console import percent, print_json, print_table, print_text
from gem_ood.cli.options import OUTPUT_PANEL, Json, Seed, check_out, out_option
from gem_ood.cli.reporting import command_line
from gem_ood.cli.voice import note, tell, watching

if TYPE_CHECKING:
    from gem_ood.demonstration import Demonstration

__all__ = ["demo"]


def demo(
    context: typer.Context,
    *,
    out: Annotated[Path, out_option("Save the guarded classifier's detector to this file.")] = Path(
        "gem-ood-demo.safetensors"
    ),
    report: Annotated[
        Path,
        typer.Option(
            metavar="FILE.html",
            rich_help_panel=OUTPUT_PANEL,
            help="Write the report, all detectors in one HTML page, to this file.",
        ),
    ] = Path("gem-ood-demo.html"),
    no_report: Annotated[
        bool, typer.Option("--no-report", rich_help_panel=OUTPUT_PANEL, help="Write no report, which takes longest.")
    ] = False,
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """Train a small classifier, guard it with every detector, and show it inputs it was never trained for.

    It needs no files and no network: the images come with scikit-learn.

    Examples:
        gem-ood demo
        gem-ood demo --seed 1 --out digits.safetensors
    """
    from gem_ood.demonstration import run
    from gem_ood.errors import InputError
    from gem_ood.extras import require_extra

    if seed < 0:
        raise InputError(f"--seed is {seed}; pass a whole number of at least 0")
    check_out(out, (".safetensors",))
    is_typed = getattr(context.get_parameter_source("report"), "name", None) == "COMMANDLINE"
    if is_typed and no_report:
        raise InputError("--report and --no-report contradict each other; pass one of them")
    if not no_report:
        if is_typed:  # one that nobody asked for is left out with a note where it cannot be made
            require_extra("report", "plotly", purpose="reports")
        check_out(report, (".html", ".htm"), out)
    with watching() as progress:
        result = run(
            path=out,
            report=None if no_report else report,
            seed=seed,
            command=command_line(context),
            on_step=progress.say,
        )
    for text in result.notes:
        note(text)
    if json:
        print_json(result.as_dict())
    else:
        _print(result)


def _print(result: "Demonstration") -> None:
    tell(f"A classifier of the digits {result.known}, {result.n_train} training rows: {result.description}")
    tell(f"Out-of-distribution sets: {', '.join(f'{name} ({n})' for name, n in result.ood_rows.items())}")
    tell("")
    print_text("Mean over the sets, in percent (FPR95: lower is better; AUROC, AUPR: higher)")
    rows = [
        [entry.name, percent(entry.fpr), percent(entry.auroc), percent(entry.aupr), percent(result.id_error)]
        for entry in result.detectors
    ]
    print_table(["method", "FPR95", "AUROC", "AUPR", "ID error"], rows)
    tell("")
    print_text("FPR95 by set, in percent")
    sets = list(result.ood_rows)
    print_table(
        ["method", *sets],
        [[entry.name, *(percent(entry.fpr_by_set[name]) for name in sets)] for entry in result.detectors],
    )
    tell("")
    tell(f"The GEM detector, calibrated on {result.n_calibration} held-out rows, asked to keep 95 %:")
    tell(f"  {result.guarantee}")
    tell(f"  kept {percent(result.kept)} % of {result.n_test} new digits; flagged of each set:")
    tell("  " + ", ".join(f"{name} {percent(share)} %" for name, share in result.flagged.items()))
    same = "the same to the bit" if result.is_identical else "DIFFERENT"
    tell(f"  saved to {result.path} and loaded again: scores {same}")
    tell("")
    tell("One verdict, explained:")
    tell(
        f"  a {result.example}, which the classifier never saw and calls a {result.example_prediction} with "
        f"{percent(result.example_confidence)} % confidence"
    )
    tell(f"  {result.explanation}")
    if result.report is not None:
        tell("")
        tell(f"Report: {result.report}")
