"""Sections as plain text, Markdown and JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cases import Section
from timing import TRUSTED_SPREAD, Measurement

__all__ = ["as_json", "as_markdown", "as_text", "warnings"]

HEADINGS = ("", "median", "min", "quartiles", "target", "verdict", "note")


def warnings(sections: Sequence[Section]) -> list[str]:
    """One sentence per measurement that failed, and one for all that spread too far to be trusted."""
    rows = [(section.title, row) for section in sections for row in (*section.ratios, *section.measurements)]
    found = [f"{title}: {row.name} failed, {row.failure}" for title, row in rows if row.failure]
    found += [f"{section.title}: skipped, {section.skipped}" for section in sections if section.skipped]
    noisy = [row for _, row in rows if not row.failure and not row.is_trusted]
    if noisy:
        found.append(
            f"{len(noisy)} of {len(rows)} numbers are NOISY (quartiles more than {TRUSTED_SPREAD:.0%} of the "
            f"median apart, at worst {max(row.spread for row in noisy):.0%}): run again on a quiet machine"
        )
    return found


def as_text(facts: dict[str, str], sections: Sequence[Section], notes: Sequence[str]) -> str:
    width = max(len(name) for name in facts)
    lines = [f"{name:<{width}}  {value}" for name, value in facts.items()]
    for section in sections:
        lines += ["", section.title, "=" * len(section.title)]
        if section.skipped:
            lines.append(f"skipped: {section.skipped}")
            continue
        rows = [HEADINGS, *map(_cells, (*section.ratios, *section.measurements))]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines += ["  ".join(f"{c:<{w}}" for c, w in zip(row, widths, strict=True)).rstrip() for row in rows]
    lines += ["", *(f"warning: {note}" for note in notes)] if notes else []
    return "\n".join(lines)


def as_markdown(facts: dict[str, str], sections: Sequence[Section], notes: Sequence[str]) -> str:
    lines = ["# Benchmark", "", *(f"- {name}: {value}" for name, value in facts.items())]
    for section in sections:
        lines += ["", f"## {section.title}", ""]
        if section.skipped:
            lines.append(f"Skipped: {section.skipped}.")
            continue
        rows = map(_cells, (*section.ratios, *section.measurements))
        lines += [_pipes(HEADINGS), _pipes(["---"] * len(HEADINGS))]
        lines += [_pipes(row) for row in rows]
    lines += ["", "## Warnings", "", *(f"- {note}" for note in notes)] if notes else []
    return "\n".join(lines) + "\n"


def as_json(facts: dict[str, str], sections: Sequence[Section], notes: Sequence[str]) -> dict[str, Any]:
    return {
        "machine": facts,
        "sections": [
            {
                "title": section.title,
                "skipped": section.skipped,
                "ratios": [_fields(ratio) for ratio in section.ratios],
                "measurements": [_fields(measurement) for measurement in section.measurements],
            }
            for section in sections
        ],
        "warnings": list(notes),
    }


def _fields(measurement: Measurement) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "name": measurement.name,
        "unit": measurement.unit,
        "target": measurement.target,
        "verdict": measurement.verdict,
        "note": measurement.note,
        "failure": measurement.failure,
        "samples": list(measurement.samples),
    }
    if not measurement.failure:
        lower, upper = measurement.quartiles
        fields |= {
            "median": measurement.median,
            "min": min(measurement.samples),
            "quartiles": [lower, upper],
            "spread": measurement.spread,
            "is_trusted": measurement.is_trusted,
        }
    return fields


def _cells(measurement: Measurement) -> tuple[str, ...]:
    name, target, verdict = measurement.name, measurement.target, measurement.verdict
    if measurement.failure:
        return name, "-", "-", "-", target, verdict, measurement.failure.splitlines()[0]
    unit = measurement.unit
    lower, upper = measurement.quartiles
    return (
        name,
        f"{_number(measurement.median)} {unit}",
        _number(min(measurement.samples)),
        f"{_number(lower)} .. {_number(upper)}",
        target,
        verdict,
        measurement.note,
    )


def _number(value: float) -> str:
    """Three figures, without an exponent."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _pipes(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
