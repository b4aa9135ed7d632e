"""The false positive rate before any row is drawn (B3).

In whitened coordinates seen from the out-of-distribution mean, a score sees a row only through its projection y on the
span of the class offsets, of some dimension m ≤ k, and the squared length R of the rest, which is χ²_{d−m} and
independent of y. Given y the probability of being kept is a cdf of R, so only y is integrated, by randomised
quasi-Monte Carlo. Where the out-of-distribution covariance S is not Σ, R given y is a sum of scaled χ²'s; the gamma law
with its first three moments, shifted, takes its place, and is exact again where S is a multiple of Σ.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import eigh, qr
from scipy.optimize import brentq
from scipy.special import chdtr, chdtri, expit, gammainc, ndtri
from scipy.stats import qmc

from gem_ood.features import chunks, rows_per_chunk
from gem_ood.gaussians import TiedGaussians
from gem_ood.scores import log_sum_exp
from gem_ood.theory.whitened import Whitened, whiten
from gem_ood.thresholds import as_probability

__all__ = ["Prediction", "predict_fpr"]

#: Independent scramblings of the point set; the scatter among them gives the standard error.
N_REPLICATES = 8

#: Points of one scrambling, a power of two as Sobol sequences want; fewer where y and the classes are very many.
POINTS = 1 << 12
FEWER_POINTS = 1 << 10
LARGEST_PRODUCT = 1 << 22

#: Rows on the way to the classes are drawn at so many standard deviations from each other, at most this many times.
STEP = 3.0
LARGEST_NUMBER_OF_STEPS = 8

#: Offsets shorter than this share of the longest, once others are projected out, span no direction of their own.
SMALLEST_RELATIVE_LENGTH = 1e-7

#: The cdf of R is tabulated at this many points to solve for thresholds; linear between them, it errs by about 1e-7.
TABLE_SIZE = 4096


@dataclass(frozen=True)
class Prediction:
    """A predicted false positive rate.

    Attributes:
        fpr: The share of out-of-distribution rows at or above the threshold.
        standard_error: Of `fpr`, from independent scramblings of the points. Where S is not Σ it leaves out what the
            three moments cost, a few thousandths, and rates under about 1e-4 are not resolved.
        threshold: The score that the asked share of in-distribution rows reaches.
        tpr: That share.
    """

    fpr: float
    standard_error: float
    threshold: float
    tpr: float


def predict_fpr(
    gaussians: TiedGaussians,
    ood_mean: ArrayLike,
    *,
    ood_covariance: ArrayLike | None = None,
    weights: ArrayLike | None = None,
    tpr: float = 0.95,
    random_state: int = 0,
) -> Mapping[str, Prediction]:
    """Return the FPR at this TPR of four scores, by name, if all is Gaussian.

    The names are `"gem"`, `"mahalanobis"`, `"msp"` and `"linear-energy"`. MSP is that of the Bayes posterior, compared
    by its log-odds, as the probability itself rounds to 1. The linear energy is LSE(f' + log π) with its origin at the
    out-of-distribution mean: where S = Σ it is the log-likelihood ratio, which no detector beats (E8).

    Args:
        gaussians: The classes and their priors.
        ood_mean: The mean of the out-of-distribution Gaussian.
        ood_covariance: Its covariance; None is the tied covariance.
        weights: Of the GEM score log Σ w_i exp f_i; None is the paper's, all 1.
        tpr: The share of in-distribution rows to keep.
        random_state: Seed of the scramblings.

    One class has a closed form, the cdf of a non-central χ² at the quantile of a central one:

    >>> from scipy.stats import chi2, ncx2
    >>> one = TiedGaussians.from_parameters([[3.0, 0.0, 0.0]], np.eye(3))
    >>> round(predict_fpr(one, [0.0, 0.0, 0.0])["gem"].fpr, 3), round(float(ncx2.cdf(chi2.ppf(0.95, 3), 3, 9.0)), 3)
    (0.289, 0.289)
    """
    problem = whiten(gaussians, ood_mean, ood_covariance=ood_covariance, weights=weights)
    return predict_whitened(problem, tpr=tpr, random_state=random_state)


def predict_whitened(problem: Whitened, *, tpr: float, random_state: int) -> dict[str, Prediction]:
    """Return the predictions of a whitened problem."""
    share = float(as_probability(tpr, name="tpr"))
    reduced = _reduce(problem)
    replicates: dict[str, list[tuple[float, float]]] = {name: [] for name in _REST}
    for seed in np.random.SeedSequence(random_state).spawn(N_REPLICATES):
        sample = _sample(reduced, problem, np.random.default_rng(seed))
        for name in _REST:
            replicates[name].append(_operate(name, sample, reduced.n_rest, share))
    return {name: _summary(name, pairs, share) for name, pairs in replicates.items()}


#: The scores and by how much they fall as R grows; MSP and the linear energy do not see R.
_REST = {"gem": 0.5, "mahalanobis": 1.0, "msp": 0.0, "linear-energy": 0.0}


def _summary(name: str, pairs: list[tuple[float, float]], tpr: float) -> Prediction:
    thresholds, rates = np.array(pairs).T
    threshold, error = float(thresholds.mean()), float(rates.std(ddof=1) / np.sqrt(len(rates)))
    if name == "msp":
        threshold = float(expit(threshold))
    return Prediction(fpr=float(rates.mean()), standard_error=error, threshold=threshold, tpr=tpr)


#: From projections, n × m, to the first three cumulants of R given each, 3 × n or 3 × 1.
_Cumulants = Callable[[NDArray[np.float64]], NDArray[np.float64]]


@dataclass(frozen=True, eq=False)
class _Reduced:
    """The problem on the span of the offsets, seen from the middle of the classes.

    Attributes:
        means: Coordinates of the class means, k × m.
        ood_mean: Those of the out-of-distribution mean.
        n_rest: Dimensions of the rest.
        colouring: Turns standard normal points into projections of out-of-distribution rows; None leaves them.
        rest: The first three cumulants of R for projections of out-of-distribution rows.
    """

    means: NDArray[np.float64]
    ood_mean: NDArray[np.float64]
    n_rest: int
    colouring: NDArray[np.float64] | None
    rest: _Cumulants


def _reduce(problem: Whitened) -> _Reduced:
    basis = np.eye(problem.dimension) if len(problem.offsets) >= problem.dimension else _span(problem.offsets)
    # Squares of a long way from the out-of-distribution mean would swallow the distances among the classes.
    middle, n_rest = problem.offsets.mean(axis=0), problem.dimension - basis.shape[1]
    means, ood_mean = (problem.offsets - middle) @ basis, -middle @ basis
    if problem.spread is None:
        chi_square = np.array([[1.0], [2.0], [8.0]]) * n_rest
        return _Reduced(means, ood_mean, n_rest, None, lambda _: chi_square)
    return _Reduced(means, ood_mean, n_rest, *_given_projection(problem.spread.covariance, basis))


def _span(offsets: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return an orthonormal basis, d × m, of the span of fewer than d offsets.

    The differences among the classes come first and their common offset after: where the latter is long, it would
    drown them.
    """
    common = offsets.mean(axis=0)
    centred = offsets - common
    values, vectors = eigh(centred @ centred.T)
    kept = values > SMALLEST_RELATIVE_LENGTH**2 * values[-1]
    basis = centred.T @ (vectors[:, kept] / np.sqrt(values[kept]))
    for _ in range(2):  # once more for what rounding left
        common = common - basis @ (basis.T @ common)
    length = float(np.linalg.norm(common))
    if length > SMALLEST_RELATIVE_LENGTH * float(np.abs(offsets).max()):
        basis = np.column_stack([basis, common / length])
    # Any rotation spans the same. That which puts the first offset on the first axis, the second in the plane of the
    # first two, and so on, is the same on every machine, and suits Sobol points, whose first coordinates are the best.
    rotation, triangle = qr(basis.T @ offsets.T, mode="economic")
    signs = np.where(np.diag(triangle) < 0.0, -1.0, 1.0)
    return np.asarray(basis @ (rotation * signs))


def _given_projection(
    covariance: NDArray[np.float64], basis: NDArray[np.float64]
) -> tuple[NDArray[np.float64], _Cumulants]:
    """Return the colouring of y and the cumulants of R given y, for x ~ N(0, T) and y = basisᵀ x.

    The rest of x given y is N(C y, A), so the cumulants of R are tr A + ‖Cy‖², 2 tr A² + 4 (Cy)ᵀA(Cy) and
    8 tr A³ + 24 (Cy)ᵀA²(Cy).
    """
    mixed = covariance @ basis
    seen = basis.T @ mixed
    values, vectors = eigh(seen) if len(seen) else (np.zeros(0), np.zeros((0, 0)))
    kept = values > SMALLEST_RELATIVE_LENGTH**2 * max(values.max(initial=0.0), 0.0)
    colouring = np.sqrt(np.where(kept, values, 0.0))[:, np.newaxis] * vectors.T
    inverse = (vectors[:, kept] / values[kept]) @ vectors[:, kept].T
    to_rest = mixed @ inverse - basis @ (seen @ inverse)
    without = covariance - basis @ mixed.T
    without -= (without @ basis) @ basis.T
    rest = without - to_rest @ seen @ to_rest.T
    squared = rest @ rest
    traces = float(np.trace(rest)), float(np.trace(squared)), float(np.vdot(squared, rest))
    forms = to_rest.T @ to_rest, to_rest.T @ rest @ to_rest, to_rest.T @ squared @ to_rest

    def cumulants(y: NDArray[np.float64]) -> NDArray[np.float64]:
        first, second, third = (np.vecdot(y @ form, y) for form in forms)
        return np.stack([traces[0] + first, 2.0 * traces[1] + 4.0 * second, 8.0 * traces[2] + 24.0 * third])

    return colouring, cumulants


@dataclass(frozen=True, eq=False)
class _Sample:
    """Scores of projections without the share of R, by name of the score.

    Attributes:
        inside: Of in-distribution rows.
        outside: Of rows that stand for out-of-distribution ones, each with its weight.
        weights: These weights, 1 on average.
        cumulants: Of R given each of the rows outside, 3 × n.
    """

    inside: dict[str, NDArray[np.float64]]
    outside: dict[str, NDArray[np.float64]]
    weights: NDArray[np.float64]
    cumulants: NDArray[np.float64]


def _sample(reduced: _Reduced, problem: Whitened, generator: np.random.Generator) -> _Sample:
    """Return the scores of in- and out-of-distribution projections, drawn from one scrambled Sobol sequence."""
    k, m = reduced.means.shape
    n_points = POINTS if k * max(m, 1) <= LARGEST_PRODUCT else FEWER_POINTS
    engine = qmc.Sobol(m + 2, scramble=True, rng=generator)
    size = 1 << int(np.log2(min(rows_per_chunk(3 * (m + 2) + 4 * k), n_points)))  # Sobol wants powers of two
    inside, outside = ({name: np.empty(n_points) for name in _REST} for _ in range(2))
    weights, cumulants = np.ones(n_points), np.empty((3, n_points))
    bounds, offsets = np.cumsum(problem.priors), reduced.means - reduced.ood_mean
    for rows in chunks(n_points, size):
        # scrambling can round to 0 or 1, whose normal quantile is infinite
        uniform = np.clip(engine.random(rows.stop - rows.start), 1e-16, 1.0 - 1e-16)
        classes = np.minimum(np.searchsorted(bounds, uniform[:, 0], side="right"), k - 1)
        normal = ndtri(uniform[:, 2:])
        if reduced.colouring is None:
            y, weights[rows] = _towards_the_classes(normal, uniform[:, 1], classes, offsets, problem.priors)
        else:
            y = normal @ reduced.colouring
        for scores, projections in ((inside, reduced.means[classes] + normal), (outside, reduced.ood_mean + y)):
            for name, values in _projected_scores(projections, reduced, problem).items():
                scores[name][rows] = values
        cumulants[:, rows] = reduced.rest(y)
    return _Sample(inside, outside, weights, cumulants)


def _towards_the_classes(
    normal: NDArray[np.float64],
    uniform: NDArray[np.float64],
    classes: NDArray[np.intp],
    offsets: NDArray[np.float64],
    priors: NDArray[np.float64],
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return rows and the weights by which they stand for N(0, I): half from there, half on the way to the classes.

    Rows that are kept although the classes are far lie on that way, and N(0, I) alone would never show them. The
    weight is the ratio of its density to the one that the rows come from.
    """
    longest = float(np.sqrt(np.vecdot(offsets, offsets).max()))
    n_steps = int(min(1 + longest / STEP, LARGEST_NUMBER_OF_STEPS))
    steps = np.arange(1, n_steps + 1) / n_steps
    places = np.minimum((n_steps * np.maximum(2.0 * uniform - 1.0, 0.0)).astype(np.intp), n_steps - 1)
    shares = np.where(uniform < 0.5, 0.0, steps[places])
    rows = normal + shares[:, np.newaxis] * offsets[classes]
    products, half_squares = rows @ offsets.T, 0.5 * np.vecdot(offsets, offsets)
    with np.errstate(divide="ignore"):
        log_priors = np.log(priors)
    log_ratios = [log_sum_exp(step * products - step**2 * half_squares + log_priors) for step in steps]
    log_mean = np.logaddexp.reduce(log_ratios, axis=0) - np.log(n_steps)
    return rows, 2.0 * expit(-log_mean)


def _projected_scores(
    rows: NDArray[np.float64], reduced: _Reduced, problem: Whitened
) -> dict[str, NDArray[np.float64]]:
    half_norms, from_ood = 0.5 * np.vecdot(rows, rows), rows - reduced.ood_mean
    logits = rows @ reduced.means.T - 0.5 * np.vecdot(reduced.means, reduced.means)
    with np.errstate(divide="ignore"):
        joint = logits + np.log(problem.priors)
    return {
        "gem": log_sum_exp(logits + problem.log_weights) - half_norms,
        "mahalanobis": 2.0 * (logits.max(axis=1) - half_norms),
        "linear-energy": log_sum_exp(joint) - half_norms + 0.5 * np.vecdot(from_ood, from_ood),
        "msp": log_odds(joint),
    }


def log_odds(joint: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the log-odds of each row's likeliest class, overwriting the joint log-probabilities."""
    rows, likeliest = np.arange(len(joint)), joint.argmax(axis=1)
    largest = joint[rows, likeliest]
    joint[rows, likeliest] = -np.inf
    return np.asarray(largest - log_sum_exp(joint, overwrite=True))


def _operate(name: str, sample: _Sample, n_rest: int, tpr: float) -> tuple[float, float]:
    """Return the threshold that keeps this share of the in-distribution, and the share of the others it keeps."""
    known, unknown, fall = sample.inside[name], sample.outside[name], _REST[name]
    kept: NDArray[Any]
    if fall == 0.0 or n_rest == 0:
        threshold = float(np.quantile(known, 1.0 - tpr, method="inverted_cdf"))
        kept = unknown >= threshold
    else:
        threshold = fall * _smooth_threshold(known / fall, n_rest, tpr)
        kept = _gamma_cdf((unknown - threshold) / fall, sample.cumulants)
    # Divided by their own sum, as weights that are 1 on average only nearly are so on the points at hand.
    return threshold, float(np.vdot(kept, sample.weights) / sample.weights.sum())


def _smooth_threshold(reach: NDArray[np.float64], n_rest: int, tpr: float) -> float:
    """Return t with mean P(R ≤ reach − t) = tpr, for R ~ χ² with n_rest degrees of freedom."""
    low, high = (float(chdtri(n_rest, upper_tail)) for upper_tail in (1.0 - 1e-12, 1e-12))
    points = np.linspace(low, high, TABLE_SIZE)
    table = chdtr(n_rest, points)

    def excess(threshold: float) -> float:
        return float(np.mean(np.interp(reach - threshold, points, table))) - tpr

    # The first end keeps every row but one in 10¹², the second none but so many.
    return float(brentq(excess, float(reach.min()) - high, float(reach.max()) - low, xtol=1e-9))


def _gamma_cdf(values: NDArray[np.float64], cumulants: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return P(R ≤ value) of the shifted gamma law with these cumulants; a point mass where there is no variance."""
    mean, variance, third = cumulants
    is_point = variance <= 1e-24 * np.maximum(mean, 1.0) ** 2
    variance, third = np.where(is_point, 2.0, variance), np.where(is_point, 8.0, third)
    shape, scale = 4.0 * variance**3 / third**2, 0.5 * third / variance
    above = np.maximum(values - (mean - shape * scale), 0.0)
    return np.asarray(np.where(is_point, values >= mean, gammainc(shape, above / scale)), dtype=np.float64)
