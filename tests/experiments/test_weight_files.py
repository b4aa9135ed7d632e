"""Weight files: every usual form loads, nothing in them runs, and what does not fit is refused by name."""

import io
import json
import os
import pickle
import zipfile
from collections import OrderedDict

import pytest

torch = pytest.importorskip("torch")

from safetensors import safe_open  # noqa: E402
from safetensors.torch import save_file  # noqa: E402

from gem_ood.errors import FileFormatError, InputError  # noqa: E402
from gem_ood.experiments.networks.loading import load_network  # noqa: E402
from gem_ood.experiments.networks.resnet import IMAGE_MEAN, IMAGE_STD, CifarResNet  # noqa: E402
from gem_ood.experiments.networks.weights import read_tensors, write_weights  # noqa: E402
from gem_ood.experiments.networks.wide_resnet import WideResNet  # noqa: E402


def network(width=1):
    torch.manual_seed(0)
    made = WideResNet(16, width, n_classes=5)
    for module in made.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.running_mean.normal_()
            module.num_batches_tracked += 7
    return made.eval()


def former(document, path):
    torch.save(document, path, _use_new_zipfile_serialization=False)


WRITERS = {
    "safetensors": ("w.safetensors", save_file),
    "pt": ("w.pt", torch.save),
    "pt of the former format": ("w.pt", former),
    "pth": ("w.PTH", torch.save),
}

