"""Methods fitted and calibrated on the spot, for `gem-ood evaluate`, with a bar that names the method at hand."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gem_ood.cli.comparison_output import in_option_names
from gem_ood.cli.options import listed, read_classes, read_groups, read_head
from gem_ood.cli.voice import detail
from gem_ood.progress import RowProgress

if TYPE_CHECKING:
    from gem_ood.comparison import FittedMethods
    from gem_ood.detectors import Head

__all__ = ["Reading", "calibrate_all", "fit_on_the_spot"]


class _MethodBar:
    """One bar for work that goes method by method, named by the method at hand."""

    def __init__(self, progress: RowProgress, verb: str, title: str, n_rows: int | None) -> None:
        self._progress, self._verb, self._title, self._n_rows = progress, verb, title, n_rows
        self._task: Any = None

    def begin(self, method: str, place: int, n_methods: int) -> None:
        """Start again under the name of the next method."""
        detail(f"{self._verb} {method}")
        self._title = f"{self._verb} {method} ({place}/{n_methods})"
        bar = self._shown()
        if bar is not None:
            bar.reset(self._task, total=self._n_rows, description=self._title)

    def on_rows(self, n_rows: int) -> None:
        """Show how many rows this method has read."""
        bar = self._shown()
        if bar is not None:
            bar.update(self._task, completed=n_rows)

    def _shown(self) -> Any:
        bar = self._progress.bar()
        if bar is not None and self._task is None:
            self._task = bar.add_task(self._title, total=self._n_rows)
        return bar


@dataclass(frozen=True)
class Reading:
    """How methods read the rows: through which last layer, under which names of the logits."""

    head: "Head | None"
    classes: Any
    groups: Any
    logits: bool

    @classmethod
    def of(cls, head: Path | None, classes: str | None, groups: Path | None, *, logits: bool) -> "Reading":
        """Return what the options say."""
        from gem_ood.errors import InputError

        if logits and head is not None:
            raise InputError("--logits says that rows are logits, but --head reads features; pass one of the two")
        return cls(read_head(head), read_classes(classes, head), read_groups(groups), logits)


def fit_on_the_spot(methods: str, rows: Any, reading: Reading, progress: RowProgress) -> "FittedMethods":
    """Return the methods, or the whole catalogue, fitted to the rows of --train."""
    from gem_ood.comparison import fit_methods
    from gem_ood.errors import InputError

    names = None if methods == "all" else listed(methods)
    bar = _MethodBar(progress, "fit", f"read {rows.path.name}", rows.n_rows)
    watched = rows.watched(bar.on_rows)
    try:
        return fit_methods(
            watched,
            methods=names,
            head=reading.head,
            groups=reading.groups,
            classes=reading.classes,
            logits=reading.logits,
            on_method=bar.begin,
        )
    except InputError as error:
        raise type(error)(in_option_names(str(error))) from error


def calibrate_all(
    detectors: Mapping[str, Any], rows: Any, tpr: float, optional: set[str], progress: RowProgress
) -> dict[str, str]:
    """Set every threshold; return why those among `optional` could not be set, such as too few rows."""
    from gem_ood.errors import InputError
    from gem_ood.files import calibrate_on_file

    reasons: dict[str, str] = {}
    bar = _MethodBar(progress, "calibrate", "calibrate", rows.n_rows)
    watched = rows.watched(bar.on_rows)
    for place, (name, detector) in enumerate(detectors.items(), start=1):
        bar.begin(name, place, len(detectors))
        try:
            calibrate_on_file(detector, watched, tpr=tpr)
        except InputError as error:
            reasons[name] = str(error)
            if name not in optional or len(reasons) == len(detectors):
                raise
    return reasons
