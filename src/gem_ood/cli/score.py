"""`gem-ood score`: verdicts on the rows of a file."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any

from gem_ood.cli.console import percent, print_json, print_table, print_text
from gem_ood.cli.options import (
    DetectorPath,
    Features,
    Json,
    Labels,
    Rows,
    check_out,
    load_detector,
    naming,
    open_rows,
    out_option,
)
from gem_ood.cli.voice import step, tell, watching

__all__ = ["score"]

#: How many rows the table shows; the file of --out has all of them.
SHOWN_ROWS = 10

QUANTILES = {"minimum": 0.0, "5%": 0.05, "median": 0.5, "95%": 0.95, "maximum": 1.0}


def score(
    detector: DetectorPath,
    file: Rows,
    *,
    out: Annotated[
        Path | None, out_option("Write the verdict on every row to this file: .csv, .parquet, .npz or .jsonl.")
    ] = None,
    features: Features = None,
    labels: Labels = None,
    json: Json = False,
) -> None:
    """Score the rows of a file, of any size, and say which are out-of-distribution.

    Examples:
        gem-ood score gem.safetensors new.npz
        gem-ood score gem.safetensors new.npz --out scores.csv
    """
    from gem_ood.files import score_file, write_columns
    from gem_ood.files.writing import WRITABLE

    if out is not None:
        check_out(out, WRITABLE, detector, file)
    fitted = load_detector(detector)
    rows = open_rows(file, features, labels, fitted)
    summary = _Summary()
    with watching() as progress, step("scoring"):
        watched = rows.watched(progress.watch(rows.path.name, rows.n_rows))
        batches = summary.gather(score_file(fitted, watched))
        if out is None:
            for _ in batches:
                pass
        else:
            with naming(out):
                write_columns(out, batches)
    result = summary.result(is_calibrated=fitted.is_calibrated, out=out)
    if json:
        print_json(result)
    else:
        _print(result, summary.first_rows, detector)


class _Summary:
    """What is kept of the verdicts as they pass by: every score, and the first few rows."""

    def __init__(self) -> None:
        self.first_rows: list[dict[str, Any]] = []
        self._scores: list[Any] = []
        self._n_ood = 0

    def gather(self, verdicts: Iterable[Any]) -> Iterator[dict[str, Any]]:
        for verdict in verdicts:
            columns = {"score": verdict.score}
            if verdict.is_ood is not None:
                columns |= {"p_value": verdict.p_value, "is_ood": verdict.is_ood}
                self._n_ood += int(verdict.is_ood.sum())
            columns["nearest_class"] = verdict.nearest_class
            self._scores.append(verdict.score)
            for row in range(min(SHOWN_ROWS - len(self.first_rows), len(verdict.score))):
                self.first_rows.append({name: values[row].item() for name, values in columns.items()})
            yield columns

    def result(self, *, is_calibrated: bool, out: Path | None) -> dict[str, Any]:
        import numpy as np

        scores = np.concatenate(self._scores)
        # An order statistic rather than an interpolation: scores may be infinite.
        quantiles = np.quantile(scores, list(QUANTILES.values()), method="inverted_cdf")
        return {
            "n_rows": len(scores),
            "is_calibrated": is_calibrated,
            "n_ood": self._n_ood if is_calibrated else None,
            "ood_share": self._n_ood / len(scores) if is_calibrated else None,
            "score_quantiles": dict(zip(QUANTILES, quantiles.tolist(), strict=True)),
            "out": out,
        }


def _print(result: dict[str, Any], first_rows: list[dict[str, Any]], detector: Path) -> None:
    if result["is_calibrated"]:
        print_text(
            f"{result['n_rows']:,} rows, {result['n_ood']:,} out-of-distribution ({percent(result['ood_share'])} %)"
        )
    else:
        print_text(f"{result['n_rows']:,} rows; no verdicts, as {detector} is not calibrated")
        tell(f"For verdicts, run gem-ood calibrate {detector} FILE with in-distribution rows that the fit has not seen")
    quantiles = ", ".join(f"{name} {value:.6g}" for name, value in result["score_quantiles"].items())
    print_text(f"Scores: {quantiles}")
    if result["out"] is not None:
        tell(f"All rows: {result['out']}")
    header = ["row", *first_rows[0]]
    print_table(header, [[str(place), *map(_cell, row.values())] for place, row in enumerate(first_rows)])
    if result["n_rows"] > len(first_rows):
        print_text(f"... and {result['n_rows'] - len(first_rows):,} more rows")


def _cell(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.6g}" if isinstance(value, float) else str(value)
