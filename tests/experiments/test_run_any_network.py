"""run: the tables of any network and any sets, against the same steps by hand, and on the real network."""

from dataclasses import replace

import numpy as np
import pytest

from gem_ood import Head
from gem_ood.comparison import METRICS
from gem_ood.detectors.cataloguing import entries
from gem_ood.errors import InputError
from gem_ood.experiments import PAPER, PAPER_METHODS, Extracted, Protocol, run, run_features
from gem_ood.metrics import evaluate

# Small networks


@pytest.fixture
def small():
    """Return a small network with its sets of pictures, and the same as loaders."""
    torch = pytest.importorskip("torch")
    from small_networks import PixelNet, inputs_of, picture_set

    sets = {
        "id_train": picture_set(90, seed=1),
        "id_test": picture_set(60, seed=2),
        "ood": {"large": picture_set(50, seed=3, side=8), "near": picture_set(9, seed=4)},
    }

    def as_loader(images, size=16):
        labels = torch.from_numpy(images.labels)
        return list(zip(inputs_of(images).split(size), labels.split(size), strict=True))

    loaders = {"id_train": as_loader(sets["id_train"]), "id_test": as_loader(sets["id_test"])}
    loaders["ood"] = {name: as_loader(images) for name, images in sets["ood"].items()}
    return PixelNet(), sets, loaders


def features_of(model, images):
    """Return what the network gives for pictures, without any of the code that is tested."""
    import torch
    from small_networks import inputs_of

    model.eval()
    with torch.no_grad():
        features = model.features(inputs_of(images)).numpy()
    model.train()
    return Extracted(features, labels=images.labels)


def same_numbers(found, expected, methods=PAPER_METHODS, atol=1e-9):
    for method in methods:
        for name in expected.n_ood:
            for metric in METRICS:
                np.testing.assert_allclose(
                    found.draws[method][name].values[metric],
                    expected.draws[method][name].values[metric],
                    rtol=0,
                    atol=atol,
                    err_msg=f"{method} {name} {metric}",
                )


def test_a_network_gives_the_tables_of_its_features(small):
    model, sets, loaders = small
    head = Head(model.fc.weight.detach().numpy(), model.fc.bias.detach().numpy())
    train, test = (features_of(model, sets[part]) for part in ("id_train", "id_test"))
    ood = {name: features_of(model, images) for name, images in sets["ood"].items()}
    expected = run_features(train, test, ood, head=head)
    for given in (sets, loaders):
        found = run(model, **given, progress=False)
        same_numbers(found, expected)
        assert found.id_error == expected.id_error
        assert found.n_ood == {"large": 50, "near": 9}


def test_names_paper_and_protocol_are_handed_on(small):
    model, sets, _ = small
    sets = {**sets, "ood": {"svhn": sets["ood"]["large"]}}
    protocol = Protocol(n_draws=2, seed=5)
    result = run(
        model, **sets, name="cifar10", paper=PAPER["cifar10"], protocol=protocol, methods=["gem"], progress=False
    )
    assert (result.name, result.protocol) == ("cifar10", protocol)
    assert result.printed("gem", "fpr", "svhn") == 0.1342
    assert result.n_drawn("svhn") == 12


def test_odin_with_a_step_is_that_of_the_guard(small):
    from small_networks import inputs_of

    from gem_ood.torch import ODIN

    model, sets, loaders = small
    whole = Protocol.whole()
    by_images, by_loaders = (
        run(model, **given, methods=["odin"], odin_noise=0.02, protocol=whole, progress=False)
        for given in (sets, loaders)
    )
    for std, found in ((model.pixel_std, by_images), (None, by_loaders)):
        guard = ODIN(model, noise=0.02, temperature=1000.0, channel_std=std)
        inside = guard.score_samples([inputs_of(sets["id_test"])], progress=False)
        for name, images in sets["ood"].items():
            expected = evaluate(inside, guard.score_samples([inputs_of(images)], progress=False))
            for metric in METRICS:
                assert found.value("odin", metric, name) == pytest.approx(getattr(expected, metric), abs=1e-9)
    plain = run(model, **sets, methods=["odin"], protocol=whole, progress=False)
    assert plain.value("odin", "auroc") != by_images.value("odin", "auroc")
    assert by_images.notes == ("ODIN with temperature 1000 and a step of 0.02",)


