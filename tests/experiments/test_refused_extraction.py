"""Extraction: what cannot be read, or would give numbers that are none, is refused by name."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from extracted_by_hand import INPUTS, LABELS, PICTURES, N, assert_extracted, batches, by_hand  # noqa: E402
from small_networks import PixelNet  # noqa: E402
from torch import nn  # noqa: E402

from gem_ood.errors import InputError  # noqa: E402
from gem_ood.experiments import ImageSet  # noqa: E402
from gem_ood.experiments.extraction import Extractor  # noqa: E402


def plain_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(108, 3))


def test_images_for_a_network_that_does_not_say_how_are_refused():
    expected = r"made holds images, and a Sequential does not say how .* pass pixel_mean and pixel_std, three numbers"
    with pytest.raises(InputError, match=expected):
        Extractor(plain_model())(PICTURES, "made")
    with pytest.raises(InputError, match=expected):
        Extractor(plain_model(), pixel_mean=(0, 0, 0))(PICTURES, "made")


@pytest.mark.parametrize(
    "options",
    [
        {"pixel_mean": (0.5, 0.5)},
        {"pixel_mean": 0.5},
        {"pixel_mean": ("red", "green", "blue")},
        {"pixel_mean": (0.5, 0.5, np.nan)},
        {"pixel_std": (0.5, 0.5, 0.0)},
        {"pixel_std": (0.5, -0.5, 0.5)},
        {"pixel_std": torch.ones(3, 2)},
        {"batch_size": 0},
        {"batch_size": 2.5},
        {"batch_size": True},
    ],
)
def test_options_that_make_no_sense_are_refused(options):
    (name,) = options
    with pytest.raises(InputError, match=name):
        Extractor(plain_model(), **options)


def test_a_network_whose_own_numbers_cannot_be_read_is_refused():
    model = plain_model()
    model.pixel_mean = "ImageNet"
    with pytest.raises(InputError, match=r"model\.pixel_mean is 'ImageNet'; pass three numbers"):
        Extractor(model)


def test_what_is_no_network_is_refused():
    with pytest.raises(InputError, match=r"model is a function; pass a torch\.nn\.Module"):
        Extractor(by_hand)


@pytest.mark.parametrize("row", [0, 13, N - 1])
def test_what_is_not_finite_is_refused_by_set_batch_and_row(row):
    broken = INPUTS.clone()
    broken[row] = torch.nan
    place = row % 10
    expected = rf"svhn: batch {row // 10} of the loader \(counted from 0\): the model's features row {place}, column 0"
    with pytest.raises(InputError, match=expected):
        Extractor(PixelNet())(batches(broken, LABELS), "svhn")


def test_logits_that_are_not_finite_are_refused_by_batch_and_row():
    class Overflowing(PixelNet):
        def forward(self, pixels):
            logits = super().forward(pixels)
            return torch.where((pixels[:, :1, 0, 0] > 90.0), torch.inf, logits)

    broken = INPUTS.clone()
    broken[25, 0, 0, 0] = 100.0
    expected = r"made: batch 2 of the loader \(counted from 0\): the model's logits row 5, column 0 is infinity"
    with pytest.raises(InputError, match=expected):
        Extractor(Overflowing(), layer="fc")(batches(broken, LABELS), "made")


@pytest.mark.parametrize("source", [[], iter([]), [INPUTS[:0]], [(INPUTS[:0], LABELS[:0])]])
def test_a_set_without_a_row_is_refused(source):
    with pytest.raises(InputError, match="made has no row; pass a loader or a set with at least one"):
        Extractor(PixelNet())(source, "made")


def test_labels_in_some_batches_only_are_refused():
    with pytest.raises(InputError, match="made has labels in some batches only"):
        Extractor(PixelNet())([INPUTS[:5], (INPUTS[5:9], LABELS[5:9])], "made")


def test_numbers_and_text_among_the_labels_are_refused():
    mixed = [(INPUTS[:2], ["cat", "dog"]), (INPUTS[2:4], LABELS[2:4])]
    with pytest.raises(InputError, match="labels of made are numbers in one batch and text in another"):
        Extractor(PixelNet())(mixed, "made")


def test_labels_that_name_no_class_are_refused():
    with pytest.raises(InputError, match=r"made: Unknown label type: labels row 0 is .*0.5"):
        Extractor(PixelNet())(batches(INPUTS, LABELS + 0.5), "made")


def test_too_few_labels_are_refused():
    with pytest.raises(InputError, match=r"made: batch 0 of the loader .* has 3 labels but the model gave 5 rows"):
        Extractor(PixelNet())([(INPUTS[:5], LABELS[:3])], "made")


def test_labels_that_are_not_asked_for_are_not_looked_at():
    odd = [(INPUTS[:5], LABELS[:5] + 0.5), INPUTS[5:9]]
    found = Extractor(PixelNet())(odd, "made", with_labels=False)
    assert_extracted(found, *by_hand(PixelNet(), INPUTS[:9]), labels=None)


@pytest.mark.parametrize("source", [INPUTS, INPUTS.numpy(), {"a": INPUTS}, 5, None])
@pytest.mark.parametrize("folder", [None, "kept"])
def test_what_yields_no_batches_is_refused(source, folder, tmp_path):
    from gem_ood.experiments import FeatureCache

    cache = None if folder is None else FeatureCache(tmp_path / folder)
    with pytest.raises(InputError, match=r"made: loader is a .*; pass a DataLoader, or a list of batches"):
        Extractor(PixelNet(), cache=cache)(source, "made")


@pytest.mark.parametrize(
    "pixels",
    [
        np.zeros((2, 6, 6, 3)),
        np.zeros((6, 6, 3), dtype=np.uint8),
        np.zeros((2, 3, 6, 6), dtype=np.uint8),
        np.zeros((2, 6, 6, 1), dtype=np.uint8),
        [[0]],
    ],
)
def test_images_of_another_type_or_shape_are_refused(pixels):
    with pytest.raises(InputError, match=r"the images of 'odd' must be uint8 of shape \(n, height, width, 3\)"):
        ImageSet("odd", pixels)


def test_a_set_of_no_image_is_refused():
    with pytest.raises(InputError, match="'none' holds no picture"):
        ImageSet("none", np.zeros((0, 6, 6, 3), dtype=np.uint8))
