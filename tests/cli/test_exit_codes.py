"""How the installed program ends, run as a process of its own."""

import subprocess
import sys
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
