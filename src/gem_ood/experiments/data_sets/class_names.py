"""The names of CIFAR's classes in the official order, which is that of the alphabet."""

from collections.abc import Sequence

from gem_ood.errors import InputError
from gem_ood.experiments.data_sets.catalogue import DataSet

__all__ = ["CLASS_NAMES", "folder_labels"]

#: Words apart by spaces, in the order of the labels.
_CIFAR10 = "airplane automobile bird cat deer dog frog horse ship truck"
_CIFAR100 = """
apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can
castle caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin
elephant flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster
man maple_tree motorcycle mountain mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck
pine_tree plain plate poppy porcupine possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk
skyscraper snail snake spider squirrel streetcar sunflower sweet_pepper table tank telephone television tiger
tractor train trout tulip turtle wardrobe whale willow_tree wolf woman worm
"""

CLASS_NAMES = {"cifar10": tuple(_CIFAR10.split()), "cifar100": tuple(_CIFAR100.split())}


def folder_labels(known: DataSet, folders: Sequence[str], title: str) -> dict[str, int]:
    """Return the label of each class folder: by its official name, by the number it is, or by its place among all.

    The place counts only where there are as many folders as classes, since a missing one would shift the others.

    >>> from gem_ood.experiments.data_sets.catalogue import entry
    >>> folder_labels(entry("cifar10"), ["truck", "cat"], "cifar10/test")
    {'truck': 9, 'cat': 3}
    """
    names = {name: label for label, name in enumerate(CLASS_NAMES.get(known.name, ()))}
    plain = {folder: folder.lower().replace(" ", "_").replace("-", "_") for folder in folders}
    if all(name in names for name in plain.values()):
        return {folder: names[plain[folder]] for folder in folders}
    if all(name.isascii() and name.isdigit() and int(name) < known.n_classes for name in folders):
        return {folder: int(folder) for folder in folders}
    if len(folders) != known.n_classes:
        some = ", ".join(map(repr, sorted(folders)[:3])) + (", ..." if len(folders) > 3 else "")
        raise InputError(
            f"{title} has {len(folders)} class folders ({some}) but {known.title} has {known.n_classes} "
            f"classes; keep one folder per class, under the official names"
        )
    return {folder: label for label, folder in enumerate(sorted(folders))}
