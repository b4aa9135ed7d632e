"""Where a command's work is done: in this process, or by the workers of a Ray cluster, with the same results."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol

import typer

from gem_ood.cli.voice import detail

__all__ = ["Address", "Engine", "EngineName", "labels_seen_by", "opened_engine", "seen_by"]

ENGINE_PANEL = "Engine"

EngineName = Annotated[
    Literal["local", "ray"],
    typer.Option(rich_help_panel=ENGINE_PANEL, help="Do the work in this process, or on a Ray cluster (gem-ood[ray])."),
]
Address = Annotated[
    str | None,
    typer.Option(
        metavar="HOST:PORT",
        rich_help_panel=ENGINE_PANEL,
        help="The head of a running Ray cluster whose machines all see FILE; auto for the one on this machine. "
        "Default: workers of this machine, one per core.",
    ),
]

OnRows = Callable[[int], None]


class Engine(Protocol):
    """What is done to the rows of an opened file or set of files."""

    def fit(self, detector: Any, rows: Any, on_rows: OnRows, *, classes: Any) -> None:
        """Fit the detector."""

    def calibrate(self, detector: Any, rows: Any, on_rows: OnRows, *, tpr: float, confidence: float | None) -> None:
        """Set the detector's threshold."""

    def verdicts(self, detector: Any, rows: Any, on_rows: OnRows) -> Iterator[Any]:
        """Yield the verdicts on all rows, in order."""
        ...

    def score_to_directory(
        self, detector: Any, rows: Any, out: Path, on_rows: OnRows, *, on_columns: Callable[[Any], None]
    ) -> None:
        """Write the verdicts on a set of files, one file for each."""


@contextmanager
def opened_engine(name: str, address: str | None) -> Iterator[Engine]:
    """Yield the engine asked for; one that has workers lets them go at the end."""
    from gem_ood.errors import InputError

    if name == "local":
        if address is not None:
            raise InputError("--address is that of a Ray cluster; pass --engine ray with it")
        yield _LocalEngine()
        return
    from gem_ood.ray.session import session

    with session(address):
        import ray

        detail(f"connected to Ray at {ray.get_runtime_context().gcs_address}")
        yield _RayEngine()


def seen_by(engine: str, path: Path) -> Path:
    """Return the path as the workers of an engine see it: they may have another working directory."""
    return path if engine == "local" else path.absolute()


def labels_seen_by(engine: str, labels: str | None) -> str | None:
    """Return the name of labels, or the path of their file as the workers of an engine see it."""
    is_file = labels is not None and labels.lower().endswith(".npy")
    return str(seen_by(engine, Path(str(labels)))) if is_file else labels


class _LocalEngine:
    def fit(self, detector: Any, rows: Any, on_rows: OnRows, *, classes: Any) -> None:
        detector.fit_batches(rows.watched(on_rows), classes=classes)

    def calibrate(self, detector: Any, rows: Any, on_rows: OnRows, *, tpr: float, confidence: float | None) -> None:
        from gem_ood.files import calibrate_on_file

        calibrate_on_file(detector, rows.watched(on_rows), tpr=tpr, confidence=confidence)

    def verdicts(self, detector: Any, rows: Any, on_rows: OnRows) -> Iterator[Any]:
        from gem_ood.files import score_file

        return score_file(detector, rows.watched(on_rows))

    def score_to_directory(
        self, detector: Any, rows: Any, out: Path, on_rows: OnRows, *, on_columns: Callable[[Any], None]
    ) -> None:
        from gem_ood.files import score_to_directory

        score_to_directory(detector, rows.watched(on_rows), out, on_columns=on_columns)


class _RayEngine:
    def fit(self, detector: Any, rows: Any, on_rows: OnRows, *, classes: Any) -> None:
        from gem_ood.ray.spread import FileRows

        detector.fit_batches(FileRows(rows, on_rows=on_rows), classes=classes)

    def calibrate(self, detector: Any, rows: Any, on_rows: OnRows, *, tpr: float, confidence: float | None) -> None:
        from gem_ood.files.streaming import refuse_other_columns
        from gem_ood.ray.calibrating import calibrate_on
        from gem_ood.ray.spread import FileRows

        refuse_other_columns(detector, rows)
        calibrate_on(FileRows(rows, on_rows=on_rows), detector, tpr=tpr, confidence=confidence)

    def verdicts(self, detector: Any, rows: Any, on_rows: OnRows) -> Iterator[Any]:
        from gem_ood.ray.file_scoring import score_file

        return score_file(detector, rows, on_rows)

    def score_to_directory(
        self, detector: Any, rows: Any, out: Path, on_rows: OnRows, *, on_columns: Callable[[Any], None]
    ) -> None:
        from gem_ood.ray.file_scoring import score_to_directory

        score_to_directory(detector, rows, out, on_rows, on_columns=on_columns)
