"""Jobs that need a Ray of their own: each runs in a process that a test starts, and says what came of it in JSON.

`python cluster_job.py JOB FOLDER [OPTION ...]`; the functions that are jobs are at the end.
"""

import json
import logging
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("ray", reason="Ray is not installed")

import ray
import ray.data
from ray.cluster_utils import Cluster

import gem_ood.ray as cluster
from gem_ood import GEM

#: Of so many rows, in so many blocks: what becomes of a block must be too large for Ray to keep it in the driver.
N_ROWS, N_BLOCKS, N_FEATURES = 180_000, 12, 4

#: A machine that does not answer for five seconds is dead; Ray's own count is four times as patient.
IMPATIENT = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 1000, "health_check_failure_threshold": 5}


def rows_of(ids, n_features=N_FEATURES):
    """Return rows that are the same whoever makes them, and whenever."""
    noise = np.sin(np.outer(ids + 1.0, np.arange(1, n_features + 1)) * 12.9898) * 43758.5453
    labels = ids % 3
    return noise - np.floor(noise) + labels[:, None], labels


def as_dataset(n_rows, n_features=N_FEATURES, *, before):
    """Return a dataset that makes these rows block by block, each after something else was done."""

    def make(block):
        before(block["id"])
        features, labels = rows_of(block["id"], n_features)
        return {"features": features, "label": labels}

    return ray.data.range(n_rows, override_num_blocks=N_BLOCKS).map_batches(make, batch_size=None)


def once(marker):
    """Return whether this is the first call, of all processes."""
    try:
        marker.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def quiet():
    ray.data.DataContext.get_current().enable_progress_bars = False
    logging.getLogger("ray.data").setLevel(logging.CRITICAL)


@contextmanager
def two_machines():
    """Yield a cluster of two machines of one core each, beside one that only the driver is on."""
    # Any ray.init() on this machine would find the address and connect to what is about to lose a machine.
    ray._private.utils.write_ray_address = lambda *_, **__: None
    head = {"num_cpus": 0, "object_store_memory": 100 << 20, "include_dashboard": False, "_system_config": IMPATIENT}
    machines = Cluster(initialize_head=True, head_node_args=head)
    try:
        for _ in range(2):
            machines.add_node(num_cpus=1)
        ray.init(address=machines.address, logging_level="critical", log_to_driver=False)
        machines.wait_for_nodes()
        quiet()
        yield machines
    finally:
        ray.shutdown()
        machines.shutdown()


class Exchange:
    """Takes one machine away and adds another when so many rows are done."""

    def __init__(self, machines, n_rows, made=None):
        self.machines, self.n_rows, self.made = machines, n_rows, made
        self.is_done, self.n_made = False, 0

    def __call__(self, n_rows):
        if n_rows >= self.n_rows and not self.is_done:
            self.is_done = True
            self.n_made = 0 if self.made is None else self.made.count()
            self.machines.remove_node(next(iter(self.machines.worker_nodes)), allow_graceful=False)
            self.machines.add_node(num_cpus=1)


def differences(fitted, features, labels):
    """Return how a fit differs from that of one machine."""
    local = GEM().fit(features, labels)
    ours, theirs = fitted.statistics_, local.statistics_
    return {
        "n_rows": ours.n_rows,
        "counts_are_equal": ours.counts.tolist() == theirs.counts.tolist(),
        "means": float(np.abs(ours.means - theirs.means).max()),
        "scatter": float(np.abs(ours.scatter - theirs.scatter).max() / np.abs(theirs.scatter).max()),
    }


class Noted:
    """Takes its time before a block is made, and leaves a line for it."""

    def __init__(self, path, pause):
        self.path, self.pause = path, pause

    def __call__(self, ids):
        with self.path.open("a") as file:
            file.write("made\n")
        time.sleep(self.pause)

    def count(self):
        return len(self.path.read_text().splitlines())


