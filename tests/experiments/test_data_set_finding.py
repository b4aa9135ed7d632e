"""Data sets are found in the layouts in which people keep them, and nothing else is taken for them."""

import subprocess
import sys
import zipfile

import numpy as np
import pytest
from data_sets_on_disk import (
    cifar10_binary,
    cifar10_files,
    cifar100_files,
    encoded,
    made,
    png,
    svhn_matlab,
    write_files,
    write_tar,
)

from gem_ood.errors import FileFormatError, InputError
from gem_ood.experiments.data_sets import DATA_SETS, DEFAULT_LIMITS, TITLES, find, load, load_images

Image = pytest.importorskip("PIL.Image")


def pictures(n, *, first=0, side=32, suffix="png"):
    """Files of one colour each, by which they are told."""
    kind = {"png": "PNG", "jpg": "JPEG"}[suffix]
    return {
        f"{place:03d}.{suffix}": encoded(Image.new("RGB", (side, side), (place, place, place)), kind)
        for place in range(first, first + n)
    }


def told(found):
    return found.images[:, 16, 16, 0].tolist()


def test_the_sets_are_those_of_the_tables():
    assert DATA_SETS == ("cifar10", "cifar100", "svhn", "textures", "places365", "lsun-c", "lsun-r", "isun")
    assert list(TITLES.values()) == [
        *("CIFAR-10", "CIFAR-100", "SVHN", "Textures", "Places365", "LSUN-Crop", "LSUN-Resize", "iSUN"),
    ]
    assert DEFAULT_LIMITS == {"places365": 10_000}


LAYOUTS = [
    ("textures", "dtd/images/banded", "dtd/images"),
    ("textures", "dtd/dtd/images/banded", "dtd/dtd/images"),
    ("textures", "textures/banded", "textures"),
    ("textures", "ood_datasets/dtd/images/banded", "ood_datasets/dtd/images"),
    ("textures", "data/Textures", "data/Textures"),
    ("places365", "places365", "places365"),
    ("places365", "places365/test_subset/a", "places365/test_subset"),
    ("places365", "Places365/val_256", "Places365/val_256"),
    ("places365", "val_256", "val_256"),
    ("places365", "test_256/a/abbey", "test_256"),
    ("places365", "ood_datasets/places", "ood_datasets/places"),
    ("lsun-c", "LSUN", "LSUN"),
    ("lsun-c", "LSUN/test", "LSUN/test"),
    ("lsun-c", "LSUN_C/test", "LSUN_C/test"),
    ("lsun-c", "lsun-crop", "lsun-crop"),
    ("lsun-r", "LSUN_resize", "LSUN_resize"),
    ("lsun-r", "LSUN_resize/LSUN_resize", "LSUN_resize/LSUN_resize"),
    ("lsun-r", "data/ood/LSUN_R", "data/ood/LSUN_R"),
    ("isun", "iSUN", "iSUN"),
    ("isun", "ood_isun_images", "ood_isun_images"),
    ("isun", "iSUN/iSUN_patches", "iSUN/iSUN_patches"),
    ("svhn", "svhn/test/3", "svhn/test"),
    ("svhn", "SVHN", "SVHN"),
]


@pytest.mark.parametrize(("name", "layout", "root"), LAYOUTS)
def test_folders_of_pictures_are_found(tmp_path, name, layout, root):
    write_files(tmp_path / layout, pictures(4))
    assert find(name, tmp_path) == tmp_path / root
    found = load(name, str(tmp_path))
    assert told(found) == [0, 1, 2, 3]
    assert (found.name, found.source) == (TITLES[name], str(tmp_path / root))
    if not root.endswith("svhn/test"):  # the folder of a split is not that of a set
        assert told(load(name, tmp_path / root)) == [0, 1, 2, 3]
    for other in DATA_SETS:
        if other != name:
            assert find(other, tmp_path) is None


