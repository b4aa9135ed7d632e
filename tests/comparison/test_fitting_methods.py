"""fit_methods: entries of the catalogue fitted to one set of rows, and why others are left out."""

from typing import Any

import numpy as np
import pytest

from gem_ood import GEM, Energy, Head
from gem_ood.comparison import fit_methods, fitting
from gem_ood.errors import InputError

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


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"methods": ["gme"]}, "there is no method 'gme'; choose among msp, odin"),
        ({"methods": ["gem", "gem"]}, "the method 'gem' is named twice"),
        ({"methods": []}, "no method is named; choose among msp"),
        ({"methods": ["energy"]}, "energy: needs head; pass the classifier's last layer"),
        ({"methods": "mos", "head": HEAD}, "mos: needs groups; pass the group of each logit"),
        ({"head": Head(np.eye(3))}, "rows has 5 features but the head takes 3"),
        ({"rows": np.full((9, 5), np.nan), "labels": None}, "no method could be fitted; the first, msp: needs head"),
        ({"rows": np.full((9, 5), np.nan), "methods": ["gem"], "labels": None}, "gem: features row 0, column 0 is NaN"),
        ({"rows": iter([])}, "rows is an iterator that can be read only once"),
        ({"rows": [(np.eye(5), None)], "methods": ["gem"]}, "labels came beside batches"),
    ],
)
def test_bad_input_is_refused_with_the_remedy(options: dict[str, Any], message: str, blobs: Any) -> None:
    features, labels, _, _ = blobs
    with pytest.raises(InputError, match=message):
        fit_methods(**{"rows": features, "labels": labels, **options})
