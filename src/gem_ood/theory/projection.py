"""What a score sees of a row: its projection y on a few directions, and the squared length R of the rest (B3).

Whitened, a score of Gaussian classes is a function of y, on the span of the class means and the out-of-distribution
mean, and of R. In-distribution R is χ² and independent of y. Out-of-distribution it is so too where S = Σ; elsewhere
R given y is a sum of scaled χ²'s, which the gamma law with its first three moments, shifted, stands for. The widest
directions, which decide how good a stand-in it is, are counted among those of y then.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import eigh, qr, svd
from scipy.special import gammainc

from gem_ood.theory.whitened import Spread, Whitened

__all__ = ["Frame", "Rest", "class_frame", "gamma_cdf", "wide_frame"]

#: From projections, n × m, to the first three cumulants of R given each, 3 × n.
Cumulants = Callable[[NDArray[np.float64]], NDArray[np.float64]]

#: A direction with less than this share of the widest variance is rounding, not a direction.
SMALLEST_RELATIVE_VARIANCE = 1e-14


@dataclass(frozen=True, eq=False)
class Frame:
    """The classes and the out-of-distribution mean on some directions, seen from the middle of the classes.

    Squares of a long way from the out-of-distribution mean would swallow the distances among the classes.

    Attributes:
        basis: The directions, orthonormal, d × m.
        means: Coordinates of the class means, k × m.
        ood_mean: Those of the out-of-distribution mean.
        n_rest: Dimensions of the rest.
    """

    basis: NDArray[np.float64]
    means: NDArray[np.float64]
    ood_mean: NDArray[np.float64]
    n_rest: int

    @classmethod
    def on(cls, problem: Whitened, basis: NDArray[np.float64]) -> "Frame":
        """Return the problem on these directions."""
        middle = problem.offsets.mean(axis=0)
        return cls(basis, (problem.offsets - middle) @ basis, -middle @ basis, problem.dimension - basis.shape[1])


def class_frame(problem: Whitened) -> Frame:
    """Return the frame of the fewest directions: the span of the offsets."""
    is_everything = len(problem.offsets) >= problem.dimension
    return Frame.on(problem, np.eye(problem.dimension) if is_everything else _span(problem.offsets))


def wide_frame(problem: Whitened, spread: Spread) -> Frame:
    """Return the frame of the span of the offsets and the widest directions of the out-of-distribution rows."""
    basis = class_frame(problem).basis
    if basis.shape[1] + spread.widest.shape[1] >= problem.dimension:
        return Frame.on(problem, np.eye(problem.dimension))
    return Frame.on(problem, qr(np.column_stack([basis, spread.widest]), mode="economic")[0])


def _span(offsets: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return an orthonormal basis, d × m, of the span of fewer than d offsets.

    The differences among the classes come first and their common offset after: where the latter is long, it would
    drown them.
    """
    common = offsets.mean(axis=0)
    directions, lengths, _ = svd((offsets - common).T, full_matrices=False)
    rounding = max(offsets.shape) * np.finfo(np.float64).eps
    basis = directions[:, lengths > rounding * lengths[0]]
    for _ in range(2):  # once more for what rounding left
        common = common - basis @ (basis.T @ common)
    length = float(np.linalg.norm(common))
    if length > rounding * float(np.abs(offsets).max()):
        basis = np.column_stack([basis, common / length])
    # Any rotation spans the same. That which puts the first offset on the first axis, the second in the plane of the
    # first two, and so on, is the same on every machine, and suits Sobol points, whose first coordinates are the best.
    rotation, triangle = qr(basis.T @ offsets.T, mode="economic")
    signs = np.where(np.diag(triangle) < 0.0, -1.0, 1.0)
    return np.asarray(basis @ (rotation * signs))


@dataclass(frozen=True, eq=False)
class Rest:
    """The law of out-of-distribution rows N(0, T) on a frame: of y, and of R given y.

    Attributes:
        colouring: Turns standard normal rows into y.
        cumulants: Of R given each y.
    """

    colouring: NDArray[np.float64]
    cumulants: Cumulants

    @classmethod
    def of(cls, spread: Spread, basis: NDArray[np.float64]) -> "Rest":
        """Return the law of y = basisᵀ x for x ~ N(0, T), and of what is left of x.

        The rest of x given y is N(C y, A), so the cumulants of R are tr A + ‖Cy‖², 2 tr A² + 4 (Cy)ᵀA(Cy) and
        8 tr A³ + 24 (Cy)ᵀA²(Cy).
        """
        mixed = spread.covariance @ basis
        seen = basis.T @ mixed
        values, vectors = eigh(seen) if len(seen) else (np.zeros(0), np.zeros((0, 0)))
        kept = values > SMALLEST_RELATIVE_VARIANCE * max(values.max(initial=0.0), 0.0)
        colouring = np.sqrt(np.where(kept, values, 0.0))[:, np.newaxis] * vectors.T
        if basis.shape[1] == len(basis):
            return cls(colouring, lambda y: np.zeros((3, len(y))))
        inverse = (vectors[:, kept] / values[kept]) @ vectors[:, kept].T
        to_rest = mixed @ inverse - basis @ (seen @ inverse)
        without = spread.covariance - basis @ mixed.T
        without -= (without @ basis) @ basis.T
        rest = without - to_rest @ seen @ to_rest.T
        squared = rest @ rest
        traces = float(np.trace(rest)), float(np.trace(squared)), float(np.vdot(squared, rest))
        forms = to_rest.T @ to_rest, to_rest.T @ rest @ to_rest, to_rest.T @ squared @ to_rest

        def cumulants(y: NDArray[np.float64]) -> NDArray[np.float64]:
            first, second, third = (np.vecdot(y @ form, y) for form in forms)
            return np.stack([traces[0] + first, 2.0 * traces[1] + 4.0 * second, 8.0 * traces[2] + 24.0 * third])

        return cls(colouring, cumulants)


def gamma_cdf(values: NDArray[np.float64], cumulants: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return P(R ≤ value) of the shifted gamma law with these cumulants; a point mass where there is no variance.

    >>> from scipy.stats import chi2
    >>> gamma_cdf(np.array([5.0]), np.array([[3.0], [6.0], [24.0]])) - chi2.cdf(5.0, 3)
    array([0.])
    """
    mean, variance, third = cumulants
    is_point = (variance <= 1e-24 * np.maximum(mean, 1.0) ** 2) | (third <= 0.0)
    variance, third = np.where(is_point, 2.0, variance), np.where(is_point, 8.0, third)
    shape, scale = 4.0 * variance * (variance / third) ** 2, 0.5 * third / variance
    above = np.maximum(values - (mean - shape * scale), 0.0)
    return np.asarray(np.where(is_point, values >= mean, gammainc(shape, above / scale)), dtype=np.float64)
