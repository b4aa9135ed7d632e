"""How busy extraction keeps the processor: images per second to features, as a share of the bare network's own."""

from __future__ import annotations

import os
from importlib.util import find_spec
from typing import TYPE_CHECKING

import numpy as np

from sections import Section
from timing import Stopwatch, interleave, paired_ratio

if TYPE_CHECKING:
    from torch import nn

__all__ = ["extract"]

BATCH = 200
# The bare network has normalised tensors in memory; extraction begins at bytes and ends at arrays.
LEAST_SHARE = 0.9
NO_TORCH = 'torch is not installed; run: pip install "gem-ood[torch]"'


def extract(*, rounds: int, n_images: int) -> list[Section]:
    """The paper's network, and a small one on which everything beside the network weighs more."""
    if find_spec("torch") is None:
        return [Section("extract", "Extraction of features", skipped=NO_TORCH)]
    import torch

    from gem_ood.experiments import CifarResNet, WideResNet

    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    torch.manual_seed(0)
    networks: dict[str, nn.Module] = {
        "WideResNet-40-2": WideResNet().eval(),
        "ResNet-20": CifarResNet(depth=20).eval(),
    }
    return [_extract(name, network, rounds=rounds, n_images=n_images) for name, network in networks.items()]


def _extract(name: str, network: nn.Module, *, rounds: int, n_images: int) -> Section:
    import torch

    from gem_ood.experiments import ImageSet
    from gem_ood.experiments.extraction import Extractor, ImageBatches

    pixels = np.random.default_rng(0).integers(0, 256, size=(n_images, 32, 32, 3), dtype=np.uint8)
    images = ImageSet("noise", pixels, labels=np.arange(n_images) % 10)
    ready = [batch for batch, _ in ImageBatches(images, BATCH, network.pixel_mean, network.pixel_std)]
    extractor = Extractor(network, batch_size=BATCH)

    def bare() -> None:
        with torch.inference_mode():
            for batch in ready:
                network(batch)

    times = interleave(
        {
            "extraction": Stopwatch(lambda: lambda: extractor(images, "noise")),
            name: Stopwatch(lambda: bare),
        },
        rounds=rounds,
    )
    share = paired_ratio(f"rate of extraction / {name}", times[name], times["extraction"], at_least=LEAST_SHARE)
    rates = [time.scaled(1e3 / n_images, "ms an image") for time in times.values()]
    title = f"Extraction of features, {name}, {n_images:,} images of 32 x 32"
    return Section(f"extract-{name}", title, [share], rates)
