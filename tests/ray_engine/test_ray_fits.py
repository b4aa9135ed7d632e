"""Fits, thresholds and verdicts on a cluster are those of one machine, however the rows are partitioned."""

from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gem_ood import GEM, KNN, Energy, Head, Mahalanobis
from gem_ood.detectors import available, make
from gem_ood.errors import InputError
from gem_ood.files import open_features

pytest.importorskip("ray", reason="Ray is not installed")

import ray
import ray.data
import ray.data.expressions

import gem_ood.ray as cluster
from gem_ood.ray import calibrating
from gem_ood.ray.spread import FileRows

pytestmark = pytest.mark.usefixtures("ray_session")

N_ROWS, WIDTH, CLASSES = 3000, 6, 4


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)
    labels = rng.integers(0, CLASSES, N_ROWS)
    return (np.abs(rng.normal(size=(N_ROWS, WIDTH))) + 4.0 * np.eye(WIDTH)[labels]).astype(np.float32), labels


@pytest.fixture(scope="module")
def held_out():
    rng = np.random.default_rng(1)
    labels = rng.integers(0, CLASSES, 1000)
    return (np.abs(rng.normal(size=(1000, WIDTH))) + 4.0 * np.eye(WIDTH)[labels]).astype(np.float32)


def table_of(features, labels=None, **more):
    lists = pa.FixedSizeListArray.from_arrays(pa.array(features.ravel()), features.shape[1])
    return pa.table({"features": lists, **({} if labels is None else {"label": labels}), **more})


def dataset_of(features, labels=None, *, cuts=(1, 40, 900), **more):
    table = table_of(features, labels, **more)
    bounds = [0, *cuts, table.num_rows]
    return ray.data.from_arrow([table.slice(a, b - a) for a, b in pairwise(bounds)])


@pytest.fixture(scope="module")
def dataset(rows):
    return dataset_of(*rows)


@pytest.fixture(scope="module")
def directory(rows, tmp_path_factory):
    features, labels = rows
    folder = tmp_path_factory.mktemp("rows")
    for name, part in (("a", slice(0, 1000)), ("b", slice(1000, None))):
        pq.write_table(table_of(features[part], labels[part]), folder / f"{name}.parquet", row_group_size=300)
    return folder


def options_of(name):
    head = Head(np.eye(CLASSES, WIDTH), np.zeros(CLASSES))
    options = {"knn": {"bank": 500}, "nn-guide": {"bank": 500}, "combine": {"detectors": [GEM(), Energy(head=head)]}}
    chosen = options.get(name, {})
    if name == "mos":
        chosen["groups"] = [0, 0, 1, 1]
    if "head" in make_signature(name):
        chosen["head"] = head
    return chosen


def make_signature(name):
    from gem_ood.detectors.cataloguing import method_options

    return method_options(name) if name != "combine" else {}


@pytest.mark.parametrize("name", available())
def test_every_detector_fits_a_dataset_as_it_fits_arrays(name, rows, dataset, held_out):
    features, labels = rows
    local = make(name, **options_of(name)).fit(features, labels)
    spread = cluster.fit(dataset, make(name, **options_of(name)))
    assert spread.classes_.tolist() == local.classes_.tolist()
    if name in ("knn", "nn-guide", "combine"):  # the sample is another, drawn by content
        assert np.corrcoef(spread.score_samples(held_out), local.score_samples(held_out))[0, 1] > 0.9
    else:
        np.testing.assert_allclose(spread.score_samples(held_out), local.score_samples(held_out), rtol=1e-9, atol=1e-9)


def test_a_directory_gives_what_its_rows_give(rows, directory, held_out):
    local = GEM(covariance="ledoit-wolf").fit(*rows)
    done = []
    spread = cluster.fit(directory, GEM(covariance="ledoit-wolf"), on_rows=done.append, rows_per_part=600)
    np.testing.assert_allclose(spread.score_samples(held_out), local.score_samples(held_out), rtol=1e-9)
    assert done[-1] == N_ROWS


def test_another_file_is_one_part(rows, tmp_path, held_out):
    features, labels = rows
    np.savez(tmp_path / "rows.npz", features=features, label=labels)
    spread = cluster.fit(tmp_path / "rows.npz", Mahalanobis())
    np.testing.assert_allclose(spread.score_samples(held_out), Mahalanobis().fit(*rows).score_samples(held_out))


def test_tensors_columns_of_numbers_and_words_as_labels_are_rows_too(rows, held_out):
    features, labels = rows
    names = np.array(["ant", "bee", "cat", "dog"])[labels]
    tensors = ray.data.from_items(
        [{"x": row, "kind": name} for row, name in zip(features[:600], names[:600], strict=True)]
    )
    columns = ray.data.from_arrow(
        pa.table({**{f"e{at}": features[:600, at] for at in range(WIDTH)}, "kind": names[:600]})
    )
    local = GEM().fit(features[:600], names[:600])
    by_tensor = cluster.fit(tensors, GEM(), "x", "kind")
    by_column = cluster.fit(columns, GEM(), [f"e{at}" for at in range(WIDTH)], "kind")
    for spread in (by_tensor, by_column):
        assert spread.classes_.tolist() == ["ant", "bee", "cat", "dog"]
    np.testing.assert_allclose(by_tensor.score_samples(held_out), local.score_samples(held_out), rtol=1e-9)
    assert by_column.feature_names_in_.tolist() == [f"e{at}" for at in range(WIDTH)]
    verdicts = cluster.score(columns, cluster.calibrate(columns, by_column)).take_all()
    expected = local.score_samples(features[:600])
    np.testing.assert_allclose([row["score"] for row in verdicts], expected, rtol=1e-9)


