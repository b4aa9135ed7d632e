"""Peak memory of each library's fit and score beside the input, and that ours does not grow with the rows.

Each library is measured in a process of its own (``memory_jobs.py``). What a fit took includes the detector, which
stays; the note says how much stayed.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from libraries import OURS, fitting_libraries
from memory_jobs import Peak, run_job
from peers import ALL_PAIRS, RELATED, Peer
from sections import Section
from timing import NOT_MEASURED, Measurement
from workloads import SHAPES, Shape

__all__ = ["memory"]

QUERIES = 10_000
#: A slow scorer gets as many rows as it takes for this many operations: some seconds of two cores.
MOST_OPERATIONS = 1e11
FEWEST_QUERIES = 32
#: Rows of a fit: memory of ours does not grow with them, and a section of its own shows it.
MOST_FITTED = 20_000
#: A fit that scores its rows three times is left out where it would take minutes.
MOST_OPERATIONS_TO_FIT = 3e12
#: Ours, as rows grow: the fit of this many and of more, in batches and from an array; and a long score.
FEW_ROWS, MORE_ROWS = 10_000, (40_000, 160_000)
GROWING = Shape(512, 100, FEW_ROWS)
LONG_QUERIES = 200_000
#: Beside input and output, which docs/numerics.md describes as one chunk of rows for each thread.
MOST_MEGABYTES_OF_SCORE = 64.0
MOST_GROWTH = 1.1


def memory(*, rounds: int, with_peers: bool) -> list[Section]:
    """Megabytes of each library in each shape, and of ours as rows grow; without peers in two shapes only."""
    shapes = SHAPES if with_peers else (SHAPES[0], SHAPES[2])
    return [*(_of_shape(shape, with_peers=with_peers) for shape in shapes), _as_rows_grow(rounds=min(rounds, 3))]


def _of_shape(shape: Shape, *, with_peers: bool) -> Section:
    compared: list[Peer] = list(fitting_libraries(with_peers=with_peers))
    if with_peers and shape == SHAPES[0]:  # in larger ones a matrix of rows x rows for each class takes too long
        compared += ALL_PAIRS
    # Two processes at a time: it is their memory that is measured, not their time.
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(lambda library: _of_library(library, shape), compared))
    measurements = [measurement for of_one in found for measurement in of_one]
    return Section(f"memory-{shape.key}", f"Peak memory beside the input, {shape}", measurements=measurements)


def _of_library(library: Peer, shape: Shape) -> list[Measurement]:
    """The fit and, where there is one, the score."""
    fitted, queries = min(shape.rows, MOST_FITTED), QUERIES
    if library.name != OURS:
        queries = max(FEWEST_QUERIES, min(QUERIES, int(MOST_OPERATIONS / _operations_of_a_row(shape))))
    if library.fits_by_scoring:  # of fewer rows than dimensions or classes there is no mixture
        fitted = max(queries, 2 * max(shape.dimensions, shape.classes))
    rows = {"fit": fitted, "score": 0 if library in RELATED else queries}
    names = {verb: f"{library.name}, {verb}" for verb, n_rows in rows.items() if n_rows}
    if library.fits_by_scoring and 3 * fitted * _operations_of_a_row(shape) > MOST_OPERATIONS_TO_FIT:
        reason = f"{NOT_MEASURED}: a fit of {fitted:,} rows would take minutes"
        return [Measurement(name, unit="MB", failure=reason) for name in names.values()]
    try:
        found = run_job("fit_and_score", library.name, shape.key, max(fitted, MOST_FITTED), fitted, rows["score"])
    except RuntimeError as error:
        return [Measurement(name, unit="MB", failure=str(error)) for name in names.values()]
    return [_measurement(name, [found[verb]], rows[verb]) for verb, name in names.items()]


def _operations_of_a_row(shape: Shape) -> int:
    """Of a library that multiplies each row by the m x m precision for each class."""
    return 2 * shape.dimensions**2 * shape.classes


def _as_rows_grow(*, rounds: int) -> Section:
    """Our fit of more and more rows, streamed and from an array, and a score of very many."""
    ratios, measurements = [], []
    for how in ("fit_batches", "fit"):
        peaks = {n: [_our_fit(how, n) for _ in range(rounds)] for n in (FEW_ROWS, *MORE_ROWS)}
        measurements += [_measurement(f"{OURS}, {how} of {n:,} rows", found, n) for n, found in peaks.items()]
        for n in MORE_ROWS:
            pairs = [(more.megabytes, few.megabytes) for more, few in zip(peaks[n], peaks[FEW_ROWS], strict=True)]
            name = f"{OURS}, {how} of {n:,} rows / of {FEW_ROWS:,}"
            ratios.append(Measurement(name, tuple(more / few for more, few in pairs), "x", at_most=MOST_GROWTH))
        bytes_a_row = tuple((more - few) * 1e6 / (n - FEW_ROWS) for more, few in pairs)
        note = f"from {FEW_ROWS:,} to {n:,} rows; a row has {4 * GROWING.dimensions:,}"
        measurements.append(Measurement(f"{OURS}, {how}, growth", bytes_a_row, "bytes a row", note=note))
    job = ("fit_and_score", OURS, GROWING.key, FEW_ROWS, FEW_ROWS, LONG_QUERIES)
    scored = [run_job(*job)["score"] for _ in range(rounds)]
    name = f"{OURS}, score_samples of {LONG_QUERIES:,} rows"
    measurements.append(_measurement(name, scored, LONG_QUERIES, at_most=MOST_MEGABYTES_OF_SCORE))
    return Section("memory-rows", f"Peak memory as rows grow, {GROWING}", ratios, measurements)


def _our_fit(how: str, n_rows: int) -> Peak:
    if how == "fit_batches":
        return run_job("fit_batches", GROWING.key, n_rows)["fit"]
    return run_job("fit_and_score", OURS, GROWING.key, n_rows, n_rows, 0)["fit"]


def _measurement(name: str, peaks: Sequence[Peak], n_rows: int, *, at_most: float | None = None) -> Measurement:
    stayed = statistics.median(peak.kept for peak in peaks)
    note = f"{n_rows:,} rows; {stayed:.0f} MB stayed"
    if not all(peak.is_exact for peak in peaks):
        note += "; at least, for this system cannot reset its mark of the most memory held"
    return Measurement(name, tuple(peak.megabytes for peak in peaks), "MB", at_most=at_most, note=note)
