"""Names of classes, sets and detectors as figures show them: any text, short enough, and nothing but text."""

import re
from collections import Counter
from collections.abc import Iterable
from typing import Any

__all__ = ["NO_NAME", "plain", "shown", "width_of"]

#: Stands where a name is empty.
NO_NAME = "(no name)"


def plain(name: object) -> str:
    r"""Return a name on one line, control characters written by their numbers, for captions.

    >>> plain("cats\tand\ndogs"), plain("bell\x07"), plain("")
    ('cats and dogs', 'bell\\x07', '(no name)')
    """
    words = " ".join(str(name).split())
    return "".join(letter if letter.isprintable() else _number(letter) for letter in words) or NO_NAME


def shown(names: Iterable[object], *, length: int, width: float | None = None) -> list[str]:
    r"""Return names cut to a length, and to a width in a legend, written so that matplotlib shows them as they are.

    A dollar sign would start a formula and a leading underscore would hide an entry from the legend. Letters that the
    font lacks are written by their numbers, so that different names stay so; captions have the names in full. Names
    that would be cut alike keep their ends instead.

    Args:
        names: Any texts.
        length: The most letters of each.
        width: The most points of each, in the size of a legend's letters.

    Example:
        >>> shown(["cost in $", "_private", "an unusually long name"], length=14)
        ['cost in \\$', ' _private', 'an unusually …']
        >>> shown(["penultimate layer 3", "penultimate layer 4", "猫"], length=14)
        ['penulti…ayer 3', 'penulti…ayer 4', '\\u732b']
    """
    texts = [_drawable(plain(name)) for name in names]
    cut = [_cut(text, length, width) for text in texts]
    counts = Counter(cut)
    told_apart = [
        _cut(text, length, width, keeps_end=True) if counts[short] > 1 else short
        for text, short in zip(texts, cut, strict=True)
    ]
    return [re.sub("^_", " _", text).replace("$", r"\$") for text in told_apart]


def width_of(text: str) -> float:
    """Return how wide a text of a legend is, in points.

    >>> width_of("wide") > width_of("ill") > 5.0
    True
    """
    from gem_ood.reports.plots.style import SETTINGS

    font = _font()
    font.set_size(SETTINGS["legend.fontsize"], 72)
    font.set_text(text)
    return float(font.get_width_height()[0]) / 64.0


def _cut(text: str, length: int, width: float | None, *, keeps_end: bool = False) -> str:
    """Return as much of a text as fits."""
    for n_letters in range(min(len(text), length), 1, -1):
        n_end = (n_letters - 1) // 2 if keeps_end else 0
        short = f"{text[: n_letters - 1 - n_end]}…{text[len(text) - n_end :]}" if n_letters < len(text) else text
        if width is None or width_of(short) <= width:
            return short
    return text if len(text) == 1 else "…"


def _drawable(text: str) -> str:
    """Return the text without letters that the style's font lacks, of which matplotlib would warn at each drawing."""
    if text.isascii():
        return text
    font = _font()
    return "".join(letter if font.get_char_index(ord(letter)) else _number(letter) for letter in text)


def _number(letter: str) -> str:
    return letter.encode("unicode_escape").decode("ascii")


def _font() -> Any:
    from matplotlib.font_manager import fontManager, get_font

    from gem_ood.reports.plots.style import SETTINGS

    return get_font(fontManager.findfont(SETTINGS["font.family"]))
