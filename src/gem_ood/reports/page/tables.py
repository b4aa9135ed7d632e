"""Tables of the page: detectors × sets, surprising rows, versions and inputs; they read without a script."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gem_ood.comparison import MEAN
from gem_ood.reports.page.text import NOTHING, attributes, escaped, is_number, name, named, percent, short

__all__ = ["comparison_table", "is_calibrated", "paper_tables", "plain_table", "surprise_table", "table_box"]

IN_DISTRIBUTION = '<span class="unbroken">in-distribution</span>'

#: The metrics of the table, and the side that is better.
METRICS = {"fpr": "↓", "auroc": "↑", "aupr_in": "↑"}

#: The columns that belong to a detector and no set, and when each is worth showing.
OWN_TITLES = {"id_kept": "ID kept", "id_error": "ID error", "seconds_per_10k": "s/10k"}


def table_box(table: str, label: str) -> str:
    """Return a table in a box of its own that scrolls sideways, by keyboard too."""
    return f'<div class="table-box" tabindex="0" role="region" aria-label="{escaped(label)}">{table}</div>'


def plain_table(caption: str, titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table of ready HTML cells; the first of each row names it."""
    head = "".join(f'<th scope="col">{title}</th>' for title in titles)
    body = "".join(
        f'<tr><th scope="row">{first}</th>{"".join(f"<td>{cell}</td>" for cell in others)}</tr>'
        for first, *others in rows
    )
    return f"<table><caption>{escaped(caption)}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def is_calibrated(comparison: Mapping[str, Any]) -> bool:
    """Return whether some detector has a threshold of its own."""
    return any(one.get("flagged") is not None or is_number(one.get("id_kept")) for one in _detectors(comparison))


def comparison_table(report: Mapping[str, Any]) -> str:
    """Return every detector against every set: a row per detector, the mean first, the best bold and starred."""
    return _ComparisonTable.of(report).html()


def paper_tables(report: Mapping[str, Any]) -> str:
    """Return the numbers of `comparison_table` in narrow tables, one per set, for printing."""
    return _ComparisonTable.of(report).paper()


