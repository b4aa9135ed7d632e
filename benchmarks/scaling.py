"""What one machine holds and what a cluster takes: rates of both engines, costs per row, and a plan from them."""

from __future__ import annotations

import os
import tempfile
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from threadpoolctl import threadpool_limits

from gem_ood import GEM
from gem_ood.files import open_features
from gem_ood.gaussians import Statistics, collect, merge
from scaling_jobs import WORKERS, connected, run_job, worker_megabytes
from sections import Section
from timing import Measurement, Stopwatch, interleave, paired_ratio

__all__ = ["scale"]

NO_RAY = 'Ray is not installed; run: pip install "gem-ood[ray]"'
LEAST_SHARE = 0.75
DRIVER_MEGABYTES = 500.0
# A part is read, summed up and merged once; every eighth merge is of merges, and so on.
MERGES_PER_PART = 8 / 7

#: The plan: rows, features and classes, and how many rows a task sums up.
PLAN = (10_000_000_000, 1024, 10_000)
PLAN_ROWS_PER_PART = 1_000_000


def scale(*, rounds: int, is_quick: bool) -> list[Section]:
    """Engines side by side, costs as rows, dimensions and classes grow, and the plan checked at a small scale."""
    sizes = [(128, 10), (128, 1000), (512, 100), (512, 1000)] if is_quick else _SIZES
    costs, rates = _costs(sizes, rounds=rounds)
    if find_spec("ray") is None:
        return [costs, Section("scale-engines", "Engines", skipped=NO_RAY)]
    with connected():
        engines = _engines(rounds=rounds, n_rows=200_000 if is_quick else 4_000_000)
        plan = _plan(rates, rounds=min(rounds, 3), n_rows=20_000 if is_quick else 400_000, size=sizes[-1])
    return [costs, *engines, plan, _calibration(n_rows=2_000_000 if is_quick else 100_000_000)]


_SIZES = [(m, k) for m in (128, 512, 1024) for k in (10, 1000, 10_000)]


def _costs(sizes: list[tuple[int, int]], *, rounds: int) -> tuple[Section, dict[tuple[int, int], dict[str, float]]]:
    """One core's microseconds a row, and what a merge of two parts takes, for each number of features and classes."""
    measurements: list[Measurement] = []
    rates: dict[tuple[int, int], dict[str, float]] = {}
    for m, k in sizes:
        rows, labels = _rows(max(20_000, 2 * k), m, k)
        detector = GEM(covariance=0.1).fit(rows, labels)
        queries, parts = rows[:2000], [_shifted(detector.statistics_, by) for by in (0.0, 0.1)]
        with threadpool_limits(1):
            times = interleave(
                {
                    "fit": Stopwatch(lambda rows=rows, labels=labels: lambda: collect(rows, labels)),
                    "score": Stopwatch(
                        lambda detector=detector, queries=queries: lambda: detector.score_samples(queries)
                    ),
                    "merge": Stopwatch(lambda parts=parts: lambda: merge(*parts)),
                },
                rounds=rounds,
            )
        title = f"{m} features, {k:,} classes"
        scaled = {
            "fit": times["fit"].scaled(1e6 / len(rows), "us a row"),
            "score": times["score"].scaled(1e6 / len(queries), "us a row"),
            "merge": times["merge"].scaled(1e3, "ms"),
        }
        measurements += [_named(measurement, f"{title}: {name}") for name, measurement in scaled.items()]
        rates[m, k] = {name: measurement.median for name, measurement in times.items()}
        rates[m, k] |= {"fit": scaled["fit"].median / 1e6, "score": scaled["score"].median / 1e6}
    return Section("scale-costs", "Cost of one core", [], measurements), rates


