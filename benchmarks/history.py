"""A run beside the recorded one: what changed by more than both spread.

Ratios, and shares of what a machine can do, are compared between any two machines; times and memory only where the
processor is the same and the sections measured the same sizes, which their titles tell.
``python benchmarks/history.py NOW.json RECORDED.json`` compares two files.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import report
from findings import OURS, is_fraction, peer_of
from report import Run
from sections import Section
from timing import Measurement

__all__ = ["RECORDED", "Change", "as_text", "changes", "comparison"]

RECORDED = Path(__file__).with_name("recorded.json")
# Medians of two quiet runs lie up to this far apart, however close the samples of each.
SMALLEST_CHANGE = 0.1
# The import statement of our package is ours too.
OUR_NAMES = (OURS, "gem_ood")
SAME_EVERYWHERE = ("x", "exponent")
TIMES, SIZES = ("x", "s", "ms", "us"), ("MB", "exponent", "")  # an error of a score has no unit


@dataclass(frozen=True)
class Change:
    """One number of ours, now and recorded."""

    section: Section
    now: Measurement
    recorded: Measurement

    @property
    def factor(self) -> float:
        """The median now over the recorded one."""
        return self.now.median / self.recorded.median if self.recorded.median else float("nan")

    @property
    def verdict(self) -> str:
        """Slower, faster or the like where the quartiles are apart and the medians far enough; else nothing."""
        if self.now.failure or self.recorded.failure:
            return "" if self.recorded.failure else "FAILED"
        (low, high), (low_then, high_then) = self.now.quartiles, self.recorded.quartiles
        is_apart = low > high_then or high < low_then
        if not is_apart or abs(self.factor - 1.0) <= SMALLEST_CHANGE:
            return ""
        is_better = (self.factor > 1.0) is _is_better_high(self.now)
        unit = self.now.unit.partition(" ")[0]
        if unit in TIMES:
            return "faster" if is_better else "slower"
        return ("smaller" if is_better else "larger") if unit in SIZES else ("better" if is_better else "worse")


def _is_better_high(row: Measurement) -> bool:
    """Whether more is better: a peer's time over ours, a share of a limit, or what has a lower bound."""
    if row.at_least is not None or row.at_most is not None:
        return row.at_least is not None
    return bool(peer_of(row)) or is_fraction(row) or "share of" in row.name


def changes(now: Run, recorded: Run) -> list[Change]:
    """Our numbers that both runs have and that can be compared, in the order of the run."""
    is_same_machine = now.facts.get("cpu") == recorded.facts.get("cpu")
    then = {section.key: section for section in recorded.sections}
    found = []
    for section in now.sections:
        old = then.get(section.key)
        if old is None:
            continue
        rows = {row.name: row for row in (*old.ratios, *old.measurements)}
        with_times = is_same_machine and section.title == old.title
        found += [Change(section, row, rows[row.name]) for row in _ours(section, with_times) if row.name in rows]
    return [each for each in found if not each.recorded.failure]


def _ours(section: Section, with_times: bool) -> Iterator[Measurement]:
    yield from section.ratios
    for row in section.measurements:
        is_ours = any(name in row.name for name in OUR_NAMES)
        if is_ours and (with_times or row.unit in SAME_EVERYWHERE):
            yield row


def as_text(found: Sequence[Change]) -> str:
    """A table of now, recorded and change, under the title of each section."""
    lines: list[str] = []
    for section in dict.fromkeys(each.section.title for each in found):
        rows: list[tuple[str, ...]] = [("", "now", "recorded", "change", "")]
        rows += [_cells(each) for each in found if each.section.title == section]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines += ["", section]
        lines += [
            "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
        ]
    return "\n".join(lines)


def _cells(change: Change) -> tuple[str, ...]:
    then = report.median(change.recorded)
    if change.now.failure:
        return change.now.name, "-", then, "-", change.verdict
    now = report.median(change.now)
    return change.now.name, now, then, f"{change.factor - 1.0:+.0%}", change.verdict


def comparison(now: Run, path: Path = RECORDED) -> str:
    """The run beside the one of a file, in words; says so where there is nothing to compare."""
    if not path.exists():
        return f"nothing to compare with: {path} does not exist; make bench-record writes it"
    recorded = report.read(path)
    found = changes(now, recorded)
    if not found:
        return f"nothing to compare with: {path} has no number that this run has too"
    heading = f"Compared with {path.name}"
    lines = [heading, "=" * len(heading)]
    if now.facts.get("cpu") != recorded.facts.get("cpu"):
        lines.append(f"ratios only: recorded on {recorded.facts.get('cpu')}, now on {now.facts.get('cpu')}")
    verdicts = [each.verdict for each in found if each.verdict]
    counts = ", ".join(f"{verdicts.count(verdict)} {verdict}" for verdict in dict.fromkeys(verdicts))
    summary = f"{len(found)} numbers, {counts or 'none changed'} (by more than {SMALLEST_CHANGE:.0%} and both spreads)"
    return "\n".join([*lines, as_text(found).lstrip("\n"), "", summary])


if __name__ == "__main__":
    print(comparison(report.read(Path(sys.argv[1])), Path(sys.argv[2]) if len(sys.argv) > 2 else RECORDED))
