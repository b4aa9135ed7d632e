"""Made images for training tests: classes that differ in colour, and a recipe that trains a tiny network on them."""

import numpy as np

from gem_ood.experiments.image_sets import ImageSet


def coloured(n_images, *, n_classes=3, seed=0, name="made"):
    """Noise to which each class adds its own colour, so that classes are separable under any flip and crop."""
    generator = np.random.default_rng(seed)
    labels = generator.permutation(np.arange(n_images) % n_classes)
    colours = np.random.default_rng(99).integers(0, 120, size=(n_classes, 3))
    noise = generator.integers(0, 130, size=(n_images, 32, 32, 3))
    return ImageSet(name, (noise + colours[labels][:, None, None, :]).astype(np.uint8), labels)


#: Few steps of a tiny network; the last batch of an epoch is a partial one.
TINY = {"depth": 10, "width": 1, "epochs": 2, "batch_size": 8, "device": "cpu"}
