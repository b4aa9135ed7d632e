"""Scores of class probabilities: JointEnergy, entropy, GEN, MOS and KL matching. Higher = more in-distribution.

Neither 1 − p nor the logarithm of p is taken of a rounded p: a confident row's p differs from one by less than float64
resolves, and these scores rank such rows by that difference.
"""

from numbers import Real
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse

from gem_ood.errors import InputError
from gem_ood.features import as_features, as_labels, is_count, refuse_non_finite
from gem_ood.gaussians.log_sums import log_sum_exp
from gem_ood.scores.logits import check_temperature

__all__ = [
    "Groups",
    "as_groups",
    "as_logits",
    "check_gamma",
    "check_top",
    "class_sums",
    "gen",
    "group_log_probabilities",
    "joint_energy",
    "kl_matching",
    "log_templates",
    "mos",
    "negative_entropy",
]

#: exp(−gap) is zero in float64 beyond this gap, so a larger one changes no sum of gap·exp(−gap).
LARGEST_GAP = 800.0

#: The logarithm of the smallest positive normal number of float64.
LOG_TINY = float(np.log(np.finfo(np.float64).tiny))


def as_logits(logits: ArrayLike) -> NDArray[np.float64]:
    """Return a float64 copy of finite logits: the caller's are never written to.

    >>> as_logits([[1, 2]])
    array([[1., 2.]])
    """
    values = as_features(logits, name="logits")
    if not np.isfinite(values).all():
        refuse_non_finite(values, name="logits")
    return values.astype(np.float64)


def joint_energy(logits: ArrayLike) -> NDArray[np.float64]:
    """Return Σ_i log(1 + exp logit_i) of each row: the label-wise energies of a multi-label classifier, summed.

    >>> joint_energy([[0.0, 0.0], [1000.0, -1000.0]])
    array([   1.38629436, 1000.        ])
    """
    values = as_logits(logits)
    return np.asarray(np.logaddexp(values, 0.0, out=values).sum(axis=1))


class _Gaps(NamedTuple):
    """Rows as gaps to their largest logit: that logit's place, the gaps with infinity there, and Σ exp(−gap)."""

    largest: NDArray[np.intp]
    gaps: NDArray[np.float64]
    rest: NDArray[np.float64]


def _gaps(values: NDArray[np.float64]) -> _Gaps:
    """Return the gaps; p = exp(−gap)/(1 + rest), and 1/(1 + rest) for the largest logit itself."""
    largest = values.argmax(axis=1)
    row = np.arange(len(values))
    with np.errstate(over="ignore", under="ignore"):
        gaps = np.subtract(values[row, largest][:, np.newaxis], values, out=values)
        gaps[row, largest] = np.inf
        return _Gaps(largest, gaps, np.exp(-gaps).sum(axis=1))


def negative_entropy(logits: ArrayLike, *, temperature: float = 1.0) -> NDArray[np.float64]:
    """Return Σ_i p_i log p_i of each row, p = softmax(logits/T): zero for certainty, −log k for none.

    >>> negative_entropy([[0.0, 0.0], [50.0, 0.0]])
    array([-6.93147181e-01, -9.83662422e-21])
    """
    check_temperature(temperature)
    values = as_logits(logits)
    values /= temperature
    _, gaps, rest = _gaps(values)
    np.minimum(gaps, LARGEST_GAP, out=gaps)
    with np.errstate(under="ignore"):
        spread = np.vecdot(np.exp(-gaps), gaps) / (1.0 + rest)
    return np.asarray(-(np.log1p(rest) + spread))


def gen(logits: ArrayLike, *, gamma: float = 0.1, top: int | None = 100) -> NDArray[np.float64]:
    """Return −Σ p^γ (1 − p)^γ over the `top` largest probabilities of each row.

    >>> gen([[0.0, 0.0], [50.0, 0.0]])
    array([-1.74110113, -0.01347589])
    """
    check_gamma(gamma)
    check_top(top)
    values = as_logits(logits)
    _, gaps, rest = _gaps(values)
    log_total = np.log1p(rest)
    # Beyond a gap of 745 the rest is zero in float64, but its power γ is not.
    log_rest = log_sum_exp(-gaps)
    if top is not None and top <= gaps.shape[1] - 1:
        gaps = np.partition(gaps, top - 1, axis=1)[:, : top - 1]
    with np.errstate(under="ignore"):
        others = np.log1p(np.maximum(rest[:, np.newaxis] - np.exp(-gaps), 0.0))
        others -= gaps
        others -= 2.0 * log_total[:, np.newaxis]
        terms = np.exp(gamma * others).sum(axis=1)
        return np.asarray(-(np.exp(gamma * (log_rest - 2.0 * log_total)) + terms))


def check_gamma(gamma: object) -> None:
    """Raise if this is no power for GEN.

    >>> check_gamma(0.1)
    """
    if isinstance(gamma, bool) or not isinstance(gamma, Real) or not 0.0 < float(gamma) < np.inf:
        raise InputError(f"gamma is {gamma!r}; pass a positive number, such as 0.1")


def check_top(top: object) -> None:
    """Raise if this is no count of probabilities.

    >>> check_top(None)
    """
    if top is not None and not is_count(top):
        raise InputError(f"top is {top!r}; pass how many of the largest probabilities to sum, or None for all")


