"""The cache: what was computed is read again, by the weights and the data it comes from, and by nothing else."""

import errno

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from small_networks import PixelNet, count_passes, inputs_of, picture_set  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

from gem_ood import storage  # noqa: E402
from gem_ood.errors import InputError  # noqa: E402
from gem_ood.experiments import FeatureCache, ImageSet, run  # noqa: E402
from gem_ood.experiments.digests import network_digest  # noqa: E402
from gem_ood.experiments.extraction import PROBED_ROWS, Extractor  # noqa: E402

PICTURES = picture_set(30)
METHODS = ("msp", "odin", "mahalanobis", "energy", "gem", "react")


def sources(kind):
    """Return training, test and other pictures in one form."""
    sets = picture_set(60, seed=1), picture_set(40, seed=2), picture_set(30, seed=3, side=8)
    if kind == "images":
        return sets
    pairs = [(inputs_of(images), torch.from_numpy(images.labels)) for images in sets]
    if kind == "loaders":
        return [DataLoader(TensorDataset(*pair), batch_size=16) for pair in pairs]
    return [list(zip(*(part.split(16) for part in pair), strict=True)) for pair in pairs]


def tables(model, kind, cache, **options):
    train, test, far = sources(kind)
    return run(model, train, test, {"far": far}, cache=cache, progress=False, methods=METHODS, **options)


def extract_counted(cache, source=PICTURES, model=None, name="made", **options):
    """Return features, and how many rows passed through the network."""
    model = PixelNet() if model is None else model
    passes = count_passes(model)
    found = Extractor(model, cache=FeatureCache(cache), **options)(source, name)
    return found, sum(passes)


