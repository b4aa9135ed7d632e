"""Pictures of folders and archives: pixels are those that Pillow's own calls give, in the order of torchvision."""

import io
import os
import sys
import threading
import warnings

import numpy as np
import pytest
from data_sets_on_disk import encoded, made, noise, png, write_files, write_tar, write_zip

from gem_ood.errors import InputError, MissingExtraError
from gem_ood.experiments.data_sets import load, load_images
from gem_ood.experiments.data_sets.class_names import CLASS_NAMES

Image = pytest.importorskip("PIL.Image")


def as_protocol(data, size=32):
    """What torchvision's Resize(size) and CenterCrop(size) give, in Pillow's words."""
    with Image.open(io.BytesIO(data)) as picture, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a palette with transparency, which the loader does not mind
        colours = picture.convert("RGB")
    width, height = colours.size
    if width < height:
        colours = colours.resize((size, int(size * height / width)), Image.Resampling.BILINEAR)
    else:
        colours = colours.resize((int(size * width / height), size), Image.Resampling.BILINEAR)
    left, top = round((colours.width - size) / 2.0), round((colours.height - size) / 2.0)
    return np.asarray(colours.crop((left, top, left + size, top + size)))


def unusual_pictures():
    """Files of every mode and format that a folder may hold."""
    exif = Image.Exif()
    exif[0x0112] = 6  # held sideways, which torchvision's loader does not mind
    palette = noise(40, 50, mode="L").convert("P")
    palette.putpalette(np.random.default_rng(1).integers(0, 256, 768).tolist())
    return {
        "a wide.jpg": encoded(noise(300, 77), "JPEG"),
        "b tall.jpeg": encoded(noise(33, 90), "JPEG", quality=50),
        "c square.JPG": encoded(noise(64, 64), "JPEG"),
        "d grey.jpg": encoded(noise(48, 64, mode="L"), "JPEG"),
        "e ink.jpg": encoded(noise(48, 64, mode="CMYK"), "JPEG"),
        "f turned.jpg": encoded(noise(40, 80), "JPEG", exif=exif),
        "g palette.png": encoded(palette, "PNG"),
        "h clear.png": encoded(noise(50, 40, mode="RGBA"), "PNG"),
        "i clear palette.png": encoded(palette, "PNG", transparency=bytes(range(256))),
        "k bits.png": encoded(noise(50, 40, mode="L").convert("1"), "PNG"),
        "l small.png": encoded(noise(5, 9), "PNG"),
        "m exact.png": encoded(noise(32, 32), "PNG"),
        "n long.bmp": encoded(noise(32, 33), "BMP"),
        "o odd.ppm": encoded(noise(35, 32), "PPM"),
        "p flat.tiff": encoded(noise(90, 41), "TIFF"),
        "q new.webp": encoded(noise(90, 41), "WEBP", lossless=True),
        "r ünïcode 画像.pgm": encoded(noise(70, 50, mode="L"), "PPM"),
        "s huge.jpg": encoded(noise(1500, 1100), "JPEG"),
        "t clear grey.png": encoded(noise(50, 40, mode="LA"), "PNG"),
    }


@pytest.mark.parametrize("kind", ["folder", "tar", "tar.gz", "zip"])
@pytest.mark.parametrize("name", ["textures", "places365"])
def test_pixels_are_those_of_pillow(tmp_path, name, kind):
    files = unusual_pictures()
    inside = {"textures": "dtd/images/banded/", "places365": "val_256/"}[name]
    if kind == "folder":
        write_files(tmp_path / inside, files)
    elif kind == "zip":
        write_zip(tmp_path / f"{name}.zip", files, inside=inside)
    else:
        write_tar(tmp_path / f"{name}.{kind}", files, inside=inside, mode="w:gz" if kind == "tar.gz" else "w")
    seen = []
    found = load(name, tmp_path, on_images=lambda n_done, n_total: seen.append((n_done, n_total)))
    assert found.images.shape == (len(files), 32, 32, 3)
    for place, file in enumerate(sorted(files)):
        np.testing.assert_array_equal(found.images[place], as_protocol(files[file]), err_msg=file)
    assert seen == [(place + 1, len(files)) for place in range(len(files))]
    assert found.labels is None
    assert str(tmp_path) in found.source


