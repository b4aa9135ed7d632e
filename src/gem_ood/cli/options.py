"""Arguments and options that several commands share."""

import re
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from gem_ood.cli.voice import detail

__all__ = [
    "METHODS_PANEL",
    "OUTPUT_PANEL",
    "ROWS",
    "ROWS_PANEL",
    "Classes",
    "DetectorPath",
    "Features",
    "Groups",
    "HeadPath",
    "IdFile",
    "Json",
    "Labels",
    "OptionalIdFile",
    "Rows",
    "Runs",
    "Sampler",
    "Seed",
    "Tpr",
    "check_out",
    "listed",
    "load_detector",
    "named_file",
    "named_files",
    "naming",
    "open_rows",
    "out_option",
    "read_classes",
    "read_groups",
    "read_head",
    "refuse_other_head",
]

ROWS = ".npz, .npy, .parquet, .csv or .safetensors, or a directory or a quoted 'pattern*' of .parquet files"

#: The sections of a help text.
ROWS_PANEL, METHODS_PANEL, OUTPUT_PANEL = "Rows", "Methods", "Output"

DetectorPath = Annotated[Path, typer.Argument(metavar="DETECTOR", help="A detector that gem-ood fit saved.")]
Rows = Annotated[Path, typer.Argument(metavar="FILE", help=f"Rows of features: {ROWS}.")]
_ID = typer.Option(
    "--id", metavar="FILE", rich_help_panel=ROWS_PANEL, help="In-distribution rows that no fit has seen."
)
IdFile = Annotated[Path, _ID]
OptionalIdFile = Annotated[Path | None, _ID]
Features = Annotated[
    str | None,
    typer.Option(
        metavar="NAME[,NAME...]",
        rich_help_panel=ROWS_PANEL,
        help="The array or column of features, or the columns that make them up. Default: 'features', else the only "
        "two-dimensional array, the columns of the detector's fit, or all numeric columns.",
    ),
]
Labels = Annotated[
    str | None,
    typer.Option(
        metavar="NAME|FILE.npy",
        rich_help_panel=ROWS_PANEL,
        help="The array or column of class labels, or a .npy file of them. Default: 'labels', 'label' or 'y'.",
    ),
]
HeadPath = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        rich_help_panel=METHODS_PANEL,
        help="The classifier's last layer, for methods that read logits where the rows are features: .npz or "
        ".safetensors with 'weight', 'bias' and perhaps 'classes'.",
    ),
]
Classes = Annotated[
    str | None,
    typer.Option(
        metavar="NAME,NAME,...|FILE",
        rich_help_panel=METHODS_PANEL,
        help="All class names in the order of the logits, or a .txt (one a line) or .npy file of them. Default: "
        "'classes' in the file of --head, else the labels in sorted order.",
    ),
]
Groups = Annotated[
    Path | None,
    typer.Option(metavar="FILE.npy", rich_help_panel=METHODS_PANEL, help="The group of each logit, for mos."),
]
Tpr = Annotated[
    float,
    typer.Option(metavar="SHARE", help="The share of in-distribution rows to keep (the true positive rate)."),
]
Seed = Annotated[int, typer.Option(metavar="N", help="The same seed gives the same results.")]
Runs = Annotated[int, typer.Option(metavar="N", help="How often each point of the simulations is drawn.")]
Json = Annotated[
    bool, typer.Option("--json", rich_help_panel=OUTPUT_PANEL, help="Print one JSON object and nothing else.")
]
Sampler = Annotated[
    Literal["full", "projected"],
    typer.Option(help="Rows of d numbers, or their exact reduction, which is far quicker."),
]


def out_option(text: str, *, metavar: str = "FILE") -> Any:
    """Return what says where to write, for a command that writes this."""
    return typer.Option("--out", metavar=metavar, rich_help_panel=OUTPUT_PANEL, help=text)


