"""A detector that was fitted on named columns finds them by name, or says which are missing."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from gem_ood import GEM
from gem_ood.comparison import compare
from gem_ood.errors import InputError
from gem_ood.files import calibrate_on_file, fitted_names, open_features, score_file

NAMES = ("a", "b", "c")
rng = np.random.default_rng(0)
ROWS = rng.normal(size=(300, 3)) * [1.0, 10.0, 100.0]
LABELS = rng.integers(0, 2, 300)


def write(path: Path, names: tuple[str, ...], **others: Any) -> Path:
    columns = {name: ROWS[:, NAMES.index(name)] for name in names}
    table = pa.table({**columns, **others})
    if path.suffix == ".csv":
        pa.csv.write_csv(table, path)
    else:
        pq.write_table(table, path)
    return path


def detector(*names: str) -> GEM:
    """Return a fitted detector that was told the names of its columns, if any."""
    fitted = GEM().fit(ROWS, LABELS)
    if names:
        fitted.feature_names_in_ = np.array(names, dtype=object)
    return fitted


def scores(fitted: GEM, path: Path, **options: Any) -> Any:
    return np.concatenate([part.score for part in score_file(fitted, open_features(path, **options))])


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_a_file_keeps_the_names_of_its_columns(suffix: str, tmp_path: Path) -> None:
    file = open_features(write(tmp_path / f"x.{suffix}", NAMES, label=LABELS))
    watched = file.watched(lambda n_rows: None).without_labels()
    assert file.feature_names == watched.feature_names == NAMES


def test_an_array_or_a_list_has_no_names(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", features=ROWS)
    pq.write_table(pa.table({"features": list(ROWS), "id": ["x"] * len(ROWS)}), tmp_path / "x.parquet")
    for name in ("x.npz", "x.parquet"):
        file = open_features(tmp_path / name, fitted_names=NAMES)
        assert (file.feature_names, file.left_out) == (None, ())
        np.testing.assert_array_equal(scores(detector(*NAMES), tmp_path / name), detector().score_samples(ROWS))


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_other_orders_and_further_columns_do_not_matter(suffix: str, tmp_path: Path) -> None:
    extra = {"id": ["x"] * len(ROWS), "z": LABELS, "label": LABELS}
    path = write(tmp_path / f"x.{suffix}", ("c", "a", "b"), **extra)
    fitted = detector(*NAMES)
    expected = detector().score_samples(ROWS)
    np.testing.assert_allclose(scores(fitted, path, fitted_names=fitted_names(fitted)), expected)
    file = open_features(path, fitted_names=NAMES)
    assert file.has_labels
    calibrate_on_file(fitted, file)
    np.testing.assert_allclose(fitted.calibration_scores_, detector().calibrate(ROWS).calibration_scores_)
    comparison = compare({"gem": fitted}, id=file, ood={"same": file})
    assert comparison.detectors["gem"].evaluations["same"].auroc == 0.5


def test_a_fitted_column_with_the_name_of_labels_stays_a_feature(tmp_path: Path) -> None:
    columns = {"y": ROWS[:, 0], "label": LABELS}
    pq.write_table(pa.table(columns), tmp_path / "x.parquet")
    assert open_features(tmp_path / "x.parquet", fitted_names=["y"]).feature_names == ("y",)
    file = open_features(tmp_path / "x.parquet", fitted_names=["label"], labels=False)
    assert file.feature_names == ("label",)


def test_other_columns_are_refused_unless_the_caller_named_them(tmp_path: Path) -> None:
    path = write(tmp_path / "x.csv", ("c", "a", "b"))
    message = (
        r"x.csv: the features are 'c', 'a', 'b' but the GEM detector was fitted on 'a', 'b', 'c'; pass fitted_names"
    )
    with pytest.raises(InputError, match=message):
        scores(detector(*NAMES), path)
    with pytest.raises(InputError, match=message):
        calibrate_on_file(detector(*NAMES), open_features(path))
    with pytest.raises(
        InputError, match=r"features are named 'c', 'a', 'b' but .* on 'a', 'b', 'c'; name them in that"
    ):
        scores(detector(*NAMES), path, features=("c", "a", "b"))
    by_place = scores(detector("u", "v", "w"), path, features=NAMES)
    np.testing.assert_allclose(by_place, detector().score_samples(ROWS))
    assert len(scores(detector(), path)) == len(ROWS)


def test_detectors_of_different_columns_are_not_compared(tmp_path: Path) -> None:
    detectors = {"one": detector(*NAMES), "two": detector("c", "a", "b")}
    file = open_features(write(tmp_path / "x.csv", NAMES), fitted_names=fitted_names(*detectors.values()))
    with pytest.raises(
        InputError, match="GEM detector 'two' was fitted on 'c', 'a', 'b'; pass fitted_names to open_features"
    ):
        compare(detectors, id=file, ood={"same": file})
    assert fitted_names(detector(), detector(*NAMES)) == NAMES
    assert fitted_names(detector()) is None
