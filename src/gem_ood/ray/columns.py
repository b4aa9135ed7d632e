"""Which columns of a dataset are its features and labels, and the rows of a block as arrays."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from gem_ood.errors import InputError
from gem_ood.files import tables

__all__ = ["PATH", "Columns", "choose_columns"]

#: The column in which Ray's readers put the file that a row came from, if they are asked to.
PATH = "path"


@dataclass(frozen=True)
class Columns:
    """The columns that are read of a dataset.

    Attributes:
        features: One column of lists or tensors, or the columns of numbers that make up a row.
        labels: The column of labels, if they are read.
        path: The column that says from which file a row is, if there is one.
    """

    features: tuple[str, ...]
    labels: str | None = None
    path: str | None = None

    @property
    def names(self) -> list[str]:
        """All of them."""
        return [*self.features, *(name for name in (self.labels, self.path) if name is not None)]

    def rows(self, block: pa.Table) -> tuple[NDArray[Any], NDArray[Any] | None]:
        """Return the features and labels of a block; an error names the file, if it is known, and the row."""
        (batch,) = block.combine_chunks().to_batches()
        place = f"{self.place(block)}: row"
        labels = None
        if self.labels is not None:
            labels = tables._labels(batch.column(self.labels), self.labels, 0, place)
        first = batch.column(self.features[0])
        if len(self.features) == 1 and tables._is_list(first.type):
            length = int(pc.list_value_length(tables._storage(first))[0].as_py() or 0)
            return tables._lists(first, self.features[0], length, 0, place), labels
        return tables._columns(batch, self.features, 0, place), labels

    def place(self, block: pa.Table) -> str:
        """Return where the rows of a block lie, as far as is known."""
        return "a block of the dataset" if self.path is None else str(block.column(self.path)[0].as_py())


def choose_columns(
    present: Sequence[str], features: str | Sequence[str], labels: str | None, fitted: Sequence[str] | None = None
) -> Columns:
    """Return the columns asked for, each of which must be there.

    Args:
        present: The columns of the dataset.
        features: One column, or several.
        labels: The column of labels, or None for none.
        fitted: The columns that a detector was fitted on: where the only one asked for is not there, but these are,
            they are taken.
    """
    wanted = (features,) if isinstance(features, str) else tuple(features)
    if fitted is not None and len(wanted) == 1 and wanted[0] not in present and set(fitted) <= set(present):
        wanted = tuple(fitted)
    for name, what in [*((name, "features") for name in wanted), (labels, "labels")]:
        if name is not None and name not in present:
            shown = ", ".join(map(repr, present)) or "none"
            without = ", or labels=None for no labels" if what == "labels" else ""
            raise InputError(f"the dataset has no column {name!r}; it has {shown}: name the {what}{without}")
    if not wanted or len(set(wanted)) < len(wanted) or labels in wanted:
        raise InputError(f"features are {wanted!r} and labels {labels!r}; name at least one column, and each once")
    return Columns(wanted, labels, PATH if PATH in present and PATH not in (*wanted, labels) else None)
