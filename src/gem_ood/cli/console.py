"""What commands print: one JSON object, or text and tables that lose their frames in a pipe."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, is_dataclass
from typing import Any

import typer

__all__ = ["percent", "print_json", "print_table", "print_text"]

#: Tables in a pipe are not folded to a screen that is not there.
_PIPE_WIDTH = 10_000


def print_json(values: Mapping[str, Any]) -> None:
    """Print one JSON object; what JSON cannot write (infinities) becomes null."""
    typer.echo(json.dumps(_plain(values), ensure_ascii=False, allow_nan=False))


def print_text(text: str) -> None:
    """Print a line as it is."""
    typer.echo(text)


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
        table.add_column(Text(name), justify="left" if place < n_names else "right")
    for row in rows:
        table.add_row(*(Text(value) for value in row))
    console.print(table)


def percent(share: float | None) -> str:
    """Return a share as a percentage with two decimals, or a dash for none.

    >>> percent(0.12345), percent(None)
    ('12.35', '-')
    """
    return "-" if share is None else f"{100.0 * share:.2f}"


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return _plain(asdict(value))
    if isinstance(value, Mapping):
        return {str(name): _plain(entry) for name, entry in value.items()}
    if hasattr(value, "tolist"):
        return _plain(value.tolist())
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if isinstance(value, str | int | bool) or value is None else str(value)
