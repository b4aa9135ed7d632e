"""Every method that pytorch-ood or oodeel has too: the same order of rows, or a difference explained and shown."""

import importlib.metadata
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import make_expected
import numpy as np
import pytest
from make_expected import LIBRARIES, read
from numpy.typing import NDArray
from peer_scores import ALPHA, BENCHMARKS, CONFIDENCE, DIMENSIONS, NEIGHBORS, TAIL_SIZE

from gem_ood.detectors import Head, make
from gem_ood.scores import grad_norm, log_sum_exp, softmax
from gem_ood.scores.openmax import ActivationModel, fit_weibull

ROWS, EXPECTED, VERSIONS = read()
SCRIPT = make_expected.__file__
N_FIT, N_FEATURES = ROWS.features.shape
HEAD = Head(ROWS.weight, ROWS.bias)
CONFIDENT = Head(CONFIDENCE * ROWS.weight, CONFIDENCE * ROWS.bias)
LOGITS = HEAD.logits(ROWS.queries)
#: The peers compute in float32: sixteen of its steps, relative to the largest score, are no difference.
FLOAT32_ROUNDING = 16.0 * float(np.finfo(np.float32).eps)
#: Where two distances ten times as large are subtracted, their rounding stays.
DIFFERENCE_ROUNDING = 20.0 * FLOAT32_ROUNDING
#: The peer's OpenMax moves float32 distances by 10,000, where a step of float32 is 0.001.
SHIFTED_ROUNDING = 5e-4
#: A difference is one if it turns or merges more than this share of all pairs; rounding alone turns a few in 100,000.
MATERIAL_SHARE = 1e-3
#: How far their numbers may be from ours where both should be equal, relative to the largest.
VALUE_ROUNDING = 5e-5


@dataclass(frozen=True)
class Same:
    """Our detector that must order rows as the peer does; with a factor, the peer's scores are that many of ours."""

    name: str
    options: dict[str, Any]
    factor: float | None = None
    rounding: float = FLOAT32_ROUNDING


@dataclass(frozen=True)
class Difference:
    """A peer's deviation from the paper or its published code: what it is, and its scores made of our pieces."""

    name: str
    options: dict[str, Any]
    why: str
    reproduced: Callable[[], NDArray[np.float64]]
    rounding: float = VALUE_ROUNDING


def conflicts(ours, theirs, *, rounding=FLOAT32_ROUNDING):
    """Count ordered pairs that one side tells apart by more than rounding and the other does not, or turns round."""
    ours, theirs = np.asarray(ours, dtype=np.float64), np.asarray(theirs, dtype=np.float64)
    if not (np.isfinite(ours).all() and np.isfinite(theirs).all()):
        return len(ours) ** 2
    rise, their_rise = np.subtract.outer(ours, ours), np.subtract.outer(theirs, theirs)
    clear = rise > rounding * np.abs(ours).max()
    their_clear = their_rise > rounding * np.abs(theirs).max()
    return int(np.count_nonzero((clear & (their_rise <= 0.0)) | (their_clear & (rise <= 0.0))))


def scores_of(entry):
    return make(entry.name, **entry.options).fit(ROWS.features, ROWS.labels).score_samples(ROWS.queries)


