"""Tables in each format: plain text, Markdown, LaTeX and CSV, with names escaped as the format wants it."""

import csv
import io
import itertools
import math
import re
import unicodedata
from collections.abc import Iterator, Sequence

from gem_ood.comparison.measured import MEAN, Measurements
from gem_ood.comparison.tables import Cell, Column, Table, TableOptions, long, wide

__all__ = ["as_csv", "as_latex", "as_markdown", "as_text", "latex_of", "markdown_of", "text_of"]

_BOLD, _PLAIN = "\x1b[1m", "\x1b[0m"
_STARRED = "* best on its set, as rounded"
_BOLDED = "Bold: best on its set, as rounded"

#: Between columns, and before the first column of another set.
_GAP, _GROUP_GAP = "  ", "    "

_LATEX = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "↓": r"$\downarrow$",
    "↑": r"$\uparrow$",
    "±": r"$\pm$",
    "≈": r"$\approx$",
    "≠": r"$\neq$",
    "−": "$-$",
    # At the start of a row, these two would be taken for an argument of the line break before it.
    "[": "{[}",
    "*": "{*}",
}


def as_text(measured: Measurements, options: TableOptions, *, ansi: bool = False) -> str:
    """Return the table and its notes as lines of text; the best values are starred, or bold with ansi."""
    return text_of(_laid_out(measured, options), ansi=ansi)


def text_of(table: Table, *, title: str = "", ansi: bool = False) -> str:
    """Return any table and its notes as lines of text, under its title if it has one."""
    lines = [line.rstrip() for line in _text_lines(table, ansi=ansi)]
    best = [_BOLDED if ansi else _STARRED] if table.has_best else []
    above = [_one_line(title)] if title else []
    return "\n".join([*above, *lines, *best, *map(_one_line, table.notes)])


def as_markdown(measured: Measurements, options: TableOptions) -> str:
    """Return the table and its notes as Markdown."""
    return markdown_of(_laid_out(measured, options))


def markdown_of(table: Table, *, title: str = "") -> str:
    """Return any table and its notes as Markdown, under its title if it has one."""
    titles = [_markdown(f"{column.group} {column.title}".strip()) for column in table.columns]
    rules = ["---" if place < table.n_names else "---:" for place in range(len(titles))]
    rows = [[_markdown_cell(cell) for cell in row] for block in table.blocks for row in block]
    lines = [f"| {' | '.join(cells)} |" for cells in (titles, rules, *rows)]
    notes = [*([_BOLDED] if table.has_best else []), *map(_markdown, table.notes)]
    above = [f"**{_markdown(title)}**", ""] if title else []
    below = ["", ". ".join(notes) + "."] if notes else []
    return "\n".join([*above, *lines, *below]) + "\n"


def as_latex(measured: Measurements, options: TableOptions) -> str:
    r"""Return the table as a tabular of the package booktabs, with its notes as comments above."""
    return latex_of(_laid_out(measured, options))


def latex_of(table: Table, *, title: str = "") -> str:
    r"""Return any table as a tabular of the package booktabs, with its title and notes as comments above."""
    n_numbers = len(table.columns) - table.n_names
    lines = [
        *([f"% {_one_line(title)}"] if title else []),
        r"% \usepackage{booktabs}",
        *(f"% {_one_line(note)}" for note in table.notes),
        rf"\begin{{tabular}}{{{'l' * table.n_names}{'r' * n_numbers}}}",
        r"\toprule",
        *_latex_groups(table.columns),
        " & ".join(_latex(column.title) for column in table.columns) + r" \\",
    ]
    for block in table.blocks:
        lines.append(r"\midrule")
        for place, row in enumerate(block):
            names = [_latex(cell.text) for cell in row[: table.n_names]]
            if place and len(names) > 1:
                names[0] = ""  # the set of a block is said once, as the paper does
            lines.append(" & ".join([*names, *map(_latex_cell, row[table.n_names :])]) + r" \\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"]) + "\n"


