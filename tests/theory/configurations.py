"""Random problems for the tests of theory: classes, their priors, and a Gaussian against them."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gem_ood.gaussians import TiedGaussians


@dataclass(frozen=True)
class Configuration:
    gaussians: TiedGaussians
    ood_mean: NDArray[np.float64]
    ood_covariance: NDArray[np.float64]


def random_covariance(rng: np.random.Generator, d: int) -> NDArray[np.float64]:
    factor = rng.normal(size=(d, d))
    return factor @ factor.T / d + 0.3 * np.eye(d)


def configuration(seed: int, *, n_classes: int, dimension: int, scale: float = 1.0) -> Configuration:
    """Unequal priors and an out-of-distribution covariance of its own."""
    rng = np.random.default_rng(seed)
    gaussians = TiedGaussians.from_parameters(
        scale * rng.normal(size=(n_classes, dimension)),
        random_covariance(rng, dimension),
        priors=rng.dirichlet(np.full(n_classes, 3.0)),
    )
    return Configuration(gaussians, 0.5 * rng.normal(size=dimension), 1.5 * random_covariance(rng, dimension))
