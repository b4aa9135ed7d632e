"""What a cluster's failures mean to the caller: one clear error instead of the tracebacks of many processes."""

import gc
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
from ray import exceptions

from gem_ood import errors
from gem_ood.errors import ClusterError, FileFormatError, InputError

__all__ = ["clear_errors", "first_line", "out_of_memory", "placed"]

#: How an error of this library reads at the end of a worker's traceback, and how Ray names a file it cannot read.
_OURS = re.compile(r"^gem_ood\.[\w.]*?(\w*Error): (.+)$", re.MULTILINE)
_FRAGMENT = re.compile(r"Failed to read fragment (.+?) after \d+")

#: How the header of a worker's traceback begins, which Ray may paint.
_HEADER = re.compile(r"^(\x1b\[\d+m)?ray::")

#: How Ray says that the constructor of a step failed.
_NEVER_STARTED = "error raised in its creation task"

#: What a worker, or the machine below it, died of.
_LOST = (
    exceptions.WorkerCrashedError,
    exceptions.NodeDiedError,
    exceptions.ObjectLostError,
    exceptions.RayActorError,
    exceptions.LocalRayletDiedError,
)

#: What a machine had too little of.
_FULL = (exceptions.OutOfMemoryError, exceptions.ObjectStoreFullError, MemoryError)


@contextmanager
def clear_errors() -> Iterator[None]:
    """Raise what a worker's error comes down to: this library's own, the damaged file, or what the cluster lacks."""
    try:
        yield
    except exceptions.RayError as error:
        raise _clear(_let_go(error)) from error
    except pa.ArrowException as error:
        raise InputError(
            f"the blocks of the dataset do not fit together ({first_line(str(error))}); give a column one type in all"
        ) from error


def _let_go(error: exceptions.RayError) -> exceptions.RayError:
    """Return an error that holds nothing of the run that failed.

    The frames of its traceback know the actors of that run, which keep their processors as long as anything does: the
    next run would wait for these for ever.
    """
    waiting: list[Any] = [error]
    while waiting:
        found = waiting.pop()
        if isinstance(found, BaseException) and found.__traceback__ is not None:
            found.__traceback__ = None
            waiting += [getattr(found, "cause", None), found.__cause__, found.__context__]
    gc.collect()
    return error


@contextmanager
def placed(place: str) -> Iterator[None]:
    """Let an error of this library say where the rows lie that it speaks of."""
    try:
        yield
    except InputError as error:
        text = str(error)
        if text.startswith(place.partition(", row group")[0]):  # it names the file, and maybe one row group of several
            raise
        raise type(error)(f"{place}: {text}") from error


def out_of_memory(place: str | None = None, came: str = "a worker ran out of memory, again and again") -> ClusterError:
    """Return what to say where there is too little memory for some rows."""
    return ClusterError(
        f"{'' if place is None else f'{place}: '}{came}; let fewer tasks run at a time on a machine (more CPUs per "
        f"task), make the blocks or row groups smaller, or give the machines more memory"
    )


def _clear(error: exceptions.RayError) -> Exception:
    causes = _causes(error)
    text = str(error)
    return _own(causes, text) or _lacking(causes, text) or _of_rows(error, text)


def _own(causes: list[BaseException], text: str) -> Exception | None:
    """Return the error of this library that a worker raised, from what the cluster has left of it."""
    for cause in causes:
        if isinstance(cause, InputError | ClusterError) and not isinstance(cause, exceptions.RayError):
            return cause
    ours = _OURS.findall(text)
    if not ours:
        return None
    kind, message = ours[-1]
    known: type[Exception] = getattr(errors, kind, InputError)
    return known(message.strip())


def _lacking(causes: list[BaseException], text: str) -> ClusterError | None:
    """Return what the machines had too little of, or that they were lost."""
    if any(isinstance(cause, _FULL) for cause in causes) or re.match(r"[\w.]*MemoryError\b", _root_error(text)):
        return out_of_memory()
    if any(isinstance(cause, exceptions.OutOfDiskError) for cause in causes):
        return ClusterError("the disk of a machine is full; free some of it, or let Ray spill to a larger one")
    if any(isinstance(cause, _LOST) for cause in causes) and _NEVER_STARTED not in text:
        return ClusterError(
            f"a worker or machine was lost and its work could not be done again ({first_line(text)}); start the job "
            f"again, and look into Ray's logs if it happens again"
        )
    return None


def _of_rows(error: exceptions.RayError, text: str) -> Exception:
    """Return what is wrong with the rows, or with a step that makes them."""
    root = _root_error(text)
    damaged = _FRAGMENT.search(text)
    if damaged:
        return FileFormatError(_about_damage(damaged.group(1), root))
    if _NEVER_STARTED in text:
        return InputError(f"a worker of the dataset could not start: {root}; mend the step that it was to do")
    if isinstance(error, exceptions.RayTaskError):
        return InputError(f"a block of the dataset failed: {root}; mend the rows or the step before this one")
    return ClusterError(
        f"the cluster could not finish ({type(error).__name__}: {first_line(text)}); start the job again"
    )


def _causes(error: BaseException | None) -> list[BaseException]:
    """Return an error and what it came from, outermost first."""
    found: list[BaseException] = []
    while isinstance(error, BaseException) and error not in found:
        found.append(error)
        error = getattr(error, "cause", None) or error.__cause__
    return found


def _about_damage(path: str, root: str) -> str:
    from gem_ood.files.parquet_sets import damaged_row_group

    group = damaged_row_group(Path(path))
    if group is None:
        return f"{path} is not a Parquet file, or is damaged or truncated ({root}); write it again"
    return f"{path}, row group {group}: the file is damaged or truncated ({root}); write it again"


def _root_error(text: str) -> str:
    r"""Return the last error that a traceback names, without the workings of Ray.

    >>> _root_error('Traceback\n  File "steps.py", line 3, in clean\nValueError: odd\nFailed to apply UDF transform')
    'ValueError: odd'
    """
    lines = [line for line in text.splitlines() if line.strip()]
    named = [
        line.strip()
        for before, line in zip(["ray::", *lines], lines, strict=False)
        if (before[0].isspace() or _HEADER.match(before) or before.startswith("Traceback"))
        and re.match(r"(?!ray\.|ray::)[A-Za-z_][\w.]*(: .*)?$", line)
    ]
    found = named[-1] if named else first_line(text)
    return "".join(filter(str.isprintable, found)).rstrip(".: ")


def first_line(text: str) -> str:
    """Return the first line of a message that says something."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[0].rstrip(".") if lines else "no message"