def load_detector(path: Path) -> Any:
    """Return the detector of a file; rows in its place are the likeliest slip."""
    from gem_ood import load
    from gem_ood.errors import InputError

    _refuse_dash(path)
    if path.suffix.lower() in (".npz", ".npy", ".parquet", ".csv"):
        raise InputError(
            f"{path} is given where a saved detector (.safetensors) must be; pass what gem-ood fit wrote, then the rows"
        )
    if path.is_dir():
        raise InputError(f"{path} is a directory; pass the file of a detector, which gem-ood fit wrote")
    detector = load(path)
    threshold = "not calibrated" if not detector.is_calibrated else f"threshold {detector.threshold_.value:.6g}"
    detail(f"opened {path}: detector {detector!r}, {detector.n_features_in_} features, {threshold}")
    return detector


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
    from gem_ood.errors import InputError
    from gem_ood.files import fitted_names, holds_detector, open_features

    _refuse_dash(path)
    if holds_detector(path):
        raise InputError(f"{path} is a saved detector, given where rows of features must be; pass a file of rows")
    names = fitted_names(*detectors) or columns
    wanted: str | Literal[False] | None = labels if with_labels or labels is not None else False
    file = open_features(path, features=features, labels=wanted, fitted_names=names)
    detail(_about(file))
    return file if with_labels else file.without_labels()


def _about(file: Any) -> str:
    n_rows = "rows unknown until read" if file.n_rows is None else f"{file.n_rows:,} rows"
    names = file.feature_names
    shown = "" if names is None else f" ({', '.join(names[:10])}{', ...' if len(names) > 10 else ''})"
    labels = "with labels" if file.has_labels else "no labels"
    kind = f"{len(file.parquet.files):,} parquet files" if file.is_file_set else file.path.suffix[1:]
    return f"opened {file.path}: {kind}, {n_rows}, {file.n_features} features{shown}, {labels}"


def _refuse_dash(path: Path) -> None:
    from gem_ood.errors import InputError

    if str(path) == "-":
        raise InputError("- stands for standard input, which cannot be read; pass the path of a file")


def named_file(
    text: str, *, option: str = "--ood", what: str = "FILE", example: str = "noise=noise.npz"
) -> tuple[str, Path]:
    """Return the name and the path of NAME=FILE; a file alone goes by its own name without the suffix.

    >>> named_file("noise=far/rows.npz"), named_file("far/rows.npz")[0]
    (('noise', PosixPath('far/rows.npz')), 'rows')
    """
    from gem_ood.errors import InputError

    name, is_named, path = text.partition("=")
    if not is_named or Path(text).exists():
        name, path = Path(text).stem, text
    if not (name.strip() and path):
        raise InputError(f"{option} is {text!r} but must be {what} or NAME={what}, such as {example}")
    return name, Path(path)


def named_files(texts: list[str], *, what: str = "FILE", example: str = "noise=noise.npz") -> dict[str, Path]:
    """Return the paths of --ood by the names of their sets, each there once."""
    from gem_ood.comparison.measured import check_set_name
    from gem_ood.errors import InputError

    files: dict[str, Path] = {}
    for text in texts:
        name, path = named_file(text, what=what, example=example)
        if name in files:
            raise InputError(f"--ood names {name!r} twice; give each its own name, as NAME={what}")
        check_set_name(name)
        files[name] = path
    return files


def read_head(path: Path | None) -> Any:
    """Return the classifier's last layer, or None without a file."""
    if path is None:
        return None
    from gem_ood.files import read_head as read

    _refuse_dash(path)
    head = read(path)
    detail(f"opened {path}: a head of {head.n_classes} classes and {head.n_features} features")
    return head


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
    from gem_ood.storage import refuse_unwritable_place

    suffix = refuse_unwritable(out, suffixes)
    refuse_overwriting(out, *(path for path in inputs if path is not None))
    refuse_unwritable_place(out)
    return suffix


def naming(out: Path) -> AbstractContextManager[None]:
    """Return what makes an error of writing name this file, not the one that stands in for it until it is complete."""
    from gem_ood.storage import naming as naming_target

    return naming_target(out)


def listed(text: str | None) -> list[str] | None:
    """Return the parts of a list with commas, or None for none.

    >>> listed("gem, knn")
    ['gem', 'knn']
    """
    return None if text is None else [name.strip() for name in text.split(",")]
