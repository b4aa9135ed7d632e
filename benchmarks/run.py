"""Measure gem-ood against bare matrix products and its peers: ``python benchmarks/run.py --help``."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cases import Section, Workload

THREADS = "2"
SECTIONS = ("fit", "score", "one-row", "metrics", "import", "memory", "guard", "extract")
# Measured only where asked for: it writes gigabytes.
LARGE_SECTIONS = ("stream", "scale")
QUICK_GIGABYTES = 0.3
# An import is timed once per fresh interpreter, and its spread is wide: more rounds, still a few seconds.
LEAST_IMPORT_ROUNDS = 9
QUICK_ROUNDS = 3


def main() -> None:
    options = _options()
    # The libraries read these when they are loaded, so nothing numeric is imported before.
    for variable in ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS"):
        os.environ[variable] = THREADS
    import machine
    import report

    facts = machine.facts()
    sections = []
    for name, measure in _measures(options).items():
        if name in options.only:
            print(f"measuring: {name}", file=sys.stderr, flush=True)
            sections += measure()

    notes = [*filter(None, [machine.busy_warning(facts)]), *report.warnings(sections)]
    print(report.as_text(facts, sections, notes))
    if options.json:
        options.json.write_text(json.dumps(report.as_json(facts, sections, notes), indent=2) + "\n")
    if options.markdown:
        options.markdown.write_text(report.as_markdown(facts, sections, notes))


def _measures(options: argparse.Namespace) -> dict[str, Callable[[], list[Section]]]:
    """The section functions with this run's sizes, rounds and peers filled in."""
    import cases
    import extraction
    import guarded
    import scaling
    import streaming

    rounds, with_peers = options.rounds, not options.quick

    @cache
    def wide() -> Workload:
        return cases.Workload(rows=50_000, queries=10_000, dimensions=512)

    @cache
    def narrow() -> Workload:
        return cases.Workload(rows=20_000, queries=10_000, dimensions=128)

    def score() -> list[Section]:
        return [
            cases.score(wide(), rounds=rounds, with_peers=with_peers, least_fraction=0.7),
            cases.score(narrow(), rounds=rounds, with_peers=with_peers, least_fraction=None),
        ]

    import_rounds = rounds if options.quick else max(rounds, LEAST_IMPORT_ROUNDS)
    return {
        "fit": lambda: [cases.fit(wide(), rounds=rounds, with_peers=with_peers)],
        "score": score,
        "one-row": lambda: [cases.one_row(narrow(), rounds=rounds, with_peers=with_peers)],
        "metrics": lambda: [cases.metrics(rounds=rounds, with_peers=with_peers)],
        "import": lambda: [cases.imports(rounds=import_rounds)],
        "memory": lambda: [cases.memory(wide())],
        "guard": lambda: guarded.guard(rounds=rounds, n_images=600 if options.quick else 2000),
        "extract": lambda: extraction.extract(rounds=rounds, n_images=400 if options.quick else 1000),
        "stream": lambda: streaming.stream(gigabytes=options.gigabytes),
        "scale": lambda: scaling.scale(rounds=rounds, is_quick=options.quick),
    }


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="three rounds and no peers, for a look while working")
    parser.add_argument("--rounds", type=int, default=7, metavar="N", help="interleaved rounds per section")
    choices = (*SECTIONS, *LARGE_SECTIONS)
    parser.add_argument("--only", nargs="+", choices=choices, default=SECTIONS, help="sections to measure")
    parser.add_argument("--gigabytes", type=float, metavar="N", help="size of the files of stream (default: 10)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all samples as JSON")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the tables as Markdown")
    options = parser.parse_args()
    if options.rounds < 1:
        parser.error(f"--rounds must be at least 1, got {options.rounds}")
    if options.gigabytes is None:
        options.gigabytes = QUICK_GIGABYTES if options.quick else 10.0
    if options.gigabytes <= 0.0:
        parser.error(f"--gigabytes must be above 0, got {options.gigabytes}")
    if options.quick:
        options.rounds = min(options.rounds, QUICK_ROUNDS)
    return options


if __name__ == "__main__":
    main()
