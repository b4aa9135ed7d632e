"""What a format must offer to be read, and the formats that hold whole arrays: one member is the features."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import repeat
from pathlib import Path
from typing import Any, Literal, Protocol

from numpy.typing import NDArray

from gem_ood.errors import FileFormatError, InputError
from gem_ood.features import chunks

__all__ = ["LABEL_NAMES", "ArraySource", "Block", "Member", "Source"]

#: The names under which labels are looked for, in this order.
LABEL_NAMES = ("labels", "label", "y")


@dataclass(frozen=True)
class Block:
    """A run of rows as a file has them, unchecked, and where it is: the file, and the row of it that comes first."""

    features: NDArray[Any]
    labels: NDArray[Any] | None
    path: Path
    first_row: int


class Source(Protocol):
    """The rows of one file or of a set of files, unchecked; every call of `read` starts at the first row."""

    @property
    def n_rows(self) -> int | None: ...  # noqa: D102
    @property
    def n_features(self) -> int: ...  # noqa: D102
    @property
    def has_labels(self) -> bool: ...  # noqa: D102
    @property
    def feature_names(self) -> tuple[str, ...] | None: ...  # noqa: D102
    @property
    def left_out(self) -> tuple[str, ...]: ...  # noqa: D102
    @property
    def is_decoded(self) -> bool:
        """Whether reading takes a processor's time, so that it pays to read ahead in another thread."""
        ...

    def read(self, batch_rows: int) -> Iterator[Block]:
        """Yield about batch_rows rows at a time."""
        ...

    def without_labels(self) -> "Source":
        """Return the same rows with their labels left unread."""
        ...


@dataclass(frozen=True)
class Member(ABC):
    """One array inside a file; `kind` is NumPy's letter for the kind of its values."""

    title: str
    shape: tuple[int, ...]
    kind: str

    @abstractmethod
    def rows(self, start: int, stop: int) -> NDArray[Any]:
        """Return the rows from start up to stop."""

    def blocks(self, batch_rows: int) -> Iterator[NDArray[Any]]:
        """Yield all rows, batch_rows at a time."""
        for part in chunks(self.shape[0], batch_rows):
            yield self.rows(part.start, part.stop)

    def refuse_as_features(self) -> None:
        """Raise unless this is a table of numbers."""
        self._refuse_pickled()
        if len(self.shape) != 2:
            raise InputError(
                f"{self.title} has shape {self.shape} but features have two dimensions (rows, features); "
                f"reshape the array or name another one with features"
            )
        if self.kind not in "fiub":
            raise InputError(
                f"{self.title} does not hold numbers (kind {self.kind!r}); name another array with features"
            )

    def refuse_as_labels(self) -> None:
        """Raise unless this is one value per row."""
        self._refuse_pickled()
        if len(self.shape) != 1 and not (len(self.shape) == 2 and self.shape[1] == 1):
            raise InputError(
                f"{self.title} has shape {self.shape} but labels have one dimension; pass one label per row"
            )

    def _refuse_pickled(self) -> None:
        if self.kind == "O":
            raise FileFormatError(
                f"{self.title} holds pickled Python objects, which are never loaded because they can run code; "
                f"save numbers or strings: array.astype(float) or array.astype(str)"
            )


@dataclass(frozen=True)
class ArraySource:
    """Features, and perhaps labels, that are whole arrays of one file."""

    path: Path
    features: Member
    labels: Member | None
    feature_names: tuple[str, ...] | None = None
    left_out: tuple[str, ...] = ()
    is_decoded: bool = False

    @classmethod
    def choose(
        cls,
        path: Path,
        members: Mapping[str, Member],
        features: str | Sequence[str] | None,
        labels: str | Literal[False] | None,
    ) -> "ArraySource":
        """Return the source of the members that were asked for, or of those with the usual names."""
        label_member = _choose_labels(path, members, labels)
        feature_member = _choose_features(path, members, features)
        feature_member.refuse_as_features()
        if label_member is not None:
            label_member.refuse_as_labels()
            if label_member.shape[0] != feature_member.shape[0]:
                raise InputError(
                    f"{label_member.title} has {label_member.shape[0]} rows but {feature_member.title} has "
                    f"{feature_member.shape[0]}; pass one label per row"
                )
        return cls(path, feature_member, label_member)

    @property
    def n_rows(self) -> int:
        """The number of rows."""
        return self.features.shape[0]

    @property
    def n_features(self) -> int:
        """The numbers in a row."""
        return self.features.shape[1]

    @property
    def has_labels(self) -> bool:
        """Whether there is a label per row."""
        return self.labels is not None

    def without_labels(self) -> "ArraySource":
        """Return the features alone."""
        return replace(self, labels=None)

    def read(self, batch_rows: int) -> Iterator[Block]:
        """Yield features and labels side by side."""
        labels = repeat(None) if self.labels is None else self.labels.blocks(batch_rows)
        first_row = 0
        for features, names in zip(self.features.blocks(batch_rows), labels, strict=self.labels is not None):
            yield Block(features, names, self.path, first_row)
            first_row += len(features)


def _choose_features(path: Path, members: Mapping[str, Member], wanted: str | Sequence[str] | None) -> Member:
    if wanted is not None:
        if isinstance(wanted, str) and wanted in members:
            return members[wanted]
        raise InputError(f"{path} has no array {wanted!r} for the features; it holds {_listed(members)}")
    if "features" in members:
        return members["features"]
    if len(members) == 1:
        return next(iter(members.values()))
    tables = [member for member in members.values() if len(member.shape) == 2 and member.kind in "fiub"]
    if len(tables) != 1:
        raise InputError(
            f"{path} has no array 'features' and {len(tables)} that could be; name one with features: it holds "
            f"{_listed(members)}"
        )
    return tables[0]


def _choose_labels(path: Path, members: Mapping[str, Member], wanted: str | Literal[False] | None) -> Member | None:
    if wanted is False:
        return None
    if wanted is None:
        return next((members[name] for name in LABEL_NAMES if name in members), None)
    if wanted not in members:
        raise InputError(f"{path} has no array {wanted!r} for the labels; it holds {_listed(members)}")
    return members[wanted]


def _listed(members: Mapping[str, Member]) -> str:
    named = [f"{name!r} of shape {member.shape}" for name, member in members.items() if name]
    return ", ".join(named) or ("one array without a name" if members else "no array")
