"""Many processes, one fit: the reduce of statistics and scores over a group of `torch.distributed`.

Every call begins with one exchange in which each rank says what it holds or why it cannot go on. All ranks read the
same reports, so all of them go on to the arrays or all raise the same error, and none is left waiting for another.
Reports travel as JSON in byte tensors, never as pickles.
"""

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import ArrayLike, NDArray
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from gem_ood.errors import InputError
from gem_ood.features import as_scores, refuse_non_finite
from gem_ood.gaussians import Statistics

__all__ = ["agree", "agree_on_width", "all_reduce", "gather_scores", "together", "without_synchronization"]

#: An error message longer than this is cut, so that an exchange stays small.
LONGEST_MESSAGE = 2000

Report = dict[str, Any]

Value = TypeVar("Value")


def all_reduce(statistics: Statistics | None, *, group: "dist.ProcessGroup | None" = None) -> Statistics:
    """Return the statistics of the rows of all ranks, the same to the bit on every rank; classes are joined by name.

    Memory and traffic are O(k·m + m²) per rank, beside the class names of each rank. As after `merge`, there is no
    fourth moment. For `covariance="ledoit-wolf"` take a second pass over each rank's own rows, about the joined means:
    `replace(joined, fourth_moment=float(gather_scores([fourth_moment(joined, batches)]).sum()))`.

    Args:
        statistics: What this rank collected, with or without rows; None where it saw nothing at all.
        group: The process group; the default one unless given.

    Raises:
        InputError: On every rank, where the ranks disagree or one of them cannot go on.

    >>> from gem_ood.gaussians import collect
    >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    >>> all_reduce(collect([[0.0], [2.0], [5.0]], ["a", "a", "b"])).means.ravel()
    array([1., 5.])
    >>> dist.destroy_process_group()
    """
    plan = _agree_on_plan(_exchange("all_reduce", lambda: _describe(statistics), group), group)
    own = _widen(statistics, plan)
    rank = dist.get_rank(group)
    # The mean of the first rank that has rows of a class is close to all its rows: sums of offsets from it lose no
    # digits to a common offset of the features, and a class that one rank holds alone keeps its mean to the bit.
    is_first = (plan.first_ranks == rank)[:, np.newaxis]
    reference = _sum(np.where(is_first, own.means, 0.0), group)
    has_rows = (own.counts > 0)[:, np.newaxis]
    shares = (own.counts / np.maximum(plan.counts, 1))[:, np.newaxis]
    with np.errstate(over="ignore", invalid="ignore"):
        means = reference + _sum(np.where(has_rows, shares * (own.means - reference), 0.0), group)
        offsets = np.where(has_rows, own.means - means, 0.0) * np.sqrt(own.counts)[:, np.newaxis]
        scatter = _sum_symmetric(own.scatter + offsets.T @ offsets, group)
    if not np.isfinite(scatter).all():
        raise InputError("features are so large that their squares overflow float64; rescale the features")
    return Statistics(
        classes=plan.classes,
        counts=plan.counts,
        means=means,
        scatter=scatter,
        resolution=plan.resolution,
        is_labelled=plan.is_labelled,
    )


def gather_scores(scores: ArrayLike, *, group: "dist.ProcessGroup | None" = None) -> NDArray[np.float64]:
    """Return the scores of all ranks, one after the other in the order of ranks; the same on every rank.

    Ranks may bring different numbers of scores, or none. `detector.calibrate_scores` makes one threshold of them.

    >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    >>> gather_scores([0.5, -2.0])
    array([ 0.5, -2. ])
    >>> dist.destroy_process_group()
    """
    own = np.zeros(0)

    def describe() -> Report:
        nonlocal own
        if tuple(np.shape(scores)) != (0,):
            own = as_scores(scores)
        return {"n_scores": len(own)}

    lengths = [report["n_scores"] for report in _exchange("gather_scores", describe, group)]
    return np.concatenate(_gather(own, lengths, group))


def agree_on_width(n_columns: int | None, *, group: "dist.ProcessGroup | None" = None) -> int | None:
    """Return how many columns the rows of all ranks have; a rank without rows passes None. None where none has rows.

    >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    >>> agree_on_width(3)
    3
    >>> dist.destroy_process_group()
    """
    reports = _exchange("agree_on_width", lambda: {"width": n_columns}, group)
    full = [(rank, report["width"]) for rank, report in enumerate(reports) if report["width"] is not None]
    for rank, width in full:
        if width != full[0][1]:
            ours, theirs = _name(full[0][0], group), _name(rank, group)
            raise InputError(
                f"{ours} has rows of {full[0][1]} columns but {theirs} of {width}; guard the same model on every rank"
            )
    return full[0][1] if full else None