def test_odin_without_a_step_is_that_of_the_catalogue(small):
    from gem_ood.torch import ODIN

    model, sets, loaders = small
    found = run(model, **loaders, methods=["odin"], protocol=Protocol.whole(), progress=False)
    guard = ODIN(model, noise=0.0)
    inside = guard.score_samples(loaders["id_test"], progress=False)
    for name in sets["ood"]:
        expected = evaluate(inside, guard.score_samples(loaders["ood"][name], progress=False)).auroc
        assert found.value("odin", "auroc", name) == pytest.approx(expected, abs=1e-9)


def test_scores_of_the_step_are_computed_once(small, tmp_path):
    from small_networks import count_passes

    model, sets, _ = small
    passes = count_passes(model)
    options = {"methods": ["odin"], "cache": tmp_path, "progress": False}
    first = run(model, **sets, odin_noise=0.02, **options)
    n_first = sum(passes)
    passes.clear()
    again = run(model, **sets, odin_noise=0.02, **options)
    n_again = sum(passes)
    assert n_again < n_first / 2  # the first rows only
    assert again.to_json() == first.to_json()
    passes.clear()
    run(model, **sets, odin_noise=np.float32(0.03), **options)
    assert sum(passes) > n_again


def test_a_loader_that_can_be_read_once_serves_without_a_step(small, tmp_path):
    model, _, loaders = small

    def once(value):
        return {key: once(part) for key, part in value.items()} if isinstance(value, dict) else iter(value)

    expected = run(model, **loaders, progress=False)
    same_numbers(run(model, **once(loaders), progress=False), expected)
    kept = run(model, **once(loaders), progress=False, cache=tmp_path)
    same_numbers(kept, expected)
    assert list(tmp_path.iterdir()) == []
    assert sum("it can be read only once" in note for note in kept.notes) == 4
    once_again = {**loaders, "ood": {**loaders["ood"], "near": iter(loaders["ood"]["near"])}}
    with pytest.raises(InputError, match="near can be read only once, but ODIN's step needs a second pass"):
        run(model, **once_again, progress=False, odin_noise=0.01)
    # Nothing of it was read by the refused run.
    assert len(list(once_again["ood"]["near"])) == len(loaders["ood"]["near"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"methods": ["nearest"]}, "there is no method 'nearest'"),
        ({"ood": {}}, "there is no out-of-distribution set"),
        ({"name": "near"}, "the in-distribution set and another are both called 'near'"),
        ({"ood": {"mean": []}}, "an out-of-distribution set is named 'mean'"),
        ({"protocol": 0.2}, "protocol is a float; pass a Protocol, or None"),
        ({"odin_noise": -0.1}, "odin_noise must be a number from 0 to below 1 but is -0.1"),
        ({"odin_noise": 1}, "odin_noise must be a number"),
        ({"odin_noise": "0.1"}, "odin_noise must be a number"),
        ({"odin_noise": float("nan")}, "odin_noise must be a number"),
        ({"ood": {"far": 3}}, "far: loader is a int; pass a DataLoader"),
        ({"layer": "last"}, "layer is 'last', which is no layer of PixelNet"),
        ({"batch_size": 0}, "batch_size must be a whole number, at least 1"),
    ],
)
def test_bad_input_is_refused_before_the_network_runs(small, options, message):
    from small_networks import count_passes

    model, sets, _ = small
    passes = count_passes(model)
    with pytest.raises(InputError, match=message):
        run(model, **{**sets, **options}, progress=False)
    assert passes == []


def test_training_rows_without_labels_are_refused(small):
    from small_networks import count_passes, picture_set

    model, sets, loaders = small
    passes = count_passes(model)
    with pytest.raises(InputError, match="id_train has no labels, but class means need them"):
        run(model, **{**sets, "id_train": picture_set(90, labelled=False)}, progress=False)
    assert passes == []
    with pytest.raises(InputError, match="id_train has no labels, but class means need them"):
        run(model, **{**loaders, "id_train": [x for x, _ in loaders["id_train"]]}, progress=False)


def test_labels_of_other_sets_are_not_looked_at(small):
    model, _, loaders = small
    odd = {"near": [(x, y + 0.5) for x, y in loaders["ood"]["near"]]}
    found = run(model, **{**loaders, "ood": odd}, progress=False, methods=["gem"])
    assert found.n_ood == {"near": 9}


def test_class_names_serve_where_no_method_reads_the_order_of_the_logits(small):
    model, _, loaders = small
    names = np.array(["cat", "dog", "eel"])
    train = [(x, names[y].tolist()) for x, y in loaders["id_train"]]
    expected = run(model, **loaders, progress=False, methods=["gem"])
    same_numbers(run(model, **{**loaders, "id_train": train}, progress=False, methods=["gem"]), expected, ["gem"])


