"""The CIFAR ResNet: its features are the stored ones, its parts are the paper's, and bad files are refused."""

from functools import cache

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from safetensors.torch import save, save_file  # noqa: E402

from gem_ood.errors import FileFormatError, InputError  # noqa: E402
from gem_ood.experiments import IMAGE_MEAN, IMAGE_STD, CifarResNet, normalize_images  # noqa: E402

#: File of images -> file of features, and the step through its rows that keeps each to 1,000 images.
FILES = {
    "cifar10_test": ("test", 1),
    "cifar10_train_5k": ("train", 5),
    "ood_svhn": ("ood_svhn", 1),
    "ood_textures": ("ood_textures", 1),
}
BATCH_SIZE = 250


@pytest.fixture(scope="module")
def outputs(cifar10, cifar10_images, resnet56_weights):
    """A function of a file's name: features and logits from pixels, the same from the stored rows, and the labels."""
    network = CifarResNet.load(resnet56_weights)
    seen = []
    network.linear.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    head = cifar10["head"]

    @cache
    def compute(name):
        stored_name, step = FILES[name]
        images, labels, rows = (cifar10_images[name][key][::step] for key in ("images", "labels", "rows"))
        assert len(images) == 1000
        seen.clear()
        with torch.inference_mode():
            batches = [images[start : start + BATCH_SIZE] for start in range(0, len(images), BATCH_SIZE)]
            logits = torch.cat([network(normalize_images(batch)) for batch in batches]).numpy()
        stored = cifar10[stored_name]["features"][rows]
        return {
            "features": torch.cat(seen).numpy(),
            "logits": logits,
            "stored_features": stored,
            "stored_logits": stored @ head["weight"].T + head["bias"],
            "labels": labels,
            "stored_labels": cifar10[stored_name]["labels"][rows],
        }

    return compute


@pytest.mark.parametrize("name", FILES)
def test_features_of_real_images_equal_the_stored_rows(outputs, name):
    result = outputs(name)
    np.testing.assert_array_equal(result["labels"], result["stored_labels"])
    np.testing.assert_allclose(result["features"], result["stored_features"], rtol=0.0, atol=1e-4)
    np.testing.assert_allclose(result["logits"], result["stored_logits"], rtol=0.0, atol=1e-4)


def test_accuracy_on_real_images_equals_that_of_the_stored_rows(outputs):
    result = outputs("cifar10_test")
    accuracy, stored = ((result[key].argmax(axis=1) == result["labels"]).mean() for key in ("logits", "stored_logits"))
    assert accuracy == stored
    # 93.39 % on all 10,000 images: 1,000 of them lie within four standard errors (0.8 % each).
    assert accuracy == pytest.approx(0.9339, abs=0.032)


def test_published_weights_load_unchanged_into_a_fresh_network(resnet56, resnet56_weights, cifar10):
    from safetensors.torch import load_file

    fresh = CifarResNet()
    fresh.load_state_dict(load_file(resnet56_weights), strict=True)
    loaded = resnet56.state_dict()
    assert all(torch.equal(tensor, loaded[name]) for name, tensor in fresh.state_dict().items())
    np.testing.assert_array_equal(resnet56.linear.weight.detach().numpy(), cifar10["head"]["weight"])
    assert not resnet56.training


@pytest.mark.parametrize(("depth", "n_parameters"), [(20, 269_722), (32, 464_154), (56, 853_018), (110, 1_727_962)])
def test_the_network_has_as_many_parameters_as_the_paper_says(depth, n_parameters):
    assert sum(parameter.numel() for parameter in CifarResNet(depth).parameters()) == n_parameters


