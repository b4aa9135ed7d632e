"""Features that a pool of workers extracts are those of one machine, and stay beside their rows."""

import gc
import os
import sys
import time
from functools import partial

import numpy as np
import pyarrow as pa
import pytest

pytest.importorskip("ray", reason="Ray is not installed")
pytest.importorskip("torch", reason="PyTorch is not installed")

import ray
import ray.data
import torch
from ray import cloudpickle
from ray.data.expressions import col
from torch import nn

from gem_ood import GEM
from gem_ood.detectors import Head
from gem_ood.errors import InputError
from gem_ood.files import open_features
from gem_ood.ray import fit, write
from gem_ood.ray.extraction import ExtractFeatures, _Plan, extract
from gem_ood.ray.failures import clear_errors
from gem_ood.ray.pools import _reserved, worker_pool
from gem_ood.torch import OODModel

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import a test


def network(*, outputs=4):
    """A small network of pictures, in training mode, with a layer that would be random if it stayed so."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 6, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.5), nn.Linear(6, outputs)
    )


def pictures(n, *, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (n, 9, 7, 3), dtype=np.uint8)


def as_floats(images):
    return torch.tensor(images).permute(0, 3, 1, 2) / 255.0


def local_features(model, inputs, **options):
    found, _ = OODModel(model, GEM(), **options).features([inputs], progress=False)
    return found


def as_dataset(n_blocks=5, **columns):
    """Rows in so many blocks, held by Ray, as Arrow has them."""
    n = len(next(iter(columns.values())))
    tables = []
    for place in np.array_split(np.arange(n), n_blocks):
        table = {
            name: pa.FixedShapeTensorArray.from_numpy_ndarray(np.ascontiguousarray(values[place]))
            if isinstance(values, np.ndarray)
            else pa.array([values[row] for row in place])
            for name, values in columns.items()
        }
        tables.append(pa.table(table))
    return ray.data.from_arrow(tables)


# One worker, called as Ray calls it


@pytest.fixture
def one_worker():
    """Make a worker of this process, which keeps its number of threads."""
    n_threads = torch.get_num_threads()

    def make(model, **options):
        chosen = {"layer": "auto", "pool": "mean", "inputs": "image", "outputs": "features", "prepare": None}
        plan = _Plan(lambda: model, **(chosen | {"keep": None, "device": "cpu", "n_threads": 1} | options))
        return ExtractFeatures(plan.packed())

    yield make
    torch.set_num_threads(n_threads)


def block(images, **columns):
    column = images if isinstance(images, pa.Array) else pa.FixedShapeTensorArray.from_numpy_ndarray(images)
    return pa.table({"image": column, **columns})


def rows_of(table, name="features"):
    return table.column(name).combine_chunks().to_numpy_ndarray()


def of_different_sizes(*sizes):
    from ray.data.extensions import ArrowTensorArray

    arrays = np.empty(len(sizes), dtype=object)
    for place, size in enumerate(sizes):
        arrays[place] = np.full((*size, 3), 7, dtype=np.uint8)
    return ArrowTensorArray.from_numpy(arrays)


@pytest.mark.parametrize("options", [{}, {"layer": "0"}, {"layer": "5", "pool": lambda rows: rows[:, :2]}])
def test_a_worker_reads_what_a_guard_reads(one_worker, options):
    model, images = network(), pictures(5)
    found = rows_of(one_worker(model, **options)(block(images)))
    np.testing.assert_allclose(found, local_features(model, as_floats(images), **options), rtol=1e-6)
    assert found.dtype == np.float32


def test_logits_need_no_layer_that_can_be_read(one_worker):
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())  # no linear layer
    images = pictures(3)
    found = one_worker(model, outputs="logits")(block(images))
    assert found.column_names == ["logits"]
    np.testing.assert_allclose(rows_of(found, "logits"), model(as_floats(images)).detach().numpy(), rtol=1e-6)


def test_features_need_no_logits(one_worker):
    tokens = np.arange(24, dtype=np.float32).reshape(2, 4, 3)
    found = one_worker(nn.Identity(), layer=lambda output: output, pool="mean-token")(block(tokens))
    np.testing.assert_allclose(rows_of(found), tokens.mean(axis=1))


def numbered(*shape, dtype=np.uint8):
    return (np.arange(np.prod(shape)) % 251).astype(dtype).reshape(shape)


@pytest.mark.parametrize(
    ("inputs", "expected"),
    [
        (numbered(2, 3, 4), numbered(2, 1, 3, 4) / 255),
        (numbered(2, 3, 5, 4), numbered(2, 3, 5, 4).transpose(0, 3, 1, 2) / 255),
        (numbered(2, 3, 4, 5), numbered(2, 3, 4, 5)),  # not the channels of a picture
        (numbered(2, 3, 4, 3, dtype=np.int16), numbered(2, 3, 4, 3)),
        (numbered(2, 3, dtype=np.float64) / 3, numbered(2, 3) / 3),
        (numbered(2, 3), numbered(2, 3)),
    ],
)
def test_pictures_of_bytes_become_fractions_with_the_channels_first(one_worker, inputs, expected):
    def shape_and_values(rows):
        return torch.cat([torch.tensor([rows.shape] * 2), rows.flatten(1)], dim=1)

    found = rows_of(one_worker(nn.Identity(), layer=shape_and_values)(block(inputs)))
    assert tuple(found[0, : expected.ndim]) == expected.shape
    np.testing.assert_allclose(found[:, expected.ndim :], expected.reshape(2, -1), rtol=1e-6)


def test_inputs_may_be_lists_in_lists(one_worker):
    values = np.random.default_rng(0).normal(size=(3, 2, 4)).astype(np.float32)
    lists = pa.array(values.tolist(), pa.list_(pa.list_(pa.float32())))
    found = one_worker(nn.Identity(), layer=lambda rows: rows.flatten(1))(block(lists))
    np.testing.assert_array_equal(rows_of(found), values.reshape(3, 8))


def test_prepare_makes_what_the_model_takes(one_worker):
    class Two(nn.Module):
        def forward(self, ids, attention_mask):
            return (ids * attention_mask).float()

    def prepare(ids):
        return {"ids": ids[:, ::-1], "attention_mask": torch.from_numpy(ids != 2)}

    ids = np.array([[1, 2, 3], [4, 5, 6]])
    found = one_worker(Two(), layer=lambda output: output, prepare=prepare)(block(ids))
    np.testing.assert_array_equal(rows_of(found), [[3, 0, 1], [6, 5, 4]])


def test_pictures_of_different_sizes_need_prepare(one_worker):
    table = block(of_different_sizes((4, 5), (4, 5), (6, 5)), path=["a.png", "b.png", "ü <3>.png"])
    with pytest.raises(InputError, match=r"^ü <3>.png: .*shapes, such as \(4, 5, 3\) and \(6, 5, 3\).*pass prepare="):
        one_worker(network())(table)

    def cut(images):
        return np.stack([image[:4, :4].transpose(2, 0, 1) / np.float32(255) for image in images])

    found = rows_of(one_worker(network(), prepare=cut)(table))
    np.testing.assert_array_equal(found, found[:1].repeat(3, axis=0))


def test_another_size_in_a_later_batch_is_refused_too(one_worker):
    worker = one_worker(network())
    worker(block(pictures(2)))
    with pytest.raises(InputError, match=r"shapes, such as \(9, 7, 3\) and \(8, 7, 3\)"):
        worker(block(pictures(2)[:, :8].copy()))


class _Failing(nn.Module):
    def forward(self, inputs):
        raise ValueError("first line.\nsecond line")


@pytest.mark.parametrize(
    ("model", "table", "message"),
    [
        (network, {"image": ["x.png"]}, "column 'image' holds a str where pictures or tensors of numbers"),
        (network, {"image": [b"\x00", b"\x01"]}, "column 'image' holds a bytes"),
        (network, {"image": pa.array([[1.0], None])}, "column 'image' has no input in row 1 of a batch"),
        (network, {"photo": [[1.0]]}, r"no column 'image'; it has 'photo': name another with inputs="),
        (network, {"image": [[1.0, 2.0]]}, r"the model failed on a batch of shape \(1, 2\) and type torch.float64 \("),
        (
            _Failing,
            {"image": [[1.0]], "path": ["a"]},
            r"^a and after: .* \(ValueError: first line\); see what it takes",
        ),
        (lambda: nn.Flatten(0), {"image": [[1.0], [2.0]]}, "where one row per input was expected"),
        (lambda: lambda: None, {"image": [[1.0]]}, "model returned a function; let it return a torch.nn.Module"),
    ],
)
def test_what_cannot_be_extracted_says_why_in_one_line(one_worker, model, table, message):
    worker = one_worker(model(), layer="auto" if model is network else (lambda output: output))
    with pytest.raises(InputError, match=message) as caught:
        worker(pa.table(table))
    assert "\n" not in str(caught.value)


def test_a_worker_that_lacks_what_the_model_needs_says_so():
    worker = ExtractFeatures(b"cno_such_module\nnetwork\n.")  # a pickle by reference
    with pytest.raises(InputError, match=r"not get the model ready \(ModuleNotFoundError: No module named 'no_such"):
        worker(block(pictures(1)))


def test_other_numbers_of_rows_are_refused(one_worker):
    inputs = np.ones((4, 2), dtype=np.float32)
    with pytest.raises(InputError, match=r"the model gave 2 rows of features for 4 inputs.*pass pool="):
        one_worker(nn.Identity(), layer=lambda rows: rows[:2])(block(inputs))


def test_a_feature_that_is_no_number_is_refused_with_its_file(one_worker):
    inputs = np.ones((3, 2), dtype=np.float32)
    inputs[2, 1] = np.nan
    paths = ["one.png", "two.png", "three.png"]
    with pytest.raises(InputError, match=r"^three.png: the model's features, .* row 2, column 1 is NaN"):
        one_worker(nn.Identity(), layer=lambda rows: rows)(block(inputs, path=paths))
    with pytest.raises(InputError, match=r"^the model's logits, .* row 2, column 1 is NaN"):
        one_worker(nn.Identity(), outputs="logits")(block(inputs))


def test_a_number_too_large_for_float32_is_refused(one_worker):
    inputs = np.array([[1.0, 1e300]])
    with pytest.raises(InputError, match="row 0, column 1 is infinity"), np.errstate(over="ignore"):
        one_worker(nn.Identity(), layer=lambda rows: rows)(block(inputs))


def test_columns_stay_as_they_are_unless_keep_leaves_them_out(one_worker):
    numbers, names = pa.array([1, None, 3], pa.int8()), pa.array(["é", "", None]).dictionary_encode()
    table = block(pictures(3), number=numbers, name=names)
    all_of_them = one_worker(network())(table)
    assert all_of_them.column_names == ["number", "name", "features"]
    assert all_of_them.select(["number", "name"]) == table.select(["number", "name"])
    assert one_worker(network(), keep=("image", "name"))(table).column_names == ["image", "name", "features"]
    with pytest.raises(
        InputError, match="no column 'label'; it has 'image', 'number', 'name': name another with keep="
    ):
        one_worker(network(), keep=("label",))(table)


def test_a_column_called_as_the_result_is_refused_unless_it_is_the_input(one_worker):
    table = block(pictures(2), logits=[1.0, 2.0])
    with pytest.raises(InputError, match="has a column 'logits', as the model's logits will be called"):
        one_worker(network(), outputs="both")(table)
    assert one_worker(network())(table).column_names == ["logits", "features"]
    renamed = table.rename_columns(["features", "logits"])
    found = one_worker(network(), inputs="features", keep=())(renamed)
    np.testing.assert_allclose(rows_of(found), local_features(network(), as_floats(pictures(2))), rtol=1e-6)


# The pool


@pytest.mark.usefixtures("ray_session")
def test_a_pool_leaves_a_processor_to_each_machine():
    strategy, reserved = worker_pool(None, 1, 0)
    assert (strategy.max_size, reserved) == (2, 0.5)
    strategy, reserved = worker_pool((1, 3), 2, 0)
    assert (strategy.min_size, strategy.max_size) == (1, 3)
    assert 3 * reserved <= 1
    assert worker_pool(1, 1, 0)[1] == 1.0
    assert _reserved([1.0], 1, 1.0) == 0.0
    for cpus, workers, each in (([16.0, 2.0, 7.0], 25, 1.0), ([3.0] * 5, 5, 3.0), ([64.0], 9, 7.0)):
        assert 0 < workers * _reserved(cpus, workers, each) <= sum(cpus) - len(cpus)


@pytest.mark.usefixtures("ray_session")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"workers": 0}, "workers is 0; pass a whole number"),
        ({"workers": (2, 1)}, r"workers is \(2, 1\)"),
        ({"num_cpus": 0}, "num_cpus must be a number above 0 but is 0"),
        ({"num_cpus": 64}, "no machine of the cluster has num_cpus=64 processors"),
        ({"num_gpus": -1}, "num_gpus must be a number, 0 or more, but is -1"),
        ({"num_gpus": 1}, "no machine of the cluster has num_gpus=1 graphics cards"),
        ({"batch_size": 0}, "batch_size must be a whole number"),
        ({"device": "abacus"}, "device is 'abacus'"),
        ({"outputs": "scores"}, "outputs is 'scores'; pass 'features', 'logits', 'both'"),
        ({"inputs": 3}, "inputs is 3; pass the name of a column"),
        ({"inputs": "photo"}, "no column 'photo'; it has 'image', 'label'"),
        ({"keep": ["path"]}, "no column 'path'; it has 'image', 'label': name another with keep="),
        ({"keep": ["label", "label"]}, "pass names of columns, each once"),
        ({"layer": "missing"}, "layer is 'missing', which is no layer of Sequential"),
        ({"pool": "median"}, "pool is 'median'"),
        ({"model": "resnet18"}, "model is a str; pass a torch.nn.Module, or a function"),
        ({"model": network, "layer": nn.ReLU()}, "the model is made in the workers; pass the name of its layer"),
    ],
)
def test_wrong_options_are_refused_before_anything_runs(options, message):
    dataset = as_dataset(1, image=pictures(2), label=["a", "b"])
    with pytest.raises(InputError, match=message):
        extract(dataset, **({"model": network()} | options))


@pytest.mark.usefixtures("ray_session")
def test_a_pool_extracts_what_one_machine_does(tmp_path):
    model, images = network(), pictures(230)
    rows = {"label": [f"class {row % 3}" for row in range(230)], "row": list(range(230))}
    dataset = as_dataset(image=images, **rows)
    extracted = extract(dataset, model, outputs="both", batch_size=32, workers=2)
    extracted.write_parquet(tmp_path / "features")
    table = ray.data.read_parquet(tmp_path / "features").to_pandas().sort_values("row")
    features = local_features(model, as_floats(images))
    np.testing.assert_array_equal(table["row"], rows["row"])
    np.testing.assert_array_equal(table["label"], rows["label"])
    np.testing.assert_allclose(np.stack(table["features"]), features, rtol=1e-6)
    head = Head(model[-1].weight, model[-1].bias)
    np.testing.assert_allclose(np.stack(table["logits"]), head.logits(features), rtol=1e-4, atol=1e-6)
    assert open_features(tmp_path / "features", features="features").n_features == 6


@pytest.mark.usefixtures("ray_session")
def test_a_fit_streams_from_images_to_statistics():
    images, rows = pictures(120), np.arange(120)
    dataset = as_dataset(image=images, label=(rows % 3).tolist(), row=rows.tolist())
    some = dataset.filter(expr=col("row") >= 24)  # a block without rows comes too
    spread = fit(extract(some, network, workers=1), GEM())
    features = local_features(network(), as_floats(images)).astype(np.float64)
    whole = GEM().fit(features[24:], rows[24:] % 3)
    np.testing.assert_allclose(spread.score_samples(features), whole.score_samples(features), rtol=1e-3)


@pytest.mark.usefixtures("ray_session")
def test_a_worker_that_dies_loses_no_row_and_does_none_twice(tmp_path):
    images, marker = pictures(150), tmp_path / "died"

    def dying_once(batch):
        if not marker.exists():
            marker.touch()
            os._exit(1)
        return batch.transpose(0, 3, 1, 2) / np.float32(255)

    dataset = as_dataset(image=images, row=list(range(150)))
    found = extract(dataset, network(), prepare=dying_once, batch_size=16, workers=1).to_pandas().sort_values("row")
    assert marker.exists()
    np.testing.assert_array_equal(found["row"], np.arange(150))
    np.testing.assert_allclose(np.stack(found["features"]), local_features(network(), as_floats(images)), rtol=1e-6)


@pytest.mark.usefixtures("ray_session")
def test_an_error_of_a_worker_is_one_clear_line():
    images = pictures(4).astype(np.float32).transpose(0, 3, 1, 2).copy()
    images[2] = np.nan
    dataset = as_dataset(1, image=images, path=["a.png", "b.png", "<ü>.png", "d.png"])
    match = r"^<ü>.png: the model's features, .* row 2, column 0 is NaN"
    with pytest.raises(InputError, match=match) as caught, clear_errors():
        extract(dataset, network(), workers=1).take_all()
    assert "\n" not in str(caught.value)
    assert f"gem_ood.errors.InputError: {caught.value}" in str(caught.value.__cause__)


@pytest.mark.usefixtures("ray_session")
@pytest.mark.parametrize("deed", ["fit", "write"])
def test_a_pool_that_failed_lets_its_processors_go(deed, tmp_path):
    images = pictures(20).astype(np.float32).transpose(0, 3, 1, 2).copy()
    images[17] = np.nan
    extracted = extract(as_dataset(4, image=images), network(), workers=1)
    gc.disable()  # nothing else may collect what the failure has left
    try:
        with pytest.raises(InputError, match="NaN"):
            fit(extracted, GEM(), labels=None) if deed == "fit" else write(extracted, tmp_path / "features")
        deadline = time.monotonic() + 60
        while (n_free := ray.available_resources().get("CPU")) != 2.0 and time.monotonic() < deadline:
            time.sleep(0.1)
        assert n_free == 2.0
    finally:
        gc.enable()


@pytest.mark.usefixtures("ray_session")
def test_real_images_give_the_features_that_were_stored(resnet56_weights, cifar10, cifar10_images):
    from gem_ood.experiments import load_network, normalize_images

    held = cifar10_images["cifar10_test"]
    dataset = as_dataset(2, image=held["images"][:200], row=held["rows"][:200].tolist())
    extracted = extract(dataset, partial(load_network, resnet56_weights), prepare=normalize_images, workers=1)
    found = extracted.to_pandas()
    np.testing.assert_allclose(
        np.stack(found["features"]), cifar10["test"]["features"][found["row"]], rtol=1e-3, atol=1e-4
    )
