"""Compile the passes in C where there is a compiler for them; without one, NumPy does their work."""

import os
import shlex
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from packaging.tags import platform_tags

FOLDER = Path("src/gem_ood/gaussians/native")
FLAGS = ("-std=gnu11", "-O3", "-fPIC", "-shared", "-Wall", "-Wextra")


class CustomBuildHook(BuildHookInterface):  # the name that hatchling looks for
    """Put passes.so beside its source, and into the wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build before the files of a wheel are gathered; an editable installation finds the library in the sources."""
        folder = Path(self.root) / FOLDER
        target = folder / "passes.so"
        target.unlink(missing_ok=True)
        reason = _compile(folder / "passes.c", target)
        if reason:
            self.app.display_warning(f"the passes in C are left out, and NumPy does their work: {reason}")
            return
        build_data["artifacts"].append(f"/{FOLDER}/passes.so")
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{next(iter(platform_tags()))}"


def _compile(source: Path, target: Path) -> str:
    """Compile, and return why not where that failed."""
    if sys.platform != "linux":
        return "they are written for GCC on Linux"
    compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:  # beside the target, to be moved there at once
        built = Path(folder) / target.name
        command = [*compiler, *FLAGS, "-o", str(built), str(source)]
        try:
            subprocess.run(command, check=True, capture_output=True, text=True)
        except OSError as error:
            return f"{compiler[0]}: {error.strerror}"
        except subprocess.CalledProcessError as error:
            said = error.stderr.strip().splitlines() or [f"it ended with code {error.returncode}"]
            return f"{compiler[0]}: {next((line for line in said if 'error' in line), said[0])}"
        built.replace(target)
    return ""
