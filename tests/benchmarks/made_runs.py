"""Runs with made-up numbers, of which every kind occurs: met, missed, failed, noisy, skipped, in words."""

from report import Run
from sections import Section, Table
from timing import Measurement

FACTS = {"cpu": "A processor", "cores": "2", "threads": "2", "load at start": "0.10", "packages": "gem-ood 0.1.0"}
SHAPES = ((64, 10), (512, 100), (2048, 1000))
PEERS = ("oodeel 0.4.0", "pytorch-ood 0.4.0")


def samples(median, spread=0.02):
    return tuple(median * (1 + spread * step) for step in (-2, -1, 0, 1, 2))


def row(name, median, unit="x", *, spread=0.02, **options):
    return Measurement(name, samples(median, spread), unit, **options)


def failed(name, failure="MemoryError: 40 GB | *at once*\nand more", **options):
    return Measurement(name, unit="x", failure=failure, **options)


def shaped(family, ratios, *, shapes=SHAPES):
    """One section a shape; `ratios` has the numbers of each peer at each shape, or None where it failed."""
    return [
        Section(
            f"{family}-{m}x{k}",
            f"{family.capitalize()}, {m:,} features, {k:,} classes",
            [
                row("gem-ood / NumPy", 1.2, at_most=1.5),
                *(
                    failed(f"{peer} / gem-ood", at_least=1)
                    if value is None
                    else row(f"{peer} / gem-ood", value, at_least=1)
                    for peer, value in zip(PEERS, values, strict=True)
                ),
            ],
            [row("gem-ood", 20.0, "ms"), row(PEERS[0], 40.0, "ms")],
        )
        for (m, k), values in zip(shapes, ratios, strict=True)
    ]


def limits():
    return [
        Section(
            f"limit-{m}x{k}",
            f"The limit, {m} features",
            [
                row("fit, fraction of the limit", 0.5 + place / 10),
                row("one row, fraction of the limit", 0.02, spread=0.4),
            ],
        )
        for place, (m, k) in enumerate(SHAPES)
    ]


def made_run(**facts):
    robustness = Table(("case", "gem-ood", "oodeel 0.4.0"), (("a class without rows", "scores", "error: <shape>"),))
    growth = [Measurement(f"{name}, {axis}", (1.5,), "exponent") for name in ("gem-ood", "oodeel") for axis in "Nm"]
    return Run(
        {**FACTS, **facts},
        (
            *shaped("fit", [(0.8, 2.0), (1.5, 3.0), (None, 4.0)]),
            *shaped("score", [(30.0, 20.0), (90.0, 70.0), (300.0, 400.0)]),
            *limits(),
            Section("growth", "Growth of a fit", measurements=growth),
            Section("robustness", "Odd input", table=robustness),
            Section("guard", "Guard of a model", skipped="torch is not installed"),
            Section("one-row-128x10", "One row", measurements=[row("gem-ood", 45.0, "us", spread=0.3, at_most=40)]),
        ),
    )
