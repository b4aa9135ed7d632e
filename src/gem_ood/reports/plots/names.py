"""Names of classes, sets and detectors as figures show them: any text, short enough, and nothing but text."""

import re
from collections import Counter
from collections.abc import Iterable

__all__ = ["plain", "shown"]

#: Stands for a letter that cannot be drawn.
BOX = "□"


def plain(name: object) -> str:
    r"""Return a name on one line and without control characters, for captions.

    >>> plain("cats\tand\ndogs"), plain("bell\x07"), plain("")
    ('cats and dogs', 'bell□', '(no name)')
    """
    words = " ".join(str(name).split())
    return "".join(letter if letter.isprintable() else BOX for letter in words) or "(no name)"


def shown(names: Iterable[object], *, length: int) -> list[str]:
    r"""Return names cut to a length and written so that matplotlib shows them as they are.

    A dollar sign would start a formula and a leading underscore would hide an entry from the legend. Letters that the
    font lacks are boxes; captions have the names in full. Names that would be cut alike keep their ends instead.

    >>> shown(["cost in $", "_private", "an unusually long name"], length=14)
    ['cost in \\$', ' _private', 'an unusually …']
    >>> shown(["penultimate layer 3", "penultimate layer 4"], length=14)
    ['penulti…ayer 3', 'penulti…ayer 4']
    """
    texts = [_drawable(plain(name)) for name in names]
    cut = [text if len(text) <= length else f"{text[: length - 1]}…" for text in texts]
    counts = Counter(cut)
    n_end = (length - 1) // 2
    told_apart = [
        f"{text[: length - 1 - n_end]}…{text[-n_end:]}" if counts[short] > 1 and len(text) > length else short
        for text, short in zip(texts, cut, strict=True)
    ]
    return [re.sub("^_", " _", text).replace("$", r"\$") for text in told_apart]


def _drawable(text: str) -> str:
    """Return the text with boxes for what the style's font lacks, about which matplotlib would warn at each drawing."""
    if text.isascii():
        return text
    from matplotlib.font_manager import fontManager, get_font

    from gem_ood.reports.plots.style import SETTINGS

    font = get_font(fontManager.findfont(SETTINGS["font.family"]))
    return "".join(letter if font.get_char_index(ord(letter)) else BOX for letter in text)