@pytest.mark.parametrize("size", [(8, 8), (7, 5), (1, 1)])
@pytest.mark.parametrize("stage", ["layer2", "layer3"])
def test_the_shortcut_keeps_every_other_pixel_between_channels_of_zeros(stage, size):
    block = getattr(CifarResNet(8), stage)[0].eval()
    torch.nn.init.zeros_(block.bn2.weight)  # silences the convolutions, so that the block is relu(shortcut)
    channels = block.conv1.in_channels
    maps = torch.randn(2, channels, *size, generator=torch.Generator().manual_seed(0))
    expected = torch.zeros(2, 2 * channels, -(-size[0] // 2), -(-size[1] // 2))
    for channel in range(channels):
        for row in range(0, size[0], 2):
            for column in range(0, size[1], 2):
                pixel = maps[:, channel, row, column]
                expected[:, channels // 2 + channel, row // 2, column // 2] = pixel.clamp(min=0.0)
    assert torch.equal(block(maps), expected)


def test_a_block_within_a_stage_adds_its_input_to_two_normalised_convolutions():
    block = CifarResNet(14).layer2[1].eval()
    generator = torch.Generator().manual_seed(1)
    for norm in (block.bn1, block.bn2):
        for tensor in (norm.weight.data, norm.bias.data, norm.running_mean):
            tensor.normal_(generator=generator)
        norm.running_var.uniform_(0.5, 2.0, generator=generator)
    block.double()
    maps = torch.randn(2, 32, 6, 6, generator=generator, dtype=torch.float64)

    def convolved(inputs, convolution, norm):
        padded = np.pad(inputs, ((0, 0), (0, 0), (1, 1), (1, 1)))
        windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))
        sums = np.einsum("nchwij,ocij->nohw", windows, convolution.weight.detach().numpy())
        mean, variance, weight, bias = (
            tensor.detach().numpy()[:, None, None]
            for tensor in (norm.running_mean, norm.running_var, norm.weight, norm.bias)
        )
        return (sums - mean) / np.sqrt(variance + norm.eps) * weight + bias

    hidden = np.maximum(convolved(maps.numpy(), block.conv1, block.bn1), 0.0)
    expected = np.maximum(convolved(hidden, block.conv2, block.bn2) + maps.numpy(), 0.0)
    np.testing.assert_allclose(block(maps).detach().numpy(), expected, rtol=1e-10, atol=1e-10)


def test_a_row_of_a_batch_has_the_logits_it_has_alone():
    network = _network()
    images = torch.randn(5, 3, 32, 32, generator=torch.Generator().manual_seed(2))
    with torch.inference_mode():
        alone = torch.cat([network(image[None]) for image in images])
        torch.testing.assert_close(network(images), alone, rtol=1e-5, atol=1e-5)
        assert network(images[:0]).shape == (0, 4)


def test_the_exported_graph_takes_any_batch_and_equals_the_network():
    network = _network()
    batch = torch.export.Dim("batch")
    exported = torch.export.export(network, (torch.zeros(2, 3, 32, 32),), dynamic_shapes=({0: batch},)).module()
    images = torch.randn(5, 3, 32, 32, generator=torch.Generator().manual_seed(3))
    with torch.inference_mode():
        torch.testing.assert_close(exported(images), network(images))
        torch.testing.assert_close(exported(images[:1]), network(images[:1]))


def test_a_network_learns_by_gradient_descent():
    torch.manual_seed(4)
    network = CifarResNet(8, 2)
    images, labels = torch.randn(16, 3, 8, 8), torch.arange(16) % 2
    optimizer = torch.optim.SGD(network.parameters(), lr=0.05)
    losses = []
    for _ in range(30):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(network(images), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]


def test_pixels_are_scaled_centred_and_moved_to_colours_first():
    images = np.random.default_rng(5).integers(0, 256, size=(3, 32, 32, 3), dtype=np.uint8)
    normalized = normalize_images(images)
    assert normalized.shape == (3, 3, 32, 32)
    assert normalized.dtype == torch.float32
    for colour in range(3):
        expected = (images[..., colour] / 255.0 - IMAGE_MEAN[colour]) / IMAGE_STD[colour]
        np.testing.assert_allclose(normalized[:, colour].numpy(), expected, rtol=1e-5, atol=1e-6)


def test_read_only_and_flipped_images_pass_and_stay_as_they_are():
    images = np.random.default_rng(6).integers(0, 256, size=(2, 32, 32, 3), dtype=np.uint8)
    before = images.copy()
    images.flags.writeable = False
    flipped = normalize_images(images[:, :, ::-1])
    assert torch.equal(flipped, normalize_images(images).flip(3))
    np.testing.assert_array_equal(images, before)
    assert normalize_images(images[:0]).shape == (0, 3, 32, 32)


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (np.zeros((32, 32, 3), np.uint8), r"has \(32, 32, 3\); pass one image as images\[numpy.newaxis\]"),
        (np.zeros((2, 3, 32, 32), np.uint8), r"has \(2, 3, 32, 32\); move the colours last"),
        (np.zeros((2, 64, 64, 3), np.uint8), r"has \(2, 64, 64, 3\); resize and crop"),
        (np.zeros((2, 32, 32, 1), np.uint8), r"has \(2, 32, 32, 1\); resize and crop"),
        (np.zeros((), np.uint8), r"has \(\); resize and crop"),
        (np.zeros((2, 32, 32, 3), np.float32), "dtype uint8 but has float32"),
        (np.zeros((2, 32, 32, 3), np.int64), "dtype uint8 but has int64"),
        ([[1, 2]], r"is a list; pass numpy.asarray\(images\)"),
    ],
    ids=["one image", "colours first", "large", "grey", "number", "float", "int64", "list"],
)
def test_images_of_another_kind_are_refused(images, message):
    with pytest.raises(InputError, match=message):
        normalize_images(images)


