"""The catalogue: what each data set is called, in tables and on disk, and how its pictures are taken."""

import re
from dataclasses import dataclass

from gem_ood.errors import InputError

__all__ = [
    "CATALOGUE",
    "DATA_SETS",
    "DEFAULT_LIMITS",
    "SPLITS",
    "TITLES",
    "DataSet",
    "entry",
    "file_split",
    "plain_name",
]

#: The folders of a split, as they are usually called, the first that is there being taken.
SPLITS = {
    "train": ("train", "training"),
    "test": ("test", "testing", "val", "valid", "validation"),
}

#: How many pictures are drawn where the caller asks for no number: the protocol's. All of every other set.
DEFAULT_LIMITS = {"places365": 10_000}

#: The side in pixels that the protocol's networks take.
SIDE = 32


@dataclass(frozen=True)
class DataSet:
    """One data set.

    Attributes:
        name: Its name in this library.
        title: What the paper's tables call it.
        folders: What its folders and files are called, in lower case and without signs: `plain_name` of them.
        inner: Folders inside those whose pictures are meant, the first that is there being taken.
        n_classes: How many classes it has, 0 where labels are not wanted.
        has_splits: Whether train and test are told apart.
        size: The side to which pictures are resized and cropped; None where they are taken as they are.
        side: The side that pictures must have; None where several are usual.
    """

    name: str
    title: str
    folders: tuple[str, ...]
    inner: tuple[str, ...] = ()
    n_classes: int = 0
    has_splits: bool = False
    size: int | None = None
    side: int | None = None


_CIFAR10 = ("cifar10", "cifar10batchesbin", "cifar10batchespy", "cifar10batchesmat", "cifar10binary", "cifar10python")
_CIFAR100 = ("cifar100", "cifar100binary", "cifar100python", "cifar100matlab", "cifar100bin", "cifar100py")

CATALOGUE = {
    known.name: known
    for known in (
        DataSet(
            "cifar10",
            "CIFAR-10",
            (*_CIFAR10, "cifar10matlab", "cifar10bin", "cifar10py"),
            n_classes=10,
            has_splits=True,
            side=SIDE,
        ),
        DataSet("cifar100", "CIFAR-100", _CIFAR100, n_classes=100, has_splits=True, side=SIDE),
        DataSet("svhn", "SVHN", ("svhn", "housenumbers"), n_classes=10, has_splits=True, side=SIDE),
        DataSet("textures", "Textures", ("textures", "texture", "dtd", "dtdr101", "dtdimages"), ("images",), size=SIDE),
        DataSet(
            "places365",
            "Places365",
            ("places365", "places", "places365standard", "val256", "test256", "vallarge", "testlarge"),
            ("test_subset", "val_256", "test_256", "val_large", "test_large", "val", "test"),
            size=SIDE,
        ),
        DataSet("lsun-c", "LSUN-Crop", ("lsun", "lsunc", "lsuncrop", "lsuncropped"), ("test",)),
        DataSet("lsun-r", "LSUN-Resize", ("lsunr", "lsunresize", "lsunresized"), ("test",)),
        DataSet("isun", "iSUN", ("isun", "isunpatches"), ("isun_patches", "test")),
    )
}

#: The names of the data sets that can be read by name.
DATA_SETS: tuple[str, ...] = tuple(CATALOGUE)
#: How many classes those have that networks are trained on.
N_CLASSES: dict[str, int] = {name: known.n_classes for name, known in CATALOGUE.items() if known.n_classes}
#: What tables call them.
TITLES: dict[str, str] = {name: known.title for name, known in CATALOGUE.items()}

#: What may follow a set's name in the name of a file, such as cifar10_train_5k.npz or svhn_test_32x32.npz.
_SUFFIX_WORDS = re.compile(
    r"(train(ing)?|test(ing)?|val(id(ation)?)?|images|data|set|ood|uint8|32(x32)?|[1-9][0-9]*k)*"
)


def entry(name: str) -> DataSet:
    """Return the data set of this name.

    >>> entry("svhn").title
    'SVHN'
    >>> entry("mnist")
    Traceback (most recent call last):
        ...
    gem_ood.errors.InputError: 'mnist' is not one of the data sets cifar10, cifar100, svhn, textures, places365, lsun-c,
    lsun-r, isun; pass one of them, or the pictures of another set by load_images (--ood NAME=DIR)
    """
    if not isinstance(name, str) or name not in CATALOGUE:
        raise InputError(
            f"{name!r} is not one of the data sets {', '.join(DATA_SETS)}; pass one of them, or the pictures of "
            f"another set by load_images (--ood NAME=DIR)"
        )
    return CATALOGUE[name]


def plain_name(name: str) -> str:
    """Return a name in lower case, with letters and digits of ASCII only.

    >>> plain_name("CIFAR-10-batches-bin")
    'cifar10batchesbin'
    """
    return re.sub(r"[^a-z0-9]", "", name.lower())


def file_split(known: DataSet, stem: str) -> str | None:
    """Return "train" or "test" if a file of this stem holds that split, "" if it names none, None if another set.

    >>> file_split(entry("cifar10"), "cifar10_train_5k"), file_split(entry("svhn"), "ood_svhn")
    ('train', '')
    >>> file_split(entry("cifar10"), "cifar100_test"), file_split(entry("lsun-c"), "LSUN_resize")
    (None, None)
    """
    plain = plain_name(stem).removeprefix("ood")
    for folder in known.folders:
        rest = plain.removeprefix(folder)
        if plain.startswith(folder) and _SUFFIX_WORDS.fullmatch(rest):
            return "train" if "train" in rest else "test" if "test" in rest or "val" in rest else ""
    return None
