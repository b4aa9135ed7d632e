"""Experiments of made-up metrics, which the tests of numbers and of tables share."""

from dataclasses import replace

import numpy as np

from gem_ood.comparison import METRICS
from gem_ood.experiments import PAPER, PAPER_METHODS, PAPER_SETS, Draws, Experiment, Protocol

__all__ = ["N_ID", "constant", "experiment"]

N_ID = 1000


def experiment(sets=PAPER_SETS, *, methods=PAPER_METHODS, n_draws=10, n_ood=5000, paper="cifar10", seed=0, **options):
    """Return an experiment of random metrics on sets of this many rows."""
    rng = np.random.default_rng(seed)
    protocol = options.pop("protocol", Protocol(n_draws=n_draws))
    sizes = dict.fromkeys(sets, n_ood) if isinstance(n_ood, int) else dict(n_ood)
    counts = {ood: len(protocol.rows(ood, n_id=N_ID, n_ood=n_rows)) for ood, n_rows in sizes.items()}
    draws = {
        method: {ood: Draws({metric: rng.random(counts[ood]) for metric in METRICS}) for ood in sets}
        for method in methods
    }
    found = {"id_error": 0.0516, "paper": PAPER[paper] if paper else None, **options}
    return Experiment("cifar10", draws, N_ID, sizes, protocol, **found)


def constant(values, **options):
    """Return GEM on SVHN with these draws of every metric."""
    draws = {"gem": {"svhn": Draws({metric: np.array(values) for metric in METRICS})}}
    return replace(experiment(("svhn",), methods=("gem",), n_draws=len(values), **options), draws=draws)
