"""A saved detector that is damaged is refused when it is loaded: it never fails later, and never scores NaN."""

import copy
import json
import math

import numpy as np
import pytest

from gem_ood import GEM, KNN, SHE, ClassGaussians, Combine, Energy, Head, ReAct, Residual
from gem_ood.detectors import catalogue
from gem_ood.detectors.saving import pack, unpack
from gem_ood.errors import FileFormatError

N_FEATURES = 5
GENERATOR = np.random.default_rng(7)
MEANS = np.abs(6.0 * GENERATOR.normal(size=(3, N_FEATURES)))
LABELS = np.arange(90) % 3
FEATURES = np.abs(GENERATOR.normal(size=(90, N_FEATURES)) + MEANS[LABELS])
HELD_OUT = np.abs(GENERATOR.normal(size=(40, N_FEATURES)) + MEANS[np.arange(40) % 3])
NEAREST_MEAN = Head(MEANS, -0.5 * (MEANS**2).sum(axis=1))  # classifies the rows, as SHE and OpenMax need

DETECTORS = catalogue(head=NEAREST_MEAN, groups=[0, 0, 0]) | {
    "knn, clusters": KNN(k=3, index="clusters"),
    "knn, clusters, not scaled": KNN(k=3, index="clusters", normalize=False, probes=4),
    "knn, some rows": KNN(k=3, bank=50),
    "energy of logits": Energy(),
    "residual without a head": Residual(),
    "class-gaussians, pooled": ClassGaussians(covariance="pooled"),
    "class-gaussians, ledoit-wolf": ClassGaussians(covariance="ledoit-wolf", priors=[0.2, 0.3, 0.5]),
    "nested": Combine([Combine([GEM(), SHE(head=NEAREST_MEAN)]), KNN(k=3, bank=50)]),
}


@pytest.fixture(params=DETECTORS, name="saved", scope="module")
def packed_detector(request):
    """The arrays and the header of a calibrated detector, as a file holds them, and what it scores."""
    detector = DETECTORS[request.param].fit(FEATURES, LABELS).calibrate(HELD_OUT, tpr=0.5)
    tensors, header = pack(detector)
    return tensors, json.loads(json.dumps(header)), detector.score_samples(HELD_OUT)


def outcome(tensors, header, expected):
    """Return what becomes of a file: "refused", "as before" or "other scores"; fail if these are not sound."""
    given = {name: array.copy() for name, array in tensors.items()}
    try:
        loaded = unpack(given, copy.deepcopy(header), name="the file")
    except FileFormatError:
        return "refused"
    scores = loaded.score_samples(HELD_OUT)
    assert np.isfinite(scores).all()
    explanation = loaded.explain(HELD_OUT[:3])
    assert not np.isnan(explanation.responsibilities).any()
    assert explanation.distances is None or not np.isnan(explanation.distances).any()
    pack(loaded)
    return "as before" if np.array_equal(scores, expected) else "other scores"


def with_first(array, value):
    changed = array.copy()
    changed.flat[0] = value
    return changed


#: What can befall an array that is then never an array of a saved detector.
TELLING = {
    "of another type": lambda array: np.zeros(array.shape, dtype=np.int8),
    "of one more dimension": lambda array: array[np.newaxis],
    "of no rows": lambda array: array[:0],
    "NaN": lambda array: with_first(array.astype(np.float64), math.nan),
    "infinite": lambda array: with_first(array.astype(np.float64), math.inf),
}

#: What can befall an array that may still be one of another fit.
OTHER = {
    "shorter": lambda array: array[:-1],
    "longer": lambda array: np.concatenate([array, array[-1:]]),
    "narrower": lambda array: array[..., :-1],
    "transposed": lambda array: np.ascontiguousarray(array.T),
    "reversed": lambda array: array[::-1].copy(),
    "negated": lambda array: -array,
    "zeros": np.zeros_like,
    "its first value lower": lambda array: with_first(array, array.flat[0] - 1),
    "its first value much higher": lambda array: with_first(array, array.flat[0] + 1000),
}


def test_damaged_arrays_are_refused_or_give_sound_scores(saved):
    tensors, header, expected = saved
    for name, array in tensors.items():
        rest = {other: value for other, value in tensors.items() if other != name}
        assert outcome(rest, header, expected) == "refused", f"without {name}"
        for damage, change in TELLING.items():
            assert outcome(rest | {name: change(array)}, header, expected) == "refused", f"{name} {damage}"
        for damage, change in OTHER.items():
            try:
                outcome(rest | {name: change(array)}, header, expected)
            except Exception as error:
                raise AssertionError(f"{name} {damage}") from error