def files(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("kind", ["images", "loaders", "lists"])
@pytest.mark.parametrize("noise", [0.0, 0.01])
def test_a_second_run_reads_and_runs_the_network_on_first_rows_only(tmp_path, kind, noise):
    without = tables(PixelNet(), kind, None, odin_noise=noise)
    passes = count_passes(model := PixelNet())
    first = tables(model, kind, tmp_path, odin_noise=noise)
    n_sets = 3 + 2 * 2 * (noise > 0.0)  # ODIN's step passes twice over two of them
    assert len(passes) > 2 * n_sets or kind == "images"
    passes.clear()
    again = tables(model, kind, tmp_path, odin_noise=noise)
    assert len(passes) == n_sets
    assert max(passes) == (PROBED_ROWS if kind == "images" else 16)
    passes = count_passes(fresh := PixelNet())  # as in another process
    later = tables(fresh, kind, tmp_path, odin_noise=noise)
    assert len(passes) == n_sets
    assert str(first) == str(again) == str(later) == str(without)
    assert first.to_json() == again.to_json() == later.to_json() == without.to_json()
    assert first.methods == METHODS  # those that read the head too


def test_what_is_read_again_is_what_was_computed(tmp_path):
    first, n_first = extract_counted(tmp_path)
    again, n_again = extract_counted(tmp_path)
    assert (n_first, n_again) == (30, PROBED_ROWS)
    for part in ("features", "logits", "labels"):
        np.testing.assert_array_equal(getattr(first, part), getattr(again, part))
        assert getattr(first, part).dtype == getattr(again, part).dtype


def test_the_size_of_batches_and_the_name_of_the_set_do_not_matter(tmp_path):
    extract_counted(tmp_path)
    assert extract_counted(tmp_path, batch_size=7, name="other")[1] <= PROBED_ROWS


def test_the_mode_of_the_model_and_its_wrapper_do_not_matter(tmp_path):
    extract_counted(tmp_path, model=PixelNet().eval())
    assert extract_counted(tmp_path, model=PixelNet().train())[1] <= PROBED_ROWS
    wrapped = nn.DataParallel(PixelNet())
    extract = Extractor(wrapped, cache=FeatureCache(tmp_path))
    passes = count_passes(wrapped.module)
    rows = extract(PICTURES, "made")
    assert sum(passes) <= PROBED_ROWS
    assert extract.head(rows) is not None


class Scaled(PixelNet):
    def __init__(self, *, scale=1.0, act=torch.sigmoid):
        super().__init__()
        self.scale, self.act = scale, act
        self.register_buffer("shift", torch.zeros(6), persistent=False)

    def features(self, pixels):
        return self.scale * self.act(super().features(pixels)) + self.shift


def moved(part, change):
    """Return a network with one of its tensors changed."""
    model = Scaled()
    with torch.no_grad():
        change(model.get_parameter(part) if part in dict(model.named_parameters()) else model.get_buffer(part))
    return model


OTHER_MODELS = {
    "a weight": lambda: moved("conv.weight", lambda tensor: tensor[0, 0, 0, 0].add_(1e-3)),
    "a bias": lambda: moved("fc.bias", lambda tensor: tensor[2].add_(1.0)),
    "a running mean": lambda: moved("norm.running_mean", lambda tensor: tensor[5].add_(1.0)),
    "a buffer that is not saved": lambda: moved("shift", lambda tensor: tensor.add_(1.0)),
    "a number": lambda: Scaled(scale=2.0),
    "a function": lambda: Scaled(act=torch.tanh),
    "precision": lambda: Scaled().double(),
}


@pytest.mark.parametrize("change", OTHER_MODELS)
def test_another_network_misses(tmp_path, change):
    usual, _ = extract_counted(tmp_path, model=Scaled())
    found, n_rows = extract_counted(tmp_path, model=OTHER_MODELS[change]())
    assert n_rows == 30
    assert extract_counted(tmp_path, model=Scaled())[1] <= PROBED_ROWS
    if change != "precision":
        assert not (np.array_equal(found.features, usual.features) and np.array_equal(found.logits, usual.logits))


def test_a_hook_that_changes_the_output_is_another_network():
    first, other = PixelNet(), PixelNet()
    other.norm.register_forward_hook(lambda module, args, output: output.clamp(max=1.0))
    assert network_digest(first) == network_digest(PixelNet()) != network_digest(other)


def test_a_rewritten_forward_is_another_network():
    def kind(forward):
        return type("Net", (PixelNet,), {"forward": forward, "__module__": "user", "__qualname__": "Net"})()

    first = kind(lambda self, pixels: self.fc(self.features(pixels)))
    same = kind(lambda self, pixels: self.fc(self.features(pixels)))
    other = kind(lambda self, pixels: self.fc(self.features(pixels).relu()))
    assert network_digest(first) == network_digest(same) != network_digest(other)


def changed_pixel():
    pixels = PICTURES.images.copy()
    pixels[29, 5, 5, 2] ^= 1
    return ImageSet("made", pixels, PICTURES.labels)


OTHERS = {
    "a pixel": {"source": changed_pixel()},
    "a label": {"source": ImageSet("made", PICTURES.images, (PICTURES.labels + 1) % 3)},
    "no labels": {"source": ImageSet("made", PICTURES.images)},
    "order": {"source": PICTURES.take(np.arange(30)[::-1])},
    "mean": {"pixel_mean": (0.5, 0.4, 0.31)},
    "standard deviation": {"pixel_std": (0.2, 0.25, 0.31)},
    "layer": {"layer": "norm"},
}


@pytest.mark.parametrize("other", OTHERS)
def test_other_data_or_another_reading_misses(tmp_path, other):
    extract_counted(tmp_path)
    assert extract_counted(tmp_path, **OTHERS[other])[1] == 30
    assert extract_counted(tmp_path)[1] <= PROBED_ROWS
    assert extract_counted(tmp_path, **OTHERS[other])[1] <= PROBED_ROWS


def test_two_layers_of_one_model_do_not_collide(tmp_path):
    norm, _ = extract_counted(tmp_path, layer="norm")
    conv, n_rows = extract_counted(tmp_path, layer="conv")
    assert n_rows == 30
    again, n_rows = extract_counted(tmp_path, layer="norm")
    assert n_rows == PROBED_ROWS
    np.testing.assert_array_equal(norm.features, again.features)
    assert not np.allclose(norm.features, conv.features)


def test_a_layer_and_its_name_are_the_same(tmp_path):
    extract_counted(tmp_path, layer="norm")
    model = PixelNet()
    assert extract_counted(tmp_path, model=model, layer=model.norm)[1] <= PROBED_ROWS


class Switched(nn.Module):
    """A model that takes something beside a tensor."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.fc = nn.Linear(4, 3)

    def forward(self, x, sign="plus", extra=None):
        return self.fc(-x if sign == "minus" else x if extra is None else x + extra)


ROWS = torch.arange(24.0).reshape(6, 4)


@pytest.mark.parametrize(
    "batch",
    [
        {"x": ROWS + 1e-3},
        {"x": ROWS.reshape(4, 6)[:, :4]},
        {"x": ROWS, "sign": "minus"},
        {"x": ROWS, "extra": ROWS},
        {"x": ROWS, "label": torch.zeros(6, dtype=torch.long)},
        {"x": ROWS, "label": ["a"] * 6},
        {"x": ROWS.double().float()[:5]},
    ],
)
def test_anything_else_in_a_batch_misses(tmp_path, batch):
    extract = Extractor(Switched(), cache=FeatureCache(tmp_path))
    extract([{"x": ROWS}], "made")
    assert len(files(tmp_path)) == 1
    extract([batch], "made")
    assert len(files(tmp_path)) == 2


def test_labels_that_are_names_are_kept(tmp_path):
    names = ["cat", "dog", "日本", "", "cat", "a" * 100]
    batches = [(ROWS[:2], names[:2]), (ROWS[2:], names[2:])]
    for n_rows in (6, 2):  # the second time, only the first batch is run
        model = Switched()
        passes = []
        model.fc.register_forward_pre_hook(lambda _, args, passes=passes: passes.append(len(args[0])))
        found = Extractor(model, cache=FeatureCache(tmp_path))(batches, "made")
        assert found.labels.tolist() == names
        assert sum(passes) == n_rows


# Files that are not what they were


def damaged(data, how):
    if how == "empty":
        return b""
    if how == "truncated":
        return data[: len(data) // 2]
    if how == "one byte short":
        return data[:-1]
    if how == "one bit of a number":
        return data[:-1] + bytes([data[-1] ^ 1])
    if how == "text":
        return b"these are no features"
    return storage.pack(tensors={"features": np.zeros((30, 6))}, header={"kind": "features"})  # "foreign"


@pytest.mark.parametrize("how", ["empty", "truncated", "one byte short", "one bit of a number", "text", "foreign"])
def test_a_damaged_file_is_computed_again_and_mended(tmp_path, how):
    first, _ = extract_counted(tmp_path)
    (path,) = tmp_path.iterdir()
    path.write_bytes(damaged(path.read_bytes(), how))
    again, n_rows = extract_counted(tmp_path)
    assert n_rows == 30
    np.testing.assert_array_equal(first.features, again.features)
    assert extract_counted(tmp_path)[1] <= PROBED_ROWS


def test_a_file_of_another_key_is_not_taken(tmp_path):
    cache = FeatureCache(tmp_path)
    one, other = {"network": "a"}, {"network": "b"}
    cache.keep(one, {"features": np.ones((1, 1))})
    cache.path(one).rename(cache.path(other))
    assert cache.find(other) is None


def test_a_folder_in_place_of_a_file_is_computed_again_and_said(tmp_path):
    extract_counted(tmp_path)
    (path,) = tmp_path.iterdir()
    path.unlink()
    path.mkdir()
    passes = count_passes(model := PixelNet())
    extract = Extractor(model, cache=FeatureCache(tmp_path))
    assert len(extract(PICTURES, "made")) == sum(passes) == 30
    assert len(extract.notes) == 1


# Disks


def full_disk(path, **_):
    (path.parent / ".half").touch()
    (path.parent / ".half").unlink()
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("noise", [0.0, 0.01])
def test_a_full_disk_does_not_lose_the_run_and_is_told(tmp_path, monkeypatch, noise):
    expected = tables(PixelNet(), "images", None, odin_noise=noise)
    monkeypatch.setattr(storage, "write", full_disk)
    found = tables(PixelNet(), "images", tmp_path, odin_noise=noise)
    assert found.value("gem", "auroc") == expected.value("gem", "auroc")
    assert found.draws.keys() == expected.draws.keys()
    notes = [note for note in found.notes if "No space left on device" in note]
    sets = ["your network (train)", "your network (test)", "far"]
    stepped = sets[1:] if noise else []
    assert [note.partition(" were")[0] for note in notes] == [f"The features of {name}" for name in (*sets, *stepped)]
    assert "No space left on device" in str(found)
    assert files(tmp_path) == []


def test_a_disk_that_fills_while_a_file_is_written_leaves_nothing_half_written(tmp_path, monkeypatch):
    def write_half(self, data):
        with self.open("wb") as file:
            file.write(data[: len(data) // 2])
        raise OSError(errno.ENOSPC, "No space left on device")

    cache = FeatureCache(tmp_path)
    monkeypatch.setattr(type(tmp_path), "write_bytes", write_half)
    extract = Extractor(PixelNet(), cache=cache)
    assert len(extract(PICTURES, "made")) == 30
    assert "No space left on device" in extract.notes[0]
    assert files(tmp_path) == []


@pytest.mark.parametrize("place", ["file", "file/below", "name\0"])
def test_a_place_that_cannot_be_a_folder_is_refused_before_the_work(tmp_path, place):
    (tmp_path / "file").write_text("a file")
    passes = count_passes(model := PixelNet())
    with pytest.raises(InputError, match=r"cannot keep features .*; name a folder that can be written, or none"):
        tables(model, "images", tmp_path / place)
    assert passes == []


def test_a_folder_that_cannot_be_written_is_refused_before_the_work(tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr("gem_ood.experiments.extracted.TemporaryFile", refuse)
    passes = count_passes(model := PixelNet())
    with pytest.raises(InputError, match=r"cannot keep features \(Permission denied\); name a folder that can be"):
        tables(model, "images", tmp_path)
    assert passes == []


def test_the_folder_is_made_with_those_above_it_and_holds_only_features(tmp_path):
    extract_counted(tmp_path / "a" / "b")
    assert [name[:9] for name in files(tmp_path / "a" / "b")] == ["features-"]


# What cannot be kept


def test_an_iterator_is_read_once_and_not_kept(tmp_path):
    extract = Extractor(PixelNet(), cache=FeatureCache(tmp_path))
    found = extract(iter(sources("lists")[0]), "made")
    assert len(found) == 60
    assert files(tmp_path) == []
    assert extract.notes == ["The features of made were not kept: it can be read only once"]


@pytest.mark.parametrize(
    "options", [{"layer": lambda output: output}, {"layer": "norm", "pool": lambda maps: maps.amax((2, 3))}]
)
def test_functions_are_not_kept_for_another_may_look_the_same(tmp_path, options):
    extract = Extractor(PixelNet(), cache=FeatureCache(tmp_path), **options)
    for name in ("made", "other"):
        extract(PICTURES, name)
    assert files(tmp_path) == []
    assert len(extract.notes) == 1
    assert "layer or pool is a function" in extract.notes[0]


def test_code_that_no_digest_sees_is_noticed_by_the_first_rows(tmp_path):
    class Helped(PixelNet):
        factor = 1.0

        def helped(self, x):
            return self.factor * x

        def forward(self, x):
            return super().forward(self.helped(x))

    first, _ = extract_counted(tmp_path, model=Helped())
    Helped.factor = 2.0
    found, n_rows = extract_counted(tmp_path, model=Helped())
    assert n_rows == 30 + PROBED_ROWS
    assert not np.allclose(first.features, found.features)
    again, n_rows = extract_counted(tmp_path, model=Helped())
    assert n_rows == PROBED_ROWS
    np.testing.assert_array_equal(found.features, again.features)


def test_another_format_of_the_cache_misses(tmp_path, monkeypatch):
    extract_counted(tmp_path)
    monkeypatch.setattr("gem_ood.experiments.extraction.CACHE_FORMAT", 99)
    assert extract_counted(tmp_path)[1] == 30
