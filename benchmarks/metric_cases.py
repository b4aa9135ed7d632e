"""AUROC, both AUPRs and FPR95 of two million scores: our one call against the sort it needs, and the peers' calls."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gem_ood.metrics import evaluate
from peers.with_torch import load_torch, pytorch_ood_metrics, under_inference_mode, without_stand_ins
from sections import Section
from timing import Measurement, Sampler, Stopwatch, interleave, paired_ratio

__all__ = ["metrics"]

OURS = "gem-ood"
OPENOOD = f'{OURS}, convention="openood"'
SORT = "np.sort of the joined scores"
SCIKIT = "scikit-learn, four calls"
PYTORCH_OOD = "pytorch-ood 0.4.0, the same four metrics"
PYTORCH_OOD_ALL = "pytorch-ood 0.4.0 OODMetrics (AUTC too)"
TORCHMETRICS = "torchmetrics 1.9.0, four calls"
MOST_SORTS = 2.5
MOST_MEMORY = 3.0
LEAST_SCIKIT = 5.0

Scores = NDArray[np.float64]


def metrics(*, rounds: int, with_peers: bool, size: int = 1_000_000) -> Section:
    """How long the metrics take against one sort of the scores, and against the peers (all in float64).

    scikit-learn's and torchmetrics' areas are those of our default convention, pytorch-ood's those of "openood": each
    is compared with the convention that gives its numbers.
    """
    rng = np.random.default_rng(1)
    id_scores, ood_scores = rng.normal(1.0, 1.0, size), rng.normal(-1.0, 1.5, size)
    joined = np.concatenate([id_scores, ood_scores])
    samplers: dict[str, Sampler] = {
        OURS: Stopwatch(lambda: lambda: evaluate(id_scores, ood_scores)),
        OPENOOD: Stopwatch(lambda: lambda: evaluate(id_scores, ood_scores, convention="openood")),
        SORT: Stopwatch(lambda: lambda: np.sort(joined)),
    }
    if with_peers:
        samplers |= {
            SCIKIT: Stopwatch(partial(_scikit_learn, id_scores, ood_scores)),
            PYTORCH_OOD: Stopwatch(partial(pytorch_ood_metrics, id_scores, ood_scores, same_four=True)),
            PYTORCH_OOD_ALL: Stopwatch(partial(pytorch_ood_metrics, id_scores, ood_scores, same_four=False)),
            TORCHMETRICS: Stopwatch(partial(_torchmetrics, id_scores, ood_scores)),
        }
    times = interleave(samplers, rounds=rounds)
    ratios = [paired_ratio(f"{OURS} / {SORT}", times[OURS], times[SORT], at_most=MOST_SORTS)]
    if with_peers:
        ratios += [
            paired_ratio(f"{SCIKIT} / {OURS}", times[SCIKIT], times[OURS], at_least=LEAST_SCIKIT),
            paired_ratio(f"{PYTORCH_OOD} / {OPENOOD}", times[PYTORCH_OOD], times[OPENOOD], at_least=1.0),
            paired_ratio(f"{PYTORCH_OOD_ALL} / {OPENOOD}", times[PYTORCH_OOD_ALL], times[OPENOOD], at_least=1.0),
            paired_ratio(f"{TORCHMETRICS} / {OURS}", times[TORCHMETRICS], times[OURS]),
        ]
    extra = _peak_extra_bytes(lambda: evaluate(id_scores, ood_scores))
    ratios.append(
        Measurement("peak memory beside the scores / the scores", (extra / joined.nbytes,), "x", at_most=MOST_MEMORY)
    )
    title = f"Metrics of {size:,} + {size:,} scores: AUROC, both AUPRs, FPR95"
    return Section("metrics", title, ratios, [time.scaled(1e3, "ms") for time in times.values()])


def _scikit_learn(id_scores: Scores, ood_scores: Scores) -> Callable[[], Any]:
    """The three areas, and the curve from which FPR95 is read."""
    from sklearn.metrics import average_precision_score, roc_auc_score, roc_curve

    scores = np.concatenate([id_scores, ood_scores])
    is_id = np.repeat([1, 0], [id_scores.size, ood_scores.size])
    is_ood, negated = 1 - is_id, -scores

    def evaluate_all() -> tuple[float, ...]:
        false_positive_rate, true_positive_rate, _ = roc_curve(is_id, scores)
        return (
            roc_auc_score(is_id, scores),
            average_precision_score(is_id, scores),
            average_precision_score(is_ood, negated),
            false_positive_rate[np.searchsorted(true_positive_rate, 0.95)],
        )

    return evaluate_all


def _torchmetrics(id_scores: Scores, ood_scores: Scores) -> Callable[[], Any]:
    """The same four by its functions, in the exact mode (``thresholds=None``).

    Scores are shifted into [0, 1] beforehand: outside of it, torchmetrics takes them for logits and runs a sigmoid.
    Its arguments are not validated, in its favour.
    """
    torch = load_torch()
    with without_stand_ins():
        from torchmetrics.functional.classification import (
            binary_auroc,
            binary_average_precision,
            binary_specificity_at_sensitivity,
        )

    scores = np.concatenate([id_scores, ood_scores])
    confidence = torch.from_numpy((scores - scores.min()) / np.ptp(scores))
    is_id = torch.cat([torch.ones(id_scores.size), torch.zeros(ood_scores.size)]).long()
    is_ood, negated = 1 - is_id, 1 - confidence

    def evaluate_all() -> tuple[Any, ...]:
        specificity, _ = binary_specificity_at_sensitivity(confidence, is_id, 0.95, validate_args=False)
        return (
            binary_auroc(confidence, is_id, validate_args=False),
            binary_average_precision(confidence, is_id, validate_args=False),
            binary_average_precision(negated, is_ood, validate_args=False),
            1 - specificity,
        )

    return under_inference_mode(torch, evaluate_all)


def _peak_extra_bytes(call: Callable[[], Any]) -> int:
    """The peak of what NumPy allocates in a call."""
    call()  # modules loaded on first use are not the call's memory
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
