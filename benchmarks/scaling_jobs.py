"""Jobs of the scaling benchmark that need a process of their own: ``python scaling_jobs.py JOB ARGUMENT``.

The peak memory of such a process is that of one job. It is printed as JSON with whatever the job found.
"""

from __future__ import annotations

import copy
import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from gem_ood import GEM
from gem_ood.files import open_features

__all__ = ["WORKERS", "connected", "run_job", "worker_megabytes"]

WORKERS = 2
ONE_THREAD = {f"{library}_NUM_THREADS": "1" for library in ("OPENBLAS", "MKL", "OMP")}
ROWS_PER_BLOCK = 500_000


@contextmanager
def connected() -> Iterator[None]:
    """Two workers of one thread each, silent."""
    import ray
    import ray.data

    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    ray.init(
        num_cpus=WORKERS,
        include_dashboard=False,
        logging_level="error",
        log_to_driver=False,
        runtime_env={"env_vars": ONE_THREAD},
    )
    ray.data.DataContext.get_current().enable_progress_bars = False
    logging.getLogger("ray.data").setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        ray.shutdown()


def run_job(job: str, argument: object) -> dict[str, float]:
    """What a job found, and the megabytes that its process held at the most."""
    command = [sys.executable, __file__, job, str(argument)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{job} failed: {done.stderr.strip().splitlines()[-1]}")
    return json.loads(done.stdout.splitlines()[-1])


def worker_megabytes() -> float:
    """The most memory that a worker of Ray on this machine held so far, with what it shares with the others."""
    found = [0.0]
    for status in Path("/proc").glob("[0-9]*/status"):
        with suppress(OSError, StopIteration):  # a process may end at any time
            if (status.parent / "cmdline").read_bytes().startswith(b"ray::"):
                found.append(_megabytes(status.parent.name))
    return max(found)


def _megabytes(process: str = "self") -> float:
    """The most memory that a process held so far; getrusage would tell that of its parent where that was more."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return next(float(line.split()[1]) * 1024 / 1e6 for line in lines if line.startswith("VmHWM"))


def fit_here(path: str) -> dict[str, float]:
    """A fit from Parquet files in this process."""
    GEM(covariance=0.1).fit_batches(open_features(path))
    return {"megabytes": _megabytes()}


def fit_on_ray(path: str) -> dict[str, float]:
    """The same fit by two workers."""
    import gem_ood.ray as cluster

    with connected():
        cluster.fit(path, GEM(covariance=0.1))
    return {"megabytes": _megabytes()}


def calibrate_on_ray(n_rows: str) -> dict[str, float]:
    """A threshold from rows that workers make, and how far it is from the score of its order among all scores."""
    import ray

    import gem_ood.ray as cluster

    detector = GEM().fit(_made_rows(np.arange(10_000)))
    n_blocks = max(1, int(n_rows) // ROWS_PER_BLOCK)
    with connected():
        ids = ray.data.range(int(n_rows), override_num_blocks=n_blocks)
        rows = ids.map_batches(_features, batch_size=None)
        started = time.perf_counter()
        cluster.calibrate(rows, detector)
        seconds = time.perf_counter() - started
    megabytes = _megabytes()
    blocks = np.array_split(np.arange(int(n_rows)), n_blocks)
    scores = np.concatenate([detector.score_samples(_made_rows(block)) for block in blocks])
    exact = copy.deepcopy(detector).calibrate_scores(scores).threshold_.value
    return {
        "seconds": seconds,
        "megabytes": megabytes,
        "n_kept": len(detector.calibration_scores_),
        "distance": abs(detector.threshold_.value / exact - 1.0),
    }


def _features(block: dict[str, Any]) -> dict[str, Any]:
    return {"features": _made_rows(block["id"])}


def _made_rows(ids: np.ndarray) -> np.ndarray:
    """Rows of two features that depend on their numbers alone, so that any process makes the same."""
    angles = np.outer(ids + 1.0, [12.9898, 78.233])
    return np.sin(angles) * 43758.5453 % 1.0


JOBS = {job.__name__: job for job in (fit_here, fit_on_ray, calibrate_on_ray)}

if __name__ == "__main__":
    print(json.dumps(JOBS[sys.argv[1]](sys.argv[2])))
