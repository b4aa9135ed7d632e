"""What a file is said to hold, against the arrays that were written into it."""

import subprocess
import sys
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from safetensors.numpy import save_file

from gem_ood import GEM, Energy, Head, Mahalanobis
from gem_ood.detectors import Combine
from gem_ood.errors import InputError
from gem_ood.files import describe, holds_detector, reading, row_statistics

GOLDEN = Path(__file__).parents[1] / "golden"

rng = np.random.default_rng(0)


def rows() -> tuple[np.ndarray, np.ndarray]:
    """Eight columns, of which the third is 0, the fifth 7 and two rows are bad; four classes of other sizes."""
    features = rng.normal(size=(300, 8))
    features[:, 2], features[:, 4] = 0.0, 7.0
    features[11, 0], features[250, 7] = np.nan, -np.inf
    return features, rng.choice(["ant", "bee", "cat", "dog"], size=300, p=[0.1, 0.2, 0.3, 0.4])


def written(path: Path, features: np.ndarray, labels: np.ndarray) -> Path:
    names = [f"f{place}" for place in range(features.shape[1])]
    if path.name == "rows.npz":
        np.savez(path, features=features, labels=labels)
    elif path.name == "rows.npy":
        np.save(path, features)
    elif path.name == "rows.safetensors":
        save_file({"features": features, "labels": np.unique(labels, return_inverse=True)[1]}, path)
    elif path.name == "lists.parquet":
        pq.write_table(pa.table({"features": list(features), "label": pa.array(labels.tolist())}), path)
    else:
        table = pa.table({**dict(zip(names, features.T, strict=True)), "label": pa.array(labels.tolist())})
        if path.suffix == ".parquet":
            pq.write_table(table, path, row_group_size=70)
        else:
            table.to_pandas().to_csv(path, index=False)
    return path


@pytest.mark.parametrize(
    "name", ["rows.npz", "rows.npy", "rows.safetensors", "rows.parquet", "lists.parquet", "rows.csv"]
)
@pytest.mark.parametrize("batch_bytes", [16 << 20, 1])
def test_rows_of_every_format_are_told_as_a_plain_loop_tells_them(
    name: str, batch_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "BATCH_BYTES", batch_bytes)
    features, labels = rows()
    path = written(tmp_path / name, features, labels)
    counted: list[int] = []
    info = describe(path, on_rows=counted.append)
    assert (info.kind, info.format, info.n_bytes) == ("rows", path.suffix[1:], path.stat().st_size)
    assert info.rows is not None
    found = info.rows.statistics
    bad = [place for place, row in enumerate(features) if not all(np.isfinite(row))]
    assert (info.rows.n_rows, info.rows.n_features, counted[-1]) == (300, 8, 300)
    assert len(counted) == (5 if batch_bytes == 1 else 1)
    assert (found.n_bad_rows, found.first_bad_row) == (len(bad), bad[0])
    assert (found.constant_columns, found.zero_columns) == ((2, 4), (2,))
    if name == "rows.npy":
        assert (info.rows.labels, found.n_classes) == (None, None)
        return
    sizes = {label: int((labels == label).sum()) for label in np.unique(labels)}
    code = {label: place for place, label in enumerate(sizes)} if name == "rows.safetensors" else None
    small, large = min(sizes, key=sizes.__getitem__), max(sizes, key=sizes.__getitem__)
    assert found.n_classes == 4
    assert found.smallest_class == (code[small] if code else small, sizes[small])
    assert found.largest_class == (code[large] if code else large, sizes[large])


def test_arrays_and_columns_are_listed_with_their_types(tmp_path: Path) -> None:
    path = tmp_path / "rows.npz"
    np.savez(path, features=np.zeros((4, 2), np.float32), y=np.arange(4), note=np.array(["x"] * 4), number=np.array(3))
    assert [(one.name, one.dtype, one.shape) for one in describe(path).arrays] == [
        ("features", "float32", (4, 2)),
        ("y", "int64", (4,)),
        ("note", "text", (4,)),
        ("number", "int64", ()),
    ]
    np.savez(path, allow_pickle=True, features=np.zeros((4, 2)), objects=np.array([None, 1]))
    assert describe(path).arrays[1].dtype == "pickled objects"
    table = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"a": [1.0], "b": ["x"], "label": [2]}), table)
    info = describe(table)
    assert [(one.name, one.dtype) for one in info.arrays] == [("a", "double"), ("b", "string"), ("label", "int64")]
    assert info.rows is not None
    assert (info.rows.features, info.rows.labels, info.rows.left_out) == (("a",), "label", ("b",))