@pytest.mark.parametrize("size", [1, 17, 32, 64])
def test_any_folder_is_another_set_of_any_size(tmp_path, size):
    files = {name: data for name, data in unusual_pictures().items() if "huge" not in name}
    write_files(tmp_path / "mine" / "below", files)
    found = load_images(tmp_path / "mine", "my set", size=size)
    assert found.name == "my set"
    for place, file in enumerate(sorted(files)):
        np.testing.assert_array_equal(found.images[place], as_protocol(files[file], size), err_msg=file)


def test_rows_are_in_the_order_of_torchvision(tmp_path):
    names = ["b/1.png", "a/z/2.png", "a/z.png", "a/b/10.png", "a/b/9.png", "a-c/0.png", "B/0.png", "é/0.png", "z.png"]
    files = {name: png(np.full((32, 32, 3), place, np.uint8)) for place, name in enumerate(names)}
    expected = []
    root = write_files(tmp_path / "pictures", files)
    classes = sorted(entry.name for entry in os.scandir(root) if entry.is_dir())
    for name in ["z.png", *classes]:  # ImageFolder takes classes only; here, what lies outside them comes first
        if name == "z.png":
            expected.append(name)
            continue
        for folder, _, found in sorted(os.walk(root / name, followlinks=True)):
            expected += [
                os.path.relpath(os.path.join(folder, file), root).replace(os.sep, "/") for file in sorted(found)
            ]
    write_tar(tmp_path / "p.tar.gz", dict(reversed(files.items())))
    write_zip(tmp_path / "p.zip", dict(reversed(files.items())))
    for source in ("pictures", "p.tar.gz", "p.zip"):
        rows = load_images(tmp_path / source, "set").images[:, 0, 0, 0]
        assert [names[row] for row in rows] == expected


def test_many_threads_give_the_order_of_one(tmp_path, monkeypatch):
    generator = np.random.default_rng(0)
    sides = generator.integers(32, 400, size=(60, 2))
    files = {f"{place:03d}.png": png(np.asarray(noise(*map(int, side)))) for place, side in enumerate(sides)}
    write_files(tmp_path / "many", files)
    results = []
    n_before = threading.active_count()
    for n_threads in (1, 8, 64):
        monkeypatch.setattr(os, "cpu_count", lambda n_threads=n_threads: n_threads)
        results.append(load_images(tmp_path / "many", "many").images)
        assert threading.active_count() == n_before
    np.testing.assert_array_equal(results[0], results[1])
    np.testing.assert_array_equal(results[0], results[2])
    np.testing.assert_array_equal(results[0][7], as_protocol(files["007.png"]))


@pytest.mark.parametrize(("name", "n_classes"), [("cifar10", 10), ("cifar100", 100)])
@pytest.mark.parametrize("split", ["train", "test"])
@pytest.mark.parametrize("kind", ["folder", "archive"])
def test_class_folders_give_the_official_labels(tmp_path, name, n_classes, split, kind):
    images, labels = made(n_classes + 5, n_classes=n_classes)
    folder = {"train": "train", "test": "val"}[split]
    rows = zip(images, labels, strict=True)
    files = {f"{folder}/{CLASS_NAMES[name][label]}/{place:04d}.png": png(x) for place, (x, label) in enumerate(rows)}
    other = {"train": "test", "test": "train"}[split]
    files |= {f"{other}/{CLASS_NAMES[name][0]}/1.png": png(images[0])}
    if kind == "folder":
        write_files(tmp_path / name.upper(), files)
    else:
        write_tar(tmp_path / f"{name}.tgz", files, inside=f"{name}/")
    found = load(name, tmp_path, split=split)
    order = np.argsort(labels, kind="stable")
    np.testing.assert_array_equal(found.images, images[order])
    np.testing.assert_array_equal(found.labels, labels[order])
    assert found.source.endswith(folder)
    assert len(load(name, tmp_path, split=other)) == 1


