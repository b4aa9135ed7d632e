"""What a guard costs on a PyTorch model: the guarded ResNet-56 beside the bare one, as ratios of interleaved times."""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np

from sections import Section
from timing import Stopwatch, interleave, paired_ratio

if TYPE_CHECKING:
    from torch import nn

    from gem_ood.torch import OODModel

__all__ = ["guard"]

BATCH = 200
CLASSES = 10
# A guard may cost five in a hundred of what the model costs.
LARGEST_OVERHEAD = 1.05
# A ratio near one needs more pairs than a ratio of three.
MORE_ROUNDS = 3
NO_TORCH = 'torch is not installed; run: pip install "gem-ood[torch]"'


def guard(*, rounds: int, n_images: int) -> list[Section]:
    """How much longer a batch, a fit and a calibration take than the model's own passes over the same images."""
    if find_spec("torch") is None:
        return [Section("guard", "Guard of a PyTorch model", skipped=NO_TORCH)]
    import torch

    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    torch.manual_seed(0)
    return [_forward(rounds=MORE_ROUNDS * rounds), _passes(rounds=MORE_ROUNDS * rounds, n_images=n_images)]


def _forward(*, rounds: int) -> Section:
    model, images, guarded = _guarded_model(n_images=BATCH)
    bare = "ResNet-56"
    times = interleave(
        {
            "guarded": Stopwatch(lambda: _without_gradients(lambda: guarded(images))),
            bare: Stopwatch(lambda: _without_gradients(lambda: model(images))),
        },
        rounds=rounds,
    )
    ratio = paired_ratio(f"guarded / {bare}", times["guarded"], times[bare], at_most=LARGEST_OVERHEAD)
    title = f"Guarded forward, {BATCH} images of 32 x 32"
    return Section("guard-forward", title, [ratio], [time.scaled(1e3, "ms") for time in times.values()])


def _passes(*, rounds: int, n_images: int) -> Section:
    """A fit and a calibration over a loader, against the loop that only runs the model over it."""
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    model, images, guarded = _guarded_model(n_images=n_images)
    loader = DataLoader(TensorDataset(images, torch.arange(n_images) % CLASSES), batch_size=BATCH)

    def run_model() -> None:
        for batch, _ in loader:
            model(batch)

    bare = "ResNet-56 over the loader"
    times = interleave(
        {
            "fit": Stopwatch(lambda: lambda: guarded.fit(loader)),
            "calibrate": Stopwatch(lambda: lambda: guarded.calibrate(loader)),
            bare: Stopwatch(lambda: _without_gradients(run_model)),
        },
        rounds=rounds,
    )
    ratios = [
        paired_ratio(f"{name} / {bare}", times[name], times[bare], at_most=LARGEST_OVERHEAD)
        for name in ("fit", "calibrate")
    ]
    title = f"Guard fitted and calibrated over a loader, {n_images:,} images of 32 x 32 in batches of {BATCH}"
    return Section("guard-loader", title, ratios, [time.scaled(1e3, "ms") for time in times.values()])


def _guarded_model(*, n_images: int) -> tuple[nn.Module, Any, OODModel]:
    """A ResNet-56 with random weights, images laid out as `normalize_images` does, and the model's fitted guard."""
    from gem_ood import GEM
    from gem_ood.experiments import CifarResNet, normalize_images
    from gem_ood.torch import OODModel

    model = CifarResNet(56, CLASSES).eval()
    pixels = np.random.default_rng(0).integers(256, size=(n_images, 32, 32, 3), dtype=np.uint8)
    images, labels = normalize_images(pixels), np.arange(n_images) % CLASSES
    # Random weights may leave features constant, and a fit of few rows is short of rank: any ridge will do here.
    guarded = OODModel(model, GEM(covariance=0.1)).fit([(images[:BATCH], labels[:BATCH])])
    return model, images, guarded.calibrate([images[:BATCH]])


def _without_gradients(call: Callable[[], object]) -> Callable[[], object]:
    import torch

    return torch.inference_mode()(call)
