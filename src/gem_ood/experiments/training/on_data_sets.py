"""train_on: the paper's network trained on one of its own data sets, wherever that is."""

from collections.abc import Callable
from dataclasses import replace
from os import PathLike

from gem_ood.errors import InputError
from gem_ood.experiments import data_sets
from gem_ood.experiments.image_sets import ImageSet
from gem_ood.experiments.networks.devices import resolved_device
from gem_ood.experiments.obtaining import OnBytes, default_folder, fetch_missing
from gem_ood.experiments.training.checkpoints import alone, refuse_taken
from gem_ood.experiments.training.recipe import EpochResult, Progress, TrainingOptions, TrainingResult
from gem_ood.experiments.training.running import check_output, check_recipe, train
from gem_ood.storage import as_path

__all__ = ["train_on"]


def train_on(
    name: str,
    out: str | PathLike[str],
    *,
    data: str | PathLike[str] | None = None,
    download: bool = False,
    options: TrainingOptions | None = None,
    checkpoint_seconds: float = 60.0,
    restart: bool = False,
    on_bytes: OnBytes | None = None,
    on_rows: Callable[[str, int, int | None], None] | None = None,
    on_begin: Callable[[ImageSet, ImageSet, TrainingOptions], None] | None = None,
    on_step: Callable[[Progress], None] | None = None,
    on_epoch: Callable[[EpochResult], None] | None = None,
) -> TrainingResult:
    """Train a WideResNet on CIFAR-10 or CIFAR-100, test it after every epoch, and return what came of each.

    Args:
        name: "cifar10" or "cifar100".
        out: As `train`.
        data: The folder that holds the data set, in any usual layout; a folder of the user's cache unless given.
        download: Fetch the data set into `data` if it is not there.
        options: As `train`; the number of classes is the data set's own.
        checkpoint_seconds: As `train`.
        restart: As `train`.
        on_bytes: Told how far the download is: its name, the bytes done, and in all.
        on_rows: Told how far reading is: the name of the split, the images done, and in all.
        on_begin: Called with the training images, the test images and the recipe, its device settled, once all is read.
        on_step: As `train`.
        on_epoch: As `train`.

    Raises:
        InputError: As `train`; or the set is not there, and the message says where it was looked for.
    """
    if not isinstance(name, str) or not name.startswith("cifar") or name not in data_sets.N_CLASSES:
        raise InputError(f"networks are trained on cifar10 and cifar100, not on {name!r}; pass one of them")
    check_recipe(options)
    recipe = options or TrainingOptions()
    device = resolved_device(recipe.device)
    target = as_path(out, "out")
    check_output(target, checkpoint_seconds=checkpoint_seconds)
    with alone(target):  # now, rather than after the data set is read; `train` looks again
        refuse_taken(target, restart=restart)
    folder = default_folder() if data is None else as_path(data, "data")
    if download:
        fetch_missing([name], folder, on_bytes=on_bytes)
    train_set, test_set = (
        data_sets.load(name, folder, split=split, on_images=_told(on_rows, f"read {name} {split}"))
        for split in ("train", "test")
    )
    recipe = replace(recipe, n_classes=data_sets.N_CLASSES[name], device=device)
    if on_begin is not None:
        on_begin(train_set, test_set, recipe)
    return train(
        train_set,
        test_set,
        out,
        options=recipe,
        checkpoint_seconds=checkpoint_seconds,
        restart=restart,
        on_step=on_step,
        on_epoch=on_epoch,
    )


def _told(on_rows: Callable[[str, int, int | None], None] | None, title: str) -> Callable[[int, int], None] | None:
    return None if on_rows is None else lambda n_done, n_total: on_rows(title, n_done, n_total)
