"""What detectors do that are told nothing: the papers' defaults, ties kept in any batch, one bank for all threads."""

import inspect
import threading

import numpy as np
import pytest
from sklearn.base import clone

from gem_ood import (
    ASH,
    GEM,
    KNN,
    SCALE,
    ClassGaussians,
    Combine,
    Energy,
    Head,
    KLMatching,
    Mahalanobis,
    OpenMax,
    RelativeMahalanobis,
    Residual,
)
from gem_ood.detectors import available, catalogue
from gem_ood.detectors.registry import detector_class
from gem_ood.detectors.sampling import Sample
from gem_ood.detectors.shaping import PAPER_SHARES

GAUSSIAN = {"covariance": "empirical", "normalize": False}  # the maximum-likelihood estimate, as all these papers take

#: The default of every option but `head` and those that all detectors share, with the paper that it is from.
DEFAULTS = {
    "gem": GAUSSIAN | {"priors": "uniform", "relative": False},  # Morteza and Li, AAAI 2022
    "mahalanobis": GAUSSIAN,  # Lee et al., NeurIPS 2018
    "relative-mahalanobis": GAUSSIAN,  # Ren et al., 2021
    "class-gaussians": GAUSSIAN | {"priors": "empirical", "variant": "mixture"},  # Mukhoti et al., CVPR 2023
    "msp": {"temperature": 1.0},  # Hendrycks and Gimpel, ICLR 2017
    "max-logit": {},  # Hendrycks et al., ICML 2022
    "energy": {"temperature": 1.0},  # Liu et al., NeurIPS 2020
    "joint-energy": {},  # Wang et al., NeurIPS 2021
    "entropy": {"temperature": 1.0},
    "gen": {"gamma": 0.1, "top": 100},  # Liu, Lochman and Zach, CVPR 2023
    "mos": {"groups": None},  # Huang and Li, CVPR 2021
    "kl-matching": {},  # Hendrycks et al., ICML 2022
    "openmax": {"tail_size": 20, "alpha": 10, "distance": "eucos"},  # Bendale and Boult, CVPR 2016
    "react": {"share": 0.9},  # Sun, Guo and Li, NeurIPS 2021
    "ash": {"variant": "s", "share": None},  # Djurisic et al., ICLR 2023; the shares are in the next test
    "scale": {"share": 0.85},  # Xu et al., ICLR 2024
    "dice": {"share": 0.9},  # Sun and Li, ECCV 2022
    "grad-norm": {"temperature": 1.0},  # Huang, Geng and Li, NeurIPS 2021
    "she": {},  # Zhang et al., ICLR 2023
    "nci": {"alpha": 0.0001},  # Liu and Qin, CVPR 2025
    "fdbd": {},  # Liu and Qin, ICML 2024
    "knn": {"k": 50, "normalize": True, "bank": None, "index": "exact", "probes": None},  # Sun et al., ICML 2022
    "nn-guide": {"k": 10, "bank": 0.01},  # Park, Jung and Teoh, ICCV 2023
    "vim": {"dimension": None},  # Wang et al., CVPR 2022; None is resolved by width, in the test below
    "residual": {"dimension": None},  # the same
    "combine": {"detectors": (), "method": "fisher", "reference": 0.5},
}
SHARED = {"calibration": None, "tpr": 0.95, "random_state": 0}


@pytest.mark.parametrize("name", available())
def test_the_defaults_are_those_of_the_papers(name):
    parameters = inspect.signature(detector_class(name)).parameters
    found = {option: parameter.default for option, parameter in parameters.items()}
    if "head" in found:
        assert found.pop("head") is None
    assert found == DEFAULTS[name] | SHARED
    assert {option: type(value) for option, value in found.items()} == {
        option: type(value) for option, value in (DEFAULTS[name] | SHARED).items()
    }


def test_ash_removes_what_its_paper_removes_on_imagenet():
    assert PAPER_SHARES == {"s": 0.9, "b": 0.65, "p": 0.6}


@pytest.mark.parametrize(("width", "dimension"), [(2048, 1000), (1500, 1000), (1499, 512), (768, 512), (767, 383)])
def test_the_principal_subspace_has_the_papers_dimension(width, dimension):
    assert Residual()._principal_dimension(width) == dimension


def test_entries_without_options_score_as_with_the_papers(blobs):
    features, labels, held_out, _ = blobs
    logits = features @ np.random.default_rng(0).normal(size=(5, 12))
    some = held_out @ np.random.default_rng(0).normal(size=(5, 12))
    places = logits.argmax(axis=1)
    plain = OpenMax().fit_batches([(logits, places)], classes=np.arange(12)).score_samples(some)
    told = OpenMax(tail_size=20, alpha=10, distance="eucos").fit_batches([(logits, places)], classes=np.arange(12))
    np.testing.assert_array_equal(plain, told.score_samples(some))
    uneven = np.where(np.arange(600) < 400, 0, 1 + labels)  # so that empirical and uniform priors differ
    plain = ClassGaussians().fit(features, uneven)
    np.testing.assert_array_equal(plain.gaussians_.priors, np.bincount(uneven) / 600.0)


WIDTH, N_CLASSES = 257, 10  # many features, so that sums round otherwise in batches of other sizes
GENERATOR = np.random.default_rng(3)
MEANS = np.abs(2.0 * GENERATOR.normal(size=(N_CLASSES, WIDTH)))
LABELS = np.arange(600) % N_CLASSES
WEIGHT = (MEANS - MEANS.mean(axis=0)) / 40.0
HEAD = Head(WEIGHT, -(MEANS * WEIGHT).sum(axis=1) / 2.0)
LARGE_TERMS = Head(1e3 * GENERATOR.normal(size=(N_CLASSES, WIDTH)), 1e3 * GENERATOR.normal(size=N_CLASSES))


