"""The file: golden files of every format, atomic writing, and everything that must be refused."""

import json
import os
import stat
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import save as save_tensors

from gem_ood import GEM, load, storage
from gem_ood.errors import FileFormatError, InputError

GOLDEN = sorted((Path(__file__).parent / "golden").glob("format-*/*.safetensors"))


@pytest.fixture
def saved(blobs, tmp_path):
    detector = GEM().fit(blobs[0], blobs[1]).calibrate(blobs[2])
    detector.save(tmp_path / "detector.safetensors")
    return tmp_path / "detector.safetensors"


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_files_of_every_earlier_format_are_still_read(path):
    with np.load(path.parent / "expected.npz", allow_pickle=False) as expected:
        queries, scores, p_values = (expected[key] for key in ("queries", path.stem, f"{path.stem}.p_values"))
    detector = load(path)
    np.testing.assert_allclose(detector.score_samples(queries), scores, rtol=1e-9, atol=1e-9)
    np.testing.assert_array_equal(detector.p_values(queries), p_values)
    assert detector.threshold_.confidence == 0.95


def test_there_is_a_golden_file_of_the_current_format():
    assert {path.parent.name for path in GOLDEN} == {f"format-{n}" for n in range(1, storage.FORMAT_VERSION + 1)}
    assert len(GOLDEN) >= 6


def test_the_header_says_what_the_file_is(saved):
    with safe_open(saved, framework="numpy") as file:
        header = json.loads(file.metadata()["gem_ood"])
    assert header["format"] == storage.FORMAT_VERSION
    assert header["detector"] == "gem"
    assert header["options"]["covariance"] == "empirical"
    assert header["state"]["classes"] == [0, 1, 2]
    assert header["threshold"]["method"] == "conformal"


def test_class_names_of_any_alphabet_come_back(blobs, tmp_path):
    names = np.array(["chat", "犬", "<b>ñ</b>"])[blobs[1]]
    GEM().fit(blobs[0], names).save(tmp_path / "names.safetensors")
    assert load(tmp_path / "names.safetensors").classes_.tolist() == sorted(["chat", "犬", "<b>ñ</b>"])


def test_feature_names_come_back(blobs, tmp_path):
    import pandas as pd

    frame = pd.DataFrame(blobs[0], columns=list("abcde"))
    GEM().fit(frame, blobs[1]).save(tmp_path / "named.safetensors")
    assert load(tmp_path / "named.safetensors").feature_names_in_.tolist() == list("abcde")


def test_other_readers_may_read_the_file(saved):
    mode = stat.S_IMODE(saved.stat().st_mode)
    assert mode & stat.S_IRUSR
    assert mode == stat.S_IMODE(_plain_file(saved.parent / "plain").stat().st_mode)


def _plain_file(path):
    path.write_text("")
    return path


def test_a_failed_write_leaves_the_old_file_and_nothing_else(saved, monkeypatch):
    before = saved.read_bytes()

    def fail(*_):
        raise OSError("No space left on device")

    monkeypatch.setattr("os.replace", fail)
    with pytest.raises(OSError, match="No space left"):
        load(saved).save(saved)
    assert saved.read_bytes() == before
    assert [path.name for path in saved.parent.iterdir()] == [saved.name]


def test_a_missing_file_or_folder_is_named(tmp_path, blobs):
    with pytest.raises(FileNotFoundError, match=r"nothing.safetensors does not exist; pass the path"):
        load(tmp_path / "nothing.safetensors")
    with pytest.raises(FileNotFoundError):
        GEM().fit(blobs[0], blobs[1]).save(tmp_path / "no" / "folder.safetensors")


@pytest.mark.parametrize("n_kept", [0, 4, 8, 100, -1, -1000])
def test_a_truncated_file_is_refused(saved, n_kept):
    saved.write_bytes(saved.read_bytes()[:n_kept])
    with pytest.raises(FileFormatError, match=r"damaged|not a readable"):
        load(saved)


@pytest.mark.parametrize("content", [b"hello world, this is no tensor", b"PK\x03\x04zip", b"\x80\x04\x95pickle" * 9])
def test_a_foreign_file_is_refused(tmp_path, content):
    path = tmp_path / "foreign.safetensors"
    path.write_bytes(content)
    with pytest.raises(FileFormatError, match="not a readable safetensors file"):
        load(path)


