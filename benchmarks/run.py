"""Measure gem-ood against its peers and the machine's limit: ``python benchmarks/run.py --help``."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sections import Section
    from workloads import Shape

THREADS = "2"
SECTIONS = (
    *("rates", "limit", "fit", "score", "batches", "one-row", "all-pairs", "conditioned", "real"),
    *("metrics", "simulation", "save-load", "import", "install-size", "memory", "growth", "accuracy", "robustness"),
    *("guard", "extract"),
)
# Measured only where asked for: it writes gigabytes.
LARGE_SECTIONS = ("stream", "scale")
QUICK_GIGABYTES = 0.3
# An import is timed once per fresh interpreter, and its spread is wide: more rounds, still a few seconds.
LEAST_IMPORT_ROUNDS = 9
QUICK_ROUNDS = 3
# For daily use: what the machine reaches, and how large libraries are, does not change from day to day.
QUICK_SECTIONS = (
    *("limit", "fit", "score", "batches", "one-row", "metrics", "simulation", "save-load", "import"),
    *("accuracy", "robustness"),
)
QUICK_SHAPES = ("128x10", "128x100", "512x100")
QUICK_LIMIT_SHAPES = ("512x100",)
# What is measured at some shapes only: it takes long, or tells the same at the others.
ALL_PAIRS_SHAPES = ("64x10", "512x100")
CONDITIONED_SHAPES = ("64x10", "512x100")
STORED_SHAPES = ("128x100", "2048x1000")


def main() -> None:
    options = _options()
    # The libraries read these when they are loaded, so nothing numeric is imported before.
    for variable in ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS"):
        os.environ[variable] = THREADS
    import history
    import machine
    import report

    set_aside = machine.set_settings_aside()
    if not options.quick:
        machine.wait_for_quiet()
    facts, before = machine.facts() | set_aside, machine.ticks()
    sections = []
    for name, measure in _measures(options).items():
        if name in options.only:
            started = time.perf_counter()
            print(f"measuring: {name}", end="", file=sys.stderr, flush=True)
            sections += _measured(name, measure)
            machine.give_back_freed_memory()  # of a peer, ten gigabytes
            print(f", {time.perf_counter() - started:.0f} s", file=sys.stderr, flush=True)
            if options.json:  # what is measured stays, whatever comes after
                options.json.write_text(report.as_json(report.Run(facts, sections)), encoding="utf-8")

    run = report.Run(facts | machine.stolen_share(before, machine.ticks()), sections)
    if options.json:
        options.json.write_text(report.as_json(run), encoding="utf-8")
    print(report.as_text(run))
    if options.compare:
        print(f"\n{history.comparison(run, options.compare)}")
    if options.markdown:
        options.markdown.write_text(report.as_markdown(run), encoding="utf-8")
    if options.chart:
        import chart

        chart.write(run, options.chart)


def _measured(name: str, measure: Callable[[], list[Section]]) -> list[Section]:
    """The sections of this name, or why there are none: one that fails must not cost the others."""
    from sections import Section

    try:
        return measure()
    except Exception as error:  # whatever it is, it is reported
        return [Section(name, name, skipped=f"{type(error).__name__}: {error}")]


def _measures(options: argparse.Namespace) -> dict[str, Callable[[], list[Section]]]:
    """The section functions with this run's sizes, rounds and peers filled in."""
    import accuracy
    import cases
    import footprint
    import growth
    import limits
    import memory
    import metric_cases
    import robustness
    import simulations
    import storage_cases
    from sections import Section
    from workloads import ONE_ROW_SHAPES, SHAPES, conditioned, real, workload

    unknown = set(options.shapes or ()) - {shape.key for shape in ONE_ROW_SHAPES}
    if unknown:
        known = ", ".join(shape.key for shape in ONE_ROW_SHAPES)
        sys.exit(f"run.py: --shapes has {', '.join(sorted(unknown))}; choose among {known}")
    shapes = _chosen(SHAPES, options.shapes)
    one_row_shapes = _chosen(ONE_ROW_SHAPES, options.shapes)
    rounds, with_peers = options.rounds, not options.quick
    usual = {"rounds": rounds, "with_peers": with_peers}
    scores = (cases.score, cases.batches)
    import_rounds = rounds if options.quick else max(rounds, LEAST_IMPORT_ROUNDS)

    def limit() -> list[Section]:
        chosen = _chosen(shapes, QUICK_LIMIT_SHAPES if options.quick else None)
        return [*(limits.limit(shape, rounds=rounds) for shape in chosen), limits.limit_of_metrics(rounds=rounds)]

    def all_pairs() -> list[Section]:
        return [cases.all_pairs(workload(shape)) for shape in _chosen(shapes, ALL_PAIRS_SHAPES)] if with_peers else []

    def on_conditioned() -> list[Section]:
        works = [conditioned(shape) for shape in _chosen(shapes, CONDITIONED_SHAPES)]
        return [measure(work, **usual) for measure in scores for work in works]

    def on_real() -> list[Section]:
        try:
            work = real()
        except FileNotFoundError:
            why = "the features are not here; set GEM_OOD_DATA to their folder"
            titles = {"fit": "Fit", "score": "Score", "batches": "Score in batches"}
            return [Section(f"{key}-real", f"{title} of real features", skipped=why) for key, title in titles.items()]
        is_chosen = options.quick or _chosen((work.shape,), options.shapes)
        return [measure(work, **usual) for measure in (cases.fit, *scores)] if is_chosen else []

    return {
        "rates": lambda: [limits.rates(rounds=rounds)],
        "limit": limit,
        "fit": lambda: [cases.fit(workload(shape), **usual) for shape in shapes],
        "score": lambda: [cases.score(workload(shape), **usual) for shape in shapes],
        "batches": lambda: [cases.batches(workload(shape), **usual) for shape in shapes],
        "one-row": lambda: [cases.one_row(workload(shape), **usual) for shape in one_row_shapes],
        "all-pairs": all_pairs,
        "conditioned": on_conditioned,
        "real": on_real,
        "metrics": lambda: [metric_cases.metrics(**usual)],
        "simulation": lambda: simulations.simulation(rounds=rounds, is_quick=options.quick),
        "save-load": lambda: [storage_cases.storage(shape, **usual) for shape in _chosen(shapes, STORED_SHAPES)],
        "import": lambda: [footprint.imports(rounds=import_rounds, with_peers=with_peers)],
        "install-size": lambda: [footprint.install()],
        "memory": lambda: memory.memory(**usual),
        "growth": lambda: growth.growth(**usual),
        "accuracy": lambda: accuracy.accuracy(with_peers=with_peers),
        "robustness": lambda: robustness.robustness(with_peers=with_peers),
        **_measures_of_edges(options),
    }


