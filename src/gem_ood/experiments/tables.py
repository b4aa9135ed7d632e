"""The paper's tables (P44 to P46) laid out: each number with its spread, the printed one, the difference, a verdict."""

from typing import TYPE_CHECKING

from gem_ood.comparison import MEAN, METRICS
from gem_ood.comparison.tables import Cell, Column, Table
from gem_ood.experiments.data_sets import TITLES
from gem_ood.experiments.paper_numbers import PAPER_METRICS, PAPER_SETS

if TYPE_CHECKING:
    from gem_ood.experiments.results import Experiment, Verdict

__all__ = ["main_table", "set_table"]

_METRIC_TITLES = {"auroc": "AUROC", "aupr_in": "AUPR"}
_SIGNS = {"within": "≈", "beyond": "≠"}


def main_table(experiment: "Experiment") -> tuple[str, Table]:
    """Return the title and the main table: the mean over the sets, and the network's test error."""
    columns = [Column("method"), *_metric_columns(experiment), *_error_columns(experiment)]
    rows = [
        (Cell(method), *_metric_cells(experiment, method, MEAN), *_error_cells(experiment))
        for method in experiment.methods
    ]
    over = experiment.averaged
    title = f"{_title(experiment.name)} in-distribution, mean over {_count(len(over), 'out-of-distribution set')}"
    return title, Table(tuple(columns), (tuple(rows),), 1, False, _notes(experiment))


def set_table(experiment: "Experiment") -> tuple[str, Table]:
    """Return the title and the table with one block per out-of-distribution set, as in the paper's appendix."""
    columns = [Column("set"), Column("method"), *_metric_columns(experiment)]
    blocks = [
        tuple(
            (Cell(_title(ood)), Cell(method), *_metric_cells(experiment, method, ood)) for method in experiment.methods
        )
        for ood in experiment.n_ood
    ]
    title = f"{_title(experiment.name)} in-distribution, each out-of-distribution set"
    return title, Table(tuple(columns), tuple(blocks), 2, False, _draw_notes(experiment))


def _metric_columns(experiment: "Experiment") -> list[Column]:
    columns = []
    for metric in PAPER_METRICS:
        title = _fpr_title(experiment) if metric == "fpr" else _METRIC_TITLES[metric]
        group = f"{title} {'↓' if METRICS[metric] else '↑'}"
        columns += [Column("here", group), *_paper_columns(experiment, group)]
    return columns


def _paper_columns(experiment: "Experiment", group: str) -> list[Column]:
    return [] if experiment.paper is None else [Column("paper", group), Column("diff", group)]


def _metric_cells(experiment: "Experiment", method: str, ood: str) -> list[Cell]:
    cells = []
    for metric in PAPER_METRICS:
        cell = (method, metric, ood)
        spread = experiment.spread(*cell)
        shown = _percent(experiment.value(*cell))
        cells.append(Cell(f"{shown} ±{_percent(spread)}" if spread and experiment.has_spread(ood) else shown))
        if experiment.paper is not None:
            cells += _beside(experiment.printed(*cell), experiment.difference(*cell), experiment.verdict(*cell))
    return cells


def _error_columns(experiment: "Experiment") -> list[Column]:
    group = "ID error ↓"
    return [] if experiment.id_error is None else [Column("here", group), *_paper_columns(experiment, group)]


def _error_cells(experiment: "Experiment") -> list[Cell]:
    error, paper = experiment.id_error, experiment.paper
    if error is None:
        return []
    cells = [Cell(_percent(error))]
    if paper is not None:
        printed = paper.id_error / 100.0
        cells += _beside(printed, error - printed, experiment.error_verdict())
    return cells


def _beside(printed: float | None, difference: float | None, verdict: "Verdict | None") -> list[Cell]:
    if printed is None:
        return [Cell(""), Cell("")]
    if difference is None:
        return [Cell(_percent(printed)), Cell("")]
    sign = " " if verdict is None else _SIGNS[verdict]  # as wide as a sign, so that numbers stand under each other
    return [Cell(_percent(printed)), Cell(f"{_signed(difference)} {sign}")]


def _notes(experiment: "Experiment") -> tuple[str, ...]:
    notes = [f"In percent, paper convention; {experiment.n_id:,} in-distribution test rows"]
    paper = experiment.paper
    if paper is not None:
        shared = [ood for ood in experiment.averaged if ood in paper.sets]
        if any(experiment.has_spread(ood) for ood in experiment.n_ood):
            notes.append("±: standard deviation of a draw; ≈: within two of them of the paper's number, ≠: beyond")
        unknown = [ood for ood in shared if not experiment.has_spread(ood)]
        if unknown:
            names = ", ".join(map(_title, unknown))
            notes.append(f"No verdict on {names}, nor on a mean over these: one draw has no spread")
        if experiment.id_error is not None:
            notes.append("ID error: ≈ equal as rounded, ≠ not")
        others = [ood for ood in experiment.n_ood if ood not in experiment.averaged]
        if others:
            notes.append(f"The mean leaves out what the paper does not have: {', '.join(map(_title, others))}")
        if shared and set(shared) != set(PAPER_SETS):
            names = ", ".join(map(_title, shared))
            notes.append(f"The paper's column is the mean of its numbers for the same sets: {names}")
        elsewhere = [ood for ood in shared if not experiment.is_at_ratio(ood)]
        if elsewhere:
            names = ", ".join(map(_title, elsewhere))
            notes.append(f"AUPR depends on the ratio of rows, which is not the paper's five to one for {names}")
        n_within, n_known = experiment.n_within()
        if n_known:
            notes.append(f"Within the spread of draws: {n_within} of {n_known} numbers of these tables")
    notes += _gain_notes(experiment)
    return (*notes, *experiment.notes, *([] if len(experiment.n_ood) > 1 else _draw_notes(experiment)))


def _gain_notes(experiment: "Experiment") -> list[str]:
    gain = experiment.gain()
    if gain is None or experiment.paper is None:
        return []
    own, printed = gain
    beside = "" if printed is None else f", {_signed(-printed)} in the paper"
    return [f"{_fpr_title(experiment)} of GEM minus that of Energy: {_signed(-own)} points{beside}"]


def _draw_notes(experiment: "Experiment") -> tuple[str, ...]:
    protocol = experiment.protocol
    sizes = [f"{_title(ood)} {experiment.n_drawn(ood):,} of {n_rows:,}" for ood, n_rows in experiment.n_ood.items()]
    if protocol.share is None:
        return (f"Whole sets, once: {', '.join(f'{_title(ood)} {n:,}' for ood, n in experiment.n_ood.items())}",)
    whole = [_title(ood) for ood, n_rows in experiment.n_ood.items() if experiment.n_drawn(ood) == n_rows]
    notes = [f"{_count(protocol.n_draws, 'draw')}, seed {protocol.seed}; rows a draw: {', '.join(sizes)}"]
    if whole:
        notes.append(f"Taken whole, once, as there are too few to draw from: {', '.join(whole)}")
    return tuple(notes)


def _fpr_title(experiment: "Experiment") -> str:
    return f"FPR{100 * experiment.protocol.tpr:g}"


def _title(name: str) -> str:
    return TITLES.get(name, name)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _percent(share: float) -> str:
    return f"{100.0 * share:.2f}"


def _signed(share: float) -> str:
    shown = f"{100.0 * share:+.2f}"
    return shown.replace("-", "−").replace("−0.00", "+0.00")
