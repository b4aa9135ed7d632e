"""Without its extra a room says what to install, and the rest of the library does not notice."""

import subprocess
import sys

import pytest

WITHOUT_TORCH = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torch":
            raise ModuleNotFoundError(f"No module named {name!r}")
sys.meta_path.insert(0, Absent())
"""


def run(code):
    """Return what code prints in a fresh interpreter that has no PyTorch."""
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH + code], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("name", ["torch.OODModel", "experiments.CifarResNet"])
def test_what_lacks_its_extra_says_what_to_install(name):
    room, _, name = name.partition(".")
    line = f"from gem_ood.{room} import {name}"
    code = f"try:\n    {line}\nexcept ImportError as error:\n    print(type(error).__name__, error)"
    assert run(code).startswith("MissingExtraError ")
    assert run(code).endswith('need torch, which cannot be imported; run pip install "gem-ood[torch]"')


def test_looking_into_the_library_needs_no_extra():
    assert run("import gem_ood, inspect; inspect.getmembers(gem_ood); print(hasattr(gem_ood, 'torch'))") == "False"
    assert run("from gem_ood import *; print(GEM())") == "GEM()"


def test_data_sets_need_no_network_library():
    assert run("from gem_ood.experiments import ImageSet; print(ImageSet.__name__)") == "ImageSet"


def test_the_rooms_are_found_without_importing_them_by_name():
    pytest.importorskip("torch")
    import gem_ood

    assert gem_ood.torch.OODModel.__name__ == "OODModel"
    assert gem_ood.experiments.CifarResNet.__name__ == "CifarResNet"
