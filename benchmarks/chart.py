"""The chart of a run: how many times slower each peer is, shape by shape, and how close gem-ood comes to the limit.

``python benchmarks/chart.py FILE.json PICTURE.svg`` draws a recorded run again. It needs the extra `report`.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import report
from findings import OURS, family, peer_of, peer_ratios, shape_in_words, shape_of
from gem_ood.reports import save_figure
from gem_ood.reports.plots import style
from report import Run
from sections import Section
from timing import Measurement

__all__ = ["draw", "write"]

#: Families of sections and the titles of their panels.
PANELS = {"fit": "Fit", "score": "Score, 10,000 rows", "batches": "Score, 200 at a time", "one-row": "One row"}
LOOKS = (
    (style.BLUE, "o"),
    (style.VERMILION, "s"),
    (style.GREEN, "^"),
    (style.PURPLE, "D"),
    (style.ORANGE, "v"),
    (style.BLACK, "P"),
    (style.GREY, "X"),
    (style.SKY, "*"),
)
BARS = (style.BLUE, style.SKY, style.GREEN, style.ORANGE, style.PURPLE)
PANEL_HEIGHT = 2.35
#: Between neighbours of one shape, so that whiskers stand side by side; shapes are one apart.
DODGE = 0.09
#: Between the bars of one shape.
BAR_STEP = 0.21
#: How the name of a share ends.
LIMIT = ", fraction of the limit"
#: Room for names is taken from the lines.
SHORTER = {"tied GaussianMixture": "mixture", "LinearDiscriminantAnalysis": "LDA"}
#: Of the height of a panel, between two names.
NAME_STEP = 0.075


def write(run: Run, path: Path) -> Path:
    """Write the chart as what the file's suffix says (.svg, .png or .pdf), and return the path."""
    return save_figure(draw(run), path)


def draw(run: Run) -> Any:
    """The figure of a run, with its caption."""
    panels = {name: sections for name in PANELS if (sections := _with_peers(run, name))}
    fractions = [section for section in run.sections if _fractions(section)]
    if not panels and not fractions:
        raise ValueError("the run has neither ratios to peers nor fractions of a limit to draw; measure fit or score")
    drawn = [row for sections in panels.values() for section in sections for row in _measured(section)]
    peers = list(dict.fromkeys(map(peer_of, drawn)))
    looks = {peer: LOOKS[place % len(LOOKS)] for place, peer in enumerate(peers)}
    rows = math.ceil(len(panels) / 2)
    heights = [PANEL_HEIGHT * rows, PANEL_HEIGHT]
    with style.drawing():
        parts = [height for height, part in zip(heights, (panels, fractions), strict=True) if part]
        figure = style.new_figure(style.DOUBLE_COLUMN, sum(parts))
        rooms = iter(figure.subfigures(len(parts), 1, height_ratios=parts, squeeze=False).ravel())
        if panels:
            _draw_panels(next(rooms).subplots(rows, 2, squeeze=False).ravel(), panels, looks)
        if fractions:
            _draw_fractions(next(rooms).subplots(), fractions, letter=chr(ord("a") + len(panels)))
        return style.finished(figure, title=f"{OURS} beside its peers", description=_description(panels, fractions))


def _with_peers(run: Run, name: str) -> list[Section]:
    """The sections of a family that have a shape and a measured peer."""
    try:
        sections = family(run, name)
    except LookupError:
        return []
    return [section for section in sections if shape_of(section) and _measured(section)]


def _measured(section: Section) -> list[Measurement]:
    return [ratio for ratio in peer_ratios(section) if not ratio.failure]


# How many times slower


def _draw_panels(axes: Sequence[Any], panels: dict[str, list[Section]], looks: dict[str, tuple[str, str]]) -> None:
    for panel in axes[len(panels) :]:
        panel.remove()
    axes = axes[: len(panels)]
    for panel, sections in zip(axes, panels.values(), strict=True):
        _draw_ratios(panel, sections, looks)
    style.letter(axes, [f"{PANELS[name]}: time of a peer / {OURS}" for name in panels])


def _draw_ratios(axes: Any, sections: Sequence[Section], looks: dict[str, tuple[str, str]]) -> None:
    """One line a peer over the shapes, quartiles as whiskers, its name at the end."""
    present = [peer for peer in looks if any(peer_of(row) == peer for each in sections for row in _measured(each))]
    offsets = _offsets(len(present), DODGE)
    ends = {}
    for place, peer in enumerate(present):
        colour, marker = looks[peer]
        points = [(at, row) for at, each in enumerate(sections) for row in _measured(each) if peer_of(row) == peer]
        across = [at + offsets[place] for at, _ in points]
        medians = [row.median for _, row in points]
        lower, upper = zip(*(row.quartiles for _, row in points), strict=True)
        axes.plot(across, medians, color=colour, linewidth=0.8, alpha=0.55)
        axes.plot(across, medians, marker, color=colour, markersize=3.6, markeredgecolor="white", markeredgewidth=0.3)
        axes.vlines(across, lower, upper, color=colour, linewidth=1.0)
        ends[peer] = (across[-1], medians[-1])
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    axes.set_ylim(min(low, 0.7), max(high, 2.0))
    axes.set_xlim(-0.5, len(sections) - 0.5)
    axes.axhline(1.0, color=style.BLACK, linewidth=0.8, linestyle="--")
    axes.axhspan(1e-9, 1.0, color=style.VERMILION, alpha=0.08, linewidth=0)
    axes.yaxis.set_major_formatter(lambda value, _: f"{report.number(value)}×")
    axes.yaxis.set_minor_formatter("")
    shapes = [shape for each in sections if (shape := shape_of(each))]
    axes.set_xticks(range(len(sections)), [f"{features:,}\n{classes:,}" for features, classes in shapes])
    axes.set_xlabel("features (above), classes (below)", loc="left")
    _write_names(axes, ends, {peer: looks[peer][0] for peer in present}, right=len(sections) - 0.3)


