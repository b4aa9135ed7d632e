"""Writes the golden files of guarded PyTorch models: run once per format version, then never again.

Each guard is saved with scores and p-values of known inputs beside it; the model is made from plain arithmetic.
"""

from pathlib import Path

import numpy as np
import torch
from make import rows
from torch import nn

from gem_ood import GEM
from gem_ood.storage import FORMAT_VERSION
from gem_ood.torch import ODIN, Ensemble, GradNorm, MCDropout, OODModel

FOLDER = Path(__file__).parent / f"guards-{FORMAT_VERSION}"


def model(seed=0):
    """Return a network whose float64 weights any PyTorch makes alike."""
    network = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Dropout(0.25), nn.Linear(6, 3)).double()
    with torch.no_grad():
        for place, parameter in enumerate(network.parameters()):
            steps = torch.arange(parameter.numel(), dtype=torch.float64) + 17 * place + 101 * seed
            parameter.copy_(torch.sin(12.9898 * steps).view(parameter.shape))
    return network


def guards():
    """Return a calibrated guard of each kind, and what it is put on when it is loaded."""
    features, codes = rows(0, 90)
    train = [(torch.tensor(features), torch.tensor(codes))]
    held_out = [torch.tensor(rows(1, 120)[0])]
    members = [model(), model(1)]
    made = {
        "gem": (OODModel(model(), GEM(covariance="oas"), input_noise=0.01).fit(train), model()),
        "odin": (ODIN(model(), temperature=10.0, noise=0.02), model()),
        "grad-norm": (GradNorm(model(), "0"), model()),
        "mc-dropout": (MCDropout(model(), n_passes=4, score="mutual-information", seed=3), model()),
        "ensemble": (Ensemble(members, score="entropy"), members),
    }
    return {name: (guard.calibrate(held_out, tpr=0.9, confidence=0.95), base) for name, (guard, base) in made.items()}


def main():
    """Write the files of the current format."""
    FOLDER.mkdir()
    queries = torch.tensor(rows(2, 20)[0])
    expected = {}
    for name, (guard, _) in guards().items():
        guard.save(FOLDER / f"{name}.safetensors")
        verdicts = guard.verdicts([queries])
        expected[name], expected[f"{name}.p_values"] = verdicts.score, verdicts.p_value
    np.savez(FOLDER / "expected.npz", queries=queries, **expected)


if __name__ == "__main__":
    main()
