"""What a person sees on a terminal, wide, narrow, dumb or without Unicode, and what a pipe gets."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from terminals import IMPATIENT, PROGRAM, on_terminal

from gem_ood import GEM


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, rng = tmp_path_factory.mktemp("terminals"), np.random.default_rng(0)
    np.save(folder / "rows.npy", rng.normal(size=(40_000, 30)))
    np.savez(folder / "test.npz", features=rng.normal(size=(300, 30)), labels=np.full(300, "Käse↓"))
    GEM().fit(rng.normal(size=(900, 30))).calibrate(rng.normal(size=(300, 30))).save(folder / "gem.safetensors")
    # A hole of a file: four batches and no room on the disk.
    np.lib.format.open_memmap(folder / "hole.npy", mode="w+", dtype=np.float64, shape=(2_500_000, 3)).flush()
    GEM().fit(rng.normal(size=(99, 3))).save(folder / "three.safetensors")
    return folder


LONG_WORK = ("score", "three.safetensors", "hole.npy")
COMMANDS = {
    "score": ("score", "gem.safetensors", "test.npz"),
    "evaluate": ("evaluate", "gem.safetensors", "--id", "test.npz", "--ood", "rows.npy", "--no-time"),
    "verify": ("verify", "--item", "P12", "--item", "P22"),
    "info": ("info", "test.npz"),
}


@pytest.mark.parametrize("command", ["score", "info"])
def test_a_narrow_terminal_gets_frames_that_fit_it(command: str, folder: Path) -> None:
    code, seen = on_terminal(*COMMANDS[command], folder=folder, columns=60)
    assert code == 0
    framed = [line for line in seen.splitlines() if line.startswith(("╭", "├", "╰"))]
    assert framed
    assert max(map(len, framed)) <= 60


def test_a_dumb_terminal_gets_no_control_sequences(folder: Path) -> None:
    code, seen = on_terminal(*COMMANDS["evaluate"], folder=folder, TERM="dumb", program=IMPATIENT)
    assert (code, "\x1b" in seen) == (0, False)
    assert "FPR95" in seen


def test_no_colour_leaves_only_bold(folder: Path) -> None:
    code, seen = on_terminal(*COMMANDS["score"], folder=folder, NO_COLOR="1")
    assert code == 0
    assert {part.partition("m")[0] for part in seen.split("\x1b[")[1:]} == {"0", "1"}


@pytest.mark.parametrize("command", ["evaluate", "verify", "info"])
def test_a_pipe_without_unicode_gets_plain_text(command: str, folder: Path) -> None:
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *COMMANDS[command]],
        cwd=folder,
        env=environment,
        capture_output=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.isascii()
    assert b"\x1b" not in done.stdout
    if command == "info":
        assert b"300 x 30" in done.stdout
        assert b"K\\xe4sev" in done.stdout


def test_json_without_unicode_is_still_json(folder: Path) -> None:
    command = [sys.executable, "-c", PROGRAM, "info", "test.npz", "--json"]
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, check=True, timeout=60)
    assert json.loads(done.stdout)["rows"]["statistics"]["largest_class"] == ["Käse↓", 300]


@pytest.mark.parametrize(
    ("arguments", "title", "unit", "columns"),
    [
        (LONG_WORK, "hole.npy", "rows", 60),
        (("verify", "--item", "P12", "--item", "P22", "--item", "P28"), "P28", "items", 80),
    ],
    ids=["score", "verify"],
)
def test_long_work_shows_a_bar_with_rate_and_time_left_and_takes_it_back(
    arguments: tuple[str, ...], title: str, unit: str, columns: int, folder: Path
) -> None:
    code, seen = on_terminal(*arguments, folder=folder, columns=columns, program=IMPATIENT)
    assert code == 0
    bars = [line for line in seen.replace("\r", "\n").splitlines() if f" {unit}" in line and "\x1b[2K" in line]
    assert any(title in line for line in bars)
    assert any(f"{unit}/s" in line for line in bars)
    assert any(re.search(r"\d:\d\d:\d\d", line) for line in bars)
    after = seen.rpartition("\x1b[?25h")[2]  # the cursor is shown again, and the line of the bar wiped
    assert "\x1b[2K" in after
    assert f"{unit}/s" not in after


def test_quiet_work_shows_no_bar(folder: Path) -> None:
    code, seen = on_terminal(*LONG_WORK, "-q", folder=folder, program=IMPATIENT)
    assert (code, "\x1b[?25" in seen) == (0, False)  # nothing hides the cursor, as the bar above does
    assert "rows/s" not in seen
    assert seen.startswith("2,500,000 rows; no verdicts")  # all of the long work was done
