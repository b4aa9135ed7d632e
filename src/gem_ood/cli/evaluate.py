"""`gem-ood evaluate`: detectors side by side, on one in-distribution and several other files."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from gem_ood.cli.console import print_json, print_text
from gem_ood.cli.options import ROWS, Features, Json, Labels, load_detector, open_rows
from gem_ood.progress import RowProgress

if TYPE_CHECKING:
    from gem_ood.comparison import Comparison, FittedMethods

__all__ = ["evaluate"]

Format = Literal["text", "markdown", "latex", "csv", "json"]
Metric = Literal["fpr", "auroc", "aupr_in", "aupr_out", "detection_error"]

#: The format that a file's suffix asks for.
FORMATS: dict[str, Format] = {".txt": "text", ".md": "markdown", ".tex": "latex", ".csv": "csv", ".json": "json"}

Detectors = Annotated[
    list[Path] | None, typer.Argument(metavar="[DETECTOR...]", help="Detectors that `gem-ood fit` saved.")
]
Methods = Annotated[
    str | None,
    typer.Option(metavar="all|NAME[,NAME...]", help="Methods to fit to --train and compare; all: the whole catalogue."),
]
Train = Annotated[
    Path | None, typer.Option(metavar="FILE", help=f"In-distribution rows that --methods are fitted to: {ROWS}.")
]
TrainLabels = Annotated[
    str | None, typer.Option(metavar="NAME|FILE.npy", help="The labels of --train, if not those of --labels.")
]
HeadPath = Annotated[
    Path | None,
    typer.Option(metavar="HEAD.npz", help="The classifier's last layer, for the methods that read logits."),
]
Groups = Annotated[Path | None, typer.Option(metavar="FILE.npy", help="The group of each logit, for mos.")]
Calibrate = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Held-out in-distribution rows that set every detector's threshold at --tpr."),
]
IdFile = Annotated[Path, typer.Option("--id", metavar="FILE", help="In-distribution rows that no fit has seen.")]
Ood = Annotated[
    list[str], typer.Option(metavar="NAME=FILE", help="Out-of-distribution rows and their name; repeatable.")
]
Tpr = Annotated[float, typer.Option(metavar="SHARE", help="The true positive rate at which FPR is read.")]
Convention = Annotated[Literal["paper", "openood"], typer.Option(help="How FPR and AUPR are defined.")]
Intervals = Annotated[
    Literal["bootstrap", "delong"] | None, typer.Option(help="Add 95 % intervals (delong: AUROC only).")
]
Sort = Annotated[Metric | None, typer.Option(metavar="METRIC", help="Order by the mean of fpr, auroc, aupr_in, ...")]
Metrics = Annotated[
    str, typer.Option(metavar="NAME[,NAME...]", help="Of fpr, auroc, aupr_in, aupr_out and detection_error.")
]
NoTime = Annotated[bool, typer.Option("--no-time", help="Leave out the time to score 10,000 rows.")]
AsFormat = Annotated[
    Format | None,
    typer.Option("--format", help="text unless given, or what the suffix of --out says."),
]
Out = Annotated[Path | None, typer.Option(metavar="FILE", help=f"Write the table to a file: {', '.join(FORMATS)}.")]


def evaluate(
    detectors: Detectors = None,
    *,
    id_file: IdFile,
    ood: Ood,
    methods: Methods = None,
    train: Train = None,
    train_labels: TrainLabels = None,
    head: HeadPath = None,
    groups: Groups = None,
    calibrate: Calibrate = None,
    tpr: Tpr = 0.95,
    convention: Convention = "paper",
    intervals: Intervals = None,
    sort: Sort = None,
    metrics: Metrics = "fpr,auroc,aupr_in",
    no_time: NoTime = False,
    as_format: AsFormat = None,
    out: Out = None,
    features: Features = None,
    labels: Labels = None,
    json: Json = False,
) -> None:
    """Compare saved detectors, or methods fitted on the spot, on in-distribution and out-of-distribution files.

    Example: gem-ood evaluate gem.safetensors msp.safetensors --id test.npz --ood noise=noise.npz

    Example: gem-ood evaluate --methods all --train train.npz --head head.npz --id test.npz --ood noise=noise.npz
    """
    from gem_ood.comparison import compare

    ood_paths, saved = _named_files(ood), _named_detectors(detectors or [], _listed(methods) or [])
    inputs = [id_file, *ood_paths.values(), *saved.values()]
    inputs += [path for path in (train, head, groups, calibrate) if path is not None]
    printing = _Printing.checked(as_format, out, inputs, metrics=metrics, sort=sort, time=not no_time, json=json)
    given_for_methods = {"--train": train, "--train-labels": train_labels, "--head": head, "--groups": groups}
    _check_training(saved, methods, given_for_methods)
    _check_early(tpr, [path for path in (train, calibrate, id_file, *ood_paths.values()) if path is not None])
    loaded = {name: load_detector(path) for name, path in saved.items()}
    with RowProgress() as progress:

        def opened(path: Path, name: str, labels: str | None, *, with_labels: bool = False) -> Any:
            rows = open_rows(path, features, labels, *loaded.values(), with_labels=with_labels)
            return rows.watched(progress.watch(name, rows.n_rows))

        # A file of labels belongs to the rows of --id: the others may be more or fewer.
        name_of_labels = None if labels is None or labels.lower().endswith(".npy") else labels
        left_out: dict[str, str] = {}
        if methods is not None and train is not None:
            given = name_of_labels if train_labels is None else train_labels
            fitted = _fitted(methods, opened(train, "fitting", given, with_labels=True), head, groups)
            left_out |= fitted.left_out
            loaded |= fitted.detectors
        if calibrate is not None:
            optional = set(loaded) - set(saved) if methods == "all" else set()
            left_out |= _calibrated(loaded, opened(calibrate, "calibrating", name_of_labels), tpr, optional)
        comparison = compare(
            {name: detector for name, detector in loaded.items() if name not in left_out},
            id=opened(id_file, "in-distribution", labels, with_labels=True),
            ood={name: opened(path, name, name_of_labels) for name, path in ood_paths.items()},
            tpr=tpr,
            convention=convention,
            intervals=intervals,
        )
    printing.show(comparison, left_out)


@dataclass(frozen=True)
class _Printing:
    """Where the table goes and in which form."""

    format: Format
    out: Path | None
    options: dict[str, Any]
    metrics: tuple[str, ...]
    json: bool

    @classmethod
    def checked(
        cls,
        as_format: Format | None,
        out: Path | None,
        inputs: list[Path],
        *,
        metrics: str,
        sort: str | None,
        time: bool,
        json: bool,
    ) -> "_Printing":
        """Raise now rather than after long work if the table could not be written as asked."""
        from gem_ood.comparison import METRICS
        from gem_ood.errors import InputError
        from gem_ood.files import refuse_overwriting, refuse_unwritable

        if json and as_format is not None and out is None:
            raise InputError("--json and --format contradict each other; pass one of them, or --out for a file")
        chosen = _listed(metrics) or ()
        for metric in chosen:
            if metric not in METRICS:
                raise InputError(f"--metrics names {metric!r}; choose among {', '.join(METRICS)}")
        suffix = "" if out is None else refuse_unwritable(out, tuple(FORMATS))
        if out is not None:
            refuse_overwriting(out, *inputs)
        form = as_format or FORMATS.get(suffix, "text")
        return cls(form, out, {"sort": sort, "time": time}, tuple(chosen), json)

    def show(self, comparison: "Comparison", left_out: Mapping[str, str]) -> None:
        """Write the file, if one is asked for, print, and say on stderr what was left out."""
        if self.out is not None:
            from gem_ood.storage import atomic_path

            with atomic_path(self.out) as temporary:
                temporary.write_text(self._rendered(comparison, self.format), encoding="utf-8", newline="")
        if self.json:
            print_json(comparison.as_dict(sort=self.options["sort"]) | {"left_out": dict(left_out), "out": self.out})
            return
        if self.out is None and self.format != "text":
            print_text(self._rendered(comparison, self.format).removesuffix("\n"))
        else:
            self._print_text(comparison)
        if self.out is not None:
            print_text(f"Table: {self.out}")
        for line in _about_left_out(left_out):
            typer.echo(f"gem-ood: note: {line}", err=True)

    def _rendered(self, comparison: "Comparison", form: Format) -> str:
        if form in ("csv", "json"):
            write = comparison.to_csv if form == "csv" else comparison.to_json
            return write(sort=self.options["sort"])
        if form == "text":
            return comparison.to_text(metrics=self.metrics, **self.options) + "\n"
        render = comparison.to_markdown if form == "markdown" else comparison.to_latex
        return render(metrics=self.metrics, **self.options)

    def _print_text(self, comparison: "Comparison") -> None:
        from rich.console import Console
        from rich.text import Text

        console = Console()
        if not console.is_terminal or console.color_system is None:  # a pipe, or a terminal without bold
            print_text(comparison.to_text(metrics=self.metrics, **self.options))
            return
        text = comparison.to_text(metrics=self.metrics, width=console.width, ansi=True, **self.options)
        console.print(Text.from_ansi(text), soft_wrap=True)


def _fitted(methods: str, rows: Any, head: Path | None, groups: Path | None) -> "FittedMethods":
    from gem_ood.comparison import fit_methods
    from gem_ood.errors import InputError
    from gem_ood.files import read_head

    last_layer = None if head is None else read_head(head)
    group_of_logit = None if groups is None else _read_groups(groups)
    names = None if methods == "all" else _listed(methods)
    try:
        return fit_methods(rows, methods=names, head=last_layer, groups=group_of_logit)
    except InputError as error:
        raise type(error)(_in_option_names(str(error))) from error


def _calibrated(detectors: Mapping[str, Any], rows: Any, tpr: float, optional: set[str]) -> dict[str, str]:
    """Set every threshold; return why those among `optional` could not be set, such as too few rows."""
    from gem_ood.errors import InputError
    from gem_ood.files import calibrate_on_file

    reasons: dict[str, str] = {}
    for name, detector in detectors.items():
        try:
            calibrate_on_file(detector, rows, tpr=tpr)
        except InputError as error:
            reasons[name] = str(error)
            if name not in optional or len(reasons) == len(detectors):
                raise
    return reasons


def _read_groups(path: Path) -> Any:
    from gem_ood.files.numpy_members import npy_members
    from gem_ood.files.reading import refuse_unreadable

    refuse_unreadable(path, (".npy",))
    (member,) = npy_members(path).values()
    member.refuse_as_labels()
    return member.rows(0, member.shape[0])


def _check_training(saved: Mapping[str, Path], methods: str | None, given: Mapping[str, Any]) -> None:
    from gem_ood.errors import InputError

    if not saved and methods is None:
        raise InputError("nothing to compare; pass saved detectors, or --methods with --train")
    if methods is not None and given["--train"] is None:
        raise InputError("--methods fits detectors but has no rows to fit them to; pass --train FILE")
    for option, value in given.items():
        if methods is None and value is not None:
            raise InputError(f"{option} is for --methods, which is not given; pass --methods all, or leave it out")


def _check_early(tpr: float, rows: list[Path]) -> None:
    """Raise before anything is fitted for what would only be met after it."""
    from gem_ood.files.reading import READABLE, refuse_unreadable
    from gem_ood.thresholds import as_probability

    as_probability(tpr, name="tpr")
    for path in rows:
        refuse_unreadable(path, READABLE)


def _named_files(texts: list[str]) -> dict[str, Path]:
    from gem_ood.errors import InputError

    files: dict[str, Path] = {}
    for text in texts:
        name, is_named, path = text.partition("=")
        if not (name.strip() and is_named and path):
            raise InputError(f"--ood is {text!r} but must be NAME=FILE, such as noise=noise.npz")
        if name in files:
            raise InputError(f"--ood names {name!r} twice; give each file its own name")
        if name == "mean":
            raise InputError("--ood names a set 'mean', as the mean over all sets is; give it another name")
        files[name] = Path(path)
    return files


def _named_detectors(paths: list[Path], taken: Iterable[str]) -> dict[str, Path]:
    """Return the paths by their stems, or by themselves where two stems, or a stem and a method, are equal."""
    from gem_ood.detectors.catalogue import entries
    from gem_ood.errors import InputError

    if len(set(paths)) < len(paths):
        raise InputError("a detector is given twice; pass each file once")
    names = [path.stem for path in paths]
    others = set(entries() if "all" in taken else taken)
    is_clear = len(set(names)) == len(names) and not others & set(names)
    return dict(zip(names if is_clear else map(str, paths), paths, strict=True))


def _listed(text: str | None) -> list[str] | None:
    return None if text is None else [name.strip() for name in text.split(",")]


def _about_left_out(left_out: Mapping[str, str]) -> list[str]:
    """Return one line for each reason, with the methods that it holds for."""
    by_reason: dict[str, list[str]] = {}
    for name, reason in left_out.items():
        by_reason.setdefault(_in_option_names(reason), []).append(name)
    return [f"left out {', '.join(names)}: {reason}" for reason, names in by_reason.items()]


def _in_option_names(reason: str) -> str:
    return re.sub(r"\bneeds (head|groups)\b", r"needs --\1", " ".join(reason.split()))
