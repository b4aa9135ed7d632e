"""`gem-ood simulate`: the paper's studies on synthetic Gaussians, beside what theory predicts."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from gem_ood.cli.console import percent, print_json, print_table, print_text
from gem_ood.cli.options import Json, Runs, Sampler, Seed, check_out, naming, out_option
from gem_ood.cli.voice import step, tell, watching

if TYPE_CHECKING:
    from gem_ood.simulation import Point, Study

__all__ = ["simulate"]

TITLES = {
    "distance": "Distance: FPR{tpr} against r, the distance of the class means from the out-of-distribution mean",
    "dimension": "Dimension: FPR{tpr} against d, the number of features",
    "classes": "Classes: FPR{tpr} against k, the number of classes",
}


def simulate(
    study: Annotated[
        Literal["distance", "dimension", "classes", "all"],
        typer.Argument(metavar="STUDY", help="distance, dimension, classes, or all three."),
    ],
    *,
    runs: Runs = 5,
    seed: Seed = 0,
    sampler: Sampler = "full",
    out: Annotated[
        Path | None,
        out_option("Write every run to this file: .json, or one row each to .csv, .parquet, .npz or .jsonl."),
    ] = None,
    json: Json = False,
) -> None:
    """Draw the paper's simulation studies at full size, with four scores and the predicted rate.

    Examples:
        gem-ood simulate distance --sampler projected --runs 2
        gem-ood simulate all --seed 1 --out studies.csv
    """
    from gem_ood.files.writing import WRITABLE
    from gem_ood.simulation import STUDIES, run_studies

    if out is not None:
        check_out(out, (".json", *WRITABLE))
    names = list(STUDIES) if study == "all" else [study]
    with watching() as progress, step(f"drawing {', '.join(names)}"):
        watch = progress.watch_total("studies" if study == "all" else study)
        results = run_studies(names, runs=runs, seed=seed, sampler=sampler, progress=watch)
    if out is not None:
        with naming(out), step(f"writing {out}"):
            _write(out, results)
    if json:
        print_json({"studies": [result.as_dict() for result in results], "out": out})
    else:
        _print(results, out)


def _write(out: Path, studies: Sequence["Study"]) -> None:
    if out.suffix.lower() == ".json":
        from json import dumps

        from gem_ood.storage import atomic_path

        document = {"studies": [study.as_dict() for study in studies]}
        with atomic_path(out) as temporary:
            temporary.write_text(
                dumps(document, ensure_ascii=False, allow_nan=False, indent=1) + "\n", encoding="utf-8"
            )
    else:
        from gem_ood.files import write_columns

        write_columns(out, [study.as_columns() for study in studies])


def _print(studies: Sequence["Study"], out: Path | None) -> None:
    from gem_ood.simulation import PROTOCOL

    first = studies[0]
    setting = first.points[0].setting
    tell(
        f"{setting.n_in:,} in-distribution and {setting.n_out:,} out-of-distribution rows a run, {first.sampler} "
        f"sampler, σ = {setting.sigma:g}, runs {first.runs}, seed {first.seed}; percent, GEM as mean ± spread over runs"
    )
    for line in PROTOCOL:
        tell(f"- {line}")
    for study in studies:
        print_text("")
        print_text(TITLES[study.name].format(tpr=f"{100 * study.tpr:g}"))
        header = [study.varied, "k", "GEM", "predicted", "Mahalanobis", "MSP", "f'-energy"]
        print_table(header if study.varied != "k" else header[1:], [_row(study, point) for point in study.points])
    if out is not None:
        tell(f"Every run: {out}")


def _row(study: "Study", point: "Point") -> list[str]:
    gem = percent(point.mean("gem"))
    if study.runs > 1:
        gem += f" ± {percent(point.spread('gem'))}"
    others = [percent(point.mean(score)) for score in ("mahalanobis", "msp", "linear-energy")]
    classes = [] if study.varied == "k" else [str(point.setting.n_classes)]
    return [f"{point.value:g}", *classes, gem, percent(point.predicted["gem"]), *others]
