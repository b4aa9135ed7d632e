"""Downloads that are broken off: in the middle by the server, or with their process."""

import subprocess
import sys

from lying_server import CHECKSUM, left_by_cut, status

#: A process of its own that fetches and says how far it is.
PROGRAM = """
import sys
from gem_ood.experiments.downloading import fetch
from gem_ood.experiments.sources import Archive

url, checksum, folder = sys.argv[1:]
fetch(Archive("file.bin", url, checksum, ""), folder, on_bytes=lambda *counts: print(*counts, flush=True))
"""


def broken_off(server, folder):
    """Leave the first part of the file; the try after the one that is cut fails, or it would go on by itself."""
    server.answers.insert(0, status(503))
    left_by_cut(server, folder)


def start_process(server, folder):
    command = [sys.executable, "-c", PROGRAM, server.url, CHECKSUM, str(folder)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
