"""`gem-ood evaluate`: detectors side by side, on one in-distribution and several other files."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from gem_ood.cli.comparison_output import FORMATS, ComparisonOutput, Format, about_left_out
from gem_ood.cli.completing import complete_methods, complete_metrics
from gem_ood.cli.methods import Reading, calibrate_all, fit_on_the_spot
from gem_ood.cli.options import (
    METHODS_PANEL,
    ROWS_PANEL,
    Classes,
    Features,
    Groups,
    HeadPath,
    IdFile,
    Json,
    Labels,
    Tpr,
    listed,
    load_detector,
    named_files,
    open_rows,
    out_option,
    refuse_other_head,
)
from gem_ood.cli.reporting import ImageFiles, MapOption, Reporting, ReportPath, command_line
from gem_ood.cli.voice import note, step, watching

if TYPE_CHECKING:
    pass

__all__ = ["evaluate"]

Metric = Literal["fpr", "auroc", "aupr_in", "aupr_out", "detection_error"]

#: The section of the options that shape the table.
TABLE_PANEL = "Table"

Detectors = Annotated[
    list[Path] | None, typer.Argument(metavar="DETECTOR", help="Detectors that gem-ood fit saved.", show_default=False)
]
Methods = Annotated[
    str | None,
    typer.Option(
        metavar="all|NAME[,NAME...]",
        rich_help_panel=METHODS_PANEL,
        help="Methods to fit to --train and compare; all: the whole catalogue.",
        autocompletion=complete_methods,
    ),
]
Train = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", rich_help_panel=METHODS_PANEL, help="In-distribution rows that --methods are fitted to."
    ),
]
TrainLabels = Annotated[
    str | None,
    typer.Option(
        metavar="NAME|FILE.npy",
        rich_help_panel=METHODS_PANEL,
        help="The labels of --train, if not those of --labels.",
    ),
]
Logits = Annotated[
    bool,
    typer.Option(
        "--logits",
        rich_help_panel=METHODS_PANEL,
        help="The rows are logits: --methods that read these then need no --head.",
    ),
]
Calibrate = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        rich_help_panel=ROWS_PANEL,
        help="Held-out in-distribution rows that set every detector's threshold at --tpr.",
    ),
]
Ood = Annotated[
    list[str] | None,
    typer.Option(
        metavar="[NAME=]FILE",
        rich_help_panel=ROWS_PANEL,
        help="Out-of-distribution rows, and their name in the table; repeatable.",
    ),
]
Convention = Annotated[
    Literal["paper", "openood"], typer.Option(rich_help_panel=TABLE_PANEL, help="How FPR and AUPR are defined.")
]
Intervals = Annotated[
    Literal["bootstrap", "delong"] | None,
    typer.Option(rich_help_panel=TABLE_PANEL, help="Add 95 % intervals (delong: AUROC only)."),
]
Sort = Annotated[
    Metric | None,
    typer.Option(
        metavar="METRIC",
        rich_help_panel=TABLE_PANEL,
        help="Order by the mean of fpr, auroc, aupr_in, aupr_out or detection_error.",
    ),
]
Metrics = Annotated[
    str | None,
    typer.Option(
        metavar="METRIC[,METRIC...]",
        rich_help_panel=TABLE_PANEL,
        help="Which metrics are shown. Default: fpr,auroc,aupr_in; all in csv and json.",
        autocompletion=complete_metrics,
    ),
]
NoTime = Annotated[
    bool,
    typer.Option(
        "--no-time", rich_help_panel=TABLE_PANEL, help="Leave out the time to score 10,000 rows (json: null)."
    ),
]
AsFormat = Annotated[
    Format | None,
    typer.Option("--format", rich_help_panel=TABLE_PANEL, help="text unless given, or what the suffix of --out says."),
]
Out = Annotated[Path | None, out_option(f"Write the table to this file: {', '.join(FORMATS)}.")]


def evaluate(
    context: typer.Context,
    detectors: Detectors = None,
    *,
    id_file: IdFile,
    ood: Ood = None,
    methods: Methods = None,
    train: Train = None,
    train_labels: TrainLabels = None,
    head: HeadPath = None,
    classes: Classes = None,
    groups: Groups = None,
    logits: Logits = False,
    calibrate: Calibrate = None,
    tpr: Tpr = 0.95,
    convention: Convention = "paper",
    intervals: Intervals = None,
    sort: Sort = None,
    metrics: Metrics = None,
    no_time: NoTime = False,
    as_format: AsFormat = None,
    out: Out = None,
    report: ReportPath = None,
    images: ImageFiles = None,
    map: MapOption = "auto",
    features: Features = None,
    labels: Labels = None,
    json: Json = False,
) -> None:
    r"""Compare saved detectors, or methods fitted on the spot, on in-distribution and out-of-distribution files.

    Examples:
        gem-ood evaluate gem.safetensors --id test.npz --ood noise.npz
        gem-ood evaluate gem.safetensors energy.safetensors --id test.npz \
            --ood noise=noise.npz --ood far=far.npz --sort fpr --out table.md
        gem-ood evaluate --methods all --train train.npz --head head.npz \
            --id test.npz --ood noise.npz
        gem-ood evaluate gem.safetensors --id test.npz --ood noise.npz \
            --report report.html
    """
    from gem_ood.comparison import compare

    ood_paths, saved = named_files(ood or []), _named_detectors(detectors or [], listed(methods) or [])
    _check_sets(ood_paths, report)
    if calibrate is not None and calibrate.exists() and id_file.exists() and calibrate.samefile(id_file):
        note("--calibrate and --id are one file: what is kept of these rows says nothing about new ones")
    inputs = [id_file, *ood_paths.values(), *saved.values()]
    inputs += [path for path in (train, head, groups, calibrate) if path is not None]
    inputs += [] if classes is None or not classes.lower().endswith(".txt") else [Path(classes)]
    output = ComparisonOutput.checked(as_format, out, inputs, metrics=metrics, sort=sort, time=not no_time, json=json)
    reporting = Reporting.checked(report, images, map, sets=ood_paths, others=[*inputs, out])
    given_for_methods = {"--train": train, "--train-labels": train_labels, "--head": head, "--groups": groups}
    _check_training(saved, methods, given_for_methods | {"--classes": classes, "--logits": logits or None})
    _check_early(tpr, [path for path in (train, calibrate, id_file, *ood_paths.values()) if path is not None])
    loaded = {name: load_detector(path) for name, path in saved.items()}
    reading = Reading.of(head, classes, groups, logits=logits)
    # A file of labels belongs to the rows of --id: the others may be more or fewer.
    named_labels = None if labels is None or labels.lower().endswith(".npy") else labels
    opening = _Opening(features, loaded, None if train is None else (train, train_labels or named_labels))
    if opening.training is not None:
        refuse_other_head(opening.training, head, reading.head, option="--train")
    held_out = None if calibrate is None else opening.rows(calibrate, named_labels)
    inside = opening.rows(id_file, labels, with_labels=True)
    outside = {name: opening.rows(path, named_labels) for name, path in ood_paths.items()}
    left_out: dict[str, str] = {}
    with watching() as progress:
        if methods is not None:
            with step("fitting the methods"):
                fitted = fit_on_the_spot(methods, opening.training, reading, progress)
            left_out |= fitted.left_out
            loaded |= fitted.detectors
        if held_out is not None:
            optional = set(loaded) - set(saved) if methods == "all" else set()
            with step("calibrating"):
                left_out |= calibrate_all(loaded, held_out, tpr, optional, progress)
        chosen = {name: detector for name, detector in loaded.items() if name not in left_out}
        rows = {
            "id": inside.watched(progress.watch("in-distribution", inside.n_rows)),
            "ood": {name: rows.watched(progress.watch(name, rows.n_rows)) for name, rows in outside.items()},
            "tpr": tpr,
            "convention": convention,
            "intervals": intervals,
            "on_evaluated": None if intervals is None else progress.watch_total(f"{intervals} intervals"),
        }
        with step("comparing"):
            if reporting is None:
                comparison = compare(chosen, **rows)
            else:
                notes = about_left_out(left_out)
                comparison = reporting.write(
                    chosen, command=command_line(context), notes=notes, on_step=progress.say, **rows
                )
    output.show(comparison, left_out, report)


class _Opening:
    """Opens files of rows by one choice of columns and refuses, before anything is fitted, those of another width."""

    def __init__(self, features: str | None, saved: Mapping[str, Any], train: tuple[Path, str | None] | None) -> None:
        self._features, self._saved = features, dict(saved)
        self._columns: tuple[str, ...] | None = None
        self.training: Any = None
        if train is not None:
            self.training = open_rows(train[0], features, train[1], *saved.values(), with_labels=True)
            self._columns = self.training.feature_names

    def rows(self, path: Path, labels: str | None, *, with_labels: bool = False) -> Any:
        from gem_ood.comparison.rows import columns_of
        from gem_ood.detectors.columns import refuse_other_columns
        from gem_ood.errors import InputError

        detectors = self._saved.values()
        rows = open_rows(path, self._features, labels, *detectors, with_labels=with_labels, columns=self._columns)
        for name, detector in self._saved.items():
            refuse_other_columns(
                detector, title=str(path), n_features=rows.n_features, columns=columns_of(rows), name=name
            )
        if self.training is not None and rows.n_features != self.training.n_features:
            raise InputError(
                f"{path} has {rows.n_features} features but {self.training.path} of --train has "
                f"{self.training.n_features}; pass the same features, naming them or the labels if need be"
            )
        return rows


def _check_training(saved: Mapping[str, Path], methods: str | None, given: Mapping[str, Any]) -> None:
    from gem_ood.errors import InputError

    if not saved and methods is None:
        raise InputError("nothing to compare; pass saved detectors, or --methods with --train")
    if methods is not None and given["--train"] is None:
        raise InputError("--methods fits detectors but has no rows to fit them to; pass --train FILE")
    for option, value in given.items():
        if methods is None and value is not None:
            raise InputError(f"{option} is for --methods, which is not given; pass --methods all, or leave it out")


def _check_sets(ood: Mapping[str, Path], report: Path | None) -> None:
    from gem_ood.errors import InputError

    if not ood and report is None:
        raise InputError(
            "there is no out-of-distribution set; pass --ood NAME=FILE, or --report FILE.html for a report without one"
        )


def _check_early(tpr: float, rows: list[Path]) -> None:
    """Raise before anything is fitted for what would only be met after it."""
    from gem_ood.files.reading import READABLE, refuse_unreadable
    from gem_ood.thresholds import as_probability

    as_probability(tpr, name="tpr")
    for path in rows:
        refuse_unreadable(path, READABLE)


def _named_detectors(paths: list[Path], taken: Iterable[str]) -> dict[str, Path]:
    """Return the paths by their stems, or by themselves where two stems, or a stem and a method, are equal."""
    from gem_ood.detectors.cataloguing import entries
    from gem_ood.errors import InputError

    if len(set(paths)) < len(paths):
        raise InputError("a detector is given twice; pass each file once")
    names = [path.stem for path in paths]
    others = set(entries() if "all" in taken else taken)
    is_clear = len(set(names)) == len(names) and not others & set(names)
    return dict(zip(names if is_clear else map(str, paths), paths, strict=True))
