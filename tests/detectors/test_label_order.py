"""Class names and the order of the logits: declared, found and sorted, or contradicted by the rows."""

import warnings

import numpy as np
import pandas as pd
import pytest

from gem_ood import GEM, KNN, SHE, ClassGaussians, Energy, Head, OpenMax, recommended
from gem_ood.errors import InputError, LabelOrderWarning

MEANS = 6.0 * np.eye(3, 5)
HEAD = Head(MEANS, -0.5 * (MEANS**2).sum(axis=1))
NAMES = np.array(["zebra", "ant", "mole"])  # in the order of the logits


@pytest.fixture
def rows():
    rng = np.random.default_rng(0)
    places = np.arange(300) % 3
    return MEANS[places] + rng.normal(size=(300, 5)), NAMES[places]


def test_words_in_another_order_than_the_logits_are_warned_of(rows):
    with pytest.warns(LabelOrderWarning, match=r"only 0 of 300 rows .* pass classes, all names in that order"):
        Energy(head=HEAD).fit(*rows)


@pytest.mark.parametrize("kind", [SHE, OpenMax])
def test_where_no_row_is_right_there_is_nothing_to_learn(rows, kind):
    with pytest.raises(InputError, match="order"):
        kind(head=HEAD).fit(*rows)


def test_a_fit_to_the_few_rows_that_happen_to_be_right_is_warned_of(rows):
    features, labels = rows
    sorted_alike = np.array([{"zebra": "a", "ant": "b", "mole": "c"}[label] for label in labels])
    sorted_alike[:201] = np.roll(sorted_alike[:201], 1)  # two thirds of the rows have another's label
    with pytest.warns(LabelOrderWarning, match="only 99 of 300 rows"):
        OpenMax(head=HEAD).fit(features, sorted_alike)


@pytest.mark.parametrize("kind", [Energy, SHE, OpenMax])
def test_declared_classes_name_the_logits_in_their_order(rows, kind):
    detector = kind(head=HEAD).fit(*rows, classes=NAMES)
    assert detector.classes_.tolist() == NAMES.tolist()
    assert np.mean(detector.verdicts(rows[0]).nearest_class == rows[1]) > 0.99
    batches = kind(head=HEAD).fit_batches([rows], classes=NAMES)
    np.testing.assert_array_equal(batches.score_samples(rows[0]), detector.score_samples(rows[0]))


def test_words_in_the_order_of_the_logits_and_numbers_are_not_warned_of(rows):
    features, labels = rows
    ordered = np.array([{"zebra": "a", "ant": "b", "mole": "c"}[label] for label in labels])
    with warnings.catch_warnings():
        warnings.simplefilter("error", LabelOrderWarning)
        right = Energy(head=HEAD).fit(features, ordered)
        wrong = Energy(head=Head(-MEANS)).fit(features, np.arange(300) % 3)  # bad, but no doubt about the order
    assert np.mean(right.verdicts(features).nearest_class == ordered) > 0.99
    assert np.mean(wrong.verdicts(features).nearest_class == np.arange(300) % 3) < 0.1


def test_the_all_rounder_takes_the_order_too(rows):
    detector = recommended(head=HEAD).fit(*rows, classes=NAMES)
    assert detector.detectors_[-1].classes_.tolist() == NAMES.tolist()
    assert np.mean(detector.verdicts(rows[0]).nearest_class == rows[1]) > 0.99


@pytest.mark.parametrize("detector", [GEM(), ClassGaussians(), KNN(k=3), Energy(head=HEAD), recommended(head=HEAD)])
def test_merged_fits_keep_their_column_names_and_refuse_others(rows, detector):
    from sklearn.base import clone

    frame = pd.DataFrame(rows[0], columns=list("abcde"))
    one, two = (
        clone(detector).fit(frame[part], rows[1][part], classes=NAMES) for part in (slice(150), slice(150, None))
    )
    merged = one.merge(two)
    assert merged.feature_names_in_.tolist() == list("abcde")
    with pytest.raises(ValueError, match="feature names"):
        merged.score_samples(frame[list("edcba")])
    other = clone(detector).fit(frame[list("edcba")][150:], rows[1][150:], classes=NAMES)
    with pytest.raises(InputError, match="columns of different names or order"):
        one.merge(other)


@pytest.mark.parametrize(
    ("detector", "message"),
    [
        (GEM(normalize="False"), "normalize is 'False'; pass True or False"),
        (GEM(relative="no"), "relative is 'no'; pass True or False"),
        (KNN(normalize=1), "normalize is 1; pass True or False"),
        (ClassGaussians(normalize="no"), "normalize is 'no'; pass True or False"),
        (Energy(temperature="x"), "temperature is 'x'; pass a positive number"),
        (Energy(tpr=2.0), "tpr"),
    ],
)
def test_options_of_another_kind_are_refused_before_the_fit(detector, message, rows):
    with pytest.raises(InputError, match=message):
        detector.fit(*rows)