@dataclass(frozen=True)
class _ComparisonTable:
    measured: Mapping[str, Mapping[str, Any]]
    places: Mapping[str, int]
    sets: tuple[str, ...]
    best: Mapping[str, Mapping[str, Sequence[str]]]
    metrics: tuple[str, ...]
    own: tuple[str, ...]
    tpr: float
    caption: str

    @classmethod
    def of(cls, report: Mapping[str, Any]) -> "_ComparisonTable":
        comparison = report.get("comparison") or {}
        names = [one["name"] for one in report.get("sets", ())]
        metrics = (*METRICS, *(("flagged",) if is_calibrated(comparison) else ())) if names else ()
        own = tuple(key for key in OWN_TITLES if any(is_number(one.get(key)) for one in _detectors(comparison)))
        # The mean over one set would say everything twice.
        sets = (*((MEAN,) if len(names) > 1 else ()), *names)
        tpr = float(report.get("tpr", 0.95))
        measured = comparison.get("detectors", {})
        caption = f"<span>{_caption(report, bool(names), own)}</span>"
        places = {detector: place for place, detector in enumerate(report.get("detectors", {}))}
        return cls(measured, places, sets, report.get("best") or {}, metrics, own, tpr, caption)

    def html(self) -> str:
        body = "".join(self._row(detector) for detector in self.measured)
        return (
            f'<table id="comparison-table" class="comparison"><caption>{self.caption}</caption>'
            f"<thead>{self._head()}</thead><tbody>{body}</tbody></table>"
        )

    def paper(self) -> str:
        """Return the same numbers as one small table per set, since a page of paper cannot scroll."""
        groups: list[tuple[str, tuple[str, ...], str | None]] = [
            (self._set(ood), self.metrics, ood) for ood in self.sets if self.metrics
        ]
        if self.own:
            groups.append(("All rows", self.own, None))
        tables = "".join(f'<div class="paper-table">{self._small(*group)}</div>' for group in groups)
        return f'{tables}<p class="paper-note">{self.caption}</p>'

    def _small(self, title: str, metrics: tuple[str, ...], ood: str | None) -> str:
        heads = "".join(
            f'<th scope="col">{OWN_TITLES[metric] if ood is None else self._title(metric)}</th>' for metric in metrics
        )
        rows = "".join(
            f'<tr><th scope="row">{name(detector)}</th>{self._small_cells(detector, metrics, ood)}</tr>'
            for detector in self.measured
        )
        return (
            f'<table><caption>{title}</caption><thead><tr><th scope="col">Detector</th>{heads}</tr></thead>'
            f"<tbody>{rows}</tbody></table>"
        )

    def _small_cells(self, detector: str, metrics: tuple[str, ...], ood: str | None) -> str:
        one = self.measured[detector]
        if ood is None:
            return "".join(f"<td>{_written(metric, one.get(metric))}</td>" for metric in metrics)
        return "".join(f"<td>{self._set_words(detector, one, ood, metric)}</td>" for metric in metrics)

    def _head(self) -> str:
        spans = 2 if self.metrics else 1
        span = f'scope="colgroup" colspan="{len(self.metrics)}" data-group'
        groups = "".join(
            f"<th {span}{attributes({'set': ood})}>{self._set(ood)}</th>" for ood in self.sets if self.metrics
        )
        own = "".join(
            f'<th scope="col" rowspan="{spans}"{attributes({"sort": key})}>{OWN_TITLES[key]}</th>' for key in self.own
        )
        first = f'<tr><th scope="col" rowspan="{spans}" data-sort="detector">Detector</th>{groups}{own}</tr>'
        titles = "".join(
            f'<th scope="col"{attributes({"set": ood, "sort": metric})}>{self._title(metric)}</th>'
            for ood in self.sets
            for metric in self.metrics
        )
        return first + (f"<tr>{titles}</tr>" if titles else "")

    @staticmethod
    def _set(ood: str) -> str:
        return "Mean of all sets" if ood == MEAN else name(ood)

    def _title(self, metric: str) -> str:
        if metric == "flagged":
            return "Flagged"
        title = {"fpr": f"FPR{100 * self.tpr:g}", "auroc": "AUROC", "aupr_in": "AUPR"}[metric]
        return f'{title} <span aria-hidden="true">{METRICS[metric]}</span>'

    def _row(self, detector: str) -> str:
        one = self.measured[detector]
        cells = "".join(self._set_cell(detector, one, ood, metric) for ood in self.sets for metric in self.metrics)
        own = "".join(
            f"<td{attributes({'detector': detector, 'metric': key, 'value': _exact(one.get(key))})}>"
            f"{_written(key, one.get(key))}</td>"
            for key in self.own
        )
        row = attributes({"detector": detector, "index": self.places.get(detector, ""), "shown": "true"})
        words = f'<span class="detector-name"><span class="swatch"></span>{name(detector)}</span>'
        heading = f'<th scope="row" title="{escaped(detector)}">{words}</th>'
        return f"<tr{row}>{heading}{cells}{own}</tr>"

    def _set_cell(self, detector: str, one: Mapping[str, Any], ood: str, metric: str) -> str:
        data = {"detector": detector, "set": ood, "metric": metric, "value": _exact(_value(one, ood, metric))}
        return f"<td{attributes(data)}>{self._set_words(detector, one, ood, metric)}</td>"

    def _set_words(self, detector: str, one: Mapping[str, Any], ood: str, metric: str) -> str:
        is_best = len(self.measured) > 1 and detector in self.best.get(metric, {}).get(ood, ())
        words = _written(metric, _value(one, ood, metric), is_best=is_best)
        interval = _interval(one, ood, metric)
        if interval:
            words += f'<span class="interval">{percent(interval[0])} to {percent(interval[1])}</span>'
        return words


def surprise_table(detector: str, rows: Sequence[Mapping[str, Any]], images: Mapping[str, str], *, load: bool) -> str:
    """Return the rows that surprised a detector most; their pictures are left to the script unless loaded now."""
    has_images = any(_picture(one, images) for one in rows)
    has_labels = any(one.get("label") is not None for one in rows)
    titles = ["#", *(["Picture"] if has_images else []), "Set", "Row", *(["Label"] if has_labels else [])]
    titles += ["Nearest class", "Distance", "Score", "p-value", "Verdict"]
    head = "".join(f'<th scope="col">{title}</th>' for title in titles)
    body = "".join(
        f'<tr><th scope="row">{place}</th>{"".join(_surprise_cells(one, images, has_images, has_labels, load))}</tr>'
        for place, one in enumerate(rows, 1)
    )
    others = any(one.get("set") is not None for one in rows)
    also = ", and out-of-distribution rows that look most in-distribution" if others else ""
    return (
        f"<table><caption><span>The rows that surprised {name(detector)} most: in-distribution rows that look least so"
        f"{also}.</span></caption>"
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    )


