"""Networks by their files: whichever of the known networks a file of weights belongs to."""

from os import PathLike

from gem_ood.errors import FileFormatError
from gem_ood.experiments.networks.resnet import CifarResNet
from gem_ood.experiments.networks.weights import read_tensors, some, unwrapped_names
from gem_ood.experiments.networks.wide_resnet import WideResNet

__all__ = ["load_network"]


def load_network(path: str | PathLike[str]) -> WideResNet | CifarResNet:
    """Return the network of a .safetensors, .pt or .pth file, in evaluation mode and on the CPU.

    Which network it is, its depth, its width and its number of classes are read off the names and shapes of the
    tensors. No code of the file is run.

    >>> import tempfile
    >>> from pathlib import Path
    >>> from gem_ood.experiments.networks.weights import write_weights
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_weights(CifarResNet(depth=8), Path(folder, "weights.safetensors"))
    ...     network = load_network(Path(folder, "weights.safetensors"))
    >>> type(network).__name__, network.pixel_mean
    ('CifarResNet', (0.485, 0.456, 0.406))

    Raises:
        FileNotFoundError: There is no such file.
        FileFormatError: The file is damaged, truncated, or holds the tensors of another network.
    """
    tensors = unwrapped_names(read_tensors(path))
    if any(name.startswith("block1.layer.") for name in tensors):
        return WideResNet.from_tensors(tensors, name=str(path))
    if any(name.startswith("layer1.") for name in tensors):
        return CifarResNet.from_tensors(tensors, name=str(path))
    raise FileFormatError(
        f"{path} holds neither the weights of a WideResNet (block1.layer.0.conv1.weight, ...) nor those of a CIFAR "
        f"ResNet (layer1.0.conv1.weight, ...) but {some(tensors)}; pass another file"
    )
