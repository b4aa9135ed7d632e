"""How the installed program ends, run as a process of its own."""

import os
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


def unread(*command: Any) -> subprocess.CompletedProcess[str]:
    """Run a program whose stdout is a pipe that nobody reads, from its start; it is buffered, as in a shell."""
    reader, writer = os.pipe()
    os.close(reader)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    options: dict[str, Any] = {"stdout": writer, "stderr": subprocess.PIPE, "env": environment, "timeout": 120}
    try:
        return subprocess.run(command, text=True, check=False, **options)
    finally:
        os.close(writer)


def test_a_reader_that_leaves_early_causes_no_complaint(rows: Path, tmp_path: Path) -> None:
    detector = tmp_path / "gem.safetensors"
    GEM().fit(np.load(rows)).save(detector)
    done = unread(*PROGRAM, "score", detector, rows)
    assert (done.returncode, done.stderr) == (1, "")


def test_what_is_left_in_a_buffer_without_a_reader_causes_no_complaint() -> None:
    program = "import gem_ood.cli as cli; cli.app.command('say')(lambda: print('words')); cli.main()"
    done = unread(sys.executable, "-c", program, "say")
    assert (done.returncode, done.stderr) == (1, "")


def test_a_reader_that_leaves_after_the_first_letter_causes_no_complaint(tmp_path: Path) -> None:
    np.savez(tmp_path / "rows.npz", **{f"array{place}": np.zeros(1) for place in range(1500)})  # more than a pipe holds
    with subprocess.Popen(
        [*PROGRAM, "info", "rows.npz", "--json"], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert os.read(process.stdout.fileno(), 1) == b"{"
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(timeout=60) == 1
