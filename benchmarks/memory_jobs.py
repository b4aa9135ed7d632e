"""A library's fit and score in a process of their own: ``python memory_jobs.py JOB ARGUMENTS`` prints megabytes.

What a call takes is the most memory that the process held during it, less what it held before: after the input was
made and a small fit and score, so that modules, thread pools and the buffers of a BLAS are not counted.
"""

from __future__ import annotations

import itertools
import json
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np

from gem_ood import GEM
from libraries import OURS, fitting_libraries
from machine import give_back_freed_memory
from peers import ALL_PAIRS, Features, Labels, Peer

__all__ = ["Peak", "run_job"]

Result = TypeVar("Result")

STATUS = Path("/proc/self/status")
# Written here, the number 5 sets the mark of the most memory held back to what is held now (Linux, proc(5)).
RESET = Path("/proc/self/clear_refs")
# With the number 1000 here, a process that needs more memory than there is is ended before any other (Linux, proc(5)).
ENDED_FIRST = Path("/proc/self/oom_score_adj")
# Rows are drawn in pieces, so that drawing them leaves no mark of its own.
PIECE_ROWS = 1_000
BATCH_ROWS = 2_000
# The slowest fit, a matrix of 2,048 x 2,048 for each of 1,000 classes, takes a good part of it.
MOST_SECONDS = 120
WARM_UP = (300, 16, 3)


@dataclass(frozen=True)
class Peak:
    """Megabytes that a call took at its peak, and that were still held when it had returned."""

    megabytes: float
    kept: float
    #: Whether the mark could be reset; if not, a peak from before may hide the call's, which took this or more.
    is_exact: bool


def run_job(job: str, *arguments: object) -> dict[str, Peak]:
    """What the calls of a job took, by their names."""
    command = [sys.executable, __file__, job, *map(str, arguments)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=MOST_SECONDS)
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"{job} was ended after {MOST_SECONDS} s") from None
    if done.returncode:
        raise RuntimeError(f"{job} ended with {done.returncode}: {(done.stderr.strip().splitlines() or [''])[-1]}")
    return {name: Peak(**fields) for name, fields in json.loads(done.stdout.splitlines()[-1]).items()}


def fit_and_score(name: str, shape: str, rows: str, fitted: str, queries: str) -> dict[str, Peak]:
    """A fit of arrays, of as many rows as ``fitted`` says where a fit goes by scoring, then the score of other rows."""
    library = _warmed_up(name, with_score=int(queries) > 0)
    dimensions, classes = map(int, shape.split("x"))
    features, labels = _draw(int(rows), dimensions, classes)
    fit = library.fitter(features, labels, rows=int(fitted))
    detector, fitting = _measured(fit)
    if int(queries) == 0:
        return {"fit": fitting}
    del features, labels, fit
    score = library.scorer(detector, _draw(int(queries), dimensions, classes)[0])
    return {"fit": fitting, "score": _measured(score)[1]}


def fit_batches(shape: str, rows: str) -> dict[str, Peak]:
    """Our fit of a stream of batches, which are one array over and over, so that the stream itself takes nothing."""
    _warmed_up(OURS, with_score=False)
    dimensions, classes = map(int, shape.split("x"))
    batch = _draw(BATCH_ROWS, dimensions, classes)
    batches = Repeated(batch, int(rows) // BATCH_ROWS)
    return {"fit": _measured(lambda: GEM().fit_batches(batches))[1]}


@dataclass(frozen=True)
class Repeated:
    """One batch many times, as often as asked; ``fit_batches`` may read a stream twice and so takes no generator."""

    batch: tuple[Features, Labels]
    times: int

    def __iter__(self) -> Iterator[tuple[Features, Labels]]:
        return itertools.repeat(self.batch, self.times)


def _warmed_up(name: str, *, with_score: bool) -> Peer:
    known = (*fitting_libraries(with_peers=True), *ALL_PAIRS)
    library = next(library for library in known if library.name == name)
    features, labels = _draw(*WARM_UP)
    detector = library.fitter(features, labels)()
    if with_score:
        library.scorer(detector, features)()
    return library


def _draw(rows: int, dimensions: int, classes: int) -> tuple[Features, Labels]:
    rng = np.random.default_rng(0)
    labels = np.arange(rows) % classes
    means = rng.standard_normal((classes, dimensions), dtype=np.float32)
    features = np.empty((rows, dimensions), np.float32)
    for start in range(0, rows, PIECE_ROWS):
        piece = features[start : start + PIECE_ROWS]
        rng.standard_normal(dtype=np.float32, out=piece)
        piece += means[labels[start : start + PIECE_ROWS]]
    return features, labels


def _measured(call: Callable[[], Result]) -> tuple[Result, Peak]:
    """What the call returned and the memory that it took."""
    give_back_freed_memory()
    is_exact = _reset_mark()
    before = _held()
    result = call()
    peak = _most_held()
    give_back_freed_memory()
    return result, Peak(max(0.0, peak - before), max(0.0, _held() - before), is_exact)


def _reset_mark() -> bool:
    try:
        RESET.write_text("5")
    except OSError:
        return False
    return True


def _held() -> float:
    return _status("VmRSS") if STATUS.exists() else _most_held()


def _most_held() -> float:
    if STATUS.exists():
        return _status("VmHWM")
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6


def _status(field: str) -> float:
    lines = STATUS.read_text().splitlines()
    return next(int(line.split()[1]) * 1024 / 1e6 for line in lines if line.startswith(f"{field}:"))


JOBS = {job.__name__: job for job in (fit_and_score, fit_batches)}

if __name__ == "__main__":
    with suppress(OSError):
        ENDED_FIRST.write_text("1000")
    found = JOBS[sys.argv[1]](*sys.argv[2:])
    print(json.dumps({name: vars(peak) for name, peak in found.items()}))
