"""Thumbnails: read back with Pillow and compared with the pictures they were made of."""

import base64
import io
import sys
import zipfile

import numpy as np
import pytest

from gem_ood.errors import FileFormatError, InputError, MissingExtraError
from gem_ood.reports.panels.images import open_images

Image = pytest.importorskip("PIL.Image")


def pixels(uri):
    head, _, data = uri.partition(",")
    assert head == "data:image/png;base64"
    with Image.open(io.BytesIO(base64.b64decode(data)), formats=["PNG"]) as picture:
        return np.asarray(picture)


def enlarged(picture, factor):
    return np.repeat(np.repeat(picture, factor, axis=0), factor, axis=1)


@pytest.fixture
def bytes_of_pictures():
    return np.random.default_rng(0).integers(0, 256, size=(7, 8, 6, 3), dtype=np.uint8)


def test_every_layout_and_type_gives_the_same_thumbnail(bytes_of_pictures):
    colour, grey = bytes_of_pictures, bytes_of_pictures[..., 0]
    clear = np.concatenate([colour, grey[..., np.newaxis]], axis=3)
    for values, expected in (
        (colour, colour),
        (np.moveaxis(colour, 3, 1), colour),
        (colour / 255.0, colour),
        ((colour / 255.0).astype(np.float32), colour),
        (np.asfortranarray(colour), colour),
        (colour.astype(np.float16) / np.float16(255.0), colour),
        (grey, grey),
        (grey[..., np.newaxis], grey),
        (grey[:, np.newaxis], grey),
        (clear, clear),
        (grey > 99, 255 * (grey > 99)),
        ((grey / 255.0).tolist(), grey),
    ):
        images = open_images(values)
        assert images.n_images == 7
        np.testing.assert_allclose(pixels(images.thumbnail(3)), enlarged(expected[3], 8), atol=0)


def test_tensors_are_arrays(bytes_of_pictures):
    torch = pytest.importorskip("torch")
    values = torch.tensor(bytes_of_pictures / 255.0, requires_grad=True)
    np.testing.assert_array_equal(pixels(open_images(values).thumbnail(0, side=8)), bytes_of_pictures[0])


@pytest.mark.parametrize(
    ("shape", "side", "expected"),
    [
        ((8, 8), 64, (64, 64)),
        ((28, 28), 64, (56, 56)),
        ((40, 10), 64, (40, 10)),
        ((64, 64), 64, (64, 64)),
        ((200, 100), 64, (64, 32)),
        ((3000, 2), 64, (64, 1)),
        ((1, 1), 5, (5, 5)),
        ((9, 9), 1, (1, 1)),
    ],
)
def test_thumbnails_fit_their_side_and_keep_their_shape(shape, side, expected):
    uri = open_images(np.full((1, *shape), 77, dtype=np.uint8)).thumbnail(0, side=side)
    np.testing.assert_array_equal(pixels(uri), np.full(expected, 77))


def test_large_pictures_are_averaged_not_sampled():
    board = np.indices((256, 256)).sum(axis=0) % 2 * 255
    shrunk = pixels(open_images(board.astype(np.uint8)[np.newaxis]).thumbnail(0, side=32))
    assert np.abs(shrunk.astype(float) - 127.5).max() < 3.0


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@pytest.mark.parametrize("order", ["C", "F"])
def test_pictures_of_an_archive_are_found_by_the_numbers_of_their_rows(tmp_path, bytes_of_pictures, save, order):
    rows = np.array([40, 2, 17, 5, 90, 0, 33], dtype=np.int32)
    path = tmp_path / "images.npz"
    save(path, labels=np.arange(7), images=np.array(bytes_of_pictures, order=order), rows=rows)
    images = open_images(path)
    thumbnails = images.thumbnails([*range(100), 2], side=8)
    assert sorted(thumbnails) == sorted(rows)
    for place, row in enumerate(rows.tolist()):
        np.testing.assert_array_equal(pixels(thumbnails[row]), bytes_of_pictures[place])
        assert images.thumbnail(row, side=8) == thumbnails[row]
    assert images.thumbnail(1) is None
    images.refuse_other_length(91, "photographs")
    with pytest.raises(InputError, match='photographs has 90 rows but its images\' array "rows" names row 90'):
        images.refuse_other_length(90, "photographs")


