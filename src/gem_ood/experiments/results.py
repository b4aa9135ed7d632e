"""Experiment: the numbers of the paper's tables for one network, beside the paper's own."""

import csv
import io
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Literal

import numpy as np

from gem_ood.comparison import MEAN, METRICS
from gem_ood.comparison.rendering import latex_of, markdown_of, text_of
from gem_ood.errors import InputError
from gem_ood.experiments.paper_numbers import PAPER_METRICS, PaperTable
from gem_ood.experiments.protocol import Draws, Protocol
from gem_ood.plain import plain
from gem_ood.thresholds import as_probability

__all__ = ["Experiment", "Verdict"]

#: Whether a number is as near the paper's as draws of the same set are to each other.
Verdict = Literal["within", "beyond"]

#: How many standard deviations of a draw still count as its spread: 95 % of draws lie within two.
SPREADS = 2.0

#: At which true positive rate the paper reads the false positive rate.
PAPER_TPR = Fraction(19, 20)

#: The paper prints two decimals of a percentage, so its numbers are off by up to half of the last one.
ROUNDING = 0.5e-4


@dataclass(frozen=True)
class Experiment:
    """Every method on every out-of-distribution set under the protocol; print it for the tables in percent.

    Attributes:
        name: The in-distribution set.
        draws: The metrics of each draw, by method and set.
        n_id: Number of in-distribution test rows.
        n_ood: Number of rows of each set that draws are taken from.
        protocol: How they were drawn and measured.
        id_error: Share of the in-distribution test rows that the network classifies wrongly (P53); None without labels.
        paper: What the paper prints for the same set, if it does.
        left_out: Why methods of the catalogue could not be fitted, by name.
        notes: What else to know about the numbers.
        sources: What each set was read from, where that is known.

    >>> draws = {"gem": {"svhn": Draws({metric: np.array([0.2, 0.4]) for metric in METRICS})}}
    >>> result = Experiment("blobs", draws, n_id=50, n_ood={"svhn": 20}, protocol=Protocol(n_draws=2))
    >>> print(f"{result.value('gem', 'fpr'):.2f} ± {result.spread('gem', 'fpr'):.2f}")
    0.30 ± 0.14
    """

    name: str
    draws: Mapping[str, Mapping[str, Draws]]
    n_id: int
    n_ood: Mapping[str, int]
    protocol: Protocol
    id_error: float | None = None
    paper: PaperTable | None = None
    left_out: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    sources: Mapping[str, str] = field(default_factory=dict)

    @property
    def methods(self) -> tuple[str, ...]:
        """The names of the methods, in the order of the tables."""
        return tuple(self.draws)

    @property
    def averaged(self) -> tuple[str, ...]:
        """The sets that the mean is taken over: those that the paper has too, or all where it has none of them."""
        known = () if self.paper is None else tuple(ood for ood in self.n_ood if ood in self.paper.sets)
        return known or tuple(self.n_ood)

    def n_drawn(self, ood: str) -> int:
        """Return how many rows of a set a draw has."""
        return self.protocol.n_rows(n_id=self.n_id, n_ood=self.n_ood[self._known(ood)])

    def value(self, method: str, metric: str, ood: str = MEAN) -> float:
        """Return a metric on one set, averaged over its draws, or the mean over the sets."""
        found = self._of(method, metric)
        if ood == MEAN:
            return float(np.mean([found[name].mean(metric) for name in self.averaged]))
        return found[self._known(ood)].mean(metric)

    def spread(self, method: str, metric: str, ood: str = MEAN) -> float:
        """Return the standard deviation over draws of a metric on one set, or of its mean over the sets.

        Draws of different sets are independent, so the variance of their mean is the sum of theirs over n².
        """
        found = self._of(method, metric)
        if ood != MEAN:
            return found[self._known(ood)].spread(metric)
        spreads = [found[name].spread(metric) for name in self.averaged]
        return math.sqrt(math.fsum(spread * spread for spread in spreads)) / len(spreads)

    def printed(self, method: str, metric: str, ood: str = MEAN) -> float | None:
        """Return the paper's own number; of a mean over fewer than its six sets, that over its numbers for these.

        None where it has none, as of a false positive rate at another true positive rate than 95 %.
        """
        self._of(method, metric)
        if ood != MEAN:
            self._known(ood)
        if self.paper is None or (metric == "fpr" and not self.is_at_paper_tpr):
            return None
        if ood == MEAN:
            return self.paper.mean(method, metric, self.averaged)
        return self.paper.value(method, metric, ood)

    @property
    def is_at_paper_tpr(self) -> bool:
        """Whether the false positive rate is read at the paper's 95 % of in-distribution rows kept."""
        return as_probability(self.protocol.tpr, name="tpr") == PAPER_TPR

    def difference(self, method: str, metric: str, ood: str = MEAN) -> float | None:
        """Return this number minus the paper's; None where the paper has none, or one of another ratio of rows.

        AUPR depends on how many rows there are of either kind; the paper's are all at five to one.
        """
        printed = self.printed(method, metric, ood)
        if printed is None or (metric == "aupr_in" and not self.is_at_ratio(ood)):
            return None
        return self.value(method, metric, ood) - printed

    def is_at_ratio(self, ood: str = MEAN) -> bool:
        """Return whether a draw of a set, or of all sets that are averaged, has a fifth of the in-distribution rows."""
        return all(self.n_drawn(name) == self.n_id // 5 for name in (self.averaged if ood == MEAN else (ood,)))

    def verdict(self, method: str, metric: str, ood: str = MEAN) -> Verdict | None:
        """Return whether the difference lies within two standard deviations of a draw.

        None without a difference, and where a set has one draw only, which has no spread.
        """
        difference = self.difference(method, metric, ood)
        if difference is None or not self.has_spread(ood):
            return None
        return _verdict(difference, SPREADS * self.spread(method, metric, ood))

    def has_spread(self, ood: str = MEAN) -> bool:
        """Return whether a set, or each of those that are averaged, has several draws."""
        sets = self.averaged if ood == MEAN else (self._known(ood),)
        return all(draws[name].has_spread for draws in self.draws.values() for name in sets)

    def error_verdict(self) -> Verdict | None:
        """Return whether the network's test error is the paper's, as rounded; draws do not change it."""
        if self.paper is None or self.id_error is None:
            return None
        return _verdict(self.id_error - self.paper.id_error / 100.0, 0.0)

    def n_within(self) -> tuple[int, int]:
        """Return how many numbers of the tables are within the spread of draws, and how many have a verdict."""
        sets = self.n_ood if len(self.n_ood) > 1 else ()  # the mean over one set is that set, and said once
        cells = [(ood, metric) for ood in (*sets, MEAN) for metric in PAPER_METRICS]
        verdicts = [self.verdict(method, metric, ood) for method in self.methods for ood, metric in cells]
        known = [verdict for verdict in verdicts if verdict is not None]
        return known.count("within"), len(known)

    def gain(self, metric: str = "fpr") -> tuple[float, float | None] | None:
        """Return by how much GEM's mean lies under Energy's (P48), here and in the paper; None if one is not there."""
        if not {"gem", "energy"} <= set(self.draws):
            return None
        printed = [self.printed(method, metric) for method in ("energy", "gem")]
        own = self.value("energy", metric) - self.value("gem", metric)
        return own, None if None in printed else printed[0] - printed[1]  # type: ignore[operator]

    def __str__(self) -> str:
        return self.to_text()

    def to_text(self) -> str:
        """Return the main table and the table of each set as text, in percent, with the paper's numbers if any."""
        return "\n\n".join(text_of(table, title=title) for title, table in self._tables())

    def to_markdown(self) -> str:
        """Return both tables as Markdown."""
        return "\n".join(markdown_of(table, title=title) for title, table in self._tables())

    def to_latex(self) -> str:
        r"""Return both tables as LaTeX tabulars for `\usepackage{booktabs}`."""
        return "\n".join(latex_of(table, title=title) for title, table in self._tables())

    def to_csv(self) -> str:
        """Return one line per method, set and metric, as fractions, with spread, printed number and verdict."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(
            ["method", "set", "metric", "value", "spread", "paper", "difference", "verdict", "n_id", "n_drawn"]
        )
        for method in self.methods:
            for ood in (*self.n_ood, MEAN):
                for metric in METRICS:
                    cells = ["" if cell is None else cell for cell in self._record(method, metric, ood).values()]
                    n_drawn = "" if ood == MEAN else self.n_drawn(ood)
                    writer.writerow([method, ood, metric, *cells, self.n_id, n_drawn])
        return text.getvalue()

    def to_json(self) -> str:
        """Return everything as one JSON object."""
        return json.dumps(plain(self.as_dict()), ensure_ascii=False, allow_nan=False, indent=1) + "\n"

    def as_dict(self) -> dict[str, Any]:
        """Return everything as plain values: each metric by method and set, with draws, printed number and verdict."""
        gain = self.gain()
        return {
            "name": self.name,
            "n_id": self.n_id,
            "n_ood": dict(self.n_ood),
            "n_drawn": {ood: self.n_drawn(ood) for ood in self.n_ood},
            "protocol": plain(self.protocol),
            "id_error": self.id_error,
            "paper_id_error": None if self.paper is None else self.paper.id_error / 100.0,
            "id_error_verdict": self.error_verdict(),
            "averaged": list(self.averaged),
            "methods": {method: self._method_dict(method) for method in self.methods},
            "gain": None if gain is None else {"value": gain[0], "paper": gain[1]},
            "left_out": dict(self.left_out),
            "notes": list(self.notes),
            "sources": dict(self.sources),
        }

    def _method_dict(self, method: str) -> dict[str, Any]:
        def entry(metric: str, ood: str) -> dict[str, Any]:
            draws = {} if ood == MEAN else {"draws": self.draws[method][ood].values[metric].tolist()}
            return self._record(method, metric, ood) | draws

        return {ood: {metric: entry(metric, ood) for metric in METRICS} for ood in (*self.n_ood, MEAN)}

    def _record(self, method: str, metric: str, ood: str) -> dict[str, Any]:
        cell = (method, metric, ood)
        return {
            "value": self.value(*cell),
            "spread": self.spread(*cell) if self.has_spread(ood) else None,
            "paper": self.printed(*cell) if metric in PAPER_METRICS else None,
            "difference": self.difference(*cell),
            "verdict": self.verdict(*cell),
        }

    def _tables(self) -> list[tuple[str, Any]]:
        from gem_ood.experiments.tables import main_table, set_table

        return [main_table(self), *([set_table(self)] if len(self.n_ood) > 1 else [])]

    def _of(self, method: str, metric: str) -> Mapping[str, Draws]:
        if method not in self.draws:
            raise InputError(f"there is no method {method!r}; choose among {', '.join(self.draws)}")
        if metric not in METRICS:
            raise InputError(f"there is no metric {metric!r}; choose among {', '.join(METRICS)}")
        return self.draws[method]

    def _known(self, ood: str) -> str:
        if ood not in self.n_ood:
            raise InputError(f"there is no set {ood!r}; choose among {', '.join([*self.n_ood, MEAN])}")
        return ood


def _verdict(difference: float, spread: float) -> Verdict:
    return "within" if abs(difference) <= spread + ROUNDING + 1e-12 else "beyond"
