"""Writes the scores of pytorch-ood and oodeel beside the rows they were computed on; run where both are installed.

`python tests/peers/make_expected.py [--out FILE]`. A rerun writes the same bytes on one machine.
"""

import argparse
import importlib.metadata
from pathlib import Path

import numpy as np
from peer_scores import Rows, all_scores

FILE = Path(__file__).parent / "expected.npz"
LIBRARIES = ("pytorch-ood", "oodeel")
CLASS_SIZES = (150, 140, 120, 100, 90)
N_FEATURES = 24
N_QUERIES = 200  # of each kind
#: Features and weights are multiples of these, so that float32 holds them without rounding.
FEATURE_STEP = 2.0**-13
WEIGHT_STEP = 2.0**-10
#: Positive features are first rounded to this, then raised by one step per column: no two in a row are equal, for
#: methods that keep the largest few choose among equal ones as they please.
COARSE_STEP = 32.0 * FEATURE_STEP


def draw():
    """Return rows such as a network's last hidden layer makes: not negative, many zeros, classes that overlap a bit."""
    generator = np.random.default_rng(11)
    n_classes = len(CLASS_SIZES)
    mixing = generator.normal(size=(N_FEATURES, N_FEATURES)) / np.sqrt(N_FEATURES)
    means = 0.55 * generator.normal(size=(n_classes, N_FEATURES)) + 0.3

    def around(centres):
        rows = centres + generator.normal(size=(len(centres), N_FEATURES)) @ mixing
        coarse = np.round(np.maximum(rows, 0.0) / COARSE_STEP) * COARSE_STEP
        return np.where(coarse > 0.0, coarse + FEATURE_STEP * np.arange(N_FEATURES), 0.0)

    labels = generator.permutation(np.repeat(np.arange(n_classes), CLASS_SIZES))
    features = around(means[labels])
    known = around(means[generator.integers(n_classes, size=N_QUERIES)])
    other = around(0.9 * generator.normal(size=(N_QUERIES, N_FEATURES)) + 0.3)
    weight, bias = _last_layer(features, labels)
    return Rows(features, labels, weight, bias, np.concatenate([known, other]))


def _last_layer(features, labels):
    """Return a linear discriminant, softened: a classifier whose probabilities are not all 0 or 1."""
    means = np.stack([features[labels == name].mean(axis=0) for name in range(len(CLASS_SIZES))])
    centred = features - means[labels]
    covariance = centred.T @ centred / len(features) + 0.3 * np.eye(N_FEATURES)
    weight = 0.5 * np.linalg.solve(covariance, means.T).T
    bias = -0.5 * (weight * means).sum(axis=1)
    weight -= weight.mean(axis=0)
    return np.round(weight / WEIGHT_STEP) * WEIGHT_STEP, np.round((bias - bias.mean()) / WEIGHT_STEP) * WEIGHT_STEP


def read(path=FILE):
    """Return the rows, the scores by method and the versions of the peers that a file holds."""
    with np.load(path, allow_pickle=False) as arrays:
        rows = Rows(
            features=arrays["features"] * FEATURE_STEP,
            labels=arrays["labels"].astype(np.int64),
            weight=arrays["weight"] * WEIGHT_STEP,
            bias=arrays["bias"] * WEIGHT_STEP,
            queries=arrays["queries"] * FEATURE_STEP,
        )
        scores = dict(zip(arrays["methods"].tolist(), arrays["scores"], strict=True))
        versions = dict(zip(LIBRARIES, arrays["versions"].tolist(), strict=True))
    return rows, scores, versions


def write(path):
    """Compute and write everything."""
    rows = draw()
    scores = all_scores(rows)
    np.savez_compressed(
        path,
        features=np.round(rows.features / FEATURE_STEP).astype(np.uint16),
        labels=rows.labels.astype(np.uint8),
        weight=np.round(rows.weight / WEIGHT_STEP).astype(np.int16),
        bias=np.round(rows.bias / WEIGHT_STEP).astype(np.int16),
        queries=np.round(rows.queries / FEATURE_STEP).astype(np.uint16),
        methods=np.array(list(scores)),
        scores=np.stack(list(scores.values())),
        versions=np.array([importlib.metadata.version(name) for name in LIBRARIES]),
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=FILE)
    write(parser.parse_args().out)