def test_files_of_numpy_are_read_like_arrays(tmp_path, bytes_of_pictures):
    np.save(tmp_path / "a.npy", bytes_of_pictures)
    np.savez(tmp_path / "b.npz", pictures=bytes_of_pictures, labels=np.arange(7))
    expected = open_images(bytes_of_pictures).thumbnails(range(9))
    assert len(expected) == 7
    for name in ("a.npy", "b.npz"):
        assert open_images(tmp_path / name).thumbnails(range(9)) == expected
        assert open_images(str(tmp_path / name)).n_images == 7


def test_image_files_are_taken_in_the_order_of_their_names(tmp_path, bytes_of_pictures):
    names = ["d.png", "a.bmp", "c.PNG", "b.webp"]
    for name, picture in zip(names, bytes_of_pictures, strict=False):
        options = {"lossless": True} if name.endswith("webp") else {}
        Image.fromarray(picture).save(tmp_path / name, **options)
    (tmp_path / "notes.txt").write_text("no picture")
    (tmp_path / "._d.png").write_text("what a file manager leaves behind")
    by_directory, by_list = open_images(tmp_path), open_images([tmp_path / name for name in names])
    assert by_directory.n_images == by_list.n_images == 4
    for row, place in enumerate([1, 3, 2, 0]):
        np.testing.assert_array_equal(pixels(by_directory.thumbnail(row, side=8)), bytes_of_pictures[place])
        np.testing.assert_array_equal(pixels(by_list.thumbnail(row, side=8)), bytes_of_pictures[row])
    assert open_images(tmp_path / "d.png").n_images == 1


def test_numbers_in_the_names_of_files_are_ordered_by_their_value(tmp_path):
    for place in range(12):
        Image.fromarray(np.full((2, 2), 20 * place, dtype=np.uint8)).save(tmp_path / f"{place}.png")
    images = open_images(tmp_path)
    assert [pixels(images.thumbnail(row, side=2))[0, 0] for row in range(12)] == [20 * row for row in range(12)]
    for name in ("a2b10.png", "a2b9.png", "b 01.png", "b 1.png", "a10.png", "a2.bmp", "a.png"):
        (tmp_path / name).touch()
    expected = ["a.png", "a2.bmp", "a2b9.png", "a2b10.png", "a10.png", "b 01.png", "b 1.png"]
    assert [path.name for path in open_images(tmp_path).pictures.paths[12:]] == expected


