"""Who crashes, returns NaN, or is quietly wrong on input that is ordinary life: singular covariances, odd labels, NaN.

A library is right where its AUROC is no less than that of a reference: the same distances in float64, on the
directions in which the rows vary within their classes. No verdict is typed by hand. Where no score can be right, as
after a NaN in training, a library should refuse, with a message that names what is wrong. A NaN in a query may be
refused or give that row alone a NaN; no queries may be refused or give no scores.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gem_ood.metrics import auroc
from libraries import OURS, first_words, libraries
from peers import Peer
from sections import Section, Table
from timing import Measurement

__all__ = ["robustness"]

DIMENSIONS, CLASSES, ROWS, QUERIES = 32, 4, 2_000, 400
#: Noise of out-of-distribution rows: nearly all are told apart, so that a wrong covariance costs a lot.
OOD_SCALE = 1.8
#: How much less the AUROC of a library may be than the reference's. Scoring by the nearest class and by all differ by
#: less, as does the one step of EM that PyOD cannot do without.
RIGHT_WITHIN = 0.02
#: Eigenvalues of a correlation matrix below this share of the largest are rounding of float32 rows.
MIN_EIGENVALUE = 1e-12
RIGHT, CLEAR = "right", "clear error"


@dataclass(frozen=True, eq=False)
class Case:
    """Rows to fit, rows to score (first in-, then out-of-distribution), and what a refusal should name, if any."""

    name: str
    features: NDArray[Any]
    labels: NDArray[Any]
    queries: NDArray[Any]
    #: A library may refuse, if its message has one of these words.
    refusals: tuple[str, ...] = ()
    #: Whether it should: no score can be right.
    is_refusal_right: bool = False


def robustness(*, with_peers: bool) -> list[Section]:
    """What each library makes of each case, and in how many it is right."""
    compared, cases = libraries(with_peers=with_peers), _cases()
    outcomes = {library.name: [_outcome(library, case) for case in cases] for library in compared}
    measurements = [
        Measurement(
            name,
            (float(sum(cell in (RIGHT, CLEAR) for cell in cells)),),
            f"of {len(cases)} cases right",
            at_least=len(cases) if name == OURS else None,
        )
        for name, cells in outcomes.items()
    ]
    rows = [(case.name, *cells) for case, *cells in zip(cases, *outcomes.values(), strict=True)]
    title = f"Robustness: what each library makes of odd input, {DIMENSIONS} features, {CLASSES} classes"
    return [Section("robustness", title, measurements=measurements, table=Table(("", *outcomes), rows))]


def _cases() -> list[Case]:
    """All cases: variations of one draw."""
    rng = np.random.default_rng(0)
    # Columns of unlike size that share a part, as penultimate features do.
    mixing = np.eye(DIMENSIONS) + 0.3 * rng.standard_normal((DIMENSIONS, DIMENSIONS)) / DIMENSIONS**0.5
    means = rng.standard_normal((CLASSES, DIMENSIONS))

    def rows(labels: NDArray[np.int64], scale: float = 1.0) -> NDArray[np.float32]:
        return ((means[labels] + scale * rng.standard_normal((labels.size, DIMENSIONS))) @ mixing).astype(np.float32)

    labels, places = np.arange(ROWS) % CLASSES, np.arange(QUERIES) % CLASSES
    queries = np.concatenate([rows(places), rows(places, OOD_SCALE)])
    plain = Case("plain", rows(labels), labels, queries)
    return [plain, *_singular(plain, rng), *_labelled_oddly(plain), *_valued_oddly(plain)]


def _singular(plain: Case, rng: np.random.Generator) -> list[Case]:
    few = DIMENSIONS - CLASSES
    constant, waking = plain.features.copy(), plain.queries.copy()
    constant[:, 0] = 1.0
    waking[:, 0] = 1.0 + rng.standard_normal(len(waking))
    return [
        replace(plain, name="fewer rows than dimensions", features=plain.features[:few], labels=plain.labels[:few]),
        replace(
            plain,
            name="a duplicated column",
            features=np.column_stack([plain.features, plain.features[:, 0]]),
            queries=np.column_stack([plain.queries, plain.queries[:, 0]]),
        ),
        replace(plain, name="a column constant in training only", features=constant, queries=waking),
    ]


def _labelled_oddly(plain: Case) -> list[Case]:
    names = np.array(["ant", "bee", "cat", "dog"])
    is_kept = (plain.labels != CLASSES - 1) | (np.arange(ROWS) == CLASSES - 1)
    return [
        replace(plain, name="a class without rows", labels=np.where(plain.labels > 1, plain.labels + 1, plain.labels)),
        replace(plain, name="a class with one row", features=plain.features[is_kept], labels=plain.labels[is_kept]),
        replace(plain, name="a single class", labels=np.zeros_like(plain.labels)),
        replace(plain, name="labels that are strings", labels=names[plain.labels]),
    ]


def _valued_oddly(plain: Case) -> list[Case]:
    large = np.ones(DIMENSIONS, np.float32)
    large[0] = 1e30
    finite, nothing = ("nan", "finite", "missing"), ("0 sample", "n_samples=0", "no rows", "empty")
    return [
        replace(
            plain,
            name="float16 rows",
            features=plain.features.astype(np.float16),
            queries=plain.queries.astype(np.float16),
        ),
        replace(plain, name="a column of size 1e30", features=plain.features * large, queries=plain.queries * large),
        replace(
            plain,
            name="one NaN in training",
            features=_with_nan(plain.features),
            refusals=finite,
            is_refusal_right=True,
        ),
        replace(plain, name="one NaN in a query", queries=_with_nan(plain.queries), refusals=finite),
        replace(plain, name="no queries", queries=plain.queries[:0], refusals=nothing),
    ]


def _with_nan(rows: NDArray[Any]) -> NDArray[Any]:
    rows = rows.copy()
    rows[1, 1] = np.nan
    return rows


def _outcome(library: Peer, case: Case) -> str:
    """The cell of the table."""
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            detector = library.fitter(case.features, case.labels)()
            scores = np.asarray(library.scorer(detector, case.queries)(), np.float64)
    except Exception as error:  # a peer may fail in any way, and its cell says how
        is_clear = any(word in str(error).lower() for word in case.refusals)
        return CLEAR if is_clear else first_words(error)
    if scores.shape != (len(case.queries),):
        return f"scores of shape {scores.shape} for {len(case.queries)} rows"
    if case.is_refusal_right:
        return f"NaN in {np.isnan(scores).mean():.0%} of the scores" if np.isnan(scores).any() else "scores, unwarned"
    return _judged(scores, case)


def _judged(scores: NDArray[np.float64], case: Case) -> str:
    """Scores against the reference, on the rows that have no NaN."""
    if len(scores) == 0:
        return RIGHT
    is_whole = np.isfinite(case.queries).all(axis=1)
    if np.isfinite(scores[~is_whole]).any():
        return "a score for the NaN, unwarned"
    n_lost = int((~np.isfinite(scores[is_whole])).sum())
    if n_lost:
        return f"NaN or infinite in {n_lost / is_whole.sum():.0%} of the scores"
    is_ood = np.repeat([False, True], len(scores) // 2)
    found, right = (_auroc(values, is_ood, is_whole) for values in (scores, _reference(case)))
    return RIGHT if found >= right - RIGHT_WITHIN else f"AUROC {found:.3f} (should be {right:.3f})"


def _auroc(scores: NDArray[np.float64], is_ood: NDArray[np.bool_], is_whole: NDArray[np.bool_]) -> float:
    return float(auroc(-scores[is_whole & ~is_ood], -scores[is_whole & is_ood]))


def _reference(case: Case) -> NDArray[np.float64]:
    """Squared distance to the nearest class, by the pseudo-inverse of the correlation matrix, in float64."""
    features, queries = case.features.astype(np.float64), case.queries.astype(np.float64)
    classes, codes = np.unique(case.labels, return_inverse=True)
    means = np.stack([features[codes == code].mean(axis=0) for code in range(len(classes))])
    centred = features - means[codes]
    scales = centred.std(axis=0)
    scales[scales < 1e-6 * np.abs(means).max(axis=0)] = np.inf  # a constant column counts in no distance
    values, vectors = np.linalg.eigh((centred / scales).T @ (centred / scales) / len(features))
    is_kept = values > MIN_EIGENVALUE * values[-1]
    whitener = vectors[:, is_kept] / np.sqrt(values[is_kept])
    return np.min([np.sum(((queries - mean) / scales @ whitener) ** 2, axis=1) for mean in means], axis=0)
