"""What the room exports: every name is the thing itself, in whatever order files are loaded."""

import subprocess
import sys

import gem_ood.detectors


def test_no_exported_name_is_that_of_a_file():
    files = set(gem_ood.detectors._FILES.values())
    assert not files & set(gem_ood.detectors.__all__)
    assert set(gem_ood.detectors._FILES) == set(gem_ood.detectors.__all__)


def test_every_exported_name_is_there_and_no_other():
    for name in gem_ood.detectors.__all__:
        assert getattr(gem_ood.detectors, name).__name__ == name
    assert dir(gem_ood.detectors) == sorted(gem_ood.detectors.__all__)
    assert not hasattr(gem_ood.detectors, "Nearest")


def test_one_detector_loads_no_other():
    code = "import sys; from gem_ood import GEM; assert 'gem_ood.detectors.neighbors' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
