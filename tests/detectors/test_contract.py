"""The contract that every detector keeps: shape, sign, row order, batch size, type, save and load, scikit-learn."""

import warnings
from copy import copy

import numpy as np
import pandas as pd
import polars as pl
import pytest
from sklearn.base import clone
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import estimator_checks_generator

from gem_ood import (
    ASH,
    DICE,
    FDBD,
    GEM,
    GEN,
    KNN,
    MOS,
    MSP,
    NCI,
    SCALE,
    SHE,
    ClassGaussians,
    Combine,
    Energy,
    Entropy,
    GradNorm,
    Head,
    JointEnergy,
    KLMatching,
    Mahalanobis,
    MaxLogit,
    NNGuide,
    OpenMax,
    ReAct,
    RelativeMahalanobis,
    Residual,
    ViM,
    load,
    recommended,
)
from gem_ood.detectors import LogitDetector, available, make
from gem_ood.errors import InputError, NotCalibratedError, NotFittedError
from gem_ood.quantiles import RELATIVE_ERROR

HEAD = Head(np.random.default_rng(0).normal(size=(3, 5)), [0.1, -0.2, 0.3])
GENERATOR = np.random.default_rng(7)  # that of the blobs: their mixing first, then the class means
MEANS = 6.0 * GENERATOR.normal(size=(8, 5))[5:]
NEAREST_MEAN = Head(MEANS, -0.5 * (MEANS**2).sum(axis=1))
DETECTORS = {
    "gem": GEM(),
    "gem, empirical priors": GEM(priors="empirical"),
    "gem, given priors": GEM(priors=[0.2, 0.3, 0.5]),
    "gem, oas": GEM(covariance="oas"),
    "gem, ledoit-wolf": GEM(covariance="ledoit-wolf"),
    "gem, normalised": GEM(normalize=True),
    "gem, relative": GEM(relative=True),
    "gem, relative, ledoit-wolf": GEM(relative=True, covariance="ledoit-wolf", normalize=True),
    "mahalanobis": Mahalanobis(),
    "mahalanobis, shrunk": Mahalanobis(covariance=0.1, normalize=True),
    "msp": MSP(head=HEAD),
    "msp, tempered": MSP(head=HEAD, temperature=1000.0),
    "max-logit": MaxLogit(head=HEAD),
    "energy": Energy(head=HEAD, temperature=2.0),
    "energy of logits": Energy(),
    "joint-energy": JointEnergy(head=HEAD),
    "entropy": Entropy(head=HEAD),
    "entropy, tempered": Entropy(head=HEAD, temperature=2.0),
    "gen": GEN(head=HEAD),
    "gen of logits, top two": GEN(top=2),
    "mos": MOS(head=HEAD, groups=[0, 0, 0]),
    "mos of logits": MOS(groups=[4, 1, 4, 1, 4]),
    "kl-matching": KLMatching(head=HEAD),
    "kl-matching of logits": KLMatching(),
    "openmax": OpenMax(head=HEAD),
    "openmax, euclidean": OpenMax(head=HEAD, distance="euclidean", alpha=2),
    "openmax, cosine": OpenMax(head=HEAD, distance="cosine", tail_size=5),
    "openmax of logits": OpenMax(),
    "react": ReAct(head=HEAD),
    "react, lower": ReAct(head=HEAD, share=0.5),
    "ash-s": ASH(head=HEAD),
    "ash-s, half": ASH(head=HEAD, share=0.5),
    "ash-b": ASH(head=HEAD, variant="b"),
    "ash-p": ASH(head=HEAD, variant="p"),
    "scale": SCALE(head=HEAD),
    "dice": DICE(head=HEAD),
    "dice, half": DICE(head=HEAD, share=0.5),
    "grad-norm": GradNorm(head=HEAD, temperature=2.0),
    "she": SHE(head=NEAREST_MEAN),  # the random head never predicts class 1, of which SHE then has no pattern
    "nci": NCI(head=HEAD),
    "fdbd": FDBD(head=HEAD),
    "vim": ViM(head=HEAD),
    "vim, three dimensions": ViM(head=HEAD, dimension=3),
    "residual": Residual(),
    "residual about the head's origin": Residual(head=HEAD, dimension=2),
    "knn": KNN(k=10),
    "knn, clusters": KNN(k=3, index="clusters"),
    "knn, some rows": KNN(k=2, bank=100, normalize=False),
    "nn-guide": NNGuide(head=HEAD),
    "relative-mahalanobis": RelativeMahalanobis(),
    "relative-mahalanobis, ledoit-wolf": RelativeMahalanobis(covariance="ledoit-wolf", normalize=True),
    "class-gaussians": ClassGaussians(),
    "class-gaussians, nearest": ClassGaussians(variant="nearest", covariance="oas"),
    "class-gaussians, normalised": ClassGaussians(priors=[0.2, 0.3, 0.5], covariance="ledoit-wolf", normalize=True),
    "class-gaussians, pooled": ClassGaussians(covariance="pooled"),
    "combine": Combine([GEM(), Energy(head=HEAD)]),
    "combine, minimum": Combine([Mahalanobis(normalize=True), KNN(k=5)], method="minimum"),
    "combine of logits, cauchy": Combine([Energy(), MSP()], method="cauchy", reference=0.3),
    "recommended": recommended(head=HEAD),
}


