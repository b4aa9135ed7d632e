"""`analyze`: everything that the theory says about Gaussian classes and one out-of-distribution Gaussian."""

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gem_ood.gaussians import TiedGaussians
from gem_ood.theory import bounds
from gem_ood.theory.certificate import certify_whitened, log_floor
from gem_ood.theory.expectations import LOG_TWO, scaled_in, scaled_out, scaled_separation
from gem_ood.theory.prediction import Predictor, RandomState
from gem_ood.theory.whitened import Whitened, positive_definite, whiten
from gem_ood.thresholds import as_probability

__all__ = ["Analysis", "analyze", "analyze_gaussians"]


@dataclass(frozen=True, eq=False)
class Analysis:
    """What the theory says; ES is the rescaled score Σ w_i exp f_i and D = E_in ES − E_out ES.

    Attributes:
        n_classes: k.
        dimension: d, the directions that have variance.
        tpr: The true positive rate that the rates below are at.
        is_tied: Whether the out-of-distribution covariance is the classes' own, as in the paper.
        log_expected_in: log E_in ES.
        log_expected_out: log E_out ES (B1).
        separation: D (P21); 0.0 where it underflows, which its sign and logarithm do not.
        separation_sign: +1, -1 or 0; negative where the OOD mean lies in the middle of many classes (E5).
        log_abs_separation: log |D|.
        half_distances: α_i = ½ d_M(μ_i, m).
        bound_expected_out: P22, at least E_out ES.
        bound_expected_out_sharp: P23, at least E_out ES.
        bound_separation_pinsker: P24, at least D.
        bound_separation_pinsker_large: P25, at least D.
        bound_separation_total_variation: B2, at least D and under both.
        predicted_fpr: B3, of GEM.
        predicted_fpr_mahalanobis: B3, of the Mahalanobis score.
        predicted_fpr_optimal: Of the likelihood ratio, the best that any detector can do (E8); None where S ≠ Σ.
        prediction_error: Standard error of `predicted_fpr`.
        certified_threshold: B4; a GEM score at or above it is in.
        certified_fpr: B4, at least the FPR at that threshold, which keeps at least `tpr`.
        log_certified_fpr: Its logarithm.
        fpr_floor: B4, at most the FPR of any detector at this TPR.
        log_fpr_floor: Its logarithm.
        looseness: By name of the field, how many decades each bound is from what it bounds: the certified FPR from
            the predicted one at the certified threshold, the floor from the best possible where S = Σ and from GEM's
            elsewhere. None where D ≤ 0 makes a bound on D trivial, where it is infinite because S is singular, or
            where a rate is 0.
    """

    n_classes: int
    dimension: int
    tpr: float
    is_tied: bool
    log_expected_in: float
    log_expected_out: float
    separation: float
    separation_sign: int
    log_abs_separation: float
    half_distances: NDArray[np.float64]
    bound_expected_out: float
    bound_expected_out_sharp: float
    bound_separation_pinsker: float
    bound_separation_pinsker_large: float
    bound_separation_total_variation: float
    predicted_fpr: float
    predicted_fpr_mahalanobis: float
    predicted_fpr_optimal: float | None
    prediction_error: float
    certified_threshold: float
    certified_fpr: float
    log_certified_fpr: float
    fpr_floor: float
    log_fpr_floor: float
    looseness: Mapping[str, float | None]

    def as_dict(self) -> dict[str, Any]:
        """Return the fields by name."""
        return asdict(self)

    def rows(self) -> list[tuple[str, str, str]]:
        """Return the table that `str` prints: what, its value, and a remark."""
        return _table(self)

    def __str__(self) -> str:
        rows = [("quantity", "value", "remark"), *self.rows()]
        widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
        return "\n".join(f"{name:<{widths[0]}}  {value:>{widths[1]}}  {word}".rstrip() for name, value, word in rows)


