"""A run as plain text, Markdown and JSON, and read back from JSON: pages, charts and comparisons begin at a file.

Samples are written with five figures: more than any clock here can tell, and small enough to be kept in the repository.
"""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import machine
from sections import Section, Table
from timing import NOT_MEASURED, TRUSTED_SPREAD, Measurement

__all__ = [
    "Run",
    "as_json",
    "as_markdown",
    "as_text",
    "body_markdown",
    "distrust",
    "escaped",
    "from_json",
    "measurement_table",
    "median",
    "number",
    "pipe_table",
    "read",
    "reason",
    "spread",
    "warnings",
]

HEADINGS = ("", "median", "min", "quartiles", "target", "verdict", "note")
FIGURES_KEPT = 5
LONGEST_REASON = 160
# Some numbers spread on any machine; where more than this share of them does, the whole run is suspect.
LARGEST_NOISY_SHARE = 0.15
# What a peer's error may hold and Markdown would read as a column, as emphasis or as a tag.
_MARKUP = re.compile(r"[|*]|__|<(?=[a-zA-Z/!])")


@dataclass(frozen=True)
class Run:
    """Facts about the machine, and everything that was measured on it."""

    facts: dict[str, str]
    sections: Sequence[Section]

    @property
    def rows(self) -> Iterator[tuple[Section, Measurement]]:
        """Every number with the section that it is in, ratios first."""
        for section in self.sections:
            for row in (*section.ratios, *section.measurements):
                yield section, row


def distrust(run: Run) -> str:
    """Why no number of this run is to be published; empty for a run on a quiet machine."""
    repeated = [row for _, row in run.rows if len(row.samples) > 1]
    noisy = [row for row in repeated if not row.is_trusted]
    reasons = [machine.busy_warning(run.facts)]
    if len(noisy) > LARGEST_NOISY_SHARE * len(repeated):
        reasons.append(
            f"{len(noisy)} of {len(repeated)} numbers spread too far (at most {LARGEST_NOISY_SHARE:.0%} may): "
            "run again on a quiet machine"
        )
    found = "; ".join(filter(None, reasons))
    return f"THE MACHINE WAS TOO NOISY TO TRUST THIS RUN: {found}" if found else ""


def _why_not(row: Measurement) -> str:
    return reason(row) if row.verdict == NOT_MEASURED else f"failed, {reason(row)}"


def warnings(run: Run) -> list[str]:
    """Whether the run as a whole is to be trusted, then what failed, what was left out and how much is noisy."""
    found = [distrust(run)]
    found += [f"{section.title}: {row.name} {_why_not(row)}" for section, row in run.rows if row.failure]
    found += [f"{section.title}: {row.name}: {row.note}" for section, row in run.rows if "DISAGREES" in row.note]
    found += [f"{section.title}: skipped, {section.skipped}" for section in run.sections if section.skipped]
    noisy = [row for _, row in run.rows if not row.failure and not row.is_trusted]
    if noisy:
        found.append(
            f"{len(noisy)} of {len([*run.rows])} numbers are NOISY (quartiles more than {TRUSTED_SPREAD:.0%} of the "
            f"median apart, at worst {max(row.spread for row in noisy):.0%})"
        )
    return [*filter(None, found)]


# Text


def as_text(run: Run) -> str:
    width = max(len(name) for name in run.facts)
    lines = [f"{name:<{width}}  {value}" for name, value in run.facts.items()]
    for section in run.sections:
        lines += ["", section.title, "=" * len(section.title)]
        if section.skipped:
            lines.append(f"skipped: {section.skipped}")
        for headings, rows in _tables(section):
            lines += _aligned([headings, *rows])
    notes = warnings(run)
    lines += ["", *(f"warning: {note}" for note in notes)] if notes else []
    return "\n".join(lines)


def _tables(section: Section) -> Iterator[tuple[Sequence[str], list[Sequence[str]]]]:
    """Headings and rows of the numbers, then of the words, where there are any."""
    rows = [*section.ratios, *section.measurements]
    if rows:
        yield HEADINGS, [*map(_cells, rows)]
    if section.table is not None:
        yield section.table.headings, [*section.table.rows]


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


# Markdown


def as_markdown(run: Run) -> str:
    return f"# Benchmark\n\n{body_markdown(run)}"


def body_markdown(run: Run) -> str:
    """All of a run: facts, each section under its title, warnings."""
    lines = [f"- {name}: {value}" for name, value in run.facts.items()]
    for section in run.sections:
        lines += ["", f"## {section.title}"]
        if section.skipped:
            lines += ["", f"Skipped: {section.skipped}."]
        for headings, rows in _tables(section):
            lines += ["", pipe_table(headings, rows)]
    notes = warnings(run)
    lines += ["", "## Warnings", "", *(f"- {escaped(note)}" for note in notes)] if notes else []
    return "\n".join(lines) + "\n"


