"""What the ranks of test_distributed.py do; each process imports this file, runs its jobs and writes what came of them.

The data are made here, so that the parent makes the same rows. torch is imported inside: importing this is cheap.
"""

import os
import pickle
import warnings
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import numpy as np

from gem_ood import GEM
from gem_ood.gaussians import Accumulator, collect, fourth_moment

DATA = Path(os.environ.get("GEM_OOD_DATA", Path(__file__).parents[3] / "shared" / "data"))
REAL_ROWS = DATA / "cifar10_resnet56" / "train.npz"

N_ROWS, N_FEATURES, N_CLASSES = 1000, 6, 4
NAMES = np.array(["ant", "bee", "cat", "dønër"])

#: Values whose weighted mean with themselves need not be themselves in float64.
CONSTANT = 16e3 + np.arange(1, 40) / 7.0


def rows(*, offset=0.0, thinnest=1.0, dtype=np.float64):
    """Classes of unequal size: correlated rows of spread about 1, but for the first feature."""
    generator = np.random.default_rng(5)
    labels = generator.choice(N_CLASSES, N_ROWS, p=[0.4, 0.3, 0.2, 0.1])
    means = 3.0 * generator.normal(size=(N_CLASSES, N_FEATURES)) + offset
    scales = np.array([thinnest, 1.0, 1.0, 1.0, 1.0, 1.0])
    features = generator.normal(size=(N_ROWS, N_FEATURES)) @ generator.normal(size=(N_FEATURES, N_FEATURES)) * scales
    return (features + means[labels]).astype(dtype), labels