@pytest.mark.parametrize(
    ("name", "file", "inside"),
    [
        ("textures", "dtd-r1.0.1.tar.gz", "dtd/images/banded/"),
        ("textures", "data/dtd.tar.gz", "dtd/images/banded/"),
        ("places365", "val_256.tar", "val_256/"),
        ("places365", "places365/test_256.tar", "test_256/"),
        ("lsun-c", "LSUN.tar.gz", "LSUN/test/"),
        ("lsun-r", "LSUN_resize.tar.gz", "LSUN_resize/LSUN_resize/"),
        ("isun", "iSUN.tar.gz", "iSUN/iSUN_patches/"),
        ("svhn", "svhn.tar", "svhn/test/"),
    ],
)
def test_archives_are_found_and_read_as_they_are(tmp_path, name, file, inside):
    path = write_tar(tmp_path / file, pictures(4, suffix="jpg"), inside=inside, mode="w:gz" if "gz" in file else "w")
    assert find(name, tmp_path) == path
    assert told(load(name, tmp_path)) == [0, 1, 2, 3]
    assert load(name, tmp_path).source.startswith(str(path))
    unpacked = tmp_path / {"textures": "dtd", "places365": "places365", "svhn": "svhn"}.get(name, inside.split("/")[0])
    write_files(unpacked, pictures(2, first=9))
    assert told(load(name, tmp_path)) == [9, 10]


def test_only_the_pictures_of_textures_are_taken(tmp_path):
    files = {f"images/banded/{name}": data for name, data in pictures(3).items()}
    others = {f"labels/{name}": data for name, data in pictures(5, first=50).items()}
    others |= {"imdb/imdb.mat": b"", "labels/labels_joint_anno.txt": b"", "images/banded/.directory": b""}
    write_files(tmp_path / "a" / "dtd", {**files, **others})
    write_tar(tmp_path / "b" / "dtd-r1.0.1.tar.gz", {**others, **files}, inside="dtd/")
    for folder in ("a", "a/dtd", "a/dtd/images", "b"):
        assert told(load("textures", tmp_path / folder)) == [0, 1, 2]


def test_sets_that_lie_in_one_another_are_told_apart(tmp_path):
    write_files(tmp_path / "LSUN" / "LSUN_resize", pictures(2))
    assert find("lsun-c", tmp_path) is None
    write_files(tmp_path / "LSUN" / "LSUN_C" / "test", pictures(3, first=50))
    assert told(load("lsun-c", tmp_path)) == [50, 51, 52]
    write_files(tmp_path / "cifarpy" / "cifar-10-batches-py", cifar10_files(made(5), made(4), "python"))
    write_files(tmp_path / "cifarpy" / "cifar-100-python", cifar100_files(made(5), made(7), "python"))
    assert [len(load(name, tmp_path)) for name in ("cifar10", "cifar100")] == [4, 7]
    assert [len(load(name, tmp_path / "cifarpy")) for name in ("cifar10", "cifar100")] == [4, 7]


def test_cifar_100_is_not_taken_from_files_of_any_folder(tmp_path):
    write_files(tmp_path / "models", cifar100_files(made(3), made(3)))
    assert find("cifar100", tmp_path) is None
    assert find("cifar100", tmp_path / "models") is None
    write_files(tmp_path / "CIFAR_100", cifar100_files(made(3), made(3)))
    assert find("cifar100", tmp_path) == tmp_path / "CIFAR_100" / "test.bin"


def test_a_folder_of_pictures_without_the_sets_name_is_not_taken(tmp_path):
    write_files(tmp_path / "holiday", pictures(3))
    for name in DATA_SETS:
        assert find(name, tmp_path) is None
        assert find(name, tmp_path / "holiday") is None


def test_the_pictures_of_one_split_are_not_taken_for_the_other(tmp_path):
    write_files(tmp_path / "svhn" / "train", pictures(3))
    assert find("svhn", tmp_path) is None
    assert told(load("svhn", tmp_path, split="train")) == [0, 1, 2]
    write_files(tmp_path / "cifar10" / "train" / "cat", pictures(3))
    write_files(tmp_path / "cifar10" / "dog", pictures(3))
    assert find("cifar10", tmp_path) is None
    assert load("cifar10", tmp_path, split="train").labels.tolist() == [3, 3, 3]
    np.savez(tmp_path / "svhn.npz", images=made(2)[0])
    assert len(load("svhn", tmp_path)) == 2
    write_files(tmp_path / "cifar100" / "test" / "train", pictures(2))  # a class, not a split
    assert find("cifar100", tmp_path, split="train") is None
    assert load("cifar100", tmp_path).labels.tolist() == [90, 90]


