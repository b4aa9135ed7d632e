"""Arguments and options that several commands share."""

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

__all__ = ["ROWS", "DetectorPath", "Features", "Json", "Labels", "Rows", "Sampler", "Tpr", "load_detector", "open_rows"]

ROWS = ".npz, .npy, .parquet, .csv or .safetensors"

DetectorPath = Annotated[Path, typer.Argument(metavar="DETECTOR", help="A detector that `gem-ood fit` saved.")]
Rows = Annotated[Path, typer.Argument(metavar="FILE", help=f"Rows of features: {ROWS}.")]
Features = Annotated[
    str | None,
    typer.Option(
        metavar="NAME[,NAME...]",
        help="The array or column of features, or the columns that make them up. Default: 'features', else the only "
        "two-dimensional array, the columns of the detector's fit, or all numeric columns.",
    ),
]
Labels = Annotated[
    str | None,
    typer.Option(
        metavar="NAME|FILE.npy",
        help="The array or column of class labels, or a .npy file of them. Default: 'labels', 'label' or 'y'.",
    ),
]
Tpr = Annotated[float, typer.Option(metavar="SHARE", help="The share of in-distribution rows to keep.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]
Sampler = Annotated[
    Literal["full", "projected"],
    typer.Option(help="Rows of d numbers, or their exact reduction, which is far quicker."),
]


def load_detector(path: Path) -> Any:
    """Return the detector of a file; rows in its place are the likeliest slip."""
    from gem_ood import load
    from gem_ood.errors import InputError

    if path.suffix.lower() in (".npz", ".npy", ".parquet", ".csv"):
        raise InputError(
            f"the first argument must be a saved detector (.safetensors) but is {path}; pass what gem-ood fit wrote, "
            f"then the rows"
        )
    return load(path)


def open_rows(path: Path, features: str | None, labels: str | None, *detectors: Any, with_labels: bool = False) -> Any:
    """Return the opened file, by the columns that the detectors were fitted on if they have names.

    Labels that are not wanted still name a column that is no feature.
    """
    from gem_ood.files import fitted_names, open_features

    names = fitted_names(*detectors)
    if with_labels:
        return open_features(path, features=features, labels=labels, fitted_names=names)
    file = open_features(path, features=features, labels=False if labels is None else labels, fitted_names=names)
    return file.without_labels()