def exchange_machines(folder):
    """Lose a machine and get another: while blocks are fitted to, while files are, and before scores are fetched."""
    n_rows, n_features = 2400, 128  # a summary has 131 kB, more than Ray keeps with the driver
    features, labels = rows_of(np.arange(n_rows), n_features)
    made = Noted(folder / "fit", 0.3)
    write_files(folder / "rows", features, labels)
    with two_machines() as machines:
        exchange = Exchange(machines, n_rows // 3)
        fitted = cluster.fit(as_dataset(n_rows, n_features, before=made), GEM(), on_rows=exchange)
        of_blocks = {"was_exchanged": exchange.is_done, **differences(fitted, features, labels)}

        exchange = Exchange(machines, n_rows // 3)
        fitted = cluster.fit(folder / "rows", GEM(), rows_per_part=100, on_rows=exchange)
        of_files = {"was_exchanged": exchange.is_done, **differences(fitted, features, labels)}

        made = Noted(folder / "calibrate", 0.1)
        features, labels = rows_of(np.arange(N_ROWS))
        detector = GEM().fit(features, labels)
        exchange = Exchange(machines, N_ROWS, made)
        cluster.calibrate(as_dataset(N_ROWS, before=made), detector, on_rows=exchange)
        scores = detector.calibration_scores_.copy()
        detector.calibrate(features)
        of_scores = {
            "was_exchanged": exchange.is_done,
            "n_made_again": made.count() - exchange.n_made,
            "n_scores": len(scores),
            "largest_difference": float(np.abs(scores - detector.calibration_scores_).max()),
        }
    return {"fit": of_blocks, "fit_files": of_files, "calibrate": of_scores}


def write_files(folder, features, labels, n_files=3):
    folder.mkdir()
    for number, at in enumerate(np.array_split(np.arange(len(features)), n_files)):
        lists = pa.FixedSizeListArray.from_arrays(pa.array(features[at].ravel()), features.shape[1])
        table = pa.table({"features": lists, "label": labels[at]})
        pq.write_table(table, folder / f"{number}.parquet", row_group_size=100)


class Hog:
    """Takes memory before a block is made, until Ray's monitor ends the worker: once, or whenever it is made."""

    def __init__(self, marker, n_bytes, *, always):
        self.marker, self.n_bytes, self.always = marker, n_bytes, always

    def __call__(self, ids):
        if 0 not in ids or not (once(self.marker) or self.always):
            return
        held = []
        while memory()[1] < self.n_bytes:
            held.append(np.ones(1 << 24))  # 128 MB
        time.sleep(60)
        raise RuntimeError("the memory monitor is not there")


def memory():
    """Return how many bytes the machine has, and how many of them are used."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    sizes = {name: 1024 * int(rest.split()[0]) for name, rest in (line.split(":") for line in lines)}
    return sizes["MemTotal"], sizes["MemTotal"] - sizes["MemAvailable"]


def exhaust_memory(folder):
    """Let a worker use up the memory of the machine, or rather what Ray is told is all of it: once, then always."""
    total, used = memory()
    limit = used + (3 << 30)
    monitor = {"memory_usage_threshold": limit / total, "memory_monitor_refresh_ms": 100}
    ray.init(
        address="local",
        num_cpus=2,
        object_store_memory=200 << 20,
        include_dashboard=False,
        logging_level="critical",
        log_to_driver=False,
        _system_config=monitor,
    )
    quiet()
    found = {}
    for how_often in ("once", "always"):
        hog = Hog(folder / how_often, limit + (1 << 29), always=how_often == "always")
        found[how_often] = exhausting(hog) | {"was_taken": hog.marker.exists()}
    ray.shutdown()
    return found


def exhausting(hog):
    """Return what came of a fit on a machine whose memory is taken."""
    try:
        fitted = cluster.fit(as_dataset(2400, before=hog), GEM())
    except (cluster.ClusterError, ValueError) as error:
        return {"error": type(error).__name__, "message": str(error)}
    return differences(fitted, *rows_of(np.arange(2400)))


def write_verdicts(folder, pause):
    """Write verdicts block by block, and say so after each."""
    ray.init(address="local", num_cpus=2, include_dashboard=False, logging_level="critical", log_to_driver=False)
    quiet()
    features, labels = rows_of(np.arange(2400))
    detector = GEM().fit(features, labels).calibrate(features)
    scored = cluster.score(as_dataset(2400, before=Noted(folder / "made", float(pause))), detector)
    n_rows = cluster.write(scored, folder / "scores", on_rows=lambda n_rows: print("rows", n_rows, flush=True))
    ray.shutdown()
    return {"n_rows": n_rows}


JOBS = {job.__name__: job for job in (exchange_machines, exhaust_memory, write_verdicts)}

if __name__ == "__main__":
    found = JOBS[sys.argv[1]](Path(sys.argv[2]), *sys.argv[3:])
    print(json.dumps(found))
