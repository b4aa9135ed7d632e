"""Facts about the machine and the libraries, without which a time means nothing."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

__all__ = ["busy_warning", "facts", "wait_for_quiet"]

ROOT = Path(__file__).parents[1]
PACKAGES = (
    "gem-ood",
    "numpy",
    "scipy",
    "scikit-learn",
    "pandas",
    "torch",
    "pytorch-ood",
    "oodeel",
    "pyod",
    "torchmetrics",
)
# Of the cores, at the start of the run: above this, somebody else is computing.
QUIET_LOAD = 0.25
# What ended just now, such as the installation of the peers, is no longer in the load after so long.
MOST_SECONDS_TO_WAIT = 120


def wait_for_quiet() -> None:
    """Return once the machine is quiet, or when what keeps it busy has had time enough to end."""
    most = QUIET_LOAD * (os.cpu_count() or 1)
    if os.getloadavg()[0] > most:
        print(f"waiting for a load of {most:.2f}, {MOST_SECONDS_TO_WAIT} s at the most", file=sys.stderr, flush=True)
    deadline = time.monotonic() + MOST_SECONDS_TO_WAIT
    while os.getloadavg()[0] > most and time.monotonic() < deadline:
        time.sleep(1.0)


def facts() -> dict[str, str]:
    """Names and values, in the order in which they are printed."""
    import numpy  # noqa: F401  (loads the BLAS that threadpoolctl then names)
    import scipy.linalg  # noqa: F401
    from threadpoolctl import threadpool_info

    pools = [
        f"{pool['internal_api']} {pool['version'] or ''} {pool.get('architecture', '')} x{pool['num_threads']}"
        for pool in threadpool_info()
    ]
    load = os.getloadavg()[0]
    return {
        "cpu": _cpu_model(),
        "cores": str(os.cpu_count()),
        "threads": os.environ["OMP_NUM_THREADS"],
        "load at start": f"{load:.2f}",
        "system": f"{platform.system()}, Python {platform.python_version()}",
        "source": _source(),
        "packages": ", ".join(f"{package} {_version(package)}" for package in PACKAGES),
        "thread pools": ", ".join(pools),
    }


def busy_warning(found: dict[str, str]) -> str:
    """A sentence when the machine was busy at the start, else nothing."""
    load, cores = float(found["load at start"]), int(found["cores"])
    if load <= QUIET_LOAD * cores:
        return ""
    return f"load was {load:.2f} on {cores} cores before the run: other work distorts every number; run again"


def _cpu_model() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _source() -> str:
    """The git tree of what is measured, which `git rev-parse HEAD:src` names whatever else has changed since."""

    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()

    try:
        return f"git tree {git('rev-parse', 'HEAD:src')[:12]}" + (", changed" if git("status", "-s", "src") else "")
    except (OSError, subprocess.CalledProcessError):
        return "not in a git repository"


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "(not installed)"
