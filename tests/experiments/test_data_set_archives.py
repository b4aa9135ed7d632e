"""Archives are read as they are, damage and tricks in them are told, and what is whole is taken first."""

import io
import tarfile

import numpy as np
import pytest
from data_sets_on_disk import (
    assert_same,
    cifar10_binary,
    cifar10_files,
    made,
    write_files,
    write_tar,
    write_zip,
)

from gem_ood.errors import FileFormatError, InputError
from gem_ood.experiments.data_sets import find, load, load_images
from gem_ood.experiments.data_sets.trees import TarTree, ZipTree


@pytest.mark.parametrize("suffix", [".tar.bz2", ".tar.xz"])
def test_other_compressions_are_told_by_their_first_bytes(tmp_path, suffix):
    test = made(3)
    mode = f"w:{suffix.rpartition('.')[2]}"
    write_tar(tmp_path / f"cifar10{suffix}", {"test_batch.bin": cifar10_binary(*test)}, mode=mode)
    assert_same(load("cifar10", tmp_path), test)


@pytest.mark.parametrize("kind", ["gz", "bz2", "xz", ""])
def test_an_archive_that_is_cut_anywhere_is_told(tmp_path, kind):
    path = tmp_path / "cifar-10-binary.tar.gz"
    write_tar(path, cifar10_files(made(10), made(2)), inside="cifar-10-batches-bin/", mode=f"w:{kind}")
    data = path.read_bytes()
    end = data.rindex(b"test_batch.bin") + 7168 if not kind else len(data)  # zeros follow
    cuts = [0, 1, 100, 512, 3584, 4096, 5000, end // 2, end // 2 - end // 2 % 512, end - 9, end - 700]
    for cut in cuts:
        path.write_bytes(data[:cut])
        with pytest.raises(FileFormatError, match=r"tar.gz (is no tar or zip archive, or )?is truncated or damaged"):
            load("cifar10", tmp_path)


def test_an_archive_with_a_changed_byte_is_told(tmp_path):
    path = tmp_path / "cifar-10-binary.tar.gz"
    write_tar(path, cifar10_files(made(10), made(2)), inside="cifar-10-batches-bin/")
    data = bytearray(path.read_bytes())
    for place in (len(data) // 3, len(data) // 2, len(data) - 8):
        changed = data.copy()
        changed[place] ^= 0xFF
        path.write_bytes(changed)
        with pytest.raises(FileFormatError, match="damaged"):
            load("cifar10", tmp_path)
    header = tmp_path / "plain" / "cifar10.tar"
    write_tar(header, cifar10_files(made(10), made(2)), mode="w")
    data = bytearray(header.read_bytes())
    data[data.index(b"data_batch_4.bin")] ^= 1  # tarfile takes the header for the end
    header.write_bytes(data)
    with pytest.raises(FileFormatError, match="ends after 3 members without an end mark"):
        load("cifar10", header.parent)


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE])
def test_links_and_special_members_are_never_followed(tmp_path, kind):
    secret = write_files(tmp_path / "secret", {"a.bin": cifar10_binary(*made(2))}) / "a.bin"
    with tarfile.open(tmp_path / "cifar10.tar", "w") as archive:
        member = tarfile.TarInfo("test_batch.bin")
        member.type, member.linkname = kind, str(secret)
        archive.addfile(member)
    with pytest.raises(FileFormatError, match=r"test_batch.bin is a link or a special file, which is never followed"):
        load("cifar10", tmp_path)


@pytest.mark.parametrize("name", ["../test_batch.bin", "/tmp/test_batch.bin", "a/../../test_batch.bin"])
def test_members_that_lead_out_of_their_archive_are_refused(tmp_path, name):
    data = cifar10_binary(*made(2))
    write_tar(tmp_path / "tar" / "cifar10.tar.gz", {name: data})
    write_zip(tmp_path / "zip" / "cifar10.zip", {name: data})
    for kind in ("tar", "zip"):
        with pytest.raises(FileFormatError, match="leads out of the archive"):
            load("cifar10", tmp_path / kind)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["cifar10.tar.gz", "cifar10.zip", "tar", "zip"]


def test_a_member_that_is_far_too_large_is_refused_before_it_is_read(tmp_path):
    member = tarfile.TarInfo("test_batch.bin")
    member.size = 1 << 40
    end = bytes(1024)
    write_files(tmp_path, {"cifar10.tar": member.tobuf(tarfile.GNU_FORMAT) + end})
    with pytest.raises(FileFormatError, match="truncated or damaged"):
        load("cifar10", tmp_path)
    extended = tarfile.TarInfo("./PaxHeaders/test_batch.bin")
    extended.type, extended.size = tarfile.XHDTYPE, 1 << 40
    write_files(tmp_path, {"cifar10.tar": extended.tobuf(tarfile.GNU_FORMAT) + end})
    with pytest.raises(FileFormatError, match=r"cifar10.tar has a header that asks for [\d,]+ bytes"):
        load("cifar10", tmp_path)
    sparse = tarfile.TarInfo("test_batch.bin")
    sparse.type = tarfile.GNUTYPE_SPARSE
    write_files(tmp_path, {"cifar10.tar": sparse.tobuf(tarfile.GNU_FORMAT) + end})
    with pytest.raises(FileFormatError, match="is a link or a special file"):
        load("cifar10", tmp_path)


