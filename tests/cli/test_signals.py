"""Ctrl-C and SIGTERM in the middle of the work, sent to the program as a process of its own."""

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gem_ood import GEM

PROGRAM = [sys.executable, "-c", "from gem_ood.cli import main; main()"]

#: Of a command that writes as it reads, and of one that works in threads: the arguments, and the line of --verbose
#: after which the long work goes on.
COMMANDS = {
    "score": (("score", "gem.safetensors", "huge.npy", "--out", "out.csv"), "scoring ..."),
    "simulate": (("simulate", "distance", "--runs", "500", "--sampler", "projected", "--out", "out.csv"), "drawing"),
}


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    GEM().fit(np.random.default_rng(0).normal(size=(200, 3))).save(tmp_path / "gem.safetensors")
    # A hole of a file: it takes no room on the disk, and far longer to read than a test waits.
    np.lib.format.open_memmap(tmp_path / "huge.npy", mode="w+", dtype=np.float64, shape=(200_000_000, 3)).flush()
    before = {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    yield tmp_path
    assert {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == before


def interrupted(folder: Path, command: str, number: signal.Signals) -> tuple[int, list[str]]:
    """Return the exit code, and what was said on stderr after the long work began."""
    arguments, sign = COMMANDS[command]
    process = subprocess.Popen(
        [*PROGRAM, "--verbose", *arguments], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    watchdog = threading.Timer(90.0, process.kill)
    watchdog.start()
    try:
        assert process.stderr is not None
        for line in process.stderr:
            if sign in line:
                break
        else:
            raise AssertionError(f"{command} ended before {sign!r}")
        if command == "score":  # the file that stands in for the one to be written
            while process.returncode is None and not list(folder.glob(".out.*")):
                with suppress(subprocess.TimeoutExpired):
                    process.wait(timeout=0.01)
        process.send_signal(number)
        # From where the lines above were read, since some may wait in its buffer; stdout fits into its pipe.
        error = process.stderr.read()
        assert process.stdout is not None
        assert process.stdout.read() == ""
        return process.wait(), error.splitlines()
    finally:
        watchdog.cancel()
        process.kill()
        process.wait()
        for stream in (process.stdout, process.stderr):
            assert stream is not None
            stream.close()


@pytest.mark.parametrize("command", COMMANDS)
def test_control_c_is_130_with_one_line_and_leaves_nothing_half_written(command: str, folder: Path) -> None:
    code, lines = interrupted(folder, command, signal.SIGINT)
    assert (code, lines) == (130, ["gem-ood: interrupted; no file is left half-written"])


def test_sigterm_is_143_and_leaves_nothing_half_written(folder: Path) -> None:
    assert interrupted(folder, "score", signal.SIGTERM) == (143, [])


def test_a_signal_that_was_ignored_stays_so(monkeypatch: pytest.MonkeyPatch) -> None:
    from gem_ood.cli.outcome import signals_end_cleanly

    held: dict[Any, Any] = {signal.SIGINT: signal.SIG_IGN, signal.SIGTERM: signal.SIG_DFL}
    monkeypatch.setattr(signal, "getsignal", held.get)
    monkeypatch.setattr(signal, "signal", held.__setitem__)
    with signals_end_cleanly():
        assert held[signal.SIGINT] is signal.SIG_IGN
        with pytest.raises(SystemExit) as end:
            held[signal.SIGTERM](signal.SIGTERM, None)
    assert end.value.code == 143
    assert held[signal.SIGTERM] is signal.SIG_IGN
