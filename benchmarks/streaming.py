"""Parquet larger than memory: the rate of a fit and of scoring, as shares of the rate of just reading and decoding.

Each sample is a process of its own, so that its peak memory is that of one task: ``python streaming.py TASK FOLDER``.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sections import Section

__all__ = ["stream"]

#: Features and classes: a small picture network, sentence embeddings, a large picture network.
SHAPES = ((64, 10), (128, 100), (512, 100))
FILE_BYTES = 250_000_000
GROUP_BYTES = 64 << 20
LEAST_SHARE = 0.8
MOST_MEGABYTES = 1000.0
# Passes over gigabytes are long: few rounds tell, and seven would take an hour.
ROUNDS = 3
READ, FIT, SCORE, ARROW = "read", "fit", "score", "pyarrow.dataset"


def stream(*, gigabytes: float) -> list[Section]:
    """One section per shape of the rows, each with a file set of this size in a temporary directory."""
    from sections import Section

    place = Path(tempfile.gettempdir())
    free = shutil.disk_usage(place).free / 1e9
    if free < 1.3 * gigabytes:
        reason = f"{place} has {free:.1f} GB free but {1.3 * gigabytes:.1f} GB are needed; set TMPDIR or --gigabytes"
        return [Section("stream", "Parquet larger than memory", skipped=reason)]
    return [_stream(dimensions, n_classes, gigabytes) for dimensions, n_classes in SHAPES]


def _stream(dimensions: int, n_classes: int, gigabytes: float) -> Section:
    from sections import Section
    from timing import Measurement, interleave, paired_ratio

    peaks: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as place:
        n_rows, n_files = _write_set(Path(place), dimensions, n_classes, gigabytes)

        def sampler(task: str) -> Callable[[], float]:
            def sample() -> float:
                done = _run_child(task, Path(place))
                peaks.setdefault(task, []).append(done["peak_megabytes"])
                return float(done["seconds"])

            return sample

        times = interleave({task: sampler(task) for task in TASKS}, rounds=ROUNDS)
    ratios = [
        paired_ratio(f"{task}, share of the rate of reading", times[READ], times[task], at_least=LEAST_SHARE)
        for task in (FIT, SCORE)
    ]
    ratios += [
        paired_ratio(f"{task}, share of the rate of {ARROW}", times[ARROW], times[task]) for task in (FIT, SCORE)
    ]
    memory = [
        Measurement(f"{task}, peak memory", tuple(peaks.get(task, ())), "MB", at_most=MOST_MEGABYTES)
        for task in (READ, FIT, SCORE)
        if task in peaks
    ]
    shape = f"{n_rows:,} x {dimensions} float32 lists, {n_classes} classes"
    title = f"Parquet, {gigabytes:g} GB in {n_files} files, {shape}"
    return Section(f"stream-{dimensions}x{n_classes}", title, ratios, [*times.values(), *memory])


def _write_set(place: Path, dimensions: int, n_classes: int, gigabytes: float) -> tuple[int, int]:
    """Write files of labelled lists, all of the same rows, and a detector of them; return how many rows and files."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    from gem_ood import GEM

    n_files = max(2, round(gigabytes * 1e9 / FILE_BYTES))
    n_rows = int(gigabytes * 1e9 / n_files / (4 * dimensions))
    rng = np.random.default_rng(0)
    labels = rng.integers(n_classes, size=n_rows)
    features = rng.standard_normal((n_rows, dimensions), dtype=np.float32)
    features += rng.standard_normal((n_classes, dimensions), dtype=np.float32)[labels]
    features *= np.geomspace(0.2, 6, dimensions).astype(np.float32)
    offsets = pa.array(np.arange(0, features.size + 1, dimensions, dtype=np.int32))
    table = pa.table({"features": pa.ListArray.from_arrays(offsets, features.ravel()), "label": labels})
    rows = place / "rows"
    rows.mkdir()
    options = {"row_group_size": GROUP_BYTES // (4 * dimensions), "use_dictionary": ["label"]}
    pq.write_table(table, rows / "part-000.parquet", **options)
    for number in range(1, n_files):
        shutil.copyfile(rows / "part-000.parquet", rows / f"part-{number:03}.parquet")
    detector = GEM().fit(features[:50_000], labels[:50_000]).calibrate(features[-10_000:])
    detector.save(place / "gem.safetensors")
    return n_rows * n_files, n_files


def _run_child(task: str, place: Path) -> dict[str, float]:
    command = [sys.executable, str(Path(__file__).resolve()), task, str(place)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{task} failed: {done.stderr.strip().splitlines()[-1]}")
    return dict(json.loads(done.stdout))


def _read(place: Path) -> Callable[[], Any]:
    from gem_ood.files import open_features

    file = open_features(place / "rows")
    return lambda: sum(len(features) for features, _ in file)


def _read_dataset(place: Path) -> Callable[[], Any]:
    import pyarrow.dataset

    files = pyarrow.dataset.dataset(place / "rows", format="parquet")
    return lambda: sum(batch.num_rows for batch in files.to_batches())


def _fit(place: Path) -> Callable[[], Any]:
    from gem_ood import GEM
    from gem_ood.files import open_features

    file = open_features(place / "rows")
    return lambda: GEM().fit_batches(file)


def _score(place: Path) -> Callable[[], Any]:
    from gem_ood import load
    from gem_ood.files import open_features, score_to_directory

    detector, file = load(place / "gem.safetensors"), open_features(place / "rows").without_labels()
    shutil.rmtree(place / "scores", ignore_errors=True)
    return lambda: score_to_directory(detector, file, place / "scores")


TASKS = {READ: _read, FIT: _fit, SCORE: _score, ARROW: _read_dataset}


def _peak_megabytes() -> float:
    # Linux hands the peak of the parent on to ru_maxrss of a child; the high-water mark is the child's own.
    status = Path("/proc/self/status")
    if status.exists():
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) * 1024 / 1e6
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6


def main() -> None:
    task, place = sys.argv[1:]
    call = TASKS[task](Path(place))
    started = time.perf_counter()
    call()
    seconds = time.perf_counter() - started
    print(json.dumps({"seconds": seconds, "peak_megabytes": _peak_megabytes()}))


if __name__ == "__main__":
    main()