def test_the_bank_is_the_same_however_the_rows_lie(rows, dataset, held_out):
    one = cluster.fit(dataset, KNN(bank=300)).score_samples(held_out)
    other = cluster.fit(dataset_of(*rows, cuts=(700, 1400)), KNN(bank=300)).score_samples(held_out)
    np.testing.assert_array_equal(one, other)


def test_all_rows_are_not_brought_together_for_a_bank(dataset):
    with pytest.raises(InputError, match="bank"):
        cluster.fit(dataset, KNN())


#: Of more than a thousand rows some are left out, so a threshold is exact only if its order is asked for.
CALIBRATIONS = (
    {},
    {"tpr": 0.8},
    {"tpr": 0.5},
    {"tpr": 0.7},
    {"tpr": 0.9, "confidence": 0.99},
    {"tpr": 0.9, "method": "quantile"},
)


@pytest.mark.parametrize("kept", [100_000, 1000])
def test_a_threshold_is_that_of_one_machine_to_the_bit(kept, rows, held_out, monkeypatch):
    monkeypatch.setattr(calibrating, "KEPT_SCORES", kept)
    rng = np.random.default_rng(2)
    many = (np.abs(rng.normal(size=(30_011, WIDTH))) + 4.0 * np.eye(WIDTH)[rng.integers(0, CLASSES, 30_011)]).astype(
        np.float32
    )
    dataset = dataset_of(many, cuts=(1, 17, 9000))
    local, spread = GEM().fit(*rows), GEM().fit(*rows)
    for options in CALIBRATIONS:
        local.calibrate(many, **options)
        cluster.calibrate(dataset, spread, **options)
        assert (spread.calibration_ranks_ is None) == (kept > len(many))
        assert spread.threshold_.order == local.threshold_.order > 1000
        assert spread.threshold_.value == pytest.approx(local.threshold_.value, rel=1e-12)
    exact, bound = local.p_values(held_out), spread.p_values(held_out)
    assert (bound >= exact - 1e-12).all()
    assert (bound <= exact * 1.001 + 1e-12).all()


def test_a_directory_calibrates_as_its_rows_do(rows, directory):
    local, spread = GEM().fit(*rows), GEM().fit(*rows)
    assert cluster.calibrate(directory, spread).threshold_.value == pytest.approx(
        local.calibrate(rows[0]).threshold_.value
    )


def test_verdicts_come_lazily_beside_the_other_columns(rows, held_out, tmp_path):
    detector = GEM().fit(*rows).calibrate(held_out)
    names = [f"row {place}" for place in range(len(held_out))]
    scored = cluster.score(dataset_of(held_out, np.zeros(len(held_out), int), name=names), detector)
    found = {row["name"]: row for row in scored.take_all()}
    assert list(found["row 0"]) == ["label", "name", "score", "p_value", "is_ood", "nearest_class"]
    expected = detector.verdicts(held_out)
    np.testing.assert_allclose([found[name]["score"] for name in names], expected.score, rtol=1e-9)
    np.testing.assert_array_equal([found[name]["is_ood"] for name in names], expected.is_ood)
    np.testing.assert_allclose([found[name]["p_value"] for name in names], expected.p_value, rtol=1e-9)
    np.testing.assert_array_equal([found[name]["nearest_class"] for name in names], expected.nearest_class)


def test_columns_that_are_kept_can_be_named(rows, held_out):
    scored = cluster.score(dataset_of(held_out, np.zeros(len(held_out), int)), GEM().fit(*rows), keep=["features"])
    assert list(scored.take(1)[0]) == ["features", "score", "nearest_class"]


def test_what_is_not_there_is_refused_by_name(rows, dataset, held_out):
    detector = GEM().fit(*rows)
    with pytest.raises(InputError, match="no column 'x'; it has 'features', 'label'"):
        cluster.fit(dataset, GEM(), "x")
    with pytest.raises(InputError, match="labels=None"):
        cluster.fit(dataset, GEM(), labels="kind")
    with pytest.raises(InputError, match="keep names 'odd'"):
        cluster.score(dataset, detector, keep=["odd"])
    with pytest.raises(InputError, match="already"):
        cluster.score(dataset_of(held_out, score=np.zeros(len(held_out))), detector)
    with pytest.raises(InputError, match=r"type list; pass a ray.data.Dataset"):
        cluster.fit([1, 2], GEM())
    with pytest.raises(InputError, match="no rows"):
        cluster.fit(dataset.filter(expr=ray.data.expressions.col("label") > 99), GEM())


def test_an_empty_block_changes_nothing(rows, held_out):
    features, labels = rows
    with_gaps = dataset_of(features, labels, cuts=(0, 500, 500, 1500))
    spread = cluster.fit(with_gaps, GEM())
    np.testing.assert_allclose(spread.score_samples(held_out), GEM().fit(*rows).score_samples(held_out), rtol=1e-9)


def test_rows_that_work_reads_twice_are_counted_once(directory):
    done = []

    def work(batches):
        return [sum(len(X) for X, _ in batches) for _ in range(2)]

    rows = FileRows(open_features(directory), rows_per_part=600, on_rows=done.append)
    held = rows.held(work)
    assert held.n_rows == done[-1] == N_ROWS
    assert list(held.arrays()) == [[600, 600], [400, 400], [600, 600], [600, 600], [600, 600], [200, 200]]


@pytest.mark.parametrize("size", [10, 100_000])
def test_what_a_reduction_returns_is_the_callers_own(directory, size):
    rows = FileRows(open_features(directory), rows_per_part=600)
    found = rows.reduce(lambda batches: np.full(size, sum(len(X) for X, _ in batches)), np.add)
    assert found.flags.owndata  # what lies in Ray's memory is read-only, and keeps its place there taken
    found += 1
    assert found.tolist() == [N_ROWS + 1] * size
