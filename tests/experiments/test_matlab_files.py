"""MATLAB files against SciPy's reader, and damaged ones, which may only ever be refused."""

import io
import struct
import zlib

import numpy as np
import pytest
from scipy.io import loadmat, savemat
from scipy.sparse import eye_array

from gem_ood.errors import FileFormatError
from gem_ood.experiments.data_sets import load, matlab
from gem_ood.experiments.data_sets.matlab import read_matlab

DTYPES = ["u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f4", "f8"]
SHAPES = [(1, 1), (1, 3), (5, 1), (4, 7), (3, 2, 5), (32, 32, 3, 2), (0, 4), (2, 1, 1, 3)]


def written(*, compressed=True, **arrays):
    buffer = io.BytesIO()
    savemat(buffer, arrays, do_compression=compressed)
    return buffer.getvalue()


def made(shape, dtype, seed=0):
    return np.random.default_rng(seed).integers(0, 127, size=shape).astype(dtype)


def element(kind, body, order="<"):
    """A data element with its padding."""
    return struct.pack(f"{order}II", kind, len(body)) + body + bytes(-len(body) % 8)


def small(kind, body, order="<"):
    """A data element of at most four bytes in the space of a tag."""
    return struct.pack(f"{order}I", len(body) << 16 | kind) + body.ljust(4, b"\0")


def matrix(name, values, *, order="<", code=9, flags=0, shape=(1, 3), lengths=None, tail=b""):
    """A variable, its values an element; `tail` follows them."""
    told = element(6, struct.pack(f"{order}II", code | flags, 0), order)
    sides = element(5, struct.pack(f"{order}{len(shape)}i", *shape), order) if lengths is None else lengths
    called = small(1, name, order) if 0 < len(name) <= 4 else element(1, name, order)
    return element(14, told + sides + called + values + tail, order)


def file_of(*variables, order="<", version=0x0100):
    mark = b"IM" if order == "<" else b"MI"
    return b"MATLAB 5.0 MAT-file".ljust(124) + struct.pack(f"{order}H", version) + mark + b"".join(variables)


THREE = bytes([7, 8, 9])


@pytest.mark.parametrize("compressed", [True, False])
@pytest.mark.parametrize("dtype", DTYPES)
def test_arrays_of_every_type_and_shape_are_read_as_scipy_reads_them(dtype, compressed):
    for place, shape in enumerate(SHAPES):
        for layout in "CF":
            data = written(X=np.asarray(made(shape, dtype, place), order=layout), y=[1.5], compressed=compressed)
            expected, found = loadmat(io.BytesIO(data)), read_matlab(data, "a.mat", ["X", "y"])
            for name in ("X", "y"):
                assert found[name].dtype == expected[name].dtype
                np.testing.assert_array_equal(found[name], expected[name], strict=True)


@pytest.mark.parametrize("order", "<>")
@pytest.mark.parametrize("stored", [(2, "u1"), (3, "i2"), (4, "u2"), (5, "i4"), (9, "f8")])
def test_numbers_in_a_smaller_type_and_either_byte_order_are_read_as_scipy_reads_them(stored, order):
    kind, dtype = stored
    values = np.array([3, 200, 77]).astype(order + dtype).tobytes()
    packed = zlib.compress(matrix(b"labels", element(kind, values, order), order=order, code=6))
    plain = matrix(b"X", small(2, THREE, order), order=order)
    data = file_of(plain, struct.pack(f"{order}II", 15, len(packed)) + packed, order=order)
    expected, found = loadmat(io.BytesIO(data)), read_matlab(data, "a.mat", ["X", "labels"])
    np.testing.assert_array_equal(found["X"], [[7, 8, 9]])
    np.testing.assert_array_equal(found["labels"], expected["labels"].astype(dtype), strict=True)
    assert found["labels"].dtype.isnative


@pytest.mark.parametrize("compressed", [True, False])
def test_other_variables_are_passed_over(compressed):
    others = {
        "words": "some text",
        "cells": np.array([[1, "a"], [np.eye(2), 3]], dtype=object),
        "fields": {"a": 1, "b": "c"},
        "thin": eye_array(5),
        "turned": np.array([1 + 2j]),
        "is_so": np.array([True]),
    }
    X = made((32, 32, 3, 4), "u1")
    data = written(**others, X=X, last=3.0, compressed=compressed)
    np.testing.assert_array_equal(read_matlab(data, "a.mat", ["X"])["X"], X)
    opaque = matrix(b"s", b"", code=17, lengths=b"", tail=element(1, b"MCOS") + element(1, b"string"))
    data = file_of(opaque, matrix(b"X", small(2, THREE)))
    np.testing.assert_array_equal(read_matlab(data, "a.mat", ["X"])["X"], [[7, 8, 9]])