@pytest.mark.parametrize("depth", [18, 2, 0, -4, 7, 56.0, True, "56", None])
def test_depths_of_no_network_are_refused(depth):
    with pytest.raises(InputError, match="depth must be 6n"):
        CifarResNet(depth)


@pytest.mark.parametrize("n_classes", [0, -1, 2.0, True, "ten", None])
def test_impossible_numbers_of_classes_are_refused(n_classes):
    with pytest.raises(InputError, match=r"n_classes must be a whole number, .*; pass how many logits"):
        CifarResNet(8, n_classes)


def _network():
    """A small network whose every tensor differs from its start, in evaluation mode."""
    torch.manual_seed(7)
    network = CifarResNet(14, 4)
    for module in network.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2.0)
            module.num_batches_tracked += 3
    return network.eval()


@pytest.mark.parametrize("with_counts", [True, False], ids=["with step counts", "without"])
def test_a_saved_network_comes_back_with_its_depth_and_classes(tmp_path, with_counts):
    network, path = _network(), tmp_path / "weights.safetensors"
    tensors = network.state_dict()
    save_file({name: value for name, value in tensors.items() if with_counts or "num_batches" not in name}, path)
    random_state = torch.get_rng_state()
    loaded = CifarResNet.load(path)
    assert torch.equal(torch.get_rng_state(), random_state)
    path.unlink()
    images = torch.randn(2, 3, 32, 32)
    assert torch.equal(loaded(images), network(images))
    assert int(loaded.bn1.num_batches_tracked) == (3 if with_counts else 0)
    assert loaded.linear.out_features == 4
    assert not any(module.training for module in loaded.modules())
    assert all(parameter.requires_grad for parameter in loaded.parameters())


def test_weights_of_half_precision_are_read_in_full(tmp_path):
    network, path = _network(), tmp_path / "half.safetensors"
    save_file({name: value.half() for name, value in network.state_dict().items() if "num_batches" not in name}, path)
    loaded = CifarResNet.load(path)
    assert loaded.conv1.weight.dtype == torch.float32
    assert torch.equal(loaded.conv1.weight, network.conv1.weight.half().float())