#: Each case: how the rows are made, then where they are cut between two ranks.
CASES = {
    "halves": ({}, N_ROWS // 2),
    "halves with a thin feature": ({"thinnest": 1e-3}, N_ROWS // 2),
    "seven rows and the rest": ({}, 7),
    "all but seven rows first": ({}, N_ROWS - 7),
    "far from zero": ({"offset": 1e4}, 333),
    "float32 far from zero": ({"offset": 1e4, "dtype": np.float32}, 333),
}


def run(rank, folder):
    """Be a rank of a group of two, if there is room, then of a group of three: processes are slow to start."""
    import torch

    warnings.simplefilter("error")
    torch.set_num_threads(1)
    for n_ranks, jobs in ((2, jobs_of_two), (3, jobs_of_three)):
        if rank < n_ranks:
            outcomes = outcomes_in_group(rank, n_ranks, jobs, folder)
            (folder / f"rank-{rank}-of-{n_ranks}.pickle").write_bytes(pickle.dumps(outcomes))


def outcomes_in_group(rank, n_ranks, jobs, folder):
    """Join the default group, run every job in order, and return the outcome of each: its value, or its error."""
    import torch.distributed as dist

    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/store-{n_ranks}",
        rank=rank,
        world_size=n_ranks,
        timeout=timedelta(seconds=60),
    )
    outcomes = {}
    for name, job in jobs(rank).items():
        try:
            outcomes[name] = job()
        except Exception as error:
            outcomes[name] = error
    dist.barrier()  # a rank that left early could cut the others off
    dist.destroy_process_group()
    return outcomes


def jobs_of_two(rank):
    from gem_ood.torch.distributed import agree, all_reduce, gather_scores, together

    def part(case):
        options, cut = CASES[case]
        features, labels = rows(**options)
        half = slice(0, cut) if rank == 0 else slice(cut, None)
        return features[half], labels[half]

    features, labels = part("halves")
    whole = collect(features, labels)
    jobs = {case: lambda case=case: all_reduce(collect(*part(case))) for case in CASES}

    kept = labels != 2 if rank == 1 else np.ones(len(labels), dtype=bool)
    kept_names = labels != 3 if rank == 0 else labels != 0  # the longest name on one rank only, the first on the other

    def fit():
        joined = all_reduce(collect(features, labels))
        detector = GEM().fit_statistics(joined)
        scores = gather_scores(detector.score_samples(features[: 100 + 50 * rank]))
        return detector.calibrate_scores(scores)

    def ledoit_wolf():
        joined = all_reduce(collect(features, labels))
        moments = gather_scores([fourth_moment(joined, [(features, labels)])])
        return GEM(covariance="ledoit-wolf").fit_statistics(replace(joined, fourth_moment=float(moments.sum())))

    def damaged():
        return replace(whole, scatter=np.full_like(whole.scatter, np.nan))

    def agree_on_one_failure():
        agree(KeyError("features") if rank == 1 else None)

    def agree_on_two_failures():
        agree(RuntimeError(f"lost\nthe disk of {rank}"))

    def fail_while_the_other_reduces():
        return agree(OSError("no such file")) if rank == 1 else all_reduce(whole)

    def divide_by_one_less():
        return 6.0 / (1 - rank)

    def differ_in_order():
        return gather_scores([1.0]) if rank == 1 else all_reduce(whole)

    def real_features():
        with np.load(REAL_ROWS, allow_pickle=False) as arrays:
            return all_reduce(collect(arrays["features"][rank::2], arrays["labels"][rank::2]))

    if REAL_ROWS.is_file():
        jobs["real features"] = real_features
    jobs |= guards_of_two(rank)
    jobs |= {
        "a class missing on one rank": lambda: all_reduce(collect(features[kept], labels[kept])),
        "classes apart": lambda: all_reduce(collect(features[labels // 2 == rank], labels[labels // 2 == rank])),
        "strings": lambda: all_reduce(collect(features[kept_names], NAMES[labels[kept_names]])),
        "without labels": lambda: all_reduce(collect(features)),
        "declared without rows": lambda: all_reduce(collect(features, labels, classes=[0, 1, 2, 3, 9 + rank])),
        "no rows on one rank": lambda: all_reduce(
            whole if rank == 1 else Accumulator(n_features=N_FEATURES, classes=[0, 7]).statistics()
        ),
        "no rows at all": lambda: all_reduce(Accumulator(n_features=2, classes=["a", "b"][rank:]).statistics()),
        "another order of adding": lambda: skewed_all_reduce(rank, whole),
        "two resolutions": lambda: all_reduce(collect(features.astype(np.float32) if rank else features, labels)),
        "fourth moment": lambda: all_reduce(replace(whole, fourth_moment=1.0)),
        "fit": fit,
        "ledoit-wolf": ledoit_wolf,
        "scores": lambda: gather_scores([[3.0, -np.inf, 1.0], [7.5]][rank]),
        "float32 scores of a tensor": lambda: gather_scores(tensor_of_scores(rank)),
        "scores on one rank": lambda: gather_scores([[], [2.0, 1.0]][rank]),
        "no scores": lambda: gather_scores([]),
        # What cannot be joined; a job after each shows that the ranks are still in step.
        "nothing": lambda: all_reduce(None),
        "width": lambda: all_reduce(collect(features[:, : 6 - rank], labels)),
        "labelled or not": lambda: all_reduce(collect(features, labels if rank else None)),
        "kinds of name": lambda: all_reduce(collect(features, labels if rank else NAMES[labels])),
        "no statistics": lambda: all_reduce(features if rank else whole),
        "damaged statistics": lambda: all_reduce(damaged() if rank else whole),
        "overflow": lambda: all_reduce(collect([[1e200 * (1 - 2 * rank)]], ["a"])),
        "bad scores": lambda: gather_scores([1.0, np.nan] if rank else [1.0]),
        "scores of two dimensions": lambda: gather_scores([[1.0]] if rank else [1.0]),
        "no failure": lambda: agree(None),
        "one failure": agree_on_one_failure,
        "two failures": agree_on_two_failures,
        "failure while the other reduces": fail_while_the_other_reduces,
        "work that succeeds": lambda: together(lambda: 6.0 * rank),
        "work that fails on one rank": lambda: together(divide_by_one_less),
        "other order": differ_in_order,
        "still in step": lambda: gather_scores([float(rank)]),
    }
    return jobs


def skewed_all_reduce(rank, statistics):
    """Reduce where each rank's sums are rounded otherwise, as they are where ranks add in different orders."""
    import torch.distributed as dist

    from gem_ood.torch.distributed import all_reduce

    summed = dist.all_reduce

    def skewed(tensor, **options):
        summed(tensor, **options)
        tensor *= 1.0 + 4.0 * rank * np.finfo(float).eps

    dist.all_reduce = skewed
    try:
        return all_reduce(statistics)
    finally:
        dist.all_reduce = summed


#: How many of the rows to fit to, and of those to calibrate on, are the first rank's.
GUARD_CUTS = {"uneven": (130, 250), "nothing on the second": (400, 300), "nothing on the first": (0, 0)}


def guard_batches(start=None, stop=None, *, seed):
    """Return batches of the inputs from start to stop: 400 with seed 1, to fit to, and 300 with seed 2."""
    from networks import blobs

    inputs, labels = (part[start:stop] for part in blobs({1: 400, 2: 300}[seed], seed=seed))
    return list(zip(inputs.split(10), labels.split(10), strict=True)) if len(inputs) else []


def guards_of_two(rank):
    """Guards that are fitted and calibrated by two ranks, each with its own part of the inputs, or none."""
    import torch
    from networks import mlp
    from torch.nn.parallel import DistributedDataParallel

    from gem_ood import MSP
    from gem_ood.torch import ODIN, OODModel

    def part(cut, *, seed):
        return guard_batches(0, cut, seed=seed) if rank == 0 else guard_batches(cut, seed=seed)

    def fitted(model, detector, cuts):
        guarded = OODModel(model, detector).fit(part(cuts[0], seed=1), distributed=True)
        return guarded.calibrate(part(cuts[1], seed=2), distributed=True).detector

    def calibrated(make_guard, *, with_fit=False):
        guarded = make_guard(mlp())
        if with_fit:
            guarded.fit(part(400, seed=1), distributed=True)
        guarded.calibrate(part(300, seed=2), distributed=True)
        threshold = guarded.detector.threshold_
        scores = guarded.score_samples(guard_batches(0, 20, seed=1))
        other = make_guard(mlp(seed=9))
        other.load_state_dict(guarded.state_dict())
        assert guarded.detector.threshold_ is threshold
        return threshold, scores, other.verdicts(guard_batches(seed=2))

    def spoiled(verb):
        guarded = OODModel(mlp(), GEM()).fit(guard_batches(seed=1))
        batches = part(200, seed=2)
        if rank == 1:
            batches[3][0][2, 1] = torch.nan
        return getattr(guarded, verb)(batches, distributed=True)

    jobs = {f"guard, {name}": lambda cuts=cuts: fitted(mlp(), GEM(), cuts) for name, cuts in GUARD_CUTS.items()}
    return jobs | {
        "guard of a synchronized model": lambda: fitted(DistributedDataParallel(mlp()), GEM(), (400, 300)),
        "guard of logits of a synchronized model": lambda: fitted(DistributedDataParallel(mlp()), MSP(), (0, 0)),
        "guard of logits": lambda: calibrated(lambda model: OODModel(model, MSP())),
        "guard of logits, with fit": lambda: calibrated(lambda model: OODModel(model, MSP()), with_fit=True),
        "guard with noise": lambda: calibrated(lambda model: ODIN(model, noise=0.1)),
        "guard of logits, no rows at all": lambda: OODModel(mlp(), MSP()).fit([], distributed=True),
        "guard of logits, no rows to calibrate": lambda: OODModel(mlp(), MSP()).calibrate([], distributed=True),
        "guard of two widths": lambda: OODModel(torch.nn.Linear(4, 3 + rank), MSP()).calibrate(
            part(150, seed=2), distributed=True
        ),
        "guard, no loader on one rank": lambda: OODModel(mlp(), MSP()).fit(
            5 if rank else guard_batches(seed=1), distributed=True
        ),
        "guard of two rates": lambda: OODModel(mlp(), MSP()).calibrate(
            part(150, seed=2), tpr=0.9 - 0.2 * rank, distributed=True
        ),
        "guard by a second pass": lambda: OODModel(mlp(), GEM(covariance="ledoit-wolf")).fit(
            part(200, seed=1), distributed=True
        ),
        "NaN in fit": lambda: spoiled("fit"),
        "NaN in calibrate": lambda: spoiled("calibrate"),
    }


def tensor_of_scores(rank):
    import torch

    return torch.tensor([0.5 + rank], requires_grad=True)


def jobs_of_three(rank):
    """Three ranks of which the middle one has no row; then a group of the outer two."""
    import torch.distributed as dist

    from gem_ood.torch.distributed import agree, all_reduce, gather_scores

    features, labels = rows(offset=1e4)
    parts = {0: slice(0, 600), 1: slice(0, 0), 2: slice(600, None)}
    own = None if rank == 1 else collect(features[parts[rank]], labels[parts[rank]])
    thirds = collect(features[rank::3], labels[rank::3])
    n_same = (1, 1, 6)[rank]
    same = collect(np.tile(CONSTANT, (n_same, 1)), ["ant"] * n_same)
    lacking = collect(np.tile(CONSTANT, (n_same, 1)), ["ant" if rank == 0 else "bee"] * n_same, classes=NAMES)
    outer = dist.new_group([0, 2])
    return {
        "nothing on one rank": lambda: all_reduce(own),
        "thirds": lambda: all_reduce(thirds),
        "a constant": lambda: all_reduce(same),
        "a constant of a class that the first rank lacks": lambda: all_reduce(lacking),
        "none of three": lambda: all_reduce(None),
        "widths of two": lambda: all_reduce(None if rank == 0 else collect(features[:, :rank], labels)),
        "scores": lambda: gather_scores(np.arange(rank)),
        "outer": lambda: all_reduce(thirds, group=outer),
        "outer scores": lambda: gather_scores([float(rank)], group=outer),
        "outer failure": lambda: agree(ValueError("bad") if rank == 2 else None, group=outer),
        "still in step": lambda: gather_scores([float(rank)]),
    }
