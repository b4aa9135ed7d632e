"""What the numbers of a run say, in sentences: who is ahead where, which targets are met, what failed.

Sections of one family have keys such as "fit-512x100", with features and classes; ratios to a peer have names such as
"oodeel 0.4.0 / gem-ood", and shares of what the machine can do have "fraction of" in theirs. A peer whose time is noted
as "not comparable" computes another quantity, and is left out of who is ahead.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from fnmatch import fnmatchcase

from report import Run, escaped, median, number, pipe_table, reason, spread
from sections import Section
from timing import Measurement

__all__ = [
    "OURS",
    "against_peers",
    "family",
    "is_fraction",
    "named",
    "peer_of",
    "peer_ratios",
    "shape_in_words",
    "shape_of",
    "shares",
    "targets",
]

OURS = "gem-ood"
#: Stands for whichever peer was the quickest of a round, and is none itself.
FASTEST = "fastest peer"
_SHAPED = re.compile(r"(.+)-(\d+)x(\d+)")


# Finding numbers


def shape_of(section: Section) -> tuple[int, int] | None:
    """Features and classes, where the section's key tells them."""
    found = _SHAPED.fullmatch(section.key)
    return (int(found[2]), int(found[3])) if found else None


def shape_in_words(section: Section) -> str:
    """Such as "512 features, 100 classes"; the title of a section that is not of one shape."""
    shape = shape_of(section)
    return f"{shape[0]:,} features, {shape[1]:,} classes" if shape else section.title


def family(run: Run, name: str) -> list[Section]:
    """The sections whose keys are this name, alone or with a shape; a star in it stands for any letters."""

    def is_meant(key: str) -> bool:
        return fnmatchcase(key, name) or _SHAPED.sub(r"\1", key) == name

    found = [section for section in run.sections if is_meant(section.key)]
    if not found:
        keys = ", ".join(section.key for section in run.sections)
        raise LookupError(f"no section {name!r} in the run, which has {keys}; record all: make bench-record")
    return found


def named(rows: Iterable[Measurement], name: str) -> Measurement:
    """The one number of this name."""
    rows = list(rows)
    for row in rows:
        if row.name == name:
            return row
    raise LookupError(f"no row {name!r} in the section, which has {', '.join(row.name for row in rows)}")


def peer_of(ratio: Measurement) -> str:
    """Whom a ratio compares with gem-ood, the peer's time above and ours below; else empty."""
    above, slash, below = ratio.name.partition(" / ")
    is_peer = slash and below.startswith(OURS) and not above.startswith((OURS, FASTEST))
    return above if is_peer else ""


def peer_ratios(section: Section) -> list[Measurement]:
    """The ratios to peers that compute what gem-ood does, failed ones too."""
    others = {row.name for row in section.measurements if "not comparable" in row.note}
    return [ratio for ratio in section.ratios if peer_of(ratio) and peer_of(ratio) not in others]


def is_fraction(ratio: Measurement) -> bool:
    """Whether a number is a share of what the machine can do at the most."""
    return "fraction of" in ratio.name


# Who is ahead


def against_peers(run: Run, name: str, *, doing: str) -> str:
    """Whether gem-ood is ahead of each peer at each shape, and where not, or not known, why.

    `doing` begins the first sentence, such as "fits".
    """
    sections = family(run, name)
    ratios = [(section, ratio) for section in sections for ratio in peer_ratios(section)]
    measured = [(section, ratio) for section, ratio in ratios if not ratio.failure]
    found = [_lead(sections, measured, doing)]
    found += _listing("Behind", [pair for pair in measured if pair[1].median < 1.0], _with_spread)
    found += _listing(
        "Spread too far to be trusted", [pair for pair in measured if not pair[1].is_trusted], _with_spread
    )
    found += _listing("Failed", [pair for pair in ratios if pair[1].failure], _with_failure)
    found += [f"Skipped: {shape_in_words(section)}, {section.skipped}." for section in sections if section.skipped]
    return "\n".join([found[0], "", *(f"- {sentence}" for sentence in found[1:])]).rstrip()


