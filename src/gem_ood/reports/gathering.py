"""gather and write: a report from detectors and rows, which are read once, whatever their number."""

import os
import platform
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Literal, TypedDict, Unpack, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gem_ood._version import __version__
from gem_ood.comparison import Comparison
from gem_ood.comparison.comparing import MeasureOptions, measure
from gem_ood.comparison.measured import IN_DISTRIBUTION
from gem_ood.comparison.scoring import Rows, ScoredSets, check_sets, named_detectors, score_sets
from gem_ood.detectors import Detector
from gem_ood.detectors.columns import without_names_warning
from gem_ood.errors import InputError
from gem_ood.extras import require_extra
from gem_ood.features import is_count
from gem_ood.reports.panels.curves import detection_curves
from gem_ood.reports.panels.histograms import score_histogram
from gem_ood.reports.panels.images import Images, open_images
from gem_ood.reports.panels.kept import kept_shares
from gem_ood.reports.panels.maps import LARGEST_SEED, Method, place_rows
from gem_ood.reports.panels.quantiles import chi2_curves
from gem_ood.reports.report import DetectorReport, DiagnosisReport, FeatureMap, Report, Run, check_page_path
from gem_ood.reports.watching import RowWatch
from gem_ood.reports.wording import caveats, findings, headline
from gem_ood.thresholds import RankedScores

__all__ = ["ReportOptions", "gather", "write"]

#: How many surprising rows are shown of each detector.
SURPRISES = 20

#: How many rows the map draws unless told otherwise: UMAP places so many in seconds.
MAP_ROWS = 2000

#: Beyond this many rows UMAP takes minutes, and a page with so many points is slow.
MOST_MAP_ROWS = 4000

#: What the steps are called, in their order.
SCORING, MEASURING, MAPPING = "scoring", "measuring", "placing rows on the map"

#: The name under which pictures of in-distribution rows are given.
ID = "id"

PACKAGES = ("numpy", "scipy", "scikit-learn", "plotly", "umap-learn")


class ReportOptions(TypedDict, total=False):
    """The arguments of `gather` that may be left out."""

    labels: ArrayLike | None
    images: Mapping[str, Any] | None
    map: Method | None
    map_rows: int
    tpr: float
    convention: Literal["paper", "openood"]
    intervals: Literal["bootstrap", "delong"] | None
    title: str
    command: str | None
    notes: Iterable[str]
    random_state: int
    on_evaluated: Callable[[int, int], None] | None
    on_step: Callable[[str], None] | None


