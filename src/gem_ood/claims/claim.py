"""What a claim is, what a check finds, and the register that checks enter themselves in."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

__all__ = ["REGISTER", "Check", "Claim", "Finding", "Result", "Verdict", "claim", "corrected", "holds", "loose"]


class Verdict(StrEnum):
    """How a check can end."""

    HOLDS = "holds"
    LOOSE = "holds, loose"
    CORRECTED = "false as printed, corrected here"
    FAILS = "fails"


@dataclass(frozen=True)
class Finding:
    """What a check returns.

    Attributes:
        verdict: How it ended.
        computed: What was computed, with the figures.
        looseness: By how many decades a bound is loose, where that is the verdict.
    """

    verdict: Verdict
    computed: str
    looseness: float | None = None

    @property
    def words(self) -> str:
        """The verdict as it is shown."""
        if self.verdict is Verdict.LOOSE:
            return f"{self.verdict} by {self.looseness:.0f} decades"
        return str(self.verdict)


#: A check draws what it needs from the generator it is given.
Check = Callable[[np.random.Generator], Finding]


@dataclass(frozen=True)
class Claim:
    """A statement, the verdict that is known to be right, and the check of it."""

    item: str
    statement: str
    documented: Verdict
    check: Check


@dataclass(frozen=True)
class Result:
    """One line of the table.

    Attributes:
        item: Such as "P22".
        statement: The claim in a few words.
        computed: What was computed, with the figures.
        verdict: In words, such as "holds, loose by 88 decades".
        found: The kind of verdict.
        documented: The kind that is known to be right.
        seconds: How long the check took.
    """

    item: str
    statement: str
    computed: str
    verdict: str
    found: Verdict
    documented: Verdict
    seconds: float

    @property
    def is_as_documented(self) -> bool:
        """Whether the check found what is known to be right."""
        return self.found is self.documented


#: All claims by item, filled as the rooms of checks are imported.
REGISTER: dict[str, Claim] = {}


def claim(item: str, statement: str, documented: Verdict = Verdict.HOLDS) -> Callable[[Check], Check]:
    """Return a decorator that enters a check as the claim of this item."""

    def enter(check: Check) -> Check:
        REGISTER[item] = Claim(item, statement, documented, check)
        return check

    return enter


def holds(*conditions: object, computed: str) -> Finding:
    """Return the finding of a statement that is true where all conditions are.

    >>> str(holds(1 < 2, 2 < 1, computed="").verdict)
    'fails'
    """
    return Finding(Verdict.HOLDS if all(conditions) else Verdict.FAILS, computed)


def loose(*conditions: object, decades: float, computed: str) -> Finding:
    """Return the finding of a bound that holds and is at least one decade from what it bounds."""
    is_loose = all(conditions) and math.isfinite(decades) and decades >= 1.0
    return Finding(Verdict.LOOSE if is_loose else Verdict.FAILS, computed, float(decades))


def corrected(*, is_false: object, is_mended: object, computed: str) -> Finding:
    """Return the finding of a statement that a counter-example refutes and whose correction holds."""
    return Finding(Verdict.CORRECTED if is_false and is_mended else Verdict.FAILS, computed)