def agree(error: BaseException | None, *, group: "dist.ProcessGroup | None" = None) -> None:
    """Return nothing where no rank came with an error; otherwise raise on every rank, so that none waits for another.

    The rank that failed raises its own error, the others an `InputError` that tells of it. A rank may bring its error
    here while the others are already in `all_reduce` or `gather_scores`: they hear of it there.

    >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    >>> agree(None)
    >>> agree(InputError("features row 3, column 0 is NaN"))
    Traceback (most recent call last):
        ...
    gem_ood.errors.InputError: features row 3, column 0 is NaN
    >>> dist.destroy_process_group()
    """
    if error is None:
        _exchange("agree", dict, group)
        return
    with suppress(Exception):  # the others hear of it where they can be reached; this rank has its own error to raise
        _exchange("agree", lambda: {"error": _message(error)}, group)
    raise error


def without_synchronization(model: nn.Module) -> nn.Module:
    """Return the model inside DistributedDataParallel, whose forward waits for that of every other rank.

    Ranks judge different numbers of batches, and gradients for a training step are never taken here.

    >>> without_synchronization(nn.Identity())
    Identity()
    """
    return model.module if isinstance(model, DistributedDataParallel) else model


# What the ranks tell each other


@dataclass(frozen=True, eq=False)
class _Plan:
    """What all ranks agreed on; `first_ranks` is the first rank with rows of each class, −1 where none has any."""

    classes: NDArray[Any]
    counts: NDArray[np.int64]
    first_ranks: NDArray[np.int64]
    n_features: int
    is_labelled: bool
    resolution: float


def together(work: Callable[[], Value], *, group: "dist.ProcessGroup | None" = None) -> Value:
    """Return what `work` returns on this rank, once it has succeeded on all; a failure on one is raised on all.

    >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    >>> together(lambda: 3)
    3
    >>> dist.destroy_process_group()
    """
    _require_group(group)
    try:
        value = work()
    except Exception as error:
        agree(error, group=group)
        raise
    agree(None, group=group)
    return value


def _describe(statistics: Statistics | None) -> Report:
    if statistics is None:
        return {"is_empty": True}
    if not isinstance(statistics, Statistics):
        raise InputError(
            f"statistics is of type {type(statistics).__name__}; pass gem_ood.gaussians.Statistics, or None for no rows"
        )
    refuse_non_finite(statistics.means, name="statistics.means", remedy="collect again")
    refuse_non_finite(statistics.scatter, name="statistics.scatter", remedy="collect again")
    is_text = statistics.classes.dtype.kind == "U"
    return {
        "is_empty": False,
        "classes": statistics.classes.tolist(),
        "counts": statistics.counts.tolist(),
        "n_features": statistics.n_features,
        "is_labelled": statistics.is_labelled,
        "width": f"{statistics.n_features} features",
        "labelling": "labels" if statistics.is_labelled else "no labels",
        "kind": "strings as class names" if is_text else "whole numbers as class names",
        "resolution": float(statistics.resolution),
    }


def _agree_on_plan(reports: list[Report], group: "dist.ProcessGroup | None") -> _Plan:
    full = [(rank, report) for rank, report in enumerate(reports) if not report["is_empty"]]
    if not full:
        raise InputError("every rank passed None, so there are no statistics to reduce; give rows to at least one rank")
    _refuse_disagreement(full, group)
    first = full[0][1]
    names = sorted({name for _, report in full for name in report["classes"]})
    places = {name: place for place, name in enumerate(names)}
    counts = np.zeros(len(names), dtype=np.int64)
    first_ranks = np.full(len(names), -1)
    for rank, report in full:
        for name, count in zip(report["classes"], report["counts"], strict=True):
            counts[places[name]] += count
            if count and first_ranks[places[name]] < 0:
                first_ranks[places[name]] = rank
    return _Plan(
        classes=np.array(names, dtype=str if isinstance(names[0], str) else np.int64),
        counts=counts,
        first_ranks=first_ranks,
        n_features=first["n_features"],
        is_labelled=first["is_labelled"],
        resolution=max(report["resolution"] for _, report in full),
    )


def _refuse_disagreement(full: list[tuple[int, Report]], group: "dist.ProcessGroup | None") -> None:
    first_rank, first = full[0]
    for name, remedy in (
        ("width", "collect the same features on every rank"),
        ("labelling", "pass labels on every rank or on none; a rank without any row can pass None"),
        ("kind", "use whole numbers only or strings only"),
    ):
        for rank, report in full[1:]:
            if report[name] != first[name]:
                ours, theirs = _name(first_rank, group), _name(rank, group)
                raise InputError(f"{ours} has {first[name]} but {theirs} has {report[name]}; {remedy}")


