"""ImageSet: pictures of one size with their labels, in memory, as every data set is after reading."""

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gem_ood.errors import InputError

__all__ = ["ImageSet"]


@dataclass(frozen=True, eq=False)
class ImageSet:
    """Pictures (n, height, width, 3) of bytes, what they are called, and their labels if they have any.

    Attributes:
        name: What tables call the set.
        images: The pixels, red, green and blue last.
        labels: The class of each picture, from 0; None where nothing is known or wanted of it.
        source: What the pictures were read from, for people.

    >>> pixels = np.zeros((2, 32, 32, 3), dtype=np.uint8)
    >>> dark = ImageSet("dark", pixels, labels=[0, 1])
    >>> len(dark), dark.take([1]).labels
    (2, array([1]))
    """

    name: str
    images: NDArray[np.uint8]
    labels: NDArray[np.int64] | None = None
    source: str = ""

    def __init__(
        self, name: str, images: NDArray[np.uint8], labels: ArrayLike | None = None, *, source: str = ""
    ) -> None:
        if not isinstance(images, np.ndarray) or images.dtype != np.uint8 or images.ndim != 4 or images.shape[3] != 3:
            came = (
                f"{images.dtype} of shape {images.shape}" if isinstance(images, np.ndarray) else type(images).__name__
            )
            raise InputError(f"the images of {name!r} must be uint8 of shape (n, height, width, 3) but are {came}")
        if min(images.shape) < 1:
            raise InputError(f"{name!r} holds no picture: its shape is {images.shape}; pass at least one")
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "images", images)
        object.__setattr__(self, "labels", None if labels is None else _as_classes(labels, len(images), name))
        object.__setattr__(self, "source", source)

    def __len__(self) -> int:
        return len(self.images)

    @property
    def n_classes(self) -> int:
        """One more than the largest label, 0 without labels."""
        return 0 if self.labels is None else int(self.labels.max()) + 1

    def take(self, rows: ArrayLike) -> Self:
        """Return the set of these rows, in this order."""
        places = np.asarray(rows)
        labels = None if self.labels is None else self.labels[places]
        return type(self)(self.name, self.images[places], labels, source=self.source)

    @cached_property
    def digest(self) -> str:
        """A SHA-256 of all pixels and labels, by which results that were computed from them are found again."""
        found = hashlib.sha256(repr(self.images.shape).encode())
        found.update(np.ascontiguousarray(self.images).data)
        found.update(b"none" if self.labels is None else np.ascontiguousarray(self.labels).data)
        return found.hexdigest()


def _as_classes(labels: Any, n_images: int, name: str) -> NDArray[np.int64]:
    classes = np.asarray(labels)
    if classes.shape != (n_images,) or classes.dtype.kind not in "iu":
        raise InputError(
            f"the labels of {name!r} have shape {classes.shape} and dtype {classes.dtype} for {n_images} images; pass "
            f"one whole number per image"
        )
    if n_images and int(classes.min()) < 0:
        raise InputError(f"the labels of {name!r} hold {int(classes.min())}; pass classes counted from 0")
    return classes.astype(np.int64)
