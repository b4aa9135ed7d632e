"""What a file is and holds: a saved detector, rows of features, a classifier's last layer, or other arrays."""

import os
import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from gem_ood.errors import FileFormatError, InputError
from gem_ood.files.listing import is_file_set
from gem_ood.files.reading import READABLE, FeatureFile, open_features, refuse_unreadable
from gem_ood.files.row_statistics import RowStatistics, row_statistics
from gem_ood.files.sources import LABEL_NAMES, Member
from gem_ood.numpy_format import ArrayHeader, archive_headers

__all__ = ["ArrayInfo", "DetectorInfo", "FileInfo", "RowsInfo", "describe", "holds_detector"]

Kind = Literal["detector", "rows", "head", "arrays"]

TABLES = (".parquet", ".csv")

#: NumPy's names for the types of safetensors; one that NumPy lacks keeps its own.
_SAFETENSORS_TYPES = {
    **{f"F{bits}": f"float{bits}" for bits in (16, 32, 64)},
    **{f"I{bits}": f"int{bits}" for bits in (8, 16, 32, 64)},
    **{f"U{bits}": f"uint{bits}" for bits in (8, 16, 32, 64)},
    "BOOL": "bool",
    "BF16": "bfloat16",
}


#: Of a file whose only two-dimensional array is one of many weights.
WEIGHTS = (
    "these look like the weights of a whole model; save its last layer alone, for scores of logits, or its features"
)


@dataclass(frozen=True)
class ArrayInfo:
    """One array or column of a file; a column's shape is () where a row has one value."""

    name: str
    dtype: str
    shape: tuple[int | None, ...]


@dataclass(frozen=True)
class DetectorInfo:
    """What a saved detector is.

    Attributes:
        method: Its registered name, such as "gem".
        options: The options that it was made with; an array is said in words.
        guard: The kind and the settings of the guarded PyTorch model that saved it; None for a detector alone.
        n_features: How many numbers a row has.
        feature_names: The columns of the fit, if they had names.
        classes: The names of all classes.
        threshold: `value`, `tpr`, `confidence`, `method` and `n_rows` of the calibration; None before it.
        guarantee: What the threshold promises, in one sentence.
        format_version: The version of the file format.
        library_version: The gem-ood that wrote the file.
    """

    method: str
    options: Mapping[str, Any]
    guard: Mapping[str, Any] | None
    n_features: int
    feature_names: tuple[str, ...] | None
    classes: tuple[Any, ...]
    threshold: Mapping[str, Any] | None
    guarantee: str | None
    format_version: int
    library_version: str


@dataclass(frozen=True)
class RowsInfo:
    """What a file of rows is read as, if nothing else is said.

    Attributes:
        n_rows: How many rows there are.
        n_features: How many numbers a row has.
        features: The array or the columns that are the features.
        labels: The array or column of the labels; None where there is none.
        left_out: Columns that are no features, since not every value is a number.
        statistics: What reading every row tells.
    """

    n_rows: int
    n_features: int
    features: tuple[str, ...]
    labels: str | None
    left_out: tuple[str, ...]
    statistics: RowStatistics