def as_csv(measured: Measurements, order: Sequence[str], *, metrics: Sequence[str], time: bool) -> str:
    """Return one line per detector, set and metric, as fractions; what is no finite number is left empty."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["detector", "set", "n_id", "n_ood", "metric", "value", "low", "high", "tpr", "convention"])
    for name in order:
        for ood, metric, *values in _records(measured, name, metrics, time=time):
            sizes, settings = (measured.n_id, measured.n_ood.get(ood, "")), (measured.tpr, measured.convention)
            writer.writerow([name, ood, *sizes, metric, *map(_number, values), *settings])
    return text.getvalue()


def _laid_out(measured: Measurements, options: TableOptions) -> Table:
    """Return the table in the layout asked for, or in whichever suits lines of its width."""
    if options.layout == "long" and measured.n_ood:
        return long(measured, options)
    table = wide(measured, options)
    is_fitting = options.layout == "wide" or not measured.n_ood or _text_width(table) <= options.width
    return table if is_fitting else long(measured, options)


def _text_width(table: Table) -> int:
    """Return how many characters wide the table is as text, its notes apart."""
    return max(_display_width(line.rstrip()) for line in _text_lines(table, ansi=False))


def _records(
    measured: Measurements, name: str, metrics: Sequence[str], *, time: bool
) -> Iterator[tuple[str, str, float | None, float | None, float | None]]:
    one = measured.detectors[name]
    for ood in (*measured.n_ood, MEAN) if measured.n_ood else ():
        for metric in metrics:
            low, high = one.interval(metric, ood) or (None, None)
            yield ood, metric, one.value(metric, ood), low, high
        if one.flagged is not None:
            yield ood, "flagged", one.flagged_share(ood), None, None
    for metric in ("id_error", "id_kept", *(["seconds_per_10k"] if time else [])):
        if (value := getattr(one, metric)) is not None:
            yield "", metric, value, None, None


def _number(value: float | None) -> str:
    return "" if value is None or not math.isfinite(value) else repr(float(value))


def _text_lines(table: Table, *, ansi: bool) -> Iterator[str]:
    rows = [row for block in table.blocks for row in block]
    by_column = list(zip(*rows, strict=True))
    marks = ["*" if not ansi and any(cell.is_best for cell in cells) else "" for cells in by_column]
    rooms = [max(len(cell.interval) for cell in cells) for cells in by_column]
    titles = [_one_line(column.title) for column in table.columns]
    texts = [[_text_cell(*parts) for parts in zip(row, marks, rooms, strict=True)] for row in rows]
    gaps = [_gap(table.columns, place) for place in range(len(titles))]
    widths = [max(map(_display_width, cells)) for cells in zip(titles, *texts, strict=True)]
    widths = _room_for_groups(table.columns, widths, gaps)
    if any(column.group for column in table.columns):
        yield _group_line(table.columns, widths, gaps)
    yield _line(titles, widths, gaps, table.n_names)
    lines = iter(zip(texts, rows, strict=True))
    for place, block in enumerate(table.blocks):
        if place:
            yield ""
        for row_texts, row in itertools.islice(lines, len(block)):
            yield _line(row_texts, widths, gaps, table.n_names, [ansi and cell.is_best for cell in row])


def _text_cell(cell: Cell, mark: str, room: int) -> str:
    """Return the value with room for a star and an interval beside it, so that values stand under each other."""
    marked = _one_line(cell.text) + (mark if cell.is_best else " " * len(mark))
    return f"{marked} {cell.interval:>{room}}" if room else marked


def _gap(columns: Sequence[Column], place: int) -> str:
    if place == 0:
        return ""
    return _GAP if columns[place].group == columns[place - 1].group else _GROUP_GAP


def _room_for_groups(columns: Sequence[Column], widths: list[int], gaps: list[str]) -> list[int]:
    """Return the widths with the last column of a set widened where its name would not fit above."""
    widths = list(widths)
    for title, places in _groups(columns):
        lacking = _display_width(_one_line(title)) - _span(places, widths, gaps)
        widths[places[-1]] += max(0, lacking)
    return widths


def _groups(columns: Sequence[Column]) -> list[tuple[str, list[int]]]:
    grouped = itertools.groupby(range(len(columns)), key=lambda place: columns[place].group)
    return [(title, list(places)) for title, places in grouped]


def _span(places: list[int], widths: list[int], gaps: list[str]) -> int:
    return sum(widths[place] for place in places) + sum(len(gaps[place]) for place in places[1:])


def _group_line(columns: Sequence[Column], widths: list[int], gaps: list[str]) -> str:
    parts = []
    for title, places in _groups(columns):
        name = _one_line(title)
        room = _span(places, widths, gaps) - _display_width(name)
        parts.append(gaps[places[0]] + " " * (room // 2) + name + " " * (room - room // 2))
    return "".join(parts)


def _line(
    texts: Sequence[str], widths: list[int], gaps: list[str], n_names: int, bold: Sequence[bool] | None = None
) -> str:
    parts = []
    for place, text in enumerate(texts):
        room = " " * (widths[place] - _display_width(text))
        shown = f"{_BOLD}{text}{_PLAIN}" if bold is not None and bold[place] else text
        parts.append(gaps[place] + (shown + room if place < n_names else room + shown))
    return "".join(parts)


def _one_line(text: str) -> str:
    """Return text without line breaks or other control characters, which would break a table or steer a terminal."""
    return "".join(" " if unicodedata.category(letter) in ("Cc", "Zl", "Zp") else letter for letter in text)


def _display_width(text: str) -> int:
    """Return how many columns a terminal needs: two for East Asian wide characters, none for combining ones."""
    return sum(
        0 if unicodedata.combining(letter) else 2 if unicodedata.east_asian_width(letter) in "WF" else 1
        for letter in text
    )


def _markdown(text: str) -> str:
    entities = _one_line(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_\[\]|~$])", r"\\\1", entities)


def _markdown_cell(cell: Cell) -> str:
    text = f"**{cell.text}**" if cell.is_best else _markdown(cell.text)
    return f"{text} {cell.interval}" if cell.interval else text


def _latex(text: str) -> str:
    escaped = "".join(_LATEX.get(letter, letter) for letter in _one_line(text))
    return re.sub(r"-(?=-)", "-{}", escaped)  # two hyphens would become a dash


def _latex_cell(cell: Cell) -> str:
    text = "--" if cell.text == "-" else _latex(cell.text)
    text = rf"\textbf{{{text}}}" if cell.is_best else text
    return f"{text} {cell.interval}" if cell.interval else text


def _latex_groups(columns: Sequence[Column]) -> list[str]:
    """Return the line of set names over their columns, with a rule under each; none without sets."""
    if not any(column.group for column in columns):
        return []
    cells, rules = [], []
    for title, places in _groups(columns):
        if title:
            cells.append(rf"\multicolumn{{{len(places)}}}{{c}}{{{_latex(title)}}}")
            rules.append(rf"\cmidrule(lr){{{places[0] + 1}-{places[-1] + 1}}}")
        else:
            cells += [""] * len(places)
    return [" & ".join(cells) + r" \\", "".join(rules)]
