"""Four scores of the same rows from one pass: GEM, Mahalanobis, MSP and the energy of the linear logits."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gem_ood.gaussians import TiedGaussians
from gem_ood.gaussians.kernel import Kernel, Terms
from gem_ood.gaussians.tied import SMALLEST_FLOAT32_RANK

__all__ = ["SCORES", "Scorer"]

#: The scores by name, as they are shown.
SCORES = ("gem", "mahalanobis", "msp", "linear-energy")

#: Single precision is enough up to this predicted relative error of a score. A detector's own limit is eight times
#: stricter; but a rate is a share of thousands of rows, and such an error moves about one of them past a threshold.
FLOAT32_ERROR_LIMIT = 1e-5


@dataclass(frozen=True, eq=False)
class Scorer:
    """Scores rows under known Gaussians, rows of float32 in float32 where that is enough.

    Example:
        >>> scorer = Scorer.of(TiedGaussians.from_parameters([[0.0], [4.0]], [[1.0]]))
        >>> {name: scores.round(3).tolist() for name, scores in scorer.scores(np.array([[1.0]])).items()}
        {'gem': [-0.482], 'mahalanobis': [-1.0], 'msp': [4.0], 'linear-energy': [0.018]}
    """

    gaussians: TiedGaussians
    narrow: Kernel
    direction: NDArray[np.float64]
    offset: float

    @classmethod
    def of(cls, gaussians: TiedGaussians) -> "Scorer":
        """Return the scorer of these Gaussians."""
        parameters = gaussians.centre, gaussians.factor.whitener, gaussians.whitened_means
        is_enough = gaussians.rank >= SMALLEST_FLOAT32_RANK and gaussians.float32_error <= FLOAT32_ERROR_LIMIT
        whitened_centre = gaussians.centre @ gaussians.factor.whitener
        return cls(
            gaussians,
            Kernel.of(*parameters, np.dtype(np.float32 if is_enough else np.float64)),
            gaussians.factor.whitener @ whitened_centre,
            -0.5 * float(whitened_centre @ whitened_centre),
        )

    def scores(
        self, rows: NDArray[Any], *, residual: NDArray[np.float64] | float = 0.0
    ) -> dict[str, NDArray[np.float64]]:
        """Return each score of the rows by name; the residual is what each row's squared length lacks here (B3).

        "msp" is the log odds of the largest posterior: they rank as MSP does, and still differ where MSP rounds to 1.
        """
        found = {name: np.empty(len(rows)) for name in SCORES}
        kernel = self.narrow if rows.dtype == np.float32 else self.gaussians.kernel(rows.dtype)
        direction = self.direction.astype(kernel.centre.dtype)

        def keep(place: slice, terms: Terms) -> None:
            log_odds = _log_odds(terms)
            with np.errstate(under="ignore"):
                above = np.log1p(np.exp(-log_odds))
            found["gem"][place] = above - terms.half_distances
            np.multiply(terms.half_distances, -2.0, out=found["mahalanobis"][place])
            found["msp"][place] = log_odds
            # LSE(f') = LSE(ℓ) + ½‖xW‖² − ½‖(x − c)W‖², whose squares cancel: what is left is linear in x.
            found["linear-energy"][place] = terms.largest + above + np.vecdot(rows[place], direction)

        kernel.run(rows, keep)
        found["linear-energy"] += self.offset
        found["gem"] -= 0.5 * residual
        found["mahalanobis"] -= residual
        return found


def _log_odds(terms: Terms) -> NDArray[np.float64]:
    """Return how far each row's largest logit is above the log-sum-exp of the others; overwrites the logits."""
    logits = terms.logits
    n_rows, n_classes = logits.shape
    if n_classes == 1:
        return np.full(n_rows, np.inf)
    logits[np.arange(n_rows), terms.best] = -np.inf
    second = logits.max(axis=1)
    logits -= second[:, np.newaxis]
    with np.errstate(under="ignore"):
        others: NDArray[np.float64] = np.log(np.exp(logits, out=logits).sum(axis=1), dtype=np.float64)
    return np.asarray(terms.largest.astype(np.float64) - second - others)
