"""Experiments: the data sets, the networks and the tables of the paper, and the same tables for any network.

Names are imported when they are first used: data sets need the extra `data`, networks the extra `torch`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gem_ood.experiments.image_sets import ImageSet
    from gem_ood.experiments.resnet import IMAGE_MEAN, IMAGE_STD, CifarResNet, normalize_images

__all__ = ["IMAGE_MEAN", "IMAGE_STD", "CifarResNet", "ImageSet", "normalize_images"]

#: The module of each name, and whether it needs PyTorch.
_HOMES = {
    "ImageSet": "image_sets",
    "IMAGE_MEAN": "resnet",
    "IMAGE_STD": "resnet",
    "CifarResNet": "resnet",
    "normalize_images": "resnet",
}

#: The modules that import PyTorch.
_OF_TORCH = {"resnet"}


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
