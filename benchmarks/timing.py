"""Interleaved timing: samplers take turns, and a measurement keeps every sample with its spread.

A sampler is a function without arguments that returns one number. ``interleave`` runs samplers A, B, C, A, B,
C, ... so that a drift of the machine hits all alike, and ``paired_ratio`` divides samples of the same round.
"""

from __future__ import annotations

import gc
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

__all__ = ["Measurement", "Stopwatch", "import_seconds", "interleave", "paired_ratio"]

Sampler = Callable[[], float]

# A wider spread than this says that the machine was busy, and that the median is not to be published.
TRUSTED_SPREAD = 0.25
# Idle BLAS and OpenMP workers spin for some 30 ms after a call and would slow down the next sampler's pool.
SETTLE_SECONDS = 0.15
# A sample shorter than this is repeated and averaged, so that one interrupt does not decide it.
SHORTEST_SAMPLE_SECONDS = 0.2


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
            return "FAILED"
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
    at the first sample, as do a warm-up call and one that decides how many calls make up a sample.
    """

    def __init__(self, prepare: Callable[[], Callable[[], object]]) -> None:
        self._prepare = prepare
        self._call: Callable[[], object] | None = None
        self._repeats = 1

    def __call__(self) -> float:
        """One sample."""
        if self._call is None:
            self._call = self._prepare()
            self._call()
            self._repeats = max(1, math.ceil(SHORTEST_SAMPLE_SECONDS / self._seconds(self._call, repeats=1)))
        return self._seconds(self._call, repeats=self._repeats)

    @staticmethod
    def _seconds(call: Callable[[], object], *, repeats: int) -> float:
        start = time.perf_counter()
        for _ in range(repeats):
            call()
        return (time.perf_counter() - start) / repeats


def import_seconds(statement: str, *, bytecode: Path) -> Sampler:
    """Sampler of the seconds that an import statement takes in a fresh interpreter, its start not counted.

    Every module's bytecode is kept in the folder ``bytecode``, whatever the caller's environment says: without
    it, a source tree is compiled at each import, an installed package is not, and the two are not comparable.
    """
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment["PYTHONPYCACHEPREFIX"] = str(bytecode)
    code = f"import time; start = time.perf_counter(); {statement}; print(time.perf_counter() - start)"

    def sample() -> float:
        done = subprocess.run(
            [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise RuntimeError(f"{statement!r} failed: {done.stderr.strip().splitlines()[-1]}")
        return float(done.stdout)

    return sample


def interleave(samplers: Mapping[str, Sampler], *, rounds: int) -> dict[str, Measurement]:
    """One measurement per sampler, in seconds, after an unrecorded round.

    A sampler that raises is reported with its error and takes no further turn; the others go on.
    """
    samples: dict[str, list[float]] = {name: [] for name in samplers}
    failures: dict[str, str] = {}
    gc.collect()
    gc.disable()
    try:
        for turn in range(rounds + 1):
            for name, sampler in samplers.items():
                if name in failures:
                    continue
                time.sleep(SETTLE_SECONDS)
                try:
                    sample = sampler()
                except Exception as error:  # a peer may fail in any way, and its row says how
                    failures[name] = f"{type(error).__name__}: {error}"
                    continue
                if turn:
                    samples[name].append(sample)
            gc.collect()
    finally:
        gc.enable()
    return {
        name: Measurement(name, failure=failures[name]) if name in failures else Measurement(name, tuple(samples[name]))
        for name in samplers
    }


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
    """``factor * numerator / denominator`` round by round; a failure of either is passed on."""
    failed = [f"{part.name}: {part.failure}" for part in (numerator, denominator) if part.failure]
    if failed:
        return Measurement(name, unit="x", at_most=at_most, at_least=at_least, failure="; ".join(failed))
    pairs = zip(numerator.samples, denominator.samples, strict=True)
    samples = tuple(factor * above / below for above, below in pairs)
    return Measurement(name, samples, "x", at_most=at_most, at_least=at_least, note=note)
