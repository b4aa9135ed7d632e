"""Verdicts on the rows of files, judged by the tasks of a cluster, that come here in the order of the rows."""

import os
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ray

from gem_ood.detectors import Detector, Verdicts
from gem_ood.detectors.columns import without_names_warning
from gem_ood.features import as_features
from gem_ood.files import FeatureFile
from gem_ood.files.part_directories import part_directory
from gem_ood.files.streaming import (
    directory_parts,
    input_states,
    read_verdicts,
    refuse_other_columns,
    score_plan,
    write_verdicts,
)
from gem_ood.files.writing import Columns
from gem_ood.ray.failures import clear_errors
from gem_ood.ray.pieces import FilePiece, cut
from gem_ood.ray.reducing import RETRIES, Failed, OnRows, Tally, attempt, cancel
from gem_ood.ray.spread import fetched, tasks_at_once

__all__ = ["score_file", "score_to_directory"]


def score_file(detector: Detector, file: FeatureFile, on_rows: OnRows | None = None) -> Iterator[Verdicts]:
    """Yield the verdicts on the rows of a file or a set of files, in their order, as `gem_ood.files.score_file` does.

    Tasks judge some pieces ahead of the one that is asked for; no more verdicts than theirs are held.
    """
    refuse_other_columns(detector, file)
    reference = [ray.put(detector)]  # in a list, or each task would be handed its own copy of the detector
    ahead: deque[Any] = deque()
    n_rows = 0
    try:
        for piece in cut(file.without_labels()):
            ahead.append(_judge.remote(reference, piece))
            if len(ahead) > tasks_at_once():
                verdicts = _fetched_verdicts(ahead.popleft())
                n_rows = _told(verdicts, n_rows, on_rows)
                yield verdicts
        while ahead:
            verdicts = _fetched_verdicts(ahead.popleft())
            n_rows = _told(verdicts, n_rows, on_rows)
            yield verdicts
    finally:
        cancel(ahead)  # a failure, or verdicts that nobody asks for any more


def _fetched_verdicts(reference: Any) -> Verdicts:
    with clear_errors():
        found: Verdicts | Failed = ray.get(reference)
    if isinstance(found, Failed):
        raise found.error
    return found


def _told(verdicts: Verdicts, n_rows: int, on_rows: OnRows | None) -> int:
    n_rows += len(verdicts.score)
    if on_rows is not None:
        on_rows(n_rows)
    return n_rows


@ray.remote(max_retries=RETRIES)
def _judge(reference: list[Any], piece: FilePiece) -> Verdicts | Failed:
    detector: Detector = fetched(reference[0])
    with without_names_warning():
        return attempt(lambda: Verdicts.joined([detector.verdicts(as_features(X)) for X, _ in piece]), piece.place)


def score_to_directory(
    detector: Detector,
    file: FeatureFile,
    out: str | os.PathLike[str],
    on_rows: OnRows | None = None,
    *,
    on_columns: Callable[[Columns], None] | None = None,
) -> int:
    """Write the verdicts on a set of Parquet files to a directory, as `gem_ood.files.score_to_directory` does.

    A task judges one file and writes its verdicts, so every machine must see both directories under the same paths.
    """
    rows_of = directory_parts(detector, file)
    reference = [ray.put(detector)]
    with part_directory(out, parts=input_states(file), plan=score_plan(detector, file)) as parts:
        tally = Tally(on_rows)
        try:
            with clear_errors():
                for name in parts.missing():
                    tally.settle(tasks_at_once() - 1)
                    tally.add(_write_verdicts.remote(reference, rows_of[name], parts.path_of(name).absolute()))
                tally.settle(0)
        except BaseException:
            tally.cancel()
            raise
        n_rows = 0
        for name in rows_of:
            for columns in read_verdicts(parts.path_of(name)):
                n_rows += len(columns["score"])
                if on_columns is not None:
                    on_columns(columns)
    return n_rows


@ray.remote(max_retries=RETRIES)
def _write_verdicts(reference: list[Any], file: FeatureFile, path: Path) -> int | Failed:
    detector: Detector = fetched(reference[0])
    return attempt(lambda: write_verdicts(detector, file, path), str(file.path))
