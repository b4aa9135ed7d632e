"""The guarded ResNet-56 on real images: its features are the stored rows, its scores those of the arrays."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from gem_ood import GEM, Energy, Head, Mahalanobis  # noqa: E402
from gem_ood.experiments import normalize_images  # noqa: E402
from gem_ood.torch import OODModel  # noqa: E402

#: Which rows the images of a file are.
STORED = {"cifar10_test": "test", "ood_svhn": "ood_svhn", "ood_textures": "ood_textures"}
N_IMAGES = 120


@pytest.fixture
def detectors(cifar10):
    train, head = cifar10["train"], cifar10["head"]
    fitted = [kind.fit(train["features"], train["labels"]) for kind in (GEM(), Mahalanobis(), GEM(normalize=True))]
    return [*fitted, Energy(head=Head(head["weight"], head["bias"]))]


@pytest.mark.parametrize("name", STORED)
def test_images_have_the_features_and_the_scores_of_their_stored_rows(
    name, cifar10, cifar10_images, resnet56, detectors
):
    places = cifar10_images[name]["rows"][:N_IMAGES]
    rows = cifar10[STORED[name]]["features"][places]
    loader = normalize_images(cifar10_images[name]["images"][:N_IMAGES]).split(50)
    for detector in detectors:
        guarded = OODModel(resnet56, detector)
        np.testing.assert_allclose(guarded.features(loader, progress=False)[0], rows, atol=1e-4, rtol=0.0)
        expected = detector.score_samples(rows)
        np.testing.assert_allclose(guarded.score_samples(loader, progress=False), expected, rtol=1e-4, atol=1e-4)


def test_a_guard_calibrated_on_stored_rows_judges_images_alike(cifar10, cifar10_images, resnet56, detectors):
    detector = detectors[0].calibrate(cifar10["test"]["features"], tpr=0.9)
    guarded = OODModel(resnet56, detector)
    images = cifar10_images["ood_svhn"]
    result = guarded(normalize_images(images["images"][:N_IMAGES]))
    rows = cifar10["ood_svhn"]["features"][images["rows"][:N_IMAGES]]
    near = np.abs(detector.score_samples(rows) - detector.offset_) < 1e-3
    np.testing.assert_array_equal(result.is_ood[~near], detector.is_ood(rows)[~near])
    assert near.sum() <= 2
    np.testing.assert_allclose(result.p_value, detector.p_values(rows), atol=1e-3)