def _engines(*, rounds: int, n_rows: int) -> list[Section]:
    """The fit of one process with two threads beside that of two workers with one each, from the same files.

    Then the same with a quarter and a sixteenth of the files: time a row, and memory, as rows grow.
    """
    import ray

    import gem_ood.ray as cluster

    def local(path: Path) -> Stopwatch:
        return Stopwatch(lambda: lambda: GEM().fit_batches(open_features(path)))

    def spread(path: Path) -> Stopwatch:
        return Stopwatch(lambda: lambda: cluster.fit(path, GEM()))

    def dataset(path: Path) -> Stopwatch:
        return Stopwatch(lambda: lambda: cluster.fit(ray.data.read_parquet(str(path)), GEM()))

    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "rows"
        _write(path, n_rows=n_rows, m=128, k=100, rows_per_file=n_rows // 16)
        fewer = {n_rows * n_files // 16: _first(path, n_files) for n_files in (1, 4)}
        samplers = {"local, 2 threads": local(path), "Ray, files": spread(path), "Ray, dataset": dataset(path)}
        for size, pattern in fewer.items():
            samplers |= {f"local, {size:,} rows": local(pattern), f"Ray, {size:,} rows": spread(pattern)}
        times = interleave(samplers, rounds=rounds)
        memory = {
            (engine, size): run_job(job, rows)["megabytes"]
            for size, rows in {**fewer, n_rows: path}.items()
            for engine, job in (("local", "fit_here"), ("Ray", "fit_on_ray"))
        }
    whole = {name: times[name] for name in ("local, 2 threads", "Ray, files", "Ray, dataset")}
    ratios = [
        paired_ratio(
            f"rate of Ray / local, {how}", times["local, 2 threads"], times[f"Ray, {how}"], at_least=LEAST_SHARE
        )
        for how in ("files", "dataset")
    ]
    driver = Measurement("memory of the driver", (memory["Ray", n_rows],), "MB", at_most=DRIVER_MEGABYTES)
    here = Measurement("memory of the local engine", (memory["local", n_rows],), "MB")
    rates = [_rate(time, n_rows) for time in whole.values()]
    title = f"Fit of {n_rows:,} x 128 rows from Parquet, 100 classes"
    return [Section("scale-engines", title, ratios, [*rates, driver, here]), _growth(times, memory, n_rows)]


def _growth(times: dict[str, Measurement], memory: dict[tuple[str, int], float], n_rows: int) -> Section:
    """Time a row and memory of the same fits for ever more rows."""
    whole = {"local": "local, 2 threads", "Ray": "Ray, files"}
    rows = []
    for engine, size in sorted(memory):
        time = times[whole[engine] if size == n_rows else f"{engine}, {size:,} rows"]
        what = "memory of the driver" if engine == "Ray" else "memory"
        rows += [
            _named(time.scaled(1e6 / size, "us a row"), f"{engine}, {size:,} rows"),
            Measurement(f"{engine}, {size:,} rows: {what}", (memory[engine, size],), "MB"),
        ]
    return Section("scale-rows", "As rows grow: fit from Parquet, 128 features, 100 classes", [], rows)


def _plan(
    rates: dict[tuple[int, int], dict[str, float]], *, rounds: int, n_rows: int, size: tuple[int, int]
) -> Section:
    """A fit as the plan has it, small: how long the costs above say it takes, and how long it takes."""
    import gem_ood.ray as cluster

    m, k = size
    rows_per_part = n_rows // 8
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "rows"
        _write(path, n_rows=n_rows, m=m, k=k, rows_per_file=rows_per_part)
        read = Stopwatch(lambda: lambda: [None for _ in open_features(path)])
        fit = Stopwatch(lambda: lambda: cluster.fit(path, GEM(covariance=0.1), rows_per_part=rows_per_part))
        with threadpool_limits(1):
            times = interleave({"reading, one process": read, "fit, two workers": fit}, rounds=rounds)
        memory = [
            Measurement("memory of a worker", (worker_megabytes(),), "MB"),
            Measurement("memory of the driver", (run_job("fit_on_ray", path)["megabytes"],), "MB"),
            Measurement("memory of the local engine", (run_job("fit_here", path)["megabytes"],), "MB"),
        ]
    rate = rates[size]
    seconds_read = times["reading, one process"].median / n_rows
    expected = (n_rows * (rate["fit"] + seconds_read) + 8 * rate["merge"]) / WORKERS
    measured = times["fit, two workers"]
    ratio = paired_ratio("measured / expected", measured, Measurement("expected", (expected,) * len(measured.samples)))
    n_planned = PLAN[0]
    summary = 8 * (m * k + m * m)
    n_parts = n_planned / PLAN_ROWS_PER_PART
    hours = (n_planned * (rate["fit"] + seconds_read) + MERGES_PER_PART * n_parts * rate["merge"]) / 3600
    planned = [
        Measurement("plan: fit", (hours,), "core hours"),
        Measurement("plan: score", (n_planned * (rate["score"] + seconds_read) / 3600,), "core hours"),
        Measurement("plan: bytes read", (n_planned * m * 4 / 1e12,), "TB"),
        Measurement("plan: a summary", (summary / 1e6,), "MB"),
        Measurement("plan: summaries moved", (MERGES_PER_PART * n_parts * summary / 1e12,), "TB"),
    ]
    title = f"Plan: {n_planned:,} rows of {m} features, {k:,} classes; checked on {n_rows:,} rows"
    return Section("scale-plan", title, [ratio], [*times.values(), *memory, *planned])


def _calibration(*, n_rows: int) -> Section:
    """A threshold from very many rows, compared with that of all scores in one array."""
    found = run_job("calibrate_on_ray", n_rows)
    rows = [
        Measurement("calibrate, two workers", (found["seconds"],)),
        Measurement("scores kept", (found["n_kept"],), "scores"),
        Measurement("threshold, relative distance from that of all scores", (found["distance"],), "", at_most=1e-12),
        Measurement("memory of the driver", (found["megabytes"],), "MB", at_most=DRIVER_MEGABYTES),
    ]
    return Section("scale-calibrate", f"Calibrate on {n_rows:,} rows of 2 features", [], rows)


def _rows(n: int, m: int, k: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    labels = np.arange(n) % k
    return rng.standard_normal((n, m), dtype=np.float32) + (labels % 7)[:, np.newaxis].astype(np.float32), labels


def _shifted(statistics: Statistics, by: float) -> Statistics:
    return Statistics(
        statistics.classes, statistics.counts, statistics.means + by, statistics.scatter, statistics.resolution
    )


def _write(path: Path, *, n_rows: int, m: int, k: int, rows_per_file: int) -> None:
    path.mkdir()
    for number, start in enumerate(range(0, n_rows, rows_per_file)):
        rows, labels = _rows(min(rows_per_file, n_rows - start), m, k, seed=number)
        features = pa.FixedSizeListArray.from_arrays(pa.array(rows.ravel()), m)
        table = pa.table({"features": features, "label": labels})
        pq.write_table(table, path / f"{number:05}.parquet", row_group_size=max(1, (32 << 20) // (4 * m)))


def _first(path: Path, n_files: int) -> Path:
    """A folder of the first files of another."""
    folder = path.with_name(f"first-{n_files}")
    folder.mkdir()
    for file in sorted(path.iterdir())[:n_files]:
        os.link(file, folder / file.name)
    return folder


def _rate(time: Measurement, n_rows: int) -> Measurement:
    samples = tuple(n_rows / sample / 1e3 for sample in time.samples)
    return Measurement(f"rate, {time.name}", samples, "thousand rows/s", failure=time.failure)


def _named(measurement: Measurement, name: str) -> Measurement:
    return Measurement(name, measurement.samples, measurement.unit, failure=measurement.failure)
