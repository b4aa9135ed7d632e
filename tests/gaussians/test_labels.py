"""Labels beyond one run of rows: the same classes, places and counts, and the right row in an error."""

import numpy as np
import pytest

from gem_ood.errors import InputError
from gem_ood.gaussians import collect
from gem_ood.gaussians.labels import LABELS_PER_CHUNK, class_counts, distinct_labels, encode

N_ROWS = LABELS_PER_CHUNK + 3


@pytest.mark.parametrize("n_classes", [1, 2, 256, 257])
def test_places_and_counts_are_those_of_numpy_whatever_the_runs(n_classes):
    labels = np.arange(N_ROWS)[::-1] % n_classes + 5
    classes, places, counts = np.unique(labels, return_inverse=True, return_counts=True)
    np.testing.assert_array_equal(distinct_labels(labels, N_ROWS), classes)
    codes = encode(labels, classes, N_ROWS)
    assert codes.dtype == (np.uint8 if n_classes <= 256 else np.uint16)
    np.testing.assert_array_equal(codes, places)
    np.testing.assert_array_equal(class_counts(codes, n_classes), counts)


EXTREMES = np.iinfo(np.int64)


@pytest.mark.parametrize(
    "names",
    [
        [-3, -2, -1, 0],
        [-3, 0, 1],
        [0, 2_000_000],
        [EXTREMES.min, EXTREMES.max],
        [EXTREMES.max - 1, EXTREMES.max],
        ["a", "bb", "c"],
    ],
    ids=["following", "with a gap", "far apart", "extremes", "largest", "strings"],
)
def test_places_are_those_of_numpy_whatever_the_names(names):
    classes = np.array(names)
    labels = np.resize(classes[::-1], 100)
    np.testing.assert_array_equal(distinct_labels(labels, 100), classes)
    np.testing.assert_array_equal(encode(labels, classes, 100), np.searchsorted(classes, labels))


@pytest.mark.parametrize("stranger", [-1, 2, EXTREMES.min, EXTREMES.max])
def test_a_number_beside_classes_that_follow_each_other_is_refused(stranger):
    with pytest.raises(InputError, match=f"labels row 1 is {stranger}, which is not among the 2 classes"):
        encode(np.array([1, stranger]), np.array([0, 1]), 2)


def test_a_label_that_no_class_has_is_named_with_its_row_in_a_later_run():
    labels = np.zeros(N_ROWS, dtype=np.int64)
    labels[LABELS_PER_CHUNK + 1] = 7
    with pytest.raises(InputError, match=f"labels row {LABELS_PER_CHUNK + 1} is 7, which is not among the 2 classes"):
        encode(labels, np.array([0, 1]), N_ROWS)


def test_a_class_whose_first_row_is_in_a_later_run_has_its_mean():
    labels = np.zeros(N_ROWS, dtype=np.int64)
    labels[-2:] = 1
    features = np.where(labels == 1, 1e6, 0.0)[:, np.newaxis] + np.tile([0.0, 1.0], N_ROWS)[:N_ROWS, np.newaxis]
    statistics = collect(features, labels)
    np.testing.assert_array_equal(statistics.counts, [N_ROWS - 2, 2])
    np.testing.assert_allclose(statistics.means[1], [1e6 + 0.5])
    np.testing.assert_allclose(statistics.scatter, [[0.25 * N_ROWS]], rtol=1e-4)
