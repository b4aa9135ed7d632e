"""Extraction: features are the input of the last layer, logits the model's own, whatever the inputs come in."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from extracted_by_hand import INPUTS, LABELS, PICTURES, N, Pairs, assert_extracted, batches, by_hand  # noqa: E402
from small_networks import PixelNet, inputs_of, picture_set, snapshot  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils.data import DataLoader, IterableDataset, TensorDataset  # noqa: E402

from gem_ood.errors import InputError  # noqa: E402
from gem_ood.experiments import CifarResNet, ImageSet, normalize_images  # noqa: E402
from gem_ood.experiments.extraction import Extractor, ImageBatches  # noqa: E402


class Stream(IterableDataset):
    def __iter__(self):
        yield from batches(INPUTS, LABELS)


class OnlyOnce:
    """A loader of the plainest kind: iterable again and again, without a length."""

    def __iter__(self):
        return iter(batches(INPUTS, LABELS))


SOURCES = {
    "image set": lambda: PICTURES,
    "data set": lambda: TensorDataset(INPUTS, LABELS),
    "own data set": Pairs,
    "loader": lambda: DataLoader(TensorDataset(INPUTS, LABELS), batch_size=8),
    "loader that leaves out nothing": lambda: DataLoader(TensorDataset(INPUTS, LABELS), batch_size=N),
    "stream of batches": Stream,
    "list of batches": lambda: batches(INPUTS, LABELS),
    "lists instead of tuples": lambda: [list(pair) for pair in batches(INPUTS, LABELS)],
    "mappings": lambda: [{"pixels": x, "labels": y} for x, y in batches(INPUTS, LABELS)],
    "mappings of another name": lambda: [{"image": x, "label": y} for x, y in batches(INPUTS, LABELS)],
    "once": lambda: iter(batches(INPUTS, LABELS)),
    "plain iterable": OnlyOnce,
    "more than labels": lambda: [(x, y, "file names") for x, y in batches(INPUTS, LABELS)],
    "labels in a column": lambda: batches(INPUTS, LABELS[:, None]),
    "labels as floats": lambda: batches(INPUTS, LABELS.double()),
    "labels as bytes": lambda: batches(INPUTS, LABELS.to(torch.uint8)),
}


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("batch_size", [1, 10, N, 500])
def test_features_and_logits_are_those_of_the_model(source, batch_size):
    model = PixelNet()
    found = Extractor(model, batch_size=batch_size)(SOURCES[source](), "made")
    assert_extracted(found, *by_hand(model))


def test_a_resnet_gives_the_input_of_its_last_layer():
    torch.manual_seed(0)
    model = CifarResNet(depth=8, n_classes=5)
    pictures = picture_set(7, side=32)
    found = Extractor(model, batch_size=3)(pictures, "made")
    inputs = normalize_images(pictures.images)
    model.eval()
    with torch.no_grad():
        maps = torch.relu(model.bn1(model.conv1(inputs)))
        features = model.layer3(model.layer2(model.layer1(maps))).mean((2, 3))
        assert_extracted(found, features, model(inputs), pictures.labels)


def test_an_output_with_logits_is_read_as_hugging_face_gives_it():
    class Output(dict):
        logits = property(lambda self: self["logits"])

    class Wrapped(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = PixelNet()

        def forward(self, pixel_values):
            return Output(logits=self.inner(pixel_values))

    model = Wrapped()
    found = Extractor(model)([{"pixel_values": x, "labels": y} for x, y in batches(INPUTS, LABELS)], "made")
    assert_extracted(found, *by_hand(model.inner))


def test_unpack_says_what_is_what():
    model = PixelNet()
    odd = [("file", y, x) for x, y in batches(INPUTS, LABELS)]
    found = Extractor(model, unpack=lambda item: (item[2], item[1]))(odd, "made")
    assert_extracted(found, *by_hand(model))


def test_inputs_without_labels_have_none():
    found = Extractor(PixelNet())(picture_set(N, labelled=False), "made")
    assert_extracted(found, *by_hand(PixelNet()), labels=None)
    assert Extractor(PixelNet())(list(INPUTS.split(10)), "made").labels is None


def test_a_named_layer_gives_its_own_features():
    model = PixelNet()
    found = Extractor(model, layer="norm")(PICTURES, "made")
    model.eval()
    with torch.no_grad():
        maps = model.norm(model.conv(INPUTS))
    np.testing.assert_allclose(found.features, maps.mean((2, 3)), rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("is_training", [True, False])
def test_the_model_is_run_in_evaluation_mode_and_not_changed(is_training):
    model = PixelNet().train(is_training)
    model.drop.eval()  # a part with a mode of its own
    tensors, modes, n_hooks = snapshot(model)
    for source in (PICTURES, batches(INPUTS, LABELS)):
        assert_extracted(Extractor(model)(source, "made"), *by_hand(model))
    Extractor(model).odin(PICTURES, "made", noise=0.01)
    after = snapshot(model)
    assert after[1:] == (modes, n_hooks)
    for (name, before), (_, now) in zip(tensors, after[0], strict=True):
        assert torch.equal(before, now), name
    assert all(parameter.grad is None for parameter in model.parameters())


def test_the_model_is_as_it_was_after_a_failure_too():
    model = PixelNet().train()
    before = snapshot(model)
    broken = INPUTS.clone()
    broken[13] = torch.nan
    with pytest.raises(InputError):
        Extractor(model)(batches(broken, LABELS), "made")
    assert snapshot(model)[1:] == before[1:]


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float16, 2e-2), (torch.bfloat16, 1e-1), (torch.float64, 1e-5)])
def test_images_come_in_the_precision_of_the_model(dtype, tolerance):
    model = PixelNet()
    features, logits = by_hand(model)
    found = Extractor(model.to(dtype))(PICTURES, "made")
    assert found.features.dtype in (np.float32, np.float64)
    assert_extracted(found, features, logits, rtol=tolerance, atol=tolerance)


def test_a_model_in_data_parallel_is_read_inside_its_wrapper():
    model = PixelNet()
    extract = Extractor(nn.DataParallel(model))
    found = extract(PICTURES, "made")
    assert_extracted(found, *by_hand(model))
    assert extract.head(found) is not None


# Normalisation


def test_images_are_normalised_by_mean_and_standard_deviation():
    found = torch.cat([inputs for inputs, _ in ImageBatches(PICTURES, 10, (0.1, 0.2, 0.3), (0.4, 0.5, 0.6))])
    expected = inputs_of(PICTURES, (0.1, 0.2, 0.3), (0.4, 0.5, 0.6))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)


def test_every_value_of_a_pixel_is_normalised():
    ramp = np.arange(256, dtype=np.uint8).reshape(1, 16, 16, 1).repeat(3, axis=3)
    ((found, _),) = ImageBatches(ImageSet("ramp", ramp), 1, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    torch.testing.assert_close(found, normalize_images_of(ramp), rtol=0, atol=1e-6)


def normalize_images_of(pixels):
    return inputs_of(ImageSet("any", pixels), (0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


def test_options_come_before_what_the_network_says():
    model = PixelNet()
    mean, std = (0.0, 0.1, 0.2), (1.0, 2.0, 3.0)
    found = Extractor(model, pixel_mean=mean, pixel_std=np.array(std))(PICTURES, "made")
    assert_extracted(found, *by_hand(model, inputs_of(PICTURES, mean, std)))


def test_read_only_and_flipped_images_pass():
    still = PICTURES.images.copy()
    still.setflags(write=False)
    model = PixelNet()
    assert_extracted(Extractor(model)(ImageSet("still", still, LABELS.numpy()), "made"), *by_hand(model))
    flipped = ImageSet("flipped", PICTURES.images[:, :, ::-1], LABELS.numpy())
    assert_extracted(Extractor(model)(flipped, "made"), *by_hand(model, INPUTS.flip(3)))
