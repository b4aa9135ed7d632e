"""Pictures that cannot be read as they are meant end the reading with one error that names the file."""

import io
import os
import stat
import struct
import tarfile
import threading
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest
from data_sets_on_disk import encoded, made, noise, png, write_files, write_tar, write_zip

from gem_ood.errors import FileFormatError, InputError
from gem_ood.experiments.data_sets import find, load, load_images
from gem_ood.experiments.data_sets.trees import TarTree, open_archive

Image = pytest.importorskip("PIL.Image")


def test_what_is_no_picture_is_named(tmp_path):
    n_before = threading.active_count()
    good = encoded(noise(40, 40), "JPEG")
    for place, (data, reason) in enumerate(
        (
            (b"<html>log in</html>", "its first bytes are of no known kind"),
            (b"", "its first bytes are of no known kind"),
            (good[: len(good) // 2], "truncated"),
            (good[:50], ""),
            (encoded(noise(40, 40), "GIF"), "its first bytes are of no known kind"),
        )
    ):
        files = {"1.jpg": good, "2.jpg": data, "3.jpg": good}
        folder = write_files(tmp_path / str(place) / "dtd" / "images", files)
        write_tar(tmp_path / str(place) / "packed" / "dtd.tar", files, mode="w")
        message = rf"2.jpg is no image, or a damaged or truncated one \(.*{reason}.*\); write it again or leave it out"
        for source in (folder, tmp_path / str(place) / "packed"):
            with pytest.raises(FileFormatError, match=message):
                load("textures", source)
    assert threading.active_count() == n_before


def test_pictures_that_are_not_read_are_not_passed_over(tmp_path):
    write_files(tmp_path / "isun", {"1.png": png(made(1)[0][0]), "2.gif": b"", "3.HEIC": b"", "notes.txt": b""})
    for call in (lambda: load("isun", tmp_path), lambda: load_images(tmp_path / "isun", "set")):
        with pytest.raises(InputError, match=r"isun holds 2 pictures that are not read, such as 2.gif; convert them"):
            call()
    write_files(tmp_path / "cifar10", {"docs/show.gif": b"", "test/cat/1.png": png(made(1)[0][0])})
    assert load("cifar10", tmp_path).labels.tolist() == [3]


@pytest.mark.parametrize("limit", [500, 1500])
def test_a_picture_of_too_many_pixels_is_refused(tmp_path, monkeypatch, limit):
    write_files(tmp_path / "isun", {"bomb.png": encoded(Image.new("L", (40, 40)), "PNG")})
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", limit)
    with pytest.raises(InputError, match=r"bomb.png .*pixels.*a data set is worth.*pass smaller images"):
        load("isun", tmp_path)


def test_a_line_of_pixels_that_would_grow_beyond_measure_is_refused(tmp_path):
    write_files(tmp_path / "set", {"line.png": encoded(Image.new("L", (1_000_000, 1)), "PNG")})
    with pytest.raises(InputError, match=r"line.png is 1000000×1 and would be 32×32000000"):
        load_images(tmp_path / "set", "set")


def test_a_member_far_larger_than_a_picture_is_refused(tmp_path):
    files = {"1.jpg": bytes((1 << 25) + 1)}
    write_tar(tmp_path / "bomb.tar.gz", files)
    write_zip(tmp_path / "bomb.zip", files)
    write_files(tmp_path / "bomb", files)
    for name in ("bomb.tar.gz", "bomb.zip", "bomb"):
        with pytest.raises(FileFormatError, match=r"1.jpg has 33,554,433 bytes, more than a file of its kind may have"):
            load_images(tmp_path / name, "bomb")


def test_links_in_archives_are_refused_and_in_folders_followed(tmp_path):
    picture = png(made(1)[0][0])
    link = zipfile.ZipInfo("link.png")
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    with zipfile.ZipFile(tmp_path / "set.zip", "w") as archive:
        archive.writestr("1.png", picture)
        archive.writestr(link, "/etc/passwd")
    with tarfile.open(tmp_path / "set.tar", "w") as archive:
        member = tarfile.TarInfo("link.png")
        member.type, member.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(member)
    for name in ("set.zip", "set.tar"):
        with pytest.raises(FileFormatError, match=r"link.png is a link or a special file, which is never followed"):
            load_images(tmp_path / name, "set")
    write_files(tmp_path / "far", {"1.png": picture})
    (tmp_path / "near").mkdir()
    (tmp_path / "near" / "a").symlink_to(tmp_path / "far", target_is_directory=True)
    (tmp_path / "near" / "b.png").symlink_to(tmp_path / "far" / "1.png")
    (tmp_path / "near" / "circle").symlink_to(tmp_path / "near", target_is_directory=True)
    assert len(load_images(tmp_path / "near", "set")) == 2


def test_files_that_cannot_be_read_are_named(tmp_path, monkeypatch):
    folder = write_files(tmp_path / "set", {"1.png": png(made(1)[0][0])})
    (folder / "gone.png").symlink_to(tmp_path / "nowhere.png")
    with pytest.raises(InputError, match=r"gone.png cannot be read \(No such file or directory\)"):
        load_images(folder, "set")
    (folder / "gone.png").unlink()
    os.mkfifo(folder / "pipe.png")
    with pytest.raises(InputError, match=r"pipe.png is no regular file"):
        load_images(folder, "set")
    (folder / "pipe.png").unlink()

    def denied(*_):
        raise PermissionError(13, "Permission denied")

    for owner, name, what in ((type(folder), "read_bytes", "1.png"), (os, "scandir", "set")):
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, denied)
            with pytest.raises(InputError, match=rf"{what} cannot be read \(Permission denied\)"):
                load_images(folder, "set")


def test_names_that_are_no_text_can_be_read_and_told(tmp_path):
    folder = os.fsencode(tmp_path / "set")
    os.mkdir(folder)
    try:
        with open(folder + b"/\xff\xfe.png", "wb") as stream:
            stream.write(b"text")
    except OSError:
        pytest.skip("the file system takes names of text only")
    with pytest.raises(FileFormatError, match="is no image") as caught:
        load_images(tmp_path / "set", "set")
    assert str(caught.value).encode()  # can be printed


def test_an_archive_that_changes_while_it_is_read_is_told(tmp_path, monkeypatch):
    path = write_tar(tmp_path / "set.tar", {"1.png": png(made(1)[0][0])}, mode="w")
    monkeypatch.setattr(TarTree, "names", lambda self: ["1.png", "2.png"])
    with pytest.raises(FileFormatError, match=r"set.tar gave 1 of 2 pictures: it was changed while it was read"):
        load_images(path, "set")


def test_empty_folders_and_archives_are_told(tmp_path):
    (tmp_path / "isun").mkdir()
    with pytest.raises(InputError, match="iSUN was not found in"):
        load("isun", tmp_path)
    with pytest.raises(InputError, match=r"isun holds no picture; pass one that has .jpg"):
        load_images(tmp_path / "isun", "set")
    write_tar(tmp_path / "isun.tar.gz", {"readme.txt": b"no picture"})
    with pytest.raises(FileFormatError, match=r"isun.tar.gz holds neither the files nor the pictures of iSUN"):
        load("isun", tmp_path)
    with pytest.raises(InputError, match=r"isun.tar.gz holds no picture"):
        load_images(tmp_path / "isun.tar.gz", "set")
    write_zip(tmp_path / "empty.zip", {})
    with pytest.raises(InputError, match=r"empty.zip holds no picture"):
        load_images(tmp_path / "empty.zip", "set")


def test_damaged_zip_archives_are_told(tmp_path):
    path = write_zip(tmp_path / "set.zip", {f"{place}.png": png(image) for place, image in enumerate(made(3)[0])})
    data = path.read_bytes()
    for damaged in (data[:100], data[:-9], data[:2], data[:60] + bytes([data[60] ^ 255]) + data[61:]):
        path.write_bytes(damaged)
        with pytest.raises(FileFormatError, match=r"set.zip is no tar or zip archive, or is truncated or damaged"):
            load_images(path, "set")


def test_paths_of_another_kind_are_told(tmp_path):
    (tmp_path / "notes.txt").write_text("text")
    with pytest.raises(InputError, match=r"notes.txt is a file of another kind; pass a folder of pictures"):
        load_images(tmp_path / "notes.txt", "set")
    with pytest.raises(InputError, match=r"nowhere does not exist; pass a folder or an archive of pictures for 'set'"):
        load_images(tmp_path / "nowhere", "set")
    for size in (0, 2.5, True, 5000):
        with pytest.raises(InputError, match=r"size is .*; pass a whole number of pixels"):
            load_images(tmp_path, "set", size=size)
    for name in (3, None, tmp_path, b"set"):
        with pytest.raises(InputError, match=r"name is .*; pass the path first, then what the set is to be called"):
            load_images(tmp_path, name)


@pytest.mark.parametrize("name", ["set", "set.tar.gz", "set.zip", "set.npz", "set.npy", "set.png"])
def test_pipes_and_devices_are_refused_at_once(tmp_path, name):
    os.mkfifo(tmp_path / name)
    calls = [
        lambda path: load_images(path, "set"),
        open_archive,
        *(lambda path, ask=ask, is_own=own: ask("isun", path, is_own=is_own) for ask in (load, find) for own in (0, 1)),
    ]
    for call in calls:
        with pytest.raises(InputError, match=rf"{name} is no regular file but a pipe, .*; pass a file that is on disk"):
            call(tmp_path / name)
        with pytest.raises(InputError, match=r"is no regular file"):
            call(Path(os.devnull))


def test_a_pipe_in_the_place_of_an_official_file_is_refused(tmp_path):
    os.mkfifo(tmp_path / "test_batch.bin")
    with pytest.raises(InputError, match=r"test_batch.bin is no regular file"):
        load("cifar10", tmp_path)


DEEP = {
    "png of 16 bits": ("PNG", ".png", "<u2", "I;16", "16 bits"),
    "tiff of 16 bits": ("TIFF", ".tif", "<u2", "I;16", "16 bits"),
    "tiff of 16 bits, upper half first": ("TIFF", ".tiff", ">u2", "I;16B", "16 bits"),
    "pgm of 16 bits": ("PPM", ".pgm", "<i4", "I", "more than 8 bits"),
    "tiff of 32 bits": ("TIFF", ".tif", "<i4", "I", "more than 8 bits"),
    "tiff of fractions": ("TIFF", ".tif", "<f4", "F", "a fraction"),
}


@pytest.mark.parametrize("case", DEEP)
def test_grey_pictures_of_more_than_8_bits_are_refused(tmp_path, case):
    kind, suffix, dtype, mode, found = DEEP[case]
    data = encoded((45 * np.arange(36 * 40)).reshape(36, 40).astype(dtype), kind)
    with Image.open(io.BytesIO(data)) as picture:
        assert picture.mode == mode
    files = {"1.png": png(made(1)[0][0]), f"2{suffix}": data}
    write_files(tmp_path / "dtd" / "images", files)
    write_zip(tmp_path / "set.zip", files)
    message = rf"2{suffix} has {found} per colour \(Pillow's mode {mode}\); save it with 8 bits, from 0 to 255"
    for call in (lambda: load("textures", tmp_path), lambda: load_images(tmp_path / "set.zip", "set")):
        with pytest.raises(InputError, match=message):
            call()


def test_colours_of_16_bits_are_read_as_their_upper_halves(tmp_path):
    colours = np.random.default_rng(0).integers(0, 65536, size=(32, 32, 3))
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in colours)
    parts = {b"IHDR": struct.pack(">IIBBBBB", 32, 32, 16, 2, 0, 0, 0), b"IDAT": zlib.compress(rows), b"IEND": b""}
    chunks = (
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        for name, data in parts.items()
    )
    write_files(tmp_path / "isun", {"1.png": b"\x89PNG\r\n\x1a\n" + b"".join(chunks)})
    np.testing.assert_array_equal(load("isun", tmp_path).images[0], colours >> 8)
