"""CIFAR's pickled batches are taken apart and never executed: they agree with Python's own, and tricks are refused."""

import pickle
import struct

import numpy as np
import pytest
from data_sets_on_disk import assert_same, cifar_pickle, cifar_python2_pickle, made, planes, write_files

from gem_ood.errors import FileFormatError
from gem_ood.experiments.data_sets import load
from gem_ood.experiments.data_sets.pickled import read_pickle


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("as_text", [False, True])
def test_batches_of_every_protocol_are_read(tmp_path, protocol, as_text):
    test = made(300)
    write_files(tmp_path, {"test_batch": cifar_pickle(*test, protocol=protocol, as_text=as_text)})
    assert_same(load("cifar10", tmp_path), test)


def test_protocols_of_text_and_arrays_of_labels_are_read():
    images, labels = made(4)
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        for array in (planes(images), np.asfortranarray(planes(images)), np.array([[3]], dtype=">i4")):
            entries = {"data": array, "labels": labels, "note": None, "flags": (True, False, 1.5, -7, 1 << 40, "é")}
            found = read_pickle(pickle.dumps(entries, protocol=protocol), "batch")
            np.testing.assert_array_equal(found["data"], array)
            np.testing.assert_array_equal(found["labels"], labels)
            assert found["flags"] == entries["flags"]
            assert found["note"] is None


def test_the_reader_agrees_with_python_on_a_batch_of_python_2():
    images, labels = made(300)
    data = cifar_python2_pickle(images, labels)
    expected = pickle.loads(data, encoding="bytes")
    found = read_pickle(data, "batch")
    assert set(found) == {key.decode() for key in expected}
    np.testing.assert_array_equal(found["data"], expected[b"data"])
    assert found["labels"] == expected[b"labels"]
    assert found["filenames"] == expected[b"filenames"]


class Runs:
    """Pickled as a call of a function, which unpickling would make."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


def mark_that_it_ran(path):
    path.write_text("run")


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_no_call_of_a_pickle_is_made(tmp_path, protocol):
    traces = tmp_path / "trace"
    calls = {
        "posix.system|nt.system|os.system": Runs(__import__("os").system, f"touch {traces}"),
        "builtin": Runs(eval, f"open({str(traces)!r}, 'w')"),
        "numpy": Runs(np.save, str(traces), np.arange(3)),
        "mark_that_it_ran": Runs(mark_that_it_ran, traces),
        "functools.partial|copyreg": __import__("functools").partial(mark_that_it_ran, traces),
    }
    for expected, call in calls.items():
        for entries in (call, {b"data": call}, {b"data": [0, call]}):
            data = pickle.dumps(entries, protocol=protocol)
            with pytest.raises(FileFormatError, match=rf"names \S*({expected})") as caught:
                read_pickle(data, "batch")
            assert "nothing of it was run" in str(caught.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"cos\nsystem\n(S'true'\ntR.", "names os.system"),
        (b"(S'true'\nios\nsystem\n.", "opcode INST"),
        (b"\x80\x02cnumpy\nndarray\n)\x81.", "opcode NEWOBJ"),
        (b"\x80\x02\x82\x01.", "opcode EXT1"),
        (b"\x80\x02K\x01Q.", "opcode BINPERSID"),
        (b"P1\n.", "opcode PERSID"),
        (b"\x80\x04\x8f.", "opcode EMPTY_SET"),
        (b"\x80\x05\x97.", "opcode NEXT_BUFFER"),
        (b"\x80\x02cnumpy\nndarray\n}b.", "sets the state of something that is no array"),
        (b"\x80\x02]}b.", "sets the state"),
        (b"\x80\x02cnumpy\nndarray\n)R.", "calls ndarray"),
        (b"\x80\x02c_codecs\nencode\nX\x01\x00\x00\x00aX\x03\x00\x00\x00rot\x86R.", "calls encode"),
        (b"\x80\x02cnumpy\nload\n.", "names numpy.load"),
        (b"\x80\x02cnumpy.core.multiarray\nfromfile\n.", "names numpy.core.multiarray.fromfile"),
        (b"ca\\q\nb\n", r"names a\\q.b"),
        (b"\x80\x02c__builtin__\neval\n.", "names __builtin__.eval"),
    ],
)
def test_opcodes_and_names_that_no_batch_needs_are_refused_by_name(data, message):
    with pytest.raises(FileFormatError, match=message):
        read_pickle(data, "batch")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"text",
        b".",
        b"\x80\x02]q\x01.",
        b"\x80\x02}",
        b"\x80\x02}u.",
        b"\x80\x02e.",
        b"\x80\x02h\x05.",
        b"\x80\x02K\x01K\x02a.",
        b"\x80\x02}K\x01K\x02s.",
        b"\x80\x02})K\x02s.",
        b"\x80\x02}(K\x01u.",
        b"\x80\x02K\x01)R.",
        b"\x80\x02T\xff\xff\xff\x7fabc.",
        b"\x80\x04\x8e" + struct.pack("<Q", 1 << 60) + b"abc.",
        b"\x80\x04\x95" + struct.pack("<Q", 1 << 60) + b"abc.",
        b"\x80\x02r\xff\xff\xff\x7f.",
        b"I" + b"9" * 9999 + b"\n.",
        b"\x80\x02}X\x01\x00\x00\x00acnumpy\ndtype\nK\x01\x85Rs.",
    ],
)
def test_damaged_pickles_are_told(data):
    with pytest.raises(FileFormatError, match="batch is no pickled batch of pictures, or is truncated or damaged"):
        read_pickle(data, "batch")


def test_an_array_of_another_size_than_its_bytes_is_refused():
    images, labels = made(2)
    data = cifar_python2_pickle(images, labels)
    two, many = struct.pack("<H", 2), struct.pack("<H", 65535)
    with pytest.raises(FileFormatError, match=r"shape \(65535, 3072\) has 6,144 bytes"):
        read_pickle(data.replace(b"M" + two + b"M", b"M" + many + b"M"), "batch")
    with pytest.raises(FileFormatError, match="none of whole numbers"):
        read_pickle(data.replace(b"U\x02u1", b"U\x02O8"), "batch")


def test_a_text_that_is_encoded_again_and_again_is_a_bomb():
    text = b"X" + struct.pack("<I", 1000) + b"a" * 1000 + b"q\x00"
    call = b"c_codecs\nencode\nh\x00X\x06\x00\x00\x00latin1\x86R"
    with pytest.raises(FileFormatError, match="longer than the file"):
        read_pickle(b"\x80\x02" + text + call * 100 + b".", "batch")


def test_tuples_within_tuples_are_no_keys():
    nested = b"\x80\x02})" + b"\x85" * 200_000 + b"K\x01s."
    with pytest.raises(FileFormatError, match="key of type tuple"):
        read_pickle(nested, "batch")