def gather(
    detectors: Mapping[str, Detector] | Sequence[Detector],
    *,
    id: Rows,
    ood: Mapping[str, Rows] | None = None,
    labels: ArrayLike | None = None,
    images: Mapping[str, Any] | None = None,
    map: Method | None = "auto",
    map_rows: int = MAP_ROWS,
    tpr: float = 0.95,
    convention: Literal["paper", "openood"] = "paper",
    intervals: Literal["bootstrap", "delong"] | None = None,
    title: str = "gem-ood report",
    command: str | None = None,
    notes: Iterable[str] = (),
    random_state: int = 0,
    on_evaluated: Callable[[int, int], None] | None = None,
    on_step: Callable[[str], None] | None = None,
) -> Report:
    """Return a report on detectors: what they keep, what they catch, and the rows that surprise them.

    Each set is read once, in batches; only scores, a sample and the most surprising rows are kept.

    Args:
        detectors: Fitted detectors by name, or a sequence of them; calibrate them for verdicts.
        id: In-distribution rows that no fit has seen: an array, or batches such as an opened feature file.
        ood: Out-of-distribution rows, by name of the set; none, if there are none.
        labels: One label per row of an `id` that is an array.
        images: Pictures of the rows by name of the set, `"id"` for the in-distribution one: an array, a `.npy` or
            `.npz` file, a directory of image files, or a list of such files; thumbnails of surprising rows are shown.
        map: How features are placed in two dimensions: `"umap"`, `"pca"`, `"auto"` (UMAP where it is installed), or
            None for no map.
        map_rows: How many rows the map draws, at most 4,000.
        tpr: The true positive rate at which the false positive rate is read.
        convention: Of the metrics, as `gem_ood.metrics.evaluate`.
        intervals: Of the metrics, as `gem_ood.metrics.evaluate`.
        title: Of the page.
        command: The command line that makes this report, to be shown.
        notes: Sentences to show among the caveats.
        random_state: Seed of the sample, the map and the intervals.
        on_evaluated: As that of `gem_ood.compare`.
        on_step: Called with the name of each step as it begins.

    Example:
        >>> from gem_ood import GEM
        >>> rng = np.random.default_rng(0)
        >>> X, y = rng.normal(size=(600, 4)), np.arange(600) % 3
        >>> X[:, 0] += 5.0 * y
        >>> gem = GEM().fit(X[:300], y[:300]).calibrate(X[300:500])
        >>> report = gather([gem], id=X[500:], labels=y[500:], ood={"noise": 9.0 * X[:50]}, map="pca")
        >>> print(report.headline)
        gem tells noise from in-distribution rows ...
        >>> report.detectors["gem"].surprises[0].nearest_class in {"0", "1", "2"}
        True
    """
    named = named_detectors(detectors)
    sets: Mapping[str, Rows] = {} if ood is None else ood
    check_sets(sets)
    _check(named, map, map_rows, random_state)
    options = MeasureOptions(tpr=tpr, convention=convention, intervals=intervals, random_state=random_state)
    options.check()
    pictures = _opened(images or {}, sets)
    _refuse_other_pictures(pictures, _n_rows(id), {name: _n_rows(rows) for name, rows in sets.items()})
    step = on_step or (lambda name: None)
    n_sampled = 0 if map is None else map_rows
    watch = RowWatch(
        named, n_sets=len(sets), n_sampled=n_sampled, n_surprises=SURPRISES, tpr=float(tpr), seed=random_state
    )
    step(SCORING)
    scored = score_sets(named, id=id, ood=sets, labels=labels, on_batch=watch)
    _refuse_other_pictures(pictures, scored.n_id, scored.n_ood)
    step(MEASURING)
    comparison = measure(scored, options, on_evaluated=on_evaluated)
    parts = {name: _detector_report(named[name], name, scored, watch) for name in named}
    lead, diagnosis, drawn = _lead(comparison, named), _diagnosis(watch), None
    if map is not None:
        step(MAPPING)
        drawn = _map(named, lead, scored, watch, method=map, seed=random_state)
    remarks = [*_remarks(watch, diagnosis), *notes]
    gaussian = None if diagnosis is None else diagnosis.diagnosis
    return Report(
        title=str(title),
        headline=headline(comparison, lead, parts[lead].kept),
        findings=tuple(findings(comparison, lead, parts[lead].threshold, parts[lead].kept, gaussian)),
        caveats=tuple(caveats(comparison, lead, {name: part.kept for name, part in parts.items()}, remarks)),
        lead=lead,
        comparison=comparison,
        detectors=parts,
        diagnosis=diagnosis,
        map=drawn,
        images=_thumbnails(parts, pictures),
        run=_run(comparison, command, id, sets, drawn),
    )


def write(
    path: str | os.PathLike[str],
    detectors: Mapping[str, Detector] | Sequence[Detector],
    *,
    id: Rows,
    ood: Mapping[str, Rows] | None = None,
    **options: Unpack[ReportOptions],
) -> Report:
    """Write a report as one self-contained HTML file, all or nothing, and return it.

    Args:
        path: Where to write; the suffix is `.html`.
        detectors: As `gather`.
        id: As `gather`.
        ood: As `gather`.
        options: Any other argument of `gather`.

    Example:
        >>> import tempfile
        >>> from gem_ood import GEM
        >>> X = np.random.default_rng(0).normal(size=(300, 4))
        >>> gem = GEM().fit(X[:100]).calibrate(X[100:200])
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     report = write(f"{folder}/report.html", [gem], id=X[200:], ood={"far": X + 9.0}, map="pca")
        ...     os.path.getsize(f"{folder}/report.html") > 1_000_000
        True
    """
    check_page_path(path)
    report = gather(detectors, id=id, ood=ood, **options)
    report.write(path)
    return report