def measurement_table(rows: Iterable[Measurement]) -> str:
    """Measurements as a table of Markdown."""
    return pipe_table(HEADINGS, map(_cells, rows))


def pipe_table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Words as a table of Markdown."""
    return "\n".join(map(_pipes, [headings, ["---"] * len(headings), *rows]))


def _pipes(cells: Sequence[str]) -> str:
    return f"| {' | '.join(map(escaped, cells))} |"


def escaped(text: str) -> str:
    """Words that Markdown shows as they are."""

    def escape(found: re.Match[str]) -> str:
        return "&lt;" if found[0] == "<" else "".join(f"\\{letter}" for letter in found[0])

    return _MARKUP.sub(escape, text)


def _cells(measurement: Measurement) -> tuple[str, ...]:
    name, target, verdict = measurement.name, measurement.target, measurement.verdict
    if measurement.failure:
        return name, "-", "-", "-", target, verdict, reason(measurement)
    return (
        name,
        median(measurement),
        number(min(measurement.samples)),
        spread(measurement),
        target,
        verdict,
        measurement.note,
    )


def median(measurement: Measurement) -> str:
    """The median with its unit."""
    return f"{number(measurement.median)} {measurement.unit}".rstrip()


def spread(measurement: Measurement) -> str:
    """The quartiles."""
    return " .. ".join(map(number, measurement.quartiles))


def number(value: float) -> str:
    """Three figures, without an exponent where that is short."""
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e9 else f"{value:.3g}"


def reason(measurement: Measurement) -> str:
    """Why there is no number: the first line of the error, cut where it goes on and on."""
    return textwrap.shorten(measurement.failure.strip().splitlines()[0], LONGEST_REASON, placeholder=" ...")


# JSON


def as_json(run: Run) -> str:
    """The run as JSON with one number's samples on each line, so that two recorded runs can be compared by eye."""
    sections = ",\n".join(map(_section_json, run.sections))
    facts = json.dumps(run.facts, ensure_ascii=False, indent=1)
    return f'{{"machine": {facts},\n"sections": [\n{sections}\n],\n"warnings": {_per_line(warnings(run))}}}\n'


def _section_json(section: Section) -> str:
    head = {"key": section.key, "title": section.title} | ({"skipped": section.skipped} if section.skipped else {})
    parts = {
        "ratios": [_fields(row) for row in section.ratios],
        "measurements": [_fields(row) for row in section.measurements],
    }
    text = json.dumps(head, ensure_ascii=False)[:-1]
    text += "".join(f',\n "{name}": {_per_line(rows)}' for name, rows in parts.items() if rows)
    if section.table is not None:
        rows = _per_line([list(section.table.headings), *map(list, section.table.rows)])
        text += f',\n "table": {rows}'
    return text + "}"


def _per_line(values: Sequence[Any]) -> str:
    return "[\n  " + ",\n  ".join(json.dumps(value, ensure_ascii=False) for value in values) + "]" if values else "[]"


def _fields(row: Measurement) -> dict[str, Any]:
    """What is not empty; the verdict, which follows from the rest, is for those who read the file themselves."""
    fields = {
        "name": row.name,
        "unit": row.unit,
        "at_most": row.at_most,
        "at_least": row.at_least,
        "note": row.note,
        "failure": row.failure,
        "verdict": row.verdict,
        "samples": [float(f"{sample:.{FIGURES_KEPT}g}") for sample in row.samples],
    }
    return {name: value for name, value in fields.items() if name == "unit" or value not in (None, "", [])}


def from_json(text: str) -> Run:
    """The run that `as_json` wrote, its samples rounded."""
    data = json.loads(text)
    return Run(data["machine"], tuple(map(_section, data["sections"])))


def read(path: Path) -> Run:
    """The run of a file."""
    return from_json(path.read_text(encoding="utf-8"))


def _section(data: dict[str, Any]) -> Section:
    table = None
    if "table" in data:
        headings, *rows = map(tuple, data["table"])
        table = Table(headings, tuple(rows))
    ratios, measurements = (tuple(map(_measurement, data.get(name, ()))) for name in ("ratios", "measurements"))
    return Section(data["key"], data["title"], ratios, measurements, table, data.get("skipped", ""))


def _measurement(data: dict[str, Any]) -> Measurement:
    fields = {name: value for name, value in data.items() if name not in ("samples", "verdict")}
    return Measurement(samples=tuple(data.get("samples", ())), **fields)
