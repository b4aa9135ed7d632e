"""Augmentation: which images a training step sees, and how they are flipped and cropped.

All of it follows from the seed and the number of the epoch or step, so that training goes on after a kill as if there
had been none.
"""

import numpy as np
from numpy.typing import NDArray

__all__ = ["augmented", "drawing_seed", "epoch_order", "flipped_and_cropped"]

#: What random numbers are drawn for: each has a stream of its own.
PURPOSES = {"weights": 0, "order": 1, "augmentation": 2, "dropout": 3}


def drawing_seed(seed: int, purpose: str, number: int) -> np.random.SeedSequence:
    """Return what seeds the random numbers of one purpose in one epoch or step.

    >>> int(drawing_seed(0, "dropout", 5).generate_state(1)[0])
    2975998657
    """
    return np.random.SeedSequence([seed, PURPOSES[purpose], number])


def epoch_order(n_images: int, *, seed: int, epoch: int) -> NDArray[np.int64]:
    """Return in which order an epoch sees the images.

    >>> epoch_order(5, seed=0, epoch=1).tolist() == epoch_order(5, seed=0, epoch=1).tolist()
    True
    """
    generator = np.random.Generator(np.random.Philox(drawing_seed(seed, "order", epoch)))
    return generator.permutation(n_images)


def augmented(images: NDArray[np.uint8], *, padding: int, flip: bool, seed: int, step: int) -> NDArray[np.uint8]:
    """Return the images of one step, each at random mirrored, if asked, and moved by up to `padding` pixels."""
    generator = np.random.Generator(np.random.Philox(drawing_seed(seed, "augmentation", step)))
    is_mirrored = generator.random(len(images)) < (0.5 if flip else 0.0)
    corners = generator.integers(0, 2 * padding, size=(len(images), 2), endpoint=True)
    return flipped_and_cropped(images, is_mirrored=is_mirrored, corners=corners, padding=padding)


def flipped_and_cropped(
    images: NDArray[np.uint8], *, is_mirrored: NDArray[np.bool_], corners: NDArray[np.int64], padding: int
) -> NDArray[np.uint8]:
    """Return images (n, height, width, 3), mirrored where so asked, then cut out of a black frame around them.

    Args:
        images: The pixels.
        is_mirrored: Whether left and right change places, of each image.
        corners: Row and column in the framed image where the cut begins, of each image; (padding, padding) is the
            image itself.
        padding: How many black pixels the frame has on each side.

    >>> image = np.arange(1, 5, dtype=np.uint8).reshape(1, 2, 2, 1).repeat(3, axis=3)
    >>> flipped_and_cropped(image, is_mirrored=np.array([True]), corners=np.array([[2, 1]]), padding=1)[0, :, :, 0]
    array([[4, 3], [0, 0]], dtype=uint8)
    """
    n_images, height, width, _ = images.shape
    framed = np.zeros((n_images, height + 2 * padding, width + 2 * padding, 3), dtype=np.uint8)
    framed[:, padding : padding + height, padding : padding + width] = images
    rows = corners[:, :1] + np.arange(height)
    columns = corners[:, 1:] + np.arange(width)
    columns = np.where(is_mirrored[:, None], framed.shape[2] - 1 - columns, columns)
    # One gather for the whole batch: a pixel is three bytes, found by image, row and column.
    cut: NDArray[np.uint8] = framed[np.arange(n_images)[:, None, None], rows[:, :, None], columns[:, None, :]]
    return cut
