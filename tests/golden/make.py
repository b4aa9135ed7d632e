"""Writes the golden files: run once per format version, then never again; later versions must read them.

Each detector is saved with scores of known rows beside it, so a reader that misunderstands the file cannot pass.
"""

from pathlib import Path

import numpy as np

from gem_ood import GEM, MSP, Energy, Head, Mahalanobis, MaxLogit
from gem_ood.storage import FORMAT_VERSION

FOLDER = Path(__file__).parent / f"format-{FORMAT_VERSION}"


def rows(seed, n):
    """Return labelled rows that any NumPy draws alike: plain arithmetic, no generator."""
    grid = np.arange(n * 4, dtype=np.float64).reshape(n, 4) + 31 * seed
    labels = np.arange(n) % 3
    return np.sin(grid * 12.9898) * 3.0 + np.cos(grid * 78.233) + labels[:, np.newaxis] * [4.0, -2.0, 1.0, 0.5], labels


def detectors():
    """Return one fitted, calibrated detector of each kind and of each option that changes the file."""
    features, codes = rows(0, 90)
    names = np.array(["ant", "bee", "cicada"])[codes]
    held_out, _ = rows(1, 120)
    head = Head([[1.0, 0.0, -1.0, 0.5], [0.0, 2.0, 0.0, -0.5], [0.3, 0.3, 0.3, 0.3]], [0.1, 0.0, -0.1])
    made = {
        "gem": GEM().fit(features, names),
        "gem-options": GEM(priors=[0.5, 0.25, 0.25], covariance="oas", normalize=True, relative=True).fit(
            features, codes
        ),
        "mahalanobis": Mahalanobis(covariance=0.1).fit(features, names),
        "msp": MSP(head=head, temperature=2.0).fit(features, names),
        "max-logit": MaxLogit(head=head).fit(features),
        "energy": Energy().fit(features),
    }
    return {name: detector.calibrate(held_out, tpr=0.9, confidence=0.95) for name, detector in made.items()}


def main():
    """Write the files of the current format."""
    FOLDER.mkdir()  # files of a format are written once; a change of the format is a new version
    queries, _ = rows(2, 20)
    expected = {}
    for name, detector in detectors().items():
        detector.save(FOLDER / f"{name}.safetensors")
        expected[name] = detector.score_samples(queries)
        expected[f"{name}.p_values"] = detector.p_values(queries)
    np.savez(FOLDER / "expected.npz", queries=queries, **expected)


if __name__ == "__main__":
    main()
