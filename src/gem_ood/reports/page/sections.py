"""Sections of the page, one function each; a section that has nothing to show says why in a sentence."""

from collections.abc import Mapping
from typing import Any

from gem_ood.reports.page.tables import (
    comparison_table,
    is_calibrated,
    paper_tables,
    plain_table,
    surprise_table,
    table_box,
)
from gem_ood.reports.page.text import NOTHING, count, escaped, is_number, listed, name, named, percent, prose, short

__all__ = ["SECTIONS", "contents", "sections", "summary"]

#: The anchors of the sections and their headings, in order.
SECTIONS = {
    "detectors": "Detectors and sets",
    "scores": "Scores",
    "curves": "ROC and precision-recall",
    "calibration": "Calibration",
    "diagnosis": "Gaussian diagnosis",
    "map": "Map of the features",
    "surprises": "Most surprising rows",
    "run": "What was run",
}

#: A source of at most so many letters, such as ndarray or DataFrame, has room beside any name.
SHORT_SOURCE = 16

NO_SETS = "No out-of-distribution set was given, so {what} cannot be computed; pass such a set to have them."


def contents() -> str:
    """Return the links to the sections."""
    items = "".join(f'<li><a href="#{anchor}">{heading}</a></li>' for anchor, heading in SECTIONS.items())
    return f"<ol>{items}</ol>"


def summary(report: Mapping[str, Any]) -> str:
    """Return the verdict in words: headline, the numbers of the lead detector, findings and caveats."""
    caveats = listed(list(report.get("caveats", ())), "caveats")
    if caveats:
        caveats = f'<div class="caveat-box"><h2>Read with care</h2>{caveats}</div>'
    return (
        f'<p id="headline" class="headline">{prose(report.get("headline", ""))}</p>'
        f"{_tiles(report)}{listed(list(report.get('findings', ())), 'findings')}{caveats}"
    )


def sections(report: Mapping[str, Any]) -> str:
    """Return all sections in order."""
    bodies = (_detectors, _scores, _curves, _calibration, _diagnosis, _map, _surprises, _run)
    return "".join(
        f'<section id="{anchor}" aria-labelledby="{anchor}-heading">'
        f'<h2 id="{anchor}-heading"><span class="section-number">{place}</span>{heading}</h2>{body(report)}</section>'
        for place, ((anchor, heading), body) in enumerate(zip(SECTIONS.items(), bodies, strict=True), 1)
    )


def _tiles(report: Mapping[str, Any]) -> str:
    measured = (report.get("comparison") or {}).get("detectors", {}).get(report.get("lead"), {})
    mean = measured.get("mean") or {}
    many = len(report.get("sets", ())) > 1
    shares = (
        (f"{'mean ' if many else ''}FPR{100 * report.get('tpr', 0.95):g}", mean.get("fpr")),
        (f"{'mean ' if many else ''}AUROC", mean.get("auroc")),
        ("in-distribution rows kept", measured.get("id_kept")),
    )
    tiles = [("in-distribution rows", f"{report['n_id']:,}")] if report.get("n_id") is not None else []
    tiles += [(label, f"{percent(share)} %") for label, share in shares if is_number(share)]
    if not tiles:
        return ""
    about = (
        f'<p class="tiles-about">Lead detector: {name(report["lead"])}</p>' if report.get("lead") is not None else ""
    )
    items = "".join(f"<div><dt>{escaped(label)}</dt><dd>{value}</dd></div>" for label, value in tiles)
    return f'{about}<dl class="tiles">{items}</dl>'


def _figure(key: str, caption: str, *, below: str = "") -> str:
    """Return the place of one plot: the script draws it, words it and lists its numbers."""
    return (
        f'<figure class="card" id="figure-{key}"><ul class="legend" id="legend-{key}" hidden></ul>'
        f'<div class="plot" id="plot-{key}" data-plot="{key}" data-drawn="false" role="group" '
        'tabindex="0" aria-label="A plot, not drawn yet" aria-describedby="plot-help"></div>'
        f'{below}<figcaption>{caption}<span class="figure-words" id="words-{key}"></span></figcaption>'
        f'<details class="numbers" data-numbers="{key}"><summary>Numbers behind this figure</summary>'
        f"{table_box('', f'Numbers behind the figure {key}')}</details></figure>"
    )


def _absent(why: str) -> str:
    return f'<p class="absent">{escaped(why)}</p>'


def _each_detector(report: Mapping[str, Any], part: str) -> bool:
    return any(one.get(part) for one in report.get("detectors", {}).values())


def _detectors(report: Mapping[str, Any]) -> str:
    comparison = report.get("comparison") or {}
    if not comparison.get("detectors"):
        return _absent("No detector was measured.")
    rows = ", ".join(f"{name(one['name'])} ({one['n_rows']:,})" for one in report.get("sets", ()))
    n_id = count(report.get("n_id") or 0, "in-distribution row")
    text = f"<p>{n_id} against {rows}. {_explained(report)}</p>" if rows else ""
    why = "" if rows else _absent(NO_SETS.format(what="FPR, AUROC and AUPR"))
    if not is_calibrated(comparison):
        why += _absent("No detector is calibrated, so there is no threshold and no share of flagged rows.")
    table = table_box(comparison_table(report), "Detectors against out-of-distribution sets")
    notes = '<p class="help" role="status"><span id="detector-note"></span><span id="set-note"></span></p>'
    return f'{text}{why}{table}{notes}<div class="paper-tables">{paper_tables(report)}</div>'