def test_missing_values_of_a_table_are_bad_rows_and_rows_without_a_label(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    table = pa.table({"a": [1.0, None, 3.0, 4.0], "b": [1, 2, None, 4], "label": ["x", None, "x", "y"]})
    pq.write_table(table, path)
    info = describe(path)
    assert info.rows is not None
    found = info.rows.statistics
    assert (found.n_bad_rows, found.first_bad_row, found.n_missing_labels, found.n_classes) == (2, 1, 1, 2)
    pq.write_table(pa.table({"features": [[1.0, 2.0], None, [3.0, None]]}), path)
    info = describe(path)
    assert info.rows is not None
    assert (info.rows.statistics.n_bad_rows, info.rows.statistics.first_bad_row) == (2, 1)
    pq.write_table(pa.table({"features": [[1.0, 2.0], [1.0]]}), path)
    with pytest.raises(InputError, match="row 1 has 1 numbers but the first row has 2"):
        describe(path)


@pytest.mark.parametrize(
    "name", ["rows.npz", "rows.npy", "rows.safetensors", "rows.parquet", "lists.parquet", "rows.csv"]
)
def test_the_first_bad_row_is_counted_from_the_start_of_the_file(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "BATCH_BYTES", 1)
    features = np.ones((300, 2))
    features[[170, 171, 299]] = np.nan
    info = describe(written(tmp_path / name, features, np.full(300, "x")))
    assert info.rows is not None
    assert (info.rows.statistics.n_bad_rows, info.rows.statistics.first_bad_row) == (3, 170)


def test_a_list_of_another_length_is_counted_from_the_start_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "BATCH_BYTES", 1)
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"features": [[1.0, 2.0]] * 150 + [[1.0, 2.0, 3.0]] + [[1.0, 2.0]] * 9}), path)
    with pytest.raises(InputError, match="row 150 has 3 numbers but the first row has 2"):
        describe(path)


MOMENT = datetime(2020, 2, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("names", "kind"),
    [
        ([7, 8, 9], pa.int64()),
        ([7, 8, 9], pa.uint8()),
        ([False, True], pa.bool_()),
        ([0.0, 1.0, 2.0], pa.float32()),
        (["a", "", "ü"], pa.string()),
        (["a", "", "ü"], pa.dictionary(pa.int8(), pa.string())),
        ([b"a", b"b"], pa.dictionary(pa.int8(), pa.binary())),  # Parquet keeps no other kind
        ([b"a", b"b"], pa.binary()),
        ([[1], [1, 2], []], pa.list_(pa.int64())),
        ([{"a": 1}, {"a": 2}], pa.struct({"a": pa.int64()})),
        ([MOMENT.date(), date(1999, 1, 1)], pa.date32()),
        ([MOMENT.replace(tzinfo=None, microsecond=place) for place in range(3)], pa.timestamp("ns")),
        ([MOMENT + timedelta(days=place) for place in range(3)], pa.timestamp("ms", "UTC")),
        ([timedelta(hours=place) for place in range(3)], pa.duration("ns")),
    ],
    ids=str,
)
def test_a_class_is_one_class_whether_or_not_its_batch_has_gaps(
    names: list[Any], kind: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "BATCH_BYTES", 1)
    path = tmp_path / "rows.parquet"
    labels = [names[0]] * 10 + [names[place % len(names)] for place in range(190)]
    gaps = [70, 71, 100]  # all in the second of four batches
    kept = [None if place in gaps else label for place, label in enumerate(labels)]
    column = (
        pa.array(kept, kind.value_type).dictionary_encode() if pa.types.is_dictionary(kind) else pa.array(kept, kind)
    )
    pq.write_table(pa.table({"a": np.arange(200.0), "label": column}), path)
    info = describe(path)
    assert info.rows is not None
    found = info.rows.statistics
    sizes = [sum(label is not None and label == name for label in kept) for name in names]
    assert (found.n_classes, found.n_missing_labels) == (len(names), 3)
    assert found.smallest_class is not None
    assert found.largest_class is not None
    assert (found.smallest_class[1], found.largest_class[1]) == (min(sizes), max(sizes))


@pytest.mark.parametrize("gaps", [[], [1], [100, 101]], ids=["no gap", "one gap", "gaps in another batch"])
def test_labels_that_are_nan_are_missing(gaps: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "BATCH_BYTES", 1)
    path = tmp_path / "rows.parquet"
    labels: list[float | None] = [float(place % 2) for place in range(200)]
    for place in (0, 2, 199):
        labels[place] = np.nan
    for place in gaps:
        labels[place] = None
    pq.write_table(pa.table({"a": np.arange(200.0), "label": labels}), path)
    info = describe(path)
    assert info.rows is not None
    assert (info.rows.statistics.n_classes, info.rows.statistics.n_missing_labels) == (2, 3 + len(gaps))


