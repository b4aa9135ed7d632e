"""Directories and patterns of Parquet files are read as one table, and whatever is wrong with one names that file."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gem_ood import GEM
from gem_ood.errors import FileFormatError, InputError
from gem_ood.files import calibrate_on_file, describe, open_features, reading, score_file
from gem_ood.files.arrow_rows import TableColumns, transposed
from gem_ood.files.parquet_sets import ParquetSet, damaged_row_group, read_row_groups

N_ROWS, N_FEATURES = (70, 1, 0, 129), 4

rng = np.random.default_rng(5)
FEATURES = [rng.normal(size=(n, N_FEATURES)) for n in N_ROWS]
LABELS = [rng.choice(["ant", "bee", "cat"], size=n) for n in N_ROWS]
NAMES = ("a.parquet", "part/0.parquet", "part/1.parquet", "z.parquet")


def as_columns(features: Any, labels: Any) -> pa.Table:
    names = pa.array(list(labels), pa.string())
    return pa.table({f"x{place}": features[:, place] for place in range(N_FEATURES)} | {"label": names})


def as_lists(features: Any, labels: Any) -> pa.Table:
    kind = pa.list_(pa.float64())
    return pa.table({"features": pa.array(list(features), kind), "label": pa.array(list(labels), pa.string())})


def as_fixed_lists(features: Any, labels: Any) -> pa.Table:
    kind = pa.list_(pa.float64(), N_FEATURES)
    return pa.table({"features": pa.array(list(features), kind), "label": pa.array(list(labels), pa.string())})


SHAPES = {"columns": as_columns, "lists": as_lists, "fixed lists": as_fixed_lists}


@pytest.fixture(params=SHAPES)
def rows(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A directory of four files, one of them empty, in row groups of ten rows, beside the markers of other programs."""
    root = tmp_path / "rows"
    (root / "part").mkdir(parents=True)
    for name, features, labels in zip(NAMES, FEATURES, LABELS, strict=True):
        pq.write_table(SHAPES[request.param](features, labels), root / name, row_group_size=10)
    (root / "_SUCCESS").touch()
    (root / ".a.parquet.crc").write_text("x")
    (root / "_metadata").write_text("x")
    (root / "_temporary").mkdir()
    (root / "_temporary" / "half.parquet").write_text("x")
    return root


def read(path: Path, **options: Any) -> tuple[Any, Any]:
    batches = list(open_features(path, **options))
    labels = [names for _, names in batches if names is not None]
    return np.concatenate([X for X, _ in batches]), np.concatenate(labels) if labels else None


def test_a_directory_is_read_as_all_its_files_in_the_order_of_their_names(
    rows: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "BATCH_BYTES", 1)
    file = open_features(rows)
    assert (file.n_rows, file.n_features, file.has_labels, file.is_file_set) == (200, N_FEATURES, True, True)
    features, labels = read(rows)
    np.testing.assert_array_equal(features, np.concatenate(FEATURES))
    np.testing.assert_array_equal(labels, np.concatenate(LABELS))
    assert [batch.first_row for batch in file.batches()] == [0, 64, 70, 71, 135, 199]


def test_a_pattern_stands_for_the_files_that_match_it(rows: Path) -> None:
    features, _ = read(rows / "*.parquet")
    np.testing.assert_array_equal(features, np.concatenate([FEATURES[0], FEATURES[3]]))
    features, _ = read(rows / "**" / "*.parquet")
    np.testing.assert_array_equal(features, np.concatenate(FEATURES))
    features, _ = read(rows / "**")  # finds a file by itself and in the directories above it
    np.testing.assert_array_equal(features, np.concatenate(FEATURES))
    features, _ = read(rows / "p*")  # a directory that matches is read whole
    np.testing.assert_array_equal(features, FEATURES[1])


def test_a_file_whose_own_name_has_a_star_is_that_file_and_brackets_are_no_pattern(tmp_path: Path) -> None:
    for name, place in (("*.parquet", 0), ("b.parquet", 3), ("[b]1.parquet", 1)):
        pq.write_table(as_columns(FEATURES[place], LABELS[place]), tmp_path / name)
    assert open_features(tmp_path / "*.parquet").n_rows == 70
    assert open_features(tmp_path / "[b]*.parquet").n_rows == 1


