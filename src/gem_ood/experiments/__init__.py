"""Experiments: the data sets, the networks and the tables of the paper, and the same tables for any network.

Names are imported when they are first used: data sets need the extra `data`, networks the extra `torch`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gem_ood.experiments.data_sets import DATA_SETS, load, load_images
    from gem_ood.experiments.downloading import fetch
    from gem_ood.experiments.extracted import Extracted, FeatureCache
    from gem_ood.experiments.image_sets import ImageSet
    from gem_ood.experiments.paper_numbers import PAPER, PAPER_METHODS, PAPER_SETS, PaperTable
    from gem_ood.experiments.protocol import Draws, Protocol
    from gem_ood.experiments.resnet import IMAGE_MEAN, IMAGE_STD, CifarResNet, normalize_images
    from gem_ood.experiments.results import Experiment
    from gem_ood.experiments.running import run, run_features
    from gem_ood.experiments.wide_resnet import WideResNet

__all__ = [
    "IMAGE_MEAN",
    "IMAGE_STD",
    "PAPER",
    "PAPER_METHODS",
    "PAPER_SETS",
    "CifarResNet",
    "Draws",
    "Experiment",
    "Extracted",
    "FeatureCache",
    "ImageSet",
    "PaperTable",
    "Protocol",
    "WideResNet",
    "normalize_images",
    "run",
    "run_features",
]

#: The module of each name.
_HOMES = {
    "ImageSet": "image_sets",
    "Extracted": "extracted",
    "FeatureCache": "extracted",
    "PAPER": "paper_numbers",
    "PAPER_METHODS": "paper_numbers",
    "PAPER_SETS": "paper_numbers",
    "PaperTable": "paper_numbers",
    "Draws": "protocol",
    "Protocol": "protocol",
    "Experiment": "results",
    "WideResNet": "wide_resnet",
    "run": "running",
    "run_features": "running",
    "IMAGE_MEAN": "resnet",
    "IMAGE_STD": "resnet",
    "CifarResNet": "resnet",
    "normalize_images": "resnet",
}

#: The modules that import PyTorch.
_OF_TORCH = {"networks", "resnet", "training", "wide_resnet"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'gem_ood.experiments' has no attribute {name!r}")
    home = _HOMES[name]
    if home in _OF_TORCH:
        from gem_ood.extras import require_extra

        require_extra("torch", "torch", purpose="networks")
    value = getattr(import_module(f"gem_ood.experiments.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