def test_a_folder_is_no_detector(tmp_path):
    with pytest.raises(FileFormatError, match="not a readable safetensors file"):
        load(tmp_path)


def test_somebody_elses_safetensors_file_is_refused(tmp_path):
    path = tmp_path / "model.safetensors"
    path.write_bytes(save_tensors({"weight": np.zeros(3)}))
    with pytest.raises(FileFormatError, match="not one of gem-ood's"):
        load(path)


def rewritten(saved, *, tensors=None, drop=(), **changes):
    arrays, header = storage.read(saved)
    header |= changes
    arrays = {name: array for name, array in (arrays | (tensors or {})).items() if name not in drop}
    saved.write_bytes(save_tensors(arrays, metadata={"gem_ood": json.dumps(header)}))
    return saved


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": 99, "library": "9.9"}, "format 99, written by gem-ood 9.9.*upgrade"),
        ({"format": "x"}, "damaged header"),
        ({"detector": "unheard-of"}, "does not hold a whole detector.*unheard-of"),
        ({"detector": "msp"}, "does not hold a whole detector"),
        ({"options": {"colour": 1}}, "does not hold a whole detector"),
        ({"state": {}}, "does not hold a whole detector"),
        ({"threshold": {"value": 1}}, "does not hold a whole detector"),
        ({"drop": ["gaussians.whitener"]}, "lacks the array 'gaussians.whitener'"),
        ({"drop": ["calibration.scores"]}, "calibration scores are missing"),
        ({"tensors": {"gaussians.priors": np.zeros(2)}}, "'gaussians.priors' has shape"),
        ({"tensors": {"gaussians.priors": np.zeros(3, dtype=np.float32)}}, "type float32"),
        ({"tensors": {"gaussians.class_means": np.full((3, 5), np.nan)}}, "holds NaN or infinity"),
    ],
)
def test_a_file_that_lies_about_its_content_is_refused(saved, changes, message):
    with pytest.raises(FileFormatError, match=message):
        load(rewritten(saved, **changes))


def test_bytes_hold_what_a_file_holds(tmp_path):
    tensors, header = {"x": np.arange(3.0)}, {"kind": "example", "name": "Größe"}
    storage.write(tmp_path / "file.safetensors", tensors=tensors, header=header)
    packed = storage.pack(tensors=tensors, header=header)
    assert packed == (tmp_path / "file.safetensors").read_bytes()
    arrays, document = storage.unpack(packed, name="bytes")
    np.testing.assert_array_equal(arrays["x"], tensors["x"])
    assert document["name"] == "Größe"


@pytest.mark.parametrize("cut", [0, 4, 20, -1])
def test_cut_bytes_are_refused_by_name(cut):
    packed = storage.pack(tensors={"x": np.arange(3.0)}, header={})
    with pytest.raises(FileFormatError, match="the guard"):
        storage.unpack(packed[:cut], name="the guard")


def test_bytes_of_another_safetensors_file_are_refused():
    with pytest.raises(FileFormatError, match="not one of gem-ood's"):
        storage.unpack(save_tensors({"x": np.zeros(1)}), name="the bytes")


def test_a_link_is_followed_and_stays_a_link(tmp_path):
    (tmp_path / "store").mkdir()
    link = tmp_path / "latest.txt"
    link.symlink_to(Path("store") / "one.txt")
    for text in ("first", "second"):
        with storage.atomic_path(link) as temporary:
            temporary.write_text(text)
        assert link.is_symlink()
        assert (tmp_path / "store" / "one.txt").read_text() == text
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["latest.txt", "one.txt", "store"]


def test_a_place_is_probed_where_a_link_leads(tmp_path):
    link = tmp_path / "r.html"
    link.symlink_to(tmp_path / "nowhere" / "r.html")
    with pytest.raises(InputError, match="nowhere does not exist"):
        storage.refuse_unwritable_place(link)
    (tmp_path / "nowhere").mkdir()
    storage.refuse_unwritable_place(link)
    assert list((tmp_path / "nowhere").iterdir()) == []


def test_a_pipe_is_refused_rather_than_waited_for(tmp_path):
    pipe = tmp_path / "detector.safetensors"
    os.mkfifo(pipe)
    with pytest.raises(InputError, match="is no regular file but a pipe"):
        storage.read(pipe)
