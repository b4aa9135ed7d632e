"""MSP, MaxLogit and Energy: detectors that score a classifier's logits.

X is features where a `head` is given, and logits where it is not. There is nothing to learn, so they can be
calibrated and used without `fit`; `fit` takes the width of the rows and the class names.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gem_ood.detectors.head import Head
from gem_ood.detectors.head_reading import LogitDetector
from gem_ood.scores import check_temperature, energy, max_logit, msp

__all__ = ["MSP", "Energy", "MaxLogit"]


class MSP(LogitDetector):
    """Maximum softmax probability (P3; Hendrycks and Gimpel, 2017), with an optional temperature.

    Args:
        head: The classifier's last layer, where X is features; without it X is logits.
        temperature: Logits are divided by it; ODIN without input noise is temperature 1,000.
        calibration: Share of the rows of `fit` to hold back and calibrate on; None never calibrates in `fit`.
        tpr: The share of in-distribution rows to keep where `calibrate` is not told otherwise.
        random_state: Seed of the hold-out.

    >>> MSP().fit([[9.0, 0.0], [0.0, 9.0]]).score_samples([[0.0, 0.0]])
    array([0.5])
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
        return msp(logits, temperature=self.temperature)


class MaxLogit(LogitDetector):
    """The largest logit (Hendrycks et al., 2022).

    Args:
        head: The classifier's last layer, where X is features; without it X is logits.
        calibration: Share of the rows of `fit` to hold back and calibrate on; None never calibrates in `fit`.
        tpr: The share of in-distribution rows to keep where `calibrate` is not told otherwise.
        random_state: Seed of the hold-out.

    >>> MaxLogit().fit([[9.0, 0.0], [0.0, 9.0]]).score_samples([[1.0, 4.0]])
    array([4.])
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
        return max_logit(logits)


class Energy(LogitDetector):
    """The negative free energy T·log Σ exp(logit/T) (P5; Liu et al., 2020).

    Args:
        head: The classifier's last layer, where X is features; without it X is logits.
        temperature: T; 1 in the paper.
        calibration: Share of the rows of `fit` to hold back and calibrate on; None never calibrates in `fit`.
        tpr: The share of in-distribution rows to keep where `calibrate` is not told otherwise.
        random_state: Seed of the hold-out.

    >>> Energy(head=Head([[1.0], [1.0]])).fit([[1.0], [2.0]]).score_samples([[0.0]])
    array([0.69314718])
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
        return energy(logits, temperature=self.temperature)