def test_class_folders_of_other_names_count_by_number_or_place(tmp_path):
    picture = png(made(1)[0][0])
    write_files(tmp_path / "a" / "cifar100", {f"test/{label}/1.png": picture for label in range(100)})
    np.testing.assert_array_equal(sorted(load("cifar100", tmp_path / "a").labels), np.arange(100))
    assert load("cifar100", tmp_path / "a").labels[1:3].tolist() == [1, 10]  # folders are sorted as text
    write_files(tmp_path / "b" / "cifar10", {f"test/kind {letter}/1.png": picture for letter in "jihgfedcba"})
    np.testing.assert_array_equal(load("cifar10", tmp_path / "b").labels, np.arange(10))
    write_files(tmp_path / "c" / "cifar10", {f"test/kind {letter}/1.png": picture for letter in "abc"})
    with pytest.raises(InputError, match=r"has 3 class folders \('kind a', 'kind b', 'kind c'\) but CIFAR-10 has 10"):
        load("cifar10", tmp_path / "c")
    write_files(tmp_path / "d" / "cifar10", {"test/cat/1.png": picture, "test/2.png": picture})
    with pytest.raises(InputError, match=r"1 pictures outside class folders, such as 2.png"):
        load("cifar10", tmp_path / "d")


@pytest.mark.parametrize("name", ["lsun-c", "lsun-r", "isun", "svhn"])
def test_pictures_of_one_size_are_taken_as_they_are(tmp_path, name):
    side = 36 if name == "lsun-c" else 32
    images, _ = made(6, side=side)
    folder = {
        "lsun-c": "LSUN/test",
        "lsun-r": "LSUN_resize/LSUN_resize",
        "isun": "iSUN/iSUN_patches",
        "svhn": "SVHN/test",
    }
    files = {f"{place}.png": png(image) for place, image in enumerate(images)}
    write_files(tmp_path / folder[name], files)
    np.testing.assert_array_equal(load(name, tmp_path).images, images)
    write_files(tmp_path / folder[name], {"6.png": png(made(1, side=40)[0][0])})
    if name != "svhn":
        with pytest.raises(
            InputError, match=rf"6.png is 40×40 pixels but 0.png is {side}×{side}.*pictures of one size"
        ):
            load(name, tmp_path)


@pytest.mark.parametrize(("name", "size"), [("isun", (31, 32)), ("isun", (256, 256)), ("svhn", (36, 36))])
def test_pictures_of_another_size_than_is_published_are_refused(tmp_path, name, size):
    write_files(tmp_path / name, {"1.png": encoded(noise(*size), "PNG")})
    with pytest.raises(InputError, match=rf"1.png is {size[0]}×{size[1]} pixels but this set's pictures are"):
        load(name, tmp_path)


def test_a_limit_draws_names_without_replacement_and_keeps_their_order(tmp_path):
    files = {f"{place // 10}/{place:02d}.png": png(np.full((32, 32, 3), place, np.uint8)) for place in range(40)}
    write_files(tmp_path / "isun", files)
    write_tar(tmp_path / "set.tar", dict(reversed(files.items())), mode="w")
    for seed in (0, 5):
        rows = load("isun", tmp_path, limit=15, seed=seed).images[:, 0, 0, 0].tolist()
        assert rows == sorted(set(rows))
        assert len(rows) == 15
        for source in (tmp_path / "isun", tmp_path / "set.tar"):
            again = load_images(source, "set", limit=15, seed=seed).images[:, 0, 0, 0].tolist()
            assert again == rows
    assert len(load_images(tmp_path / "isun", "set", limit=None)) == len(load_images(tmp_path / "isun", "set", limit=0))


def test_what_file_managers_leave_behind_is_no_picture(tmp_path):
    picture = png(made(1)[0][0])
    files = {"a/1.png": picture, "a/._1.png": b"x", "__MACOSX/a/1.png": b"x", ".thumbs/1.png": b"x", "Thumbs.db": b"x"}
    write_files(tmp_path / "set", files)
    write_zip(tmp_path / "set.zip", files)
    write_tar(tmp_path / "set.tar.gz", files)
    for name in ("set", "set.zip", "set.tar.gz"):
        assert len(load_images(tmp_path / name, "set")) == 1


def test_an_error_of_the_callers_leaves_no_thread_behind(tmp_path):
    n_before = threading.active_count()
    write_files(tmp_path / "set", {f"{place}.png": png(image) for place, image in enumerate(made(50)[0])})

    def stop(n_done, n_total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        load_images(tmp_path / "set", "set", on_images=stop)
    assert threading.active_count() == n_before


def test_without_pillow_the_command_that_installs_it_is_named(tmp_path, monkeypatch):
    write_files(tmp_path / "isun", {"1.png": png(made(1)[0][0])})
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(MissingExtraError, match=r'images need PIL.*pip install "gem-ood\[data\]"'):
        load("isun", tmp_path)
