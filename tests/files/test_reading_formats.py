"""Every format gives back the rows that were written, in bounded batches, as often as asked."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from safetensors.numpy import save_file

from gem_ood.errors import InputError
from gem_ood.files import FeatureFile, open_features, reading

N_ROWS, N_FEATURES = 300, 5
FEATURES = np.random.default_rng(0).normal(size=(N_ROWS, N_FEATURES)).astype(np.float32)
LABELS = np.arange(N_ROWS) % 4
COLUMNS = {f"f{place}": FEATURES[:, place] for place in range(N_FEATURES)}


def write_npz(path: Path) -> None:
    np.savez(path, features=FEATURES, labels=LABELS)


def write_compressed_npz(path: Path) -> None:
    np.savez_compressed(path, features=FEATURES, label=LABELS)


def write_fortran_npz(path: Path) -> None:
    np.savez(path, features=np.asfortranarray(FEATURES), y=LABELS)


def write_parquet_columns(path: Path) -> None:
    pq.write_table(pa.table({**COLUMNS, "label": LABELS}), path, row_group_size=70)


def write_parquet_lists(path: Path) -> None:
    table = pa.table({"features": list(FEATURES), "labels": LABELS, "name": [str(n) for n in range(N_ROWS)]})
    pq.write_table(table, path, row_group_size=N_ROWS)


def write_parquet_fixed_lists(path: Path) -> None:
    lists = pa.FixedSizeListArray.from_arrays(pa.array(FEATURES.ravel()), N_FEATURES)
    pq.write_table(pa.table({"features": lists, "y": LABELS}), path)


def write_parquet_tensors(path: Path) -> None:
    tensors = pa.FixedShapeTensorArray.from_numpy_ndarray(FEATURES)
    pq.write_table(pa.table({"features": tensors, "y": LABELS}), path)


def write_csv(path: Path) -> None:
    pa.csv.write_csv(pa.table({**COLUMNS, "label": LABELS}), path)


def write_safetensors(path: Path) -> None:
    save_file({"features": FEATURES, "labels": LABELS}, path)


WRITERS = [
    (write_npz, "npz"),
    (write_compressed_npz, "npz"),
    (write_fortran_npz, "npz"),
    (write_parquet_columns, "parquet"),
    (write_parquet_lists, "parquet"),
    (write_parquet_fixed_lists, "parquet"),
    (write_parquet_tensors, "parquet"),
    (write_csv, "csv"),
    (write_safetensors, "safetensors"),
]


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "BATCH_BYTES", 1)


def joined(file: FeatureFile) -> tuple[Any, Any]:
    batches = list(file)
    labels = None if batches[0][1] is None else np.concatenate([labels for _, labels in batches])
    return np.concatenate([features for features, _ in batches]), labels


@pytest.mark.parametrize(("write", "suffix"), WRITERS, ids=[write.__name__ for write, _ in WRITERS])
def test_rows_come_back_in_batches_as_often_as_asked(write: Any, suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"rows.{suffix}"
    write(path)
    file = open_features(path)
    assert file.n_features == N_FEATURES
    assert file.n_rows == (None if suffix == "csv" else N_ROWS)
    assert file.has_labels
    for _ in range(2):
        features, labels = joined(file)
        np.testing.assert_array_equal(features.astype(np.float32), FEATURES)
        np.testing.assert_array_equal(labels, LABELS)
    sizes = [len(batch.features) for batch in file.batches()]
    assert max(sizes) <= 64
    starts = [batch.first_row for batch in file.batches()]
    np.testing.assert_array_equal(starts, np.cumsum([0, *sizes[:-1]]))


@pytest.mark.parametrize(("write", "suffix"), WRITERS, ids=[write.__name__ for write, _ in WRITERS])
def test_labels_can_be_left_out_and_are_then_no_feature(write: Any, suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"rows.{suffix}"
    write(path)
    for file in (open_features(path, labels=False), open_features(path).without_labels()):
        assert (file.has_labels, file.n_features) == (False, N_FEATURES)
        features, labels = joined(file)
        assert labels is None
        assert features.shape == FEATURES.shape


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, ">f4", np.int16])
def test_npy_comes_back_in_any_order_and_type(order: Any, dtype: Any, tmp_path: Path) -> None:
    values = np.asarray(FEATURES * 10, dtype=dtype, order=order)
    np.save(tmp_path / "rows.npy", values)
    features, labels = joined(open_features(tmp_path / "rows.npy"))
    np.testing.assert_array_equal(features, values)
    assert labels is None


@pytest.mark.parametrize(("write", "suffix"), [(write_npz, "npz"), (write_csv, "csv")])
def test_labels_may_come_from_a_second_file(write: Any, suffix: str, tmp_path: Path) -> None:
    path, label_path = tmp_path / f"rows.{suffix}", tmp_path / "classes.npy"
    write(path)
    names = np.array(["cat", "dog", "eel", "fox"])[LABELS]
    np.save(label_path, names)
    for labels in (label_path, str(label_path)):
        file = open_features(path, labels=labels)
        assert file.has_labels
        np.testing.assert_array_equal(joined(file)[1], names)


@pytest.mark.parametrize("suffix", ["npz", "csv"])
@pytest.mark.parametrize("n_labels", [N_ROWS - 1, N_ROWS + 1])
def test_a_second_file_of_another_length_is_refused(suffix: str, n_labels: int, tmp_path: Path) -> None:
    path = tmp_path / f"rows.{suffix}"
    {"npz": write_npz, "csv": write_csv}[suffix](path)
    np.save(tmp_path / "classes.npy", np.zeros(n_labels, dtype=int))
    with pytest.raises(InputError, match=rf"classes.npy has {n_labels} rows but .* pass one label per row"):
        joined(open_features(path, labels=tmp_path / "classes.npy"))


def test_string_labels_and_dictionaries_come_back_as_strings(tmp_path: Path) -> None:
    names = pa.array(["cat", "eel", "cat"])
    for name, column in (("plain", names), ("coded", names.dictionary_encode())):
        path = tmp_path / f"{name}.parquet"
        pq.write_table(pa.table({"a": [1.0, 2.0, 3.0], "label": column}), path)
        np.testing.assert_array_equal(joined(open_features(path))[1], ["cat", "eel", "cat"])


def test_features_may_be_named_one_by_one_and_in_any_order(tmp_path: Path) -> None:
    write_parquet_columns(tmp_path / "rows.parquet")
    for wanted in ("f3,f1", "f3, f1", ["f3", "f1"]):
        file = open_features(tmp_path / "rows.parquet", features=wanted)
        assert file.feature_names == ("f3", "f1")
        np.testing.assert_array_equal(joined(file)[0], FEATURES[:, [3, 1]])


def test_another_label_column_can_be_named(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("a,target,b\n1,cat,0.5\n2,NA,1.5\n")
    features, labels = joined(open_features(path, labels="target"))
    np.testing.assert_array_equal(features, [[1.0, 0.5], [2.0, 1.5]])
    np.testing.assert_array_equal(labels, ["cat", "NA"])


def test_the_only_table_of_an_archive_is_its_features(tmp_path: Path) -> None:
    np.savez(tmp_path / "rows.npz", embeddings=FEATURES, y=LABELS, names=np.array(["a"]))
    np.testing.assert_array_equal(joined(open_features(tmp_path / "rows.npz"))[0], FEATURES)


def test_a_csv_column_may_turn_from_whole_numbers_to_fractions_far_down(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    n_rows = 1_200_000  # more than one block of text, 8 bytes a line
    path.write_text("0,1\n" + "0,12345\n" * n_rows + "0.5,1\n")
    file = open_features(path)
    last = None
    for batch in file.batches():
        last = batch
    assert last is not None
    assert last.first_row + len(last.features) == n_rows + 1
    np.testing.assert_array_equal(last.features[-1], [0.5, 1.0])


def test_the_watcher_hears_of_the_rows_of_every_pass(tmp_path: Path) -> None:
    write_npz(tmp_path / "rows.npz")
    heard: list[int] = []
    file = open_features(tmp_path / "rows.npz").watched(heard.append)
    for _ in range(2):
        list(file)
    assert heard == [64, 128, 192, 256, 300] * 2