def analyze(
    class_means: ArrayLike,
    covariance: ArrayLike,
    ood_mean: ArrayLike,
    *,
    ood_covariance: ArrayLike | None = None,
    priors: ArrayLike | None = None,
    weights: ArrayLike | None = None,
    tpr: float = 0.95,
    random_state: RandomState = 0,
) -> Analysis:
    """Return what the theory says about classes N(μ_i, Σ) against out-of-distribution N(m, S).

    Args:
        class_means: μ_i, k × d.
        covariance: Σ, positive definite.
        ood_mean: m.
        ood_covariance: S; None is Σ, the paper's case.
        priors: How frequent the classes are, summing to one; None is equally.
        weights: Of the score log Σ w_i exp f_i; None is the paper's GEM, all 1. Pass the priors for weighted GEM (P8).
        tpr: The true positive rate that rates are at.
        random_state: Seed of the prediction's points, or a generator.

    >>> result = analyze(10.0 * np.eye(10, 512), np.eye(512), np.zeros(512))
    >>> round(result.log_abs_separation, 2), round(result.predicted_fpr, 2)
    (-177.45, 0.33)
    """
    gaussians = positive_definite(class_means, covariance, priors=priors)
    return analyze_gaussians(
        gaussians, ood_mean, ood_covariance=ood_covariance, weights=weights, tpr=tpr, random_state=random_state
    )


def analyze_gaussians(
    gaussians: TiedGaussians,
    ood_mean: ArrayLike,
    *,
    ood_covariance: ArrayLike | None = None,
    weights: ArrayLike | None = None,
    tpr: float = 0.95,
    random_state: RandomState = 0,
) -> Analysis:
    """Return `analyze` of fitted Gaussians; directions without variance are left out.

    >>> gaussians = TiedGaussians.from_parameters([[0.0], [6.0]], [[1.0]])
    >>> analyze_gaussians(gaussians, [3.0]).separation_sign
    1
    """
    share = float(as_probability(tpr, name="tpr"))
    problem = whiten(gaussians, ood_mean, ood_covariance=ood_covariance, weights=weights)
    certified, floor = certify_whitened(problem, share), log_floor(problem, share)
    rates = _predicted_rates(problem, share, floor, random_state)
    separation, log_bounds = _separation(problem), _log_bounds(problem)
    bound_values: dict[str, Any] = {name: _exponential(value) for name, value in log_bounds.items()}
    return Analysis(
        n_classes=gaussians.n_classes,
        dimension=problem.dimension,
        tpr=share,
        is_tied=problem.spread is None,
        half_distances=0.5 * np.sqrt(problem.squared_distances),
        **separation,
        **bound_values,
        predicted_fpr=rates.gem,
        predicted_fpr_mahalanobis=rates.mahalanobis,
        predicted_fpr_optimal=rates.optimal,
        prediction_error=rates.error,
        certified_threshold=certified.threshold,
        certified_fpr=certified.fpr,
        log_certified_fpr=certified.log_fpr,
        fpr_floor=math.exp(floor),
        log_fpr_floor=floor,
        looseness={
            **_bound_looseness(separation, log_bounds),
            "certified_fpr": _decades(certified.log_fpr, _logarithm(rates.at(certified.threshold))),
            "fpr_floor": _decades(_logarithm(rates.gem if rates.optimal is None else rates.optimal), floor),
        },
    )


@dataclass(frozen=True)
class _PredictedRates:
    """Predictions kept within what is proven: no rate is under the floor, and the best possible not above the TPR."""

    gem: float
    mahalanobis: float
    optimal: float | None
    error: float
    at: Callable[[float], float]


def _predicted_rates(problem: Whitened, tpr: float, log_floor: float, random_state: RandomState) -> _PredictedRates:
    predictor, floor = Predictor(problem, random_state), math.exp(log_floor)
    gem, mahalanobis, optimal = (predictor.predict(name, tpr) for name in ("gem", "mahalanobis", "linear-energy"))
    return _PredictedRates(
        gem=max(gem.fpr, floor),
        mahalanobis=max(mahalanobis.fpr, floor),
        # Where the likelihood ratio is one and the same for many rows, a threshold cannot split them; chance can.
        optimal=min(max(optimal.fpr, floor), tpr) if problem.spread is None else None,
        error=gem.standard_error,
        at=lambda threshold: predictor.rate_at("gem", threshold),
    )


def _separation(problem: Whitened) -> dict[str, Any]:
    log_in, log_out, shift = scaled_in(problem), scaled_out(problem), -0.5 * problem.dimension * LOG_TWO
    sign, log_abs = scaled_separation(problem)
    return {
        "log_expected_in": log_in + shift,
        "log_expected_out": log_out + shift,
        "separation": sign * math.exp(log_abs + shift),
        "separation_sign": sign,
        "log_abs_separation": log_abs + shift,
    }