def test_unusual_image_files_are_shown_as_they_are_meant(tmp_path):
    deep = np.array([[0, 65535], [32896, 257]], dtype=np.uint16)
    Image.fromarray(deep).save(tmp_path / "deep.png")
    palette = Image.fromarray(np.array([[0, 1], [1, 0]], dtype=np.uint8), mode=None).convert("P")
    palette.putpalette([255, 0, 0, 0, 255, 0])
    palette.save(tmp_path / "palette.png", transparency=1)
    turned = Image.fromarray(np.zeros((4, 8), dtype=np.uint8))
    exif = Image.Exif()
    exif[0x0112] = 6  # held sideways
    exif[0x010E] = "a private remark"
    turned.save(tmp_path / "turned.jpg", exif=exif)
    ink = Image.new("CMYK", (2, 2), (0, 0, 0, 0))
    ink.save(tmp_path / "ink.jpg")
    images = open_images([tmp_path / f"{name}" for name in ("deep.png", "palette.png", "turned.jpg", "ink.jpg")])
    np.testing.assert_array_equal(pixels(images.thumbnail(0, side=2)), [[0, 255], [128, 1]])
    shown = pixels(images.thumbnail(1, side=2))
    np.testing.assert_array_equal(shown[0], [[255, 0, 0, 255], [0, 255, 0, 0]])
    assert pixels(images.thumbnail(2, side=8)).shape == (8, 4)
    assert b"private" not in base64.b64decode(images.thumbnail(2).partition(",")[2])
    np.testing.assert_array_equal(pixels(images.thumbnail(3, side=2)), np.full((2, 2, 3), 255))


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (np.zeros((4, 4)), r"images has shape \(4, 4\); pass pictures of one size as n×height×width"),
        (np.zeros((2, 5, 4, 2)), "with 1, 3 or 4 channels"),
        (np.zeros((0, 4, 4)), "holds no picture"),
        (np.zeros((2, 0, 4)), "holds no picture"),
        (np.zeros((2, 4, 4), dtype=object), "dtype object; pass numpy.uint8"),
        (np.zeros((2, 4, 4), dtype=np.int64), "dtype int64; pass numpy.uint8"),
        (np.zeros((2, 4, 4), dtype=complex), "dtype complex128"),
        (np.full((2, 4, 4), np.nan), "images holds NaN"),
        (np.full((2, 4, 4), np.inf), "floats must lie from 0 to 1"),
        (np.full((2, 4, 4), 16.0), "holds values from 16 to 16, but floats must lie from 0 to 1"),
        (np.full((2, 4, 4), -1.0), "floats must lie from 0 to 1"),
        ([[[0.1]], [[0.1, 0.2]]], "cannot be read as one array"),
        ([], r"images has shape \(0,\)"),
        (None, "images has shape"),
        ("no/such/folder", "does not exist"),
        (["no/such.png"], "not a file"),
        (["thing.gif"], "no .png .jpg"),
    ],
)
def test_what_is_no_picture_is_refused(source, message):
    with pytest.raises(InputError, match=message):
        open_images(source)


def test_files_that_hold_no_pictures_are_refused(tmp_path, bytes_of_pictures):
    def refused(path, message, error=InputError):
        with pytest.raises(error, match=message):
            open_images(path).thumbnails(range(9))

    refused(tmp_path, "holds no .png")
    path = tmp_path / "file.npz"
    for arrays, message in (
        ({"labels": np.arange(3)}, r'holds labels \(3,\), but no array "images"'),
        ({"a": bytes_of_pictures, "b": bytes_of_pictures}, 'but no array "images"'),
        ({"images": bytes_of_pictures, "rows": np.arange(6)}, r'"rows" has shape \(6,\)'),
        ({"images": bytes_of_pictures, "rows": np.arange(7.0)}, "dtype float64 for 7 images"),
        ({"images": bytes_of_pictures, "rows": np.zeros(7, dtype=int)}, "one twice"),
        ({"images": bytes_of_pictures, "rows": np.arange(-1, 6)}, "a negative number"),
        ({"images": bytes_of_pictures * 2.0}, "floats must lie from 0 to 1"),
        ({"images": np.array([[[None]]])}, "dtype object"),
    ):
        np.savez(path, **arrays)
        refused(path, message)
    np.savez(path, images=bytes_of_pictures, rows=np.array([None] * 7))
    refused(path, "dtype object for 7 images")
    late = bytes_of_pictures / 255.0
    late[6, 0, 0, 0] = np.nan
    np.savez(path, images=late)
    refused(path, "image 6 holds NaN")
    whole = path.read_bytes()
    path.write_bytes(whole[:1000])
    refused(path, "not a zip archive", FileFormatError)
    path.write_bytes(whole[:2000] + b"\0\0\0\0" + whole[2004:])
    refused(path, "damaged", FileFormatError)
    npy = tmp_path / "file.npy"
    np.save(npy, bytes_of_pictures)
    npy.write_bytes(npy.read_bytes()[:-5])
    refused(npy, "damaged", FileFormatError)
    np.save(npy, np.array([[[None]]]))
    refused(npy, "not an array of numbers", FileFormatError)
    (tmp_path / "file.csv").write_text("1,2")
    refused(tmp_path / "file.csv", "has the suffix '.csv'")


