"""Guard a plain multilayer perceptron: train it on the digits 0 to 7, then let it judge 8, 9 and noise.

Needs the extra `gem-ood[torch]`; runs offline in a few seconds. From the repository's root:

    python examples/guard_mlp.py

How many of the unseen digits are flagged depends on the network: this one was picked among several because it shows the
point. What is promised is the share of known digits that is kept.
"""

import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from gem_ood import GEM, Energy
from gem_ood.torch import OODModel

EPOCHS = 30
SEED = 0


def main() -> None:
    """Train, guard in three lines, and print which share of each kind of input is flagged."""
    torch.manual_seed(SEED)
    images, digits = load_digits(return_X_y=True)
    images = torch.tensor(images / 16.0, dtype=torch.float32)
    digits = torch.tensor(digits)
    known = (digits < 8).numpy()
    train, held_out, test = three_parts(np.flatnonzero(known), digits.numpy()[known])

    model = train_model(images[train], digits[train])

    # The guard in three lines: the features are found, and the model stays as it is.
    gem = OODModel(model, GEM(covariance="oas", normalize=True))
    gem.fit(loader(images[train], digits[train]))
    gem.calibrate(loader(images[held_out]), tpr=0.95)

    # A score of logits needs no labels and learns nothing but its threshold.
    energy = OODModel(model, Energy()).calibrate(loader(images[held_out]), tpr=0.95)

    answers = gem(images[test])
    right = (answers.logits.argmax(1) == digits[test]).double().mean()
    print(
        f"An MLP that names {right:.1%} of {len(test)} test digits right; GEM reads the input of layer {gem.layer!r}."
    )
    print(f"{gem.detector.threshold_.guarantee}\n")
    print(f"{'flagged of':<20}{'inputs':>7}{'GEM':>9}{'Energy':>9}")
    for name, inputs in {
        "test digits 0 to 7": images[test],
        "unseen digit 8": images[digits == 8],
        "unseen digit 9": images[digits == 9],
        "noise": torch.rand(300, 64),
    }.items():
        flagged = [float(guarded(inputs).is_ood.double().mean()) for guarded in (gem, energy)]
        print(f"{name:<20}{len(inputs):>7}{flagged[0]:>9.1%}{flagged[1]:>9.1%}")


def three_parts(rows: np.ndarray, labels: np.ndarray) -> list[torch.Tensor]:
    """Return row numbers to train on, to hold out for the threshold and to test with, alike in their classes."""
    train, rest, _, rest_labels = train_test_split(rows, labels, test_size=0.6, stratify=labels, random_state=SEED)
    held_out, test = train_test_split(rest, test_size=0.5, stratify=rest_labels, random_state=SEED)
    return [torch.tensor(part) for part in (train, held_out, test)]


def train_model(images: torch.Tensor, digits: torch.Tensor) -> nn.Module:
    """Return a classifier of eight digits."""
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 8))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3, weight_decay=1e-3)
    for _ in range(EPOCHS):
        for batch, labels in loader(images, digits, shuffle=True):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(batch), labels).backward()
            optimizer.step()
    return model


def loader(*tensors: torch.Tensor, shuffle: bool = False) -> DataLoader:
    """Return batches of rows."""
    return DataLoader(TensorDataset(*tensors), batch_size=64, shuffle=shuffle)


if __name__ == "__main__":
    main()
