"""Writes the pages of the comparison from the recorded run: no number on them is typed by hand.

``python benchmarks/page.py`` reads ``recorded.json`` and ``page.md`` beside it, and writes ``docs/benchmarks.md``,
``docs/recorded-benchmark.md`` and the chart. In ``page.md``, ``{{verb}}``, ``{{verb KEY}}`` or ``{{verb KEY: WORDS}}``
on a line of its own, or within one, is replaced by what ``VERBS`` makes of the run. A key is that of a section, such as
``metrics``, or the name of sections of several shapes, such as ``fit``; a star stands for any letters.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import findings
import report
from findings import family
from history import RECORDED
from report import Run, measurement_table, pipe_table
from sections import Section
from timing import Measurement

__all__ = ["CHART", "PAGE", "RECORDED_PAGE", "fill", "pages", "write"]

TEMPLATE = Path(__file__).with_name("page.md")
DOCS = Path(__file__).parents[1] / "docs"
PAGE, RECORDED_PAGE, CHART = "benchmarks.md", "recorded-benchmark.md", "images/benchmark.svg"

NOTICE = "<!-- Written by benchmarks/page.py from benchmarks/recorded.json and page.md: edit those. -->"
RECORDED_HEAD = f"""# A recorded run

{NOTICE}

All that `make bench-record` measured in one run. [Compared with other libraries](benchmarks.md) says what it means, and
`benchmarks/README.md` how each number is taken.
"""

#: What a note may say against a number of a single sample, which has no spread: the mark in a cell and its sign.
NOTED_MARKS = {"once": "measured once", "NOISY": "NOISY"}

_PLACEHOLDER = re.compile(r"\{\{(\w+)(?: ([^:}]+))?(?:: ([^}]+))?\}\}")


def pages(run: Run, template: str) -> dict[str, str]:
    """The text of both pages by their names in the folder of the documentation."""
    title, rest = fill(template, run).split("\n", 1)
    return {PAGE: f"{title}\n\n{NOTICE}\n{rest}", RECORDED_PAGE: f"{RECORDED_HEAD}\n{report.body_markdown(run)}"}


def write(run: Run, folder: Path = DOCS) -> list[Path]:
    """Write both pages and the chart, and return their paths."""
    import chart

    texts = pages(run, TEMPLATE.read_text(encoding="utf-8"))
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    return [*(folder / name for name in texts), chart.write(run, folder / CHART)]


def fill(template: str, run: Run) -> str:
    """The template with each placeholder replaced; one that asks for what the run lacks is an error."""

    def replacement(found: re.Match[str]) -> str:
        verb, key, words = found.groups(default="")
        if verb not in VERBS:
            raise LookupError(f"page.md asks for {found[0]}, but the verbs are {', '.join(VERBS)}")
        try:
            return VERBS[verb](run, key, words)
        except LookupError as error:
            raise LookupError(f"page.md asks for {found[0]}: {error}") from error

    return _PLACEHOLDER.sub(replacement, template)


# What a placeholder becomes


def _machine(run: Run, key: str, words: str) -> str:
    """The facts that make times comparable."""
    return "\n".join(f"- {name}: {value}" for name, value in run.facts.items())


def _trust(run: Run, key: str, words: str) -> str:
    """The warning of a noisy machine, or that it was quiet."""
    rows = [row for _, row in run.rows if not row.failure]
    noisy = sum(not row.is_trusted for row in rows)
    counted = f"{noisy} of {len(rows)} numbers are marked NOISY: their quartiles lie too far apart to trust the median."
    problem = report.distrust(run)
    return f"**{problem}.** {counted}" if problem else f"The machine was quiet at the start. {counted}"


def _chart(run: Run, key: str, _: str) -> str:
    words = (
        "Times of the peers over those of gem-ood, and shares of what the machine can do; the tables have the numbers"
    )
    return f"![{words}]({CHART})"


def _matrix(rows_of: Callable[[Section], Sequence[Measurement]]) -> Callable[[Run, str, str], str]:
    """A verb: one row a name, one column a shape, for sections that differ in shape only."""

    def verb(run: Run, key: str, words: str) -> str:
        sections = family(run, key)
        names = list(dict.fromkeys(row.name for section in sections for row in rows_of(section)))
        rows = [[name, *(_cell(rows_of(section), name) for section in sections)] for name in names]
        return pipe_table(["", *map(_column, sections)], rows) if rows else _remarks(sections)

    return verb


def _column(section: Section) -> str:
    shape = findings.shape_of(section)
    return f"{shape[0]:,} x {shape[1]:,}" if shape else section.title


def _cell(rows: Sequence[Measurement], name: str) -> str:
    """The median with what is to be said against it; a dash where nothing was measured."""
    row = next((row for row in rows if row.name == name), None)
    if row is None:
        return "–"
    if row.failure:
        return row.verdict.lower()
    verdict = row.verdict.replace("met", "").strip()
    marks = [mark for mark, sign in NOTED_MARKS.items() if sign in row.note]
    return " ".join(filter(None, [report.median(row), verdict, *marks]))


def _grid(run: Run, key: str, words: str) -> str:
    """One row a library and one column a quantity, for measurements of one unit named "library, quantity"."""
    (section,) = family(run, key)
    parts = [row.name.rpartition(", ") for row in section.measurements]
    libraries, quantities = (list(dict.fromkeys(part[place] for part in parts)) for place in (0, 2))
    bare = [replace(row, unit="") for row in section.measurements]
    rows = [[library, *(_cell(bare, f"{library}, {each}") for each in quantities)] for library in libraries]
    return pipe_table([section.measurements[0].unit, *quantities], rows) if rows else _remarks([section])


def _table(run: Run, key: str, words: str) -> str:
    """Ratios and what else has a target, or all measurements, and the words; several sections each under its title."""

    def parts(section: Section) -> list[str]:
        asked = [row for row in section.measurements if row.target]
        rows = [*section.ratios, *asked] if section.ratios else section.measurements
        return ([measurement_table(rows)] if rows else []) + _word_tables(section)

    return _titled(family(run, key), parts)


def _words(run: Run, key: str, words: str) -> str:
    """The findings in words alone."""
    return _titled(family(run, key), _word_tables)


def _word_tables(section: Section) -> list[str]:
    return [pipe_table(section.table.headings, section.table.rows)] if section.table else []


def _titled(sections: Sequence[Section], parts: Callable[[Section], list[str]]) -> str:
    """What each section has, or why it has nothing, under its title if there are several."""
    found = []
    for section in sections:
        found += [f"{section.title}:"] if len(sections) > 1 else []
        found += parts(section) or [_remarks([section])]
    return "\n\n".join(found)


def _remarks(sections: Sequence[Section]) -> str:
    found = [f"Not measured: {section.skipped}." for section in sections if section.skipped]
    return " ".join(dict.fromkeys(found)) or "Nothing was measured."


def _median(run: Run, key: str, words: str) -> str:
    """One number with its unit, for a sentence."""
    (section,) = family(run, key)
    row = findings.named([*section.ratios, *section.measurements], words)
    return "(failed)" if row.failure else report.median(row)


VERBS: dict[str, Callable[[Run, str, str], str]] = {
    "machine": _machine,
    "trust": _trust,
    "chart": _chart,
    "targets": lambda run, key, words: findings.targets(run),
    "findings": lambda run, key, words: findings.against_peers(run, key, doing=words),
    "shares": lambda run, key, words: findings.shares(run, key),
    "ratios": _matrix(lambda section: section.ratios),
    "times": _matrix(lambda section: section.measurements),
    "grid": _grid,
    "table": _table,
    "words": _words,
    "median": _median,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, nargs="?", default=RECORDED, metavar="FILE", help="a run as JSON")
    parser.add_argument("--docs", type=Path, default=DOCS, metavar="FOLDER", help="where the pages are written")
    options = parser.parse_args()
    (options.docs / CHART).parent.mkdir(parents=True, exist_ok=True)
    try:
        print(*write(report.read(options.run), options.docs), sep="\n")
    except (LookupError, OSError) as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
