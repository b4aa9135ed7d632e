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

#: How well sets are told apart, by the mean share of out-of-distribution rows that is let through.
GRADES = ((0.05, "almost completely"), (0.20, "well"), (0.50, "in part"), (0.80, "poorly"), (1.01, "hardly at all"))

#: With fewer rows a measured rate says little: half of its 95 % range is at most 0.98 / sqrt(n).
FEW_ROWS = 100

TRUST_WORDS = {
    "close": "The classes are close to Gaussian: rates that theory predicts can be relied on to within a few points.",
    "rough": "The classes are only roughly Gaussian: rates that theory predicts are for orientation.",
    "poor": "The classes are far from Gaussian: do not rely on rates that theory predicts. Calibrated thresholds hold "
    "all the same.",
    "unclear": "There are too few rows to tell how Gaussian the classes are.",
}


def headline(comparison: Comparison, lead: str, threshold: Threshold | None) -> str:
    """Return the verdict in one sentence, about the detector that is shown first."""
    one = comparison.detectors[lead]
    if not comparison.n_ood:
        return _headline_without_sets(one, comparison, lead, threshold)
    if threshold is None or one.flagged is None or one.id_kept is None:
        missed = {ood: one.value("fpr", ood) for ood in comparison.n_ood}
        return (
            f"{lead} tells {_sets(missed)} from in-distribution rows {_grade(missed)}: at a threshold that keeps "
            f"{asked(comparison.tpr)} of these, it lets through {_spread(missed)}."
        )
    missed = {ood: 1.0 - share for ood, share in one.flagged.items()}
    return (
        f"{lead} tells {_sets(missed)} from in-distribution rows {_grade(missed)}: it keeps {percent(one.id_kept)} of "
        f"{comparison.n_id:,} in-distribution rows and flags {_spread(one.flagged)}."
    )


def _headline_without_sets(
    one: DetectorComparison, comparison: Comparison, lead: str, threshold: Threshold | None
) -> str:
    if threshold is None or one.id_kept is None:
        return (
            f"{comparison.n_id:,} in-distribution rows were scored; {lead} has no threshold yet and there is no "
            f"out-of-distribution set, so nothing can be said about what is kept or caught."
        )
    return (
        f"{lead} keeps {percent(one.id_kept)} of {comparison.n_id:,} in-distribution rows; what it catches is unknown, "
        f"as there is no out-of-distribution set."
    )


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
    if threshold is not None and kept is not None:
        found.append(_realised(threshold, kept))
    found += _about_sets(comparison, lead)
    if diagnosis is not None:
        found.append(TRUST_WORDS[diagnosis.trust])
    return found


def _realised(threshold: Threshold, kept: "KeptShares") -> str:
    low, high = kept.own_low, kept.own_high
    words = (
        f"Asked to keep {asked(threshold.tpr)}, it kept {percent(kept.own_realised)} of {kept.n_test:,} new rows; 95 "
        f"times in 100 this lies between {percent(low)} and {percent(high)} if they are like the calibration rows"
    )
    if low <= kept.own_realised <= high:
        return f"{words}, as it does here."
    return (
        f"{words}. It does not: these rows differ from those it was calibrated on, or it was calibrated on rows of the "
        f"fit."
    )


def _about_sets(comparison: Comparison, lead: str) -> list[str]:
    if len(comparison.n_ood) < 2 or len(comparison.detectors) < 2:
        return []
    one, found = comparison.detectors[lead], []
    weakest = max(comparison.n_ood, key=lambda ood: one.value("fpr", ood))
    winners = comparison.best("fpr", weakest)
    if winners and lead not in winners:
        missed, best = (percent(comparison.detectors[name].value("fpr", weakest)) for name in (lead, winners[0]))
        found.append(
            f"{lead} is weakest on {weakest}: where exactly {asked(comparison.tpr)} of in-distribution rows are kept, "
            f"{missed} of these pass. {_listed(winners)} {'is' if len(winners) == 1 else 'are'} the best there, with "
            f"{best}."
        )
    if not set.intersection(*(set(comparison.best("fpr", ood)) for ood in comparison.n_ood)):
        found.append("No detector is the best on every set: choose by the sets that are most like what you expect.")
    return found


def caveats(comparison: Comparison, thresholds: Mapping[str, Threshold | None], notes: Iterable[str] = ()) -> list[str]:
    """Return what the report cannot tell, a sentence each."""
    found = []
    if not comparison.n_ood:
        found.append("No out-of-distribution set was given: error rates, curves and the comparison need one.")
    without = [name for name, threshold in thresholds.items() if threshold is None]
    remedy = "calibrate on held-out in-distribution rows for verdicts with a guarantee."
    if len(without) == len(thresholds):
        found.append(f"No detector has a threshold: {remedy}")
    elif without:
        found.append(f"{_listed(without)} {'has' if len(without) == 1 else 'have'} no threshold: {remedy}")
    sizes = {"the in-distribution set": comparison.n_id} | dict(comparison.n_ood)
    few = [f"{name} ({n_rows:,})" for name, n_rows in sizes.items() if n_rows < FEW_ROWS]
    if few:
        found.append(f"Few rows: {_listed(few)}. Rates measured on so few are uncertain by 10 points or more.")
    return [*found, *notes]


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


def _grade(missed: Mapping[str, float]) -> str:
    mean = statistics.fmean(missed.values())
    return next(word for limit, word in GRADES if mean <= limit)


def _sets(shares: Mapping[str, float]) -> str:
    return next(iter(shares)) if len(shares) == 1 else f"{len(shares)} out-of-distribution sets"


def _spread(shares: Mapping[str, float]) -> str:
    if len(shares) == 1:
        return f"{percent(next(iter(shares.values())))} of the others"
    low, high = (choose(shares, key=lambda ood: shares[ood]) for choose in (min, max))
    mean = percent(statistics.fmean(shares.values()))
    return f"{mean} of the others on average, from {percent(shares[low])} ({low}) to {percent(shares[high])} ({high})"


def _listed(names: Sequence[str], n_shown: int = 5) -> str:
    shown = list(names[:n_shown]) + ([f"{len(names) - n_shown} more"] if len(names) > n_shown else [])
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"
