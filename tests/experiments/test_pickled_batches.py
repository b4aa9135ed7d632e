"""Pickled arrays whose shape is made up: refused before it is reckoned with."""

import struct

import numpy as np
import pytest

from gem_ood.errors import FileFormatError
from gem_ood.experiments.data_sets.pickled import read_pickle


def pickled(shape, data):
    """A batch of one array of bytes; `shape` is given as opcodes that leave a tuple."""
    array = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R(K\x01" + shape
    array += b"cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89"
    return b"\x80\x02}U\x04data" + array + b"T" + struct.pack("<I", len(data)) + data + b"tbs."


def lengths(*values):
    return b"(" + b"".join(b"\x8a\x08" + struct.pack("<q", value) for value in values) + b"t"


def test_a_shape_of_very_many_axes_is_refused_before_its_product_is_taken():
    long = pickled(lengths(*[2**63 - 1] * 80_000), b"abc")  # their product has 1.5 million digits
    assert len(long) > 800_000
    with pytest.raises(FileFormatError, match=r"batch is no pickled batch .*an array has 80,000 axes"):
        read_pickle(long, "batch")


@pytest.mark.parametrize(
    "shape", [(2**62,), (7, 1), (4, 2**62), (1, 1, 1, 7), (3,), (2, 2), (-2, -3), (0,), (0, 2**62)]
)
def test_a_shape_of_another_size_than_its_bytes_is_refused(shape):
    with pytest.raises(FileFormatError, match="batch is no pickled batch of pictures, or is truncated or damaged"):
        read_pickle(pickled(lengths(*shape), b"abcdef"), "batch")


@pytest.mark.parametrize("shape", [(6,), (2, 3), (1, 6, 1), (3, 1, 2, 1)])
def test_a_shape_of_up_to_four_axes_that_fits_its_bytes_is_taken(shape):
    found = read_pickle(pickled(lengths(*shape), b"abcdef"), "batch")["data"]
    np.testing.assert_array_equal(found, np.frombuffer(b"abcdef", np.uint8).reshape(shape), strict=True)
    with pytest.raises(FileFormatError, match="an array has 5 axes"):
        read_pickle(pickled(lengths(*shape, *[1] * (5 - len(shape))), b"abcdef"), "batch")


def test_an_array_without_rows_is_taken():
    assert read_pickle(pickled(lengths(0, 3072), b""), "batch")["data"].shape == (0, 3072)