@pytest.fixture(params=DETECTORS, name="detector")
def fresh_detector(request):
    return clone(DETECTORS[request.param])


@pytest.fixture
def fitted(detector, blobs):
    return detector.fit(blobs[0], blobs[1])


def test_one_score_per_row(fitted, blobs):
    scores = fitted.score_samples(blobs[2])
    assert scores.shape == (len(blobs[2]),)
    assert scores.dtype == np.float64
    assert np.isfinite(scores).all()


#: Whose bad rows are not those far from all training rows. Scores of logits and of shaped activations grow with the
#: length of a row, whatever its direction: they promise low scores to rows without evidence for any class.
FAINT = (MSP, MaxLogit, Energy, JointEnergy, Entropy, GEN, MOS, ASH, SCALE, GradNorm)
OTHER_BAD_ROWS = {
    "combine of logits, cauchy": "faint",  # of the same scores of logits
    "openmax, cosine": "faint",  # a far row may have the direction of a class, and its largest logit then wins
    "openmax": "opposite",  # the head takes the far rows for rows of one class, only surer ones
    "openmax, euclidean": "opposite",
}


@pytest.mark.parametrize("name", DETECTORS)
def test_bad_rows_score_lower_than_rows_of_the_distribution(name, blobs):
    features, labels, held_out, far = blobs
    detector = clone(DETECTORS[name]).fit(features, labels)
    kind = OTHER_BAD_ROWS.get(name, "faint" if isinstance(detector, FAINT) else "far")
    bad = {"far": far, "opposite": -far, "faint": 0.05 * held_out}[kind]
    assert detector.score_samples(held_out).mean() > detector.score_samples(bad).mean()


def test_the_order_of_rows_is_kept_and_no_row_sees_another(fitted, blobs):
    rows = blobs[2]
    shuffle = np.random.default_rng(0).permutation(len(rows))
    np.testing.assert_allclose(fitted.score_samples(rows[shuffle]), fitted.score_samples(rows)[shuffle], rtol=1e-9)


