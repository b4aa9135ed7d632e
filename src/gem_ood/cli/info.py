"""`gem-ood info`: what is in a file, and what to do with it next."""

import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gem_ood.cli.console import print_json, print_table, print_text
from gem_ood.cli.options import ROWS, Json
from gem_ood.cli.voice import step, tell, watching

if TYPE_CHECKING:
    from gem_ood.files import DetectorInfo, FileInfo, RowsInfo

__all__ = ["info"]

#: How many arrays, columns or classes are named; --json has all of them.
SHOWN_ARRAYS, SHOWN_NAMES = 20, 10

KINDS = {"rows": "rows of features", "head": "a classifier's last layer", "arrays": "arrays"}


def info(
    file: Annotated[Path, typer.Argument(metavar="FILE", help=f"A saved detector, or arrays or columns: {ROWS}.")],
    *,
    json: Json = False,
) -> None:
    """Say what is in a file: a detector, rows of features, or a classifier's last layer.

    Every row is read once, a batch at a time, so the file may be larger than memory.

    Examples:
        gem-ood info train.npz
        gem-ood info parts/
        gem-ood info gem.safetensors --json
    """
    from gem_ood.errors import InputError
    from gem_ood.files import describe

    if str(file) == "-":
        raise InputError("- stands for standard input, which cannot be read; pass the path of a file")
    with watching() as progress, step(f"reading {file}"):
        found = describe(file, on_rows=progress.watch(file.name, None))
    if json:
        print_json(found.as_dict())
    else:
        _print(found)


def _print(found: "FileInfo") -> None:
    size = _size(found.n_bytes)
    if found.detector is not None:
        guard = found.detector.guard
        what = "a saved detector" if guard is None else f"a saved guard of a PyTorch model ({guard['kind']})"
        print_text(f"{found.path}: {what}, {size}")
        _print_pairs(_about_detector(found.detector))
    else:
        form = found.format if found.n_files is None else _counted(found.n_files, f"{found.format} file")
        print_text(f"{found.path}: {KINDS[found.kind]}, {form}, {size}")
        if found.rows is not None:
            _print_pairs(_about_rows(found.rows))
        elif found.head is not None:
            _print_pairs(_about_head(found.head))
        elif found.remark is not None:
            remark = found.remark.removeprefix(f"{found.path} ").replace("with features", "with --features")
            print_text(f"Not read as rows: {remark}")
    is_table = found.format in ("parquet", "csv")
    shown = found.arrays[:SHOWN_ARRAYS]
    header = ["column", "type"] if is_table else ["array", "type", "shape"]
    rows = [
        [array.name or "(no name)", array.dtype, " × ".join(map(str, array.shape)) or "one value"][: len(header)]
        for array in shown
    ]
    print_text("")
    print_table(header, rows, n_names=2)
    if len(found.arrays) > len(shown):
        print_text(f"... and {len(found.arrays) - len(shown):,} more")
    hint = _hint(found)
    if hint is not None:
        tell("")
        tell(hint)


def _print_pairs(pairs: Iterable[tuple[str, str]]) -> None:
    for name, value in pairs:
        print_text(f"  {name + ':':<13}{value}")


def _about_detector(detector: "DetectorInfo") -> Iterable[tuple[str, str]]:
    yield "method", detector.method
    yield "options", ", ".join(f"{name}={value}" for name, value in detector.options.items()) or "none"
    if detector.guard is not None:
        yield "guard", ", ".join(f"{name}={value}" for name, value in detector.guard["settings"].items())
    names = "" if detector.feature_names is None else f": {_some(detector.feature_names)}"
    yield "features", f"{detector.n_features:,}{names}"
    yield "classes", f"{len(detector.classes):,}: {_some(detector.classes)}"
    if detector.threshold is None:
        yield "threshold", "none yet: the detector scores, but gives no verdicts"
    else:
        threshold = detector.threshold
        yield "threshold", f"{threshold['value']:.6g} ({threshold['method']}, {threshold['n_rows']:,} calibration rows)"
        yield "guarantee", str(detector.guarantee)
    yield "written by", f"gem-ood {detector.library_version}, file format {detector.format_version}"