def test_a_directory_named_as_a_file_is_a_directory(tmp_path: Path) -> None:
    (tmp_path / "x.parquet").mkdir()
    pq.write_table(as_columns(FEATURES[0], LABELS[0]), tmp_path / "x.parquet" / "part-0.snappy.parquet")
    assert open_features(tmp_path / "x.parquet").n_rows == 70
    assert open_features(tmp_path).n_rows == 70
    assert open_features(tmp_path / "*.parquet").n_rows == 70


def test_labels_beside_the_set_go_by_the_row_of_the_whole_set(rows: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "labels.npy", np.arange(200))
    _, labels = read(rows, labels=tmp_path / "labels.npy")
    np.testing.assert_array_equal(labels, np.arange(200))
    np.save(tmp_path / "labels.npy", np.arange(199))
    with pytest.raises(InputError, match=r"labels.npy has 199 rows but .*rows has 200; pass one label per row"):
        open_features(rows, labels=tmp_path / "labels.npy")


def test_fit_calibrate_and_score_are_those_of_the_rows_in_memory(rows: Path) -> None:
    X, y = np.concatenate(FEATURES), np.concatenate(LABELS)
    expected = GEM().fit(X, y).calibrate(X)
    file = open_features(rows)
    detector = calibrate_on_file(GEM().fit_batches(file), file)
    assert detector.threshold_.value == pytest.approx(expected.threshold_.value, rel=1e-12)
    scores = np.concatenate([verdicts.score for verdicts in score_file(detector, file)])
    np.testing.assert_allclose(scores, expected.score_samples(X), rtol=1e-10)


def test_each_file_of_a_set_can_be_read_by_itself(rows: Path) -> None:
    parts = open_features(rows).without_labels().parts()
    assert [part.n_rows for part in parts] == list(N_ROWS)
    assert [part.path for part in parts] == [rows / name for name in NAMES]
    np.testing.assert_array_equal(np.concatenate([X for X, _ in parts[3]]), FEATURES[3])


def test_info_counts_files_rows_and_bytes_and_places_the_first_bad_row(rows: Path) -> None:
    info = describe(rows)
    assert info.rows is not None
    sizes = [(rows / name).stat().st_size for name in NAMES]
    assert (info.kind, info.format, info.n_files, info.n_bytes) == ("rows", "parquet", 4, sum(sizes))
    assert (info.rows.n_rows, info.rows.statistics.n_classes, info.rows.statistics.n_bad_rows) == (200, 3, 0)
    features = FEATURES[3].copy()
    features[100, 2] = np.nan
    is_list = "features" in pq.read_schema(rows / "a.parquet").names
    shape = as_lists if is_list else as_columns
    pq.write_table(shape(features, LABELS[3]), rows / "z.parquet")
    found = describe(rows).rows
    assert found is not None
    assert (found.statistics.n_bad_rows, found.statistics.first_bad_row) == (1, 100)
    assert found.statistics.first_bad_file == str(rows / "z.parquet")


# What is wrong with one file


def rewritten(name: str, table: Callable[[], pa.Table]) -> Callable[[Path], None]:
    return lambda root: pq.write_table(table(), root / name)


def flipped(root: Path) -> None:
    """Damage the bytes in the middle of the fifth row group of z.parquet."""
    path = root / "z.parquet"
    group = pq.read_metadata(path).row_group(5).column(0)
    data = bytearray(path.read_bytes())
    start = group.dictionary_page_offset or group.data_page_offset
    data[start : start + 12] = b"\xff" * 12
    path.write_bytes(data)