class Groups(NamedTuple):
    """Logits in groups: their numbers as given, the logits sorted by group, and where each group starts there."""

    numbers: NDArray[np.int64]
    order: NDArray[np.intp]
    starts: NDArray[np.intp]

    @property
    def others(self) -> NDArray[np.intp]:
        """The place of each group's "others" logit."""
        return self.order[self.starts]


def as_groups(groups: ArrayLike) -> Groups:
    """Return one whole number per logit as groups; the first logit of each is its "others".

    >>> as_groups([7, 2, 7, 2]).others
    array([1, 0])
    """
    given = np.asarray(groups)
    if given.ndim != 1 or given.size == 0 or given.dtype.kind not in "iuf":
        raise InputError(f"groups is {groups!r}; pass one whole number per logit, the group that it belongs to")
    numbers = as_labels(given, len(given), name="groups")
    order = np.argsort(numbers, kind="stable")
    names, starts, sizes = np.unique(numbers[order], return_index=True, return_counts=True)
    if (sizes < 2).any():
        raise InputError(
            f"group {names[int(np.argmin(sizes))]} has one logit; every group needs its 'others' logit first and then "
            f"those of its classes"
        )
    return Groups(numbers, order, starts)


def group_log_probabilities(logits: ArrayLike, groups: Groups) -> NDArray[np.float64]:
    """Return the log-softmax of each logit within its group.

    >>> np.exp(group_log_probabilities([[0.0, 0.0, 5.0, 5.0]], as_groups([0, 0, 1, 1])))
    array([[0.5, 0.5, 0.5, 0.5]])
    """
    values = as_logits(logits)
    if values.shape[1] != len(groups.numbers):
        raise InputError(
            f"groups has {len(groups.numbers)} numbers but there are {values.shape[1]} logits; pass one group number "
            f"per logit"
        )
    values = values[:, groups.order]
    sizes = np.diff(groups.starts, append=values.shape[1])
    with np.errstate(over="ignore", under="ignore"):
        values -= np.repeat(np.maximum.reduceat(values, groups.starts, axis=1), sizes, axis=1)
        totals = np.log(np.add.reduceat(np.exp(values), groups.starts, axis=1))
    values -= np.repeat(totals, sizes, axis=1)
    in_place = np.empty_like(values)
    in_place[:, groups.order] = values
    return in_place


def mos(logits: ArrayLike, *, groups: ArrayLike | Groups) -> NDArray[np.float64]:
    """Return −min over groups of the probability of "others" within the group, for each row.

    >>> mos([[0.0, 0.0, 3.0, -3.0]], groups=[0, 0, 1, 1])
    array([-0.5])
    """
    known = groups if isinstance(groups, Groups) else as_groups(groups)
    with np.errstate(under="ignore"):
        return np.asarray(-np.exp(group_log_probabilities(logits, known)[:, known.others].min(axis=1)))


def class_sums(values: NDArray[Any], places: NDArray[np.intp], n_classes: int) -> NDArray[np.float64]:
    """Return the sum of the rows at each place, n_classes × d.

    >>> class_sums(np.array([[1.0], [2.0], [4.0]]), np.array([0, 2, 0]), 3)
    array([[5.],
           [0.],
           [2.]])
    """
    picked = (np.ones(len(places)), places, np.arange(len(places) + 1))
    return np.asarray(sparse.csc_array(picked, shape=(n_classes, len(places))) @ values.astype(np.float64, copy=False))


def log_templates(sums: NDArray[np.float64], counts: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return log d_k for every class with rows, from the sums of the probabilities of the rows predicted as it.

    >>> np.exp(log_templates(np.array([[1.5, 0.5], [0.0, 0.0]]), np.array([2.0, 0.0])))
    array([[0.75, 0.25]])
    """
    places = np.flatnonzero(counts)
    means = sums[places] / counts[places, np.newaxis]
    row = np.arange(len(places))
    means[row, places] = 0.0
    rest = means.sum(axis=1)
    with np.errstate(divide="ignore"):
        logs = np.maximum(np.log(means), LOG_TINY)
        logs[row, places] = np.log1p(-rest)
    return logs


def kl_matching(logits: ArrayLike, *, log_templates: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return −min_k KL(p ‖ d_k) of each row, p = softmax(logits).

    >>> kl_matching([[0.0, 0.0]], log_templates=np.log([[0.5, 0.5], [0.9, 0.1]])) + 0.0
    array([0.])
    """
    values = as_logits(logits)
    if log_templates.ndim != 2 or log_templates.shape[1] != values.shape[1]:
        raise InputError(
            f"log_templates has shape {log_templates.shape} but there are {values.shape[1]} logits; pass one row of "
            f"log-probabilities per template"
        )
    negative_entropies = negative_entropy(values)
    largest, gaps, rest = _gaps(values)
    gaps[np.arange(len(gaps)), largest] = 0.0
    with np.errstate(under="ignore"):
        probabilities = np.exp(-gaps)
        probabilities /= 1.0 + rest[:, np.newaxis]
        matches = (probabilities @ log_templates.T).max(axis=1)
    return np.asarray(np.minimum(matches - negative_entropies, 0.0))