@pytest.mark.filterwarnings("ignore:the tied covariance has rank")
def test_the_whole_catalogue_runs_on_a_network(small):
    model, sets, _ = small
    result = run(model, **sets, methods="all", progress=False)
    assert set(result.methods) | set(result.left_out) == set(entries())
    assert "mos" in result.left_out
    assert "react" in result.methods


def test_a_step_of_odin_without_odin_costs_no_second_pass(small):
    from small_networks import count_passes

    model, sets, loaders = small
    passes = count_passes(model)
    result = run(model, **sets, methods=["gem"], odin_noise=0.02, batch_size=1000, progress=False)
    assert sorted(passes) == [9, 50, 60, 90]
    assert result.methods == ("gem",)
    assert "ODIN" not in str(result)
    # Nor is anything refused that can be read only once.
    once = {key: iter(loaders[key]) for key in ("id_train", "id_test")}
    once["ood"] = {name: iter(batches) for name, batches in loaders["ood"].items()}
    same_numbers(run(model, **once, methods=["gem"], odin_noise=0.02, progress=False), result, ["gem"])


def test_progress_is_told_of_every_set_and_method(small):
    rows, methods = [], []
    model, sets, _ = small
    run(
        model,
        **sets,
        methods=["gem", "msp"],
        batch_size=40,
        on_rows=lambda *news: rows.append(news),
        on_method=lambda *news: methods.append(news),
    )
    assert rows == [
        ("your network (train)", 40, 90),
        ("your network (train)", 80, 90),
        ("your network (train)", 90, 90),
        ("your network (test)", 40, 60),
        ("your network (test)", 60, 60),
        ("large", 40, 50),
        ("large", 50, 50),
        ("near", 9, 9),
    ]
    assert methods == [("gem", 1, 2), ("msp", 2, 2)]


# The real network, pictures and features


def spread(rows, n):
    """Return n rows from all over a file, since its rows are in the order of their classes."""
    return rows[:: len(rows) // n][:n]


def test_the_real_network_gives_the_stored_features(resnet56, cifar10, cifar10_images):
    from gem_ood.experiments import ImageSet
    from gem_ood.experiments.extraction import Extractor

    def pictures(name, n):
        images, labels, rows = (spread(cifar10_images[name][key], n) for key in ("images", "labels", "rows"))
        return ImageSet(name, images, labels.astype(int)), rows

    sets = {
        "train": pictures("cifar10_train_5k", 500),
        "test": pictures("cifar10_test", 200),
        "ood_svhn": pictures("ood_svhn", 150),
        "ood_textures": pictures("ood_textures", 150),
    }
    told = {}
    extract = Extractor(resnet56)
    for name, (images, rows) in sets.items():
        found = extract(images, name)
        told[name] = replace(found, labels=None) if name.startswith("ood") else found
        np.testing.assert_allclose(found.features, cifar10[name]["features"][rows], rtol=0, atol=1e-4)
    head = extract.head(told["test"])
    np.testing.assert_array_equal(head.weight, cifar10["head"]["weight"].astype(np.float64))
    stored = {
        name: Extracted(cifar10[name]["features"][rows], labels=images.labels) for name, (images, rows) in sets.items()
    }
    options = {"head": head, "protocol": Protocol.whole()}
    by_pixels, by_rows = (
        run_features(
            rows["train"], rows["test"], {name: rows[name] for name in ("ood_svhn", "ood_textures")}, **options
        )
        for rows in (told, stored)
    )
    for method in PAPER_METHODS:  # rounding of float32 may let two rows change places
        for metric in METRICS:
            assert by_pixels.value(method, metric) == pytest.approx(by_rows.value(method, metric), abs=0.02)
    assert by_pixels.id_error == by_rows.id_error


def test_run_takes_the_real_network_and_pictures(resnet56, cifar10_images, tmp_path):
    from gem_ood.experiments import ImageSet

    def pictures(name, n):
        images, labels = (spread(cifar10_images[name][key], n) for key in ("images", "labels"))
        return ImageSet(name, images, labels.astype(int))

    result = run(
        resnet56,
        pictures("cifar10_train_5k", 200),
        pictures("cifar10_test", 100),
        {"svhn": pictures("ood_svhn", 60)},
        methods=["msp", "energy"],
        name="cifar10",
        paper=PAPER["cifar10"],
        cache=tmp_path,
        progress=False,
    )
    assert result.n_drawn("svhn") == 20
    assert result.value("energy", "auroc") > 0.8  # 0.93 on all rows
    assert result.id_error < 0.2  # 0.07 on all rows
    assert len(list(tmp_path.iterdir())) == 3
