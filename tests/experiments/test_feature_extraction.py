"""Extraction: features are the input of the last layer, logits the model's own, whatever the inputs come in."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from small_networks import PixelNet, inputs_of, picture_set, snapshot  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils.data import DataLoader, Dataset, IterableDataset, SubsetRandomSampler, TensorDataset  # noqa: E402

from gem_ood.errors import InputError  # noqa: E402
from gem_ood.experiments import CifarResNet, Extracted, ImageSet, normalize_images  # noqa: E402
from gem_ood.experiments.extraction import Extractor, ImageBatches  # noqa: E402

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


# Bad inputs


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


# The head, the error, progress


def test_the_head_is_the_last_layer():
    model = PixelNet()
    extract = Extractor(model)
    rows = extract(PICTURES, "made")
    head = extract.head(rows)
    np.testing.assert_array_equal(head.weight, model.fc.weight.detach().numpy().astype(np.float64))
    np.testing.assert_array_equal(head.bias, model.fc.bias.detach().numpy().astype(np.float64))


class Doubled(PixelNet):
    """Its logits are twice what its last layer gives."""

    def forward(self, pixels):
        return 2.0 * super().forward(pixels)


@pytest.mark.parametrize(("model", "layer"), [(PixelNet(), "norm"), (Doubled(), "auto"), (PixelNet(), lambda out: out)])
def test_there_is_no_head_where_the_logits_are_not_its_output(model, layer):
    extract = Extractor(model, layer=layer)
    assert extract.head(extract(PICTURES, "made")) is None


def test_the_error_counts_wrong_classes():
    logits = np.random.default_rng(0).normal(size=(50, 4))
    labels = np.random.default_rng(1).integers(0, 4, size=50)
    n_wrong = sum(
        max(range(4), key=lambda k, row=row: row[k]) != label for row, label in zip(logits, labels, strict=True)
    )
    for given in (labels, labels.astype(np.uint8), labels.astype(float), labels[:, None], labels.tolist()):
        assert Extracted(np.zeros((50, 1)), logits, given).error() == n_wrong / 50


@pytest.mark.parametrize("labels", [None, ["a"] * 3, [0, 1, 2], [-1, 0, 1]])
def test_there_is_no_error_where_labels_do_not_count_the_logits(labels):
    assert Extracted(np.zeros((3, 1)), np.zeros((3, 2)), labels).error() is None


def test_there_is_no_error_without_logits():
    assert Extracted(np.zeros((3, 1)), labels=[0, 1, 2]).error() is None


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ((np.zeros(3),), "features must have two dimensions"),
        ((np.zeros((0, 3)),), "features has n_samples=0 rows"),
        ((np.zeros((3, 2)), np.zeros((2, 2))), "logits has 2 rows but features has 3; pass one per row"),
        ((np.zeros((3, 2)), None, [0, 1]), "labels has 2 rows but features has 3; pass one label per row"),
    ],
)
def test_parts_that_do_not_fit_together_are_refused(parts, message):
    with pytest.raises(InputError, match=message):
        Extracted(*parts)


@pytest.mark.parametrize(
    ("source", "total"),
    [
        (PICTURES, N),
        (TensorDataset(INPUTS, LABELS), N),
        (DataLoader(Pairs(), batch_size=10), N),
        (DataLoader(Pairs(), batch_size=10, sampler=SubsetRandomSampler(range(23))), 23),
        (batches(INPUTS, LABELS), None),
    ],
)
def test_progress_ends_at_the_number_of_rows(source, total):
    told = []
    extract = Extractor(PixelNet(), batch_size=10, on_rows=lambda *news: told.append(news))
    n_rows = len(extract(source, "made"))
    assert [name for name, _, _ in told] == ["made"] * len(told)
    assert [n_done for _, n_done, _ in told] == [*range(10, n_rows, 10), n_rows]
    assert {n_total for _, _, n_total in told} == {total}
