"""Sources: where the public archives of data sets and weights are, and the checksums that tell them.

Checksums of CIFAR and Places365 are those that their publishers' pages print; those of SVHN and Textures are what
torchvision and other libraries check, and those of the three sets of ODIN's authors (LSUN-Crop, LSUN-Resize, iSUN) and
of the weights what other libraries that use the same files do.
"""

from dataclasses import dataclass

__all__ = ["ARCHIVES", "WEIGHTS", "Archive"]


@dataclass(frozen=True)
class Archive:
    """One public file.

    Attributes:
        file_name: What it is called at its source and on disk.
        url: Where it is.
        checksum: "md5:..." or "sha256:..." of the whole file.
        about: What it holds and how large it is, for people.
        n_bytes: How many bytes it has, where that is known: then another length is refused before it is fetched.
    """

    file_name: str
    url: str
    checksum: str
    about: str
    n_bytes: int | None = None


#: The archive of each data set.
ARCHIVES = {
    "cifar10": Archive(
        "cifar-10-binary.tar.gz",
        "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
        "md5:c32a1d4ab5d03f1284b67883e8d87530",
        "CIFAR-10, binary version, 162 MB",
        n_bytes=170_052_171,
    ),
    "cifar100": Archive(
        "cifar-100-binary.tar.gz",
        "https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",
        "md5:03b5dce01913d631647c71ecec9e9cb8",
        "CIFAR-100, binary version, 161 MB",
        n_bytes=168_513_733,
    ),
    "textures": Archive(
        "dtd-r1.0.1.tar.gz",
        "https://www.robots.ox.ac.uk/~vgg/data/dtd/download/dtd-r1.0.1.tar.gz",
        "md5:fff73e5086ae6bdbea199a49dfb8a4c1",
        "Describable Textures, 596 MB",
        n_bytes=625_239_812,
    ),
    "svhn": Archive(
        "test_32x32.mat",
        "http://ufldl.stanford.edu/housenumbers/test_32x32.mat",
        "md5:eb5a983be6a315427106f1b164d9cef3",
        "SVHN's test digits, 61 MB",
        n_bytes=64_275_384,
    ),
    "places365": Archive(
        "val_256.tar",
        "http://data.csail.mit.edu/places/places365/val_256.tar",
        "md5:e27b17d8d44f4af9a78502beb927f808",
        "Places365's validation pictures, 501 MB",
    ),
    "lsun-c": Archive(
        "LSUN.tar.gz",
        "https://www.dropbox.com/s/fhtsw1m3qxlwj6h/LSUN.tar.gz?dl=1",
        "md5:458a0a0ab8e5f1cb4516d7400568e460",
        "LSUN, cropped, of ODIN's authors",
    ),
    "lsun-r": Archive(
        "LSUN_resize.tar.gz",
        "https://www.dropbox.com/s/moqh2wh8696c3yl/LSUN_resize.tar.gz?dl=1",
        "md5:278b7b31c8cb7e804a1465a8ce03a2dc",
        "LSUN, resized, of ODIN's authors",
    ),
    "isun": Archive(
        "iSUN.tar.gz",
        "https://www.dropbox.com/s/ssz7qxfqae0cca5/iSUN.tar.gz?dl=1",
        "md5:be77b0f2c26fda898afac5f99645ee70",
        "iSUN, of ODIN's authors",
    ),
}

#: The pre-trained WideResNet-40-2 behind the paper's tables (P47), by in-distribution set.
WEIGHTS = {
    "cifar10": Archive(
        "cifar10_wrn_pretrained_epoch_99.pt",
        "https://github.com/wetliu/energy_ood/raw/master/CIFAR/snapshots/pretrained/cifar10_wrn_pretrained_epoch_99.pt",
        "sha256:0b59e178577382a0cf5d1e079d1d019f6a33b0801b7d123a59e51b4b32972637",
        "WideResNet-40-2 trained on CIFAR-10, of the energy score's authors",
    ),
    "cifar100": Archive(
        "cifar100_wrn_pretrained_epoch_99.pt",
        "https://github.com/wetliu/energy_ood/raw/master/CIFAR/snapshots/pretrained/cifar100_wrn_pretrained_epoch_99.pt",
        "sha256:3751f516b81ef9d27290f08a3de78d65a3771f477bd6a6caefa81b330dc34baf",
        "WideResNet-40-2 trained on CIFAR-100, of the energy score's authors",
    ),
}