@pytest.mark.parametrize("compressed", [True, False])
@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ("text", r"char \(1, 4\)"),
        (np.array([[1, "a"]], dtype=object), r"cell \(1, 2\)"),
        ({"a": 1}, r"struct \(1, 1\)"),
        (eye_array(5), r"sparse \(5, 5\)"),
        (np.array([1 + 2j]), r"complex double \(1, 1\)"),
        (np.array([True, False]), r"logical \(1, 2\)"),
    ],
    ids=["char", "cell", "struct", "sparse", "complex", "logical"],
)
def test_what_is_no_plain_array_is_refused_by_name(value, kind, compressed):
    data = written(X=value, y=[1.0], compressed=compressed)
    with pytest.raises(FileFormatError, match=rf"a\.mat holds X {kind}, y .*, but not both X and y as numbers; "):
        read_matlab(data, "a.mat", ["X", "y"])


@pytest.mark.parametrize("code", [3, 16, 17])
def test_objects_and_functions_are_refused_by_name(code):
    kind = {3: "object", 16: "function", 17: "opaque"}[code]
    data = file_of(matrix(b"X", small(2, THREE), code=code, lengths=b"" if code == 17 else None))
    with pytest.raises(FileFormatError, match=f"holds X {kind} "):
        read_matlab(data, "a.mat", ["X"])


def test_files_of_other_versions_are_refused_by_name():
    buffer = io.BytesIO()
    savemat(buffer, {"X": np.eye(3), "y": [1.0]}, format="4")
    with pytest.raises(FileFormatError, match=r"MATLAB's version 4, .*; save it with save\(\.\.\., '-v7'\)"):
        read_matlab(buffer.getvalue(), "a.mat", ["X"])
    for data in (file_of(version=0x0200), file_of(version=0x0200, order=">"), b"\x89HDF\r\n\x1a\n" + bytes(600)):
        with pytest.raises(FileFormatError, match=r"MATLAB's version 7\.3, .*; save it with save\(\.\.\., '-v7'\)"):
            read_matlab(data, "a.mat", ["X"])


def packed(content, *, tail=b""):
    body = zlib.compress(content) + tail
    return struct.pack("<II", 15, len(body)) + body


X_VALUES = element(2, THREE)
X_MATRIX = matrix(b"X", X_VALUES)
DAMAGED = {
    "version": file_of(X_MATRIX, version=0x0300),
    "header": file_of(X_MATRIX)[:127],
    "half a tag": file_of(X_MATRIX, b"\x0e\0\0\0"),
    "top type": file_of(element(9, bytes(8)), X_MATRIX),
    "cut": file_of(X_MATRIX)[:-8],
    "twice": file_of(X_MATRIX, X_MATRIX),
    "unknown class": file_of(matrix(b"X", X_VALUES, code=200)),
    "values type": file_of(matrix(b"X", element(14, THREE))),
    "float values of a whole class": file_of(matrix(b"X", element(9, bytes(24)))),
    "too few values": file_of(matrix(b"X", X_VALUES, shape=(1, 4))),
    "too many values": file_of(matrix(b"X", X_VALUES, shape=(1, 2))),
    "more after the values": file_of(matrix(b"X", X_VALUES, tail=bytes(8))),
    "no values": file_of(matrix(b"X", b"")),
    "huge shape": file_of(matrix(b"X", X_VALUES, shape=(2**31 - 1,) * 32)),
    "negative length": file_of(matrix(b"X", X_VALUES, shape=(-1, -3))),
    "one axis": file_of(matrix(b"X", X_VALUES, shape=(3,))),
    "33 axes": file_of(matrix(b"X", X_VALUES, shape=(1,) * 32 + (3,))),
    "axes of bytes": file_of(matrix(b"X", X_VALUES, lengths=element(2, b"\1\3"))),
    "a long name": file_of(matrix(b"X" * 5000, X_VALUES)),
    "a small element of many bytes": file_of(matrix(b"X", struct.pack("<I", 5 << 16 | 2) + bytes(12))),
    "no stream": file_of(struct.pack("<II", 15, 8) + bytes(8)),
    "an empty stream": file_of(packed(b"")),
    "a stream of something else": file_of(packed(element(9, bytes(8)))),
    "a stream in a stream": file_of(packed(packed(X_MATRIX))),
    "a stream that ends early": file_of(packed(X_MATRIX[:-8])),
    "a stream that goes on": file_of(packed(X_MATRIX + bytes(8))),
    "bytes after a stream": file_of(packed(X_MATRIX, tail=b"abc")),
    "a stream of far too much": file_of(packed(struct.pack("<II", 14, 2**32 - 1) + X_MATRIX[8:])),
    "many variables": file_of(*[matrix(b"a", X_VALUES)] * 1001),
    "words": b"some words " * 50,
    "nothing": b"",
    "zeros": bytes(600),
}


