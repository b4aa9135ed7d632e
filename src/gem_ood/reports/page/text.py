"""Words and numbers as HTML: the one place where what a user named is escaped."""

import html
import json
import math
from collections.abc import Mapping
from typing import Any, TypeGuard

from gem_ood.errors import InputError
from gem_ood.reports.plots.names import NO_NAME

__all__ = [
    "NOTHING",
    "attributes",
    "count",
    "embedded",
    "escaped",
    "is_number",
    "listed",
    "name",
    "named",
    "percent",
    "prose",
    "short",
]

#: What stands where there is no number.
NOTHING = "–"

#: JSON inside a script element: none of these may be seen by the HTML parser, nor line ends by an old script engine.
_IN_SCRIPT = {ord(letter): f"\\u{ord(letter):04x}" for letter in "<>&\u2028\u2029"}


def escaped(text: object) -> str:
    r"""Return text that HTML shows as it is, in an element or a quoted attribute.

    >>> escaped('<b> & "c"\r')
    '&lt;b&gt; &amp; &quot;c&quot;&#13;'
    """
    return html.escape(str(text), quote=True).replace("\r", "&#13;")


def prose(sentence: object) -> str:
    """Return a sentence in which no line breaks between a number and its percent sign.

    >>> prose("95 % of a<b")
    '95&nbsp;% of a&lt;b'
    """
    return escaped(sentence).replace(" %", "&nbsp;%")


def named(text: object) -> str:
    """Return a user's name, or a word on its absence.

    >>> named("cat"), named(" ")
    ('cat', '(no name)')
    """
    return str(text) if str(text).strip() else NO_NAME


def name(text: object) -> str:
    """Return a user's name as an element that keeps its writing direction to itself.

    >>> name("a<b"), name(" ")
    ('<bdi>a&lt;b</bdi>', '<bdi>(no name)</bdi>')
    """
    return f"<bdi>{escaped(named(text))}</bdi>"


def percent(share: float | None) -> str:
    """Return a share in percent with two decimals, as the tables of a comparison write it.

    >>> percent(0.12345), percent(None)
    ('12.35', '–')
    """
    return f"{100.0 * share:.2f}" if is_number(share) else NOTHING


def short(value: float | None, digits: int = 4) -> str:
    """Return a number with few digits.

    >>> short(-1234.567), short(0.00012345, 3), short(None)
    ('-1,235', '0.000123', '–')
    """
    return f"{value:,.{digits}g}" if is_number(value) else NOTHING


def count(number: int, noun: str) -> str:
    """Return a number and its noun.

    >>> count(1, "row"), count(1200, "class")
    ('1 row', '1,200 classes')
    """
    plural = noun if number == 1 else f"{noun}es" if noun.endswith("s") else f"{noun}s"
    return f"{number:,} {plural}"


def is_number(value: float | None) -> TypeGuard[float]:
    """Return whether there is a finite number."""
    return value is not None and math.isfinite(value)


def attributes(values: Mapping[str, object]) -> str:
    """Return data attributes, each with a space before it.

    >>> attributes({"set": "a&b", "value": 0.5})
    ' data-set="a&amp;b" data-value="0.5"'
    """
    return "".join(f' data-{key}="{escaped(value)}"' for key, value in values.items())


def listed(sentences: list[str], css_class: str) -> str:
    """Return sentences as a list, nothing if there are none."""
    items = "".join(f"<li>{prose(sentence)}</li>" for sentence in sentences)
    return f'<ul class="{css_class}">{items}</ul>' if items else ""


def embedded(values: Mapping[str, Any]) -> str:
    r"""Return JSON that can stand inside a script element and be read back unchanged.

    >>> embedded({"name": "</script>"})
    '{"name":"\\u003c/script\\u003e"}'
    """
    try:
        text = json.dumps(values, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError) as error:
        raise InputError(
            f"the report holds what JSON cannot write ({error}); pass what Report.as_dict() returns"
        ) from error
    return text.translate(_IN_SCRIPT)