def test_damaged_image_files_are_named(tmp_path, bytes_of_pictures):
    picture = Image.fromarray(np.random.default_rng(0).integers(0, 256, (90, 90, 3), dtype=np.uint8))
    for suffix in ("png", "jpg", "bmp", "webp"):
        path = tmp_path / f"picture.{suffix}"
        picture.save(path)
        data = path.read_bytes()
        for cut in (0, 5, 40, len(data) // 2):
            path.write_bytes(data[:cut])
            with pytest.raises(FileFormatError, match=rf"picture.{suffix} is no image, or a damaged or truncated one"):
                open_images([path]).thumbnail(0)
    (tmp_path / "picture.png").write_text("<svg></svg>")
    with pytest.raises(FileFormatError, match="is no image"):
        open_images([tmp_path / "picture.png"]).thumbnail(0)


@pytest.mark.parametrize("limit", [2000, 6000])
def test_a_picture_of_too_many_pixels_is_refused(tmp_path, monkeypatch, limit):
    Image.new("L", (100, 100)).save(tmp_path / "bomb.png")
    images = open_images(tmp_path)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", limit)  # beyond twice the limit Pillow raises, beyond it it warns
    with pytest.raises(InputError, match=r"bomb.png has more pixels.*pass smaller images"):
        images.thumbnail(0)


def test_an_array_of_pictures_of_too_many_pixels_is_refused_by_its_header(tmp_path):
    header = {"descr": "|u1", "fortran_order": False, "shape": (1, 30_000, 30_000, 3)}
    with zipfile.ZipFile(tmp_path / "huge.npz", "w") as archive, archive.open("images.npy", "w") as member:
        np.lib.format.write_array_header_1_0(member, header)
    message = r"has shape \(1, 30000, 30000, 3\), 900,000,000 pixels a picture.*pass smaller images"
    with pytest.raises(InputError, match=message):
        open_images(tmp_path / "huge.npz")
    with pytest.raises(InputError, match=r"89,478,485\); pass smaller images"):
        open_images(np.broadcast_to(np.uint8(0), (1, 3, 10_000, 9_000)))


def test_the_limit_of_pixels_is_that_of_pillow(tmp_path, monkeypatch, bytes_of_pictures):
    np.save(tmp_path / "a.npy", bytes_of_pictures)
    np.savez(tmp_path / "b.npz", images=np.moveaxis(bytes_of_pictures, 3, 1))
    for limit in (48, None):
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", limit)
        assert [open_images(tmp_path / name).n_images for name in ("a.npy", "b.npz")] == [7, 7]
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 47)
    for name in ("a.npy", "b.npz"):
        with pytest.raises(InputError, match=r"48 pixels a picture.*at most 47\)"):
            open_images(tmp_path / name)


@pytest.mark.parametrize(("row", "side"), [(-1, 64), (1.0, 64), (True, 64), (0, 0), (0, 5000), (0, 2.5)])
def test_rows_and_sides_are_whole_numbers(row, side):
    with pytest.raises(InputError, match="pass"):
        open_images(np.zeros((2, 4, 4))).thumbnail(row, side=side)


def test_another_number_of_pictures_than_rows_is_refused():
    images = open_images(np.zeros((5, 4, 4)))
    images.refuse_other_length(5, "noise")
    for n_rows in (4, 6):
        with pytest.raises(InputError, match=f"noise has {n_rows} rows but 5 images; pass one image per row"):
            images.refuse_other_length(n_rows, "noise")


def test_without_pillow_the_command_that_installs_it_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(MissingExtraError, match=r'thumbnails need PIL.*pip install "gem-ood\[report\]"'):
        open_images(np.zeros((5, 4, 4)))


def test_thumbnails_of_real_pictures_are_those_pictures(cifar10_images):
    stored = cifar10_images["ood_svhn"]
    images = open_images(stored["images"])
    np.testing.assert_array_equal(pixels(images.thumbnail(999)), enlarged(stored["images"][999], 2))
