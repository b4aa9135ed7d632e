"""Facts about the machine and the libraries, without which a time means nothing."""

from __future__ import annotations

import ctypes
import os
import platform
import subprocess
import sys
import time
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

__all__ = [
    "busy_warning",
    "facts",
    "give_back_freed_memory",
    "set_settings_aside",
    "stolen_share",
    "ticks",
    "wait_for_quiet",
]

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
# Of the processors' time: a virtual machine that got less than the rest was held up again and again.
MOST_STOLEN = 0.05
# What ended just now, such as the installation of the peers, is no longer in the load after so long.
MOST_SECONDS_TO_WAIT = 120
# They choose for a library, when it is loaded, which instructions and block sizes its products take, often fewer than
# the processor has; our passes in C know none of them.
SETTINGS_OF_PRODUCTS = (
    *("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE", "MKL_ENABLE_INSTRUCTIONS", "MKL_DEBUG_CPU_TYPE", "MKL_CBWR"),
    *("ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA", "NPY_DISABLE_CPU_FEATURES"),
)
# Its place in a line of /proc/stat, after the name: user, nice, system, idle, iowait, irq, softirq, steal.
STOLEN = 7


def set_settings_aside() -> dict[str, str]:
    """Let every library choose its products by itself, and return the fact that settings were set aside, if any were.

    To be called before any of them is loaded; processes that are started later have no such settings either.
    """
    found = {name: os.environ.pop(name) for name in SETTINGS_OF_PRODUCTS if name in os.environ}
    return {"settings set aside": ", ".join(f"{name}={value}" for name, value in found.items())} if found else {}


def give_back_freed_memory() -> None:
    """Return to the system what the allocator keeps of freed memory, where it can be told to."""
    with suppress(OSError, AttributeError):  # another C library than GNU's
        ctypes.CDLL("libc.so.6").malloc_trim(0)


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

    from gem_ood.gaussians import native

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
        "passes in C": native.instructions(),
    }


def ticks() -> tuple[int, ...]:
    """What the processors' time went into so far, as Linux counts it; nothing elsewhere."""
    counts = Path("/proc/stat")
    if not counts.exists():
        return ()
    return tuple(map(int, counts.read_text().split("\n", 1)[0].split()[1 : STOLEN + 2]))  # what follows is in these


def stolen_share(before: tuple[int, ...], after: tuple[int, ...]) -> dict[str, str]:
    """The fact that other machines on the same processors took time from this one, where the system tells."""
    if not before or sum(after) == sum(before):
        return {}
    stolen = (after[STOLEN] - before[STOLEN]) / (sum(after) - sum(before))
    return {"taken by other machines": f"{stolen:.1%} of the processors' time"}


def busy_warning(found: dict[str, str]) -> str:
    """What took the machine from this run, in a sentence, or nothing."""
    reasons = []
    load, cores = float(found["load at start"]), int(found["cores"])
    if load > QUIET_LOAD * cores:
        reasons.append(
            f"load was {load:.2f} on {cores} cores before the run: other work distorts every number; run again"
        )
    stolen = found.get("taken by other machines", "0%").partition("%")[0]
    if float(stolen) / 100.0 > MOST_STOLEN:
        reasons.append(f"other machines on these processors took {stolen}% of their time; run again where they do not")
    return "; ".join(reasons)


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
