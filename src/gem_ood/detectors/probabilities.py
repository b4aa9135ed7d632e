"""JointEnergy, Entropy, GEN, MOS and KLMatching: detectors that score a classifier's class probabilities.

X is features where a `head` is given, and logits where it is not. Only KLMatching learns from the rows.
"""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gem_ood.detectors.head import Head
from gem_ood.detectors.head_reading import Chunk, LogitDetector
from gem_ood.detectors.packing import refuse_damaged, take_counts
from gem_ood.detectors.summing import SummedDetector
from gem_ood.errors import InputError
from gem_ood.features import chunks, rows_per_chunk
from gem_ood.scores import check_temperature, softmax
from gem_ood.scores.probabilities import (
    Groups,
    as_groups,
    check_gamma,
    check_top,
    class_sums,
    gen,
    group_log_probabilities,
    joint_energy,
    kl_matching,
    log_templates,
    mos,
    negative_entropy,
)

__all__ = ["GEN", "MOS", "Entropy", "JointEnergy", "KLMatching"]

#: How far rounding may move a divergence near zero: it is a difference of two terms of up to log k.
DIVERGENCE_ROUNDING = 1e-13

#: How far rounding may bring the sum of a row's probabilities away from one.
PROBABILITY_ROUNDING = 1e-9


class JointEnergy(LogitDetector):
    """The sum of label-wise energies, for classifiers of several labels at once.

    The score is Σ_i log(1 + exp logit_i) (Wang et al., NeurIPS 2021), each logit being that of one label against its
    absence.

    Args:
        head: The classifier's last layer, where X is features; without it X is logits.
        calibration: Share of the rows of `fit` to hold back and calibrate on; None never calibrates in `fit`.
        tpr: The share of in-distribution rows to keep where `calibrate` is not told otherwise.
        random_state: Seed of the hold-out.

    >>> JointEnergy().fit([[9.0, 0.0], [0.0, 9.0]]).score_samples([[0.0, 0.0]])
    array([1.38629436])
    """

    def __init__(
        self,
        *,
        head: Head | None = None,
        calibration: float | None = None,
        tpr: float = 0.95,
        random_state: int | None = 0,
    ) -> None:
        self.head = head
        self.calibration = calibration
        self.tpr = tpr
        self.random_state = random_state

    def _row_scores(self, features: NDArray[Any], logits: NDArray[np.float64]) -> NDArray[np.float64]:
        return joint_energy(logits)


class Entropy(LogitDetector):
    """The negative entropy of the class probabilities: Σ_i p_i log p_i with p = softmax(logits/T).

    It is the baseline of many papers, with T = 1. Small entropies keep their full precision, so very confident rows are
    still told apart.

    Args:
        head: The classifier's last layer, where X is features; without it X is logits.
        temperature: T; logits are divided by it.
        calibration: Share of the rows of `fit` to hold back and calibrate on; None never calibrates in `fit`.
        tpr: The share of in-distribution rows to keep where `calibrate` is not told otherwise.
        random_state: Seed of the hold-out.

    >>> Entropy().fit([[9.0, 0.0], [0.0, 9.0]]).score_samples([[0.0, 0.0]])
    array([-0.69314718])
    """

    def __init__(
        self,
        *,
        head: Head | None = None,
        temperature: float = 1.0,
        calibration: float | None = None,
        tpr: float = 0.95,
        random_state: int | None = 0,
    ) -> None:
        self.head = head
        self.temperature = temperature
        self.calibration = calibration
        self.tpr = tpr
        self.random_state = random_state

    def _check_options(self) -> None:
        super()._check_options()
        check_temperature(self.temperature)

    def _row_scores(self, features: NDArray[Any], logits: NDArray[np.float64]) -> NDArray[np.float64]:
        return negative_entropy(logits, temperature=self.temperature)


