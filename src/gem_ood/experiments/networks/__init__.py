"""Networks: the WideResNet behind the paper's tables, the CIFAR ResNet of the real data, and files of their weights."""

from gem_ood.extras import require_extra

require_extra("torch", "torch", purpose="networks")

from gem_ood.experiments.networks.loading import load_network  # noqa: E402
from gem_ood.experiments.networks.resnet import IMAGE_MEAN, IMAGE_STD, CifarResNet, normalize_images  # noqa: E402
from gem_ood.experiments.networks.weights import write_weights  # noqa: E402
from gem_ood.experiments.networks.wide_resnet import WideResNet  # noqa: E402

__all__ = ["IMAGE_MEAN", "IMAGE_STD", "CifarResNet", "WideResNet", "load_network", "normalize_images", "write_weights"]
