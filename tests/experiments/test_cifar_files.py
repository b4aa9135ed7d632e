"""CIFAR and SVHN in their official versions: what is read is what was written, and damage is told."""

import pickle

import numpy as np
import pytest
from data_sets_on_disk import (
    assert_same,
    cifar10_binary,
    cifar10_files,
    cifar100_binary,
    cifar100_files,
    cifar_matlab,
    cifar_pickle,
    cifar_python2_pickle,
    made,
    matlab,
    png,
    svhn_matlab,
    write_files,
    write_tar,
    write_zip,
)

from gem_ood.errors import FileFormatError, InputError
from gem_ood.experiments.data_sets import load
from gem_ood.experiments.data_sets.class_names import CLASS_NAMES

WRITERS = {"cifar10": cifar10_files, "cifar100": cifar100_files}
N_CLASSES = {"cifar10": 10, "cifar100": 100}
OFFICIAL = {
    ("cifar10", "binary"): "cifar-10-batches-bin/",
    ("cifar10", "python"): "cifar-10-batches-py/",
    ("cifar10", "matlab"): "cifar-10-batches-mat/",
    ("cifar100", "binary"): "cifar-100-binary/",
    ("cifar100", "python"): "cifar-100-python/",
    ("cifar100", "matlab"): "cifar-100-matlab/",
}
forms = pytest.mark.parametrize(("name", "form"), list(OFFICIAL))


def parts_of(name):
    return made(103, n_classes=N_CLASSES[name]), made(11, n_classes=N_CLASSES[name], seed=1)


@forms
def test_an_unpacked_version_is_read_as_it_was_written(tmp_path, name, form):
    train, test = parts_of(name)
    write_files(tmp_path / OFFICIAL[name, form], WRITERS[name](train, test, form))
    assert_same(load(name, tmp_path, split="train"), train)
    for folder in (tmp_path, tmp_path / OFFICIAL[name, form]):
        found = load(name, folder)
        assert_same(found, test)
        assert f"{form} version" in found.source


@forms
@pytest.mark.parametrize("suffix", ["-python.tar.gz", ".tgz", ".tar", ".zip"])
def test_an_archive_is_read_without_being_unpacked(tmp_path, name, form, suffix):
    train, test = parts_of(name)
    path = tmp_path / f"{name.replace('cifar', 'cifar-')}{suffix}"
    files = WRITERS[name](train, test, form)
    if suffix == ".zip":
        write_zip(path, files, inside=OFFICIAL[name, form])
    else:
        write_tar(path, files, inside=OFFICIAL[name, form], mode="w" if suffix == ".tar" else "w:gz")
    before = sorted(tmp_path.rglob("*"))
    assert_same(load(name, tmp_path, split="train"), train)
    found = load(name, tmp_path)
    assert_same(found, test)
    assert found.source == f"{path} ({form} version)"
    assert sorted(tmp_path.rglob("*")) == before


def test_unpacked_comes_before_archives_and_binary_before_python_before_matlab(tmp_path):
    parts = {form: made(5, seed=seed) for seed, form in enumerate(("binary", "python", "matlab", "packed"))}
    write_tar(tmp_path / "cifar-10-matlab.tar.gz", {"m/test_batch.mat": cifar_matlab(*parts["matlab"])})
    assert_same(load("cifar10", tmp_path), parts["matlab"])
    write_tar(tmp_path / "cifar-10-python.tar.gz", {"p/test_batch": cifar_pickle(*parts["python"])})
    assert_same(load("cifar10", tmp_path), parts["python"])
    write_tar(tmp_path / "cifar-10-binary.tar.gz", {"b/test_batch.bin": cifar10_binary(*parts["packed"])})
    assert_same(load("cifar10", tmp_path), parts["packed"])
    for form, file in (("matlab", "test_batch.mat"), ("python", "test_batch"), ("binary", "test_batch.bin")):
        data = cifar10_files(made(5), parts[form], form)[file]
        write_files(tmp_path / OFFICIAL["cifar10", form], {file: data})
        assert_same(load("cifar10", tmp_path), parts[form])


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_a_record_that_is_cut_is_told(tmp_path, name):
    images, labels = made(3)
    data = (cifar10_binary if name == "cifar10" else cifar100_binary)(images, labels)
    file = tmp_path / name / ("test_batch.bin" if name == "cifar10" else "test.bin")
    file.parent.mkdir()
    for damaged in (data[:-1], data + b"a", b""):
        file.write_bytes(damaged)
        with pytest.raises(
            FileFormatError, match=rf"{file.name} has [\d,]+ bytes, which is no multiple.*fetch it again"
        ):
            load(name, tmp_path)