FORMS = {
    "plain": lambda tensors: tensors,
    "of DataParallel": lambda tensors: {f"module.{name}": tensor for name, tensor in tensors.items()},
    "without step counts": lambda tensors: {
        name: tensor for name, tensor in tensors.items() if not name.endswith("num_batches_tracked")
    },
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("writer", WRITERS)
def test_weights_load_from_every_usual_file(writer, form, tmp_path):
    name, write = WRITERS[writer]
    original = network(width=2)
    write(FORMS[form](original.state_dict()), tmp_path / name)
    random_state = torch.get_rng_state()
    loaded = WideResNet.load(tmp_path / name)
    assert torch.equal(torch.get_rng_state(), random_state)
    images = torch.randn(2, 3, 32, 32)
    assert torch.equal(loaded(images), original(images))
    assert int(loaded.bn1.num_batches_tracked) == (0 if form == "without step counts" else 7)
    assert not any(module.training for module in loaded.modules())
    assert (len(loaded.block3.layer), loaded.fc.in_features, loaded.fc.out_features) == (2, 128, 5)


@pytest.mark.parametrize("key", ["state_dict", "model_state_dict", "model"])
@pytest.mark.parametrize("save", [torch.save, former])
def test_tensors_beside_other_things_are_found(key, save, tmp_path):
    original = network()
    save({"epoch": 99, key: original.state_dict(), "best": 0.95}, tmp_path / "w.pt")
    assert torch.equal(WideResNet.load(tmp_path / "w.pt").conv1.weight, original.conv1.weight)


def test_weights_saved_as_parameters_or_of_half_precision_load_in_full(tmp_path):
    original = network()
    named = OrderedDict(original.state_dict())
    named["fc.weight"] = torch.nn.Parameter(named["fc.weight"].half())
    torch.save(named, tmp_path / "w.pt")
    loaded = WideResNet.load(tmp_path / "w.pt")
    assert loaded.fc.weight.dtype == torch.float32
    assert torch.equal(loaded.fc.weight, original.fc.weight.half().float())


@pytest.mark.parametrize("made", [network(), CifarResNet(14, 4).eval()], ids=["wide", "narrow"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("writer", WRITERS)
def test_a_network_saved_wholly_in_another_precision_loads_with_its_step_counts(made, dtype, writer, tmp_path):
    name, write = WRITERS[writer]
    counts = {key: value + 100 for key, value in made.state_dict().items() if "num_batches" in key}
    tensors = {key: value.to(dtype) for key, value in {**made.state_dict(), **counts}.items()}
    write(tensors, tmp_path / name)
    loaded = load_network(tmp_path / name).state_dict()
    for key, value in made.state_dict().items():
        assert loaded[key].dtype == value.dtype
        assert torch.equal(loaded[key], tensors[key].to(value.dtype)), key


def test_step_counts_beyond_half_precision_are_left_out(tmp_path):
    tensors = network().state_dict()
    tensors["bn1.num_batches_tracked"] = torch.tensor(78_200.0).half()
    assert tensors["bn1.num_batches_tracked"].isinf()
    torch.save(tensors, tmp_path / "w.pt")
    loaded = WideResNet.load(tmp_path / "w.pt")
    assert int(loaded.bn1.num_batches_tracked) == 0
    assert int(loaded.block1.layer[0].bn1.num_batches_tracked) == 7


def test_the_kind_of_network_is_told_by_the_names_of_its_tensors(tmp_path):
    for made, name in ((network(), "wide.pt"), (CifarResNet(14, 4).eval(), "narrow.pt")):
        torch.save({f"module.{key}": value for key, value in made.state_dict().items()}, tmp_path / name)
        loaded = load_network(tmp_path / name)
        assert type(loaded) is type(made)
        assert all(torch.equal(value, loaded.state_dict()[key]) for key, value in made.state_dict().items())
    torch.save({"encoder.weight": torch.zeros(1)}, tmp_path / "other.pt")
    with pytest.raises(FileFormatError, match=r"other.pt holds neither .* WideResNet .* nor .* but encoder.weight;"):
        load_network(tmp_path / "other.pt")
    save_file({}, tmp_path / "none.safetensors")
    with pytest.raises(FileFormatError, match="but 0 tensors;"):
        load_network(tmp_path / "none.safetensors")


def test_each_network_says_how_its_pixels_are_normalised():
    assert (CifarResNet.pixel_mean, CifarResNet.pixel_std) == (IMAGE_MEAN, IMAGE_STD)
    assert [255 * mean for mean in WideResNet.pixel_mean] == pytest.approx([125.3, 123.0, 113.9])
    assert [255 * std for std in WideResNet.pixel_std] == pytest.approx([63.0, 62.1, 66.7])


class Harmful:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("save", [torch.save, former, lambda document, path: path.write_bytes(pickle.dumps(document))])
@pytest.mark.parametrize("wrapped", [True, False])
def test_a_file_that_would_run_code_is_refused_and_runs_none(save, wrapped, tmp_path):
    harm = Harmful(tmp_path / "harmed")
    save({**network().state_dict(), "extra": harm} if wrapped else harm, tmp_path / "w.pt")
    with pytest.raises(FileFormatError, match="holds more than tensors, and reading it could run code"):
        WideResNet.load(tmp_path / "w.pt")
    assert [path.name for path in tmp_path.iterdir()] == ["w.pt"]


def test_a_whole_pickled_network_is_refused_with_what_to_save_instead(tmp_path):
    torch.save(torch.nn.Linear(2, 2), tmp_path / "w.pt")
    with pytest.raises(FileFormatError, match=r"refused; save network.state_dict\(\) with torch.save"):
        load_network(tmp_path / "w.pt")


def written(save):
    def data():
        buffer = io.BytesIO()
        save(network().state_dict(), buffer)
        return buffer.getvalue()

    return data


@pytest.mark.parametrize("save", [written(torch.save), written(former)], ids=["present", "former"])
@pytest.mark.parametrize(
    "damage",
    [lambda data: b"", lambda data: data[: len(data) // 2], lambda data: data[7:], lambda data: b"\0" * 99],
    ids=["empty", "half", "head cut", "zeros"],
)
def test_damaged_files_are_refused(save, damage, tmp_path):
    (tmp_path / "w.pt").write_bytes(damage(save()))
    with pytest.raises(FileFormatError, match=r"w.pt (is not a PyTorch file of tensors, or is damaged|holds more)"):
        WideResNet.load(tmp_path / "w.pt")


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ([1, 2], r"w.pt holds a list but weights are tensors by name; save network.state_dict\(\)"),
        ({"conv1.weight": 3}, "w.pt holds a int under 'conv1.weight' but weights are tensors by name"),
        ({3: torch.zeros(1)}, "w.pt holds a Tensor under 3 but weights are tensors by name"),
        ({"fc.weight": torch.zeros(1).expand(10**9, 64)}, "w.pt does not hold all numbers of fc.weight"),
        ({"fc.weight": torch.zeros(10**9, 64, device="meta")}, "w.pt does not hold all numbers of fc.weight"),
        ({"fc.weight": torch.zeros(4, 64).to_sparse()}, "w.pt does not hold all numbers of fc.weight"),
    ],
    ids=["list", "number", "key", "expanded", "meta", "sparse"],
)
def test_other_documents_are_refused_without_taking_memory(document, message, tmp_path):
    torch.save(document, tmp_path / "w.pt")
    with pytest.raises(FileFormatError, match=message):
        load_network(tmp_path / "w.pt")


def test_an_archive_that_inflates_is_refused_before_it_is_read(tmp_path):
    torch.save({"fc.weight": torch.zeros(100_000)}, tmp_path / "w.pt")
    with zipfile.ZipFile(tmp_path / "w.pt") as stored, zipfile.ZipFile(tmp_path / "z.pt", "w") as deflated:
        for member in stored.infolist():
            deflated.writestr(member.filename, stored.read(member), zipfile.ZIP_DEFLATED)
    with pytest.raises(FileFormatError, match=r"z.pt says that it holds 40\d,\d+ bytes but has"):
        read_tensors(tmp_path / "z.pt")


def test_paths_of_nothing_and_folders_are_refused(tmp_path):
    for name in ("absent.pt", "absent.safetensors", "absent"):
        with pytest.raises(FileNotFoundError, match=rf"{name} does not exist; .* a .safetensors, .pt or .pth file of"):
            WideResNet.load(tmp_path / name)
    for name in ("folder.pt", "folder.safetensors", "folder"):
        (tmp_path / name).mkdir()
        with pytest.raises(FileFormatError, match=rf"{name} is a folder; pass a .safetensors, .pt or .pth file"):
            WideResNet.load(tmp_path / name)


@pytest.mark.parametrize("name", ["w.pt", "w.safetensors", "w"])
def test_a_pipe_is_refused_at_once(name, tmp_path):
    os.mkfifo(tmp_path / name)
    for load in (read_tensors, load_network, WideResNet.load, CifarResNet.load):
        with pytest.raises(InputError, match=rf"{name} is no regular file but a pipe"):
            load(tmp_path / name)


def without(tensors, part):
    return {name: value for name, value in tensors.items() if part not in name}


CHANGES = {
    "no tensors": (lambda tensors: {}, "there is no block1.layer.0.conv2.weight among its 0 tensors"),
    "no head": (lambda tensors: without(tensors, "fc.weight"), "there is no fc.weight among"),
    "a tensor missing": (lambda tensors: without(tensors, "block2.layer.1.bn2.bias"), "it lacks block2.layer.1.bn2.b"),
    "a block missing": (lambda tensors: without(tensors, "block3.layer.1."), r"it lacks block3.layer.1.bn1.weight"),
    "a tensor too many": (
        lambda tensors: {**tensors, "extra": torch.zeros(1)},
        "the network has no extra; remove what is too much",
    ),
    "some with a prefix": (
        lambda tensors: {**without(tensors, "fc.bias"), "module.fc.bias": torch.zeros(5)},
        "it lacks fc.bias",
    ),
    "another width inside": (
        lambda tensors: {**tensors, "block1.layer.0.conv2.weight": torch.zeros(32, 32, 3, 3)},
        r"block1.layer.0.conv2.weight must have shape \(16, 16, 3, 3\) but has \(32, 32, 3, 3\)",
    ),
    "a head of no width": (
        lambda tensors: {**tensors, "fc.weight": torch.zeros(5, 0)},
        r"fc.weight must have shape \(5, 64\) but has \(5, 0\)",
    ),
    "a head between widths": (
        lambda tensors: {**tensors, "fc.weight": torch.zeros(5, 100)},
        r"fc.weight must have shape \(5, 64\) but has \(5, 100\)",
    ),
    "a number as head": (lambda tensors: {**tensors, "fc.weight": torch.tensor(1.0)}, r"\(1, 64\) but has \(\)"),
    "whole numbers": (
        lambda tensors: {**tensors, "conv1.weight": torch.zeros(16, 3, 3, 3, dtype=torch.int8)},
        "conv1.weight must hold torch.float32 but holds torch.int8",
    ),
    "not finite": (
        lambda tensors: {**tensors, "fc.bias": torch.full((5,), torch.inf)},
        "fc.bias holds NaN or infinity",
    ),
    "too large for single precision": (
        lambda tensors: {**tensors, "fc.bias": torch.full((5,), 1e300, dtype=torch.float64)},
        "fc.bias holds NaN or infinity",
    ),
    "a step count that is no number": (
        lambda tensors: {**tensors, "bn1.num_batches_tracked": torch.tensor(1j)},
        "bn1.num_batches_tracked must hold torch.int64 but holds torch.complex64",
    ),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("name", ["w.safetensors", "w.pt"])
def test_files_of_other_tensors_are_refused_by_name(change, name, tmp_path):
    alter, message = CHANGES[change]
    (save_file if name == "w.safetensors" else torch.save)(alter(network().state_dict()), tmp_path / name)
    with pytest.raises(FileFormatError, match=f"{name} does not hold the weights of a WideResNet: .*{message}"):
        WideResNet.load(tmp_path / name)


@pytest.mark.parametrize("name", ["w.safetensors", "w.pt", "w.pth"])
def test_written_weights_load_again_and_the_same_tensors_give_the_same_bytes(name, tmp_path):
    original = network().to(memory_format=torch.channels_last)
    (tmp_path / "other").mkdir()
    write_weights(original, tmp_path / name, about={"name": "größer"})
    write_weights(network(), tmp_path / "other" / name, about={"name": "größer"})
    assert (tmp_path / name).read_bytes() == (tmp_path / "other" / name).read_bytes()
    images = torch.randn(2, 3, 32, 32)
    torch.testing.assert_close(WideResNet.load(tmp_path / name)(images), original(images))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["other", name]
    if name == "w.safetensors":
        with safe_open(tmp_path / name, framework="pt") as file:
            assert json.loads(file.metadata()["about"]) == {"name": "größer"}


def test_weights_are_written_whole_or_not_at_all(tmp_path, monkeypatch):
    out = tmp_path / "w.pt"
    out.write_bytes(b"before")

    def full(self, data):
        with self.open("wb") as file:
            file.write(data[:100])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pathlib.Path.write_bytes", full)
    with pytest.raises(InputError, match=r"w.pt cannot be written \(No space left on device\)"):
        write_weights(network(), out)
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("w.pt", b"before")]
    with pytest.raises(InputError, match=r"w.bin has the suffix '.bin' but weights are kept in .safetensors, .pt"):
        write_weights(network(), tmp_path / "w.bin")


def test_many_names_for_the_same_numbers_are_refused_before_a_network_is_built(tmp_path):
    tensors = WideResNet(depth=10, width=1).state_dict()
    for place in range(1, 2000):
        tensors[f"block1.layer.{place}.conv2.weight"] = tensors["block1.layer.0.conv2.weight"]
    torch.save(tensors, tmp_path / "w.pt")
    with pytest.raises(FileFormatError, match=r"w.pt has several names for the same numbers"):
        load_network(tmp_path / "w.pt")