def test_places_are_10000_unless_another_number_is_asked(tmp_path):
    images = np.zeros((10_007, 32, 32, 3), dtype=np.uint8)
    images[:, 0, 0, 0], images[:, 0, 0, 1] = np.divmod(np.arange(10_007), 256)
    np.savez(tmp_path / "places365.npz", images=images)

    def rows(**options):
        pixels = load("places365", tmp_path, **options).images[:, 0, 0].astype(int)
        return pixels[:, 0] * 256 + pixels[:, 1]

    drawn = rows(seed=3)
    assert len(drawn) == len(set(drawn.tolist())) == 10_000
    assert (np.diff(drawn) > 0).all()
    assert not np.array_equal(drawn, rows(seed=4))
    np.testing.assert_array_equal(rows(limit=0), np.arange(10_007))
    assert len(rows(limit=12)) == 12


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("is_first", [False, True])
def test_arrays_of_every_layout_are_read(tmp_path, save, order, is_first):
    images, labels = made(9)
    values = np.array(np.moveaxis(images, 3, 1) if is_first else images, order=order)
    save(tmp_path / "cifar10_test.npz", images=values, labels=labels.astype(np.int16), rows=labels)
    found = load("cifar10", tmp_path)
    np.testing.assert_array_equal(found.images, images)
    np.testing.assert_array_equal(found.labels, labels)
    assert found.source == str(tmp_path / "cifar10_test.npz")


@pytest.mark.parametrize("name", ["x", "X", "data", "arr_0", "images", "x_test"])
def test_arrays_of_usual_names_are_read(tmp_path, name):
    images, labels = made(9)
    np.savez(tmp_path / "CIFAR-10 test.npz", **{name: images, "y": labels[:, np.newaxis]})
    np.testing.assert_array_equal(load("cifar10", tmp_path).images, images)
    np.testing.assert_array_equal(load("cifar10", tmp_path).labels, labels)


def test_both_splits_in_one_file_are_told_by_the_names_of_arrays(tmp_path):
    train, test = made(7), made(4, seed=1)
    np.savez(
        tmp_path / "cifar10.npz", x_train=train[0], y_train=train[1][:, None], x_test=test[0], y_test=test[1][:, None]
    )
    for split, (images, labels) in (("train", train), ("test", test)):
        found = load("cifar10", tmp_path, split=split)
        np.testing.assert_array_equal(found.images, images)
        np.testing.assert_array_equal(found.labels, labels)
    np.savez(tmp_path / "cifar10.npz", images=test[0], labels=test[1])  # of which split is not said
    assert find("cifar10", tmp_path) is None


def test_files_of_features_are_not_taken_for_pictures(tmp_path):
    np.savez(tmp_path / "ood_svhn.npz", features=np.zeros((5, 64), np.float32))
    np.savez(tmp_path / "cifar10_test.npz", features=np.zeros((5, 64), np.float32), labels=np.zeros(5, int))
    assert find("svhn", tmp_path) is None
    assert find("cifar10", tmp_path) is None
    with pytest.raises(InputError, match=r"SVHN was not found .*ood_svhn.npz is not it, having no array 'images'"):
        load("svhn", tmp_path)


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("svhn", "ood_svhn.npz"),
        ("svhn", "svhn_test_32x32.npz"),
        ("textures", "dtd.npz"),
        ("textures", "ood_textures.npz"),
        ("places365", "ood_places.npz"),
        ("lsun-c", "LSUN_C.npz"),
        ("lsun-r", "lsun_resize.npz"),
        ("isun", "isun.npz"),
    ],
)
def test_other_sets_are_read_from_arrays(tmp_path, name, file):
    images, _ = made(6)
    np.savez(tmp_path / file, images=images)
    np.testing.assert_array_equal(load(name, tmp_path).images, images)
    assert load(name, tmp_path).labels is None
    assert [other for other in DATA_SETS if find(other, tmp_path)] == [name]