def test_labels_of_no_class_are_told(tmp_path):
    images, labels = made(12)
    for files in (
        {"test_batch.bin": cifar10_binary(images, labels + 1)},
        {"test_batch": cifar_pickle(images, labels + 1)},
        {"test_batch.mat": cifar_matlab(images, labels + 1)},
    ):
        (file,) = files
        folder = write_files(tmp_path / f"of {file}", files)
        with pytest.raises(FileFormatError, match=rf"{file} has labels from 1 to 10 but CIFAR-10's are 0 to 9"):
            load("cifar10", folder)
    write_files(tmp_path, {"test_batch": cifar_pickle(images, labels - 1)})
    with pytest.raises(FileFormatError, match="labels from -1 to 8"):
        load("cifar10", tmp_path)
    write_files(tmp_path, {"test_batch": cifar_pickle(images, labels[:-1])})
    with pytest.raises(FileFormatError, match=r"labels of shape \(11,\) and dtype int64 for 12 pictures"):
        load("cifar10", tmp_path)


def test_a_batch_of_the_other_cifar_is_told(tmp_path):
    write_files(tmp_path, {"cifar10/test_batch": cifar_pickle(*made(3), name=b"fine_labels")})
    with pytest.raises(FileFormatError, match="but not data and labels of CIFAR-10"):
        load("cifar10", tmp_path)
    write_files(tmp_path, {"cifar100/test": cifar_pickle(*made(3))})
    with pytest.raises(FileFormatError, match="but not data and fine_labels of CIFAR-100"):
        load("cifar100", tmp_path)
    write_files(
        tmp_path, {"cifar10/test_batch": pickle.dumps({b"data": np.zeros((2, 7), np.uint8), b"labels": [0, 1]})}
    )
    with pytest.raises(FileFormatError, match=r"data of shape \(2, 7\)"):
        load("cifar10", tmp_path)


def test_a_batch_that_is_missing_is_named(tmp_path):
    files = cifar10_files(made(10), made(2))
    del files["data_batch_3.bin"]
    write_files(tmp_path, files)
    with pytest.raises(InputError, match=r"lacks data_batch_3.bin of CIFAR-10's train split \(binary version\)"):
        load("cifar10", tmp_path, split="train")
    assert len(load("cifar10", tmp_path)) == 2


def test_digits_are_read_with_10_as_0(tmp_path):
    images, labels = made(23)
    write_files(tmp_path, {"svhn/test_32x32.mat": svhn_matlab(images, labels)})
    assert_same(load("svhn", tmp_path), (images, labels))
    assert load("svhn", tmp_path).source.startswith(str(tmp_path / "svhn" / "test_32x32.mat"))
    write_files(tmp_path, {"svhn/train_32x32.mat": svhn_matlab(images[:1], labels[:1])})
    assert_same(load("svhn", tmp_path, split="train"), (images[:1], labels[:1]))
    write_files(tmp_path, {"svhn/train_32x32.mat": matlab(X=images[0], y=np.array([[10]]))})
    assert_same(load("svhn", tmp_path, split="train"), (images[:1], labels[:1]))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "no MATLAB file, or is truncated or damaged"),
        (b"text" * 100, "no MATLAB file, or is truncated or damaged"),
        (svhn_matlab(*made(40))[:-300], "truncated or damaged"),
        (svhn_matlab(*made(40))[:20_000], "truncated or damaged"),
        (bytes(svhn_matlab(*made(40)).replace(b"\x78\x9c", b"\x78\x9d")), "truncated or damaged"),
        (matlab(a=np.arange(3)), r"holds a int64 \(1, 3\), but not both X and y"),
        (matlab(X=np.zeros((2, 2), dtype=object), y=np.arange(3)), "but not both X and y as numbers"),
        (matlab(X=np.zeros((9, 32, 32, 3), np.uint8), y=np.arange(9)), r"X of shape \(9, 32, 32, 3\)"),
        (matlab(X=np.zeros((32, 32, 3, 9)), y=np.arange(9)), "dtype float64 but uint8"),
        (matlab(X=np.zeros((32, 32, 3, 9), np.uint8), y=np.arange(8)), r"shape \(1, 8\).* for 9 pictures"),
        (matlab(X=np.zeros((32, 32, 3, 3), np.uint8), y=np.arange(3) + 9.5), "one whole number per picture"),
        (matlab(X=np.zeros((32, 32, 3, 3), np.uint8), y=np.arange(3) + 9), "labels from 0 to 11"),
        (b"MATLAB 7.3 MAT-file, Platform: GLNXA64".ljust(124) + b"\x00\x02IM" + b"\x89HDF\r\n", "version 7.3"),
    ],
)
def test_damaged_digits_are_told(tmp_path, data, message):
    write_files(tmp_path, {"test_32x32.mat": data})
    with pytest.raises(FileFormatError, match=rf"test_32x32.mat.*{message}"):
        load("svhn", tmp_path)


