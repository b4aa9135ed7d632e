"""Scoring the rows of a cluster: a lazy dataset of verdicts."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import ray
from numpy.typing import NDArray

from gem_ood.detectors import Detector, Verdicts
from gem_ood.detectors.columns import fitted_names, without_names_warning
from gem_ood.errors import InputError
from gem_ood.files.streaming import no_verdicts
from gem_ood.files.writing import as_arrow
from gem_ood.ray.columns import Columns, choose_columns
from gem_ood.ray.opening import known_names, open_dataset, require_fitted
from gem_ood.ray.reducing import persist
from gem_ood.ray.spread import fetched, first_block

if TYPE_CHECKING:
    from ray.data import Dataset

__all__ = ["score"]

#: What a verdict is made of.
VERDICT = ("score", "p_value", "is_ood", "nearest_class")


def score(
    dataset: "Dataset | str | PathLike[str]",
    detector: Detector,
    features: str | Sequence[str] = "features",
    *,
    keep: str | Iterable[str] | None = None,
) -> "Dataset":
    """Return the verdict on every row, as a lazy dataset: it is computed when it is written or looked at.

    Beside the columns of the dataset it has `score`, `nearest_class` and, if the detector is calibrated, `p_value` and
    `is_ood`. `write` puts it into Parquet files, all or none. Only where Ray does not know the columns of the dataset,
    as after a step of your own, are its first rows computed now.

    Args:
        dataset: Any `ray.data.Dataset`; or the path of Parquet files, which Ray then reads, with a column `path` that
            says from which of them a row is, unless they have one of that name.
        detector: A fitted detector; one copy goes to each worker.
        features: The column of lists or tensors that holds the features, or the columns of numbers that make them up.
        keep: The columns that stay beside the verdict; all but the features unless given.

    Example:
        >>> import ray
        >>> from gem_ood import GEM
        >>> rows = [[float(row % 7), float(row % 5)] for row in range(140)]
        >>> new = ray.data.from_items([{"id": "usual", "features": rows[0]}, {"id": "odd", "features": [40.0, -30.0]}])
        >>> verdicts = score(new, GEM().fit(rows[:70]).calibrate(rows[70:]))
        >>> sorted((row["id"], row["is_ood"]) for row in verdicts.take_all())
        [('odd', True), ('usual', False)]
    """
    require_fitted(detector)
    opened = open_dataset(dataset)
    present = known_names(opened) or first_block(opened).column_names
    columns = choose_columns(present, features, None, fitted_names(detector))
    kept = [name for name in present if name not in columns.features] if keep is None else _named(keep)
    for name in kept:
        if name not in present:
            raise InputError(f"keep names {name!r}, which is no column; the dataset has {', '.join(present)}")
        if name in VERDICT:
            raise InputError(f"the dataset has a column {name!r} already; leave it out of keep, or rename it before")
    read = list(dict.fromkeys([*columns.names, *kept]))
    return opened.select_columns(read).map_batches(
        _Judge(ray.put(detector), columns, tuple(kept)), batch_format="pyarrow", batch_size=None
    )


def _named(keep: str | Iterable[str]) -> list[str]:
    names = [keep] if isinstance(keep, str) else list(keep)
    if len(set(names)) < len(names):
        raise InputError(f"keep names a column twice: {', '.join(names)}; name each once")
    return names


@dataclass(frozen=True)
class _Judge:
    """What a task makes of a block: its rows without their features, with the verdicts on them."""

    detector: Any
    columns: Columns
    keep: tuple[str, ...]

    def __call__(self, block: pa.Table) -> pa.Table:
        if block.num_rows == 0:
            return self._beside(block, no_verdicts(fetched(self.detector)))
        with without_names_warning():
            verdicts = persist(lambda: self.columns.located(block, self._verdicts), self.columns.place(block))
        return self._beside(block, verdicts.columns())

    def _beside(self, block: pa.Table, columns: Mapping[str, NDArray[Any]]) -> pa.Table:
        judged = block.select(list(self.keep))
        for name, values in columns.items():
            judged = judged.append_column(name, as_arrow(values))
        return judged

    def _verdicts(self, block: pa.Table) -> Verdicts:
        detector: Detector = fetched(self.detector)
        return Verdicts.joined([detector.verdicts(X) for X, _ in self.columns.batches(block)])
