"""Experiments: the networks behind the paper's tables and the real data.

`CifarResNet` is the CIFAR variant of ResNet; `normalize_images` makes its input from pixels.
"""

from gem_ood.extras import require_extra

require_extra("torch", "torch", purpose="networks")

from gem_ood.experiments.resnet import IMAGE_MEAN, IMAGE_STD, CifarResNet, normalize_images  # noqa: E402

__all__ = ["IMAGE_MEAN", "IMAGE_STD", "CifarResNet", "normalize_images"]
