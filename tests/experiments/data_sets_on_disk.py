"""Writes tiny data sets in the formats in which the official ones are kept on disk."""

import io
import pickle
import struct
import tarfile
import zipfile

import numpy as np
from scipy.io import savemat

CIFAR10_TRAIN = [f"data_batch_{number}" for number in range(1, 6)]


def made(n, *, n_classes=10, seed=0, side=32):
    """Pictures (n, side, side, 3) of noise, and labels that hold every class in turn."""
    generator = np.random.default_rng(seed)
    images = generator.integers(0, 256, size=(n, side, side, 3), dtype=np.uint8)
    return images, np.arange(n) % n_classes


def planes(images):
    """Pictures as CIFAR's rows of 3,072 bytes: all of red, then green, then blue."""
    rows = [b"".join(image[:, :, colour].tobytes() for colour in range(3)) for image in images]
    return np.frombuffer(b"".join(rows), np.uint8).reshape(len(images), -1)


def cifar10_binary(images, labels):
    return b"".join(bytes([label]) + row.tobytes() for label, row in zip(labels, planes(images), strict=True))


def cifar100_binary(images, labels):
    """Records of a coarse label, which readers must pass over, a fine label and the pixels."""
    rows = zip(labels, planes(images), strict=True)
    return b"".join(bytes([19 - label % 20, label]) + row.tobytes() for label, row in rows)


def cifar_pickle(images, labels, *, name=b"labels", protocol=2, as_text=False):
    """A batch as Python 3 pickles it, with keys of bytes (or of text)."""
    entries = {
        b"batch_label": b"training batch 1 of 5",
        name: [int(label) for label in labels],
        b"data": planes(images),
        b"filenames": [f"picture_s_{place:06d}.png".encode() for place in range(len(images))],
    }
    if name == b"fine_labels":
        entries[b"coarse_labels"] = [0] * len(images)
    if as_text:
        entries = {key.decode(): value for key, value in entries.items()}
    return pickle.dumps(entries, protocol=protocol)


def cifar_python2_pickle(images, labels, *, name=b"labels"):
    """A batch opcode for opcode as Python 2 wrote the official files: strings of bytes, and NumPy's old names."""

    def short(text):
        return b"U" + bytes([len(text)]) + text

    rows = planes(images)
    shape = b"M" + struct.pack("<H", rows.shape[0]) + b"M" + struct.pack("<H", rows.shape[1]) + b"\x86"
    dtype = b"cnumpy\ndtype\nq\x0b" + short(b"u1") + b"K\x00K\x01\x87Rq\x0c"
    dtype += b"(K\x03" + short(b"|") + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    array = b"cnumpy.core.multiarray\n_reconstruct\nq\x07cnumpy\nndarray\nq\x08K\x00\x85" + short(b"b") + b"\x87Rq\x09"
    array += b"(K\x01" + shape + dtype + b"\x89T" + struct.pack("<I", rows.size) + rows.tobytes() + b"tb"
    numbers = b"]q\x05(" + b"".join(b"K" + bytes([label]) for label in labels) + b"e"
    files = b"]q\x06(" + b"".join(short(b"%d.png" % place) for place in range(len(rows))) + b"e"
    items = short(b"batch_label") + b"q\x02" + short(b"testing batch 1 of 1") + b"q\x03"
    items += short(name) + b"q\x04" + numbers + short(b"data") + array + short(b"filenames") + files
    return b"\x80\x02}q\x01(" + items + b"u."


def matlab(**arrays):
    """The bytes of a MATLAB file of these arrays, compressed as the official ones are."""
    buffer = io.BytesIO()
    savemat(buffer, arrays, do_compression=True)
    return buffer.getvalue()


def cifar_matlab(images, labels, *, name="labels"):
    extra = {"coarse_labels": np.zeros((len(labels), 1), np.uint8)} if name == "fine_labels" else {}
    return matlab(data=planes(images), **{name: np.asarray(labels, np.uint8)[:, np.newaxis]}, **extra)


def svhn_matlab(images, labels):
    """Cropped digits as they are published: pictures last, and 10 for the digit 0."""
    digits = np.where(np.asarray(labels) == 0, 10, labels).astype(np.uint8)
    return matlab(X=np.moveaxis(images, 0, 3), y=digits[:, np.newaxis])


def cifar10_files(train, test, form="binary"):
    """The files of CIFAR-10's official version by name; the training pictures are dealt to five batches."""
    write, suffix = {
        "binary": (cifar10_binary, ".bin"),
        "python": (cifar_python2_pickle, ""),
        "matlab": (cifar_matlab, ".mat"),
    }[form]
    parts = zip(CIFAR10_TRAIN, np.array_split(train[0], 5), np.array_split(train[1], 5), strict=True)
    files = {name + suffix: write(images, labels) for name, images, labels in parts}
    return {**files, "test_batch" + suffix: write(*test)}


def cifar100_files(train, test, form="binary"):
    """The files of CIFAR-100's official version by name."""
    if form == "binary":
        return {"train.bin": cifar100_binary(*train), "test.bin": cifar100_binary(*test)}
    if form == "python":
        return {
            "train": cifar_python2_pickle(*train, name=b"fine_labels"),
            "test": cifar_python2_pickle(*test, name=b"fine_labels"),
            "meta": pickle.dumps({b"fine_label_names": [b"apple"]}),
        }
    return {name: cifar_matlab(*part, name="fine_labels") for name, part in (("train.mat", train), ("test.mat", test))}


def png(picture):
    """The bytes of a PNG file of this array."""
    return encoded(picture, "PNG")


def encoded(picture, kind, **options):
    from PIL import Image

    buffer = io.BytesIO()
    image = picture if isinstance(picture, Image.Image) else Image.fromarray(picture)
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def write_files(folder, files):
    """Write bytes by name into a folder, which it returns; folders of names are made."""
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return folder


def write_tar(path, files, *, inside="", mode="w:gz"):
    """Write a tar archive of these files, below a folder of the archive, and return its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, mode) as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(f"{inside}{name}")
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return path


def write_zip(path, files, *, inside=""):
    """Write a zip archive of these files and return its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(f"{inside}{name}", data)
    return path


def assert_same(found, expected):
    """Compare a set that was read with the pictures and labels that were written."""
    np.testing.assert_array_equal(found.images, expected[0])
    np.testing.assert_array_equal(found.labels, expected[1])


def noise(width, height, *, mode="RGB", seed=0):
    """A Pillow image of random colours."""
    from PIL import Image

    generator = np.random.default_rng(seed)
    bands = {"L": (), "RGB": (3,), "RGBA": (4,), "CMYK": (4,), "LA": (2,)}[mode]
    return Image.fromarray(generator.integers(0, 256, size=(height, width, *bands), dtype=np.uint8), mode=None).convert(
        mode
    )
