"""run_features: the tables of features that are there already, without PyTorch, and on the real ones."""

import os
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
from gem_ood.experiments import PAPER_METHODS, Extracted, Protocol, run_features
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
    with pytest.raises(InputError, match=rf"^{method}: needs (groups|head|logits)"):
        run_features(TRAIN, TEST, OOD, methods=["gem", method])


def test_where_no_method_can_be_fitted_the_reason_is_said():
    broken = replace(TRAIN, features=np.full((300, 4), np.nan))
    with pytest.raises(InputError, match=r"no method could be fitted; .*row 0, column 0 is NaN"):
        run_features(broken, TEST, OOD, methods="all")


@pytest.mark.parametrize("methods", [["gem"], ["msp"], "all"])
def test_rows_to_fit_to_need_labels(methods):
    with pytest.raises(InputError, match="id_train has no labels, but class means need them; pass one per row"):
        run_features(replace(TRAIN, labels=None), TEST, OOD, head=HEAD, methods=methods)


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
    logits = test.features @ cifar10["head"]["weight"].T + cifar10["head"]["bias"]
    assert result.id_error == pytest.approx(np.mean(logits.argmax(axis=1) != test.labels), abs=1e-3)
