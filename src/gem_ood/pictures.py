"""Image files: what Pillow may raise while it decodes one, said in one line that names the file."""

import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager

from gem_ood.errors import FileFormatError, InputError
from gem_ood.numpy_format import one_line

__all__ = ["naming_picture", "refuse_many_pixels"]

#: What Pillow raises on damaged files.
PICTURE_ERRORS = (OSError, SyntaxError, ValueError, EOFError, struct.error, zlib.error)


@contextmanager
def naming_picture(title: str, *, use: str) -> Iterator[None]:
    """Say of an image file that cannot be decoded that it is damaged, or has more pixels than its use is worth.

    >>> with naming_picture("a.png", use="a thumbnail"):
    ...     raise OSError("image file is truncated")
    Traceback (most recent call last):
        ...
    gem_ood.errors.FileFormatError: a.png is no image, or a damaged or truncated one (image file is truncated); write it
    again or leave it out
    """
    from PIL import Image, UnidentifiedImageError

    bombs = (Image.DecompressionBombError, Image.DecompressionBombWarning)
    try:
        yield
    except InputError:  # a ValueError, but one that names the file already
        raise
    except bombs as error:
        raise InputError(
            f"{title} has more pixels than {use} is worth ({one_line(error)}); pass smaller images"
        ) from error
    except PICTURE_ERRORS as error:
        # Pillow's own words on a file of no known kind name an object in memory.
        reason = (
            "its first bytes are of no known kind" if isinstance(error, UnidentifiedImageError) else one_line(error)
        )
        raise FileFormatError(
            f"{title} is no image, or a damaged or truncated one ({reason}); write it again or leave it out"
        ) from error


def refuse_many_pixels(n_pixels: int, found: str, *, use: str) -> None:
    """Raise if one picture has more pixels than Pillow reads from an image file, which guards memory alike."""
    from PIL import Image

    most = Image.MAX_IMAGE_PIXELS  # None where the caller has lifted the limit
    if most is not None and n_pixels > most:
        raise InputError(
            f"{found}, {n_pixels:,} pixels a picture, which is more than {use} is worth (at most {most:,}); pass "
            f"smaller images"
        )
