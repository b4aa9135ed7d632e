import numpy as np
import pytest
import sklearn.metrics

from gem_ood.errors import InputError
from gem_ood.metrics import error_rate


def test_error_rate_is_one_minus_accuracy():
    generator = np.random.default_rng(0)
    labels, predictions = generator.integers(10, size=500), generator.integers(10, size=500)
    expected = 1 - sklearn.metrics.accuracy_score(labels, predictions)
    assert error_rate(labels, predictions) == pytest.approx(expected)
    names = np.array([f"class {label}" for label in range(10)])
    assert error_rate(names[labels], names[predictions].tolist()) == pytest.approx(expected)


def test_predictions_as_whole_floats_are_labels_too():
    assert error_rate([0, 1, 2], np.array([0.0, 1.0, 0.0])) == pytest.approx(1 / 3)


@pytest.mark.parametrize(
    ("labels", "predictions", "message"),
    [
        ([0, 1], [0], "predictions has 1 rows but labels has 2; pass one prediction per label"),
        ([], [], "labels is empty"),
        (["a"], [0], "pass both as whole numbers or both as strings"),
        ([0, 1], [[0.3, 0.7], [0.1, 0.9]], "predictions must have one dimension"),
        (0, 0, "labels must have one dimension"),
        ([0, 1], [0.5, 1.0], "predictions row 0 is"),
    ],
)
def test_what_is_no_pair_of_labels_is_refused(labels, predictions, message):
    with pytest.raises(InputError, match=message):
        error_rate(labels, predictions)