MISSING = object()
WRONG = (MISSING, None, "word", "", [], {}, [None], True, 0, -1, 1.5, 10**30, 1e300, math.inf, -math.inf, math.nan)
WRONG_WITHIN_PARTS = (MISSING, None, "word", -1, 10**30, math.inf)  # the kinds of the parts have seen the others


def places(value, path=()):
    """Yield the path of every value of a header, whole lists and dictionaries included."""
    if path:
        yield path
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in inner:
        yield from places(part, (*path, key))


def replaced(header, path, value):
    changed = copy.deepcopy(header)
    inner = changed
    for key in path[:-1]:
        inner = inner[key]
    if value is MISSING:
        del inner[path[-1]]
    else:
        inner[path[-1]] = value
    return changed


def test_damaged_values_are_refused_or_give_sound_scores(saved):
    tensors, header, expected = saved
    for path in places(header):
        for value in WRONG if len(path) <= 3 else WRONG_WITHIN_PARTS:
            try:
                found = outcome(tensors, replaced(header, path, value), expected)
            except Exception as error:
                raise AssertionError(f"{path} is {'missing' if value is MISSING else value!r}") from error
            must_refuse = path[-1] in ("n_features", "n_seen", "n_rows", "order") and type(value) is not int
            assert not must_refuse or found == "refused", f"{path} is {value!r}"


def scaled_row(array):
    changed = array.copy()
    changed[0] *= 2.0
    return changed


#: Damages that the other arrays or the detector's own laws tell, so that there is no excuse for loading them.
TOLD = {
    "templates of classes turned round": ("kl-matching", "sums.probabilities", lambda array: array.T.copy()),
    "templates of other counts": ("kl-matching", "sums.probabilities", scaled_row),
    "templates of no rows": ("kl-matching", "sums.counts", np.zeros_like),
    "templates of negative rows": ("kl-matching", "sums.counts", np.negative),
    "templates of halves of rows": ("kl-matching", "sums.counts", lambda array: array + 0.5),
    "priors that are negative": ("class-gaussians", "gaussians.priors", lambda array: array * [-1.0, 1.0, 3.0]),
    "priors that do not sum to one": ("class-gaussians", "gaussians.priors", lambda array: array / 2.0),
    "priors of a tied covariance": ("gem", "gaussians.priors", lambda array: array / 2.0),
    "determinants of other whiteners": ("class-gaussians", "gaussians.log_determinants", lambda array: array[::-1]),
    "a whitener without directions": ("gem", "gaussians.whitener", np.zeros_like),
    "no rows in any class": ("gem", "statistics.counts", np.zeros_like),
    "negative squares": ("gem", "statistics.scatter", np.negative),
    "a mean of no rows": ("nci", "sums.count", np.zeros_like),
    "a mean of negative rows": ("fdbd", "sums.count", np.negative),
    "a mean of halves of rows": ("dice", "sums.rows", lambda array: array + 0.5),
    "a mask of no rows": ("dice", "sums.rows", np.zeros_like),
    "patterns of negative rows": ("she", "sums.counts", np.negative),
    "patterns of no rows": ("she", "sums.counts", np.zeros_like),
    "a part of a row of activations": ("react", "activations", lambda array: array[1:]),
    "no Weibull distribution": ("openmax", "openmax.shapes", np.zeros_like),
    "a negative Weibull shape": ("openmax", "openmax.shapes", np.negative),
    "a Weibull scale below all distances": ("openmax", "openmax.log_scales", lambda array: array - 1.0),
    "a negative distance": ("openmax", "openmax.smallest", lambda array: array - 1.0),
    "means of other classes": ("openmax", "openmax.means", lambda array: array[::-1]),
    "directions that are not orthogonal": ("vim", "space.basis", lambda array: array + 0.1),
    "directions that are not of unit length": ("residual", "space.basis", lambda array: 2.0 * array),
    "no directions": ("residual", "space.basis", lambda array: array[:, :0]),
    "negative radii": ("knn, clusters", "clusters.radii", np.negative),
    "radii that leave rows outside": ("knn, clusters", "clusters.radii", lambda array: 0.9 * array),
    "centres of other lists": ("knn, clusters", "clusters.centres", lambda array: array[::-1]),
    "lists that go backwards": (
        "knn, clusters",
        "clusters.bounds",
        lambda array: array[[0, 2, 1, *range(3, len(array))]],
    ),
    "lists of other sizes": ("knn, clusters", "clusters.bounds", lambda array: np.sort(array[-1] - array)),
    "rows of classes that are not there": ("knn", "bank.places", lambda array: array + 1),
    "draws of one and more": ("knn, some rows", "bank.draws", lambda array: array + 1.0),
    "negative draws": ("nested", "sample.draws", np.negative),
    "a reference out of order": ("nested", "reference.0", lambda array: array[::-1]),
    "a reference of other rows": ("nested", "reference.1", lambda array: array[1:]),
    "a sample of another width": ("nested", "sample.rows", lambda array: array[:, 1:]),
    "priors of other classes": ("class-gaussians, ledoit-wolf", "option.priors", lambda array: array[1:]),
}


