"""The machine's limit, measured in the same rounds: product and rank-update rates, bandwidth, and sorting.

An operation cannot take less than its fewest floating-point operations at the measured rate, nor less than to read
its fewest bytes; the limit is the larger of the two, and each of our operations is shown as a fraction of it. Bytes
are read from wherever the machine keeps as many of them, so a small model is not excused by the speed of memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import blas

from gem_ood import GEM
from gem_ood.metrics import evaluate
from sections import Section
from timing import Measurement, Sampler, Stopwatch, fastest, interleave, paired_ratio
from workloads import Shape, Workload, workload

__all__ = ["limit", "limit_of_metrics", "rates", "square_product", "square_product_operations", "working_precision"]

SIDE = 2048
PRECISIONS = ("float32", "float64")
BATCH_ROWS = 200
# Far beyond the caches, and short enough for seven rounds.
BANDWIDTH_BYTES = 512 << 20
SORTED_SCORES = 2_000_000
# To hand half of a smaller buffer to another thread takes longer than to read it.
FEWEST_BYTES_FOR_TWO_THREADS = 4 << 20
PRODUCTS = ("np.matmul", "SciPy gemm")
RANK_UPDATES = ("NumPy X.T @ X", "SciPy syrk")


def rates(*, rounds: int) -> Section:
    """What this machine reaches, with the threads of this run: every other number is to be read beside it."""
    samplers: dict[str, Sampler] = {}
    work: dict[str, tuple[float, str]] = {}
    for precision in PRECISIONS:
        for name, sampler in _product_samplers(precision).items():
            samplers[f"product, {name}, {precision}"] = sampler
            work[f"product, {name}, {precision}"] = square_product_operations() / 1e9, "GFlop/s"
        for name, sampler in _rank_samplers(precision).items():
            samplers[f"rank update, {name}, {precision}"] = sampler
            work[f"rank update, {name}, {precision}"] = _rank_operations() / 1e9, "GFlop/s"
    for n_threads in (1, 2):
        for name, prepare in (("read", _reading), ("copy", _copying)):
            key = f"memory, {name}, {n_threads} thread{'s' * (n_threads > 1)}"
            samplers[key] = Stopwatch(partial(prepare, BANDWIDTH_BYTES, n_threads))
            work[key] = BANDWIDTH_BYTES / 1e9, "GB/s"
    samplers["np.sort"] = Stopwatch(lambda: partial(np.sort, _scores()))
    work["np.sort"] = SORTED_SCORES / 1e6, "million scores/s"
    times = interleave(samplers, rounds=rounds)
    return Section("rates", "What the machine reaches", [], [_rate(time, *work[time.name]) for time in times.values()])


def limit(shape: Shape, *, rounds: int) -> Section:
    """Each of our operations as a fraction of what its fewest operations and bytes would take."""
    work = workload(shape)
    precision = working_precision(work.detector)
    calls, fewest_bytes = _operations(work, precision)
    samplers: dict[str, Sampler] = {name: Stopwatch(lambda call=call: call) for name, call in calls.items()}
    samplers |= {f"read for {name}": Stopwatch(partial(_reading, size)) for name, size in fewest_bytes.items()}
    samplers |= _product_samplers(precision) | _rank_samplers("float64")
    times = interleave(samplers, rounds=rounds)

    product = fastest("product", [times[name] for name in PRODUCTS])
    rank_update = fastest("rank update", [times[name] for name in RANK_UPDATES])
    m, k = shape.dimensions, shape.classes
    operations_a_row = m**2 + 2 * m * k
    arithmetic = {
        "fit": rank_update.scaled(shape.rows * m**2 / _rank_operations(), "s"),
        "score": product.scaled(len(work.queries) * operations_a_row / square_product_operations(), "s"),
        "batch of 200": product.scaled(BATCH_ROWS * operations_a_row / square_product_operations(), "s"),
        "one row": product.scaled(operations_a_row / square_product_operations(), "s"),
    }
    ratios, measurements = [], []
    for name in calls:
        least = _longest(f"{name}, limit", arithmetic[name], times[f"read for {name}"])
        ratios.append(paired_ratio(f"{name}, fraction of the limit", least, times[name], note=least.note))
        measurements += [times[name].scaled(1e3, "ms"), least.scaled(1e3, "ms")]
    title = f"The limit, {shape}: fit in float64, score in {precision}"
    return Section(f"limit-{shape.key}", title, ratios, measurements)


def limit_of_metrics(*, rounds: int) -> Section:
    """The metrics against one sort of the scores and one reading of them."""
    scores = _scores()
    id_scores, ood_scores = np.split(scores, 2)
    times = interleave(
        {
            "metrics": Stopwatch(lambda: lambda: evaluate(id_scores, ood_scores)),
            "np.sort": Stopwatch(lambda: partial(np.sort, scores)),
            "read": Stopwatch(partial(_reading, scores.nbytes)),
        },
        rounds=rounds,
    )
    both = zip(times["np.sort"].samples, times["read"].samples, strict=True)
    least = Measurement("metrics, limit", tuple(map(sum, both)), note="one np.sort and one reading")
    ratio = paired_ratio("metrics, fraction of the limit", least, times["metrics"], note=least.note)
    rows = [times["metrics"].scaled(1e3, "ms"), least.scaled(1e3, "ms")]
    return Section("limit-metrics", f"The limit, metrics of {SORTED_SCORES:,} scores", [ratio], rows)


def working_precision(detector: GEM) -> str:
    """The precision in which float32 rows are scored; float32 where the detector does not tell."""
    ask = getattr(getattr(detector, "gaussians_", None), "working_dtype", None)
    return np.dtype(ask(np.float32) if ask else np.float32).name


def square_product(precision: str) -> Callable[[], NDArray[Any]]:
    """A product of two large square matrices by NumPy, whose rate is the one that scoring is measured by."""
    left = np.random.default_rng(2).standard_normal((SIDE, SIDE)).astype(precision)
    right = left.T.copy()
    out = np.empty_like(left)
    return lambda: np.matmul(left, right, out=out)


def square_product_operations() -> int:
    """How many floating-point operations it has."""
    return 2 * SIDE**3


def _rank_operations() -> int:
    """Those of a symmetric rank update: half of a product's."""
    return SIDE**3