@pytest.mark.parametrize("damage", DAMAGED)
def test_damaged_files_are_refused(damage):
    with pytest.raises(FileFormatError, match=r"a\.mat is no MATLAB file, or is truncated or damaged \(.*fetch it aga"):
        read_matlab(DAMAGED[damage], "a.mat", ["X"])
    np.testing.assert_array_equal(read_matlab(file_of(X_MATRIX), "a.mat", ["X"])["X"], [[7, 8, 9]])


def test_a_stream_whose_checksum_is_cut_or_wrong_is_refused():
    body = zlib.compress(X_MATRIX)
    for wrong in (body[:-1], body[:-4], body[:-1] + bytes([body[-1] ^ 1])):
        with pytest.raises(FileFormatError, match="truncated or damaged"):
            read_matlab(file_of(struct.pack("<II", 15, len(wrong)) + wrong), "a.mat", ["X"])


def test_a_stream_that_would_fill_the_memory_is_not_unpacked(monkeypatch):
    monkeypatch.setattr(matlab, "LARGEST_ARRAY", 1000)
    for n_bytes, is_read in ((900, True), (10_000, False)):
        data = written(X=np.zeros((1, n_bytes), np.uint8))
        if is_read:
            assert read_matlab(data, "a.mat", ["X"])["X"].shape == (1, n_bytes)
        else:
            with pytest.raises(FileFormatError, match="more than any of pictures"):
                read_matlab(data, "a.mat", ["X"])
            both = data + X_MATRIX.replace(b"X", b"Y")  # one that is not asked for may be as large as it likes
            np.testing.assert_array_equal(read_matlab(both, "a.mat", ["Y"])["Y"], [[7, 8, 9]])


def test_a_name_that_cannot_be_printed_is_told_on_one_line():
    with pytest.raises(FileFormatError) as caught:
        read_matlab(file_of(matrix(b"a\nb", X_VALUES)), "a.mat", ["X"])
    assert "\n" not in str(caught.value)
    assert r"holds 'a\nb' uint8 (1, 3), but not X as numbers" in str(caught.value)


@pytest.mark.parametrize("compressed", [True, False])
def test_whatever_bytes_change_nothing_but_a_refusal_comes(compressed):
    X, y = made((32, 32, 3, 2), "u1"), np.array([[1.0], [2.0]])
    good = written(X=X, y=y, compressed=compressed)
    messages = []
    for seed in range(3000):
        generator = np.random.default_rng(seed)
        data = bytearray(good)
        for _ in range(generator.integers(1, 5)):
            is_early = generator.random() < 0.7
            place = generator.integers(400) if is_early else generator.integers(len(data) - 200, len(data))
            data[place] = generator.integers(256)
        if generator.random() < 0.2:
            del data[generator.integers(len(data)) :]
        try:
            found = read_matlab(bytes(data), "a.mat", ["X", "y"])
        except FileFormatError as error:
            messages.append(str(error))
        else:  # a change of the words of the header, of padding, of values, or of lengths with the same product
            assert found["X"].size == X.size
            assert found["y"].size == y.size
    assert 1000 < len(messages) < 3000
    assert not any("\n" in message for message in messages)


def test_every_single_changed_byte_of_a_compressed_file_is_seen():
    X = made((4, 5), "u1")
    good = written(X=X)
    for place in range(128 + 8, len(good)):
        data = bytearray(good)
        data[place] ^= 0x55
        try:
            found = read_matlab(bytes(data), "a.mat", ["X"])["X"]
        except FileFormatError:
            continue
        np.testing.assert_array_equal(found, X)


def test_a_file_that_ended_scipys_process_is_refused(tmp_path):
    """The type of an element within a variable, changed, led SciPy's compiled reader astray."""
    good = written(X=np.zeros((32, 32, 3, 2), np.uint8), y=np.ones((2, 1)), compressed=False)
    messages = []
    for place in range(136, 200):
        for value in (0, 1, 13, 15, 18, 200, 255):
            data = bytearray(good)
            data[place] = value
            (tmp_path / "test_32x32.mat").write_bytes(data)
            try:
                assert len(load("svhn", tmp_path)) == 2
            except FileFormatError as error:
                messages.append(str(error))
    assert len(messages) > 100
    assert all("test_32x32.mat" in message for message in messages)