def _measures_of_edges(options: argparse.Namespace) -> dict[str, Callable[[], list[Section]]]:
    """Those of PyTorch models, files and clusters, which have no peers."""
    import extraction
    import guarded
    import streaming

    rounds, is_quick = options.rounds, options.quick

    def scale() -> list[Section]:
        import scaling  # needs PyArrow's Parquet at once

        return scaling.scale(rounds=rounds, is_quick=is_quick)

    return {
        "guard": lambda: guarded.guard(rounds=rounds, n_images=400),
        "extract": lambda: extraction.extract(rounds=rounds, n_images=400),
        "stream": lambda: streaming.stream(gigabytes=options.gigabytes),
        "scale": scale,
    }


def _chosen(shapes: tuple[Shape, ...], keys: tuple[str, ...] | None) -> tuple[Shape, ...]:
    return tuple(shape for shape in shapes if keys is None or shape.key in keys)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument(
        "--quick", action="store_true", help="three rounds, fewer shapes and no peers: for a look while working"
    )
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="interleaved rounds per section")
    choices = (*SECTIONS, *LARGE_SECTIONS)
    parser.add_argument(
        "--only", nargs="+", choices=choices, help="sections to measure (default: all but stream and scale)"
    )
    parser.add_argument("--shapes", nargs="+", metavar="MxK", help="features and classes, such as 64x10 (default: all)")
    parser.add_argument("--gigabytes", type=float, metavar="N", help="size of the files of stream (default: 10)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all samples as JSON")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the tables as Markdown")
    parser.add_argument("--chart", type=Path, metavar="FILE", help="draw the ratios (.svg, .png or .pdf)")
    parser.add_argument("--compare", type=Path, metavar="FILE", help="a recorded run's JSON, to compare this one with")
    options = parser.parse_args()
    if options.rounds < 1:
        parser.error(f"--rounds must be at least 1, got {options.rounds}")
    if options.gigabytes is None:
        options.gigabytes = QUICK_GIGABYTES if options.quick else 10.0
    if options.gigabytes <= 0.0:
        parser.error(f"--gigabytes must be above 0, got {options.gigabytes}")
    options.only = options.only or (QUICK_SECTIONS if options.quick else SECTIONS)
    if options.quick:
        options.rounds = min(options.rounds, QUICK_ROUNDS)
        options.shapes = options.shapes or QUICK_SHAPES
    return options


if __name__ == "__main__":
    main()
