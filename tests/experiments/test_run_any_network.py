"""run: the tables of any network and any sets, against the same steps by hand, and on the real network and features."""

import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gem_ood import Head
from gem_ood.comparison import METRICS, fit_methods
from gem_ood.detectors.cataloguing import entries
from gem_ood.errors import InputError
from gem_ood.experiments import PAPER, PAPER_METHODS, Extracted, Protocol, run, run_features
from gem_ood.metrics import evaluate

#: As in conftest.py: where the real data is.
DATA = Path(os.environ.get("GEM_OOD_DATA", Path(__file__).parents[3] / "shared" / "data"))


def head_of(n_classes=3, n_features=4):
    rng = np.random.default_rng(9)
    return Head(rng.normal(size=(n_classes, n_features)), rng.normal(size=n_classes))


def made(n, *, shift=0.0, seed=0, labelled=True, logits=None):
    rng = np.random.default_rng(seed)
    labels = np.arange(n) % 3
    features = 3.0 * np.eye(3, 4)[labels] + rng.normal(size=(n, 4)) + shift
    return Extracted(features, None if logits is None else logits.logits(features), labels if labelled else None)


TRAIN, TEST = made(300, seed=1), made(200, seed=2)
OOD = {"near": made(150, shift=1.0, seed=3, labelled=False), "far": made(30, shift=5.0, seed=4, labelled=False)}
HEAD = head_of()


# Features that are there already


def test_every_number_is_that_of_the_steps_by_hand():
    protocol = Protocol(n_draws=3, seed=7, tpr=0.9)
    result = run_features(TRAIN, TEST, OOD, head=HEAD, protocol=protocol)
    assert result.methods == PAPER_METHODS
    fitted = fit_methods(TRAIN.features, TRAIN.labels, methods=PAPER_METHODS, head=HEAD).detectors
    for method in PAPER_METHODS:
        inside = fitted[method].score_samples(TEST.features)
        for name, rows in OOD.items():
            outside = fitted[method].score_samples(rows.features)
            drawn = protocol.rows(name, n_id=200, n_ood=len(rows))
            assert len(drawn) == (3 if name == "near" else 1)
            for metric in METRICS:
                expected = [getattr(evaluate(inside, outside[chosen], tpr=0.9), metric) for chosen in drawn]
                np.testing.assert_array_equal(result.draws[method][name].values[metric], expected)
    assert (result.n_id, result.n_ood) == (200, {"near": 150, "far": 30})


def test_the_error_is_that_of_the_head():
    logits = TEST.features @ HEAD.weight.T + HEAD.bias
    expected = np.mean([row.argmax() != label for row, label in zip(logits, TEST.labels, strict=True)])
    assert run_features(TRAIN, TEST, OOD, head=HEAD, methods=["gem"]).id_error == expected
    assert run_features(TRAIN, replace(TEST, logits=logits), OOD, methods=["gem"]).id_error == expected
    assert run_features(TRAIN, TEST, OOD, methods=["gem"]).id_error is None
    assert run_features(TRAIN, replace(TEST, labels=None), OOD, head=HEAD, methods=["gem"]).id_error is None


def test_logits_serve_where_there_is_no_head():
    train, test = (replace(rows, logits=HEAD.logits(rows.features)) for rows in (TRAIN, TEST))
    ood = {name: replace(rows, logits=HEAD.logits(rows.features)) for name, rows in OOD.items()}
    methods = ("msp", "odin", "energy", "gen", "gem")
    by_logits, by_head = (
        run_features(train, test, ood, methods=methods),
        run_features(TRAIN, TEST, OOD, head=HEAD, methods=methods),
    )
    for method in methods:
        for metric in METRICS:
            assert by_logits.value(method, metric) == pytest.approx(by_head.value(method, metric), abs=1e-12)


def test_other_sets_change_nothing():
    both, one = (run_features(TRAIN, TEST, sets, head=HEAD) for sets in (OOD, {"near": OOD["near"]}))
    for method in PAPER_METHODS:
        for metric in METRICS:
            np.testing.assert_array_equal(
                both.draws[method]["near"].values[metric], one.draws[method]["near"].values[metric]
            )