@dataclass(frozen=True)
class FileInfo:
    """What a file is and holds.

    Attributes:
        path: Where the file is.
        kind: "detector", "rows", "head" (a classifier's last layer) or "arrays" (none of these by default).
        format: The suffix without its dot.
        n_bytes: Its size; of a set of files, that of all together.
        n_files: Of a set of Parquet files, how many there are.
        arrays: Every array or column.
        detector: Of a detector.
        rows: Of a file of rows.
        head: Classes, features, whether there is a bias, and perhaps class names; of a head.
        remark: Of other arrays, why they are not read as rows.
        candidates: Of other arrays, those that can be named as the features.
    """

    path: str
    kind: Kind
    format: str
    n_bytes: int
    arrays: tuple[ArrayInfo, ...]
    detector: DetectorInfo | None = None
    rows: RowsInfo | None = None
    head: Mapping[str, Any] | None = field(default=None)
    remark: str | None = None
    candidates: tuple[str, ...] | None = None
    n_files: int | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return the same as plain values, without what this kind of file has not."""
        return {name: value for name, value in asdict(self).items() if value is not None}


def describe(path: str | os.PathLike[str], *, on_rows: Callable[[int], None] | None = None) -> FileInfo:
    """Return what a file is and holds; rows are read once, a batch at a time, whatever the size of the file.

    Args:
        path: A saved detector, a `.npz`, `.npy`, `.parquet`, `.csv` or `.safetensors` file of arrays, or a directory or
            pattern of `.parquet` files.
        on_rows: Called with the number of rows read so far.

    Raises:
        InputError: There is no such file, it is damaged, or it is of another kind.

    Example:
        >>> import tempfile
        >>> import numpy as np
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     path = Path(directory) / "rows.npz"
        ...     np.savez(path, features=np.eye(3), labels=["cat", "dog", "cat"])
        ...     info = describe(path)
        >>> info.kind, info.rows.n_rows, info.rows.labels, info.rows.statistics.largest_class
        ('rows', 3, 'labels', ('cat', 2))
    """
    source = Path(path)
    if holds_detector(source):
        return _detector_file(source)
    suffix = refuse_unreadable(source, READABLE)
    arrays, head = _arrays(source, suffix)
    parts: dict[str, Any] = {"format": suffix[1:], "arrays": arrays}
    if is_file_set(source):
        table = _opened_table(source, suffix)
        parts |= {"n_bytes": table.n_bytes, "n_files": len(table.files)}
    else:
        parts["n_bytes"] = source.stat().st_size
    if head is not None:
        return FileInfo(path=str(source), kind="head", head=head, **parts)
    try:
        file = _opened(source)
    except FileFormatError:
        raise
    except InputError as error:
        candidates = _candidates(source, suffix, arrays)
        return FileInfo(path=str(source), kind="arrays", remark=str(error), candidates=candidates, **parts)
    if suffix not in TABLES and any(name.endswith(".weight") for name in _chosen(file)[0]):
        return FileInfo(path=str(source), kind="arrays", remark=WEIGHTS, candidates=(), **parts)
    rows = _rows(file, on_rows)
    if rows.n_rows == 0:  # CSV tells only by now, other files as they are opened
        remark = f"{source} holds no rows; pass a file with at least one"
        return FileInfo(path=str(source), kind="arrays", remark=remark, candidates=(), **parts)
    return FileInfo(path=str(source), kind="rows", rows=rows, **parts)


def holds_detector(path: str | os.PathLike[str]) -> bool:
    """Return whether a file has the header of a saved detector, whole or damaged behind it.

    >>> holds_detector("no such file")
    False
    """
    from safetensors import SafetensorError, safe_open

    from gem_ood.storage import METADATA_KEY

    if Path(path).suffix.lower() in (".npz", ".npy", ".parquet", ".csv") or not Path(path).is_file():
        return False
    try:
        with safe_open(str(path), framework="numpy") as file:
            return METADATA_KEY in (file.metadata() or {})
    except (SafetensorError, OSError):
        return False


def _detector_file(path: Path) -> FileInfo:
    from safetensors import safe_open

    from gem_ood import storage
    from gem_ood.detectors.saving import unpack

    tensors, header = storage.read(path)
    detector = unpack(tensors, header, name=str(path))  # refuses what is not whole
    with safe_open(str(path), framework="numpy") as file:
        slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 -- safe_open is no mapping
        arrays = tuple(
            ArrayInfo(name, _type_name(tensor.get_dtype()), tuple(tensor.get_shape()))
            for name, tensor in slices.items()
        )
    shapes = {array.name: array.shape for array in arrays}
    names = getattr(detector, "feature_names_in_", None)
    threshold = detector.threshold_ if detector.is_calibrated else None
    info = DetectorInfo(
        method=str(header["detector"]),
        options={name: _in_words(value, f"option.{name}", shapes) for name, value in header["options"].items()},
        guard=header.get("guard"),
        n_features=detector.n_features_in_,
        feature_names=None if names is None else tuple(map(str, names)),
        classes=tuple(detector.classes_.tolist()),
        threshold=None if threshold is None else asdict(threshold),
        guarantee=None if threshold is None else threshold.guarantee,
        format_version=int(header["format"]),
        library_version=str(header.get("library")),
    )
    return FileInfo(
        path=str(path),
        kind="detector",
        format="safetensors",
        n_bytes=path.stat().st_size,
        arrays=arrays,
        detector=info,
    )


def _in_words(value: Any, place: str, shapes: Mapping[str, tuple[int | None, ...]]) -> Any:
    if value == {"head": True}:
        n_classes, n_features = shapes[f"{place}.weight"]
        return f"a head of {n_classes} classes and {n_features} features"
    if value == {"array": True}:
        return f"an array of shape {shapes[place]}"
    if isinstance(value, dict):
        return [part["detector"] for part in value["detectors"]]
    return value


def _arrays(path: Path, suffix: str) -> tuple[tuple[ArrayInfo, ...], Mapping[str, Any] | None]:
    """Return all arrays or columns, and what kind of head they are, if they are one."""
    if suffix in TABLES:
        columns = _opened_table(path, suffix).schema
        return tuple(ArrayInfo(entry.name, str(entry.type), ()) for entry in columns), None
    members: Mapping[str, Member]
    dtypes: dict[str, str]
    if suffix == ".safetensors":
        from gem_ood.files.safetensors_members import safetensors_members

        members = safetensors_members(path)
        dtypes = {name: _type_name(getattr(member, "dtype", "")) for name, member in members.items()}
    else:
        from gem_ood.files.numpy_members import npy_members, npz_members

        members = npy_members(path) if suffix == ".npy" else npz_members(path)
        dtypes = _numpy_types(path, suffix)
    if not members:
        raise InputError(f"{path} holds no array; write some into it")
    arrays = tuple(ArrayInfo(name, dtypes[name], member.shape) for name, member in members.items())
    return arrays, _head(path, members)


def _type_name(of_safetensors: Any) -> str:
    return _SAFETENSORS_TYPES.get(str(of_safetensors), str(of_safetensors))


def _numpy_types(path: Path, suffix: str) -> dict[str, str]:
    if suffix == ".npy":
        with path.open("rb") as stream:
            headers = {"": ArrayHeader.read(stream, str(path))}
    else:
        headers = archive_headers(path)
    names = {"O": "pickled objects", "U": "text"}
    return {name: names.get(header.kind, str(header.dtype)) for name, header in headers.items()}


def _opened_table(path: Path, suffix: str) -> Any:
    from gem_ood.files.tables import read_table

    return read_table(path, suffix)


def _candidates(path: Path, suffix: str, arrays: tuple[ArrayInfo, ...]) -> tuple[str, ...]:
    """Return what can be named as the features in place of what was tried."""
    if suffix not in TABLES:
        found = [one.name for one in arrays if len(one.shape) == 2 and 0 not in one.shape and _is_numeric(one.dtype)]
        has_usual_name = any(one.name == "features" for one in arrays)
        tried = ["features"] if has_usual_name else found if len(found) == 1 else []
        return tuple(name for name in found if name not in tried)
    import pyarrow.types as kinds

    table = _opened_table(path, suffix)
    columns = {entry.name: getattr(entry.type, "value_type", entry.type) for entry in table.schema}  # of lists, theirs
    numeric = [name for name, kind in columns.items() if kinds.is_integer(kind) or kinds.is_floating(kind)]
    others = tuple(name for name in numeric if name not in ("", "features", *LABEL_NAMES))
    has_rows = bool(others) and any(piece.batch.num_rows for piece in table.read([others[0]], None, 1))
    return others if has_rows else ()


def _is_numeric(dtype: str) -> bool:
    return dtype.startswith(("float", "bfloat", "int", "uint", "bool"))


def _head(path: Path, members: Mapping[str, Member]) -> Mapping[str, Any] | None:
    from gem_ood.files.heads import read_head_classes

    weights = [name for name in members if name == "weight" or name.endswith(".weight")]
    if "features" in members or len(weights) != 1 or len(members[weights[0]].shape) != 2:
        return None
    (weight,) = weights
    n_classes, n_features = members[weight].shape
    names = read_head_classes(path)
    return {
        "n_classes": n_classes,
        "n_features": n_features,
        "has_bias": weight.removesuffix("weight") + "bias" in members,
        "classes": None if names is None else tuple(names.tolist()),
    }


def _opened(path: Path) -> FeatureFile:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # columns left out are part of what is returned
        return open_features(path)


def _rows(file: FeatureFile, on_rows: Callable[[int], None] | None) -> RowsInfo:
    features, labels = _chosen(file)
    statistics = row_statistics(file, on_rows)
    return RowsInfo(
        n_rows=statistics.n_rows,
        n_features=file.n_features,
        features=features,
        labels=labels,
        left_out=file.left_out,
        statistics=statistics,
    )


def _chosen(file: FeatureFile) -> tuple[tuple[str, ...], str | None]:
    """Return the names of what is read as features and as labels."""
    source: Any = file.source
    if hasattr(source, "table"):
        return tuple(source.columns.features), source.columns.labels
    prefix = f"{file.path}: "
    labels = None if source.labels is None else source.labels.title.removeprefix(prefix)
    title = source.features.title
    return (title.removeprefix(prefix) if title.startswith(prefix) else "",), labels