class GEN(LogitDetector):
    """The generalised entropy of the largest class probabilities.

    The score is −Σ p^γ (1 − p)^γ over the `top` largest p = softmax(logits) (Liu, Lochman and Zach, CVPR 2023). The
    power makes it sensitive to p near 0 and near 1, so both p and 1 − p are computed to full relative precision; the
    authors' code takes 1 − p of the rounded p, which is 0 for the most confident rows.

    Args:
        head: The classifier's last layer, where X is features; without it X is logits.
        gamma: γ; 0.1 in the paper.
        top: How many of the largest probabilities are summed, all where there are fewer; 100 in the paper's experiments
            on ImageNet. None sums all.
        calibration: Share of the rows of `fit` to hold back and calibrate on; None never calibrates in `fit`.
        tpr: The share of in-distribution rows to keep where `calibrate` is not told otherwise.
        random_state: Seed of the hold-out.

    >>> GEN(gamma=1.0).fit([[9.0, 0.0], [0.0, 9.0]]).score_samples([[0.0, 0.0]])
    array([-0.5])
    """

    def __init__(
        self,
        *,
        head: Head | None = None,
        gamma: float = 0.1,
        top: int | None = 100,
        calibration: float | None = None,
        tpr: float = 0.95,
        random_state: int | None = 0,
    ) -> None:
        self.head = head
        self.gamma = gamma
        self.top = top
        self.calibration = calibration
        self.tpr = tpr
        self.random_state = random_state

    def _check_options(self) -> None:
        super()._check_options()
        check_gamma(self.gamma)
        check_top(self.top)

    def _row_scores(self, features: NDArray[Any], logits: NDArray[np.float64]) -> NDArray[np.float64]:
        return gen(logits, gamma=self.gamma, top=self.top)


class MOS(LogitDetector):
    """The least probability of "others" in any group, for a classifier trained on groups of classes.

    The score is −min_g p(others | g), the softmax being taken within each group (Huang and Li, CVPR 2021). The nearest
    class is that of the largest probability within its group, "others" left aside; it is named by the place of its
    logit. Needs a classifier that has an "others" logit in every group.

    Args:
        head: The classifier's last layer, where X is features; without it X is logits.
        groups: One whole number per logit, in the order of the logits: the group it belongs to. The first logit of each
            group is its "others", as in the authors' code.
        calibration: Share of the rows of `fit` to hold back and calibrate on; None never calibrates in `fit`.
        tpr: The share of in-distribution rows to keep where `calibrate` is not told otherwise.
        random_state: Seed of the hold-out.

    >>> detector = MOS(groups=[0, 0, 1, 1, 1]).fit([[0.0, 9.0, 9.0, 0.0, 0.0], [9.0, 0.0, 0.0, 9.0, 0.0]])
    >>> detector.score_samples([[0.0, 0.0, 9.0, 0.0, 0.0]])
    array([-0.5])
    """

    def __init__(
        self,
        *,
        head: Head | None = None,
        groups: ArrayLike | None = None,
        calibration: float | None = None,
        tpr: float = 0.95,
        random_state: int | None = 0,
    ) -> None:
        self.head = head
        self.groups = groups
        self.calibration = calibration
        self.tpr = tpr
        self.random_state = random_state

    def _check_options(self) -> None:
        super()._check_options()
        self._grouped()

    def _grouped(self) -> Groups:
        if self.groups is None:
            raise InputError(
                "MOS needs the group of each logit but groups is None; pass groups, one whole number per logit, with "
                "the 'others' logit first in each group"
            )
        return as_groups(self.groups)

    def _check_head(self, n_features: int) -> None:
        super()._check_head(n_features)
        n_logits, n_groups = self._n_logits(n_features), len(self._grouped().numbers)
        if n_groups != n_logits:
            raise InputError(
                f"groups has {n_groups} numbers but there are {n_logits} logits; pass one group number per logit"
            )

    def _row_scores(self, features: NDArray[Any], logits: NDArray[np.float64]) -> NDArray[np.float64]:
        return mos(logits, groups=self._grouped())

    def _scores(self, features: NDArray[Any], nearest: NDArray[np.intp] | None = None) -> NDArray[np.float64]:
        scores = super()._scores(features)
        if nearest is not None:
            for rows in chunks(len(features), rows_per_chunk(self._n_logits(features.shape[1]))):
                np.argmax(self._class_evidence(features[rows]), axis=1, out=nearest[rows])
        return scores

    def _class_evidence(self, features: NDArray[Any]) -> NDArray[np.float64]:
        """Return the log-probability of each logit within its group, minus infinity for "others"."""
        grouped = self._grouped()
        evidence = group_log_probabilities(self._logits(features), grouped)
        evidence[:, grouped.others] = -np.inf
        return evidence

    def _details(self, features: NDArray[Any]) -> tuple[NDArray[np.float64], NDArray[np.float64] | None]:
        evidence = self._class_evidence(features)
        evidence -= evidence.max(axis=1, keepdims=True)
        shares = np.exp(evidence, out=evidence)
        return shares / shares.sum(axis=1, keepdims=True), None

    def _restore(self, tensors: dict[str, NDArray[Any]], values: dict[str, Any]) -> None:
        super()._restore(tensors, values)
        self.groups = self._grouped().numbers  # the file holds options as float64
        self._check_head(self.head.n_features if self.head is not None else len(self.classes_))


