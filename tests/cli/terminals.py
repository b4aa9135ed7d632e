"""The program on a pseudo-terminal: what a person would see."""

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
from pathlib import Path
from typing import Any

PROGRAM = "from gem_ood.cli import main; main()"

#: The same, with bars at once.
IMPATIENT = f"import gem_ood.progress; gem_ood.progress.PATIENCE_SECONDS = -1.0; {PROGRAM}"


def on_terminal(
    *arguments: Any, folder: Path, columns: int = 80, program: str = PROGRAM, **environment: str
) -> tuple[int, str]:
    """Return the exit code and all that appeared, on stdout and stderr, with its control sequences."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    own = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
    process = subprocess.Popen(
        [sys.executable, "-c", program, *map(str, arguments)],
        cwd=folder,
        stdin=slave,
        stdout=slave,
        stderr=slave,
        env={**own, "TERM": "xterm-256color", **environment},
    )
    os.close(slave)
    seen = bytearray()
    while True:
        try:
            part = os.read(master, 65536)
        except OSError:  # the program has closed its end
            break
        if not part:
            break
        seen += part
    os.close(master)
    return process.wait(timeout=60), seen.decode("utf-8", "replace").replace("\r\n", "\n")