def _explained(report: Mapping[str, Any]) -> str:
    tpr = f"{100 * report.get('tpr', 0.95):g}"
    fpr = f"out-of-distribution rows let through when {tpr} % of the in-distribution rows are kept"
    if report.get("convention") == "openood":
        fpr = f"in-distribution rows flagged when {tpr} % of the out-of-distribution rows are"
    return (
        f"FPR{tpr} is the share of {fpr}; AUROC is the chance that an in-distribution row scores higher than an "
        "out-of-distribution row; AUPR takes in-distribution as positive."
    )


def _scores(report: Mapping[str, Any]) -> str:
    if not _each_detector(report, "histogram"):
        return _absent("No scores were kept, so there is nothing to draw.")
    text = "A higher score looks more in-distribution. "
    if not report.get("sets"):
        text += "Only in-distribution rows were given. "
    lead = report.get("detectors", {}).get(report.get("lead"), {})
    guarantee = escaped((lead.get("threshold") or {}).get("guarantee", ""))
    return _figure("scores", text, below=f'<div id="guarantee" class="guarantee">{guarantee}</div>')


def _curves(report: Mapping[str, Any]) -> str:
    if not report.get("sets") or not _each_detector(report, "curves"):
        return _absent(NO_SETS.format(what="ROC and precision-recall curves"))
    options = "".join(
        f'<option value="{place}">all detectors on {escaped(named(one["name"]))}</option>'
        for place, one in enumerate(report["sets"])
    )
    return (
        '<p class="choice"><label for="curve-set">Draw</label> <select id="curve-set" autocomplete="off">'
        f'{options}<option value="every">all sets, detector in focus</option></select></p>'
        '<div class="pair">'
        + _figure("roc", "ROC: the further into the upper left, the better. In-distribution is positive. ")
        + _figure("precision", "Precision-recall: the further into the upper right, the better. ")
        + "</div>"
    )


def _calibration(report: Mapping[str, Any]) -> str:
    if not _each_detector(report, "kept"):
        return _absent(
            "No detector is calibrated, so the share of rows asked for cannot be held against the share kept."
        )
    return _figure("calibration", "The share of in-distribution rows asked to be kept against the share that was. ")


def _diagnosis(report: Mapping[str, Any]) -> str:
    found = report.get("diagnosis")
    if not found:
        return _absent(
            "There is no Gaussian fit to diagnose: no detector here is Gaussian, or the rows do not allow it."
        )
    trust = escaped(found.get("trust", ""))
    sentences = listed(list(found.get("sentences", ())), "findings")
    head = f'<p>Fit of {name(found.get("detector", ""))}: <span class="badge">{trust}</span></p>'
    return head + sentences + _figure("diagnosis", _quantile_caption(found))


def _quantile_caption(found: Mapping[str, Any]) -> str:
    degrees = short(found.get("degrees_of_freedom"))
    noun = "degree" if degrees == "1" else "degrees"
    return (
        f"Squared distances found, against those that a Gaussian would give (χ², {degrees} {noun} of freedom). "
        "On the dotted line the fit is exact. "
    )


def _map(report: Mapping[str, Any]) -> str:
    drawn = report.get("map")
    if not drawn or not drawn.get("x"):
        return _absent("No map was asked for.")
    note = escaped(drawn.get("note") or f"The features by {drawn.get('method', '')}.")
    return _figure("map", f"{note} ")


def _surprises(report: Mapping[str, Any]) -> str:
    detectors = report.get("detectors", {})
    if not _each_detector(report, "surprises"):
        return _absent("No rows were kept to show.")
    parts = []
    for index, (detector, one) in enumerate(detectors.items()):
        is_lead = detector == report.get("lead")
        rows = one.get("surprises") or ()
        table = surprise_table(detector, rows, report.get("images") or {}, load=is_lead)
        box = table_box(table, f"Rows that surprised {detector} most") if rows else _absent("No rows were kept.")
        parts.append(f'<div class="surprises" data-index="{index}"{"" if is_lead else " hidden"}>{box}</div>')
    return "".join(parts)


def _source(text: object) -> str:
    """Return where rows came from; a short source stays on one line, whatever stands beside it."""
    return f'<span class="unbroken">{name(text)}</span>' if len(str(text)) <= SHORT_SOURCE else name(text)


def _run(report: Mapping[str, Any]) -> str:
    run = report.get("run") or {}
    command = run.get("command")
    again = _absent("Made from Python: there is no command to run again.")
    if command:
        again = (
            "<h3>Run it again</h3>"
            f'<div class="command"><pre tabindex="0"><code id="rerun-command">{escaped(command)}</code></pre>'
            '<button type="button" id="copy-command" class="scripted">Copy</button>'
            '<span id="copy-status" role="status"></span></div>'
            "<p>Paths are relative to the directory that it was run in.</p>"
        )
    inputs = [
        (
            name(one.get("name", "")),
            _source(one.get("source", "")),
            f"{one['n_rows']:,}" if one.get("n_rows") is not None else NOTHING,
        )
        for one in run.get("inputs", ())
    ]
    tables = [plain_table("Inputs", ("Name", "Source", "Rows"), inputs)] if inputs else []
    versions = [(escaped(package), escaped(version)) for package, version in run.get("versions", {}).items()]
    tables += [plain_table("Versions", ("Package", "Version"), versions)] if versions else []
    descriptions = [
        (name(detector), f"<code>{escaped(one['description'])}</code>")
        for detector, one in report.get("detectors", {}).items()
        if one.get("description")
    ]
    tables += [plain_table("Detectors", ("Name", "Made by"), descriptions)] if descriptions else []
    boxes = "".join(table_box(table, "What was run") for table in tables)
    date = f'<p>Made on <time id="run-date">{escaped(run["date"])}</time>.</p>' if run.get("date") else ""
    return f'{date}{again}<div class="run-tables">{boxes}</div>'
