"""Detectors at work on files: rows come in batches, and only one number or verdict per row is kept."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from gem_ood import storage
from gem_ood.batches import Batches
from gem_ood.detectors import Combine, Detector, Verdicts, columns
from gem_ood.detectors.columns import fitted_names, without_names_warning
from gem_ood.errors import FileFormatError, InputError
from gem_ood.files.part_directories import part_directory
from gem_ood.files.reading import FeatureFile
from gem_ood.files.writing import Columns, write_columns
from gem_ood.thresholds import rank_scores, threshold_order
from gem_ood.thresholds.calibration import Method

__all__ = [
    "KEPT_SCORES",
    "calibrate_on_file",
    "calibrate_on_ranks",
    "directory_parts",
    "fitted_names",
    "input_states",
    "no_verdicts",
    "read_verdicts",
    "refuse_other_columns",
    "score_file",
    "score_plan",
    "score_to_directory",
    "without_names_warning",
    "write_verdicts",
]

#: So many calibration scores are all kept in a detector; of more, those that p-values within 0.1 % need.
KEPT_SCORES = 1_000_000

Fitted = TypeVar("Fitted", bound=Detector)


def score_file(detector: Detector, file: FeatureFile) -> Iterator[Verdicts]:
    """Yield the verdicts on the rows of a file, a batch at a time, in the order of the file."""
    refuse_other_columns(detector, file)
    for batch in file.without_labels().batches():
        with without_names_warning():
            verdicts = detector.verdicts(batch.features)
        yield verdicts


def calibrate_on_file(
    detector: Detector, file: FeatureFile, *, tpr: float = 0.95, confidence: float | None = None
) -> Detector:
    """Return the detector with its threshold set from the rows of a file, which the fit has not seen.

    Of more than a million rows the detector keeps ranked scores (`calibrate_ranked`), but for `Combine`.
    """
    refuse_other_columns(detector, file)
    with without_names_warning():
        scores = [detector.evidence(batch.features) for batch in file.without_labels().batches()]
    if sum(map(len, scores)) <= KEPT_SCORES or isinstance(detector, Combine):
        return detector.calibrate_scores(np.concatenate(scores), tpr=tpr, confidence=confidence)
    return calibrate_on_ranks(detector, [(part, None) for part in scores], tpr=tpr, confidence=confidence)


def calibrate_on_ranks(
    detector: Fitted,
    scores: Batches,
    *,
    tpr: float | None = None,
    confidence: float | None = None,
    method: Method | None = None,
) -> Fitted:
    """Return the detector with its threshold set from re-iterable or spread batches of scores, of which it keeps some.

    The score of the order that the threshold has is among them, so the threshold is that of all scores.
    """
    options: dict[str, Any] = {"tpr": detector.tpr if tpr is None else tpr, "confidence": confidence, "method": method}
    ranked = rank_scores(scores, orders=lambda n_rows: [threshold_order(n_rows, **options).order])
    return detector.calibrate_ranked(ranked, **options)


def score_to_directory(
    detector: Detector,
    file: FeatureFile,
    out: str | os.PathLike[str],
    *,
    on_columns: Callable[[Columns], None] | None = None,
) -> int:
    """Write the verdicts on a set of Parquet files to a directory and return the number of rows.

    There is one Parquet file for each of the set, of the same name and with the same rows, and the directory appears
    once all are complete. After a failure, the same call goes on with the files that are missing.

    Args:
        detector: A fitted detector.
        file: The rows, as `open_features` opened them.
        out: The directory, which must not be there yet, or be empty.
        on_columns: Called with the columns of each batch, in the order of the rows.

    Example:
        >>> import tempfile
        >>> from gem_ood import GEM
        >>> from gem_ood.files import open_features
        >>> with tempfile.TemporaryDirectory() as place:
        ...     (Path(place) / "rows").mkdir()
        ...     for name in ("a", "b"):
        ...         _ = write_columns(Path(place) / f"rows/{name}.parquet", [{"x": np.arange(5.0)}])
        ...     file = open_features(Path(place) / "rows")
        ...     n_rows = score_to_directory(GEM().fit_batches(file), file, Path(place) / "scores")
        ...     n_rows, sorted(path.name for path in (Path(place) / "scores").iterdir())
        (10, ['a.parquet', 'b.parquet'])
    """
    rows_of = directory_parts(detector, file)
    n_rows = 0
    with part_directory(out, parts=input_states(file), plan=score_plan(detector, file)) as parts:
        missing = set(parts.missing())
        for name, rows in rows_of.items():
            path = parts.path_of(name)
            found = _verdict_columns(detector, rows) if name in missing else read_verdicts(path)
            watched = _watched(found, file, n_rows, on_columns)
            n_rows += write_columns(path, watched) if name in missing else sum(map(_n_rows, watched))
    return n_rows


def directory_parts(detector: Detector, file: FeatureFile) -> dict[str, FeatureFile]:
    """Return the rows of each file of a set, by its name; raise if the detector cannot judge them."""
    refuse_other_columns(detector, file)
    if file.parquet is None:
        raise InputError(f"{file.path} is no set of Parquet files; write its verdicts to one file")
    names = [part.name for part in file.parquet.files]
    return dict(zip(names, file.without_labels().parts(), strict=True))


def write_verdicts(detector: Detector, file: FeatureFile, path: Path) -> int:
    """Write the verdicts on one file of a set, all or nothing, and return the number of rows."""
    return write_columns(path, _verdict_columns(detector, file))


def _verdict_columns(detector: Detector, file: FeatureFile) -> Iterator[Columns]:
    if file.n_rows == 0:
        yield no_verdicts(detector)
        return
    for verdicts in score_file(detector, file):
        yield verdicts.columns()


def score_plan(detector: Detector, file: FeatureFile) -> dict[str, Any]:
    """Return what decides the verdicts on rows of a set of Parquet files beside the rows, for `part_directory`."""
    from gem_ood.detectors.saving import pack

    assert file.columns is not None
    return {
        "what": "verdicts",
        "detector": storage.digest(*pack(detector)),
        "features": list(file.columns.features),
    }


def input_states(file: FeatureFile) -> dict[str, Any]:
    """Return the state of each file of a set, by its name: it changes where the file does."""
    assert file.parquet is not None
    states = [(part, part.path.stat()) for part in file.parquet.files]
    return {part.name: [str(part.path.absolute()), state.st_size, state.st_mtime_ns] for part, state in states}


def no_verdicts(detector: Detector) -> dict[str, NDArray[Any]]:
    """Return the columns of the verdicts on no rows."""
    with without_names_warning():
        verdicts = detector.verdicts(np.zeros((1, detector.n_features_in_)))
    return {name: values[:0] for name, values in verdicts.columns().items()}


def read_verdicts(path: Path) -> Iterator[dict[str, NDArray[Any]]]:
    """Yield the columns of a Parquet file that `write_columns` wrote, a batch at a time."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches():
                yield {name: batch.column(name).to_numpy(zero_copy_only=False) for name in batch.schema.names}
    except (pa.ArrowException, OSError) as error:
        raise FileFormatError(
            f"{path}, which an earlier run wrote, is damaged ({error}); remove it and run again"
        ) from error


def _watched(
    found: Iterator[Columns], file: FeatureFile, n_rows: int, on_columns: Callable[[Columns], None] | None
) -> Iterator[Columns]:
    """Yield the columns on, telling whoever watches the set how far it is."""
    for batch in found:
        yield batch
        n_rows += _n_rows(batch)
        if on_columns is not None:
            on_columns(batch)
        if file.on_rows is not None:
            file.on_rows(n_rows)


def _n_rows(batch: Columns) -> int:
    return len(batch["score"])


def refuse_other_columns(detector: Detector, file: FeatureFile) -> None:
    """Raise if the rows of the file are not as wide as those of the fit, or are other columns by default."""
    if file.is_choice_explicit and file.feature_names is not None:
        columns.refuse_other_order(file.feature_names, fitted_names(detector))
    names = None if file.is_choice_explicit else file.feature_names
    columns.refuse_other_columns(detector, title=str(file.path), n_features=file.n_features, columns=names)