def test_ready_scores_are_taken_as_they_are():
    rng = np.random.default_rng(0)
    ready = {"odin": {"": rng.normal(size=200), "near": rng.normal(size=150), "far": rng.normal(size=30)}}
    result = run_features(TRAIN, TEST, OOD, head=HEAD, ready=ready, protocol=Protocol.whole())
    for name in OOD:
        assert result.value("odin", "auroc", name) == evaluate(ready["odin"][""], ready["odin"][name]).auroc
    assert result.methods == PAPER_METHODS


def test_ready_scores_that_do_not_fit_are_refused():
    scores = {"": np.zeros(200), "near": np.zeros(150), "far": np.zeros(31)}
    with pytest.raises(InputError, match="odin must have 30 scores of 'far' but has 31 scores"):
        run_features(TRAIN, TEST, OOD, head=HEAD, ready={"odin": scores})
    del scores["far"]
    with pytest.raises(InputError, match="odin must have 30 scores of 'far' but has none"):
        run_features(TRAIN, TEST, OOD, head=HEAD, ready={"odin": scores})


@pytest.mark.filterwarnings("ignore:the tied covariance has rank")
def test_the_whole_catalogue_runs_and_says_what_it_leaves_out():
    told = []
    result = run_features(TRAIN, TEST, OOD, head=HEAD, methods="all", on_method=lambda *news: told.append(news))
    assert set(result.methods) | set(result.left_out) == set(entries())
    assert not set(result.methods) & set(result.left_out)
    assert result.left_out["mos"] == "needs groups; pass the group of each logit"
    assert len(result.methods) >= 28
    assert told == [(name, place, len(entries())) for place, name in enumerate(entries(), start=1)]
    for method in result.methods:
        assert 0.0 <= result.value(method, "auroc") <= 1.0
    assert result.as_dict()["left_out"] == dict(result.left_out)


def test_without_a_head_all_leaves_out_what_reads_it():
    result = run_features(TRAIN, TEST, OOD, methods="all")
    assert "gem" in result.methods
    assert result.left_out["react"] == "needs head; pass the classifier's last layer"
    assert result.left_out["msp"].startswith("needs logits")


@pytest.mark.parametrize("method", ["mos", "react", "msp"])
def test_a_named_method_that_cannot_be_fitted_is_refused(method):
    with pytest.raises(InputError, match=r"needs (groups|head|logits)"):
        run_features(TRAIN, TEST, OOD, methods=["gem", method])


def test_where_no_method_can_be_fitted_the_reason_is_said():
    broken = replace(TRAIN, features=np.full((300, 4), np.nan))
    with pytest.raises(InputError, match=r"no method could be fitted; .*row 0, column 0 is NaN"):
        run_features(broken, TEST, OOD, methods="all")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"methods": ["gem", "nearest"]}, "there is no method 'nearest'; choose among msp, odin"),
        ({"methods": ["gem", "gem"]}, "the method 'gem' is named twice"),
        ({"methods": []}, "no method is named"),
        ({"ood": {}}, "there is no out-of-distribution set; pass at least one"),
        ({"ood": [OOD["far"]]}, "ood is a list; pass the rows of each set by its name"),
        ({"ood": {"mean": OOD["far"]}}, "an out-of-distribution set is named 'mean', as the mean over all sets is"),
        ({"ood": {"": OOD["far"]}}, "an out-of-distribution set is named ''"),
        ({"name": "far"}, "the in-distribution set and another are both called 'far'; rename one of them"),
        ({"protocol": "whole"}, "protocol is a str; pass a Protocol, or None"),
        ({"paper": "cifar10"}, "paper is a str; pass a PaperTable, or None"),
        ({"ood": {"far": np.zeros((3, 4))}}, r"far is a ndarray; pass Extracted\(features, logits, labels\)"),
        ({"id_test": np.zeros((3, 4))}, "id_test is a ndarray; pass Extracted"),
        ({"ood": {"wide": Extracted(np.zeros((3, 5)))}}, "wide: gem: .*5.*4"),
        ({"ood": {"hole": Extracted(np.full((3, 4), np.nan))}}, "hole: gem: .*row 0, column 0 is NaN"),
    ],
)
def test_bad_input_is_refused(options, message):
    given = {"id_train": TRAIN, "id_test": TEST, "ood": OOD, "methods": ["gem"], **options}
    with pytest.raises(InputError, match=message):
        run_features(**given)


