"""Claims: every checkable statement of the paper, its errata and what goes beyond it, tested on the spot.

P1 to P39 are the paper's statements, E1 to E15 its slips, B1 to B9 what goes beyond it. `verify` runs the checks; each
compares what the library computes with quadrature, Monte Carlo, random configurations or a counter-example, and can
fail. A verdict that differs from the one declared beside the claim means that the library, or the claim, is broken.
"""

from gem_ood.claims.claim import Claim, Finding, Result, Verdict
from gem_ood.claims.verifying import claims, verify

__all__ = ["Claim", "Finding", "Result", "Verdict", "claims", "verify"]