def _surprise_cells(
    one: Mapping[str, Any], images: Mapping[str, str], has_images: bool, has_labels: bool, load: bool
) -> Iterator[str]:
    if has_images:
        yield f"<td>{_thumbnail(one, images, load)}</td>"
    yield f"<td>{IN_DISTRIBUTION if one.get('set') is None else name(one['set'])}</td>"
    yield f'<td class="number">{escaped(one.get("row", NOTHING))}</td>'
    for key in (*(("label",) if has_labels else ()), "nearest_class"):
        yield f"<td>{NOTHING if one.get(key) is None else name(one[key])}</td>"
    for key, digits in (("distance", 4), ("score", 4), ("p_value", 3)):
        yield f'<td class="number">{short(one.get(key), digits)}</td>'
    yield f"<td>{_verdict(one)}</td>"


def _thumbnail(one: Mapping[str, Any], images: Mapping[str, str], load: bool) -> str:
    picture = _picture(one, images)
    if not picture:
        return NOTHING
    source = f' src="{escaped(picture)}"' if load else ""
    ood = "in-distribution" if one.get("set") is None else named(one["set"])
    text = escaped(f"row {one.get('row')} of {ood}")
    return f'<img class="thumbnail" alt="{text}" width="56" height="56" data-image="{escaped(one["image"])}"{source}>'


def _picture(one: Mapping[str, Any], images: Mapping[str, str]) -> str:
    """Return a picture that is inside the page, never one that would have to be fetched."""
    picture = images.get(one.get("image") or "", "")
    return picture if picture.startswith("data:image/") else ""


def _verdict(one: Mapping[str, Any]) -> str:
    is_ood = one.get("is_ood")
    if is_ood is None:
        return '<span class="unbroken">no threshold</span>'
    if is_ood == (one.get("set") is not None):
        return f'<span class="right">✓ {"flagged" if is_ood else "kept"}</span>'
    return f'<span class="wrong">✗ {"flagged, false alarm" if is_ood else "kept, missed"}</span>'


def _detectors(comparison: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return list(comparison.get("detectors", {}).values())


def _value(one: Mapping[str, Any], ood: str, metric: str) -> float | None:
    if metric == "flagged":
        flagged = one.get("flagged") or {}
        if ood != MEAN:
            return flagged.get(ood)
        return float(np.mean(list(flagged.values()))) if flagged else None
    values = (one.get(MEAN) or {}) if ood == MEAN else one.get("evaluations", {}).get(ood, {})
    number: float | None = values.get(metric)
    return number


def _exact(value: float | None) -> str:
    return repr(float(value)) if is_number(value) else ""


def _written(metric: str, value: float | None, *, is_best: bool = False) -> str:
    text = short(value, 3) if metric == "seconds_per_10k" else percent(value)
    if not is_best:
        return text
    return f'<strong>{text}</strong><span class="star" aria-hidden="true">★</span><span class="unseen"> best</span>'


def _interval(one: Mapping[str, Any], ood: str, metric: str) -> Sequence[float] | None:
    holder = {"intervals": one.get("mean_intervals")} if ood == MEAN else one.get("evaluations", {}).get(ood, {})
    return (holder.get("intervals") or {}).get(metric)


def _caption(report: Mapping[str, Any], has_sets: bool, own: Sequence[str]) -> str:
    comparison = report.get("comparison") or {}
    parts = []
    if has_sets:
        parts.append(f"In percent, {escaped(report.get('convention', 'paper'))} convention.")
        parts.append("↓ lower is better, ↑ higher is better.")
        if len(comparison.get("detectors", {})) > 1:
            parts.append("★ and bold: best on its set, as rounded.")
        if comparison.get("intervals"):
            confidence = f"{100 * comparison.get('confidence', 0.95):g}"
            parts.append(f"Small below: {confidence} % interval ({escaped(comparison['intervals'])}).")
    elif own:
        parts.append("In percent.")
    if is_calibrated(comparison):
        what = "Flagged, ID kept: shares of rows beyond and" if has_sets else "ID kept: the share of rows"
        parts.append(f"{what} within the detector’s own threshold.")
    if "seconds_per_10k" in own:
        parts.append("s/10k: seconds to score 10,000 rows.")
    return " ".join(parts)
