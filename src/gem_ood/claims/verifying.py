"""`verify`: run the checks, each with a generator of its own."""

import time
from collections.abc import Callable, Iterable
from importlib import import_module

import numpy as np

from gem_ood.claims.claim import REGISTER, Claim, Finding, Result, Verdict
from gem_ood.claims.sharing import sharing
from gem_ood.errors import InputError
from gem_ood.simulation.settings import checked_whole_number

__all__ = ["Progress", "claims", "verify"]

#: Called with how many checks are done, how many there are, and the item at work.
Progress = Callable[[int, int, str], None]

#: The rooms of checks; importing one enters its claims.
ROOMS = (
    "scores",
    "decisions",
    "estimation",
    "bounds",
    "divergences",
    "separation",
    "simulations",
    "errata_theory",
    "errata_wording",
    "beyond_theory",
    "beyond_practice",
)

#: The paper's own statements come first, then its slips, then what goes beyond it.
GROUPS = "PEB"


def claims() -> tuple[Claim, ...]:
    """Return all claims in order: P1 to P39, E1 to E15, B1 to B9.

    >>> [claim.item for claim in claims()][:3], len(claims())
    (['P1', 'P2', 'P3'], 63)
    """
    for room in ROOMS:
        import_module(f"gem_ood.claims.{room}")
    return tuple(sorted(REGISTER.values(), key=lambda claim: (GROUPS.index(claim.item[0]), int(claim.item[1:]))))


def verify(
    items: Iterable[str] | None = None, *, seed: int = 0, progress: Progress | None = None
) -> tuple[Result, ...]:
    """Return what the checks of these items found, all of them if none is named.

    An item's figures depend on the seed and the item alone. A check that raises has failed; the others go on.

    Args:
        items: Such as ["P22", "E5"], in any order and case.
        seed: A whole number of at least 0.
        progress: Called before each check, and at the end.

    >>> [(result.item, result.verdict) for result in verify(["P12", "E9"])]
    [('P12', 'holds'), ('E9', 'false as printed, corrected here')]
    """
    seed = checked_whole_number(seed, name="seed", smallest=0)
    chosen = _chosen(items)
    results = []
    with sharing(seed):
        for n_done, claim in enumerate(chosen):
            if progress is not None:
                progress(n_done, len(chosen), claim.item)
            results.append(_result(claim, seed))
    if progress is not None:
        progress(len(chosen), len(chosen), "")
    return tuple(results)


def _chosen(items: Iterable[str] | None) -> tuple[Claim, ...]:
    every = claims()
    if items is None:
        return every
    wanted = [str(item).strip().upper() for item in ([items] if isinstance(items, str) else items)]
    known = {claim.item for claim in every}
    unknown = [item for item in wanted if item not in known]
    if unknown or not wanted:
        what = f"item {unknown[0]!r} is not one of the claims" if unknown else "items is empty"
        raise InputError(f"{what}; pass any of {_ranges(every)}")
    return tuple(claim for claim in every if claim.item in wanted)


def _ranges(every: tuple[Claim, ...]) -> str:
    counts = {group: sum(claim.item[0] == group for claim in every) for group in GROUPS}
    return ", ".join(f"{group}1 to {group}{count}" for group, count in counts.items())


def _result(claim: Claim, seed: int) -> Result:
    started = time.perf_counter()
    generator = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=tuple(claim.item.encode())))
    try:
        finding = claim.check(generator)
    except Exception as error:  # a broken library must not hide what the other checks have to say
        finding = Finding(Verdict.FAILS, f"the check raised {type(error).__name__}: {error}")
    return Result(
        item=claim.item,
        statement=claim.statement,
        computed=finding.computed,
        verdict=finding.words,
        found=finding.verdict,
        documented=claim.documented,
        seconds=time.perf_counter() - started,
    )