def packed(name):
    tensors, header = pack(DETECTORS[name].fit(FEATURES, LABELS).calibrate(HELD_OUT, tpr=0.5))
    return tensors, json.loads(json.dumps(header))


@pytest.mark.parametrize(("name", "array", "change"), TOLD.values(), ids=TOLD)
def test_an_array_that_contradicts_the_others_is_refused(name, array, change):
    tensors, header = packed(name)
    changed = np.ascontiguousarray(change(tensors[array]))
    assert not np.array_equal(changed, tensors[array])
    with pytest.raises(FileFormatError, match="the file: "):
        unpack(tensors | {array: changed}, header, name="the file")


TOLD_BY_HEADER = {
    "infinitely many features": ("gem", ("n_features",), math.inf),
    "other features than the parts": ("nested", ("n_features",), 4),
    "parts of other features": ("nested", ("state", "parts", 1, "n_features"), 4),
    "one part less": ("nested", ("state", "parts", 1), MISSING),
    "infinitely many rows": ("knn", ("state", "n_seen"), math.inf),
    "fewer rows than are kept": ("knn", ("state", "n_seen"), 89),
    "half a place in order": ("gem", ("threshold", "order"), 1.5),
    "half a calibration row": ("gem", ("threshold", "n_rows"), 40.5),
    "a method without its confidence": ("gem", ("threshold", "method"), "pac"),
    "one class for three logits": ("energy", ("state", "classes"), [0]),
    "three classes for five logits": ("energy of logits", ("state", "classes"), [0, 1, 2]),
    "a class more than logits": ("kl-matching", ("state", "classes"), [0, 1, 2, 3]),
    "classes of rows out of order": ("knn", ("state", "classes"), [2, 0, 1]),
    "classes of Gaussians out of order": ("gem", ("state", "classes"), [2, 0, 1]),
    "classes of rows without labels": ("knn", ("state", "is_labelled"), False),
    "labels that are no names": ("energy", ("state", "labels"), [None]),
    "no head where there was one": ("energy", ("options", "head"), MISSING),
    "nothing for a head": ("msp", ("options", "head"), None),
    "alpha of zero": ("vim", ("state", "alpha"), 0.0),
    "alpha that is negative": ("vim", ("state", "alpha"), -1.0),
    "alpha that is no number": ("vim", ("state", "alpha"), math.nan),
    "alpha without bounds": ("vim", ("state", "alpha"), math.inf),
    "no residual to scale": ("vim", ("state", "holds_all"), True),
    "moments of some classes": ("class-gaussians, ledoit-wolf", ("state", "fourth_moments"), [1.0]),
    "a clip beyond all activations": ("react", ("state", "clip"), 1e6),
    "column names of some columns": ("gem", ("feature_names",), ["a", "b"]),
    "a column name for letters": ("gem", ("feature_names",), "abcde"),
    "a yes that is a word": ("gem", ("options", "normalize"), "no"),
}


@pytest.mark.parametrize(("name", "path", "value"), TOLD_BY_HEADER.values(), ids=TOLD_BY_HEADER)
def test_a_header_that_contradicts_the_arrays_is_refused(name, path, value):
    tensors, header = packed(name)
    with pytest.raises(FileFormatError, match="the file"):
        unpack(tensors, replaced(header, path, value), name="the file")


def test_a_head_that_is_gone_with_its_arrays_is_missed_by_the_names_of_the_logits():
    tensors, header = packed("energy")
    rest = {name: array for name, array in tensors.items() if not name.startswith("option.head")}
    with pytest.raises(FileFormatError, match="has 3 names for 5 logits"):
        unpack(rest, replaced(header, ("options", "head"), None), name="the file")


@pytest.mark.parametrize("scale", [1e-150, 1e-19, 1.0, 1e19, 1e100])
def test_sound_files_of_rows_of_any_size_are_loaded(scale):
    rows = scale * (FEATURES - 3.0)
    for detector in (ReAct(head=NEAREST_MEAN), Residual(), KNN(k=3, index="clusters"), KNN(k=3, bank=50)):
        tensors, header = pack(detector.fit(rows, LABELS))
        loaded = unpack(tensors, json.loads(json.dumps(header)), name="the file")
        np.testing.assert_array_equal(loaded.score_samples(rows), detector.score_samples(rows))