def _about_rows(rows: "RowsInfo") -> Iterable[tuple[str, str]]:
    found = rows.statistics
    yield "rows", f"{rows.n_rows:,}"
    named = _some([name for name in rows.features if name])
    yield "features", f"{rows.n_features:,}{f', from {named}' if named else ''}"
    if rows.left_out:
        yield "left out", f"{_some(rows.left_out)}: not every value is a number"
    if rows.labels is None:
        yield "labels", "none"
    else:
        is_classes = found.n_classes is not None
        classes = _counted(found.n_classes, "class", "classes") if is_classes else "more than 100,000 different values"
        yield "labels", f"{rows.labels}, {classes}"
    if found.smallest_class is not None and found.largest_class is not None:
        (small, fewest), (large, most) = found.smallest_class, found.largest_class
        which = f" ({small})" if found.n_classes == 1 else " each"
        if fewest < most:
            which = f" ({small}) to {_counted(most, 'row')} ({large})"
        yield "class sizes", _counted(fewest, "row") + which
    if found.n_missing_labels:
        yield "no label", _counted(found.n_missing_labels, "row")
    if found.n_bad_rows:
        what = "with NaN, infinity or a missing value"
        where = "" if found.first_bad_file is None else f" of {found.first_bad_file}"
        first = f"row {found.first_bad_row:,}{where}"
        yield "bad rows", f"{found.n_bad_rows:,} {what}; the first is {first}, counted from 0"
    else:
        yield "bad rows", "none: all numbers are finite"
    if found.constant_columns:
        names = rows.features if len(rows.features) == rows.n_features else None
        yield "constant", _places(found.constant_columns, names)
    if found.zero_columns:
        yield "of these 0", _places(found.zero_columns, names)


def _about_head(head: Any) -> Iterable[tuple[str, str]]:
    yield "classes", f"{head['n_classes']:,}" + (f": {_some(head['classes'])}" if head["classes"] else "")
    yield "features", f"{head['n_features']:,}"
    yield "bias", "yes" if head["has_bias"] else "no"


def _places(places: Sequence[int], names: Sequence[str] | None) -> str:
    shown = [str(place) if names is None else names[place] for place in places]
    return f"{_counted(len(places), 'column')}: {_some(shown)}"


def _counted(number: int | None, one: str, many: str | None = None) -> str:
    return f"{number:,} {one if number == 1 else many or f'{one}s'}"


def _hint(found: "FileInfo") -> str | None:
    """Return the command, or the line of Python, that comes next, if there is one."""
    path = shlex.quote(found.path)
    if found.detector is not None:
        return _detector_hint(found.detector, found.path)
    if found.head is not None:
        return f"Next: gem-ood fit FILE --out energy.safetensors --method energy --head {path}"
    if found.rows is None:
        return "Name the features with --features where a command reads this file" if found.candidates else None
    if found.rows.statistics.n_bad_rows:
        return "Next: remove or impute the bad rows; no detector takes them"
    return f"Next: gem-ood fit {path} --out detector.safetensors"


def _detector_hint(detector: "DetectorInfo", path: str) -> str:
    if detector.guard is not None:
        return f"Next, in Python: gem_ood.torch.{detector.guard['kind']}.load(model, {path!r})"
    if detector.threshold is None:
        return f"Next, with rows that the fit has not seen: gem-ood calibrate {shlex.quote(path)} FILE"
    return f"Next, with new rows: gem-ood score {shlex.quote(path)} FILE"


def _some(names: Sequence[Any]) -> str:
    return ", ".join(map(str, names[:SHOWN_NAMES])) + (", ..." if len(names) > SHOWN_NAMES else "")


def _size(n_bytes: int) -> str:
    """Return a size in the unit that suits it.

    >>> _size(1), _size(2048), _size(3_500_000)
    ('1 byte', '2.0 kB', '3.5 MB')
    """
    if n_bytes < 1000:
        return f"{n_bytes} byte{'' if n_bytes == 1 else 's'}"
    size, units = float(n_bytes), iter(("kB", "MB", "GB", "TB"))
    unit = "bytes"
    while size >= 1000.0 and unit != "TB":
        size, unit = size / 1000.0, next(units)
    return f"{size:.1f} {unit}"