def test_one_method_may_be_named_alone_and_methods_come_in_any_iterable():
    assert run_features(TRAIN, TEST, OOD, methods="gem").methods == ("gem",)
    assert run_features(TRAIN, TEST, OOD, methods=iter(["gem", "knn"])).methods == ("gem", "knn")


def test_the_smallest_sets_have_a_table():
    result = run_features(
        TRAIN, replace(TEST, features=TEST.features[:1], labels=None), {"far": OOD["far"]}, methods="gem"
    )
    assert result.n_drawn("far") == 1
    assert "1 in-distribution test rows" in str(result)


WITHOUT_TORCH = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torch":
            raise ModuleNotFoundError(f"No module named {name!r}")
sys.meta_path.insert(0, Absent())
import numpy as np
from gem_ood.experiments import PAPER, Extracted, Protocol, run, run_features
rng = np.random.default_rng(0)
train, test = (Extracted(rng.normal(size=(90, 3)), labels=np.arange(90) % 3) for _ in range(2))
far = {"far": Extracted(9.0 + rng.normal(size=(40, 3)))}
result = run_features(train, test, far, methods=["gem"], paper=PAPER["cifar10"])
print(result.value("gem", "auroc"), len(result.to_latex()) > 0, "torch" in sys.modules)
try:
    run(None, None, None, far)
except ImportError as error:
    print(error)
"""


def test_stored_features_need_no_network_library():
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert first == "1.0 True False"
    assert second.endswith('run pip install "gem-ood[torch]"')


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
    passes.clear()
    again = run(model, **sets, odin_noise=0.02, **options)
    assert passes == []
    assert again.to_json() == first.to_json()
    run(model, **sets, odin_noise=np.float32(0.03), **options)
    assert len(passes) > 0


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


def test_the_real_network_gives_the_stored_features(resnet56, cifar10, cifar10_images):
    from gem_ood.experiments import ImageSet
    from gem_ood.experiments.extraction import Extractor

    def pictures(name, n):
        arrays = cifar10_images[name]
        return ImageSet(name, arrays["images"][:n], arrays["labels"][:n].astype(int)), arrays["rows"][:n]

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
        arrays = cifar10_images[name]
        return ImageSet(name, arrays["images"][:n], arrays["labels"][:n].astype(int))

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


def readme_numbers():
    """Return FPR95 and AUROC by score and set, as the real data's README has measured them."""
    path = DATA / "README.md"
    if not path.is_file():
        pytest.skip(f"the real data's README is not at {path}; set GEM_OOD_DATA to its folder to run this test")
    lines = path.read_text(encoding="utf-8").partition("## What was measured on it")[2].splitlines()
    header, _, *rows = [
        [cell.strip() for cell in line.strip("| ").split("|")] for line in lines if line.startswith("|")
    ]
    return {
        (score.partition(",")[0].lower(), name): tuple(map(float, cell.split("/")))
        for score, *cells in rows
        for name, cell in zip(header[1:], cells, strict=True)
    }


def test_whole_sets_of_the_real_features_give_the_measured_numbers(cifar10):
    expected = readme_numbers()
    assert len(expected) == 12
    train, test = (Extracted(cifar10[part]["features"], labels=cifar10[part]["labels"]) for part in ("train", "test"))
    ood = {name: Extracted(cifar10[f"ood_{name}"]["features"]) for name in ("svhn", "textures", "places")}
    head = Head(cifar10["head"]["weight"], cifar10["head"]["bias"])
    methods = ("msp", "energy", "mahalanobis", "gem")
    result = run_features(train, test, ood, head=head, methods=methods, protocol=Protocol.whole())
    for (method, name), (fpr, auroc) in expected.items():
        assert 100 * result.value(method, "fpr", name) == pytest.approx(fpr, abs=0.1), (method, name)
        assert 100 * result.value(method, "auroc", name) == pytest.approx(auroc, abs=0.1), (method, name)
    assert re.search(r"6\.6\d", f"{100 * result.id_error:.2f}")  # 93.39 % of the test rows are right