@pytest.mark.parametrize(
    "none", [np.array([np.nan]), np.array(["NaT"], "M8[s]"), np.array([complex(np.nan, 0.0)])], ids=str
)
def test_labels_of_an_array_that_are_nan_are_missing(none: np.ndarray, tmp_path: Path) -> None:
    path = tmp_path / "rows.npz"
    some = np.array([1, 1, 2]).astype(none.dtype)
    np.savez(path, features=np.ones((5, 1)), labels=np.concatenate([none, some, none]))
    info = describe(path)
    assert info.rows is not None
    assert (info.rows.statistics.n_classes, info.rows.statistics.n_missing_labels) == (2, 2)


def test_lists_that_could_be_the_features_are_candidates(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    columns = {"features": ["x"], "lists": [[1.0]], "texts": [["x"]], "number": [1], "label": [2]}
    pq.write_table(pa.table(columns), path)
    info = describe(path)
    assert (info.kind, info.candidates) == ("arrays", ("lists", "number"))
    pq.write_table(pa.table(columns).slice(0, 0), path)
    assert describe(path).candidates == ()


def test_labels_without_end_are_not_all_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_statistics, "MOST_CLASSES", 5)
    path = tmp_path / "rows.npz"
    np.savez(path, features=np.zeros((9, 2)), labels=np.arange(9))
    info = describe(path)
    assert info.rows is not None
    assert (info.rows.statistics.n_classes, info.rows.statistics.largest_class) == (None, None)
    np.savez(path, features=np.zeros((9, 2)), labels=np.arange(9) % 5)  # as many as are counted, and not one more
    info = describe(path)
    assert info.rows is not None
    assert (info.rows.statistics.n_classes, info.rows.statistics.largest_class) == (5, (0, 2))


def test_labels_without_end_stay_uncounted_in_later_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_statistics, "MOST_CLASSES", 5)
    monkeypatch.setattr(reading, "BATCH_BYTES", 1)
    path = tmp_path / "rows.npz"
    labels = np.arange(300.0)
    labels[64:] = 1.0  # five names or fewer in every batch after the first
    labels[[3, 290]] = np.nan
    np.savez(path, features=np.zeros((300, 2)), labels=labels)
    info = describe(path)
    assert info.rows is not None
    found = info.rows.statistics
    assert (found.n_classes, found.smallest_class, found.largest_class) == (None, None, None)
    assert (found.n_rows, found.n_missing_labels) == (300, 2)


