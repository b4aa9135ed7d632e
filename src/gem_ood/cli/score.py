"""`gem-ood score`: verdicts on the rows of a file."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from gem_ood.cli.console import percent, print_json, print_table, print_text
from gem_ood.cli.engines import Address, EngineName, labels_seen_by, opened_engine, seen_by
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
from gem_ood.cli.voice import note, step, tell, watching

if TYPE_CHECKING:
    from gem_ood.cli.score_summary import ScoreSummary

__all__ = ["score"]


def score(
    detector: DetectorPath,
    file: Rows,
    *,
    out: Annotated[
        Path | None,
        out_option(
            "Write the verdict on every row to this file: .csv, .parquet, .npz or .jsonl; or, of a directory or "
            "pattern, to a new directory of .parquet files of the same names."
        ),
    ] = None,
    features: Features = None,
    labels: Labels = None,
    engine: EngineName = "local",
    address: Address = None,
    json: Json = False,
) -> None:
    """Score the rows of a file, of any size, and say which are out-of-distribution.

    Examples:
        gem-ood score gem.safetensors new.npz
        gem-ood score gem.safetensors new.npz --out scores.csv
        gem-ood score gem.safetensors parts/ --out scores/
    """
    from gem_ood.cli.score_summary import ScoreSummary

    is_directory = _check_out(out, detector, file)
    fitted = load_detector(detector)
    rows = open_rows(seen_by(engine, file), features, labels_seen_by(engine, labels), fitted)
    summary = ScoreSummary()
    with opened_engine(engine, address) as worker, watching() as progress, step("scoring"):
        watch = progress.watch(rows.path.name, rows.n_rows)
        if out is not None and is_directory:
            with _kept_for_later(out):
                worker.score_to_directory(fitted, rows, out, watch, on_columns=summary.add)
        else:
            _score_to_file(worker.verdicts(fitted, rows, watch), out, summary)
    result = summary.result(is_calibrated=fitted.is_calibrated, out=out)
    if json:
        print_json(result)
    else:
        _print(result, summary.first_rows, detector)


def _check_out(out: Path | None, detector: Path, file: Path) -> bool:
    """Return whether a directory is to be written; raise before any work if what is to be written cannot be."""
    from gem_ood.errors import InputError
    from gem_ood.files import refuse_overwriting
    from gem_ood.files.listing import is_file_set
    from gem_ood.files.part_directories import refuse_taken_directory
    from gem_ood.files.writing import WRITABLE

    if out is None:
        return False
    if out.suffix == "" and not (is_file_set(file) or file.exists()):
        raise InputError(f"{file} does not exist; check the path")
    if is_file_set(file) and (out.suffix == "" or out.is_dir()):
        refuse_overwriting(out, detector, file)
        refuse_taken_directory(out)
        return True
    if out.suffix.lower() not in WRITABLE:
        remedy = (
            "name it without a suffix for a directory of .parquet files"
            if is_file_set(file)
            else "pass a directory or pattern of .parquet files as FILE to write a directory of them"
        )
        raise InputError(
            f"{out} has the suffix {out.suffix or '(none)'!r} but {' '.join(WRITABLE)} can be written; rename it, or "
            f"{remedy}"
        )
    check_out(out, WRITABLE, detector, file)
    return False


def _score_to_file(found: Iterator[Any], out: Path | None, summary: "ScoreSummary") -> None:
    from gem_ood.files import write_columns

    def columns() -> Iterator[Any]:
        for verdicts in found:
            batch = verdicts.columns()
            summary.add(batch)
            yield batch

    if out is None:
        for _ in columns():
            pass
    else:
        with naming(out):
            write_columns(out, columns())


@contextmanager
def _kept_for_later(out: Path) -> Iterator[None]:
    """Say, where the work stops, what the next run will find."""
    with naming(out):
        try:
            yield
        except BaseException as error:
            for words in getattr(error, "__notes__", ()):  # of `part_directory`, if parts of this run are complete
                note(words)
            raise


def _print(result: dict[str, Any], first_rows: list[dict[str, Any]], detector: Path) -> None:
    if result["is_calibrated"]:
        print_text(
            f"{result['n_rows']:,} rows, {result['n_ood']:,} out-of-distribution ({percent(result['ood_share'])} %)"
        )
    else:
        print_text(f"{result['n_rows']:,} rows; no verdicts, as {detector} is not calibrated")
        tell(f"For verdicts, run gem-ood calibrate {detector} FILE with in-distribution rows that the fit has not seen")
    quantiles = ", ".join(f"{name} {value:.6g}" for name, value in result["score_quantiles"].items())
    print_text(f"Scores{'' if result['quantiles_are_exact'] else ' (quantiles within 0.05 %)'}: {quantiles}")
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