@pytest.mark.parametrize("size", [1, 7, 399])
def test_the_size_of_batches_changes_no_score(fitted, blobs, size):
    rows = blobs[2]
    parts = [fitted.score_samples(rows[start : start + size]) for start in range(0, len(rows), size)]
    np.testing.assert_allclose(np.concatenate(parts), fitted.score_samples(rows), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("convert", [np.asfortranarray, np.ndarray.tolist, pd.DataFrame, pl.DataFrame], ids=str)
def test_rows_are_read_from_whatever_holds_them(fitted, blobs, convert):
    other = clone(fitted).fit(convert(blobs[0]), blobs[1])
    np.testing.assert_allclose(other.score_samples(convert(blobs[2])), fitted.score_samples(blobs[2]), rtol=1e-9)


class Tensor:
    """What a torch CPU tensor that tracks gradients shows to NumPy."""

    def __init__(self, array, *, tracks=True):
        self._array, self._tracks = array, tracks
        self.shape = array.shape

    def detach(self):
        return Tensor(self._array, tracks=False)

    def __array__(self, dtype=None, copy=None):
        if self._tracks:
            raise RuntimeError("Can't call numpy() on Tensor that requires grad. Use tensor.detach().numpy() instead.")
        return np.asarray(self._array, dtype=dtype)


def test_tensors_are_read_without_their_library(detector, blobs):
    expected = clone(detector).fit(blobs[0], blobs[1]).score_samples(blobs[2])
    detector.fit(Tensor(blobs[0]), Tensor(blobs[1]))
    np.testing.assert_array_equal(detector.score_samples(Tensor(blobs[2])), expected)


@pytest.mark.parametrize(("dtype", "rtol"), [(np.float32, 1e-4), (np.float16, 0.2)])
def test_narrow_floats_give_nearly_the_same_scores(fitted, blobs, dtype, rtol):
    expected = fitted.score_samples(blobs[2].astype(dtype).astype(np.float64))
    np.testing.assert_allclose(fitted.score_samples(blobs[2].astype(dtype)), expected, rtol=rtol, atol=1e-5)


def test_the_verbs_agree_with_each_other(fitted, blobs):
    _, _, held_out, far = blobs
    fitted.calibrate(held_out[:200], tpr=0.9)
    rows = np.vstack([held_out[200:], far])
    scores, is_ood = fitted.score_samples(rows), fitted.is_ood(rows)
    np.testing.assert_array_equal(fitted.decision_function(rows), scores - fitted.offset_)
    np.testing.assert_array_equal(fitted.predict(rows), np.where(is_ood, -1, 1))
    np.testing.assert_array_equal(is_ood, scores < fitted.threshold_.value)
    p_values = fitted.p_values(rows)
    order = fitted.threshold_.order
    np.testing.assert_array_equal(is_ood, np.round(p_values * (fitted.threshold_.n_rows + 1)) <= order)
    verdicts = fitted.verdicts(rows)
    np.testing.assert_array_equal(verdicts.is_ood, is_ood)
    np.testing.assert_array_equal(verdicts.p_value, p_values)
    explanation = fitted.explain(rows)
    np.testing.assert_array_equal(explanation.nearest_class, verdicts.nearest_class)
    np.testing.assert_allclose(explanation.responsibilities.sum(axis=1), 1.0)
    assert "row 0: " in str(explanation)
    assert f"... and {len(rows) - 10} more rows" in str(explanation)


def test_saved_and_loaded_scores_are_the_same_to_the_bit(fitted, blobs, tmp_path):
    fitted.calibrate(blobs[2], tpr=0.9, confidence=0.9)
    fitted.save(tmp_path / "detector.safetensors")
    loaded = load(tmp_path / "detector.safetensors")
    assert type(loaded) is type(fitted)
    for name, value in fitted.get_params(deep=False).items():
        assert str(np.asarray(getattr(loaded, name))) == str(np.asarray(value))
    rows = np.vstack([blobs[2], blobs[3]])
    for array in (rows, rows.astype(np.float32), rows[:1]):
        np.testing.assert_array_equal(loaded.score_samples(array), fitted.score_samples(array))
    np.testing.assert_array_equal(loaded.p_values(rows), fitted.p_values(rows))
    np.testing.assert_array_equal(loaded.verdicts(rows).nearest_class, fitted.verdicts(rows).nearest_class)
    assert loaded.threshold_ == fitted.threshold_


def test_an_uncalibrated_detector_saves_and_loads_too(fitted, blobs, tmp_path):
    fitted.save(tmp_path / "detector.safetensors")
    loaded = load(tmp_path / "detector.safetensors")
    assert not loaded.is_calibrated
    np.testing.assert_array_equal(loaded.score_samples(blobs[2]), fitted.score_samples(blobs[2]))


def test_verdicts_before_calibration_name_the_remedy(fitted, blobs):
    for verb in (fitted.predict, fitted.is_ood, fitted.p_values, fitted.decision_function, fitted.select_ood):
        with pytest.raises(NotCalibratedError, match=r"call calibrate\(held_out_features, tpr=0.95\)"):
            verb(blobs[2])
    assert fitted.verdicts(blobs[2]).is_ood is None
    assert fitted.explain(blobs[2]).p_values is None
    with pytest.raises(NotCalibratedError):
        fitted.calibrate(tpr=0.9)


def test_fitting_again_forgets_the_threshold(fitted, blobs):
    fitted.calibrate(blobs[2]).fit(blobs[0], blobs[1])
    assert not fitted.is_calibrated


def test_changing_the_rate_needs_no_rows(fitted, blobs):
    fitted.calibrate(blobs[2], tpr=0.95)
    strict = fitted.offset_
    fitted.calibrate(tpr=0.5)
    assert fitted.offset_ >= strict
    expected = clone(fitted).fit(blobs[0], blobs[1]).calibrate(blobs[2], tpr=0.5).threshold_
    assert fitted.threshold_ == expected


def test_fitting_batches_equals_fitting_once(detector, blobs):
    features, labels, held_out, _ = blobs
    expected = clone(detector).fit(features, labels).score_samples(held_out)
    batches = [(features[:50], labels[:50]), (features[50:], labels[50:])]
    np.testing.assert_allclose(detector.fit_batches(batches).score_samples(held_out), expected, rtol=1e-8, atol=1e-9)


NAMES = np.array(["zebra", "ant", "mole"])  # in the order of the logits, which is not their own


def declared(name):
    """All class names: one for each logit, of which there are five where the rows themselves are logits."""
    return [*NAMES, "bee", "cow"] if DETECTORS[name].reads_logits else NAMES


#: Two passes over all rows are needed, so these refuse to stream and to merge.
TWO_PASSES = [name for name, detector in DETECTORS.items() if getattr(detector, "covariance", None) == "ledoit-wolf"]
STREAMING = [name for name in DETECTORS if hasattr(DETECTORS[name], "partial_fit") and name not in TWO_PASSES]

#: Which rows a sample keeps depends on the rows' places in the stream, which merged fits have lost.
SAMPLED = ["knn, some rows"]
MERGING = [name for name in DETECTORS if hasattr(DETECTORS[name], "merge") and name not in TWO_PASSES + SAMPLED]


def check_equal_fits(joined, whole, rows):
    rounding = 1e-9
    if isinstance(whole, ReAct):  # a stream finds the clip from counts; a score moves by it times the weights at most
        rounding = RELATIVE_ERROR * abs(whole.clip_) * np.abs(HEAD.weight).sum(axis=1).max()
    np.testing.assert_allclose(joined.score_samples(rows), whole.score_samples(rows), rtol=1e-8, atol=rounding)
    np.testing.assert_array_equal(joined.classes_, whole.classes_)
    np.testing.assert_array_equal(joined.verdicts(rows).nearest_class, whole.verdicts(rows).nearest_class)


@pytest.mark.parametrize("name", STREAMING)
def test_streamed_batches_equal_fitting_once(name, blobs):
    features, labels, held_out, _ = blobs
    whole = clone(DETECTORS[name]).fit_batches([(features, NAMES[labels])], classes=declared(name))
    streamed = clone(whole).partial_fit(features[:50], NAMES[labels[:50]], classes=declared(name))
    streamed.partial_fit(features[50:51], NAMES[labels[50:51]]).partial_fit(features[51:], NAMES[labels[51:]])
    check_equal_fits(streamed, whole, held_out)


@pytest.mark.parametrize("name", MERGING)
def test_merged_halves_equal_fitting_once(name, blobs):
    features, labels, held_out, _ = blobs
    whole = clone(DETECTORS[name]).fit_batches([(features, NAMES[labels])], classes=declared(name))
    first, second = (
        clone(whole).fit_batches([(features[rows], NAMES[labels[rows]])], classes=declared(name))
        for rows in (slice(250), slice(250, None))
    )
    check_equal_fits(first.merge(second), whole, held_out)


@pytest.mark.parametrize("name", TWO_PASSES)
def test_what_needs_two_passes_does_not_stream(name, blobs):
    with pytest.raises(InputError, match="two passes"):
        clone(DETECTORS[name]).partial_fit(blobs[0], blobs[1])


@pytest.mark.parametrize("name", DETECTORS)
def test_labels_of_mixed_kinds_are_refused(name, blobs):
    features, labels, _, _ = blobs
    batches = [(features[:300], labels[:300]), (features[300:], NAMES[labels[300:]])]
    detector = clone(DETECTORS[name])
    with pytest.raises(InputError):
        detector.fit_batches(batches)
    if name in STREAMING:
        with pytest.raises(InputError):
            clone(detector).partial_fit(*batches[0]).partial_fit(*batches[1])
    if name in MERGING and not isinstance(detector, SHE):  # sorted names are in another order than SHE's logits
        first, second = (clone(detector).fit(*batch) for batch in batches)
        with pytest.raises(InputError):
            first.merge(second)


@pytest.mark.parametrize("name", [name for name in MERGING if getattr(DETECTORS[name], "head", None) is not None])
def test_fits_with_different_heads_are_not_merged(name, blobs):
    features, labels, _, _ = blobs
    first = clone(DETECTORS[name]).fit(features, labels)
    head = first.head
    for other in (Head(1.5 * head.weight, head.bias), Head(head.weight, head.bias + np.array([0.0, 0.0, 0.5]))):
        with pytest.raises(InputError, match="merge fits made with the same head"):
            first.merge(clone(first).set_params(head=other).fit(features, labels))
    assert first.merge(clone(first).fit(features, labels)).n_features_in_ == 5  # a clone has a copy of the head


#: Another value of every option that may be changed after a fit.
CHANGED = {
    "head": lambda head: head and Head(1.5 * head.weight, head.bias),
    "temperature": lambda _: 3.0,
    "share": lambda _: 0.3,
    "alpha": lambda _: 1,
    "tail_size": lambda _: 3,
    "distance": lambda now: "cosine" if now != "cosine" else "euclidean",
    "dimension": lambda _: 1,
    "gamma": lambda _: 0.3,
    "top": lambda _: 1,
    "k": lambda _: 4,
    "index": lambda now: "clusters" if now == "exact" else "exact",
    "normalize": lambda now: not now,
    "relative": lambda now: not now,
    "covariance": lambda now: 0.2 if now == "oas" else "oas",
    "priors": lambda now: "uniform" if now == "empirical" else "empirical",
    "method": lambda now: "minimum" if now != "minimum" else "fisher",
}


def test_an_option_changed_after_the_fit_is_saved_as_it_scores(fitted, blobs, tmp_path):
    for name in CHANGED.keys() & fitted.get_params(deep=False).keys():
        if name == "relative" and fitted.covariance == "ledoit-wolf":
            continue  # the background would need another pass over the rows
        changed = copy(fitted).set_params(**{name: CHANGED[name](getattr(fitted, name))})
        scores = changed.score_samples(blobs[2])
        changed.save(tmp_path / "detector.safetensors")
        loaded = load(tmp_path / "detector.safetensors")
        np.testing.assert_array_equal(loaded.score_samples(blobs[2]), scores, err_msg=name)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (np.zeros((2, 4)), "X has 4 features, but .* is expecting 5 features"),
        (np.zeros(5), "Reshape your data"),
        (np.zeros((0, 5)), "minimum of 1 is required"),
        (np.array([[0.0] * 5, [0.0, 0.0, np.nan, 0.0, 0.0]]), "row 1, column 2 is NaN"),
        (np.array([[0.0] * 5, [0.0, 0.0, 0.0, -np.inf, 0.0]], dtype=np.float32), "row 1, column 3 is infinity"),
        ([["a"] * 5], "every value must be a number"),
        (np.zeros((2, 5), dtype=complex), "Complex data"),
        (np.ma.masked_equal(np.zeros((2, 5)), 0.0), "masked"),
        (pd.DataFrame({"a": ["x"]}), "not a number|must be a number|is expecting"),
    ],
)
def test_bad_rows_are_refused_by_every_verb(fitted, rows, message):
    for verb in (fitted.score_samples, fitted.calibrate, fitted.explain, fitted.verdicts):
        with pytest.raises(InputError, match=message):
            verb(rows)


