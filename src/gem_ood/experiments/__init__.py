"""Experiments: the data sets, the networks and the tables of the paper, and the same tables for any network.

Names are imported when they are first used: data sets need the extra `data`, networks the extra `torch`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gem_ood.experiments import data_sets, networks, training
    from gem_ood.experiments.downloading import fetch
    from gem_ood.experiments.extracted import Extracted, FeatureCache
    from gem_ood.experiments.image_sets import ImageSet
    from gem_ood.experiments.networks import (
        IMAGE_MEAN,
        IMAGE_STD,
        CifarResNet,
        WideResNet,
        load_network,
        normalize_images,
    )
    from gem_ood.experiments.paper_numbers import PAPER, PAPER_METHODS, PAPER_SETS, PaperTable
    from gem_ood.experiments.protocol import Draws, Protocol
    from gem_ood.experiments.reproduction import reproduce
    from gem_ood.experiments.results import Experiment
    from gem_ood.experiments.running import run, run_features
    from gem_ood.experiments.sources import ARCHIVES, WEIGHTS, Archive
    from gem_ood.experiments.stored import StoredFeatures, read_stored_features, reproduce_features
    from gem_ood.experiments.training import TrainingOptions, TrainingResult, train, train_on

__all__ = [
    "ARCHIVES",
    "IMAGE_MEAN",
    "IMAGE_STD",
    "PAPER",
    "PAPER_METHODS",
    "PAPER_SETS",
    "WEIGHTS",
    "Archive",
    "CifarResNet",
    "Draws",
    "Experiment",
    "Extracted",
    "FeatureCache",
    "ImageSet",
    "PaperTable",
    "Protocol",
    "StoredFeatures",
    "TrainingOptions",
    "TrainingResult",
    "WideResNet",
    "data_sets",
    "fetch",
    "load_network",
    "networks",
    "normalize_images",
    "read_stored_features",
    "reproduce",
    "reproduce_features",
    "run",
    "run_features",
    "train",
    "train_on",
    "training",
]

#: The module of each name.
_HOMES = {
    name: home
    for home, names in {
        "downloading": ("fetch",),
        "extracted": ("Extracted", "FeatureCache"),
        "image_sets": ("ImageSet",),
        "networks": ("IMAGE_MEAN", "IMAGE_STD", "CifarResNet", "WideResNet", "load_network", "normalize_images"),
        "paper_numbers": ("PAPER", "PAPER_METHODS", "PAPER_SETS", "PaperTable"),
        "protocol": ("Draws", "Protocol"),
        "reproduction": ("reproduce",),
        "results": ("Experiment",),
        "running": ("run", "run_features"),
        "sources": ("ARCHIVES", "WEIGHTS", "Archive"),
        "stored": ("StoredFeatures", "read_stored_features", "reproduce_features"),
        "training": ("TrainingOptions", "TrainingResult", "train", "train_on"),
    }.items()
    for name in names
}

_ROOMS = ("data_sets", "networks", "training")


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return import_module(f"gem_ood.experiments.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'gem_ood.experiments' has no attribute {name!r}")
    value = getattr(import_module(f"gem_ood.experiments.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
