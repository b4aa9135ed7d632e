"""`gem-ood calibrate`: the threshold of a detector, from held-out in-distribution rows."""

from pathlib import Path
from typing import Annotated

import typer

from gem_ood.cli.console import print_json
from gem_ood.cli.engines import Address, EngineName, labels_seen_by, opened_engine, seen_by
from gem_ood.cli.options import (
    DetectorPath,
    Features,
    Json,
    Labels,
    Rows,
    Tpr,
    check_out,
    load_detector,
    naming,
    open_rows,
    out_option,
)
from gem_ood.cli.voice import step, tell, watching

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
    out: Annotated[Path | None, out_option("Save the calibrated detector to this file, not over DETECTOR.")] = None,
    features: Features = None,
    labels: Labels = None,
    engine: EngineName = "local",
    address: Address = None,
    json: Json = False,
) -> None:
    r"""Set a detector's threshold from in-distribution rows that its fit has not seen.

    Examples:
        gem-ood calibrate gem.safetensors held_out.npz
        gem-ood calibrate gem.safetensors held_out.npz --tpr 0.9 --confidence 0.99 \
            --out ready.safetensors
    """
    fitted = load_detector(detector)
    target = detector if out is None else out
    check_out(target, (".safetensors",), file)
    rows = open_rows(seen_by(engine, file), features, labels_seen_by(engine, labels), fitted)
    with opened_engine(engine, address) as worker, watching() as progress, step("scoring the held-out rows"):
        watch = progress.watch(rows.path.name, rows.n_rows)
        worker.calibrate(fitted, rows, watch, tpr=tpr, confidence=confidence)
    threshold = fitted.threshold_
    with naming(target), step(f"writing {target}"):
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
    tell(f"Threshold {threshold.value:.6g} ({threshold.method}, {threshold.n_rows:,} rows): {target}")
    tell(threshold.guarantee)
