"""What commands print: one JSON object, or text and tables that lose their frames in a pipe."""

import codecs
import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from gem_ood.plain import plain

__all__ = ["any_encoding", "percent", "print_json", "print_table", "print_text"]

#: Tables in a pipe are not folded to a screen that is not there.
_PIPE_WIDTH = 10_000

#: How signs that a terminal may lack are written instead.
_PLAIN_SIGNS = {
    **dict(zip("↓↑−–—×·’", "v^---x.'", strict=True)),
    **dict(zip("ασχμλΣΔ", ("alpha", "sigma", "chi", "mu", "lambda", "Sigma", "Delta"), strict=True)),
    **dict(
        zip(
            "±²½√≤≥≠≈→∞…§",
            ("+-", "^2", "1/2", "sqrt ", "<=", ">=", "!=", "~", "->", "inf", "...", "section "),
            strict=True,
        )
    ),
}


def print_json(values: Mapping[str, Any]) -> None:
    """Print one JSON object; what JSON cannot write (infinities) becomes null."""
    document = plain(values)
    text = json.dumps(document, ensure_ascii=False, allow_nan=False)
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:  # the reader takes less than Unicode, and JSON has its own way to write the rest
        text = json.dumps(document, allow_nan=False)
    print(text, flush=True)


def print_text(text: str) -> None:
    """Print a line as it is."""
    print(text, flush=True)


def print_table(header: Sequence[str], rows: Iterable[Sequence[str]], *, n_names: int = 1) -> None:
    """Print rows of text under a header; the first n_names columns are aligned left, the others right."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    if not console.is_terminal:
        console = Console(width=_PIPE_WIDTH, no_color=True)
    frame = box.ROUNDED if console.is_terminal else None
    table = Table(box=frame, pad_edge=frame is not None)
    for place, name in enumerate(header):
        table.add_column(Text(_printable(name)), justify="left" if place < n_names else "right", overflow="fold")
    for row in rows:
        table.add_row(*(Text(_printable(value)) for value in row))
    console.print(table)


def percent(share: float | None) -> str:
    """Return a share as a percentage with two decimals, or a dash for none.

    >>> percent(0.12345), percent(None)
    ('12.35', '-')
    """
    return "-" if share is None else f"{100.0 * share:.2f}"


@contextmanager
def any_encoding() -> Iterator[None]:
    """Let stdout take every sign: those that its encoding lacks are written plainly rather than raise."""
    reconfigure = getattr(sys.stdout, "reconfigure", None)
    before = getattr(sys.stdout, "errors", None)
    if reconfigure is None or before != "strict":
        yield
        return
    reconfigure(errors="gem-ood-plain")
    try:
        yield
    finally:
        reconfigure(errors=before)


def _printable(text: str) -> str:
    """Return the text in signs that stdout has, so that what is aligned stays so."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    return text.encode(encoding, "gem-ood-plain").decode(encoding)


def _plain_signs(error: UnicodeError) -> tuple[str | bytes, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    written = []
    for sign in error.object[error.start : error.end]:
        code = ord(sign)
        escaped = f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
        written.append(_PLAIN_SIGNS.get(sign, escaped))
    return "".join(written), error.end


codecs.register_error("gem-ood-plain", _plain_signs)
