"""fit_methods: entries of the catalogue fitted to one set of rows, and why others are left out."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from gem_ood import GEM, Energy, Head
from gem_ood.comparison import compare, fit_methods, fitting
from gem_ood.errors import InputError
from gem_ood.files import FeatureFile, open_features, reading

HEAD = Head(np.eye(3, 5), np.zeros(3))


def test_named_methods_are_fitted_as_by_hand(blobs: Any) -> None:
    features, labels, held_out, _ = blobs
    fitted = fit_methods(features, labels, methods=["gem-unit", "energy"], head=HEAD)
    assert (list(fitted.detectors), fitted.left_out) == (["gem-unit", "energy"], {})
    by_hand = {"gem-unit": GEM(normalize=True), "energy": Energy(head=HEAD)}
    for name, detector in by_hand.items():
        expected = detector.fit(features, labels).score_samples(held_out)
        np.testing.assert_array_equal(fitted.detectors[name].score_samples(held_out), expected)
    batches = [(features[:100], labels[:100]), (features[100:], labels[100:])]
    streamed = fit_methods(batches, methods=["gem-unit"]).detectors["gem-unit"]
    np.testing.assert_allclose(streamed.score_samples(held_out), by_hand["gem-unit"].score_samples(held_out), rtol=1e-9)


def test_of_all_methods_those_that_cannot_be_fitted_are_left_out_with_the_reason(
    blobs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    features, labels, _, _ = blobs
    monkeypatch.setattr(fitting, "entries", lambda: ("msp", "gem", "gem-relative", "mahalanobis"))
    fitted = fit_methods(features, labels)
    assert list(fitted.detectors) == ["gem", "gem-relative", "mahalanobis"]
    assert fitted.left_out == {"msp": "needs head; pass the classifier's last layer"}
    without_labels = fit_methods(features, head=HEAD)
    assert list(without_labels.detectors) == ["msp", "gem", "mahalanobis"]
    assert "pass labels" in without_labels.left_out["gem-relative"]


def test_the_whole_catalogue_is_fitted(blobs: Any) -> None:
    features, labels, held_out, _ = blobs
    fitted = fit_methods(features, labels, head=HEAD, groups=[0, 0, 0])
    assert (tuple(fitted.detectors), fitted.left_out) == (fitting.entries(), {})
    for name, detector in fitted.detectors.items():
        assert not np.isnan(detector.score_samples(held_out)).any(), name


@pytest.mark.parametrize("suffix", ["csv", "npz"])
def test_a_file_is_read_once_if_it_can_be_held_and_says_the_same_if_not(
    suffix: str, blobs: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    features, labels, held_out, _ = blobs
    path = tmp_path / f"train.{suffix}"
    if suffix == "csv":
        pd.DataFrame(features, columns=list("abcde")).assign(label=labels).to_csv(path, index=False)
    else:
        np.savez(path, features=features, labels=labels)
    read: list[int] = []
    batches = FeatureFile.batches

    def counted(file: FeatureFile) -> Iterator[Any]:
        read.append(1)
        return batches(file)

    monkeypatch.setattr(FeatureFile, "batches", counted)
    monkeypatch.setattr(reading, "BATCH_BYTES", 1)
    names, rows_seen, calls = ["gem", "relative-mahalanobis", "residual"], [], []
    file = open_features(path).watched(rows_seen.append)
    fitted = fit_methods(file, methods=names, on_method=lambda *call: calls.append(call)).detectors
    assert len(read) == 1
    assert calls == [(name, place, 3) for place, name in enumerate(names, start=1)]
    assert rows_seen.count(len(features)) >= 1 + len(names)  # once from the file, then for each method
    for limit in (0, features.nbytes - 1):
        read.clear()
        monkeypatch.setattr(fitting, "HELD_BYTES", limit)
        streamed = fit_methods(file, methods=names).detectors
        assert len(read) >= len(names)
        for name in names:
            rows = pd.DataFrame(held_out, columns=list("abcde")) if suffix == "csv" else held_out
            np.testing.assert_array_equal(fitted[name].score_samples(rows), streamed[name].score_samples(rows))
            assert hasattr(fitted[name], "feature_names_in_") == (suffix == "csv")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"methods": ["gme"]}, "there is no method 'gme'; choose among msp, odin"),
        ({"methods": ["gem", "gem"]}, "the method 'gem' is named twice"),
        ({"methods": []}, "no method is named; choose among msp"),
        ({"methods": ["energy"]}, "energy: needs head; pass the classifier's last layer"),
        ({"methods": "mos", "head": HEAD}, "mos: needs groups; pass the group of each logit"),
        ({"head": Head(np.eye(3))}, "rows has 5 features but the head takes 3"),
        ({"rows": np.full((9, 5), np.nan), "labels": None}, "no method could be fitted; knn: features row 0, column 0"),
        ({"rows": np.full((9, 5), np.nan), "methods": ["gem"], "labels": None}, "gem: features row 0, column 0 is NaN"),
        ({"rows": iter([])}, "rows is an iterator that can be read only once"),
        ({"rows": [(np.eye(5), None)], "methods": ["gem"]}, "^labels came beside batches"),
        ({"rows": [(np.eye(5), None)]}, "^labels came beside batches"),
        ({"head": (np.eye(3, 5), np.zeros(3))}, r"head is a tuple; pass Head\(weight, bias\)"),
        ({"head": HEAD, "logits": True}, "logits=True says that rows are logits, but a head reads features"),
        ({"head": HEAD, "classes": [0, 1]}, "classes has 2 names but there are 3 logits; pass one name per logit"),
        ({"logits": True, "classes": [0, 1, 2]}, "classes has 3 names but there are 5 logits"),
        ({"head": HEAD, "classes": [0, 1, 1]}, "classes names 1 twice"),
        ({"head": HEAD, "classes": [[0, 1, 2]]}, "classes names no class; pass all names in the order of the logits"),
        ({"head": HEAD, "classes": []}, "classes names no class"),
        ({"head": HEAD, "classes": [0, 1, 3]}, "label 2 is none of the classes; pass classes, all names in the order"),
        ({"head": HEAD, "classes": ["a", "b", "c"]}, "label 0 is none of the classes"),
        ({"methods": "react", "logits": True}, "react: needs features and logits together, but rows are logits"),
    ],
)
def test_bad_input_is_refused_with_the_remedy(options: dict[str, Any], message: str, blobs: Any) -> None:
    features, labels, _, _ = blobs
    with pytest.raises(InputError, match=message):
        fit_methods(**{"rows": features, "labels": labels, **options})


NAMES = np.array(["eel", "cat", "dog"])  # in the order of the logits, which is not the sorted one


@pytest.fixture
def classified() -> tuple[Any, Any, Head]:
    """Rows of three classes, their labels, and a head that tells them apart."""
    rng = np.random.default_rng(0)
    means, labels = 4.0 * rng.normal(size=(3, 5)), np.arange(300) % 3
    return means[labels] + rng.normal(size=(300, 5)), labels, Head(means, -0.5 * (means**2).sum(axis=1))


@pytest.mark.parametrize("form", ["array", "frame", "batches", "file"])
def test_class_names_in_the_order_of_the_logits_say_the_same_as_their_numbers(
    form: str, classified: Any, tmp_path: Path
) -> None:
    features, labels, head = classified
    np.savez(tmp_path / "train.npz", features=features, labels=NAMES[labels])
    frame = pd.DataFrame(features, columns=list("abcde"))
    rows, own_labels = {
        "array": (features, NAMES[labels]),
        "frame": (frame, NAMES[labels]),
        "batches": ([(features[:200], NAMES[labels[:200]]), (features[200:], NAMES[labels[200:]])], None),
        "file": (open_features(tmp_path / "train.npz"), None),
    }[form]
    methods = ["msp", "openmax", "she", "recommended", "gem"]
    named = fit_methods(rows, own_labels, methods=methods, head=head, classes=NAMES).detectors
    numbered = fit_methods(features, labels, methods=methods, head=head).detectors
    read = frame if form == "frame" else features
    for name in methods:
        expected = numbered[name].score_samples(features)
        np.testing.assert_allclose(named[name].score_samples(read), expected, rtol=1e-6, atol=1e-9, err_msg=name)
        assert hasattr(named[name], "feature_names_in_") == (form == "frame"), name
    compared = compare(named, id=read, labels=NAMES[labels], ood={"far": read + 9.0})
    assert all(one.id_error < 0.05 for one in compared.detectors.values())


def test_class_names_go_with_rows_that_have_no_labels(classified: Any) -> None:
    features, _, head = classified
    fitted = fit_methods(features, methods=["msp", "gem", "residual"], head=head, classes=NAMES).detectors
    assert fitted["msp"].verdicts(features[:3]).nearest_class.tolist() == NAMES.tolist()


def test_rows_of_logits_need_no_head(classified: Any) -> None:
    features, labels, head = classified
    logits = head.logits(features)
    fitted = fit_methods(logits, labels, logits=True, groups=[0, 0, 0])
    through_head = fit_methods(features, labels, methods=["msp", "energy", "openmax", "kl-matching"], head=head)
    for name, detector in through_head.detectors.items():
        np.testing.assert_allclose(fitted.detectors[name].score_samples(logits), detector.score_samples(features))
    np.testing.assert_array_equal(
        fitted.detectors["gem"].score_samples(logits), GEM().fit(logits, labels).score_samples(logits)
    )
    assert {"react", "vim", "she", "nn-guide"} <= set(fitted.left_out)
    assert set(fitted.left_out.values()) == {
        "needs features and logits together, but rows are logits; pass features and head"
    }
    assert {"recommended", "mos", "residual"} <= set(fitted.detectors)
