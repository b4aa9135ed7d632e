"""The form of the paper's tables: which numbers stand in which row and column, before any format is chosen."""

import math
from dataclasses import dataclass
from typing import Literal

from gem_ood.comparison.measured import MEAN, METRICS, DetectorComparison, Measurements
from gem_ood.errors import InputError

__all__ = ["PAPER_METRICS", "TEXT_WIDTH", "Cell", "Column", "Layout", "Table", "TableOptions", "long", "wide"]

#: What the paper's tables show of the metrics.
PAPER_METRICS = ("fpr", "auroc", "aupr_in")

#: A line of text up to this long takes one row per detector; longer ones become one row per set and detector.
TEXT_WIDTH = 120

Layout = Literal["auto", "wide", "long"]

_TITLES = {"auroc": "AUROC", "aupr_in": "AUPR in", "aupr_out": "AUPR out", "detection_error": "det. error"}


@dataclass(frozen=True)
class TableOptions:
    """How a table is to look.

    Attributes:
        layout: "wide" has one row per detector, "long" one per set and detector; "auto" is wide where it fits.
        width: How many characters of text are one line at most.
        sort: A metric by whose mean the detectors are ordered, if any.
        metrics: Which metrics are shown.
        time: Whether the time to score 10,000 rows is shown.
    """

    layout: Layout = "auto"
    width: int = TEXT_WIDTH
    sort: str | None = None
    metrics: tuple[str, ...] = PAPER_METRICS
    time: bool = True

    def __post_init__(self) -> None:
        if self.layout not in ("auto", "wide", "long"):
            raise InputError(f'layout must be "auto", "wide" or "long" but is {self.layout!r}; pass one of these')


@dataclass(frozen=True)
class Cell:
    """A value, the interval behind it if there is one, and whether it is the best on its set."""

    text: str
    interval: str = ""
    is_best: bool = False


@dataclass(frozen=True)
class Column:
    """What stands above a column: its title, with an arrow to the better side, and the set it belongs to."""

    title: str
    group: str = ""


@dataclass(frozen=True)
class Table:
    """Columns and blocks of rows; the first n_names columns are names, the others numbers.

    Attributes:
        columns: What stands above.
        blocks: The rows; a block is set apart from the next.
        n_names: How many columns are names.
        has_best: Whether some value is marked as the best.
        notes: What to know about the numbers, a line each.
    """

    columns: tuple[Column, ...]
    blocks: tuple[tuple[tuple[Cell, ...], ...], ...]
    n_names: int
    has_best: bool
    notes: tuple[str, ...]


def wide(measured: Measurements, options: TableOptions) -> Table:
    """Return one row per detector; the sets, and last their mean, side by side."""
    return _Form.of(measured, options).wide()


def long(measured: Measurements, options: TableOptions) -> Table:
    """Return one block per set, and last their mean, with one row per detector, as in the paper."""
    return _Form.of(measured, options).long()


