"""The WideResNet: names and numbers of the published network, and outputs of a second, naive account of it."""

import math

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch.nn import functional  # noqa: E402

from gem_ood import GEM  # noqa: E402
from gem_ood.errors import InputError  # noqa: E402
from gem_ood.experiments.networks.wide_resnet import WideResNet  # noqa: E402
from gem_ood.torch import OODModel  # noqa: E402

NORM = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")


def shapes(depth, width, n_classes):
    """Every tensor of the published network by its name, counted out by hand."""
    n_blocks = (depth - 4) // 6
    expected = {"conv1.weight": (16, 3, 3, 3)}

    def norm(name, channels):
        expected.update({f"{name}.{part}": () if part == NORM[-1] else (channels,) for part in NORM})

    before = 16
    for stage, narrow in enumerate((16, 32, 64), start=1):
        channels = narrow * width
        for place in range(n_blocks):
            block = f"block{stage}.layer.{place}"
            norm(f"{block}.bn1", before)
            expected[f"{block}.conv1.weight"] = (channels, before, 3, 3)
            norm(f"{block}.bn2", channels)
            expected[f"{block}.conv2.weight"] = (channels, channels, 3, 3)
            if before != channels:
                expected[f"{block}.convShortcut.weight"] = (channels, before, 1, 1)
            before = channels
    norm("bn1", before)
    return expected | {"fc.weight": (n_classes, before), "fc.bias": (n_classes,)}


def naive_logits(tensors, images, *, dropout=0.0, is_training=False):
    """The network by functional calls on its tensors, block by block as the published code computes it."""

    def normalized(maps, name):
        mean, variance = (tensors[f"{name}.running_{part}"].clone() for part in ("mean", "var"))
        weight, bias = tensors[f"{name}.weight"], tensors[f"{name}.bias"]
        return functional.batch_norm(maps, mean, variance, weight, bias, training=is_training).clamp(min=0.0)

    maps = functional.conv2d(images, tensors["conv1.weight"], padding=1)
    for stage, stride in ((1, 1), (2, 2), (3, 2)):
        place = 0
        while (name := f"block{stage}.layer.{place}") + ".conv1.weight" in tensors:
            step = stride if place == 0 else 1
            ready = normalized(maps, f"{name}.bn1")
            hidden = functional.conv2d(ready, tensors[f"{name}.conv1.weight"], stride=step, padding=1)
            hidden = functional.dropout(normalized(hidden, f"{name}.bn2"), dropout, training=is_training)
            new = functional.conv2d(hidden, tensors[f"{name}.conv2.weight"], padding=1)
            shortcut = tensors.get(f"{name}.convShortcut.weight")
            maps = new + (maps if shortcut is None else functional.conv2d(ready, shortcut, stride=step))
            place += 1
    features = normalized(maps, "bn1")[:, :, :8, :8].mean(dim=(2, 3))
    return features @ tensors["fc.weight"].T + tensors["fc.bias"]


def varied(depth=16, width=2, n_classes=4, dropout=0.3):
    """A network whose every tensor differs from its start, in double precision and evaluation mode."""
    torch.manual_seed(1)
    network = WideResNet(depth, width, n_classes=n_classes, dropout=dropout)
    for module in network.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            for tensor in (module.weight.data, module.bias.data, module.running_mean):
                tensor.normal_()
            module.running_var.uniform_(0.5, 2.0)
    return network.double().eval()


@pytest.mark.parametrize(("depth", "width", "n_classes"), [(40, 2, 10), (40, 2, 100), (10, 1, 3), (16, 3, 7)])
def test_tensors_have_the_names_the_shapes_and_the_order_of_the_published_network(depth, width, n_classes):
    tensors = WideResNet(depth, width, n_classes=n_classes).state_dict()
    found = [(name, tuple(tensor.shape)) for name, tensor in tensors.items()]
    assert found == list(shapes(depth, width, n_classes).items())


def test_wrn_40_2_has_as_many_parameters_as_the_published_network():
    counted = sum(
        math.prod(shape) for name, shape in shapes(40, 2, 10).items() if "running" not in name and "num_b" not in name
    )
    assert sum(parameter.numel() for parameter in WideResNet().parameters()) == counted == 2_243_546