def test_a_file_that_is_twice_in_an_archive_is_refused(tmp_path):
    data = cifar10_binary(*made(2))
    with tarfile.open(tmp_path / "cifar10.tar", "w") as archive:
        for name in ("test_batch.bin", "./test_batch.bin"):
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    with pytest.raises(FileFormatError, match=r"test_batch.bin is in the archive twice"):
        load("cifar10", tmp_path)


@pytest.mark.parametrize("kind", ["tar", "zip"])
def test_an_archive_of_batches_that_changes_while_it_is_read_is_told(tmp_path, monkeypatch, kind):
    files = cifar10_files(made(10), made(2))
    tree = {"tar": TarTree, "zip": ZipTree}[kind]
    changed = {name: data for name, data in files.items() if name != "data_batch_3.bin"}
    (write_tar if kind == "tar" else write_zip)(tmp_path / f"cifar10.{kind}", changed)
    monkeypatch.setattr(tree, "names", lambda self: list(files))
    with pytest.raises(FileFormatError, match=rf"cifar10.{kind} gave 4 of 5 files: it was changed while it was read"):
        load("cifar10", tmp_path, split="train")


def without(files, *names):
    return {name: data for name, data in files.items() if name not in names}


@pytest.mark.parametrize(
    "other", ["python folder", "matlab folder", "folder deeper", "same folder", "archive", "arrays"]
)
def test_a_complete_version_is_taken_before_one_that_lacks_files(tmp_path, other):
    train, test = made(20, seed=1), made(3)
    incomplete = without(cifar10_files(made(10), test), "data_batch_2.bin", "data_batch_5.bin")
    write_files(tmp_path / "cifar-10-batches-bin", incomplete)
    form = {"python folder": "python", "matlab folder": "matlab", "same folder": "matlab"}.get(other, "binary")
    files = cifar10_files(train, made(4), form)
    if other == "archive":
        expected = write_tar(tmp_path / "cifar-10-binary.tar.gz", files)
    elif other == "arrays":
        expected = tmp_path / "cifar10_train.npz"
        np.savez(expected, images=train[0], labels=train[1])
    else:
        folders = {"same folder": "cifar-10-batches-bin", "folder deeper": "data/cifar10"}
        expected = write_files(tmp_path / folders.get(other, f"cifar-10-{form}"), files)
    found = load("cifar10", tmp_path, split="train")
    assert_same(found, train)
    assert found.source.startswith(str(expected))
    assert find("cifar10", tmp_path, split="train") == expected
    if other != "same folder":
        assert_same(load("cifar10", tmp_path), test)  # of which nothing lacks


def test_the_first_archive_that_lacks_nothing_is_taken(tmp_path):
    train, test = made(20, seed=1), made(3)
    write_tar(tmp_path / "cifar-10-binary.tar.gz", without(cifar10_files(made(10), test), "data_batch_1.bin"))
    write_tar(tmp_path / "cifar-10-python.tar.gz", {"readme.html": b"nothing"})
    write_tar(tmp_path / "cifar-10-matlab.tar.gz", cifar10_files(train, test, "matlab"))
    assert_same(load("cifar10", tmp_path, split="train"), train)
    both = {**without(cifar10_files(made(10), test), "data_batch_4.bin"), **cifar10_files(train, test, "python")}
    write_tar(tmp_path / "both" / "cifar10.tar", both, mode="w")
    found = load("cifar10", tmp_path / "both", split="train")
    assert_same(found, train)
    assert found.source.endswith("cifar10.tar (python version)")


def test_where_every_version_lacks_files_the_one_that_lacks_the_fewest_is_named(tmp_path):
    files = {form: cifar10_files(made(10), made(2), form) for form in ("binary", "python", "matlab")}
    binary = without(files["binary"], "data_batch_1.bin", "data_batch_2.bin", "data_batch_4.bin")
    folder = write_files(tmp_path / "cifar-10-batches-bin", binary)
    assert find("cifar10", tmp_path, split="train") == folder
    with pytest.raises(InputError, match=r"bin lacks data_batch_1.bin, data_batch_2.bin, data_batch_4.bin of CIFAR-10"):
        load("cifar10", tmp_path, split="train")
    write_files(tmp_path / "cifar-10-batches-py", without(files["python"], "data_batch_3"))
    write_tar(tmp_path / "cifar-10-matlab.tar.gz", without(files["matlab"], "data_batch_1.mat", "data_batch_2.mat"))
    message = (
        r"cifar-10-batches-py lacks data_batch_3 of CIFAR-10's train split \(python version\); put all 5 files there"
    )
    with pytest.raises(InputError, match=message):
        load("cifar10", tmp_path, split="train")


def test_one_official_file_of_several_is_told_what_it_lacks(tmp_path):
    write_files(tmp_path, cifar10_files(made(10), made(2)))
    with pytest.raises(
        InputError, match=r"lacks data_batch_1.bin, data_batch_3.bin, data_batch_4.bin, data_batch_5.bin"
    ):
        load("cifar10", tmp_path / "data_batch_2.bin", split="train", is_own=True)


def test_a_zip_that_inflates_to_more_than_it_says_is_refused(tmp_path):
    path = write_zip(tmp_path / "pictures.zip", {"a.png": b"x" * 100_000})
    data = bytearray(path.read_bytes())
    said = (100_000).to_bytes(4, "little")
    assert data.count(said) == 2  # before the member, and in the directory at the end
    path.write_bytes(bytes(data).replace(said, (100).to_bytes(4, "little")))
    with pytest.raises(FileFormatError, match=r"pictures.zip"):
        load_images(path, "lies")
