"""Compile the passes in C where there is a compiler for them; without one, NumPy does their work."""

import hashlib
import os
import shlex
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

FOLDER = Path("src/gem_ood/gaussians/native")
FLAGS = ("-std=gnu11", "-O3", "-fPIC", "-shared", "-Wall", "-Wextra")


class CustomBuildHook(BuildHookInterface):  # the name that hatchling looks for
    """Put passes.so beside its source, and into the wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build before the files of a wheel are gathered; an editable installation finds the library in the sources."""
        reason = compile_passes(Path(self.root) / FOLDER)
        if reason:
            self.app.display_warning(f"the passes in C are left out, and NumPy does their work: {reason}")
            return
        build_data["artifacts"].append(f"/{FOLDER}/passes.so")
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"


def compile_passes(folder: Path) -> str:
    """Compile passes.c to passes.so by the first compiler that can; return why not where none can."""
    if sys.platform != "linux":
        return "they are written for GCC on Linux"
    files = sorted(path for path in folder.iterdir() if path.suffix in (".c", ".h"))
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()[:16]  # as native/__init__.py
    compilers = dict.fromkeys(filter(None, (os.environ.get("CC"), sysconfig.get_config_var("CC"), "gcc")))
    reasons = []
    try:
        (folder / "passes.so").unlink(missing_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as room:  # beside the target, to be moved there at once
            built = Path(room) / "passes.so"
            command = [*FLAGS, f'-DSOURCE="{digest}"', "-o", str(built), str(folder / "passes.c")]
            for compiler in compilers:
                reason = _failure([*shlex.split(compiler), *command])
                if not reason:
                    built.replace(folder / "passes.so")
                    return ""
                reasons.append(f"{compiler}: {reason}")
    except OSError as error:
        reasons.append(str(error))
    return "; ".join(reasons)


def _failure(call: list[str]) -> str:
    try:
        done = subprocess.run(call, check=False, capture_output=True, text=True)
    except OSError as error:
        return error.strerror or str(error)
    if done.returncode == 0:
        return ""
    lines = done.stderr.strip().splitlines() or [f"it ended with code {done.returncode}"]
    return next((line for line in lines if "error" in line), lines[0])