def _operations(work: Workload, precision: str) -> tuple[dict[str, Callable[[], object]], dict[str, int]]:
    """Our calls, and the fewest bytes that each has to read: its rows, or the model where that is more."""
    detector, queries = work.detector, work.queries
    batch, row = queries[:BATCH_ROWS].copy(), queries[:1].copy()
    m, k = work.shape.dimensions, work.shape.classes
    model_bytes = (m * (m + 1) // 2 + k * m) * np.dtype(precision).itemsize
    calls: dict[str, Callable[[], object]] = {
        "fit": lambda: GEM().fit(work.features, work.labels),
        "score": lambda: detector.score_samples(queries),
        "batch of 200": lambda: detector.score_samples(batch),
        "one row": lambda: detector.score_samples(row),
    }
    read = {"fit": work.features, "score": queries, "batch of 200": batch, "one row": row}
    return calls, {name: rows.nbytes if name == "fit" else max(rows.nbytes, model_bytes) for name, rows in read.items()}


def _product_samplers(precision: str) -> dict[str, Sampler]:
    def by_scipy() -> Callable[[], object]:
        left = np.random.default_rng(2).standard_normal((SIDE, SIDE)).astype(precision).T  # in the order of Fortran
        out = np.empty_like(left)
        gemm = blas.get_blas_funcs("gemm", (left,))
        return lambda: gemm(1.0, left, left, c=out, overwrite_c=True)

    return dict(zip(PRODUCTS, (Stopwatch(partial(square_product, precision)), Stopwatch(by_scipy)), strict=True))


def _rank_samplers(precision: str) -> dict[str, Sampler]:
    def rows() -> NDArray[Any]:
        return np.random.default_rng(2).standard_normal((SIDE, SIDE)).astype(precision)

    def by_numpy() -> Callable[[], object]:
        x = rows()
        return lambda: x.T @ x

    def by_scipy() -> Callable[[], object]:
        x = rows().T
        out = np.zeros_like(x)
        syrk = blas.get_blas_funcs("syrk", (x,))
        return lambda: syrk(1.0, x, c=out, overwrite_c=True)

    return dict(zip(RANK_UPDATES, (Stopwatch(by_numpy), Stopwatch(by_scipy)), strict=True))


def _reading(n_bytes: int, n_threads: int | None = None) -> Callable[[], object]:
    """Read so many bytes once: the inner product of two halves of them, in a thread per core where that is quicker."""
    if n_threads is None:
        n_threads = 2 if n_bytes >= FEWEST_BYTES_FOR_TWO_THREADS else 1
    halves = np.ones((2, max(1, n_bytes // 8)), dtype=np.float32)
    return _in_threads(lambda part: np.dot(halves[0, part], halves[1, part]), halves.shape[1], n_threads)


def _copying(n_bytes: int, n_threads: int) -> Callable[[], object]:
    """Read half as many bytes and write as many."""
    source = np.ones(n_bytes // 8, dtype=np.float32)
    target = np.zeros_like(source)
    return _in_threads(lambda part: np.copyto(target[part], source[part]), source.size, n_threads)


def _in_threads(work: Callable[[slice], object], size: int, n_threads: int) -> Callable[[], object]:
    if n_threads == 1:
        return lambda: work(slice(size))
    edges = np.linspace(0, size, n_threads + 1, dtype=int)
    parts = [slice(start, stop) for start, stop in pairwise(edges)]
    pool = ThreadPoolExecutor(n_threads)
    return lambda: list(pool.map(work, parts))


def _scores() -> NDArray[np.float64]:
    return np.random.default_rng(1).standard_normal(SORTED_SCORES)


def _rate(time: Measurement, work: float, unit: str) -> Measurement:
    return replace(time, samples=tuple(work / sample for sample in time.samples), unit=unit)


def _longest(name: str, by_operations: Measurement, by_bytes: Measurement) -> Measurement:
    """The larger of two times, round by round, noted with which of them it is."""
    pairs: Sequence[tuple[float, float]] = [*zip(by_operations.samples, by_bytes.samples, strict=True)]
    note = "by operations" if by_operations.median >= by_bytes.median else "by bytes"
    return Measurement(name, tuple(map(max, pairs)), note=note)
