"""Arguments and options that several commands share."""

from pathlib import Path
from typing import Annotated, Any

import typer

__all__ = ["ROWS", "DetectorPath", "Features", "Json", "Labels", "Rows", "Tpr", "open_rows"]

ROWS = ".npz, .npy, .parquet, .csv or .safetensors"

DetectorPath = Annotated[Path, typer.Argument(metavar="DETECTOR", help="A detector that `gem-ood fit` saved.")]
Rows = Annotated[Path, typer.Argument(metavar="FILE", help=f"Rows of features: {ROWS}.")]
Features = Annotated[
    str | None,
    typer.Option(
        metavar="NAME[,NAME...]",
        help="The array or column of features, or the columns that make them up. Default: 'features', else the only "
        "two-dimensional array or all numeric columns.",
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


def open_rows(path: Path, features: str | None, labels: str | None, *, with_labels: bool = False) -> Any:
    """Return the opened file; labels that are not wanted still name a column that is no feature."""
    from gem_ood.files import open_features

    if with_labels:
        return open_features(path, features=features, labels=labels)
    file = open_features(path, features=features, labels=False if labels is None else labels)
    return file.without_labels()