def cut_short(root: Path) -> None:
    data = (root / "z.parquet").read_bytes()
    (root / "z.parquet").write_bytes(data[: len(data) // 2])


def with_nan() -> pa.Table:
    features = FEATURES[3].copy()
    features[77, 1] = np.nan
    return as_columns(features, LABELS[3])


def with_null() -> pa.Table:
    return pa.table({**as_columns(FEATURES[3], LABELS[3]).to_pydict(), "x3": [1.0] * 128 + [None]})


def other_labels(labels: Any) -> pa.Table:
    table = as_columns(FEATURES[3], LABELS[3])
    return table.set_column(N_FEATURES, "label", pa.array(labels))


def linked(name: str, target: str) -> Callable[[Path], None]:
    return lambda root: (root / name).symlink_to(target)


WRONG: dict[str, tuple[Callable[[Path], Any], str]] = {
    "a column less": (
        rewritten("z.parquet", lambda: as_columns(FEATURES[3], LABELS[3]).drop_columns(["x1"])),
        r"z.parquet has no column 'x1' but .*a.parquet has one; all files of a set need the same columns",
    ),
    "a column more": (
        rewritten("z.parquet", lambda: as_columns(FEATURES[3], LABELS[3]).append_column("w", [FEATURES[3][:, 0]])),
        r"z.parquet has a column 'w' but .*a.parquet has none",
    ),
    "text for numbers": (
        rewritten("z.parquet", lambda: as_columns(FEATURES[3].astype(str), LABELS[3])),
        r"z.parquet: column 'x0' holds text but in .*a.parquet it holds numbers",
    ),
    "numbers for text": (
        rewritten("z.parquet", lambda: other_labels(np.arange(129))),
        r"z.parquet: column 'label' holds numbers but in .*a.parquet it holds text",
    ),
    "text": (lambda root: (root / "notes.txt").write_text("x"), "notes.txt is no .parquet file, but a directory of"),
    "no suffix": (lambda root: (root / "notes").write_text("x"), "notes is no .parquet file"),
    "an empty file": (lambda root: (root / "y.parquet").touch(), r"y.parquet is empty \(0 bytes\)"),
    "no Parquet": (lambda root: (root / "y.parquet").write_text("hello hello"), "y.parquet is not a Parquet file"),
    "truncated": (cut_short, "z.parquet is not a Parquet file, or is damaged or truncated"),
    "a damaged row group": (flipped, "z.parquet, row group 5: the file is damaged or truncated"),
    "NaN": (rewritten("z.parquet", with_nan), "z.parquet: features row 77, column 1 is NaN"),
    "null": (rewritten("z.parquet", with_null), "z.parquet: row 128, column 'x3' is missing"),
    "half a label": (
        rewritten("z.parquet", lambda: other_labels(["ant"] * 9 + [None] + ["ant"] * 119)),
        "z.parquet: row 9, column 'label' is missing",
    ),
    "a circle of links": (linked("part/up", ".."), "part/up is a link to a directory that it lies in; remove the link"),
    "a link to itself": (linked("y.parquet", "y.parquet"), "y.parquet is a link to nothing"),
    "a link to nothing": (linked("y.parquet", "nowhere.parquet"), "y.parquet is a link to nothing"),
    "one file twice": (linked("y.parquet", "z.parquet"), "y.parquet and .*z.parquet are one file, whose rows would"),
    "a pipe": (lambda root: os.mkfifo(root / "y.parquet"), "y.parquet is no regular file"),
}


@pytest.mark.parametrize("rows", ["columns"], indirect=True)
@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_with_one_file_names_it(case: str, rows: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "BATCH_BYTES", 1)
    spoil, message = WRONG[case]
    spoil(rows)
    with pytest.raises(InputError, match=message) as caught:
        read(rows)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("rows", ["columns"], indirect=True)
@pytest.mark.parametrize("case", ["one file twice", "a circle of links"])
def test_a_pattern_of_all_depths_refuses_what_a_directory_does(case: str, rows: Path) -> None:
    spoil, message = WRONG[case]
    spoil(rows)
    with pytest.raises(InputError, match=message):
        read(rows / "**")


def test_lists_of_another_length_are_refused_before_any_row_is_read(tmp_path: Path) -> None:
    pq.write_table(pa.table({"features": [[1.0, 2.0]] * 3}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"features": [[1.0, 2.0, 3.0]] * 3}), tmp_path / "b.parquet")
    with pytest.raises(InputError, match=r"b.parquet: column 'features' has 3 numbers a row but in the first file it"):
        open_features(tmp_path)
    pq.write_table(pa.table({"features": [[1.0, 2.0], [1.0], [1.0, 2.0]]}), tmp_path / "b.parquet")
    with pytest.raises(InputError, match=r"b.parquet: row 1, column 'features' has 1 numbers but the first row has 2"):
        read(tmp_path)
    pq.write_table(pa.table({"features": [[1.0, 2.0], None, [1.0, 2.0]]}), tmp_path / "b.parquet")
    with pytest.raises(InputError, match=r"b.parquet: row 1, column 'features' is missing"):
        read(tmp_path)
    (tmp_path / "b.parquet").unlink()
    pq.write_table(pa.table({"features": [[1.0, 2.0], [1.0, 2.0, 3.0, 4.0]]}), tmp_path / "a.parquet")
    with pytest.raises(InputError, match=r"a.parquet: row 1, column 'features' has 4 numbers but the first row has 2"):
        read(tmp_path)


def test_numbers_of_other_sizes_and_columns_in_another_order_are_one_set(tmp_path: Path) -> None:
    names = pa.array(list(LABELS[0])).dictionary_encode()
    table = as_columns(FEATURES[0].astype(np.float32), LABELS[0]).set_column(N_FEATURES, "label", names)
    pq.write_table(table.select(["label", "x3", "x1", "x0", "x2"]), tmp_path / "b.parquet")
    pq.write_table(as_columns(FEATURES[0], LABELS[0]), tmp_path / "a.parquet")
    features, labels = read(tmp_path)
    np.testing.assert_allclose(features[70:], FEATURES[0], rtol=1e-6)
    np.testing.assert_array_equal(labels[70:], LABELS[0])


def test_labels_in_the_names_of_directories_are_refused_unless_ignored(tmp_path: Path) -> None:
    for name in LABELS[0][:3]:
        (tmp_path / f"label={name}").mkdir(exist_ok=True)
        table = as_columns(FEATURES[0], LABELS[0]).drop_columns(["label"])
        pq.write_table(table, tmp_path / f"label={name}" / "part-0.parquet")
    with pytest.raises(InputError, match=r"the labels are in the name of the directory 'label="):
        open_features(tmp_path)
    assert not open_features(tmp_path, labels=False).has_labels


def test_directories_and_patterns_without_rows_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"is a directory without .parquet files; pass one file, or a directory of"):
        open_features(tmp_path)
    with pytest.raises(InputError, match=r"\*.parquet matches no .parquet file"):
        open_features(tmp_path / "*.parquet")
    pq.write_table(as_columns(FEATURES[2], LABELS[2]), tmp_path / "a.parquet")
    with pytest.raises(InputError, match=r"holds no rows"):
        open_features(tmp_path)
    (tmp_path / "b.npz").write_text("x")
    with pytest.raises(InputError, match=r"b.npz is no .parquet file"):
        open_features(tmp_path / "*")


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="nothing is forbidden to root")
def test_what_must_not_be_read_is_named(tmp_path: Path) -> None:
    pq.write_table(as_columns(FEATURES[0], LABELS[0]), tmp_path / "a.parquet")
    (tmp_path / "a.parquet").chmod(0)
    with pytest.raises(InputError, match=r"a.parquet cannot be read \(Permission denied\)"):
        open_features(tmp_path)
    (tmp_path / "a.parquet").unlink()
    (tmp_path / "inner").mkdir(mode=0)
    with pytest.raises(InputError, match=r"inner cannot be read \(Permission denied\)"):
        open_features(tmp_path)


