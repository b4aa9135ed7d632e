"""Arguments and options that several commands share."""

import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

__all__ = [
    "ROWS",
    "Classes",
    "DetectorPath",
    "Features",
    "Groups",
    "Json",
    "Labels",
    "Rows",
    "Sampler",
    "Tpr",
    "check_out",
    "listed",
    "load_detector",
    "naming",
    "open_rows",
    "read_classes",
    "read_groups",
    "refuse_other_head",
]

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
Classes = Annotated[
    str | None,
    typer.Option(
        metavar="NAME,NAME,...|FILE",
        help="All class names in the order of the logits, or a .txt (one a line) or .npy file of them. Default: "
        "'classes' in the file of --head, else the labels in sorted order.",
    ),
]
Groups = Annotated[Path | None, typer.Option(metavar="FILE.npy", help="The group of each logit, for mos.")]
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


def open_rows(
    path: Path,
    features: str | None,
    labels: str | None,
    *detectors: Any,
    with_labels: bool = False,
    columns: tuple[str, ...] | None = None,
) -> Any:
    """Return the opened file, by the columns that the detectors were fitted on, or else by these, if they have names.

    Labels that are not wanted still name a column that is no feature.
    """
    from gem_ood.files import fitted_names, open_features

    names = fitted_names(*detectors) or columns
    if with_labels:
        return open_features(path, features=features, labels=labels, fitted_names=names)
    file = open_features(path, features=features, labels=False if labels is None else labels, fitted_names=names)
    return file.without_labels()


def read_classes(text: str | None, head: Path | None) -> Any:
    """Return the class names in the order of the logits: those of --classes, else those of the head's file, or None.

    Names that are all whole numbers are read as such, as labels are.
    """
    from gem_ood.comparison.fitting import check_classes
    from gem_ood.errors import InputError
    from gem_ood.files.heads import read_head_classes

    if text is None:
        return None if head is None else read_head_classes(head)
    try:
        return check_classes(_class_names(text))
    except InputError as error:
        raise InputError(f"--classes: {error}") from error


def _class_names(text: str) -> Any:
    from gem_ood.errors import InputError
    from gem_ood.files.reading import refuse_unreadable

    suffix = Path(text).suffix.lower()
    if suffix == ".npy":
        return _read_array(Path(text))
    if suffix == ".txt":
        refuse_unreadable(Path(text), (".txt",))
        try:
            names = Path(text).read_text(encoding="utf-8-sig").splitlines()
        except UnicodeDecodeError as error:
            raise InputError(f"{text} is not UTF-8 text ({error.reason}); save it as UTF-8") from error
    else:
        names = text.split(",")
    names = [name.strip() for name in names]
    if "" in names:
        raise InputError(f"name {names.index('') + 1} of {len(names)} in {text!r} is empty; name every class")
    return [int(name) for name in names] if all(re.fullmatch(r"-?[0-9]+", name) for name in names) else names


def read_groups(path: Path | None) -> Any:
    """Return the group of each logit, or None without a file."""
    return None if path is None else _read_array(path)


def _read_array(path: Path) -> Any:
    from gem_ood.files.numpy_members import npy_members
    from gem_ood.files.reading import refuse_unreadable

    refuse_unreadable(path, (".npy",))
    (member,) = npy_members(path).values()
    member.refuse_as_labels()
    return member.rows(0, member.shape[0]).ravel()


def refuse_other_head(rows: Any, head: Path | None, layer: Any, *, option: str = "") -> None:
    """Raise if a head reads rows of another width than those of an opened file, which came by this option."""
    from gem_ood.errors import InputError

    if layer is not None and layer.n_features != rows.n_features:
        raise InputError(
            f"{rows.path}{option and ' of ' + option} has {rows.n_features} features but {head} of --head takes "
            f"{layer.n_features}; pass the features that this head reads, naming them with --features if need be"
        )


def check_out(out: Path, suffixes: tuple[str, ...], *inputs: Path | None) -> str:
    """Return the suffix of a file that can be written and is none of these inputs; raise before any long work."""
    from gem_ood.files import refuse_overwriting, refuse_unwritable

    suffix = refuse_unwritable(out, suffixes)
    refuse_overwriting(out, *(path for path in inputs if path is not None))
    # As long as the name under which the file is written before it takes its own: permissions do not tell everything.
    probe = out.with_name(f".{out.stem}.{secrets.token_hex(4)}{out.suffix}")
    with naming(out):
        try:
            probe.touch(exist_ok=False)
        finally:
            if probe.exists():
                probe.unlink()
    return suffix


@contextmanager
def naming(out: Path) -> Iterator[None]:
    """Name the file that was to be written, not the one that stands in for it until it is complete."""
    from gem_ood.errors import InputError

    try:
        yield
    except OSError as error:
        raise InputError(
            f"{out} cannot be written ({error.strerror or error}); mend that or name another file"
        ) from error


def listed(text: str | None) -> list[str] | None:
    """Return the parts of a list with commas, or None for none.

    >>> listed("gem, knn")
    ['gem', 'knn']
    """
    return None if text is None else [name.strip() for name in text.split(",")]
