"""How the installed program ends, run as a process of its own."""

import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gem_ood import GEM

PROGRAM = [sys.executable, "-c", "from gem_ood.cli import main; main()"]


def run(*arguments: Any, **options: Any) -> subprocess.CompletedProcess[str]:
    command = [*PROGRAM, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, **options)


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    path = tmp_path / "rows.npy"
    np.save(path, np.random.default_rng(0).normal(size=(200, 3)))
    return path


def test_success_is_zero_and_json_is_all_of_stdout(rows: Path, tmp_path: Path) -> None:
    done = run("fit", rows, "--out", tmp_path / "gem.safetensors", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("{")
    assert done.stdout.count("\n") == 1


def test_bad_input_is_two_and_one_line(tmp_path: Path) -> None:
    done = run("fit", tmp_path / "missing.npy", "--out", tmp_path / "gem.safetensors")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"gem-ood: error: {tmp_path / 'missing.npy'} does not exist; check the path\n"


def test_a_place_that_cannot_be_written_is_two_and_one_line(rows: Path) -> None:
    done = run("fit", rows, "--out", "/proc/gem.safetensors")
    assert done.returncode == 2
    assert done.stderr.startswith("gem-ood: error: ")
    assert done.stderr.count("\n") == 1


def test_control_c_is_130_and_leaves_nothing_half_written(tmp_path: Path) -> None:
    detector, source, out = tmp_path / "gem.safetensors", tmp_path / "rows.npy", tmp_path / "scores.csv"
    GEM().fit(np.random.default_rng(0).normal(size=(200, 3))).save(detector)
    # A hole of a file: it takes no room on the disk, and far longer to score than the test waits.
    np.lib.format.open_memmap(source, mode="w+", dtype=np.float64, shape=(50_000_000, 3)).flush()
    process = subprocess.Popen(
        [*PROGRAM, "score", detector, source, "--out", out], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 60.0
    while not list(tmp_path.glob(".scores.*")) and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in error
    assert sorted(path.name for path in tmp_path.iterdir()) == ["gem.safetensors", "rows.npy"]


def test_a_reader_that_leaves_early_causes_no_traceback(rows: Path, tmp_path: Path) -> None:
    detector = tmp_path / "gem.safetensors"
    GEM().fit(np.load(rows)).save(detector)
    with subprocess.Popen(
        [*PROGRAM, "score", detector, rows], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert "Traceback" not in process.stderr.read()
        assert process.wait(timeout=60) == 1