def _widen(statistics: Statistics | None, plan: _Plan) -> Statistics:
    """Return this rank's statistics with the classes of all ranks."""
    counts = np.zeros(len(plan.classes), dtype=np.int64)
    means = np.zeros((len(plan.classes), plan.n_features))
    if statistics is None:
        return Statistics(plan.classes, counts, means, np.zeros((plan.n_features, plan.n_features)), plan.resolution)
    places = np.searchsorted(plan.classes, statistics.classes)
    counts[places], means[places] = statistics.counts, statistics.means
    return Statistics(plan.classes, counts, means, statistics.scatter, plan.resolution)


def _exchange(purpose: str, describe: Callable[[], Report], group: "dist.ProcessGroup | None") -> list[Report]:
    """Return what `describe` gives on each rank; raise on every rank where it fails on one, or purposes differ."""
    _require_group(group)
    cause: Exception | None = None
    try:
        report = describe()
    except Exception as error:  # whatever it is, the other ranks must hear of it: they wait for this one
        cause, report = error, {"error": _message(error)}
    written = np.frombuffer(json.dumps({"purpose": purpose, **report}).encode(), dtype=np.uint8)
    n_ranks = dist.get_world_size(group)
    lengths = _gather(np.array([len(written)]), [1] * n_ranks, group)
    reports = [json.loads(read.tobytes()) for read in _gather(written, [int(n[0]) for n in lengths], group)]
    failed = [rank for rank, each in enumerate(reports) if "error" in each]
    if failed:
        others = f" ({len(failed) - 1} more failed too)" if len(failed) > 1 else ""
        raise InputError(
            f"{_name(failed[0], group)} failed: {reports[failed[0]]['error']}; mend it there and start all ranks "
            f"again{others}"
        ) from cause
    for rank, each in enumerate(reports):
        if each["purpose"] != reports[0]["purpose"]:
            raise InputError(
                f"{_name(0, group)} called {reports[0]['purpose']} but {_name(rank, group)} called {each['purpose']}; "
                f"call the same functions in the same order on every rank"
            )
    return reports


def _require_group(group: "dist.ProcessGroup | None") -> None:
    if not dist.is_available() or not dist.is_initialized():
        raise InputError(
            "there is no process group; call torch.distributed.init_process_group on every rank first, for example in "
            "a script that torchrun starts"
        )
    if dist.get_rank(group) < 0:
        raise InputError("this process is not a member of the group; call it on the ranks of the group only")


def _message(error: BaseException) -> str:
    text = " ".join(str(error).split())[:LONGEST_MESSAGE]
    if isinstance(error, InputError):
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _name(rank: int, group: "dist.ProcessGroup | None") -> str:
    return f"rank {rank if group is None else dist.get_global_rank(group, rank)}"


# What travels between them


def _device(group: "dist.ProcessGroup | None") -> torch.device:
    """Return where tensors must be for this group: the CPU where its backend takes it, else the current device."""
    kinds = [pair.partition(":")[0] for pair in dist.get_backend_config(group).split(",")]
    return torch.device("cpu" if "cpu" in kinds else kinds[0])


def _gather(own: NDArray[Any], lengths: list[int], group: "dist.ProcessGroup | None") -> list[NDArray[Any]]:
    """Return the one-dimensional array of each rank; all are sent at the length of the longest."""
    padded = np.zeros(max(lengths), dtype=own.dtype)
    padded[: len(own)] = own
    sent = torch.from_numpy(padded).to(_device(group))
    received = [torch.empty_like(sent) for _ in lengths]
    if len(padded):
        dist.all_gather(received, sent, group=group)
    return [tensor.cpu().numpy()[:length] for tensor, length in zip(received, lengths, strict=True)]


def _sum(own: NDArray[np.float64], group: "dist.ProcessGroup | None") -> NDArray[np.float64]:
    """Return the sum of the arrays of all ranks; this rank's own may be written over."""
    total = torch.from_numpy(np.ascontiguousarray(own)).to(_device(group))
    dist.all_reduce(total, group=group)
    # No backend promises that all ranks add in the same order, and rounding depends on it: one rank's sum counts.
    dist.broadcast(total, src=0 if group is None else dist.get_global_rank(group, 0), group=group)
    return total.cpu().numpy()


def _sum_symmetric(own: NDArray[np.float64], group: "dist.ProcessGroup | None") -> NDArray[np.float64]:
    """Return the sum of symmetric matrices, exactly symmetric itself: only the lower triangle travels."""
    is_lower = np.tri(len(own), dtype=bool)
    total = np.zeros_like(own, order="C")
    total[is_lower] = _sum(own[is_lower], group)
    total += np.tril(total, -1).T
    return total
