"""`gem-ood fit`: a detector from a file of in-distribution features."""

import math
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from gem_ood.cli.console import print_json, print_text
from gem_ood.cli.options import Features, Json, Labels, Rows, open_rows
from gem_ood.cli.progress import RowProgress

__all__ = ["fit"]


def fit(
    file: Rows,
    *,
    out: Annotated[Path, typer.Option(metavar="DETECTOR.safetensors", help="Where to save the detector.")],
    method: Annotated[str, typer.Option(metavar="NAME", help="gem, mahalanobis, msp, max-logit or energy.")] = "gem",
    features: Features = None,
    labels: Labels = None,
    no_labels: Annotated[bool, typer.Option("--no-labels", help="Ignore labels: all rows are one class.")] = False,
    priors: Annotated[
        Literal["uniform", "empirical"] | None, typer.Option(help="Class weights of gem; uniform unless given.")
    ] = None,
    covariance: Annotated[
        str | None,
        typer.Option(
            metavar="POLICY",
            help="empirical, oas, ledoit-wolf, or a shrinkage between 0 and 1; empirical unless given.",
        ),
    ] = None,
    normalize: Annotated[bool, typer.Option("--normalize", help="Scale every row to unit length.")] = False,
    relative: Annotated[bool, typer.Option("--relative", help="Score relative to one Gaussian over all rows.")] = False,
    head: Annotated[
        Path | None,
        typer.Option(
            metavar="HEAD.npz", help="The classifier's last layer ('weight', 'bias'), if the rows are not logits."
        ),
    ] = None,
    temperature: Annotated[float | None, typer.Option(metavar="T", help="Divide logits by it (msp, energy).")] = None,
    json: Json = False,
) -> None:
    """Fit a detector to in-distribution rows and save it.

    Example: gem-ood fit train.npz --out detector.safetensors
    """
    from gem_ood.detectors import make
    from gem_ood.errors import InputError
    from gem_ood.files import read_head, refuse_unwritable

    if labels is not None and no_labels:
        raise InputError("--labels and --no-labels contradict each other; pass one of them")
    if temperature is not None and not 0.0 < temperature < math.inf:
        raise InputError(f"--temperature is {temperature:g}; pass a positive number, 1 for none")
    options: dict[str, Any] = {
        "priors": priors,
        "covariance": None if covariance is None else _covariance(covariance),
        "normalize": normalize or None,
        "relative": relative or None,
        "head": None if head is None else read_head(head),
        "temperature": temperature,
    }
    detector = make(method, **{name: value for name, value in options.items() if value is not None})
    refuse_unwritable(out, (".safetensors",))
    rows = open_rows(file, features, labels, with_labels=not no_labels)
    with RowProgress() as progress:
        detector.fit_batches(rows.watched(progress.watch(rows.path.name, rows.n_rows)))
    detector.save(out)
    if json:
        print_json(
            {
                "detector": out,
                "method": method,
                "n_rows": progress.n_rows,
                "n_features": rows.n_features,
                "classes": detector.classes_,
                "has_labels": rows.has_labels,
            }
        )
        return
    print_text(f"Fitted {method} to {progress.n_rows:,} rows of {rows.n_features} features: {out}")
    print_text(_about_classes(detector.classes_, rows.has_labels))
    print_text(f"Next, with rows that this fit has not seen: gem-ood calibrate {out} FILE")


def _covariance(text: str) -> str | float:
    from gem_ood.errors import InputError

    if text in ("empirical", "oas", "ledoit-wolf"):
        return text
    try:
        share = float(text)
    except ValueError:
        share = -1.0
    if not 0.0 <= share <= 1.0:
        raise InputError(f"--covariance is {text!r}; pass empirical, oas, ledoit-wolf or a shrinkage between 0 and 1")
    return share


def _about_classes(classes: Any, has_labels: bool) -> str:
    names = ", ".join(str(name) for name in classes[:10]) + (", ..." if len(classes) > 10 else "")
    if has_labels:
        return f"{len(classes)} classes: {names}"
    if len(classes) == 1:
        return "No labels: all rows are one class. Name them with --labels if there are some."
    return f"{len(classes)} logits, named by their column: {names}"