CHANGES = {
    "no tensors": (lambda tensors: {}, "there is no layer1.0.conv1.weight among its 0 tensors"),
    "another network": (lambda tensors: {"weight": torch.zeros(2)}, "no layer1.0.conv1.weight among its weight;"),
    "prefixed": (
        lambda tensors: {f"module.{name}": value for name, value in tensors.items()},
        r"no layer1.0.conv1.weight among its module..* and \d+ more",
    ),
    "no head": (lambda tensors: _without(tensors, "linear.weight"), "there is no linear.weight among"),
    "a tensor missing": (lambda tensors: _without(tensors, "layer2.1.bn2.bias"), "it lacks layer2.1.bn2.bias;"),
    "a block missing": (
        lambda tensors: {name: value for name, value in tensors.items() if not name.startswith("layer3.1.")},
        "it lacks layer3.1.conv1.weight, layer3.1.bn1.weight, layer3.1.bn1.bias and 7 more",
    ),
    "a tensor too many": (
        lambda tensors: {**tensors, "layer2.0.shortcut.weight": torch.zeros(32, 16, 1, 1)},
        "the network has no layer2.0.shortcut.weight;",
    ),
    "wider": (
        lambda tensors: {**tensors, "layer1.0.conv1.weight": torch.zeros(160, 16, 3, 3)},
        r"layer1.0.conv1.weight must have shape \(16, 16, 3, 3\) but has \(160, 16, 3, 3\)",
    ),
    "a shape": (
        lambda tensors: {**tensors, "bn1.bias": torch.zeros(3)},
        r"bn1.bias must have shape \(16,\) but has \(3,\)",
    ),
    "another width of head": (
        lambda tensors: {**tensors, "linear.weight": torch.zeros(4, 65)},
        r"linear.weight must have shape \(4, 64\) but has \(4, 65\)",
    ),
    "a head of no bytes": (
        lambda tensors: {**tensors, "linear.weight": torch.zeros(10**12, 0)},
        r"linear.weight must have shape \(1000000000000, 64\) but has \(1000000000000, 0\)",
    ),
    "no classes": (
        lambda tensors: {**tensors, "linear.weight": torch.zeros(0, 64)},
        r"shape \(1, 64\) but has \(0, 64",
    ),
    "a number as head": (lambda tensors: {**tensors, "linear.weight": torch.tensor(1.0)}, r"\(1, 64\) but has \(\)"),
    "whole numbers": (
        lambda tensors: {**tensors, "conv1.weight": torch.zeros(16, 3, 3, 3, dtype=torch.int8)},
        "conv1.weight must hold torch.float32 but holds torch.int8",
    ),
    "not finite": (
        lambda tensors: {**tensors, "linear.bias": torch.tensor([0.0, torch.nan, 0.0, 0.0])},
        "linear.bias holds NaN or infinity",
    ),
}


def _without(tensors, name):
    return {other: value for other, value in tensors.items() if other != name}


@pytest.mark.parametrize("change", CHANGES)
def test_files_of_other_tensors_are_refused_by_name(tmp_path, change):
    alter, message = CHANGES[change]
    path = tmp_path / "weights.safetensors"
    save_file(alter(_network().state_dict()), path)
    with pytest.raises(FileFormatError, match=f"weights.safetensors does not hold .* CIFAR ResNet: .*{message}"):
        CifarResNet.load(path)


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: data[: len(data) // 2],
        lambda data: data[:-1],
        lambda data: data[4:],
        lambda data: b"PK\x03\x04" + data,
    ],
    ids=["empty", "half", "one byte short", "head cut", "pickled archive"],
)
def test_damaged_files_are_refused(tmp_path, damage):
    path = tmp_path / "weights.safetensors"
    path.write_bytes(damage(save(_network().state_dict())))
    with pytest.raises(FileFormatError, match="not a safetensors file, or is damaged or truncated"):
        CifarResNet.load(path)


def test_a_folder_and_a_path_of_nothing_are_refused(tmp_path):
    with pytest.raises(FileFormatError, match=r"is a folder; pass a .safetensors, .pt or .pth file of weights"):
        CifarResNet.load(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"does not exist; pass the path of a .safetensors, .pt or .pth file"):
        CifarResNet.load(tmp_path / "absent.safetensors")
