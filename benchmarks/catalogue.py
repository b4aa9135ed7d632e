"""Compare the whole catalogue on features of a real classifier: ``python benchmarks/catalogue.py FOLDER``.

FOLDER holds train.npz and test.npz (`features`, `labels`), ood_NAME.npz (`features`) and head.npz (`weight`, `bias`).
Half of the test rows, drawn at random, calibrate every detector at 95 %; the other half and the OOD sets are compared.
Then the share of in-distribution rows that thresholds keep is measured over random splits of the test rows.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from pathlib import Path

import numpy as np

from gem_ood import Combine, Head, compare
from gem_ood.comparison import fit_methods
from gem_ood.errors import RankWarning

SPLITS = 200


def main() -> None:
    options = _options()
    train, test, head, ood = _load(options.folder)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RankWarning)
        detectors = fit_methods(train["features"], train["labels"], head=head).detectors
    for method in ("minimum", "cauchy"):
        parts = detectors["recommended"].detectors
        detectors[f"recommended, {method}"] = Combine(parts, method=method).fit(train["features"], train["labels"])
    held_out, rest = np.split(np.random.default_rng(0).permutation(len(test["features"])), 2)
    for detector in detectors.values():
        detector.calibrate(test["features"][held_out], tpr=0.95)
    table = compare(detectors, id=test["features"][rest], labels=test["labels"][rest], ood=ood)
    print(table.to_markdown(sort="fpr", metrics=["fpr"], layout="wide"))
    if options.splits:
        print()
        _print_kept_shares(detectors, test["features"], options.splits)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    parser.add_argument("--splits", type=int, default=SPLITS, help=f"random splits of the test rows ({SPLITS})")
    options = parser.parse_args()
    if not options.folder.is_dir():
        sys.exit(f"catalogue.py: {options.folder} is not a folder; pass the one that holds train.npz")
    return options


def _load(folder: Path) -> tuple[dict, dict, Head, dict]:
    def arrays(name: str) -> dict:
        with np.load(folder / name, allow_pickle=False) as members:
            return {key: members[key] for key in members}

    ood = {path.stem.removeprefix("ood_"): arrays(path.name)["features"] for path in sorted(folder.glob("ood_*.npz"))}
    head = arrays("head.npz")
    return arrays("train.npz"), arrays("test.npz"), Head(head["weight"], head["bias"]), ood


def _print_kept_shares(detectors: dict, rows: np.ndarray, n_splits: int) -> None:
    """Conformal thresholds from half of the rows, PAC ones (95 % sure) from 500, each judged on all the others."""
    print(f"{n_splits} random splits of the test rows, 95 % asked\n")
    print("| detector | kept on average (conformal) | splits that keep 95 % (PAC) |\n| --- | ---: | ---: |")
    for name, detector in detectors.items():
        half, few = [], []
        rng = np.random.default_rng(0)
        evidence = detector.evidence(rows)
        for _ in range(n_splits):
            order = rng.permutation(len(rows))
            half.append(_kept(detector, rows, evidence, np.split(order, 2), None))
            few.append(_kept(detector, rows, evidence, np.split(order, [500]), 0.95))
        print(f"| {name} | {np.mean(half):.2%} | {np.mean(np.array(few) >= 0.95):.1%} |")


def _kept(detector, rows: np.ndarray, evidence: np.ndarray, split: list, confidence: float | None) -> float:
    held_out, others = split
    detector.calibrate_scores(evidence[held_out], tpr=0.95, confidence=confidence)
    if evidence.ndim == 1:
        return float(np.mean(evidence[others] >= detector.offset_))
    return float(np.mean(~detector.is_ood(rows[others])))  # the scores of a combination follow its reference


if __name__ == "__main__":
    main()
