"""Simulation: the paper's studies on synthetic Gaussians (P34 to P39), at full size and in their exact reduction.

`run_study` draws one of the three studies, `run_studies` several, each point beside its prediction (B3);
`simulate_settings` and `simulate_once` draw any settings. In-distribution rows come from k classes N(r ν_i, σ² I_d),
out-of-distribution rows from N(0, σ² I_d). The paper gives N = 20,000 in-distribution rows, five runs, and the grids of
d and k. What it leaves open (E13) is chosen so; `PROTOCOL` says it, `Study.as_dict` carries it, and every row of
`Study.as_columns` has its numbers, from σ and the sizes to the seed:

- 20,000 out-of-distribution rows.
- r = 1, 2, ..., 20.
- Classes balanced exactly: a fixed number of rows per class, no two of which differ by more than one.
- ν_i has s = ⌊d/k⌋ entries 1/√s at the 0-based positions from (i−1)s up to, not including, is.
- Scores are kept in logs. MSP is ranked by its log odds, so rows whose MSP rounds to 1 keep their order.
- The spread is the standard deviation over runs, with divisor runs − 1.
"""

from gem_ood.simulation.results import Curve, Point, Study
from gem_ood.simulation.running import simulate_settings
from gem_ood.simulation.sampling import draw_scores, simulate_once
from gem_ood.simulation.scoring import SCORES
from gem_ood.simulation.settings import PROTOCOL, Setting, study_means
from gem_ood.simulation.studies import STUDIES, run_studies, run_study

__all__ = [
    "PROTOCOL",
    "SCORES",
    "STUDIES",
    "Curve",
    "Point",
    "Setting",
    "Study",
    "draw_scores",
    "run_studies",
    "run_study",
    "simulate_once",
    "simulate_settings",
    "study_means",
]