OPENMAX = {"head": HEAD, "alpha": ALPHA, "tail_size": TAIL_SIZE, "distance": "euclidean"}
SAME = {
    "pytorch-ood/msp": Same("msp", {"head": HEAD}, 1.0),
    "pytorch-ood/msp, temperature 1000": Same("msp", {"head": HEAD, "temperature": 1000.0}, 1.0),
    "pytorch-ood/max-logit": Same("max-logit", {"head": HEAD}, 1.0),
    "pytorch-ood/energy": Same("energy", {"head": HEAD}, 1.0),
    "pytorch-ood/entropy": Same("entropy", {"head": HEAD}, 1.0),
    "pytorch-ood/gen": Same("gen", {"head": HEAD}, 1.0 / 5.0),
    "pytorch-ood/gen, 3 classes": Same("gen", {"head": HEAD, "top": 3}, 1.0 / 3.0),
    "pytorch-ood/kl-matching": Same("kl-matching", {"head": HEAD}, 1.0),
    "pytorch-ood/openmax, correct rows": Same("openmax", OPENMAX, None, SHIFTED_ROUNDING),
    "pytorch-ood/react": Same("react", {"head": HEAD, "share": 0.9}, 1.0),
    "pytorch-ood/ash-p": Same("ash", {"head": HEAD, "variant": "p", "share": 0.65}, 1.0),
    "pytorch-ood/ash-b": Same("ash", {"head": HEAD, "variant": "b", "share": 0.65}, 1.0),
    "pytorch-ood/ash-s": Same("ash", {"head": HEAD, "variant": "s", "share": 0.65}, 1.0),
    "pytorch-ood/scale": Same("scale", {"head": HEAD, "share": 0.65}, 1.0),
    "pytorch-ood/dice": Same("dice", {"head": HEAD, "share": 0.7}, 1.0),
    "pytorch-ood/she": Same("she", {"head": HEAD}, 1.0),
    "pytorch-ood/nn-guide": Same("nn-guide", {"head": HEAD, "k": NEIGHBORS}, 1.0),
    "pytorch-ood/fdbd": Same("fdbd", {"head": HEAD}, 1.0),
    "pytorch-ood/nci": Same("nci", {"head": HEAD, "alpha": 0.0}, 1.0),
    "pytorch-ood/nci, alpha 0.01": Same("nci", {"head": HEAD, "alpha": 0.01}, 1.0),
    "pytorch-ood/knn": Same("knn", {"k": NEIGHBORS}, 1.0),
    "pytorch-ood/vim": Same("vim", {"head": HEAD, "dimension": DIMENSIONS}, 1.0),
    "pytorch-ood/mahalanobis": Same("mahalanobis", {}, 0.5 / N_FIT),
    "pytorch-ood/relative-mahalanobis": Same("relative-mahalanobis", {}, 1.0 / N_FIT, DIFFERENCE_ROUNDING),
    "pytorch-ood/class-gaussians": Same("class-gaussians", {}, 1.0),
    "pytorch-ood/grad-norm, weight only": Same("grad-norm", {"head": HEAD}, 1.0),
    "oodeel/msp": Same("msp", {"head": HEAD}, 1.0),
    "oodeel/max-logit": Same("max-logit", {"head": HEAD}, 1.0),
    "oodeel/energy": Same("energy", {"head": HEAD}, 1.0),
    "oodeel/entropy": Same("entropy", {"head": HEAD}, 1.0),
    "oodeel/gen": Same("gen", {"head": HEAD}, 1.0),
    "oodeel/gen, 3 classes": Same("gen", {"head": HEAD, "top": 3}, 1.0),
    "oodeel/react": Same("react", {"head": HEAD, "share": 0.8}, 1.0),
    "oodeel/scale": Same("scale", {"head": HEAD, "share": 0.85}, 1.0),
    "oodeel/knn": Same("knn", {"k": NEIGHBORS}),
    "oodeel/mahalanobis": Same("mahalanobis", {}, 0.5),
    "oodeel/relative-mahalanobis": Same("relative-mahalanobis", {}, 0.5, DIFFERENCE_ROUNDING),
}


def clipped_entropy():
    """Entropy of float32 probabilities that are never less than 1e-7."""
    p = softmax(CONFIDENCE * LOGITS).clip(1e-7, 1.0)
    return (p * np.log(p)).sum(axis=1)


def clipped_gen():
    """GEN of float32 probabilities between 1e-7 and 1 − 1e-7, averaged over the classes."""
    p = softmax(CONFIDENCE * LOGITS).astype(np.float32).clip(np.float32(1e-7), np.float32(1.0 - 1e-7))
    return -((p * (1 - p)) ** 0.1).mean(axis=1)


def entropy_with_zeros():
    """Entropy as Σ p·log p in float32, without the convention 0·log 0 = 0."""
    p = softmax(CONFIDENCE * LOGITS).astype(np.float32)
    with np.errstate(divide="ignore", invalid="ignore"):
        return (p * np.log(p)).sum(axis=1)


def grad_norm_with_bias():
    """The gradient of the bias is that of one more weight, whose feature is 1."""
    return grad_norm(np.column_stack([ROWS.queries, np.ones(len(ROWS.queries))]), LOGITS)


def openmax_of_the_peer(*, correct_only, one_at_a_time=False):
    """OpenMax of float32 distances moved by 10,000; one row at a time, only the predicted class has a distance."""
    logits = HEAD.logits(ROWS.features)
    used = (logits.argmax(axis=1) == ROWS.labels) | (not correct_only)
    members = [logits[used & (ROWS.labels == name)] for name in range(HEAD.n_classes)]
    means = np.stack([rows.mean(axis=0) for rows in members])
    tails = [np.sort(np.linalg.norm(rows - rows.mean(axis=0), axis=1))[-TAIL_SIZE:] for rows in members]
    rounded = [(tail.astype(np.float32) + np.float32(1e4) - np.float32(tail.min())) - 1e4 for tail in tails]
    shapes, log_scales = np.transpose([fit_weibull(tail.astype(np.float64)) for tail in rounded])
    smallest = np.array([tail.min() + moved.min() for tail, moved in zip(tails, rounded, strict=True)])
    model = ActivationModel(means, smallest, shapes, log_scales)
    ranks = np.argsort(np.argsort(-LOGITS, axis=1), axis=1)
    distances = np.linalg.norm(LOGITS[:, np.newaxis] - means, axis=2)
    if one_at_a_time:
        distances[ranks > 0] = 0.0
    shares = np.column_stack(
        [model.probabilities(distances[:, place], np.full(len(LOGITS), place)) for place in range(HEAD.n_classes)]
    )
    taken = LOGITS * shares * np.maximum(1.0 - ranks / ALPHA, 0.0)
    return -1.0 / (1.0 + np.exp(log_sum_exp(LOGITS - taken) - taken.sum(axis=1)))


