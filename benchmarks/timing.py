"""Interleaved timing: samplers take turns, and a measurement keeps every sample with its spread.

A sampler is a function without arguments that returns one number. ``interleave`` runs samplers A, B, C, A, B,
C, ... so that a drift of the machine hits all alike, and ``paired_ratio`` divides samples of the same round. A
sampler that is slow takes part in the first rounds only.
"""

from __future__ import annotations

import gc
import itertools
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

__all__ = [
    "NOT_MEASURED",
    "Measurement",
    "RowStopwatch",
    "Stopwatch",
    "fastest",
    "import_seconds",
    "interleave",
    "paired_ratio",
]

Sampler = Callable[[], float]

# What the reason begins with where nothing was tried, so that nothing can have failed.
NOT_MEASURED = "not measured"
# A wider spread than this says that the machine was busy, and that the median is not to be published.
TRUSTED_SPREAD = 0.25
# Idle BLAS and OpenMP workers spin for some 30 ms after a call and would slow down the next sampler's pool.
SETTLE_SECONDS = 0.15
# After that pause caches are cold and cores asleep, and calls of milliseconds would be charged with waking them: unless
# a call is longer than this, a sample begins with one that is not timed.
WARM_SECONDS = 0.5
# A sample shorter than this is repeated and averaged, so that one interrupt does not decide it.
SHORTEST_SAMPLE_SECONDS = 0.2
# A call that takes longer is measured in this many rounds only, and one that takes far longer once.
SLOW_SECONDS, SLOW_ROUNDS = 2.0, 3
ENDLESS_SECONDS = 8.0
# Rows of a call are cut down to what a sample of this length allows, but not below a number whose matrix products
# are as quick, row by row, as those of many rows.
SAMPLE_SECONDS, WHOLE_SECONDS = 0.5, 1.5
FEWEST_ROWS = 256
LARGEST_LEAP = 8


@dataclass(frozen=True)
class Measurement:
    """Samples of one quantity, or the reason why there are none, with an optional target."""

    name: str
    samples: tuple[float, ...] = ()
    unit: str = "s"
    at_most: float | None = None
    at_least: float | None = None
    note: str = ""
    failure: str = ""

    @property
    def median(self) -> float:
        """The number that is published."""
        return statistics.median(self.samples)

    @property
    def quartiles(self) -> tuple[float, float]:
        """The first and the third."""
        if len(self.samples) < 2:
            return self.samples[0], self.samples[0]
        lower, _, upper = statistics.quantiles(self.samples, n=4, method="inclusive")
        return lower, upper

    @property
    def spread(self) -> float:
        """Interquartile range as a share of the median."""
        lower, upper = self.quartiles
        return (upper - lower) / abs(self.median) if self.median else 0.0

    @property
    def is_trusted(self) -> bool:
        """Whether samples lie close enough together for their median to be believed."""
        return not self.failure and self.spread <= TRUSTED_SPREAD

    @property
    def target(self) -> str:
        """The bound in words, empty without one."""
        if self.at_most is not None:
            return f"<= {self.at_most:g}"
        return "" if self.at_least is None else f">= {self.at_least:g}"

    @property
    def verdict(self) -> str:
        """Met, MISSED, or nothing without a target; noise is said, since it may have decided the verdict."""
        if self.failure:
            return NOT_MEASURED if self.failure.startswith(NOT_MEASURED) else "FAILED"
        noise = "" if self.is_trusted else "NOISY"
        if not self.target:
            return noise
        is_met = (self.at_most is None or self.median <= self.at_most) and (
            self.at_least is None or self.median >= self.at_least
        )
        return " ".join(filter(None, ["met" if is_met else "MISSED", noise]))

    def scaled(self, factor: float, unit: str) -> Measurement:
        """The same samples in another unit."""
        return replace(self, samples=tuple(sample * factor for sample in self.samples), unit=unit)


class Stopwatch:
    """Sampler of the mean seconds of one call.

    ``prepare`` makes the call and is not timed: conversions to a library's own tensors belong there. It runs
    at the first sample, as do a warm-up call and one that decides how many calls make up a sample. Later samples of
    short calls begin with one that is not timed.
    """

    def __init__(self, prepare: Callable[[], Callable[[], object]]) -> None:
        self._prepare = prepare
        self._call: Callable[[], object] | None = None
        self._repeats = 1
        self._is_long = False
        #: How many samples to take; all rounds where it is None.
        self.most_samples: int | None = None

    def __call__(self) -> float:
        """One sample."""
        if self._call is not None:
            if not self._is_long:
                self._call()
            return _seconds(self._call, repeats=self._repeats)
        self._call = self._prepare()
        warm_up = _seconds(self._call, repeats=1)
        if warm_up > SLOW_SECONDS:  # what a first call does beside its work does not weigh here
            self._is_long, self.most_samples = True, 1 if warm_up > ENDLESS_SECONDS else SLOW_ROUNDS
            return warm_up
        once = _seconds(self._call, repeats=1)
        self._repeats, self._is_long = max(1, math.ceil(SHORTEST_SAMPLE_SECONDS / once)), once > WARM_SECONDS
        return _seconds(self._call, repeats=self._repeats)

    @property
    def note(self) -> str:
        """What a reader of its samples has to know."""
        return "measured once" if self.most_samples == 1 else ""


