"""What a report says in plain sentences: no more than was measured."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from gem_ood.comparison import Comparison, DetectorComparison
from gem_ood.thresholds import Threshold

if TYPE_CHECKING:
    from gem_ood.reports.panels.kept import KeptShares
    from gem_ood.theory import Diagnosis

__all__ = ["caveats", "findings", "headline"]

#: How well sets are told apart, by the mean AUROC from which on it is called so: neither a threshold nor a convention
#: moves it.
GRADES = ((0.99, "almost completely"), (0.95, "well"), (0.85, "in part"), (0.70, "poorly"), (0.0, "hardly at all"))

#: A kept share this unlikely is not put down to chance: one report in a thousand would be wrong.
SURE_CHANCE = 0.001

#: With fewer rows a measured rate says little: half of its 95 % range is at most 0.98 / sqrt(n).
FEW_ROWS = 100

TRUST_WORDS = {
    "close": "The classes are close to Gaussian: rates that theory predicts can be relied on to within a few points.",
    "rough": "The classes are only roughly Gaussian: rates that theory predicts are for orientation.",
    "poor": "The classes are far from Gaussian: do not rely on rates that theory predicts. Calibrated thresholds hold "
    "all the same.",
    "unclear": "There are too few rows to tell how Gaussian the classes are.",
}


def headline(comparison: Comparison, lead: str, kept: "KeptShares | None") -> str:
    """Return the verdict in one or two sentences, about the detector that is shown first."""
    one = comparison.detectors[lead]
    if not comparison.n_ood:
        return _headline_without_sets(comparison, lead, kept)
    verdict = f"{lead} tells {_sets(comparison)} from in-distribution rows {_grade(comparison, one)}"
    if kept is not None and kept.own_chance < SURE_CHANCE:
        return f"{_misfit(comparison, lead, kept)}. Beside that, {verdict}."
    if kept is None or one.flagged is None:
        return f"{verdict}: {_at_rate(comparison, one)}."
    return (
        f"{verdict}: asked to keep {asked(kept.own_asked)}, its threshold keeps {percent(kept.own_realised)} of "
        f"{_rows(comparison.n_id)} and flags {_spread(one.flagged, 'the others')}."
    )


def _at_rate(comparison: Comparison, one: DetectorComparison) -> str:
    """Return what passes, or is flagged in vain, at the threshold where the false positive rate is read."""
    rates = {ood: one.value("fpr", ood) for ood in comparison.n_ood}
    if comparison.convention == "openood":
        return f"where about {asked(comparison.tpr)} of the others are flagged, so are {_spread(rates, 'these')}"
    return f"where about {asked(comparison.tpr)} of these are kept, so are {_spread(rates, 'the others')}"


def _misfit(comparison: Comparison, name: str, kept: "KeptShares") -> str:
    return (
        f"The threshold of {name} does not fit these rows: asked to keep {asked(kept.own_asked)}, it keeps "
        f"{percent(kept.own_realised)} of {_rows(comparison.n_id)}"
    )


def _headline_without_sets(comparison: Comparison, lead: str, kept: "KeptShares | None") -> str:
    unknown = "what it catches is unknown, as there is no out-of-distribution set"
    if kept is None:
        return f"{_rows(comparison.n_id, 'was', 'were')} scored. {lead} has no threshold yet, and {unknown}."
    if kept.own_chance < SURE_CHANCE:
        return f"{_misfit(comparison, lead, kept)}; {unknown}."
    return f"{lead} keeps {percent(kept.own_realised)} of {_rows(comparison.n_id)}; {unknown}."


def _rows(n_rows: int, one: str = "", many: str = "") -> str:
    words = f"{n_rows:,} in-distribution {'row' if n_rows == 1 else 'rows'}"
    return f"{words} {one if n_rows == 1 else many}".rstrip()


def findings(
    comparison: Comparison,
    lead: str,
    threshold: Threshold | None,
    kept: "KeptShares | None",
    diagnosis: "Diagnosis | None",
) -> list[str]:
    """Return what else is worth knowing, a sentence each."""
    found = []
    if threshold is not None:
        found.append(threshold.guarantee)
    if kept is not None:
        found.append(_realised(kept))
    found += [*_about_better(comparison, lead), *_about_sets(comparison, lead)]
    if diagnosis is not None:
        found.append(TRUST_WORDS[diagnosis.trust])
    return found


def _realised(kept: "KeptShares") -> str:
    words = (
        f"Asked to keep {asked(kept.own_asked)}, it kept {percent(kept.own_realised)} of {kept.n_test:,} new "
        f"{'row' if kept.n_test == 1 else 'rows'}; 95 times in 100 this lies from {percent(kept.own_low)} to "
        f"{percent(kept.own_high)} if they are like the calibration rows"
    )
    if kept.own_low <= kept.own_realised <= kept.own_high:
        return f"{words}, as it does here."
    if kept.own_chance >= SURE_CHANCE:
        return f"{words}. It does not here, which chance alone brings about one time in twenty."
    if kept.own_realised > kept.own_high:
        return f"{words}. It is more: these rows are easier than the calibration rows, or many scores are tied."
    return (
        f"{words}. It is less: these rows are harder than the calibration rows, which is so too where a detector is "
        f"calibrated on rows of its fit."
    )


def _about_better(comparison: Comparison, lead: str) -> list[str]:
    """Tell of a detector that is better on average but cannot lead, as it has no threshold."""
    best = comparison.ranking("fpr")[0]
    if not comparison.n_ood or lead in (best, *comparison.best("fpr")):
        return []
    theirs, own = (percent(comparison.detectors[name].mean("fpr")) for name in (best, lead))
    return [f"{best} is better but has no threshold yet: its mean FPR is {theirs}, that of {lead} {own}."]


def _about_sets(comparison: Comparison, lead: str) -> list[str]:
    if len(comparison.n_ood) < 2 or len(comparison.detectors) < 2:
        return []
    one, found = comparison.detectors[lead], []
    weakest = max(comparison.n_ood, key=lambda ood: one.value("fpr", ood))
    winners = comparison.best("fpr", weakest)
    if winners and lead not in winners:
        rates = (percent(comparison.detectors[name].value("fpr", weakest)) for name in (lead, winners[0]))
        own, best = rates
        found.append(
            f"{lead} is weakest on {weakest}, with an FPR of {own}. {_listed(winners)} "
            f"{'is' if len(winners) == 1 else 'are'} the best there, with {best}."
        )
    if not set.intersection(*(set(comparison.best("fpr", ood)) for ood in comparison.n_ood)):
        found.append("No detector is the best on every set: choose by the sets that are most like what you expect.")
    return found


def caveats(
    comparison: Comparison, lead: str, kept: "Mapping[str, KeptShares | None]", notes: Iterable[str] = ()
) -> list[str]:
    """Return what the report cannot tell, a sentence each; `kept` has None for a detector without a threshold."""
    found = []
    if not comparison.n_ood:
        found.append(
            "No out-of-distribution set was given: false positive rates, curves and the ranking need at least one."
        )
    without = [name for name, shares in kept.items() if shares is None]
    remedy = "calibrate on held-out in-distribution rows for verdicts with a guarantee."
    if len(without) == len(kept):
        found.append(f"No detector has a threshold: {remedy}")
    elif without:
        found.append(f"{_listed(without)} {'has' if len(without) == 1 else 'have'} no threshold: {remedy}")
    for name, shares in kept.items():
        # The headline tells of the lead. Many detectors are many chances to be unlucky.
        if shares is not None and name != lead and shares.own_chance < SURE_CHANCE / len(kept):
            found.append(f"{_misfit(comparison, name, shares)}.")
    sizes = {"the in-distribution set": comparison.n_id} | dict(comparison.n_ood)
    few = [f"{name} ({n_rows:,})" for name, n_rows in sizes.items() if n_rows < FEW_ROWS]
    if few:
        found.append(f"Few rows: {_listed(few)}. Rates measured on so few can be off by 10 points and more.")
    return [*found, *map(_sentence, notes)]


def _sentence(note: str) -> str:
    """Return a remark that begins and ends as a sentence does."""
    text = note.strip()
    return f"{text[:1].upper()}{text[1:]}{'' if text.endswith(('.', '!', '?')) else '.'}"


def percent(share: float) -> str:
    """Return a share as sentences write it.

    >>> percent(0.9333), percent(1.0)
    ('93.3 %', '100.0 %')
    """
    return f"{100.0 * share:.1f} %"


def asked(share: float) -> str:
    """Return a share that was asked for, as short as it was written.

    >>> asked(0.95), asked(0.999)
    ('95 %', '99.9 %')
    """
    return f"{100.0 * share:g} %"


def _grade(comparison: Comparison, one: DetectorComparison) -> str:
    area = one.mean("auroc")
    word = next(word for limit, word in GRADES if area >= limit)
    return f"{word} ({'AUROC' if len(comparison.n_ood) == 1 else 'mean AUROC'} {percent(area)})"


def _sets(comparison: Comparison) -> str:
    n_sets = len(comparison.n_ood)
    return next(iter(comparison.n_ood)) if n_sets == 1 else f"{n_sets} out-of-distribution sets"


def _spread(shares: Mapping[str, float], whom: str) -> str:
    low, high = (choose(shares, key=lambda ood: shares[ood]) for choose in (min, max))
    if percent(shares[low]) == percent(shares[high]):
        return f"{percent(shares[low])} of {whom}"
    mean = percent(statistics.fmean(shares.values()))
    return f"{mean} of {whom} on average, from {percent(shares[low])} ({low}) to {percent(shares[high])} ({high})"


def _listed(names: Sequence[str], n_shown: int = 5) -> str:
    shown = list(names[:n_shown]) + ([f"{len(names) - n_shown} more"] if len(names) > n_shown else [])
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"
