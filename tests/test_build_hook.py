"""Compiling the passes in C when the project is installed: what is built, and what is said where nothing is."""

import importlib.util
import platform
import shutil
import sys
from pathlib import Path
from types import ModuleType

import pytest

from gem_ood.gaussians import native

HOOK = Path(__file__).parents[1] / "hatch_build.py"

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() != "x86_64" or not shutil.which("gcc"),
    reason="the passes in C are compiled by GCC on Linux and x86-64",
)


@pytest.fixture
def hook(monkeypatch):
    """The hook without hatchling, which is there only while something is built."""
    interface = ModuleType("hatchling.builders.hooks.plugin.interface")
    interface.BuildHookInterface = object
    monkeypatch.setitem(sys.modules, interface.__name__, interface)
    monkeypatch.delenv("CC", raising=False)
    spec = importlib.util.spec_from_file_location("hatch_build", HOOK)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def folder(tmp_path):
    for path in native.LIBRARY.parent.glob("*.[ch]"):
        shutil.copy(path, tmp_path)
    return tmp_path


def test_what_is_installed_was_built_of_this_source():
    assert native.LIBRARY.exists(), "the installation did not compile it: run pip install --verbose --editable ."
    flags = Path("/proc/cpuinfo").read_text().split()
    assert (native.library.__wrapped__() is not None) == ("avx2" in flags and "fma" in flags)


def test_the_passes_are_built_beside_their_source(hook, folder, monkeypatch):
    assert hook.compile_passes(folder) == ""
    monkeypatch.setattr(native, "LIBRARY", folder / "passes.so")
    monkeypatch.delenv(native.SWITCH, raising=False)
    assert native.library.__wrapped__() is not None
    assert {path.suffix for path in folder.iterdir()} == {".c", ".h", ".so"}


def test_another_compiler_is_tried_after_one_that_is_not_there(hook, folder, monkeypatch):
    monkeypatch.setenv("CC", "no-such-compiler --flag")
    assert hook.compile_passes(folder) == ""
    assert (folder / "passes.so").exists()


def test_without_a_compiler_the_reason_is_told_and_nothing_is_left(hook, folder, monkeypatch):
    (folder / "passes.so").write_bytes(b"of an earlier build")
    monkeypatch.setenv("PATH", str(folder))
    assert "gcc: No such file or directory" in hook.compile_passes(folder)
    assert not (folder / "passes.so").exists()


def test_a_source_that_does_not_compile_is_told_by_its_error(hook, folder):
    with (folder / "passes.c").open("a") as source:
        source.write("this is no C\n")
    assert "error" in hook.compile_passes(folder)
    assert not (folder / "passes.so").exists()


def test_a_folder_that_cannot_be_written_to_fails_no_installation(hook, folder, monkeypatch):
    def refuse(**_):
        raise PermissionError(13, "Permission denied", str(folder))

    monkeypatch.setattr(hook.tempfile, "TemporaryDirectory", refuse)
    assert "Permission denied" in hook.compile_passes(folder)
