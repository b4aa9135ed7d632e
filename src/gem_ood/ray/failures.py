"""What a cluster's failures mean to the caller: one clear error instead of the tracebacks of many processes."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ray import exceptions

from gem_ood import errors
from gem_ood.errors import FileFormatError, InputError

__all__ = ["ClusterError", "clear_errors", "placed"]

#: How an error of this library reads at the end of a worker's traceback, and how Ray names a file it cannot read.
_OURS = re.compile(r"^gem_ood\.errors\.(\w+): (.+)$", re.MULTILINE)
_FRAGMENT = re.compile(r"Failed to read fragment (.+?) after \d+")


class ClusterError(RuntimeError):
    """The cluster could not finish: workers died or ran out of memory more often than they were started again."""


@contextmanager
def clear_errors() -> Iterator[None]:
    """Raise what a worker's error comes down to: this library's own error, the damaged file, or what the cluster lacks."""
    try:
        yield
    except exceptions.RayError as error:
        raise _clear(error) from error


@contextmanager
def placed(place: str) -> Iterator[None]:
    """Let an error of this library say where the rows lie that it speaks of."""
    try:
        yield
    except InputError as error:
        text = str(error)
        raise error if text.startswith(place) else type(error)(f"{place}: {text}") from error


def _clear(error: exceptions.RayError) -> Exception:
    text = str(error)
    ours = _OURS.findall(text)
    if ours:
        kind, message = ours[-1]
        return getattr(errors, kind, InputError)(message.strip())
    damaged = _FRAGMENT.search(text)
    if damaged:
        return FileFormatError(_about_damage(damaged.group(1), error))
    if isinstance(error, exceptions.OutOfMemoryError) or "MemoryError" in text:
        return ClusterError(
            "a worker ran out of memory and was started again in vain; let fewer run on a machine (more CPUs per task), "
            "make the blocks smaller, or give the machines more memory"
        )
    lost = (exceptions.WorkerCrashedError, exceptions.NodeDiedError, exceptions.ObjectLostError)
    if isinstance(error, lost):
        return ClusterError(
            f"a worker or machine was lost and its work could not be done again ({type(error).__name__}: "
            f"{_last_line(text)}); start the job again, and look into Ray's logs if it happens again"
        )
    return InputError(f"a block of the dataset failed: {_last_error(text)}; mend the rows or the step before this one")


def _about_damage(path: str, error: Exception) -> str:
    from gem_ood.files.parquet_sets import damaged_row_group

    group = damaged_row_group(Path(path))
    place = path if group is None else f"{path}, row group {group}"
    return f"{place} is not a Parquet file, or is damaged or truncated ({_last_error(str(error))}); write it again"


def _last_error(text: str) -> str:
    """Return the last line of a traceback that names an error, without the workings of Ray.

    >>> _last_error("Traceback\\nValueError: odd\\nFailed to apply UDF transform after 1/1 attempts")
    'ValueError: odd'
    """
    lines = [line.strip() for line in text.splitlines()]
    named = [line for line in lines if re.match(r"^(?!ray\.)[\w.]*(Error|Exception|Invalid)\b.*: ", line)]
    return (named[-1] if named else _last_line(text)).rstrip(".")


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1].rstrip(".") if lines else "no message"