def test_a_file_that_is_far_too_large_is_refused_before_it_is_read(tmp_path):
    with (tmp_path / "test_batch.bin").open("wb") as stream:
        stream.truncate(1 << 40)  # takes no room on the disk
    with pytest.raises(FileFormatError, match="has 1,099,511,627,776 bytes, more than a file of its kind may have"):
        load("cifar10", tmp_path)


def test_the_names_of_classes_are_those_of_the_alphabet():
    for name, n_classes in N_CLASSES.items():
        assert len(set(CLASS_NAMES[name])) == n_classes
        assert sorted(CLASS_NAMES[name]) == list(CLASS_NAMES[name])


def test_a_limit_draws_rows_without_replacement_and_keeps_their_order(tmp_path):
    images, labels = made(50)
    write_files(tmp_path, {"test_batch.bin": cifar10_binary(images, labels)})
    rows_by_seed = []
    for seed in (0, 1):
        found = load("cifar10", tmp_path, limit=20, seed=seed)
        rows = [int(np.flatnonzero((images == image).all(axis=(1, 2, 3)))[0]) for image in found.images]
        assert len(set(rows)) == 20
        assert rows == sorted(rows)
        np.testing.assert_array_equal(found.labels, labels[rows])
        rows_by_seed.append(rows)
        assert_same(load("cifar10", tmp_path, limit=20, seed=seed), (found.images, found.labels))
    assert rows_by_seed[0] != rows_by_seed[1]
    for limit in (None, 0, 50, 99):
        assert_same(load("cifar10", tmp_path, limit=limit), (images, labels))
    for options in ({"limit": -1}, {"limit": 2.5}, {"limit": True}, {"seed": -1}, {"seed": None}):
        with pytest.raises(InputError, match="pass a whole number, at least 0"):
            load("cifar10", tmp_path, **options)


def changed_at_random(data, generator):
    """The bytes with a few of them changed, cut out or put in, most of them near the ends, where the headers are."""
    changed = bytearray(data)
    for _ in range(generator.integers(1, 4)):
        place = int(generator.integers(len(changed)))
        if generator.random() < 0.7:
            place = int(generator.integers(400)) * int(generator.choice([1, -1])) % len(changed)
        kind = generator.integers(3)
        if kind == 0:
            changed[place] = generator.integers(256)
        elif kind == 1:
            changed[place : place + 4] = generator.choice([b"\xff\xff\xff\x7f", b"\xff\xff\xff\xff", b"none"])
        else:
            del changed[place : place + int(generator.integers(1, 40))]
    return bytes(changed)


@pytest.mark.parametrize(
    ("name", "file"),
    [
        *(("cifar10", "test_batch"), ("cifar10", "test_batch.mat"), ("cifar10", "cifar10_test.npz")),
        *(("svhn", "test_32x32.mat"), ("isun", "isun.tar"), ("isun", "isun.tar.gz"), ("isun", "isun.zip")),
    ],
)
def test_changed_bytes_give_pictures_or_one_clear_error(tmp_path, name, file):
    pytest.importorskip("PIL")
    images, labels = made(3)
    path = tmp_path / file
    if name == "isun":
        files = {f"{place}.png": png(np.full((32, 32, 3), place, np.uint8)) for place in range(3)}
        write = write_zip if file.endswith("zip") else write_tar
        write(path, files, **({"mode": "w"} if file.endswith(".tar") else {}))
    elif file.endswith(".npz"):
        np.savez_compressed(path, images=images, labels=labels)
    else:
        makers = {"test_batch": cifar_python2_pickle, "test_batch.mat": cifar_matlab, "test_32x32.mat": svhn_matlab}
        path.write_bytes(makers[file](images, labels))
    whole = path.read_bytes()
    generator = np.random.default_rng(0)
    errors = []
    for _ in range(150):
        path.write_bytes(changed_at_random(whole, generator))
        try:
            found = load(name, tmp_path)
        except InputError as error:
            errors.append(str(error))
        else:
            assert found.images.shape[1:] == (32, 32, 3)
    assert len(errors) > 20
    assert all(str(tmp_path) in error for error in errors)
