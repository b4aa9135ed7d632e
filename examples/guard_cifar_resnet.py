"""Guard a trained ResNet-56: which of its inputs are CIFAR-10, and which are house numbers or textures?

Fits several guards to training images, sets their thresholds from half of the test images, judges the other half and
two sets of foreign images, then saves one guard to a file of its own and loads it again. What is flagged depends on
the threshold; FPR95 and AUROC, in percent, on the scores alone. Needs the extra `gem-ood[torch]` and a folder with
`cifar10_resnet56/weights.safetensors` and `images/*.npz`; runs offline, in a minute or two on two cores. From the
repository's root:

    python examples/guard_cifar_resnet.py --data ../shared/data
"""

import argparse
import os
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import DataLoader, TensorDataset

from gem_ood import GEM, Energy
from gem_ood.experiments import IMAGE_STD, CifarResNet, normalize_images
from gem_ood.metrics import evaluate
from gem_ood.torch import ODIN, OODModel

DEFAULT_DATA = Path(__file__).parents[1] / ".." / "shared" / "data"
TRAIN, TEST = "cifar10_train_5k", "cifar10_test"
FOREIGN = {"SVHN": "ood_svhn", "textures": "ood_textures"}
TPR = 0.95
SEED = 0


def main() -> int:
    """Print the table; return 2 where the data are absent."""
    options = parse_options()
    weights = options.data / "cifar10_resnet56" / "weights.safetensors"
    files = [weights, *(image_file(options, name) for name in (TRAIN, TEST, *FOREIGN.values()))]
    absent = [file for file in files if not file.is_file()]
    if absent:
        print(f"{absent[0]} does not exist; pass --data the folder that holds it, or set GEM_OOD_DATA", file=sys.stderr)
        return 2
    model = CifarResNet.load(weights)
    train_images, train_labels = read(options, TRAIN)
    test_images, test_labels = read(options, TEST)
    half = len(test_images) // 2
    foreign = {name: read(options, file)[0] for name, file in FOREIGN.items()}

    guards = {
        "GEM": OODModel(model, GEM()),
        "Energy": OODModel(model, Energy()),
        "ODIN": ODIN(model, channel_std=IMAGE_STD),
    }
    print(f"ResNet-56: fit {len(train_images)} images, calibrate {half}, keep {len(test_images) - half} to judge.\n")
    print(f"{'':<8}{'kept of':>10}" + "".join(f"{name:>24}" for name in foreign))
    print(f"{'guard':<8}{'CIFAR-10':>10}" + f"{'flagged':>10}{'FPR95':>7}{'AUROC':>7}" * len(foreign))
    guards["GEM"].fit(loader(train_images, train_labels))  # the others learn nothing but their threshold
    for name, guarded in guards.items():
        guarded.calibrate(loader(test_images[:half]), tpr=TPR)
        known = guarded.verdicts(loader(test_images[half:]))
        cells = f"{name:<8}{1 - known.is_ood.mean():>10.1%}"
        for images in foreign.values():
            judged = guarded.verdicts(loader(images))
            metrics = evaluate(known.score, judged.score, tpr=TPR)
            cells += f"{judged.is_ood.mean():>10.1%}{100 * metrics.fpr:>7.1f}{100 * metrics.auroc:>7.1f}"
        print(cells)

    guarded = guards["GEM"]
    with torch.inference_mode():
        logits = guarded(test_images[half:]).logits
    accuracy = (logits.argmax(1) == test_labels[half:]).double().mean()
    print(f"\nThe classifier behind it names {accuracy:.1%} of the judged test images right.")
    print(guarded.detector.threshold_.guarantee)
    with torch.inference_mode(), tempfile.TemporaryDirectory() as folder:
        ship(guarded, weights, test_images[:10], options.out or Path(folder))
    if options.onnx:
        guarded.export_onnx(options.onnx)
        print(f"Model and guard are one graph in {options.onnx}.")
    return 0


def parse_options() -> argparse.Namespace:
    """Return where the data are, how many images to use and where to write."""
    data = Path(os.environ.get("GEM_OOD_DATA", DEFAULT_DATA))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=data, help="folder of weights and images (default: %(default)s)")
    parser.add_argument("--images", type=int, metavar="N", help="use N images of each set, to be quick")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="keep the guard's file here")
    parser.add_argument("--onnx", type=Path, metavar="FILE", help="write model and guard as one ONNX graph")
    return parser.parse_args()


def image_file(options: argparse.Namespace, name: str) -> Path:
    """Return where a set of images is."""
    return options.data / "images" / f"{name}.npz"


def read(options: argparse.Namespace, name: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Return normalised images and their labels in random order, since the files are sorted by class."""
    with np.load(image_file(options, name), allow_pickle=False) as arrays:
        images, labels = arrays["images"], arrays["labels"]
    order = np.random.default_rng(SEED).permutation(len(images))[: options.images]
    return normalize_images(images[order]), torch.from_numpy(labels[order])


def loader(*tensors: torch.Tensor) -> DataLoader:
    """Return batches of images, with labels where there are any."""
    return DataLoader(TensorDataset(*tensors), batch_size=200)


def ship(guarded: OODModel, weights: Path, images: torch.Tensor, folder: Path) -> None:
    """Save the guard to its own file, put it on a freshly loaded model and compare the scores."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "guard.safetensors"
    guarded.save(path)
    again = OODModel.load(CifarResNet.load(weights), path)
    is_same = torch.equal(again(images).score, guarded(images).score)
    size = path.stat().st_size / 1000
    print(f"Saved to {path.name} ({size:.0f} kB) and loaded again: scores {'the same' if is_same else 'DIFFER'}.")


if __name__ == "__main__":
    sys.exit(main())