def test_arrays_are_resized_as_files_are(tmp_path):
    images = np.random.default_rng(0).integers(0, 256, size=(5, 40, 57, 3), dtype=np.uint8)
    np.savez(tmp_path / "textures.npz", images=images)
    np.save(tmp_path / "array.npy", np.moveaxis(images, 3, 1))
    np.savez(tmp_path / "any name.npz", whatever=images, labels=np.arange(5))
    write_files(tmp_path / "files", {f"{place}.png": png(image) for place, image in enumerate(images)})
    expected = load_images(tmp_path / "files", "files").images
    np.testing.assert_array_equal(load("textures", tmp_path).images, expected)
    for source in ("array.npy", "any name.npz", "textures.npz"):
        np.testing.assert_array_equal(load_images(tmp_path / source, "array").images, expected)
    assert len(load_images(tmp_path / "array.npy", "array", limit=2)) == 2


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"images": made(3)[0]}, "holds no labels of CIFAR-10"),
        ({"images": made(3)[0], "labels": [0, 1, 10]}, "labels from 0 to 10"),
        ({"images": made(3)[0], "labels": [0, 1]}, "for 3 pictures"),
        ({"images": made(3)[0], "labels": ["a", "b", "c"]}, "holds no numbers but dtype <U1"),
        ({"images": made(3)[0], "labels": np.array([None, 0, 1])}, "holds no numbers but dtype object"),
        ({"images": made(3)[0] / 255.0, "labels": [0, 1, 2]}, "dtype float64; pass pictures"),
        ({"images": made(3, side=28)[0], "labels": [0, 1, 2]}, "28×28 pixels but this set's pictures are 32×32"),
        ({"images": np.zeros((3, 32, 32, 1), np.uint8), "labels": [0, 1, 2]}, r"shape \(3, 32, 32, 1\)"),
        ({"images": np.zeros((0, 32, 32, 3), np.uint8), "labels": []}, r"shape \(0, 32, 32, 3\)"),
        ({"images": np.full((3, 32, 32, 3), None), "labels": [0, 1, 2]}, "holds no numbers but dtype object"),
    ],
)
def test_arrays_that_are_no_set_are_refused(tmp_path, arrays, message):
    np.savez(tmp_path / "cifar10_test.npz", **arrays)
    with pytest.raises(InputError, match=rf"cifar10_test.npz.*{message}"):
        load("cifar10", tmp_path)


def test_damaged_arrays_are_told(tmp_path):
    images, labels = made(9)
    path = tmp_path / "cifar10_test.npz"
    np.savez(path, images=images, labels=labels)
    data = path.read_bytes()
    for damaged in (
        data[:500],
        data[:-30],
        b"text",
        data.replace(b"'descr': '|u1'", b"'descr': (|u1'"),
        data[:5000] + b"\0\0\0\0" + data[5004:],
    ):
        path.write_bytes(damaged)
        with pytest.raises(FileFormatError, match=r"cifar10_test.npz.*damaged"):
            load("cifar10", tmp_path)
    header = {"descr": "|u1", "fortran_order": False, "shape": (1 << 30, 32, 32, 3)}
    with zipfile.ZipFile(path, "w") as archive, archive.open("images.npy", "w") as member:
        np.lib.format.write_array_header_1_0(member, header)
    with pytest.raises(FileFormatError, match="more than is read into memory"):
        load("cifar10", tmp_path)
    np.save(tmp_path / "a.npy", images)
    (tmp_path / "a.npy").write_bytes((tmp_path / "a.npy").read_bytes()[:-1])
    with pytest.raises(FileFormatError, match=r"a.npy ends before its last row"):
        load_images(tmp_path / "a.npy", "a")
    np.savez(tmp_path / "b.npz", a=images, b=images)
    with pytest.raises(FileFormatError, match=r"b.npz holds a \(9, 32, 32, 3\), b .*but no array of pictures"):
        load_images(tmp_path / "b.npz", "b")


