"""Ranks: the fit and the calibration of a guard by many processes, each with its own part of the data or none."""

from collections.abc import Callable
from itertools import chain

import numpy as np
from numpy.typing import ArrayLike

from gem_ood.detectors import Combine, Detector, GaussianDetector, LogitDetector
from gem_ood.errors import InputError
from gem_ood.gaussians import Statistics
from gem_ood.torch.distributed import agree_on_width, all_reduce, gather_scores, together
from gem_ood.torch.streaming import RowBatches
from gem_ood.torch.whole_loaders import Scored

__all__ = ["calibrate_on_ranks", "fit_on_ranks", "gathered"]

NO_BATCH = "the loader of every rank yielded no batch; give rows to at least one rank"


def fit_on_ranks(detector: Detector, batches: RowBatches, classes: ArrayLike | None) -> None:
    """Fit the detector to the rows of all ranks of the default group, the same on each.

    >>> from gem_ood import GEM
    >>> from gem_ood.torch import OODModel
    >>> import torch
    >>> import torch.distributed as dist
    >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    >>> guarded = OODModel(torch.nn.Linear(1, 2), GEM())
    >>> batches = [(torch.tensor([[0.0], [2.0], [5.0], [7.0]]), [0, 0, 1, 1])]
    >>> guarded.fit(batches, distributed=True).detector.gaussians_.class_means.ravel()
    array([1., 6.])
    >>> dist.destroy_process_group()
    """
    if isinstance(detector, LogitDetector):
        first = together(lambda: next(iter(batches), None))
        n_columns = agree_on_width(None if first is None else first[0].shape[1])
        if n_columns is None:
            raise InputError(NO_BATCH)
        # A score of logits learns nothing but their number.
        detector.fit_batches([(np.zeros((1, n_columns)), None)], classes=classes)
    elif isinstance(detector, GaussianDetector):
        if detector.covariance == "ledoit-wolf":
            raise InputError(
                "covariance='ledoit-wolf' needs a second pass about the means of all ranks, which distributed=True "
                "does not make; use covariance='oas', or see gem_ood.torch.all_reduce for that pass"
            )

        def collect() -> Statistics | None:
            opened = iter(batches)
            first = next(opened, None)
            return None if first is None else detector.collect(chain([first], opened), classes=classes)

        detector.fit_statistics(all_reduce(together(collect)))
    else:
        raise InputError(f"a {type(detector).__name__} has no statistics to join; fit it without distributed=True")


def calibrate_on_ranks(calibrate: Callable[[], Detector]) -> None:
    """Set the threshold on every rank, from the same scores, and raise on all if one fails or asks for another.

    >>> import torch.distributed as dist
    >>> from gem_ood import MSP
    >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    >>> calibrate_on_ranks(lambda: MSP().calibrate_scores(np.arange(100.0)))
    >>> dist.destroy_process_group()
    """
    threshold = together(calibrate).threshold_.value
    if len(np.unique(gather_scores([threshold]))) > 1:
        raise InputError(
            "the ranks set different thresholds from the same scores; pass the same tpr, confidence and method on "
            "every rank"
        )


def gathered(own: Scored, detector: Detector) -> Scored:
    """Return the scores of all ranks; one without rows hears from the others how wide theirs are.

    >>> import torch.distributed as dist
    >>> from gem_ood import MSP
    >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    >>> gathered(Scored(np.array([0.5]), np.array([0.0]), 3), MSP()).n_columns
    3
    >>> dist.destroy_process_group()
    """
    n_columns = agree_on_width(getattr(detector, "n_features_in_", own.n_columns))
    scores, rounding = gather_scores(own.scores.ravel()), gather_scores(own.rounding)
    if len(scores) == 0:
        raise InputError(NO_BATCH)
    if isinstance(detector, Combine):  # one score per row and part
        scores = scores.reshape(len(rounding), -1)
    return Scored(scores, rounding, n_columns)
