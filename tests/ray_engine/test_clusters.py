"""Machines that go and come, memory that runs out, drivers that are killed: each on a Ray of its own, in a process."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("ray", reason="Ray is not installed")

import pyarrow.parquet as pq
from cluster_job import rows_of

from gem_ood import GEM

if sys.platform != "linux":
    pytest.skip("Ray's test clusters and its memory monitor need Linux", allow_module_level=True)

JOB = Path(__file__).with_name("cluster_job.py")

#: Long beside what a job takes on a busy machine, so that only one that hangs is ended.
PATIENCE = 500


def start(job, folder, *options, **environment):
    """Start a job; what Ray says on the way goes to a file."""
    with (folder / "errors").open("w") as errors:
        return subprocess.Popen(
            [sys.executable, str(JOB), job, str(folder), *options],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env={**os.environ, **environment},
        )


def run(job, folder, *options, **environment):
    """Return what a job found."""
    process = start(job, folder, *options, **environment)
    try:
        said, _ = process.communicate(timeout=PATIENCE)
    finally:
        process.kill()
    assert process.returncode == 0, (folder / "errors").read_text()[-3000:]
    return json.loads(said.splitlines()[-1])


@pytest.fixture(scope="module")
def exchanged(tmp_path_factory):
    """What came of three passes, in each of which a machine was removed and another added."""
    return run("exchange_machines", tmp_path_factory.mktemp("machines"))


@pytest.mark.parametrize("how", ["fit", "fit_files"])
def test_a_fit_survives_a_machine_that_is_lost_and_one_that_is_added(exchanged, how):
    found = exchanged[how]
    assert found["was_exchanged"]
    assert found["n_rows"] == 2400
    assert found["counts_are_equal"]
    assert found["means"] < 1e-12
    assert found["scatter"] < 1e-12


def test_scores_that_lay_on_a_lost_machine_are_made_again(exchanged):
    found = exchanged["calibrate"]
    assert found["was_exchanged"]
    assert found["n_made_again"] > 0
    assert found["n_scores"] == 180_000
    assert found["largest_difference"] < 1e-9


@pytest.fixture(scope="module")
def exhausted(tmp_path_factory):
    """What came of workers that took the machine's memory; other processes may take it too, so try again."""
    available = int(Path("/proc/meminfo").read_text().split("MemAvailable:")[1].split()[0])
    if available < 5 << 20:
        pytest.skip("the machine has less than 5 GB of memory free")
    for _ in range(3):
        found = run("exhaust_memory", tmp_path_factory.mktemp("memory"), RAY_task_oom_retries="1")
        if "monitor is not there" in found["always"].get("message", ""):
            pytest.skip("Ray's memory monitor does not work here")
        if "error" not in found["once"]:
            break
    return found


def test_a_worker_that_runs_out_of_memory_once_does_its_work_again(exhausted):
    found = exhausted["once"]
    assert found["was_taken"]
    assert found["n_rows"] == 2400
    assert found["counts_are_equal"]
    assert found["means"] < 1e-12
    assert found["scatter"] < 1e-12


def test_workers_that_always_run_out_of_memory_end_the_fit_with_a_remedy(exhausted):
    found = exhausted["always"]
    assert found["error"] == "ClusterError"
    assert "ran out of memory" in found["message"]
    assert "make the blocks or row groups smaller" in found["message"]
    assert "\n" not in found["message"]


def interrupted(folder, signal_number):
    """Start to write verdicts, and send a signal when the first are written."""
    process = start("write_verdicts", folder, "0.5")
    try:
        assert process.stdout.readline().startswith("rows"), (folder / "errors").read_text()[-3000:]
        os.kill(process.pid, signal_number)
        process.communicate(timeout=PATIENCE)
    finally:
        process.kill()
    assert process.returncode != 0


def test_a_driver_that_is_killed_or_interrupted_leaves_nothing_that_looks_complete(tmp_path):
    interrupted(tmp_path, signal.SIGKILL)
    assert not (tmp_path / "scores").exists()
    assert (tmp_path / ".scores.partial").is_dir()

    interrupted(tmp_path, signal.SIGINT)
    assert not (tmp_path / "scores").exists()
    assert not (tmp_path / ".scores.partial").exists()
    assert "KeyboardInterrupt" in (tmp_path / "errors").read_text()

    assert run("write_verdicts", tmp_path, "0")["n_rows"] == 2400
    assert not (tmp_path / ".scores.partial").exists()
    features, labels = rows_of(np.arange(2400))
    local = GEM().fit(features, labels).calibrate(features).verdicts(features)
    written = pq.read_table(tmp_path / "scores")
    np.testing.assert_allclose(np.sort(written["score"].to_numpy()), np.sort(local.score), rtol=1e-12)
    assert written["is_ood"].to_numpy().sum() == local.is_ood.sum()
    assert set(written.column_names) == {"label", "score", "nearest_class", "p_value", "is_ood"}