def test_the_last_rows_of_a_long_input_are_checked_too(fitted, blobs):
    rows = np.resize(blobs[2], (30_000, 5))
    rows[29_999, 4] = np.nan
    for verb in (fitted.score_samples, fitted.verdicts):
        with pytest.raises(InputError, match="row 29999, column 4 is NaN"):
            verb(rows)


def test_columns_by_name_must_stay_the_same(detector, blobs):
    frame = pd.DataFrame(blobs[0], columns=list("abcde"))
    detector.fit(frame, blobs[1])
    detector.score_samples(frame)
    with pytest.raises(ValueError, match="feature names"):
        detector.score_samples(frame.rename(columns={"a": "z"}))


def test_the_detector_lives_in_pipelines_and_model_selection(detector, blobs):
    features, labels, held_out, _ = blobs
    if getattr(detector, "head", None) is None and not isinstance(detector, MOS):
        pipeline = make_pipeline(StandardScaler(), detector).fit(features, labels)
        assert pipeline.score_samples(held_out).shape == (len(held_out),)
    assert cross_val_score(detector, features, labels, cv=3).shape == (3,)
    assert clone(detector).get_params().keys() == detector.get_params().keys()


def test_an_unfitted_detector_says_so(blobs, tmp_path):
    for detector in (clone(one) for one in DETECTORS.values() if not isinstance(one, LogitDetector)):
        for verb in (detector.score_samples, detector.predict, detector.calibrate, detector.explain):
            with pytest.raises(NotFittedError, match=r"call fit\(features, labels\)"):
                verb(blobs[2])
        with pytest.raises(NotFittedError, match="before save"):
            detector.save(tmp_path / "never.safetensors")
    assert list(tmp_path.iterdir()) == []


