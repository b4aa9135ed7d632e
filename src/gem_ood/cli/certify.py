"""`gem-ood certify`: what the theory says about a detector, what rows say, and how far the theory can be trusted."""

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gem_ood.cli.console import percent, print_json, print_table, print_text
from gem_ood.cli.options import (
    OUTPUT_PANEL,
    ROWS_PANEL,
    DetectorPath,
    Features,
    Json,
    Labels,
    OptionalIdFile,
    Tpr,
    check_out,
    load_detector,
    named_file,
    naming,
    open_rows,
)
from gem_ood.cli.voice import step, tell, watching

if TYPE_CHECKING:
    from gem_ood.theory import Certification, Diagnosis, Rates

__all__ = ["certify"]

#: How many classes the table shows, the farthest from χ² first; --json has all of them.
SHOWN_CLASSES = 10

FIGURES = (".png", ".svg", ".pdf")


def certify(
    detector: DetectorPath,
    *,
    ood: Annotated[
        str | None,
        typer.Option(
            metavar="[NAME=]FILE",
            rich_help_panel=ROWS_PANEL,
            help="Out-of-distribution rows, to measure and predict on.",
        ),
    ] = None,
    ood_mean: Annotated[
        Path | None,
        typer.Option(metavar="FILE", rich_help_panel=ROWS_PANEL, help="Instead of rows, one vector: their mean."),
    ] = None,
    id_file: OptionalIdFile = None,
    tpr: Tpr = 0.95,
    figure: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            rich_help_panel=OUTPUT_PANEL,
            help="Draw distances against χ² to this file: .png, .svg or .pdf; needs --id.",
        ),
    ] = None,
    features: Features = None,
    labels: Labels = None,
    json: Json = False,
) -> None:
    """Show what theory promises of a detector, beside what is measured, and how far to trust it on this network.

    Examples:
        gem-ood certify gem.safetensors --ood noise.npz --id test.npz
        gem-ood certify gem.safetensors --ood noise.npz --id test.npz --figure qq.png
    """
    ood_file = None if ood is None else named_file(ood)[1]
    result = _certified(detector, ood_file, ood_mean, id_file, figure, tpr=tpr, features=features, labels=labels)
    if figure is not None and result.diagnosis is not None:
        with naming(figure), step(f"drawing {figure}"):
            _draw(result.diagnosis, figure)
    if json:
        print_json(result.as_dict() | {"figure": figure})
    else:
        _print(result, figure)


def _certified(
    detector: Path,
    ood: Path | None,
    ood_mean: Path | None,
    id_file: Path | None,
    figure: Path | None,
    *,
    tpr: float,
    features: str | None,
    labels: str | None,
) -> "Certification":
    from gem_ood.errors import InputError
    from gem_ood.files.streaming import refuse_other_columns, without_names_warning
    from gem_ood.theory import certify_batches

    if (ood is None) == (ood_mean is None):
        raise InputError("pass either --ood, a file of out-of-distribution rows, or --ood-mean, their assumed mean")
    _check_figure(figure, id_file, [path for path in (detector, ood, ood_mean, id_file) if path is not None])
    fitted = load_detector(detector)
    with watching() as progress, without_names_warning(), step("certifying"):

        def watched(rows: Any) -> Any:
            refuse_other_columns(fitted, rows)
            return rows.watched(progress.watch(rows.path.name, rows.n_rows))

        return certify_batches(
            fitted,
            ood=None if ood is None else watched(_open_ood(ood, features, labels, fitted)),
            ood_mean=None if ood_mean is None else _read_vector(ood_mean, features, fitted),
            id=None if id_file is None else watched(open_rows(id_file, features, labels, fitted, with_labels=True)),
            tpr=tpr,
        )


def _open_ood(path: Path, features: str | None, labels: str | None, fitted: Any) -> Any:
    """Return rows that need no labels: a column of that name is no feature, but need not be there."""
    if labels is None or labels.lower().endswith(".npy"):
        return open_rows(path, features, None, fitted)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # opened again below, where it counts
        rows = open_rows(path, features, None, fitted)
    is_there = labels in (*(rows.feature_names or ()), *rows.left_out)
    return open_rows(path, features, labels if is_there else None, fitted)


def _check_figure(figure: Path | None, id_file: Path | None, inputs: list[Path]) -> None:
    """Raise now rather than after long work if the figure cannot be drawn or written."""
    if figure is None:
        return
    from gem_ood.errors import InputError
    from gem_ood.reports.plots.style import require_matplotlib

    if id_file is None:
        raise InputError("--figure draws distances of held-out in-distribution rows; pass them with --id")
    check_out(figure, FIGURES, *inputs)
    require_matplotlib()