def rows_of(n_rows, spread):
    noise = GENERATOR.normal(size=(n_rows, WIDTH))
    return np.abs(MEANS[np.arange(n_rows) % N_CLASSES] + spread * noise)


FITTED, CALIBRATED = rows_of(600, 1.0), rows_of(300, 1.0)
NEAR_FITTED, NEAR_CALIBRATED = rows_of(600, 1e-6), rows_of(300, 1e-6)  # so near that differences are rounding

UNTIED = ("class-gaussians",)  # of 60 rows a class, in 257 dimensions, there is no covariance but a shrunk one
TIES = {
    name: detector
    for name, detector in catalogue(head=HEAD, groups=np.arange(N_CLASSES) // 5).items()
    if name not in UNTIED
} | {
    "class-gaussians, shrunk": ClassGaussians(covariance="oas"),
    "class-gaussians, pooled, nearest": ClassGaussians(covariance="pooled", variant="nearest"),
    "knn, clusters": KNN(k=3, index="clusters"),
    "knn, not scaled": KNN(k=3, normalize=False),
    "mahalanobis, normalised": Mahalanobis(normalize=True),
    "relative-mahalanobis, shrunk": RelativeMahalanobis(covariance="oas"),
    "residual without a head": Residual(),
    "energy of logits": Energy(),
    "combine": Combine([GEM(), Energy(head=HEAD)]),
    **{
        f"{name}, large terms": detector
        for name, detector in catalogue(["ash-s", "ash-p", "scale", "energy", "dice"], head=LARGE_TERMS).items()
    },
}


def assert_every_row_ties_with_itself(detector, calibrated):
    """Scores of the very rows of the calibration, in whatever batches, are at or above the threshold they gave."""
    detector.calibrate(calibrated, tpr=0.999, method="quantile")
    assert detector.threshold_.order == 1
    one_by_one = np.concatenate([detector.score_samples(row[np.newaxis]) for row in calibrated])
    backwards = detector.score_samples(calibrated[::-1].copy())
    sevens = np.concatenate([detector.score_samples(calibrated[at : at + 7]) for at in range(0, len(calibrated), 7)])
    counted = np.arange(len(calibrated))
    if isinstance(detector, Combine):  # the first half, as they are dealt, is the reference
        counted = np.random.default_rng(detector.random_state).permutation(len(calibrated))[len(calibrated) // 2 :]
    for scores in (one_by_one, backwards[::-1], sevens):
        assert (scores[counted] >= detector.offset_).all()
        assert (np.sort(scores[counted]) >= detector.calibration_scores_).all()  # nor for a threshold at any other row


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", TIES)
def test_a_calibration_row_is_never_flagged_whatever_the_batch(name, dtype):
    detector = clone(TIES[name]).fit(FITTED.astype(dtype), LABELS)
    assert_every_row_ties_with_itself(detector, CALIBRATED.astype(dtype)[:60])


MERE_ROUNDING = {
    "kl-matching": KLMatching(head=HEAD),
    "residual": Residual(dimension=9),
    "residual about the head's origin": Residual(head=HEAD, dimension=9),
}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", MERE_ROUNDING)
def test_a_row_whose_score_is_mere_rounding_is_never_flagged(name, dtype):
    fitted = clone(MERE_ROUNDING[name]).fit(NEAR_FITTED.astype(dtype), LABELS)
    assert_every_row_ties_with_itself(fitted, NEAR_CALIBRATED.astype(dtype))


@pytest.mark.parametrize("kind", [ASH, SCALE])
def test_a_shaped_row_whose_terms_cancel_is_never_flagged(kind):
    calibrated, weight = CALIBRATED[:60], GENERATOR.normal(size=(N_CLASSES, WIDTH))
    for score in kind(head=Head(weight)).score_samples(calibrated[:10]):
        bias = np.full(N_CLASSES, -score)  # which brings that row to zero, where it has rounding and no size
        assert_every_row_ties_with_itself(kind(head=Head(weight, bias)).fit(FITTED, LABELS), calibrated)


def test_a_thread_that_scores_while_lists_are_made_finds_no_half_made_bank(blobs, monkeypatch):
    features, labels, held_out, _ = blobs
    detector = KNN(k=3).fit(features, labels)
    expected = detector.score_samples(held_out)
    detector.set_params(index="clusters")  # the next score makes the lists
    is_ordering, may_go_on, ordered = threading.Event(), threading.Event(), Sample.ordered

    def slow(sample, order):
        if not is_ordering.is_set():
            is_ordering.set()
            assert may_go_on.wait(60.0)
        return ordered(sample, order)

    monkeypatch.setattr(Sample, "ordered", slow)
    found = []
    thread = threading.Thread(target=lambda: found.append(detector.score_samples(held_out)))
    thread.start()
    assert is_ordering.wait(60.0)
    try:
        np.testing.assert_allclose(detector.score_samples(held_out), expected, rtol=1e-12)
    finally:
        may_go_on.set()
        thread.join()
    np.testing.assert_allclose(found[0], expected, rtol=1e-12)
    np.testing.assert_allclose(detector.score_samples(held_out), expected, rtol=1e-12)
    assert detector._ready.sample.rows is detector._ready.bank.bank.rows  # one value holds all that belongs together