class RowStopwatch:
    """Sampler of the mean seconds of one row, of all of the rows or as many as ``SAMPLE_SECONDS`` allow.

    ``prepare`` makes the call on this many of the rows; a multiple of ``step`` is asked for, or all rows.
    """

    def __init__(
        self, prepare: Callable[[int], Callable[[], object]], rows: int, *, step: int = FEWEST_ROWS, note: str = ""
    ) -> None:
        self._prepare, self._all_rows, self._step, self._note = prepare, rows, step, note
        self._stopwatch: Stopwatch | None = None
        self.rows = min(step, rows)

    def __call__(self) -> float:
        """One sample."""
        if self._stopwatch is not None:
            return self._stopwatch() / self.rows
        while True:
            self._stopwatch = Stopwatch(partial(self._prepare, self.rows))
            seconds = self._stopwatch()
            if seconds < SLOW_SECONDS:  # one hiccup must not decide how many rows there are
                seconds = min(seconds, self._stopwatch())
            if self.rows == self._all_rows or seconds > SAMPLE_SECONDS / 2:
                return seconds / self.rows
            # In leaps: what a call costs beside its rows weighs on few of them, and must not be taken for theirs.
            steps = self.rows * min(LARGEST_LEAP, SAMPLE_SECONDS / seconds) // self._step
            is_close = seconds * self._all_rows / self.rows < WHOLE_SECONDS
            self.rows = self._all_rows if is_close else min(self._all_rows, self._step * int(steps))

    @property
    def most_samples(self) -> int | None:
        """See ``Stopwatch``."""
        return self._stopwatch.most_samples if self._stopwatch else None

    @property
    def note(self) -> str:
        """What a reader of its samples has to know."""
        fewer = f"by {self.rows:,} rows" if self.rows < self._all_rows else ""
        return "; ".join(filter(None, [self._note, fewer, self._stopwatch.note if self._stopwatch else ""]))


def _seconds(call: Callable[[], object], *, repeats: int) -> float:
    start = time.perf_counter()
    for _ in range(repeats):
        call()
    return (time.perf_counter() - start) / repeats


def import_seconds(
    statement: str, *, bytecode: Path | None = None, before: str = "pass", most_samples: int | None = None
) -> Sampler:
    """Sampler of the seconds that an import statement takes in a fresh interpreter, its start not counted.

    The statement ``before`` runs before the clock does.

    Every module's bytecode is kept, whatever the caller's environment says: else a source tree is compiled at each
    import, an installed package is not, and the two are not comparable. The folder ``bytecode`` keeps it; without
    one it stays where an installer has put it.
    """
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    if bytecode is not None:
        environment["PYTHONPYCACHEPREFIX"] = str(bytecode)
    code = f"{before}; import time; start = time.perf_counter(); {statement}; print(time.perf_counter() - start)"

    def sample() -> float:
        done = subprocess.run(
            [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise RuntimeError(f"{statement!r} failed: {done.stderr.strip().splitlines()[-1]}")
        return float(done.stdout)

    sample.most_samples = most_samples
    return sample


def interleave(samplers: Mapping[str, Sampler], *, rounds: int) -> dict[str, Measurement]:
    """One measurement per sampler, in seconds, after an unrecorded round.

    A sampler that raises is reported with its error and takes no further turn; the others go on. One that wants a
    single sample has taken it in the unrecorded round.
    """
    samples: dict[str, list[float]] = {name: [] for name in samplers}
    failures: dict[str, str] = {}
    gc.collect()
    gc.disable()
    try:
        for turn in range(rounds + 1):
            for name, sampler in samplers.items():
                if name in failures or len(samples[name]) == _most_samples(sampler):
                    continue
                time.sleep(SETTLE_SECONDS)
                try:
                    sample = sampler()
                except Exception as error:  # a peer may fail in any way, and its row says how
                    failures[name] = f"{type(error).__name__}: {error}"
                    continue
                if turn or _most_samples(sampler) == 1:
                    samples[name].append(sample)
            gc.collect()
    finally:
        gc.enable()
    return {
        name: Measurement(name, failure=failures[name])
        if name in failures
        else Measurement(name, tuple(samples[name]), note=getattr(sampler, "note", ""))
        for name, sampler in samplers.items()
    }


def _most_samples(sampler: Sampler) -> int | None:
    return getattr(sampler, "most_samples", None)


def fastest(name: str, measurements: Sequence[Measurement]) -> Measurement:
    """The shortest sample of each round, whoever took it; failures are left out where anything else is left."""
    taken = [measurement for measurement in measurements if not measurement.failure]
    if not taken:
        return Measurement(name, failure="; ".join(f"{part.name}: {part.failure}" for part in measurements))
    rounds = itertools.zip_longest(*(measurement.samples for measurement in taken), fillvalue=math.inf)
    winner = min(taken, key=lambda measurement: measurement.median)
    return Measurement(name, tuple(map(min, rounds)), note=f"mostly {winner.name}")


def paired_ratio(
    name: str,
    numerator: Measurement,
    denominator: Measurement,
    *,
    factor: float = 1.0,
    at_most: float | None = None,
    at_least: float | None = None,
    note: str = "",
) -> Measurement:
    """``factor * numerator / denominator`` in the rounds that have both; a failure of either is passed on."""
    failed = [f"{part.name}: {part.failure}" for part in (numerator, denominator) if part.failure]
    if failed:
        return Measurement(name, unit="x", at_most=at_most, at_least=at_least, failure="; ".join(failed))
    pairs = zip(numerator.samples, denominator.samples, strict=False)
    samples = tuple(factor * above / below for above, below in pairs)
    return Measurement(name, samples, "x", at_most=at_most, at_least=at_least, note=note)