@pytest.mark.parametrize("name", DATA_SETS)
def test_a_set_that_is_absent_is_told_with_every_place_and_the_remedy(tmp_path, name):
    (tmp_path / "data" / "datasets").mkdir(parents=True)
    with pytest.raises(InputError) as caught:
        load(name, tmp_path)
    message = str(caught.value)
    for part in (TITLES[name], f"was not found in {tmp_path};", str(tmp_path / "data" / "datasets"), "--download"):
        assert part in message
    expected = {
        "cifar10": "test_batch.bin, test_batch, test_batch.mat, cifar-10-binary.tar.gz",
        "svhn": "test_32x32.mat",
    }
    assert expected.get(name, "of pictures") in message
    assert find(name, tmp_path) is None


def test_paths_splits_and_names_that_make_no_sense_are_told(tmp_path):
    (tmp_path / "file").write_text("text")
    for call in (find, load):
        with pytest.raises(InputError, match=r"file is a file where a folder must be; pass the folder that it is in"):
            call("svhn", tmp_path / "file")
        with pytest.raises(InputError, match=r"nowhere does not exist; pass the folder that holds SVHN"):
            call("svhn", tmp_path / "nowhere")
        with pytest.raises(InputError, match=r"split is 'dev'; pass 'train' or 'test'"):
            call("svhn", tmp_path, split="dev")
        for name in ("mnist", "", None, ["svhn"]):
            with pytest.raises(InputError, match="is not one of the data sets cifar10, cifar100"):
                call(name, tmp_path)


def test_finding_reads_nothing(tmp_path):
    for file in ("test_32x32.mat", "test_batch.bin", "val_256.tar", "dtd-r1.0.1.tar.gz"):
        (tmp_path / file).write_bytes(b"damaged")
    names = {"svhn": "test_32x32.mat", "cifar10": "test_batch.bin", "places365": "val_256.tar"}
    for name, file in {**names, "textures": "dtd-r1.0.1.tar.gz"}.items():
        assert find(name, tmp_path) == tmp_path / file
        with pytest.raises(FileFormatError, match=file):
            load(name, tmp_path)


def test_the_given_folder_may_be_the_current_one(tmp_path, monkeypatch):
    write_files(tmp_path / "isun", pictures(2))
    monkeypatch.chdir(tmp_path / "isun")
    assert told(load("isun", ".")) == [0, 1]


def test_a_set_with_train_and_test_digits_and_other_files_beside_them(tmp_path):
    images, labels = made(3)
    files = {"test_32x32.mat": svhn_matlab(images, labels), "train_32x32.mat": svhn_matlab(*made(5))}
    write_files(tmp_path, {**files, "test_batch.bin": cifar10_binary(images, labels), "README.md": b"text"})
    assert [len(load("svhn", tmp_path, split=split)) for split in ("train", "test")] == [5, 3]
    assert len(load("cifar10", tmp_path)) == 3


def test_reading_needs_no_torch():
    extras = ("torch", "PIL", "pooch")
    code = f"import sys, gem_ood.experiments.data_sets; print([name for name in {extras} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("name", "split", "file"),
    [
        ("cifar10", "train", "cifar10_train_5k"),
        ("cifar10", "test", "cifar10_test"),
        ("svhn", "test", "ood_svhn"),
        ("textures", "test", "ood_textures"),
    ],
)
def test_real_pictures_are_read_as_they_are_stored(cifar10_images, resnet56_weights, name, split, file):
    data = resnet56_weights.parents[1]
    for folder in (data / "images", data):
        found = load(name, folder, split=split)
        assert len(found) == (5000 if split == "train" else 1000)
        np.testing.assert_array_equal(found.images, cifar10_images[file]["images"])
        if name != "textures":
            np.testing.assert_array_equal(found.labels, cifar10_images[file]["labels"])
