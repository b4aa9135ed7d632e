"""`gem-ood evaluate`: detectors side by side, on one in-distribution and several other files."""

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from gem_ood.cli.console import percent, print_json, print_table, print_text
from gem_ood.cli.options import Features, Json, Labels, load_detector, open_rows
from gem_ood.progress import RowProgress

__all__ = ["evaluate"]


def evaluate(
    detectors: Annotated[list[Path], typer.Argument(metavar="DETECTOR...", help="Detectors that `gem-ood fit` saved.")],
    *,
    id_file: Annotated[Path, typer.Option("--id", metavar="FILE", help="In-distribution rows that no fit has seen.")],
    ood: Annotated[
        list[str], typer.Option(metavar="NAME=FILE", help="Out-of-distribution rows and their name; repeatable.")
    ],
    tpr: Annotated[float, typer.Option(metavar="SHARE", help="The true positive rate at which FPR is read.")] = 0.95,
    convention: Annotated[Literal["paper", "openood"], typer.Option(help="How FPR and AUPR are defined.")] = "paper",
    intervals: Annotated[
        Literal["bootstrap", "delong"] | None, typer.Option(help="Add 95 % intervals (delong: AUROC only).")
    ] = None,
    features: Features = None,
    labels: Labels = None,
    json: Json = False,
) -> None:
    """Compare detectors on in-distribution and out-of-distribution files, in percent.

    Example: gem-ood evaluate gem.safetensors msp.safetensors --id test.npz --ood noise=noise.npz
    """
    from gem_ood.files import compare_detectors

    ood_paths = _named_files(ood)
    loaded = {name: load_detector(path) for name, path in _named_detectors(detectors).items()}
    with RowProgress() as progress:

        def opened(path: Path, name: str, with_labels: bool) -> Any:
            rows = open_rows(path, features, labels, *loaded.values(), with_labels=with_labels)
            return rows.watched(progress.watch(name, rows.n_rows))

        comparison = compare_detectors(
            loaded,
            opened(id_file, "in-distribution", with_labels=True),
            {name: opened(path, name, with_labels=False) for name, path in ood_paths.items()},
            tpr=tpr,
            convention=convention,
            intervals=intervals,
        )
    if json:
        print_json({"tpr": tpr, "convention": convention, **_as_json(comparison)})
    else:
        _print(comparison, tpr)


def _named_files(texts: list[str]) -> dict[str, Path]:
    from gem_ood.errors import InputError

    files: dict[str, Path] = {}
    for text in texts:
        name, is_named, path = text.partition("=")
        if not (name and is_named and path):
            raise InputError(f"--ood is {text!r} but must be NAME=FILE, such as noise=noise.npz")
        if name in files:
            raise InputError(f"--ood names {name!r} twice; give each file its own name")
        files[name] = Path(path)
    return files


def _named_detectors(paths: list[Path]) -> dict[str, Path]:
    from gem_ood.errors import InputError

    if len(set(paths)) < len(paths):
        raise InputError("a detector is given twice; pass each file once")
    names = [path.stem for path in paths]
    return dict(zip(names if len(set(names)) == len(names) else map(str, paths), paths, strict=True))


def _as_json(comparison: Any) -> dict[str, Any]:
    metrics = ("fpr", "auroc", "aupr_in", "aupr_out", "detection_error")
    return {
        "n_id": comparison.n_id,
        "n_ood": comparison.n_ood,
        "detectors": {
            name: {
                "id_error": one.id_error,
                "id_kept": one.id_kept,
                "flagged": one.flagged,
                "evaluations": one.evaluations,
                "mean": {metric: one.mean(metric) for metric in metrics},
            }
            for name, one in comparison.detectors.items()
        },
    }


def _print(comparison: Any, tpr: float) -> None:
    metrics = {f"FPR{100 * tpr:g}": "fpr", "AUROC": "auroc", "AUPR in": "aupr_in", "AUPR out": "aupr_out"}
    is_any_calibrated = any(one.flagged is not None for one in comparison.detectors.values())
    header = ["detector", "OOD set", "rows", *metrics, *(["flagged"] if is_any_calibrated else [])]
    table = []
    for name, one in comparison.detectors.items():
        for set_name, evaluation in one.evaluations.items():
            cells = [_with_interval(evaluation, metric) for metric in metrics.values()]
            flagged = [percent(one.flagged and one.flagged[set_name])] if is_any_calibrated else []
            table.append([name, set_name, f"{comparison.n_ood[set_name]:,}", *cells, *flagged])
        means = [percent(one.mean(metric)) for metric in metrics.values()]
        flagged = [percent(_mean_flagged(one.flagged))] if is_any_calibrated else []
        table.append([name, "mean", "", *means, *flagged])
    print_table(header, table, n_names=2)
    for name, one in comparison.detectors.items():
        facts = [
            *([f"ID error {percent(one.id_error)} %"] if one.id_error is not None else []),
            *([f"its threshold keeps {percent(one.id_kept)} % of the ID rows"] if one.id_kept is not None else []),
        ]
        if facts:
            print_text(f"{name}: {', '.join(facts)} ({comparison.n_id:,} rows)")


def _with_interval(evaluation: Any, metric: str) -> str:
    text = percent(getattr(evaluation, metric))
    if evaluation.intervals is not None and metric in evaluation.intervals:
        low, high = evaluation.intervals[metric]
        text += f" [{percent(low)}, {percent(high)}]"
    return text


def _mean_flagged(flagged: dict[str, float] | None) -> float | None:
    return None if flagged is None else sum(flagged.values()) / len(flagged)