def _check(detectors: Mapping[str, Detector], map: Method | None, map_rows: int, random_state: int) -> None:
    """Raise before the long work if no report could be made of these."""
    require_extra("report", "plotly", purpose="reports")
    if not detectors:
        raise InputError("there is nothing to report on; pass at least one fitted detector")
    if not is_count(map_rows) or map_rows > MOST_MAP_ROWS:
        raise InputError(f"map_rows is {map_rows!r}; pass a whole number from 1 to {MOST_MAP_ROWS:,}, or map=None")
    if map is not None and map not in get_args(Method):
        raise InputError(f'map is {map!r}; pass "auto", "umap" or "pca", or None for no map')
    if map == "umap":
        require_extra("report", "umap", purpose="maps by UMAP")
    if not is_count(random_state, least=0) or random_state > LARGEST_SEED:
        raise InputError(f"random_state is {random_state!r}; pass a whole number from 0 to {LARGEST_SEED}")


def _refuse_other_pictures(
    pictures: Mapping[str | None, Images], n_id: int | None, n_ood: Mapping[str, int | None]
) -> None:
    """Raise if a set has pictures of other rows, as far as the number of its rows is known."""
    for name, one in pictures.items():
        n_rows = n_id if name is None else n_ood[name]
        if n_rows is not None:
            one.refuse_other_length(n_rows, _set_title(name))


def _opened(images: Mapping[str, Any], sets: Mapping[str, Rows]) -> dict[str | None, Images]:
    for name in images:
        if name != ID and name not in sets:
            known = ", ".join(repr(one) for one in (ID, *sets))
            raise InputError(f"images are given for {name!r}, but there are only {known}; name one of these")
    if ID in images and ID in sets:
        raise InputError(f"a set is named {ID!r}, as the pictures of in-distribution rows are; rename the set")
    return {None if name == ID else name: open_images(source) for name, source in images.items()}


def _detector_report(detector: Detector, name: str, scored: ScoredSets, watch: RowWatch) -> DetectorReport:
    inside = scored.id[name].scores
    outside = {ood: answers[name].scores for ood, answers in scored.ood.items()}
    threshold = detector.threshold_ if detector.is_calibrated else None
    return DetectorReport(
        description=" ".join(repr(detector).split()),
        threshold=threshold,
        histogram=score_histogram(inside, outside, threshold=None if threshold is None else threshold.value),
        curves={ood: detection_curves(inside, scores) for ood, scores in outside.items()},
        kept=None if threshold is None else kept_shares(_calibration(detector), inside, threshold=threshold),
        surprises=watch.surprises(name),
    )


def _calibration(detector: Detector) -> RankedScores | NDArray[np.float64]:
    return detector.ranked_calibration or detector.calibration_scores_


def _lead(comparison: Comparison, detectors: Mapping[str, Detector]) -> str:
    """Return the best detector over all sets, of those with a threshold if there are some; the first without sets."""
    order = comparison.ranking("fpr")
    return next((name for name in order if detectors[name].is_calibrated), order[0])


def _diagnosis(watch: RowWatch) -> DiagnosisReport | None:
    diagnosis = watch.diagnosis
    if diagnosis is None or watch.diagnosed is None:
        return None
    names = [fit.name for fit in diagnosis.by_class]
    try:
        curves = chi2_curves(diagnosis.distances_by_class, diagnosis.rank, names=names)
    except InputError:  # all rows lie on their class mean
        return None
    return DiagnosisReport(watch.diagnosed[0], diagnosis, curves)


def _remarks(watch: RowWatch, diagnosis: DiagnosisReport | None) -> list[str]:
    found = []
    if watch.has_lost_labels:
        found.append("Only some in-distribution rows have labels, so no label is used.")
    if diagnosis is None:
        reason = "all rows lie on their class mean" if watch.diagnosis is not None else watch.no_diagnosis
        found.append(f"No Gaussian diagnosis: {reason}.")
    return found


