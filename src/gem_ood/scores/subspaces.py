"""Scores of what a principal subspace leaves of a row: the residual, alone and as a virtual logit.

Higher = more in-distribution.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gem_ood.errors import InputError
from gem_ood.features import as_features, chunks, refuse_non_finite, rows_per_chunk
from gem_ood.scores.logits import energy

__all__ = ["ResidualSpace", "residual", "residual_space", "virtual_logit"]

EPSILON = float(np.finfo(np.float64).eps)

#: Squares of values up to here, some thousand of them, add up within float64.
LARGEST_SQUARED = 1e150


@dataclass(frozen=True, eq=False)
class ResidualSpace:
    """The directions that a principal subspace leaves over, about an origin.

    Attributes:
        origin: The point that the subspace runs through, of m features.
        basis: Orthonormal directions that complete the subspace, m × r.
        holds_all: Whether the rows it was made from lie in the principal subspace, and so have no residual.

    >>> space = residual_space(np.diag([4.0, 1.0]), [1.0, 0.0], origin=[0.0, 0.0], dimension=1)
    >>> space.norms([[9.0, 3.0]])
    array([3.])
    """

    origin: NDArray[np.float64]
    basis: NDArray[np.float64]
    holds_all: bool

    def norms(self, features: ArrayLike) -> NDArray[np.float64]:
        """Return the length of each row's residual; what is no more than rounding of the row's own length is 0."""
        rows = as_features(features)
        lengths = np.empty(len(rows))
        for part in chunks(len(rows), rows_per_chunk(2 * rows.shape[1])):
            refuse_non_finite(rows[part], first_row=part.start)
            lengths[part] = self._norms(rows[part])
        return lengths

    def _norms(self, rows: NDArray[np.float64]) -> NDArray[np.float64]:
        # Halves of any two numbers have a difference within float64.
        largest = max(float(np.abs(rows).max()), float(np.abs(self.origin).max()))
        half = 1.0 if largest <= LARGEST_SQUARED else 0.5
        offsets = rows * half - self.origin * half
        scales = np.ones(len(rows))
        if half < 1.0:
            scales = np.maximum(np.abs(offsets).max(axis=1), 1.0)
            offsets /= scales[:, np.newaxis]
        left = offsets @ self.basis
        lengths = np.sqrt(np.vecdot(left, left))
        rounding = len(self.origin) * EPSILON * np.sqrt(np.vecdot(offsets, offsets))
        with np.errstate(over="ignore"):
            return np.asarray(np.where(lengths > rounding, lengths, 0.0) * scales / half)


def residual_space(covariance: ArrayLike, mean: ArrayLike, *, origin: ArrayLike, dimension: int) -> ResidualSpace:
    """Return what is left over by the principal subspace, about an origin, of rows of this covariance and mean.

    The subspace is spanned by the eigenvectors of E[(x − o)(x − o)ᵀ] = Σ + (μ − o)(μ − o)ᵀ with the largest
    eigenvalues: as many as `dimension`, and no more than the rows span.

    >>> residual_space(np.diag([4.0, 0.0, 0.0]), [0.0, 0.0, 0.0], origin=[0.0, 0.0, 0.0], dimension=2).basis.shape
    (3, 2)
    """
    centre = np.asarray(origin, dtype=np.float64)
    offset = np.asarray(mean, dtype=np.float64) - centre
    with np.errstate(over="ignore"):
        moment = np.asarray(covariance, dtype=np.float64) + np.outer(offset, offset)
    if not np.isfinite(moment).all():
        raise InputError("features lie so far from the origin that squares overflow float64; rescale the features")
    eigenvalues, eigenvectors = np.linalg.eigh(moment)
    rank = int(np.count_nonzero(eigenvalues > len(centre) * EPSILON * eigenvalues[-1]))
    left = len(centre) - min(dimension, rank)
    return ResidualSpace(centre, np.ascontiguousarray(eigenvectors[:, :left]), holds_all=rank <= dimension)


def residual(features: ArrayLike, space: ResidualSpace) -> NDArray[np.float64]:
    """Return minus the length of each row's residual (Wang et al., 2022).

    >>> residual([[9.0, 3.0]], ResidualSpace(np.zeros(2), np.array([[0.0], [1.0]]), holds_all=False))
    array([-3.])
    """
    return -space.norms(features)


def virtual_logit(features: ArrayLike, logits: ArrayLike, space: ResidualSpace, *, alpha: float) -> NDArray[np.float64]:
    """Return log Σ exp(logit) − α·‖residual‖ of each row, which ranks rows as ViM does (Wang et al., 2022).

    The paper's score is the softmax probability of the virtual logit v = α·‖residual‖ beside the logits, e^v / (e^v +
    Σ e^logit) = 1 / (1 + exp(this score)): it falls as this score rises, but rounds to 1 for all that are far.

    >>> space = ResidualSpace(np.zeros(2), np.array([[0.0], [1.0]]), holds_all=False)
    >>> virtual_logit([[9.0, 3.0]], [[5.0, -90.0]], space, alpha=2.0)
    array([-1.])
    """
    scores = energy(logits)
    lengths = space.norms(features)
    if len(lengths) != len(scores):
        raise InputError(
            f"features has {len(lengths)} rows but logits has {len(scores)}; pass one row of each per input"
        )
    with np.errstate(over="ignore"):
        scores -= alpha * lengths
    return scores