def _log_bounds(problem: Whitened) -> dict[str, float]:
    return {
        "bound_expected_out": bounds.log_bound_expected_out(problem),
        "bound_expected_out_sharp": bounds.log_bound_expected_out_sharp(problem),
        "bound_separation_pinsker": bounds.log_bound_separation_pinsker(problem),
        "bound_separation_pinsker_large": bounds.log_bound_separation_pinsker_large(problem),
        "bound_separation_total_variation": bounds.log_bound_separation_total_variation(problem),
    }


def _bound_looseness(exact: Mapping[str, Any], log_bounds: Mapping[str, float]) -> dict[str, float | None]:
    log_separation = exact["log_abs_separation"] if exact["separation_sign"] > 0 else -math.inf
    return {
        name: _decades(value, exact["log_expected_out"] if name.startswith("bound_expected") else log_separation)
        for name, value in log_bounds.items()
    }


def _decades(log_large: float, log_small: float) -> float | None:
    decades = (log_large - log_small) / math.log(10.0)
    return decades if math.isfinite(decades) else None


def _logarithm(rate: float) -> float:
    return math.log(rate) if rate > 0.0 else -math.inf


def _exponential(logarithm: float) -> float:
    return math.exp(logarithm) if logarithm < math.log(np.finfo(np.float64).max) else math.inf


def _table(analysis: Analysis) -> list[tuple[str, str, str]]:
    def power(logarithm: float) -> str:
        return f"10^{logarithm / math.log(10.0):.2f}" if math.isfinite(logarithm) else "0"

    def rate(logarithm: float) -> str:
        return power(logarithm) if logarithm < math.log(1e-4) else f"{math.exp(logarithm):.4g}"

    def share(value: float) -> str:
        return f"{value:.3g}" if value >= 1e-4 or value == 0.0 else f"{value:.0e}"

    def loose(name: str) -> str:
        decades = analysis.looseness[name]
        if decades is not None:
            return f"holds, loose by {decades:.1f} decades"
        return "trivial: D is not positive" if analysis.separation_sign <= 0 else "infinite: S is singular"

    def number(value: float) -> str:
        return f"{value:.6g}"

    least, most = float(analysis.half_distances.min()), float(analysis.half_distances.max())
    sign = {1: "+", 0: "", -1: "-"}[analysis.separation_sign]
    covariance = "as the classes'" if analysis.is_tied else "its own"
    optimal = analysis.predicted_fpr_optimal
    return [
        ("classes, dimensions", f"{analysis.n_classes}, {analysis.dimension}", f"OOD covariance: {covariance}"),
        ("half distances to the OOD mean", f"{least:.4g} to {most:.4g}", "α_i = ½ d_M"),
        ("E_in ES", power(analysis.log_expected_in), ""),
        ("E_out ES", power(analysis.log_expected_out), "closed form (B1)"),
        ("separation D", sign + power(analysis.log_abs_separation), _word_on_sign(analysis.separation_sign)),
        ("bound on E_out ES (P22)", number(analysis.bound_expected_out), loose("bound_expected_out")),
        ("sharper form (P23)", number(analysis.bound_expected_out_sharp), loose("bound_expected_out_sharp")),
        ("bound on D (P24)", number(analysis.bound_separation_pinsker), loose("bound_separation_pinsker")),
        ("bound on D (P25)", number(analysis.bound_separation_pinsker_large), loose("bound_separation_pinsker_large")),
        (
            "bound on D (B2)",
            number(analysis.bound_separation_total_variation),
            loose("bound_separation_total_variation"),
        ),
        (
            "predicted FPR, GEM (B3)",
            share(analysis.predicted_fpr),
            f"at TPR {analysis.tpr:g}",
        ),
        ("predicted FPR, Mahalanobis", share(analysis.predicted_fpr_mahalanobis), ""),
        *([] if optimal is None else [("predicted FPR, best possible", share(optimal), "the likelihood ratio (E8)")]),
        ("certified threshold (B4)", number(analysis.certified_threshold), f"TPR at least {analysis.tpr:g}"),
        ("certified FPR", rate(analysis.log_certified_fpr), "at most, at the certified threshold"),
        ("floor of the FPR", rate(analysis.log_fpr_floor), "no detector at this TPR is below it"),
    ]


def _word_on_sign(sign: int) -> str:
    words = {1: "ES is larger on ID rows", 0: "ID and OOD rows have one mean ES", -1: "ES is larger on OOD rows (E5)"}
    return words[sign]