@dataclass(frozen=True)
class _Form:
    measured: Measurements
    order: tuple[str, ...]
    metrics: tuple[str, ...]
    time: bool

    @classmethod
    def of(cls, measured: Measurements, options: TableOptions) -> "_Form":
        return cls(measured, measured.order(options.sort), options.metrics, options.time)

    def wide(self) -> Table:
        columns = [Column("detector")]
        for ood in self._sets():
            columns += [Column(title, ood) for title in self._set_titles()]
        columns += map(Column, self._own_titles())
        rows = []
        for name in self.order:
            cells = [cell for ood in self._sets() for cell in self._set_cells(name, ood)]
            rows.append((Cell(name), *cells, *self._own_cells(name)))
        return self._table(columns, [rows], n_names=1)

    def long(self) -> Table:
        sets = self._sets()
        columns = [Column(title) for title in ("OOD set", "detector", *self._set_titles(), *self._own_titles())]
        empty = tuple(Cell("") for _ in self._own_titles())
        blocks = [
            [
                (
                    Cell(ood),
                    Cell(name),
                    *self._set_cells(name, ood),
                    *(self._own_cells(name) if ood == sets[-1] else empty),
                )
                for name in self.order
            ]
            for ood in sets
        ]
        return self._table(columns, blocks, n_names=2)

    def _table(self, columns: list[Column], blocks: list[list[tuple[Cell, ...]]], n_names: int) -> Table:
        has_best = any(cell.is_best for block in blocks for row in block for cell in row)
        return Table(tuple(columns), tuple(map(tuple, blocks)), n_names, has_best, self._notes())

    def _sets(self) -> list[str]:
        # The mean over one set would say everything twice.
        return [*self.measured.n_ood, *([MEAN] if len(self.measured.n_ood) > 1 else [])]

    def _all(self) -> list[DetectorComparison]:
        return [self.measured.detectors[name] for name in self.order]

    def _is_calibrated(self) -> bool:
        return any(one.flagged is not None for one in self._all())

    def _has_labels(self) -> bool:
        return any(one.id_error is not None for one in self._all())

    def _has_time(self) -> bool:
        return self.time and any(one.seconds_per_10k is not None for one in self._all())

    def _set_titles(self) -> list[str]:
        titles = [self._metric_title(metric) for metric in self.metrics]
        return [*titles, "flagged"] if self._is_calibrated() else titles

    def _metric_title(self, metric: str) -> str:
        title = f"FPR{100 * self.measured.tpr:g}" if metric == "fpr" else _TITLES[metric]
        if metric == "aupr_in" and "aupr_out" not in self.metrics:
            title = "AUPR"
        return f"{title} {'↓' if METRICS[metric] else '↑'}"

    def _set_cells(self, name: str, ood: str) -> list[Cell]:
        one = self.measured.detectors[name]
        cells = []
        for metric in self.metrics:
            is_best = len(self.order) > 1 and name in self.measured.best(metric, ood)
            cells.append(Cell(_percent(one.value(metric, ood)), _interval(one, metric, ood), is_best))
        return [*cells, Cell(_percent(one.flagged_share(ood)))] if self._is_calibrated() else cells

    def _own_titles(self) -> list[str]:
        return [
            *(["ID error"] if self._has_labels() else []),
            *(["ID kept"] if self._is_calibrated() else []),
            *(["s/10k"] if self._has_time() else []),
        ]

    def _own_cells(self, name: str) -> list[Cell]:
        one = self.measured.detectors[name]
        return [
            *([Cell(_percent(one.id_error))] if self._has_labels() else []),
            *([Cell(_percent(one.id_kept))] if self._is_calibrated() else []),
            *([Cell(_seconds(one.seconds_per_10k))] if self._has_time() else []),
        ]

    def _notes(self) -> tuple[str, ...]:
        sets = ", ".join(f"{name} ({n_rows:,})" for name, n_rows in self.measured.n_ood.items())
        against = f"against {sets}" if sets else "and no out-of-distribution set"
        return (
            f"In percent, {self.measured.convention} convention: {self.measured.n_id:,} in-distribution rows {against}",
            *([] if self.measured.intervals is None else [self._about_intervals()]),
            *(
                [
                    "flagged, ID kept: shares of rows beyond and within the detector's own threshold"
                    if sets
                    else "ID kept: share of rows within the detector's own threshold"
                ]
                if self._is_calibrated()
                else []
            ),
            *(["s/10k: seconds to score 10,000 rows"] if self._has_time() else []),
        )

    def _about_intervals(self) -> str:
        about = f"[low, high]: {100 * self.measured.confidence:g} % intervals ({self.measured.intervals})"
        is_lacking = all(one.interval(metric) is None for one in self._all() for metric in self.metrics)
        return f"{about}; the mean has none" if MEAN in self._sets() and is_lacking else about


def _percent(share: float | None) -> str:
    return "-" if share is None or not math.isfinite(share) else f"{100.0 * share:.2f}"


def _seconds(seconds: float | None) -> str:
    return "-" if seconds is None or not math.isfinite(seconds) else f"{seconds:.4f}"


def _interval(one: DetectorComparison, metric: str, ood: str) -> str:
    interval = one.interval(metric, ood)
    return "" if interval is None else f"[{_percent(interval[0])}, {_percent(interval[1])}]"
