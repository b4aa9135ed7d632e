"""How time grows with rows, dimensions and classes: exponents fitted to measured times, of ours and of each peer.

An exponent is the slope of log time over log size, least squares through the medians of at least four sizes while
the other two numbers stay. It describes these sizes only: where a fixed cost still weighs, it is below the one of
the formula.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np

from libraries import OURS, fitting_libraries, libraries
from peers import ALL_PAIRS, Features, Labels, Peer
from sections import Section
from timing import SETTLE_SECONDS, Measurement

__all__ = ["growth"]

# A sample lasts at least this long, by repetition: shorter than elsewhere, for there are 24 points a library. An
# exponent over a factor of eight moves by 0.05 only if an end is off by 10 %.
SHORTEST_SAMPLE_SECONDS = 0.03
# A peer whose largest call would take longer, judged by its smallest, gets a quarter of the rows, again and again.
LONGEST_LAST_CALL = 0.5
# A matrix of rows x rows would take gigabytes for the rows that the others get.
ALL_PAIRS_SHRINK = 64
MOST_ROUNDS = 3
# A larger standard error says that the machine was busy, or that time is no power of the size.
TRUSTED_ERROR = 0.15
# Drawing every row anew would take longer than the calls; these are more than there are dimensions.
DRAWN_ROWS = 2_500


@dataclass(frozen=True)
class Size:
    """Rows of a call, their features, and classes."""

    rows: int
    dimensions: int
    classes: int


@dataclass(frozen=True)
class Axis:
    """The number that grows: ``field`` names it in ``Size``, ``symbol`` in the tables.

    It doubles three times from its value in ``smallest``. ``expected`` is the power that the formula has, from which
    the time of the largest call is foretold. A slow peer gets fewer rows, but no fewer than ``fewest_rows``.
    """

    symbol: str
    field: str
    smallest: Size
    expected: int
    fewest_rows: int

    def sizes(self, shrink: int) -> list[Size]:
        """What is measured, with this fraction of the rows."""
        smallest = replace(self.smallest, rows=self.smallest.rows // shrink)
        first = getattr(smallest, self.field)
        return [replace(smallest, **{self.field: first * factor}) for factor in FACTORS]


FACTORS = (1, 2, 4, 8)
# Long enough for two threads to pay (ours takes one below 5e7 operations), short enough for the time that there is.
FIT_AXES = (
    Axis("N", "rows", Size(16_000, 128, 20), 1, fewest_rows=1_000),
    # Of fewer rows than dimensions a covariance is singular, which some libraries refuse.
    Axis("m", "dimensions", Size(16_000, 128, 20), 2, fewest_rows=4_000),
    Axis("k", "classes", Size(16_000, 128, 20), 1, fewest_rows=1_000),
)
SCORE_AXES = (
    Axis("N", "rows", Size(16_000, 128, 20), 1, fewest_rows=250),
    Axis("m", "dimensions", Size(16_000, 128, 20), 2, fewest_rows=250),
    Axis("k", "classes", Size(16_000, 128, 50), 1, fewest_rows=250),
)


def growth(*, rounds: int, with_peers: bool) -> list[Section]:
    """Exponents of fit and of score in the number of rows N, of dimensions m and of classes k.

    Of those that build a rows x rows matrix only that in N, which is where they differ.
    """
    scoring = (*libraries(with_peers=with_peers), *(ALL_PAIRS if with_peers else ()))
    return [
        Section(
            f"growth-{verb}",
            f"Growth of {verb}: time as a power of rows N, dimensions m and classes k",
            measurements=[
                _exponent(library, axis, prepare, rounds=min(rounds, MOST_ROUNDS))
                for library in compared
                for axis in (axes[:1] if library in ALL_PAIRS else axes)
            ],
        )
        for verb, compared, axes, prepare in (
            ("fit", fitting_libraries(with_peers=with_peers), FIT_AXES, _fit_call),
            ("score", scoring, SCORE_AXES, _score_call),
        )
    ]


Prepare = Callable[[Peer, Size], Callable[[], object]]


def _exponent(library: Peer, axis: Axis, prepare: Prepare, *, rounds: int) -> Measurement:
    """The slope with its standard error, or the error that the library ended with."""
    name = f"{library.name}, {axis.symbol}"
    try:
        time.sleep(SETTLE_SECONDS)  # the threads of the library before this one still spin
        sizes = _affordable(library, axis, prepare)
        times = _medians({size: prepare(library, size) for size in sizes}, rounds=rounds)
    except Exception as error:  # a peer may fail in any way, and its row says how
        return Measurement(name, unit="exponent", failure=f"{type(error).__name__}: {error}")
    slope, error = _slope(np.log([getattr(size, axis.field) for size in sizes]), np.log(times))
    noise = "" if error <= TRUSTED_ERROR else "NOISY "
    return Measurement(name, (slope,), "exponent", note=f"{noise}± {error:.2f}, {_in_words(axis, sizes)}")


def _affordable(library: Peer, axis: Axis, prepare: Prepare) -> list[Size]:
    """The sizes of the axis, with fewer rows where the library is slow; ours always gets all."""
    shrink = ALL_PAIRS_SHRINK if library in ALL_PAIRS else 1
    longest_first = LONGEST_LAST_CALL / FACTORS[-1] ** axis.expected
    while library.name != OURS and axis.smallest.rows // shrink // 4 >= axis.fewest_rows:
        call = prepare(library, axis.sizes(shrink)[0])
        call()
        if min(_seconds(call, repeats=1) for _ in range(2)) <= longest_first:
            break
        shrink *= 4
    return axis.sizes(shrink)


def _medians(calls: dict[Size, Callable[[], object]], *, rounds: int) -> list[float]:
    """Median seconds of each call; they take turns, so that a drift of the machine hits all alike."""
    repeats = {}
    for size, call in calls.items():
        call()
        repeats[size] = max(1, math.ceil(SHORTEST_SAMPLE_SECONDS / _seconds(call, repeats=1)))
    samples = [[_seconds(call, repeats=repeats[size]) for size, call in calls.items()] for _ in range(rounds)]
    return [statistics.median(times) for times in zip(*samples, strict=True)]


def _seconds(call: Callable[[], object], *, repeats: int) -> float:
    start = time.perf_counter()
    for _ in range(repeats):
        call()
    return (time.perf_counter() - start) / repeats


def _slope(x: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """The least-squares slope of y over x and its standard error."""
    x, y = x - x.mean(), y - y.mean()
    slope = float(x @ y / (x @ x))
    residuals = y - slope * x
    return slope, math.sqrt(float(residuals @ residuals) / (len(x) - 2) / float(x @ x))


def _in_words(axis: Axis, sizes: Sequence[Size]) -> str:
    values = ", ".join(f"{getattr(size, axis.field):,}" for size in sizes)
    fixed = [f"{value:,} {field}" for field, value in asdict(sizes[0]).items() if field != axis.field]
    return f"{axis.symbol} = {values} at {', '.join(fixed)}"


def _fit_call(library: Peer, size: Size) -> Callable[[], object]:
    return library.fitter(*_draw(size, size.rows))


def _score_call(library: Peer, size: Size) -> Callable[[], object]:
    detector = library.detector(*_draw(size, 2 * (size.dimensions + size.classes)))
    return library.scorer(detector, _draw(size, size.rows)[0])


def _draw(size: Size, rows: int) -> tuple[Features, Labels]:
    """Rows around class means; their noise repeats after a while, which costs no library more or less."""
    rng = np.random.default_rng(0)
    means = rng.standard_normal((size.classes, size.dimensions), dtype=np.float32)
    noise = rng.standard_normal((min(rows, DRAWN_ROWS), size.dimensions), dtype=np.float32)
    labels = np.arange(rows) % size.classes
    features = means[labels]
    features += np.resize(noise, features.shape)
    return features, labels