def she_of_the_best_class():
    """The largest inner product with any class's pattern, instead of that with the predicted class's."""
    correct = HEAD.logits(ROWS.features).argmax(axis=1) == ROWS.labels
    patterns = [ROWS.features[correct & (ROWS.labels == name)].mean(axis=0) for name in range(HEAD.n_classes)]
    return (ROWS.queries @ np.stack(patterns).T).max(axis=1) / N_FEATURES


def vim_about_the_mean(dimensions):
    """ViM whose principal space passes through the mean of the features instead of through −W⁺b."""
    mean = ROWS.features.mean(axis=0)
    _, vectors = np.linalg.eigh((ROWS.features - mean).T @ (ROWS.features - mean))
    residuals = [
        np.linalg.norm((rows - mean) @ vectors[:, :-dimensions], axis=1) for rows in (ROWS.features, ROWS.queries)
    ]
    alpha = HEAD.logits(ROWS.features).max(axis=1).mean() / residuals[0].mean()
    return log_sum_exp(LOGITS) - alpha * residuals[1]


def dimensions_for(share):
    """How many principal directions about the mean hold more than this share of the variance."""
    variances = np.linalg.eigvalsh(np.cov(ROWS.features.T))[::-1]
    return int(np.argmax(np.cumsum(variances) > share * variances.sum())) + 1


DIFFERENCES = {
    "pytorch-ood/entropy, confident": Difference(
        "entropy",
        {"head": CONFIDENT},
        "probabilities below 1e-7 are raised to 1e-7, so that all rows of a confident classifier score alike",
        clipped_entropy,
    ),
    "pytorch-ood/gen, confident": Difference(
        "gen",
        {"head": CONFIDENT},
        "probabilities are clipped to [1e-7, 1 − 1e-7], which the published code does not do",
        clipped_gen,
        5e-3,  # near p = 1 float32 knows 1 − p to a few per cent only
    ),
    "pytorch-ood/grad-norm": Difference(
        "grad-norm",
        {"head": HEAD},
        "by default the gradient of every parameter is counted, where the paper takes the last layer's weights",
        grad_norm_with_bias,
    ),
    "pytorch-ood/openmax": Difference(
        "openmax",
        OPENMAX,
        "means and tails are of all rows of a class, where the paper takes the correctly classified ones",
        lambda: openmax_of_the_peer(correct_only=False),
    ),
    "pytorch-ood/openmax, correct rows, one at a time": Difference(
        "openmax",
        OPENMAX,
        "the distance to a class that no row of the batch is predicted as stays 0, so a score depends on its batch",
        lambda: openmax_of_the_peer(correct_only=True, one_at_a_time=True),
    ),
    "oodeel/entropy, confident": Difference(
        "entropy",
        {"head": CONFIDENT},
        "a probability that is 0 in float32 makes the score NaN",
        entropy_with_zeros,
    ),
    "oodeel/ash-s": Difference(
        "ash",
        {"head": HEAD, "variant": "s", "share": 0.9},
        "values above the interpolated 90 % quantile are kept: 3 of 24, where the published code keeps 24 − 22 = 2",
        lambda: scores_of(Same("ash", {"head": HEAD, "variant": "s", "share": 0.875})),
    ),
    "oodeel/she": Difference(
        "she",
        {"head": HEAD},
        "the largest inner product with any class's pattern, where the paper takes the predicted class's",
        she_of_the_best_class,
    ),
    "oodeel/vim": Difference(
        "vim",
        {"head": HEAD, "dimension": DIMENSIONS},
        "by default the principal space passes through the mean of the features, where the paper's origin is −W⁺b",
        lambda: vim_about_the_mean(DIMENSIONS),
    ),
    "oodeel/vim, pseudo origin": Difference(
        "vim",
        {"head": HEAD, "dimension": DIMENSIONS},
        "pca_origin='pseudo' asks for the paper's origin but waits for a layer numbered −1; layers count from 0",
        lambda: vim_about_the_mean(DIMENSIONS),
    ),
    "oodeel/vim, 90 % of the variance": Difference(
        "vim",
        {"head": HEAD, "dimension": dimensions_for(0.9)},
        "the index of the first direction that reaches the share is taken for the count: one direction too few",
        lambda: vim_about_the_mean(dimensions_for(0.9) - 1),
    ),
}


