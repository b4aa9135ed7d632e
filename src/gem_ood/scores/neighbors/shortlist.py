"""Short lists: the rows of a bank that may be among the k nearest of each query, by their keys."""

import numpy as np
from numpy.typing import NDArray

from gem_ood.features import chunks
from gem_ood.scores.neighbors.keys import Keys
from gem_ood.scores.neighbors.pairs import Listed, starts

__all__ = ["ROWS_PER_TILE", "Shortlist", "listed_rows"]

#: Keys of this many rows of the bank are computed at once.
ROWS_PER_TILE = 16384

#: The largest block of keys of which only the maximum is looked at first.
LARGEST_BLOCK = 32

#: A short list longer than this (nearly all rows tie) is drawn up again for half of the queries at a time.
LONGEST_LIST = 1 << 21

#: A query is given up where it lists more than this share of the bank, or this many rows, beyond twice its k nearest:
#: a pair on the list costs about as much as fifty pairs of a comparison with the whole bank.
LISTED_SHARE = 1.0 / 64.0
MOST_LISTED = 4096
FEWEST_LISTED = 256

#: Likewise where it would look into more than this share of the blocks, or this many, beyond twice k.
BLOCKS_SHARE = 0.25
FEWEST_BLOCKS = 64


class Shortlist:
    """The rows of the bank that may be among the k nearest of each query, as tiles of keys come in.

    With `gives_up`, queries that list too many rows are given up.
    """

    def __init__(self, keys: Keys, n_queries: int, k: int, *, gives_up: bool = True) -> None:
        self.k, self.margin, self.gives_up = k, np.float32(keys.margin), gives_up
        self.longest = 2 * k + FEWEST_LISTED + min(LISTED_SHARE * len(keys.columns), MOST_LISTED)
        self.lengths = np.zeros(n_queries, dtype=np.intp)
        #: Queries that are given up, for they listed too many rows.
        self.is_long = np.zeros(n_queries, dtype=np.bool_)
        #: k keys of rows seen, the least of them first: the k-th largest key of all is at least that.
        self.best = np.full((n_queries, k), -np.inf, dtype=np.float32)
        self._found: list[Listed] = []

    def add(self, keys: NDArray[np.float32], first_place: int, queries: NDArray[np.intp]) -> None:
        """Take these queries' keys of consecutive rows of the bank.

        The keys are split into interleaved blocks. The k-th largest of the blocks' maxima is at most the k-th largest
        key, so only blocks whose maximum reaches it are looked into.
        """
        width = keys.shape[1]
        size = max(1, min(LARGEST_BLOCK, width // (4 * self.k)))
        n_blocks = width // size
        if n_blocks * size < width:
            self.add(keys[:, n_blocks * size :], first_place + n_blocks * size, queries)
        blocks = keys[:, : n_blocks * size].reshape(len(keys), size, n_blocks)
        maxima = blocks.max(axis=1) if size > 1 else blocks[:, 0]
        floor = self._raise_floor(maxima, queries) - self.margin
        reaches = maxima >= floor[:, np.newaxis]
        if self.gives_up:
            self._give_up(reaches, queries)
        row, block = np.nonzero(reaches)
        picked = blocks[row, :, block]
        entry, member = np.nonzero(picked >= floor[row, np.newaxis])
        query = queries[row[entry]]
        place = member * n_blocks + block[entry] + first_place
        self._found.append(Listed(query, place, picked[entry, member]))
        self.lengths += np.bincount(query, minlength=len(self.lengths))
        if self.gives_up:
            self.is_long |= self.lengths > self.longest

    def _give_up(self, reaches: NDArray[np.bool_], queries: NDArray[np.intp]) -> None:
        """Clear what queries reach that are too long already or would have to look into too many blocks."""
        most = 2 * self.k + max(FEWEST_BLOCKS, BLOCKS_SHARE * reaches.shape[1])
        if np.count_nonzero(reaches) > most:
            self.is_long[queries] |= np.count_nonzero(reaches, axis=1) > most
        if self.is_long.any():
            reaches &= ~self.is_long[queries, np.newaxis]

    def _raise_floor(self, maxima: NDArray[np.float32], queries: NDArray[np.intp]) -> NDArray[np.float32]:
        joined = np.concatenate([self.best[queries], maxima], axis=1)
        joined.partition(joined.shape[1] - self.k, axis=1)
        best = joined[:, -self.k :]
        self.best[queries] = best
        floor: NDArray[np.float32] = best[:, 0]
        return floor

    @property
    def is_too_long(self) -> bool:
        """Whether to draw it up again for half of the queries at a time."""
        return len(self.lengths) > 1 and int(self.lengths.sum()) > LONGEST_LIST

    def listed(self) -> tuple[Listed, NDArray[np.intp]]:
        """Return the pairs that can still be among the k nearest, and the queries they are of; others are too long.

        Queries are numbered again without those that are given up.
        """
        query, place, key = (np.concatenate(parts) for parts in zip(*self._found, strict=True))
        floor = self.best[:, 0] - self.margin
        floor[self.is_long] = np.inf
        pairs = Listed(query, place, key).at(key >= floor[query])
        pairs = pairs.at(np.lexsort((-pairs.key, pairs.query)))
        pairs = pairs._replace(query=(np.cumsum(~self.is_long) - 1)[pairs.query])
        short = np.flatnonzero(~self.is_long)
        kth: NDArray[np.float32] = pairs.key[starts(pairs.query, len(short)) + self.k - 1]
        return pairs.at(pairs.key >= kth[pairs.query] - self.margin), short


def listed_rows(keys: Keys, rows: NDArray[np.float64], k: int) -> Shortlist | None:
    """Return the short list of these queries against the whole bank, or None where it would be too long."""
    scaled, _ = keys.scaled_queries(rows)
    n_rows, queries = len(keys.columns), np.arange(len(rows))
    shortlist = Shortlist(keys, len(rows), k)
    buffer = np.empty((len(rows), min(n_rows, ROWS_PER_TILE)), dtype=np.float32)
    for tile in chunks(n_rows, ROWS_PER_TILE):
        products = buffer[:, : tile.stop - tile.start]
        np.matmul(scaled, keys.columns[tile].T, out=products)
        shortlist.add(products, tile.start, queries)
        if shortlist.is_long.all():
            return shortlist
        if shortlist.is_too_long:
            return None
    return shortlist