@pytest.mark.parametrize("reason", [PermissionError(13, "Permission denied"), OSError(5, "Input/output error")])
def test_a_file_that_the_system_refuses_is_one_line(
    reason: OSError, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pq.write_table(as_columns(FEATURES[0], LABELS[0]), tmp_path / "a.parquet")
    file = open_features(tmp_path)

    def refuse(*_: Any, **__: Any) -> None:
        raise reason

    monkeypatch.setattr(pq, "ParquetFile", refuse)
    with pytest.raises(InputError, match=rf"a.parquet cannot be read \({reason.strerror}\); mend that, or leave"):
        open_features(tmp_path)
    with pytest.raises(InputError, match=rf"a.parquet cannot be read \({reason.strerror}\)"):
        list(file)


def test_a_file_that_vanishes_or_shrinks_after_it_was_opened_is_an_error(rows: Path) -> None:
    file = open_features(rows)
    table = pq.read_table(rows / "z.parquet")
    pq.write_table(table.slice(0, 100), rows / "z.parquet", row_group_size=10)
    with pytest.raises(InputError, match=r"z.parquet has 10 row groups but number 12 is asked for"):
        list(file)
    pq.write_table(table.slice(0, 128), rows / "z.parquet", row_group_size=10)
    with pytest.raises(InputError, match=r"z.parquet had 129 rows when it was opened but 128 when it was read"):
        list(file)
    (rows / "z.parquet").unlink()
    with pytest.raises(InputError, match=r"z.parquet cannot be read"):
        list(file)


# What a cluster reads


def test_row_groups_are_read_as_checked_rows_with_their_place_and_other_columns(rows: Path) -> None:
    file = open_features(rows)
    assert file.parquet is not None
    assert file.columns is not None
    part = file.parquet.files[3]
    assert [group.n_rows for group in part.row_groups] == [10] * 12 + [9]
    assert all(group.n_bytes > 0 for group in part.row_groups)
    for groups in ([0], [3, 4, 5], [12], [7, 2], [0, 5, 6, 12], range(13)):
        places = np.concatenate([np.arange(129)[10 * group : 10 * group + 10] for group in groups])
        batches = list(read_row_groups(part.path, groups, columns=file.columns, other=["label"], batch_rows=8))
        np.testing.assert_array_equal(np.concatenate([batch.features for batch in batches]), FEATURES[3][places])
        names = [batch.labels for batch in batches if batch.labels is not None]
        np.testing.assert_array_equal(np.concatenate(names), LABELS[3][places])
        assert [name for batch in batches for name in batch.other["label"].to_pylist()] == LABELS[3][places].tolist()
        rows_of_file = [batch.first_row + np.arange(len(batch.features)) for batch in batches]
        np.testing.assert_array_equal(np.concatenate(rows_of_file), places)


@pytest.mark.parametrize("rows", ["columns"], indirect=True)
def test_a_damaged_row_group_is_named_whichever_groups_are_read(rows: Path) -> None:
    file = open_features(rows)
    assert file.columns is not None
    path = rows / "z.parquet"
    assert damaged_row_group(path) is None
    flipped(rows)
    assert damaged_row_group(path) == 5
    assert damaged_row_group(path, columns=["x1"]) is None
    for groups in ([5], [4, 5, 6], [12, 5]):
        with pytest.raises(FileFormatError, match=r"z.parquet, row group 5: the file is damaged"):
            list(read_row_groups(path, groups, columns=file.columns))
    assert len(list(read_row_groups(path, [4, 6], columns=file.columns))) == 2


def test_a_changed_byte_is_noticed_where_pages_have_checksums(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    options = {"compression": "none", "use_dictionary": False, "write_page_checksum": True, "row_group_size": 50}
    pq.write_table(pa.table({"a": np.arange(200.0)}), path, **options)
    data = path.read_bytes()
    place = data.index(np.float64(130.0).tobytes())
    path.write_bytes(data[:place] + np.float64(7.0).tobytes() + data[place + 8 :])
    with pytest.raises(FileFormatError, match=r"a.parquet, row group 2: the file is damaged .*CRC"):
        read(path)


def test_the_columns_of_equal_files_are_kept_once(rows: Path) -> None:
    schemas = {id(file.schema) for file in ParquetSet.open(rows).files}
    assert len(schemas) == 1


def test_what_a_worker_is_sent_can_be_pickled() -> None:
    import pickle

    columns = TableColumns(("a", "b"), "y", is_list=False, n_features=2)
    assert pickle.loads(pickle.dumps(columns)) == columns


@pytest.mark.parametrize("shape", [(1, 1), (1, 40), (1025, 1), (1024, 16), (3000, 37)])
def test_columns_become_rows_as_numpy_stacks_them(shape: tuple[int, int]) -> None:
    columns = list(rng.normal(size=shape[::-1]))
    rows = transposed(columns)
    np.testing.assert_array_equal(rows, np.stack(columns, axis=1))
    assert rows.flags.c_contiguous
