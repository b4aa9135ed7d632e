"""Pictures, the same as batches, and what a network gives for them, without any of the code that is tested."""

import numpy as np
import torch
from small_networks import inputs_of, picture_set
from torch.utils.data import Dataset

from gem_ood.experiments import Extracted

__all__ = ["INPUTS", "LABELS", "PICTURES", "N", "Pairs", "assert_extracted", "batches", "by_hand"]

N = 47
PICTURES = picture_set(N)
INPUTS, LABELS = inputs_of(PICTURES), torch.from_numpy(PICTURES.labels)


def by_hand(model, inputs=INPUTS):
    """Return the input of the last layer and the logits, in evaluation mode and without any hook."""
    modes = [part.training for part in model.modules()]
    model.eval()
    with torch.no_grad():
        features, logits = model.features(inputs), model(inputs)
    for part, mode in zip(model.modules(), modes, strict=True):
        part.training = mode
    return features, logits


def assert_extracted(found, features, logits, labels=LABELS, *, rtol=1e-5, atol=2e-6):
    assert isinstance(found, Extracted)
    np.testing.assert_allclose(found.features, np.asarray(features), rtol=rtol, atol=atol)
    np.testing.assert_allclose(found.logits, np.asarray(logits), rtol=rtol, atol=atol)
    if labels is None:
        assert found.labels is None
    else:
        np.testing.assert_array_equal(found.labels, np.asarray(labels))


def batches(*parts, size=10):
    return list(zip(*(part.split(size) for part in parts), strict=True))


class Pairs(Dataset):
    def __len__(self):
        return N

    def __getitem__(self, place):
        return INPUTS[place], int(LABELS[place])