def _write_names(axes: Any, ends: dict[str, tuple[float, float]], colours: dict[str, str], *, right: float) -> None:
    """Each peer's name beside its last point, pushed apart where two would overlap, and ours at the line at 1."""
    low, high = (math.log10(limit) for limit in axes.get_ylim())
    wanted = {peer: (math.log10(height) - low) / (high - low) for peer, (_, height) in ends.items()}
    wanted[f"{OURS} = 1"] = -low / (high - low)
    for name, place in apart(wanted, step=NAME_STEP).items():
        height = 10 ** (low + place * (high - low))
        axes.text(right, height, _short(name), color=colours.get(name, style.BLACK), fontsize=6.5, va="center")
        if name in ends:
            start, level = ends[name]
            axes.plot([start, right - 0.05], [level, height], color=style.GREY, linewidth=0.4, alpha=0.7, clip_on=False)


def apart(wanted: dict[str, float], *, step: float) -> dict[str, float]:
    """Places at least ``step`` apart and within 0 to 1, in the order of those wanted and close to them."""
    names = sorted(wanted, key=lambda name: wanted[name])
    places = [min(max(wanted[name], 0.0), 1.0) for name in names]
    for _ in range(50):
        for below, above in pairwise(range(len(places))):
            missing = step - (places[above] - places[below])
            if missing > 0:
                places[below] -= missing / 2
                places[above] += missing / 2
        places = [min(max(place, 0.0), 1.0) for place in places]
    return dict(zip(names, places, strict=True))


def _short(name: str) -> str:
    """A name without its version, its longest words shortened."""
    for long, short in SHORTER.items():
        name = name.replace(long, short)
    return re.sub(r" \d+(\.\d+)+", "", name)


# How close to the limit


def _draw_fractions(axes: Any, sections: Sequence[Section], *, letter: str) -> None:
    """A group of bars a shape, one bar an operation, quartiles as whiskers, the number above, a line at the limit."""
    from matplotlib.patches import Patch

    operations = list(dict.fromkeys(_operation(row) for section in sections for row in _fractions(section)))
    colours = {operation: BARS[place % len(BARS)] for place, operation in enumerate(operations)}
    tops = [1.0]
    for place, section in enumerate(sections):
        rows = _fractions(section)
        for row, offset in zip(rows, _offsets(len(rows), BAR_STEP), strict=True):
            lower, upper = row.quartiles
            axes.bar(place + offset, row.median, width=0.9 * BAR_STEP, color=colours[_operation(row)])
            axes.vlines(place + offset, lower, upper, color=style.BLACK, linewidth=0.8)
            label = style.percent(row.median)[:-2] + ("" if row.is_trusted else "*")
            at = max(upper, row.median) + 0.03
            axes.text(place + offset, at, label, ha="center", fontsize=6, bbox={"fc": "white", "lw": 0, "pad": 0.6})
            tops.append(upper)
    axes.axhline(1.0, color=style.BLACK, linewidth=0.8, linestyle="--")
    axes.text(len(sections) - 0.45, 1.0, "the limit", va="center", fontsize=6.5)
    axes.set(xlim=(-0.5, len(sections) - 0.5), ylim=(0.0, max(tops) + 0.2))
    axes.set_xticks(range(len(sections)), [_group(section) for section in sections])
    axes.set_yticks([0.0, 0.25, 0.5, 0.75, 1.0])
    axes.yaxis.set_major_formatter(lambda value, _: style.percent(value))
    axes.set_title(f"({letter}) {OURS}: share of what this machine could do at the most, in % (* noisy)", loc="left")
    patches = [Patch(color=colour, label=operation) for operation, colour in colours.items()]
    axes.legend(handles=patches, loc="upper left", ncols=len(operations))


def _fractions(section: Section) -> list[Measurement]:
    return [row for row in section.ratios if row.name.endswith(LIMIT) and not row.failure]


def _operation(row: Measurement) -> str:
    return row.name.removesuffix(LIMIT)


def _group(section: Section) -> str:
    shape = shape_of(section)
    return f"{shape[0]:,} features\n{shape[1]:,} classes" if shape else section.key.removeprefix("limit-")


def _offsets(count: int, step: float) -> list[float]:
    """Places around zero, this far apart."""
    return [step * (place - (count - 1) / 2) for place in range(count)]


# In words


def _description(panels: dict[str, list[Section]], fractions: Sequence[Section]) -> str:
    """What the chart shows, with its numbers, for those who cannot see it."""
    sentences = []
    for name, sections in panels.items():
        ratios: dict[str, list[float]] = {
            peer: [] for each in sections for row in _measured(each) if (peer := peer_of(row))
        }
        for each in sections:
            for row in _measured(each):
                ratios[peer_of(row)].append(row.median)
        found = [f"{peer} {_range(medians)}" for peer, medians in ratios.items()]
        sentences.append(f"{PANELS[name]}, time of each peer over that of {OURS}: {', '.join(found)}.")
    if fractions:
        shares = [
            f"{_operation(row)} at {shape_in_words(section)} {style.percent(row.median)}"
            for section in fractions
            for row in _fractions(section)
        ]
        sentences.append(f"Share of the machine's limit: {', '.join(shares)}.")
    return " ".join(sentences)


def _range(medians: Sequence[float]) -> str:
    least, most = report.number(min(medians)), report.number(max(medians))
    return f"{least}" if least == most else f"{least} to {most}"


if __name__ == "__main__":
    source, *targets = map(Path, sys.argv[1:])
    for target in targets:
        print(write(report.read(source), target))
