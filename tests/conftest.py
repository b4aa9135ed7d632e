"""What every test shares: a calm hypothesis profile, the real data where it is, and small made data."""

import signal
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings

from real_data import DATA

settings.register_profile("calm", deadline=None, max_examples=40)
settings.load_profile("calm")

# The benchmark's modules are scripts beside each other: tests find them as the scripts do.
sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))

# A shell that runs the tests in the background makes them, and the commands that they start, deaf to Ctrl-C.
if threading.current_thread() is threading.main_thread():
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def cifar10():
    """Penultimate features of a real CIFAR-10 classifier, where the folder is present."""
    folder = DATA / "cifar10_resnet56"
    if not folder.is_dir():
        pytest.skip(f"the real features are not at {folder}; set GEM_OOD_DATA to their folder to run this test")
    names = ("train", "test", "ood_svhn", "ood_textures", "ood_places", "head")
    loaded = {}
    for name in names:
        with np.load(folder / f"{name}.npz", allow_pickle=False) as arrays:
            loaded[name] = {key: arrays[key] for key in arrays}
    return loaded


@pytest.fixture(scope="session")
def cifar10_images():
    """Pixels, labels and row numbers of some images behind those features, where the folder is present."""
    folder = DATA / "images"
    if not folder.is_dir():
        pytest.skip(f"the real images are not at {folder}; set GEM_OOD_DATA to their folder to run this test")
    loaded = {}
    for name in ("cifar10_test", "cifar10_train_5k", "ood_svhn", "ood_textures"):
        with np.load(folder / f"{name}.npz", allow_pickle=False) as arrays:
            loaded[name] = {key: arrays[key] for key in arrays}
    return loaded


@pytest.fixture(scope="session")
def resnet56_weights():
    """Path of the weights of the network that made those features, where the file is present."""
    path = DATA / "cifar10_resnet56" / "weights.safetensors"
    if not path.is_file():
        pytest.skip(f"the real weights are not at {path}; set GEM_OOD_DATA to their folder to run this test")
    return path


@pytest.fixture
def resnet56(resnet56_weights):
    """The network itself, loaded anew for each test, since hooks and training mode would change it."""
    pytest.importorskip("torch")
    from gem_ood.experiments import CifarResNet

    return CifarResNet.load(resnet56_weights)


@pytest.fixture
def blobs():
    """Three well-separated classes in five correlated dimensions: fit rows, labels, held-out rows, far rows."""
    generator = np.random.default_rng(7)
    mixing = generator.normal(size=(5, 5))
    means = 6.0 * generator.normal(size=(3, 5))

    def draw(n):
        labels = np.arange(n) % 3
        return generator.normal(size=(n, 5)) @ mixing + means[labels], labels

    features, labels = draw(600)
    held_out, _ = draw(400)
    return features, labels, held_out, 60.0 + generator.normal(size=(100, 5))
