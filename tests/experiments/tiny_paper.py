"""Writes a tiny copy of everything that the paper's tables need: eight data sets, each in an official format."""

import numpy as np
import torch
from data_sets_on_disk import (
    cifar10_files,
    cifar100_files,
    encoded,
    made,
    png,
    svhn_matlab,
    write_files,
    write_tar,
)

N_TRAIN, N_TEST, N_OOD = 120, 50, 30


def pictures(folder, n, *, seed, size=(32, 32)):
    generator = np.random.default_rng(seed)
    return {f"{folder}/{place:03d}.png": png(noise(generator, size)) for place in range(n)}


def noise(generator, size):
    return generator.integers(0, 256, size=(*size, 3), dtype=np.uint8)


def write_paper_sets(folder, *, name="cifar10", n_classes=10):
    """Write CIFAR as binary files, SVHN as .mat, Textures and Places365 as folders, the others as .tar.gz."""
    train = made(N_TRAIN, n_classes=n_classes, seed=1)
    test = made(N_TEST, n_classes=n_classes, seed=2)
    if name == "cifar10":
        write_files(folder / "cifar-10-batches-bin", cifar10_files(train, test))
    else:
        write_tar(folder / "cifar-100-binary.tar.gz", cifar100_files(train, test), inside="cifar-100-binary/")
    (folder / "test_32x32.mat").write_bytes(svhn_matlab(*made(N_OOD, seed=3)))
    write_files(folder / "dtd" / "images", pictures("banded", N_OOD, seed=4, size=(48, 40)))
    jpeg = encoded(noise(np.random.default_rng(5), (40, 60)), "JPEG")
    write_files(folder / "places365", {f"val_256/Places365_val_{place:08d}.jpg": jpeg for place in range(N_OOD)})
    write_tar(folder / "LSUN.tar.gz", pictures("LSUN/test", N_OOD, seed=6, size=(36, 36)))
    write_tar(folder / "LSUN_resize.tar.gz", pictures("LSUN_resize", N_OOD, seed=7))
    write_tar(folder / "iSUN.tar.gz", pictures("iSUN/iSUN_patches", N_OOD, seed=8))
    return folder


def write_network(path, *, n_classes=10):
    """Write the weights of a small WideResNet as PyTorch does, and return the path."""
    from gem_ood.experiments import WideResNet

    torch.manual_seed(0)
    torch.save(WideResNet(depth=10, width=1, n_classes=n_classes).state_dict(), path)
    return path


def stored(folder, *, n_classes=10, with_labels=True, with_head=True, sets=("svhn", "noise")):
    """Write features of a network as files that `--stored` takes, and return the folder."""
    generator = np.random.default_rng(0)
    labels = {"labels": np.arange(200) % n_classes} if with_labels else {}
    np.savez(folder / "train.npz", features=generator.normal(size=(200, 6)), **labels)
    np.savez(folder / "test.npz", features=generator.normal(size=(100, 6)), labels=np.arange(100) % n_classes)
    for name in sets:
        np.savez(folder / f"ood_{name}.npz", features=2.0 + generator.normal(size=(60, 6)))
    if with_head:
        np.savez(folder / "head.npz", weight=generator.normal(size=(n_classes, 6)), bias=np.zeros(n_classes))
    return folder