def _read_vector(path: Path, features: str | None, fitted: Any) -> Any:
    """Return the one vector of a file: an array of one dimension, or the only row of a table."""
    from gem_ood.errors import InputError
    from gem_ood.files.numpy_members import npy_members, npz_members
    from gem_ood.files.reading import READABLE, refuse_unreadable
    from gem_ood.files.safetensors_members import safetensors_members

    suffix = refuse_unreadable(path, READABLE)
    readers = {".npy": npy_members, ".npz": npz_members, ".safetensors": safetensors_members}
    members = readers[suffix](path) if suffix in readers else {}
    member = members.get("features" if features is None else features)
    if member is None and len(members) == 1:
        member = next(iter(members.values()))
    if member is not None and member.kind not in "fiubO":  # O is refused where the rows are opened
        kind = {"c": "complex numbers", "U": "text", "S": "bytes"}.get(member.kind, f"values of kind {member.kind!r}")
        raise InputError(f"{member.title} holds {kind} but --ood-mean takes real numbers; pass one for each feature")
    if member is not None and len(member.shape) == 1 and member.kind != "O":
        return member.rows(0, member.shape[0])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # columns left out matter only if too few remain
        rows = open_rows(path, features, None, fitted)
    if rows.left_out and rows.n_features < fitted.n_features_in_:
        named = ", ".join(map(repr, rows.left_out[:5])) + (", ..." if len(rows.left_out) > 5 else "")
        raise InputError(
            f"{path} holds other things in {named} but --ood-mean takes numbers; pass one for each feature"
        )
    first, n_rows = None, 0
    for batch in rows.batches():
        first, n_rows = batch.features if first is None else first, n_rows + len(batch.features)
        if n_rows > 1:
            raise InputError(f"{path} holds more than one row but --ood-mean is one vector; pass rows with --ood")
    return first


def _draw(diagnosis: "Diagnosis", path: Path) -> None:
    from gem_ood.reports import save_figure
    from gem_ood.reports.plots import quantile_quantile

    names = [fit.name for fit in diagnosis.by_class]
    save_figure(quantile_quantile(diagnosis.distances_by_class, diagnosis.rank, names=names), path)


def _print(result: "Certification", figure: Path | None) -> None:
    print_text("What the theory says, for Gaussian classes")
    rows = [(quantity, remark, value) for quantity, value, remark in result.analysis.rows()]
    print_table(["quantity", "remark", "value"], rows, n_names=2)
    print_text("")
    print_text(f"Predicted and measured, in percent ({result.detector} score)")
    print_text(
        "FPR predicted: all rows Gaussian; FPR of Gaussian OOD: only the out-of-distribution rows, at this threshold"
    )
    header = ["threshold", "at", "TPR asked", "TPR measured", "FPR predicted", "FPR of Gaussian OOD", "FPR measured"]
    print_table(header, [_rates_row(result, rates) for rates in result.rates])
    if result.diagnosis is not None:
        _print_diagnosis(result.diagnosis)
    print_text("")
    print_text("In plain words")
    for sentence in result.summary:
        print_text(f"- {sentence}")
    if figure is not None:
        tell(f"Figure: {figure}")


def _rates_row(result: "Certification", rates: "Rates") -> list[str]:
    scores = {"rows": "the ID rows", "calibration": "the calibration rows", None: "ID rows"}[result.id_scores_from]
    names = {
        "asked": f"keeps {100.0 * result.tpr:g} % of {scores}",
        "calibrated": "the detector's own",
        "certified": "certified (B4)",
    }
    predicted = percent(rates.predicted_fpr) if rates.fpr_bound is None else f"at most {percent(rates.fpr_bound)}"
    return [
        names[rates.name],
        "-" if rates.threshold is None else f"{rates.threshold:.6g}",
        percent(rates.asked_tpr),
        percent(rates.measured_tpr),
        predicted,
        percent(rates.predicted_fpr_here),
        percent(rates.measured_fpr),
    ]


def _print_diagnosis(diagnosis: "Diagnosis") -> None:
    shown = diagnosis.worst_classes(SHOWN_CLASSES)
    reference = "own" if diagnosis.has_labels else "nearest"
    print_text("")
    print_text(
        f"Are the classes Gaussian? Squared distances d² to the {reference} class mean against χ² with "
        f"{diagnosis.rank} degrees of freedom"
    )
    if len(diagnosis.by_class) > len(shown):
        print_text(f"The {len(shown)} of {len(diagnosis.by_class)} classes that are farthest from it:")
    beyond = f"beyond the {100.0 * diagnosis.tpr:g} % point, %"
    expected = f"{100.0 * (1.0 - diagnosis.tpr):.3g} expected"
    table = []
    for fit in (diagnosis.overall, *(shown if len(diagnosis.by_class) > 1 else [])):
        low, high = (percent(end) for end in fit.beyond_interval)
        share = f"{percent(fit.beyond)} [{low}, {high}]"
        name = "all rows" if fit.name is None else str(fit.name)
        table.append([name, f"{fit.n_rows:,}", f"{fit.ratio:.3f}", share, f"{fit.distance:.3f}"])
    print_table(["class", "rows", "mean d² / expected", f"{beyond} ({expected})", "KS distance"], table)
