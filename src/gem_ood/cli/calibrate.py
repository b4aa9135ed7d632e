"""`gem-ood calibrate`: the threshold of a detector, from held-out in-distribution rows."""

from pathlib import Path
from typing import Annotated

import typer

from gem_ood.cli.console import print_json, print_text
from gem_ood.cli.options import DetectorPath, Features, Json, Labels, Rows, Tpr, load_detector, open_rows
from gem_ood.progress import RowProgress

__all__ = ["calibrate"]


def calibrate(
    detector: DetectorPath,
    file: Rows,
    *,
    tpr: Tpr = 0.95,
    confidence: Annotated[
        float | None,
        typer.Option(metavar="SHARE", help="Ask for the guarantee with this confidence (PAC), such as 0.99."),
    ] = None,
    out: Annotated[Path | None, typer.Option(metavar="OTHER", help="Save here instead of over DETECTOR.")] = None,
    features: Features = None,
    labels: Labels = None,
    json: Json = False,
) -> None:
    """Set a detector's threshold from in-distribution rows that its fit has not seen.

    Example: gem-ood calibrate detector.safetensors held_out.npz --tpr 0.95
    """
    from gem_ood.files import calibrate_on_file, refuse_overwriting, refuse_unwritable

    fitted = load_detector(detector)
    target = detector if out is None else out
    refuse_unwritable(target, (".safetensors",))
    refuse_overwriting(target, file)
    rows = open_rows(file, features, labels, fitted)
    with RowProgress() as progress:
        watched = rows.watched(progress.watch(rows.path.name, rows.n_rows))
        threshold = calibrate_on_file(fitted, watched, tpr=tpr, confidence=confidence).threshold_
    fitted.save(target)
    if json:
        print_json(
            {
                "detector": target,
                "threshold": threshold.value,
                "tpr": threshold.tpr,
                "confidence": threshold.confidence,
                "method": threshold.method,
                "n_rows": threshold.n_rows,
                "guarantee": threshold.guarantee,
            }
        )
        return
    print_text(f"Threshold {threshold.value:.6g} ({threshold.method}, {threshold.n_rows:,} rows): {target}")
    print_text(threshold.guarantee)
