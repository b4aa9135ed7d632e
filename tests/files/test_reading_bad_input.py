"""Whatever is wrong with a file is one clear error that names the file, and the row where there is one."""

import os
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from safetensors.numpy import save_file

from gem_ood.errors import FileFormatError, InputError
from gem_ood.files import open_features, read_head, reading

FEATURES = np.ones((200, 3))


def read_all(path: Path, **options: Any) -> None:
    for _ in open_features(path, **options):
        pass


class Explosive:
    """An object that fails the test if it is ever unpickled."""

    def __reduce__(self) -> Any:
        return pytest.fail, ("a pickle was executed",)


def a_pickled_npy(path: Path) -> None:
    np.save(path, np.array([[Explosive()]], dtype=object), allow_pickle=True)


def a_bare_pickle(path: Path) -> None:
    path.write_bytes(pickle.dumps(Explosive()))


def a_pickled_npz(path: Path) -> None:
    np.savez(path, features=np.array([[Explosive()]], dtype=object))


def pickled_labels(path: Path) -> None:
    np.savez(path, features=np.ones((1, 2)), labels=np.array([Explosive()], dtype=object))


def a_zip_without_arrays(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("readme.txt", "hello")


def an_array_with_a_broken_header(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("features.npy", "hello")


def a_short_member(path: Path) -> None:
    np.save(path.with_suffix(".npy"), FEATURES)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("features.npy", path.with_suffix(".npy").read_bytes()[:-8])


def a_negative_length(path: Path) -> None:
    np.save(path.with_suffix(".npy"), FEATURES)
    data = path.with_suffix(".npy").read_bytes()
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("features.npy", data.replace(b"(200, 3)", b"(-200,3)"))


def cut(write: Callable[[Path], None], keep: float) -> Callable[[Path], None]:
    def write_part(path: Path) -> None:
        write(path)
        data = path.read_bytes()
        path.write_bytes(data[: int(len(data) * keep)])

    return write_part


def replaced(write: Callable[[Path], None], old: bytes, new: bytes) -> Callable[[Path], None]:
    def write_other(path: Path) -> None:
        write(path)
        data = path.read_bytes()
        assert old in data
        path.write_bytes(data.replace(old, new))

    return write_other


def npy(path: Path) -> None:
    np.save(path, FEATURES)


def npz(path: Path) -> None:
    np.savez_compressed(path, features=np.random.default_rng(0).normal(size=(500, 40)))


def parquet(path: Path) -> None:
    pq.write_table(pa.table({"a": FEATURES[:, 0]}), path)


def safetensors(path: Path) -> None:
    save_file({"features": FEATURES}, path)


def damaged(write: Callable[[Path], None], place: float) -> Callable[[Path], None]:
    def write_damaged(path: Path) -> None:
        write(path)
        data = bytearray(path.read_bytes())
        middle = int(len(data) * place)
        data[middle : middle + 16] = b"\xff" * 16
        path.write_bytes(data)

    return write_damaged


def text(content: str) -> Callable[[Path], None]:
    return lambda path: path.write_text(content) and None


FOREIGN = {
    "npy: pickled objects": ("x.npy", a_pickled_npy, "pickled Python objects, which are never loaded"),
    "npy: a bare pickle": ("x.npy", a_bare_pickle, "is not an array in NumPy's format"),
    "npy: truncated": ("x.npy", cut(npy, 0.5), r"is truncated: shape \(200, 3\) needs \d+ bytes"),
    "npy: a header that is no Python": (
        "x.npy",
        replaced(npy, b"'fortran_order': False", b"'fortran_order': Fal(e"),
        "is not an array in NumPy's format, or is damaged",
    ),
    "npy: a negative length": (
        "x.npy",
        replaced(npy, b"'shape': (200, 3)", b"'shape': (-200,3)"),
        r"is not an array in NumPy's format, or is damaged \(its shape \(-200, 3\) has a length below 0\)",
    ),
    "npy: two negative lengths": (
        "x.npy",
        replaced(npy, b"'shape': (200, 3), ", b"'shape': (-200,-3),"),
        r"its shape \(-200, -3\) has a length below 0",
    ),
    "npz: a negative length": ("x.npz", a_negative_length, r"x.npz: features .*its shape \(-200, 3\) has a length"),
    "npy: truncated header": ("x.npy", cut(npy, 0.005), "is not an array in NumPy's format, or is damaged"),
    "npy: text": ("x.npy", text("hello"), "is not an array in NumPy's format"),
    "npz: pickled objects": ("x.npz", a_pickled_npz, "x.npz: features holds pickled Python objects"),
    "npz: pickled labels": ("x.npz", pickled_labels, "x.npz: labels holds pickled Python objects"),
    "npz: text": ("x.npz", text("hello"), "is not a zip archive of arrays, or is damaged"),
    "npz: truncated": ("x.npz", cut(npz, 0.5), "is not a zip archive of arrays, or is damaged"),
    "npz: damaged": ("x.npz", damaged(npz, 0.5), "x.npz: features is not a zip archive of arrays, or is damaged"),
    "npz: header": ("x.npz", an_array_with_a_broken_header, "x.npz: features is not an array in NumPy's format"),
    "npz: short member": ("x.npz", a_short_member, "x.npz: features ends before its last row"),
    "parquet: text": ("x.parquet", text("hello hello hello"), "is not a Parquet file, or is damaged"),
    "parquet: truncated": ("x.parquet", cut(parquet, 0.5), "is not a Parquet file, or is damaged"),
    "parquet: damaged": (
        "x.parquet",
        damaged(parquet, 0.02),
        "x.parquet, row group 0: the file is damaged or truncated",
    ),
    "safetensors: text": ("x.safetensors", text("hello hello hello"), "is not a safetensors file, or is damaged"),
    "safetensors: truncated": ("x.safetensors", cut(safetensors, 0.5), "is not a safetensors file, or is damaged"),
    "csv: ragged": ("x.csv", text("a,b\n1,2\n3\n"), "cannot be read as CSV .*Expected 2 columns, got 1"),
    "empty": ("x.npz", lambda path: path.touch(), r"is empty \(0 bytes\); write it again"),
    "empty csv": ("x.csv", lambda path: path.touch(), r"is empty \(0 bytes\); write it again"),
}


@pytest.mark.parametrize("case", FOREIGN)
def test_a_foreign_or_damaged_file_is_refused(case: str, tmp_path: Path) -> None:
    name, write, message = FOREIGN[case]
    write(tmp_path / name)
    with pytest.raises(FileFormatError, match=message) as caught:
        read_all(tmp_path / name)
    assert str(tmp_path / name) in str(caught.value)
    assert "\n" not in str(caught.value)


def table(**columns: Any) -> Callable[[Path], None]:
    return lambda path: pq.write_table(pa.table(columns), path)


def archive(**arrays: Any) -> Callable[[Path], None]:
    return lambda path: np.savez(path, **arrays)


nan_far_down = FEATURES.copy()
nan_far_down[150, 2] = np.nan
UNFIT: dict[str, Any] = {
    "nan": ("x.npz", archive(features=nan_far_down), {}, "x.npz: features row 150, column 2 is NaN"),
    "nan in parquet": ("x.parquet", table(a=nan_far_down[:, 2]), {}, "features row 150, column 0 is NaN"),
    "null": ("x.parquet", table(a=[1.0] * 99 + [None]), {}, "x.parquet: row 99, column 'a' is missing"),
    "null list": ("x.parquet", table(features=[[1.0], None]), {}, "row 1, column 'features' is missing"),
    "null first list": ("x.parquet", table(features=[None, [1.0]]), {}, "row 0, column 'features' is missing"),
    "null in list": ("x.parquet", table(features=[[1.0], [None]]), {}, "row 1, column 'features' is missing"),
    "null label": ("x.parquet", table(a=[1.0, 2.0], y=["b", None]), {}, "row 1, column 'y' is missing"),
    "ragged": (
        "x.parquet",
        table(features=[[1.0, 2.0]] * 70 + [[3.0]]),
        {},
        "row 70, column 'features' has 1 numbers but the first row has 2; every row needs as many",
    ),
    "list of words": ("x.parquet", table(features=[["a"]]), {}, "not lists of numbers"),
    "words": ("x.parquet", table(a=["b"]), {"features": "a"}, "column 'a' holds string, not numbers; encode it"),
    "only words": ("x.parquet", table(a=["b"]), {}, "no numeric column besides the labels; it has 'a'"),
    "unknown column": ("x.parquet", table(a=[1.0]), {"features": "a,c"}, "no column 'c' .*; it has 'a'"),
    "unknown label": ("x.parquet", table(a=[1.0]), {"labels": "c"}, "no column 'c' for the labels; it has 'a'"),
    "column twice": ("x.parquet", table(a=[1.0]), {"features": "a,a"}, "names a column twice"),
    "no rows": ("x.parquet", table(a=np.zeros(0)), {}, "holds no rows"),
    "empty lists": ("x.parquet", table(features=pa.array([[], []], pa.list_(pa.float32()))), {}, "rows of 0 features"),
    "unknown member": ("x.npz", archive(a=FEATURES), {"features": "b"}, r"no array 'b' .*'a' of shape \(200, 3\)"),
    "unknown label member": ("x.npz", archive(a=FEATURES), {"labels": "b"}, "no array 'b' for the labels"),
    "two tables": ("x.npz", archive(a=FEATURES, b=FEATURES), {}, "no array 'features' and 2 that could be"),
    "no array": ("x.npz", a_zip_without_arrays, {}, "it holds no array"),
    "one dimension": ("x.npz", archive(features=np.ones(3)), {}, r"has shape \(3,\) but features have two dimensions"),
    "not numbers": ("x.npz", archive(features=np.array([["a"]])), {}, "does not hold numbers"),
    "labels too short": ("x.npz", archive(features=FEATURES, y=[1]), {}, "y has 1 rows but .* has 200"),
    "labels of two dimensions": ("x.npz", archive(features=FEATURES, y=FEATURES), {}, "labels have one dimension"),
    "fractions as labels": (
        "x.npz",
        archive(features=FEATURES, y=np.arange(200) / 150),
        {},
        r"labels row 1 is 0.00\d+; labels are whole numbers or strings",
    ),
    "no rows in npz": ("x.npz", archive(features=np.ones((0, 3))), {}, "holds no rows"),
    "csv null": ("x.csv", text("a,b\n1,2\n3,\n"), {}, "x.csv: row 1, column 'b' is missing"),
    "csv nan": ("x.csv", text("a,b\n1,2\nNaN,3\n"), {}, "x.csv: row 1, column 'a' is missing"),
    "csv empty label": ("x.csv", text("a,y\n1,cat\n3,\n"), {}, "x.csv: row 1, column 'y' is missing"),
    "csv empty column": ("x.csv", text("a,b\n1,\n3,\n"), {}, "row 0, column 'b' is missing"),
    "csv infinity": ("x.csv", text("a\n1\ninf\n"), {}, "features row 1, column 0 is infinity"),
    "csv without rows": ("x.csv", text("a,b\n"), {}, "holds no rows|no numeric column"),
    "csv without header": ("x.csv", text("0.5,1.5\n2,3\n"), {}, "its first line must name the columns"),
    "csv without header, whole": ("x.csv", text("1,2\n2,3\n"), {}, r"begins with numbers \(1, 2\) .*must name the"),
    "csv without header, mixed": (
        "x.csv",
        text("0.5,1,0.5,2\n2,3,4,5\n"),
        {},
        r"begins with numbers \(0.5, 1, 0.5, \.\.\.\)",
    ),
    "csv with semicolons": ("x.csv", text("a;b\n1;2\n"), {}, "seems to be separated by semicolons .* by commas"),
    "csv with decimal commas": ("x.csv", text("a;b\n1,5;2,5\n"), {}, "seems to be separated by semicolons"),
    "csv with tabs": ("x.csv", text("a\tb\n1\t2\n"), {}, "seems to be separated by tabs"),
    "csv label as a feature": ("x.csv", text("a,y\n1,2\n"), {"features": "a,y"}, "'y' would be both a feature and"),
    "parquet label as a feature": (
        "x.parquet",
        table(a=[1.0], b=[1]),
        {"features": ["a", "b"], "labels": "b"},
        "column 'b' would be both a feature and the labels; leave it out of features",
    ),
    "fitted column missing": (
        "x.csv",
        text("b,id,d\n1,2,3\n"),
        {"fitted_names": ["a", "b", "c"]},
        "x.csv has no columns 'a', 'c', but the detector was fitted on 'a', 'b', 'c'; it has 'b', 'id', 'd': rename",
    ),
    "fitted column of words": (
        "x.csv",
        text("a,b\n1,oops\n"),
        {"fitted_names": ["a", "b"]},
        "column 'b' holds string, not numbers",
    ),
    "csv with an index": ("x.csv", text(",a\n0,1.5\n1,3\n"), {}, "a column without a name, perhaps a saved row index"),
    "csv same name": ("x.csv", text("a,a\n0,1.5\n"), {}, "two columns of one name"),
    "csv words": ("x.csv", text("a,b\n0,cat\n"), {"features": "a,b"}, "column 'b' holds string, not numbers"),
    "suffix": ("x.txt", text("hello"), {}, "has the suffix '.txt' but .npz .npy .parquet .csv .safetensors can be"),
    "no suffix": ("x", text("hello"), {}, r"has the suffix '\(none\)'"),
    "directory": ("x.npz", lambda path: path.mkdir(), {}, "is a directory without .parquet files; pass one file"),
    "missing": ("x.npz", lambda path: None, {}, "does not exist; check the path"),
    "missing labels": ("x.npz", npz, {"labels": "nowhere.npy"}, "nowhere.npy does not exist"),
}


@pytest.mark.parametrize("case", UNFIT)
def test_rows_that_do_not_fit_are_one_clear_error(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "BATCH_BYTES", 1)
    name, write, options, message = UNFIT[case]
    write(tmp_path / name)
    with pytest.raises(InputError, match=message) as caught:
        read_all(tmp_path / name, **options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("suffix", reading.READABLE)
def test_a_pipe_is_refused_at_once(suffix: str, tmp_path: Path) -> None:
    pipe = tmp_path / f"rows{suffix}"
    os.mkfifo(pipe)
    message = rf"rows{suffix} is no regular file but a pipe, a device or the like; pass a file that is on disk"
    with pytest.raises(InputError, match=message):
        open_features(pipe)
    np.save(tmp_path / "features.npy", FEATURES)
    if suffix == ".npy":
        with pytest.raises(InputError, match=message):
            open_features(tmp_path / "features.npy", labels=pipe)
    if suffix in (".npz", ".safetensors"):
        with pytest.raises(InputError, match=message):
            read_head(pipe)


@pytest.mark.parametrize("content", ["é,b\n1,2\n", "a,label\n1,é\n"])
def test_a_csv_in_latin_1_is_refused_with_the_remedy(content: str, tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_bytes(content.encode("latin-1"))
    with pytest.raises(FileFormatError, match=r"x.csv is not text in UTF-8 .*; save it as UTF-8"):
        read_all(tmp_path / "x.csv")


def test_columns_left_out_because_of_a_bad_cell_are_named(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("a,b,label\n1,2,cat\n3,oops,dog\n")
    with pytest.warns(UserWarning, match=r"x.csv: left out of the features, as not every value is a number: 'b'; mend"):
        file = open_features(tmp_path / "x.csv")
    assert (file.feature_names, file.left_out) == (("a",), ("b",))
    asked = open_features(tmp_path / "x.csv", features="a")  # a choice deserves no warning
    assert asked.left_out == ()


def test_columns_named_by_their_place_are_a_header(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("0,1,2\n1.5,2.5,3.5\n")
    assert [len(features) for features, _ in open_features(tmp_path / "x.csv")] == [1]


def test_a_tensor_type_that_numpy_has_not_is_refused(tmp_path: Path) -> None:
    header = b'{"features":{"dtype":"BF16","shape":[1,2],"data_offsets":[0,4]}}'
    path = tmp_path / "x.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(4))
    with pytest.raises(InputError, match=r"features has the type BF16, .*save it as F32"):
        open_features(path)


def test_unrelated_pickles_in_an_archive_are_left_alone(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", features=FEATURES, extra=np.array([Explosive()], dtype=object))
    parts = [features for features, _ in open_features(tmp_path / "x.npz")]
    np.testing.assert_array_equal(np.vstack(parts), FEATURES)


@pytest.mark.parametrize("suffix", ["npz", "safetensors"])
@pytest.mark.parametrize("prefix", ["", "fc."])
def test_a_head_is_read_with_or_without_bias(suffix: str, prefix: str, tmp_path: Path) -> None:
    save = np.savez if suffix == "npz" else lambda path, **arrays: save_file(arrays, path)
    weight, bias = np.arange(6.0).reshape(2, 3), np.array([0.5, 1.5])
    save(tmp_path / f"head.{suffix}", **{f"{prefix}weight": weight, f"{prefix}bias": bias})
    head = read_head(tmp_path / f"head.{suffix}")
    np.testing.assert_array_equal(head.weight, weight)
    np.testing.assert_array_equal(head.bias, bias)
    save(tmp_path / f"bare.{suffix}", **{f"{prefix}weight": weight})
    np.testing.assert_array_equal(read_head(tmp_path / f"bare.{suffix}").bias, [0.0, 0.0])


def test_a_head_file_without_a_weight_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "head.npz", kernel=FEATURES)
    with pytest.raises(InputError, match="must hold one 'weight' but has 0; it holds 'kernel'"):
        read_head(tmp_path / "head.npz")
    np.save(tmp_path / "head.npy", FEATURES)
    with pytest.raises(InputError, match=r"has the suffix '.npy' but .npz .safetensors can be read"):
        read_head(tmp_path / "head.npy")