def _map(
    detectors: Mapping[str, Detector], lead: str, scored: ScoredSets, watch: RowWatch, *, method: Method, seed: int
) -> FeatureMap:
    kept = watch.sampled.rows
    order = [None, *scored.ood]
    features = np.vstack([kept[ood][0] for ood in order])
    rows = [kept[ood][1] for ood in order]
    places = place_rows(features, method=method, random_state=seed)
    labels, inside = watch.labels, kept[None][0]
    if labels is not None:
        classes, class_from = labels[rows[0]], "labels"
    else:
        with without_names_warning():
            classes = detectors[lead].verdicts(inside).nearest_class
        class_from = f"nearest class by {lead}"
    n_outside = sum(len(part) for part in rows[1:])
    return FeatureMap(
        method=places.method,
        note=f"{_about_sample(len(rows[0]), n_outside, scored)} {places.note}",
        points=places.points,
        sets=np.repeat(np.arange(len(order)), [len(part) for part in rows]),
        rows=np.concatenate(rows),
        classes=(*(str(name) for name in classes), *(None for _ in range(n_outside))),
        class_from=class_from,
        is_ood={name: _verdicts(detector, name, scored, rows) for name, detector in detectors.items()},
    )


def _about_sample(n_inside: int, n_outside: int, scored: ScoredSets) -> str:
    n_others = sum(scored.n_ood.values())
    if n_inside + n_outside == scored.n_id + n_others:
        return f"All {n_inside + n_outside:,} rows are drawn." if n_inside + n_outside > 1 else "The only row is drawn."
    others = f" and {n_outside:,} of {n_others:,} others" if n_others else ""
    return f"A random sample is drawn: {n_inside:,} of {scored.n_id:,} in-distribution rows{others}."


def _verdicts(
    detector: Detector, name: str, scored: ScoredSets, rows: Sequence[NDArray[np.intp]]
) -> NDArray[np.bool_] | None:
    if not detector.is_calibrated:
        return None
    answers = [scored.id[name], *(answers[name] for answers in scored.ood.values())]
    scores = np.concatenate([one.scores[places] for one, places in zip(answers, rows, strict=True)])
    return np.asarray(scores < detector.offset_)


def _thumbnails(
    parts: Mapping[str, DetectorReport], pictures: Mapping[str | None, Images]
) -> dict[tuple[str | None, int], str]:
    found: dict[tuple[str | None, int], str] = {}
    for ood, one in pictures.items():
        surprises = [surprise for part in parts.values() for surprise in part.surprises]
        rows = sorted({surprise.row for surprise in surprises if surprise.ood == ood})
        found |= {(ood, row): uri for row, uri in one.thumbnails(rows).items()}
    return found


def _run(
    comparison: Comparison, command: str | None, id: Rows, sets: Mapping[str, Rows], drawn: FeatureMap | None
) -> Run:
    versions = {"gem-ood": __version__, "python": platform.python_version()}
    for package in PACKAGES:
        if package != "umap-learn" or (drawn is not None and drawn.method == "UMAP"):
            try:
                versions[package] = version(package)
            except PackageNotFoundError:  # installed without its metadata
                continue
    inputs = [(IN_DISTRIBUTION, _source(id), comparison.n_id)]
    inputs += [(name, _source(sets[name]), n_rows) for name, n_rows in comparison.n_ood.items()]
    return Run(command, f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC", versions, tuple(inputs))


def _n_rows(rows: Any) -> int | None:
    """Return how many rows there are, or None where only reading would tell."""
    n_rows = getattr(rows, "n_rows", None)
    return int(n_rows) if n_rows is not None else len(rows) if hasattr(rows, "__array__") else None


def _source(rows: Any) -> str:
    path = getattr(rows, "path", None)
    return type(rows).__name__ if path is None else str(path)


def _set_title(name: str | None) -> str:
    return "the in-distribution set" if name is None else f"the set {name!r}"
