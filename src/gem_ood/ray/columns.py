"""Which columns of a dataset are its features and labels, and the rows of a block as arrays."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from gem_ood.detectors.columns import refuse_other_order
from gem_ood.errors import InputError
from gem_ood.files.arrow_rows import TableColumns, as_block, is_list, is_number, plain_type, stored
from gem_ood.ray.failures import placed

__all__ = ["PATH", "Columns", "choose_columns"]

#: The column in which Ray's readers put the file that a row came from, if they are asked to.
PATH = "path"

Made = TypeVar("Made")


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

    def batches(self, block: pa.Table) -> list[tuple[NDArray[Any], NDArray[Any] | None]]:
        """Return the features and labels of a block, without copying; an error names the file, if known, and row."""
        path, found, first_row = Path(self.place(block)), [], 0
        for read in block.to_batches():
            if read.num_rows:
                batch = _plain(read, self.features, path)
                first = batch.column(self.features[0])
                has_lists = len(self.features) == 1 and is_list(first.type)
                width = (pc.list_value_length(stored(first))[0].as_py() or 0) if has_lists else len(self.features)
                rows = as_block(batch, TableColumns(self.features, self.labels, has_lists, width), path, first_row)
                found.append((rows.features, rows.labels))
                first_row += batch.num_rows
        return found

    def place(self, block: pa.Table) -> str:
        """Return where the rows of a block lie, as far as is known."""
        paths = pc.unique(block.column(self.path)).to_pylist() if self._tells_files(block) else []
        which = f"a block of {paths[0]}" if len(paths) == 1 else "a block of the dataset"
        return f"{which} (rows counted from its start)"

    def located(self, block: pa.Table, work: Callable[[pa.Table], Made]) -> Made:
        """Return what work makes of a block; an error names the file whose rows are to blame, if that is known."""
        try:
            return work(block)
        except InputError as error:
            for rows in self._by_file(block):
                with placed(self.place(rows)):
                    work(rows)
            with placed(self.place(block)):
                raise error

    def _tells_files(self, block: pa.Table) -> bool:
        return self.path is not None and pa.types.is_string(block.schema.field(self.path).type)

    def _by_file(self, block: pa.Table) -> Iterator[pa.Table]:
        """Yield the rows of each file, where it is known."""
        if self._tells_files(block):
            paths = block.column(self.path)
            for path in pc.unique(paths):
                yield block.filter(pc.equal(paths, path))


def _plain(batch: pa.RecordBatch, names: Sequence[str], place: Path) -> pa.RecordBatch:
    """Return a batch whose features are numbers or lists of numbers; tensors of one dimension are such lists."""
    for name in names:
        index = batch.schema.get_field_index(name)
        column = batch.column(index)
        n_dimensions = getattr(column.type, "ndim", None) or len(getattr(column.type, "shape", (1,)))
        if n_dimensions != 1:
            raise InputError(
                f"{place}: column {name!r} holds tensors of {n_dimensions} dimensions; features are one row of numbers "
                f"each: flatten them, or extract features of pictures first"
            )
        if isinstance(column.type, pa.BaseExtensionType) and pa.types.is_struct(plain_type(column.type)):
            batch = batch.set_column(index, name, pc.struct_field(stored(column), "data"))  # tensors of many lengths
        kind = plain_type(batch.column(index).type)
        numbers = kind.value_type if len(names) == 1 and is_list(kind) else kind
        if not is_number(numbers) and not pa.types.is_boolean(numbers):
            raise InputError(
                f"{place}: column {name!r} holds {kind}, not numbers or lists of numbers; encode it as numbers, or "
                f"name other features"
            )
    return batch


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
    named = isinstance(features, Sequence) and all(isinstance(name, str) for name in features)
    if not named or not isinstance(labels, str | None):
        raise InputError(f"features is {features!r} and labels is {labels!r}; pass the names of columns")
    wanted = (features,) if isinstance(features, str) else tuple(features)
    if fitted is not None and len(wanted) == 1 and wanted[0] not in present and set(fitted) <= set(present):
        wanted = tuple(fitted)
    refuse_other_order(wanted, fitted)
    for name, what in [*((name, "features") for name in wanted), (labels, "labels")]:
        if name is not None and name not in present:
            shown = ", ".join(map(repr, present)) or "none"
            without = ", or labels=None for no labels" if what == "labels" else ""
            raise InputError(f"the dataset has no column {name!r}; it has {shown}: name the {what}{without}")
    if not wanted or len(set(wanted)) < len(wanted) or labels in wanted:
        raise InputError(f"features are {wanted!r} and labels {labels!r}; name at least one column, and each once")
    return Columns(wanted, labels, PATH if PATH in present and PATH not in (*wanted, labels) else None)
