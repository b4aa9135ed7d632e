"""What a run yields: sections of numbers, ratios first, and tables of findings that are words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from timing import Measurement

__all__ = ["Section", "Table"]


@dataclass(frozen=True)
class Table:
    """Findings in words: who returned what."""

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Section:
    """Answers to one question: ratios, which are what is published, and the measurements behind them."""

    #: Stable from run to run, such as "fit-512x100": runs are compared by it.
    key: str
    title: str
    ratios: Sequence[Measurement] = ()
    measurements: Sequence[Measurement] = ()
    table: Table | None = None
    #: Why there is nothing, where a section was left out.
    skipped: str = ""