def test_rows_larger_than_memory_allows_are_read_in_little_memory(tmp_path: Path) -> None:
    path = tmp_path / "hole.npy"  # 0.8 GB that take no room on the disk
    np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=(2_000_000, 100)).flush()
    check = (
        "import resource; from gem_ood.files import describe; import sys; import numpy, pyarrow;"
        "resource.setrlimit(resource.RLIMIT_DATA, (600 << 20,) * 2);"
        "print(len(describe(sys.argv[1]).rows.statistics.zero_columns))"
    )
    command = [sys.executable, "-c", check, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.stdout == "100\n", done.stderr


def test_a_detector_is_told_as_it_was_made(tmp_path: Path) -> None:
    features, labels = rng.normal(size=(90, 3)), np.array(["é", "<b>", ""])[np.arange(90) % 3]
    path = tmp_path / "detector.of-any-suffix"
    detector = GEM(covariance="oas", priors=[0.2, 0.3, 0.5]).fit(features, labels)
    detector.calibrate(features, tpr=0.9, confidence=0.9).save(path)
    info = describe(path)
    found: Any = info.detector
    assert (info.kind, found.method, found.n_features, found.classes) == ("detector", "gem", 3, ("", "<b>", "é"))
    assert found.options["covariance"] == "oas"
    assert found.options["priors"] == "an array of shape (3,)"
    assert found.guarantee == detector.threshold_.guarantee
    assert (found.threshold["value"], found.threshold["n_rows"]) == (detector.threshold_.value, 90)
    assert {one.name: one.shape for one in info.arrays}["calibration.scores"] == (90,)
    assert (found.guard, found.feature_names, found.format_version) == (None, None, 1)


def test_heads_and_parts_of_a_detector_are_said_in_words(tmp_path: Path) -> None:
    features, labels = rng.normal(size=(200, 3)), np.arange(200) % 2
    Energy(head=Head(rng.normal(size=(2, 3)))).fit(features, labels).save(tmp_path / "energy.safetensors")
    found: Any = describe(tmp_path / "energy.safetensors").detector
    assert found.options["head"] == "a head of 2 classes and 3 features"
    assert found.threshold is None
    Combine([GEM(), Mahalanobis()]).fit(features, labels).save(tmp_path / "combine.safetensors")
    found = describe(tmp_path / "combine.safetensors").detector
    assert found.options["detectors"] == ["gem", "mahalanobis"]


def test_guards_are_told_without_torch() -> None:
    check = (
        "import sys; from gem_ood.files import describe; from pathlib import Path;"
        "print(sorted(describe(path).detector.guard['kind'] for path in Path(sys.argv[1]).glob('*.safetensors')));"
        "print('torch' in sys.modules)"
    )
    command = [sys.executable, "-c", check, str(GOLDEN / "guards-1")]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    kinds, has_torch = done.stdout.splitlines()
    assert (kinds.count("'"), has_torch) == (10, "False")
    assert "'OODModel'" in kinds


def test_every_detector_of_the_first_format_is_told() -> None:
    for path in (GOLDEN / "format-1").glob("*.safetensors"):
        found: Any = describe(path).detector
        assert found.method == path.stem.partition("-options")[0]


def test_a_head_is_told_apart(tmp_path: Path) -> None:
    path = tmp_path / "head.safetensors"
    save_file({"fc.weight": np.zeros((4, 9)), "fc.bias": np.zeros(4)}, path)
    info = describe(path)
    assert info.kind == "head"
    assert info.head == {"n_classes": 4, "n_features": 9, "has_bias": True, "classes": None}
    assert set(info.as_dict()) == {"path", "kind", "format", "n_bytes", "arrays", "head"}


@pytest.mark.parametrize("suffix", [".safetensors", ".npz"])
def test_rows_beside_the_weights_of_a_head_are_rows(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"rows{suffix}"
    arrays = {"features": np.ones((5, 9)), "labels": np.arange(5), "fc.weight": np.zeros((4, 9))}
    save_file(arrays, path) if suffix == ".safetensors" else np.savez(path, **arrays)
    info = describe(path)
    assert (info.kind, info.head) == ("rows", None)
    assert info.rows is not None
    assert (info.rows.n_rows, info.rows.features, info.rows.labels) == (5, ("features",), "labels")


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_a_column_that_is_called_a_weight_is_a_feature(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"mice{suffix}"
    table = pa.table({"mouse.weight": [20.5, 21.0], "weight": [1.0, 2.0], "mouse.length": [9.0, 8.5]})
    pq.write_table(table, path) if suffix == ".parquet" else table.to_pandas().to_csv(path, index=False)
    info = describe(path)
    assert (info.kind, info.remark) == ("rows", None)
    assert info.rows is not None
    assert (info.rows.n_rows, info.rows.features) == (2, ("mouse.weight", "weight", "mouse.length"))


@pytest.mark.parametrize("suffix", [".safetensors", ".npz"])
def test_the_weights_of_a_whole_model_are_no_rows(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"model{suffix}"
    arrays = {"conv.weight": np.zeros((4, 3, 3, 3)), "fc.weight": np.zeros((2, 4)), "fc.bias": np.zeros(2)}
    save_file(arrays, path) if suffix == ".safetensors" else np.savez(path, **arrays)
    info = describe(path)
    assert (info.kind, info.rows, info.head) == ("arrays", None, None)
    assert "look like the weights of a whole model" in str(info.remark)


def test_what_holds_a_detector_is_known_by_its_header(tmp_path: Path) -> None:
    GEM().fit(rng.normal(size=(9, 2))).save(tmp_path / "gem.safetensors")
    save_file({"features": np.zeros((2, 2))}, tmp_path / "rows.safetensors")
    (tmp_path / "none.safetensors").write_bytes(b"none")
    assert holds_detector(tmp_path / "gem.safetensors")
    for name in ("rows.safetensors", "none.safetensors", "missing.safetensors", ""):
        assert not holds_detector(tmp_path / name)


def test_a_damaged_detector_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "gem.safetensors"
    GEM().fit(rng.normal(size=(9, 2))).save(path)
    whole = path.read_bytes()
    damaged = whole.replace(rb"\"detector\": \"gem\"", rb"\"detector\": \"gim\"")
    assert damaged != whole
    path.write_bytes(damaged)
    with pytest.raises(InputError, match="gim"):
        describe(path)