CHECKED = [
    *(kind(calibration=0.5, tpr=0.5) for kind in (GEM, Mahalanobis, MSP, MaxLogit, Energy)),
    *(kind(calibration=0.5, tpr=0.5) for kind in (JointEnergy, Entropy, GEN, KLMatching, Residual)),
    KNN(k=1, calibration=0.5, tpr=0.5),
    ClassGaussians(covariance="oas", calibration=0.1, tpr=0.5),
    Combine([GEM(), KNN(k=1)], calibration=0.5, tpr=0.3),
]  # half of each check's few rows calibrate, and one row is enough for a rate of one half


@pytest.mark.parametrize(
    ("estimator", "check"),
    [pair for estimator in CHECKED for pair in estimator_checks_generator(estimator)],
    ids=lambda part: getattr(getattr(part, "func", part), "__name__", type(part).__name__),
)
def test_scikit_learns_own_checks_pass(estimator, check):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check(estimator)


def test_every_registered_detector_can_be_made_by_name_and_keeps_the_contract():
    made = {type(make(name)) for name in available()}
    assert len(made) == len(available())
    assert made == {type(detector) for detector in DETECTORS.values()}
    with pytest.raises(InputError, match="there is no detector 'nearest'; choose one of gem, mahalanobis"):
        make("nearest")
    with pytest.raises(InputError, match="msp has no option 'covariance'; it takes"):
        make("msp", covariance="oas")