@pytest.mark.parametrize("method", SAME)
def test_our_detector_orders_the_rows_as_the_peer_does(method):
    entry = SAME[method]
    assert conflicts(scores_of(entry), EXPECTED[method], rounding=entry.rounding) == 0


@pytest.mark.parametrize("method", [method for method, entry in SAME.items() if entry.factor is not None])
def test_our_numbers_are_the_peers_up_to_a_known_factor(method):
    theirs = EXPECTED[method]
    expected = SAME[method].factor * scores_of(SAME[method])
    np.testing.assert_allclose(theirs, expected, rtol=0.0, atol=VALUE_ROUNDING * np.abs(theirs).max())


@pytest.mark.parametrize("method", DIFFERENCES)
def test_a_difference_is_real_and_putting_the_deviation_in_gives_the_peers_numbers(method):
    difference, theirs = DIFFERENCES[method], EXPECTED[method]
    turned = conflicts(scores_of(difference), theirs, rounding=0.0)
    assert turned > MATERIAL_SHARE * len(theirs) ** 2, f"no difference is left: {difference.why}"
    np.testing.assert_allclose(
        theirs,
        difference.reproduced(),
        rtol=0.0,
        atol=difference.rounding * np.nanmax(np.abs(theirs)),
        err_msg=difference.why,
    )


def test_the_peers_share_of_the_variance_is_held_by_one_direction_more_than_it_takes():
    theirs = EXPECTED["oodeel/vim, 90 % of the variance"]
    with_one_more = vim_about_the_mean(dimensions_for(0.9))
    assert np.abs(theirs - with_one_more).max() > 0.01 * np.abs(theirs).max()


def test_every_stored_method_is_compared_once():
    assert sorted([*SAME, *DIFFERENCES]) == sorted(EXPECTED)


def test_the_rows_are_those_of_a_good_classifier_with_mistakes():
    accuracy = np.mean(HEAD.logits(ROWS.features).argmax(axis=1) == ROWS.labels)
    assert 0.93 < accuracy < 0.98  # methods that learn from correct rows only must differ from those that do not
    assert ROWS.features.min() == 0.0


@pytest.mark.parametrize(
    ("theirs", "expected"),
    [
        ([0.0, 1.0, 2.0], 0),
        ([0.0, 1.0, 8.0], 0),
        ([0.0, 2.0, 1.0], 2),  # the pair counts from both sides: each tells it apart, the other the other way
        ([0.0, 1.0, 1.0], 1),
        ([1.0, 1.0, 1.0], 3),
        ([0.0, 1.0, np.nan], 9),
    ],
)
def test_the_rule_finds_swapped_and_merged_pairs(theirs, expected):
    assert conflicts([0.0, 1.0, 2.0], theirs) == expected


def test_the_rule_forgives_a_swap_within_float32_rounding():
    assert conflicts([0.0, 1.0, 1.0 + 1e-7], [0.0, 1.0, 1.0 - 1e-7]) == 0
    assert conflicts([0.0, 1.0, 1.0 + 1e-5], [0.0, 1.0, 1.0 - 1e-5]) > 0


def test_the_stored_values_are_those_of_the_installed_peers(tmp_path):
    for library in LIBRARIES:
        try:
            installed = importlib.metadata.version(library)
        except importlib.metadata.PackageNotFoundError:
            pytest.skip(f"{library} is not installed; benchmarks/README.md tells how")
        if installed != VERSIONS[library]:
            pytest.skip(f"{library} {installed} is installed; the stored values are those of {VERSIONS[library]}")
    if not BENCHMARKS.is_dir():
        pytest.skip(f"{BENCHMARKS} is absent; its stand-ins for torchvision are needed")
    fresh = tmp_path / "fresh.npz"
    # In a process of its own: what stands in for torchvision must not be met by other tests.
    subprocess.run([sys.executable, SCRIPT, "--out", fresh], check=True, timeout=300)
    rows, scores, _ = read(fresh)
    np.testing.assert_array_equal(rows.queries, ROWS.queries)
    np.testing.assert_array_equal(rows.features, ROWS.features)
    assert list(scores) == list(EXPECTED)
    for method, values in scores.items():
        rounding = DIFFERENCES[method].rounding if method in DIFFERENCES else VALUE_ROUNDING
        slack = rounding * np.nanmax(np.abs(values))
        np.testing.assert_allclose(values, EXPECTED[method], rtol=0.0, atol=slack, err_msg=method)
