"""Keys: a float32 copy of the bank whose products with a query rank the rows, and a bound on how far off they are."""

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from gem_ood.errors import InputError
from gem_ood.features import chunks, rows_per_chunk
from gem_ood.scores.neighbors.layout import Gather

__all__ = ["Keys"]

#: Half the distance from 1 to the next float32.
FLOAT32_UNIT = 2.0**-24

#: A far query's scale is kept in float32, which shows where squares that nearly cancel are subtracted.
CANCELLATION = 1e-6


@dataclass(frozen=True, eq=False)
class Keys:
    """A float32 copy of the bank, centred and scaled, whose products with a query rank the rows.

    Attributes:
        columns: n × (d + 1): the scaled rows and what is added to their products.
        centre: What is subtracted from rows and queries first, so that an offset common to all costs no precision.
        largest: What they are divided by next: the largest absolute value.
        reach: The greatest length of a scaled row.
    """

    columns: NDArray[np.float32]
    centre: NDArray[np.float64]
    largest: float
    reach: float

    @classmethod
    def of_distances(cls, gather: Gather, n_rows: int, n_features: int) -> Self:
        """Return keys ⟨q, b⟩ − ½‖b‖², which fall as the distance ‖q − b‖ grows."""
        return cls._of(gather, n_rows, n_features, centred=True)

    @classmethod
    def of_products(cls, gather: Gather, n_rows: int, n_features: int) -> Self:
        """Return keys ⟨q, b⟩."""
        return cls._of(gather, n_rows, n_features, centred=False)

    @classmethod
    def _of(cls, gather: Gather, n_rows: int, n_features: int, *, centred: bool) -> Self:
        centre, least, most = np.zeros(n_features), np.full(n_features, np.inf), np.full(n_features, -np.inf)
        for part in chunks(n_rows, rows_per_chunk(n_features)):
            rows = gather(part)
            np.minimum(least, rows.min(axis=0), out=least)
            np.maximum(most, rows.max(axis=0), out=most)
            if centred:
                centre += (rows / n_rows).sum(axis=0)  # divided first: the sum of huge rows would overflow
        with np.errstate(over="ignore"):
            largest = float(max((most - centre).max(), (centre - least).max()))
        if not np.isfinite(largest):
            raise InputError("the rows of the bank lie further apart than float64 can say; scale the features down")
        largest = largest or 1.0
        columns = np.zeros((n_rows, n_features + 1), dtype=np.float32)
        squared_reach = 0.0
        for part in chunks(n_rows, rows_per_chunk(n_features)):
            rows = (gather(part) - centre) / largest
            squares = np.vecdot(rows, rows)
            squared_reach = max(squared_reach, float(squares.max()))
            columns[part, :-1] = rows
            if centred:
                columns[part, -1] = -0.5 * squares
        return cls(columns, centre, largest, float(np.sqrt(squared_reach)))

    @property
    def margin(self) -> float:
        """Twice what float32 can change in a key.

        A sum of s products is off by at most s units of rounding times the sum of their sizes, in whatever order it
        is taken, and rounding its factors adds three; queries are scaled so that sizes sum to at most 1.5·reach².
        """
        return float(2.0 * (self.columns.shape[1] + 4) * FLOAT32_UNIT * 1.5 * self.reach**2 * 1.01)

    def scaled_queries(self, queries: NDArray[np.float64]) -> tuple[NDArray[np.float32], NDArray[np.float64]]:
        """Return queries to multiply with the columns, and each one's size before it was scaled.

        A query far away is brought to the bank's reach, which changes no order.
        """
        with np.errstate(over="ignore"):
            centred = queries - self.centre
        centred[~np.isfinite(centred).all(axis=1)] = 0.0  # beyond float64: infinitely far from every row
        sizes = np.abs(centred).max(axis=1, keepdims=True)
        centred /= np.where(sizes > 0.0, sizes, 1.0)
        lengths = np.sqrt(np.vecdot(centred, centred))[:, np.newaxis]
        scaled = np.empty((len(queries), queries.shape[1] + 1), dtype=np.float32)
        with np.errstate(over="ignore", under="ignore"):
            original = sizes / self.largest
            scale = np.minimum(original, self.reach / np.maximum(lengths, 1.0))
            scaled[:, :-1] = centred * scale
            scaled[:, -1:] = np.divide(scale, original, out=np.ones_like(scale), where=original > scale)
        return scaled, (original * lengths)[:, 0]

    def distance_bound(
        self, scaled: NDArray[np.float32], sizes: NDArray[np.float64], floor: NDArray[np.float32]
    ) -> NDArray[np.float64]:
        """Return a distance that rows with at least this key cannot exceed."""
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            key = (floor.astype(np.float64) - self.margin) / scaled[:, -1]
            squares = sizes**2 * (1.0 + CANCELLATION) - 2.0 * key
            bound = self.largest * np.sqrt(np.maximum(squares, 0.0))
        return np.where(np.isfinite(bound), bound, np.inf)
