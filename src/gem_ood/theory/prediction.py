"""The false positive rate before any row is drawn (B3).

Given what a score sees of a row on a few directions, the probability of being kept is a cdf of the rest's squared
length (see `gem_ood.theory.projection`). So only those few are integrated, by randomised quasi-Monte Carlo.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import brentq
from scipy.special import chdtr, chdtri, expit, ndtri
from scipy.stats import qmc

from gem_ood.errors import InputError
from gem_ood.features import chunks, rows_per_chunk
from gem_ood.gaussians import TiedGaussians
from gem_ood.scores import log_sum_exp
from gem_ood.theory.projection import Frame, Rest, class_frame, gamma_cdf, wide_frame
from gem_ood.theory.whitened import Whitened, whiten
from gem_ood.thresholds import as_probability

__all__ = ["Prediction", "RandomState", "predict_fpr"]

RandomState = int | np.random.Generator

#: The scores and by how much they fall as R grows; MSP and the linear energy do not see R.
FALL = {"gem": 0.5, "mahalanobis": 1.0, "msp": 0.0, "linear-energy": 0.0}

#: Independent scramblings of the point set; the scatter among them gives the standard error.
N_REPLICATES = 8

#: Points of one scrambling, powers of two as Sobol sequences want: fewer where y and the classes are very many, and
#: more where there is no rest to smooth the verdicts and they cost little.
POINTS, FEWER_POINTS, MORE_POINTS = 1 << 12, 1 << 10, 1 << 15
LARGEST_PRODUCT, SMALL_PRODUCT = 1 << 22, 1 << 12

#: Rows on the way to the classes are drawn at so many standard deviations from each other, at most this many times.
STEP = 3.0
LARGEST_NUMBER_OF_STEPS = 8

#: The cdf of R is tabulated at this many points to solve for thresholds; linear between them, it errs by about 1e-7.
TABLE_SIZE = 4096


@dataclass(frozen=True)
class Prediction:
    """A predicted false positive rate.

    Attributes:
        fpr: The share of out-of-distribution rows at or above the threshold.
        standard_error: Of `fpr`, from independent scramblings of the points. Where S is not Σ, rates under about 1e-4
            are not resolved, and in more than some 64 dimensions it leaves out what the gamma law costs.
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
    random_state: RandomState = 0,
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
        tpr: The share of in-distribution rows to keep. Beyond about 0.999 it is not resolved for scores that do not
            see R, nor for any where there is no rest.
        random_state: Seed of the scramblings, or a generator.

    One class has a closed form, the cdf of a non-central χ² at the quantile of a central one:

    >>> from scipy.stats import chi2, ncx2
    >>> one = TiedGaussians.from_parameters([[3.0, 0.0, 0.0]], np.eye(3))
    >>> round(predict_fpr(one, [0.0, 0.0, 0.0])["gem"].fpr, 3), round(float(ncx2.cdf(chi2.ppf(0.95, 3), 3, 9.0)), 3)
    (0.289, 0.289)
    """
    share = float(as_probability(tpr, name="tpr"))
    predictor = Predictor(whiten(gaussians, ood_mean, ood_covariance=ood_covariance, weights=weights), random_state)
    return {name: predictor.predict(name, share) for name in FALL}


#: Scores of projections by name, without the share of R.
_Scores = dict[str, NDArray[np.float64]]


@dataclass(frozen=True, eq=False)
class _Outside:
    """Scores of projections that stand for out-of-distribution ones, each with its weight, 1 on average.

    Attributes:
        scores: Without the share of R, by name.
        weights: One per row.
        cumulants: Of R given each, 3 × n.
    """

    scores: _Scores
    weights: NDArray[np.float64]
    cumulants: NDArray[np.float64]


class Predictor:
    """Points drawn once, to answer for any score, true positive rate and threshold."""

    def __init__(self, problem: Whitened, random_state: RandomState) -> None:
        self._problem, self._frame = problem, class_frame(problem)
        spread = problem.spread
        self._ood_frame = self._frame if spread is None else wide_frame(problem, spread)
        self._rest = None if spread is None else Rest.of(spread, self._ood_frame.basis)
        # One seed for both sides: on the same points, errors of a threshold and of the rate beyond it partly cancel.
        drawn = [(self._draw_inside(seed), self._draw_outside(seed)) for seed in _seeds(random_state)]
        self._inside, self._outside = [pair[0] for pair in drawn], [pair[1] for pair in drawn]

    def predict(self, name: str, tpr: float) -> Prediction:
        """Return the rate of this score, with its error."""
        every = np.concatenate([scores[name] for scores in self._inside])
        threshold = self._threshold(name, every, tpr)
        own = [
            self._rate(name, outside, self._threshold(name, inside[name], tpr))
            for inside, outside in zip(self._inside, self._outside, strict=True)
        ]
        return Prediction(
            fpr=self.rate_at(name, threshold),
            standard_error=float(np.std(own, ddof=1) / np.sqrt(N_REPLICATES)),
            threshold=float(expit(threshold)) if name == "msp" else threshold,
            tpr=tpr,
        )

    def rate_at(self, name: str, threshold: float) -> float:
        """Return the share of out-of-distribution rows at or above a threshold; that of MSP is in log-odds."""
        return float(np.mean([self._rate(name, one, threshold) for one in self._outside]))

    def _threshold(self, name: str, scores: NDArray[np.float64], tpr: float) -> float:
        fall, n_rest = FALL[name], self._frame.n_rest
        if fall == 0.0 or n_rest == 0:
            return float(np.quantile(scores, 1.0 - tpr, method="inverted_cdf"))
        return fall * _smooth_threshold(scores / fall, n_rest, tpr)

    def _rate(self, name: str, sample: _Outside, threshold: float) -> float:
        scores, fall = sample.scores[name], FALL[name]
        kept: NDArray[Any] = scores >= threshold
        if fall > 0.0 and self._ood_frame.n_rest > 0:
            kept = gamma_cdf((scores - threshold) / fall, sample.cumulants)
        # Divided by their own sum, as weights that are 1 on average only nearly are so on the points at hand.
        return float(np.vdot(kept, sample.weights) / sample.weights.sum())

    def _draw_inside(self, seed: np.random.SeedSequence) -> _Scores:
        k, m = self._frame.means.shape
        scores = self._room(self._frame)
        for rows, uniform in _sobol(m + 2, len(scores["gem"]), 4 * k, seed):
            classes = _classes(uniform[:, 0], self._problem.priors)
            self._score(self._frame, self._frame.means[classes] + ndtri(uniform[:, 2:]), scores, rows)
        return scores

    def _draw_outside(self, seed: np.random.SeedSequence) -> _Outside:
        frame, problem, rest = self._ood_frame, self._problem, self._rest
        k, m = frame.means.shape
        scores = self._room(frame)
        weights = np.ones(len(scores["gem"]))
        cumulants = np.empty((3, len(weights)))
        offsets = frame.means - frame.ood_mean
        for rows, uniform in _sobol(m + 2, len(weights), 4 * k, seed):
            normal = ndtri(uniform[:, 2:])
            if rest is None:
                y, weights[rows] = _towards_the_classes(normal, uniform[:, :2], offsets, problem.priors)
                cumulants[:, rows] = np.array([[1.0], [2.0], [8.0]]) * frame.n_rest
            else:
                y = normal @ rest.colouring
                cumulants[:, rows] = rest.cumulants(y)
            self._score(frame, frame.ood_mean + y, scores, rows)
        return _Outside(scores, weights, cumulants)

    def _room(self, frame: Frame) -> _Scores:
        product = frame.means.size
        n_points = POINTS if product <= LARGEST_PRODUCT else FEWER_POINTS
        if frame.n_rest == 0 and product <= SMALL_PRODUCT:
            n_points = MORE_POINTS
        return {name: np.empty(n_points) for name in FALL}

    def _score(self, frame: Frame, rows: NDArray[np.float64], scores: _Scores, place: slice) -> None:
        half_norms, from_ood = 0.5 * np.vecdot(rows, rows), rows - frame.ood_mean
        logits = rows @ frame.means.T - 0.5 * np.vecdot(frame.means, frame.means)
        with np.errstate(divide="ignore"):
            joint = logits + np.log(self._problem.priors)
        scores["gem"][place] = log_sum_exp(logits + self._problem.log_weights) - half_norms
        scores["mahalanobis"][place] = 2.0 * (logits.max(axis=1) - half_norms)
        scores["linear-energy"][place] = log_sum_exp(joint) - half_norms + 0.5 * np.vecdot(from_ood, from_ood)
        scores["msp"][place] = _log_odds(joint)


def _seeds(random_state: RandomState) -> list[np.random.SeedSequence]:
    try:
        seeds: Any = np.random.default_rng(random_state).bit_generator.seed_seq
        return list(seeds.spawn(N_REPLICATES))
    except (TypeError, ValueError) as error:
        raise InputError(
            f"random_state is {random_state!r}; pass a whole number of at least 0, or a NumPy Generator"
        ) from error


def _sobol(
    dimension: int, n_points: int, n_more: int, seed: np.random.SeedSequence
) -> Iterator[tuple[slice, NDArray[np.float64]]]:
    """Yield slices of the points and the points, some at a time; n_more is what each needs beside itself."""
    engine = qmc.Sobol(dimension, scramble=True, rng=np.random.default_rng(seed))
    size = 1 << int(np.log2(min(rows_per_chunk(3 * dimension + n_more), n_points)))  # Sobol wants powers of two
    for rows in chunks(n_points, size):
        # scrambling can round to 0 or 1, whose normal quantile is infinite
        yield rows, np.clip(engine.random(rows.stop - rows.start), 1e-16, 1.0 - 1e-16)


def _towards_the_classes(
    normal: NDArray[np.float64],
    uniform: NDArray[np.float64],
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
    classes = _classes(uniform[:, 0], priors)
    places = np.minimum((n_steps * np.maximum(2.0 * uniform[:, 1] - 1.0, 0.0)).astype(np.intp), n_steps - 1)
    shares = np.where(uniform[:, 1] < 0.5, 0.0, steps[places])
    rows = normal + shares[:, np.newaxis] * offsets[classes]
    products, half_squares = rows @ offsets.T, 0.5 * np.vecdot(offsets, offsets)
    with np.errstate(divide="ignore"):
        log_priors = np.log(priors)
    log_ratios = [log_sum_exp(step * products - step**2 * half_squares + log_priors) for step in steps]
    log_mean = np.logaddexp.reduce(log_ratios, axis=0) - np.log(n_steps)
    return rows, 2.0 * expit(-log_mean)


def _classes(uniform: NDArray[np.float64], priors: NDArray[np.float64]) -> NDArray[np.intp]:
    return np.minimum(np.searchsorted(np.cumsum(priors), uniform, side="right"), len(priors) - 1)


def _log_odds(joint: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the log-odds of each row's likeliest class, overwriting the joint log-probabilities."""
    rows, likeliest = np.arange(len(joint)), joint.argmax(axis=1)
    largest = joint[rows, likeliest]
    joint[rows, likeliest] = -np.inf
    return np.asarray(largest - log_sum_exp(joint, overwrite=True))


def _smooth_threshold(reach: NDArray[np.float64], n_rest: int, tpr: float) -> float:
    """Return t with mean P(R ≤ reach − t) = tpr, for R ~ χ² with n_rest degrees of freedom."""
    low, high = (float(chdtri(n_rest, upper_tail)) for upper_tail in (1.0 - 1e-12, 1e-12))
    points = np.linspace(low, high, TABLE_SIZE)
    table = chdtr(n_rest, points)

    def excess(threshold: float) -> float:
        return float(np.mean(np.interp(reach - threshold, points, table))) - tpr

    # The first end keeps every row but one in 10¹², the second none but so many.
    return float(brentq(excess, float(reach.min()) - high, float(reach.max()) - low, xtol=1e-9))