def _lead(sections: Sequence[Section], measured: Sequence[tuple[Section, Measurement]], doing: str) -> str:
    """The first sentence: at how many shapes gem-ood is ahead of the fastest peer, and how far.

    Where the quartiles lie on both sides of 1, rounds disagree about who is ahead, and nobody is.
    """
    fastest = [
        _fastest(section, [ratio for of, ratio in measured if of is section])
        for section in sections
        if any(of is section for of, _ in measured)
    ]
    if not fastest:
        return "No peer was measured here."
    ahead = sum(ratio.quartiles[0] > 1.0 for ratio in fastest)
    even = sum(ratio.quartiles[0] <= 1.0 <= ratio.quartiles[1] for ratio in fastest)
    medians = [ratio.median for ratio in fastest]
    least, most = min(medians), max(medians)
    how_far = f"{_times(least)} as long" if least == most else f"{_times(least)} to {_times(most)} as long"
    where = f" at {ahead} of {len(fastest)} shapes" if len(fastest) > 1 else "" if ahead else " at no shape"
    beside = f", about even with the fastest at {even}" if even else ""
    return f"gem-ood {doing} ahead of every peer that ran{where}{beside}: the fastest of them takes {how_far}."


def _fastest(section: Section, ratios: Sequence[Measurement]) -> Measurement:
    """The ratio to the quickest peer of each round where the section has one, else to the quickest by its median."""
    of_rounds = (ratio for ratio in section.ratios if ratio.name.startswith(FASTEST) and not ratio.failure)
    return next(of_rounds, None) or min(ratios, key=lambda ratio: ratio.median)


def _listing(word: str, pairs: Sequence[tuple[Section, Measurement]], describe: Callable[..., str]) -> list[str]:
    return [f"{word}: " + "; ".join(describe(section, ratio) for section, ratio in pairs) + "."] if pairs else []


def _with_spread(section: Section, ratio: Measurement) -> str:
    return f"{peer_of(ratio)} at {shape_in_words(section)} ({median(ratio)}, quartiles {spread(ratio)})"


def _with_failure(section: Section, ratio: Measurement) -> str:
    return f"{peer_of(ratio)} at {shape_in_words(section)} ({escaped(reason(ratio))})"


def _times(value: float) -> str:
    return f"{number(value)} x"


# How close to the limit


def shares(run: Run, name: str) -> str:
    """From where to where the share of the limit goes that each operation reaches, over the shapes."""
    rows = [(section, row) for section in family(run, name) for row in section.ratios if is_fraction(row)]
    measured = [(section, row) for section, row in rows if not row.failure]
    sentences = []
    for operation in dict.fromkeys(row.name for _, row in measured):
        of = sorted(
            ((section, row) for section, row in measured if row.name == operation), key=lambda pair: pair[1].median
        )
        least, most = of[0], of[-1]
        where = f"{_share(*least)} to {_share(*most)}" if len(of) > 1 else _share(*least)
        sentences.append(f"- {operation}: {where}")
    return "\n".join(sentences) or "No share of the limit was measured."


def _share(section: Section, row: Measurement) -> str:
    noise = "" if row.is_trusted else " (NOISY)"
    return f"{number(row.median)}{noise} at {shape_in_words(section)}"


# Targets


def targets(run: Run) -> str:
    """How many targets are met, each that is not, and the count of sections that differ in shape only."""
    rows = [(section, row) for section, row in run.rows if row.target]
    if not rows:
        return "No number of this run has a target."
    met = [row for _, row in rows if row.verdict.startswith("met")]
    noisy = sum("NOISY" in row.verdict for row in met)
    lines = [f"{len(met)} of {len(rows)} targets are met" + (f", {noisy} of them NOISY." if noisy else "."), ""]
    others = [(section, row) for section, row in rows if not row.verdict.startswith("met")]
    if others:
        headings = ("", "where", "median", "quartiles", "target", "verdict")
        lines += [pipe_table(headings, [_missed(section, row) for section, row in others]), ""]
    kinds = list(dict.fromkeys(_kind(section) for section, _ in rows))
    counts = [_counts(kind, [row for section, row in rows if _kind(section) == kind]) for kind in kinds]
    return "\n".join([*lines, pipe_table(("targets of", "met", "missed", "failed", "noisy"), counts)])


def _missed(section: Section, row: Measurement) -> tuple[str, ...]:
    if row.failure:
        return row.name, section.title, "-", "-", row.target, f"FAILED: {reason(row)}"
    return row.name, section.title, median(row), spread(row), row.target, row.verdict


def _kind(section: Section) -> str:
    return _SHAPED.sub(r"\1", section.key)


def _counts(kind: str, rows: Sequence[Measurement]) -> tuple[str, ...]:
    words = ("met", "MISSED", "FAILED", "NOISY")
    return kind, *(str(sum(word in row.verdict for row in rows)) for word in words)