class KLMatching(SummedDetector):
    """The Kullback–Leibler divergence to the closest template of class probabilities.

    The score is −min_k KL(p ‖ d_k), p = softmax(logits), where the template d_k is the mean of p over the rows that the
    classifier predicts as class k; labels are not used (Hendrycks et al., ICML 2022). A class that is never predicted
    has no template and is left out. A template probability below the smallest normal number of float64 counts as that
    number, 2·10⁻³⁰⁸, where the common codes divide by zero. The paper takes the templates from held-out rows: fit on
    rows that the classifier was not trained on.

    Args:
        head: The classifier's last layer, where X is features; without it X is logits.
        calibration: Share of the rows of `fit` to hold back and calibrate on; None never calibrates in `fit`.
        tpr: The share of in-distribution rows to keep where `calibrate` is not told otherwise.
        random_state: Seed of the hold-out.

    >>> detector = KLMatching().fit([[2.0, 0.0], [3.0, 0.0], [0.0, 2.0], [0.0, 3.0]])
    >>> detector.score_samples([[2.5, 0.0], [0.0, 0.0]]).round(3)
    array([-0.   , -0.593])
    """

    def __init__(
        self,
        *,
        head: Head | None = None,
        calibration: float | None = None,
        tpr: float = 0.95,
        random_state: int | None = 0,
    ) -> None:
        self.head = head
        self.calibration = calibration
        self.tpr = tpr
        self.random_state = random_state

    def _terms(self, chunk: Chunk) -> dict[str, NDArray[np.float64]]:
        probabilities = softmax(chunk.logits)
        predicted, n_classes = chunk.logits.argmax(axis=1), chunk.logits.shape[1]
        return {
            "probabilities": class_sums(probabilities, predicted, n_classes),
            "counts": np.bincount(predicted, minlength=n_classes).astype(np.float64),
        }

    def _settle(self, sums: dict[str, NDArray[np.float64]]) -> NDArray[np.float64]:
        return log_templates(sums["probabilities"], sums["counts"])

    def _slack(self, scores: NDArray[np.float64], counts: NDArray[np.int64] | None = None) -> NDArray[np.float64]:
        return np.maximum(super()._slack(scores, counts), DIVERGENCE_ROUNDING)

    def _row_scores(self, features: NDArray[Any], logits: NDArray[np.float64]) -> NDArray[np.float64]:
        return kl_matching(logits, log_templates=self._learned)

    def _unpack_sums(self, tensors: dict[str, NDArray[Any]]) -> dict[str, NDArray[np.float64]]:
        sums = super()._unpack_sums(tensors)
        probabilities, counts = sums["probabilities"], take_counts(tensors, "sums.counts", len(sums["counts"]))
        off = np.abs(probabilities.sum(axis=1) - counts)
        is_sound = (probabilities >= 0.0).all() and (off <= PROBABILITY_ROUNDING * counts).all()
        # Each row adds to the sums of the class that it finds likeliest, so that class has the largest share of them.
        own = np.diag(probabilities) * (1.0 + PROBABILITY_ROUNDING)
        is_own = (probabilities <= own[:, np.newaxis]).all()
        refuse_damaged(not (is_sound and is_own), "sums.probabilities", "holds no probabilities of so many rows")
        return sums