@pytest.mark.parametrize("size", [(32, 32), (36, 36), (29, 60)])
@pytest.mark.parametrize("width", [1, 2])
def test_logits_equal_a_naive_account_of_the_network(width, size):
    network = varied(width=width)
    images = torch.randn(3, 3, *size, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    with torch.inference_mode():
        torch.testing.assert_close(network(images), naive_logits(network.state_dict(), images))


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_training_drops_activations_between_the_convolutions_of_a_block(dropout):
    network = varied(dropout=dropout).train()
    images = torch.randn(4, 3, 32, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    with torch.inference_mode():
        torch.manual_seed(4)
        expected = naive_logits(network.state_dict(), images, dropout=dropout, is_training=True)
        torch.manual_seed(4)
        torch.testing.assert_close(network(images), expected)


def test_fresh_weights_have_the_published_spread():
    torch.manual_seed(5)
    network = WideResNet(16, 4)
    for name, module in network.named_modules():
        if isinstance(module, torch.nn.Conv2d):
            weight = module.weight.detach()
            expected = math.sqrt(2.0 / (weight.shape[0] * weight.shape[2] * weight.shape[3]))
            # Six standard errors of a standard deviation of n normal numbers.
            assert weight.std().item() == pytest.approx(expected, rel=6.0 / math.sqrt(2 * weight.numel())), name
        elif isinstance(module, torch.nn.BatchNorm2d):
            assert torch.equal(module.weight, torch.ones_like(module.weight))
            assert not module.bias.any()
    assert not network.fc.bias.any()


def test_features_are_the_input_of_the_last_layer_wherever_a_guard_looks_for_them():
    network = varied().float()
    images = torch.randn(12, 3, 36, 36, generator=torch.Generator().manual_seed(6))
    seen = []
    hook = network.fc.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].clone()))
    with torch.inference_mode():
        network(images)
    hook.remove()
    guarded = OODModel(network, GEM(), layer="auto")
    np.testing.assert_array_equal(guarded.features([images], progress=False)[0], seen[0].numpy())
    assert seen[0].shape == (12, 128)


def test_hooks_see_the_outputs_of_layers_before_anything_overwrites_them():
    network = varied()
    outputs = {}

    def keep(name):
        def hook(module, inputs, output):
            outputs[name] = (output, output.clone())

        return hook

    for name, module in network.named_modules():
        module.register_forward_hook(keep(name))
    with torch.inference_mode():
        network(torch.randn(2, 3, 32, 32, dtype=torch.float64))
    assert all(torch.equal(output, then) for output, then in outputs.values())


def test_the_exported_graph_takes_any_batch_and_equals_the_network():
    network = varied(10, 1)
    example = (torch.zeros(2, 3, 32, 32, dtype=torch.float64),)
    exported = torch.export.export(network, example, dynamic_shapes=({0: torch.export.Dim("batch")},)).module()
    images = torch.randn(5, 3, 32, 32, dtype=torch.float64)
    with torch.inference_mode():
        torch.testing.assert_close(exported(images), network(images))


@pytest.mark.parametrize("size", [(28, 32), (32, 61), (64, 64), (8, 8)])
def test_images_whose_last_maps_hold_no_or_several_squares_are_refused(size):
    with pytest.raises(InputError, match=r"sides from 29 to 60 pixels but have shape \(2, 3, "):
        varied(10, 1)(torch.zeros(2, 3, *size, dtype=torch.float64))


@pytest.mark.parametrize("depth", [4, 12, 41, -2, 40.0, True, "40", None])
def test_depths_of_no_network_are_refused(depth):
    with pytest.raises(InputError, match="depth must be 6n"):
        WideResNet(depth)


@pytest.mark.parametrize("name", ["width", "n_classes"])
@pytest.mark.parametrize("value", [0, -1, 2.0, True, "two", None])
def test_impossible_widths_and_numbers_of_classes_are_refused(name, value):
    with pytest.raises(InputError, match=f"{name} must be a whole number, at least 1, but is .*; pass "):
        WideResNet(10, **{name: value})


@pytest.mark.parametrize("dropout", [-0.1, 1.0, math.nan, True, "0.3", None])
def test_impossible_dropouts_are_refused(dropout):
    with pytest.raises(InputError, match="dropout must lie in"):
        WideResNet(10, dropout=dropout)
