"""Controls of the page: which detector is in focus, which detectors and sets are drawn, how the map is coloured."""

import math
from collections.abc import Mapping
from typing import Any

from gem_ood.reports.page.text import escaped, name, named

__all__ = ["controls", "shown_at_first"]

#: More detectors than this are not drawn at once unless asked for; so many of the best are.
MANY_DETECTORS, SHOWN_AT_FIRST = 12, 8

#: With more classes than this the map is coloured by verdict or set at first.
MANY_CLASSES = 50


def shown_at_first(report: Mapping[str, Any]) -> dict[str, bool]:
    """Return which detectors are drawn at first: all, or the lead and the best by mean FPR if there are many."""
    names = list(report.get("detectors", {}))
    if len(names) <= MANY_DETECTORS:
        return dict.fromkeys(names, True)
    measured = (report.get("comparison") or {}).get("detectors", {})

    def rank(detector: str) -> tuple[bool, float]:
        fpr = ((measured.get(detector) or {}).get("mean") or {}).get("fpr")
        return detector != report.get("lead"), math.inf if fpr is None else fpr

    best = set(sorted(names, key=rank)[:SHOWN_AT_FIRST])
    return {detector: detector in best for detector in names}


def controls(report: Mapping[str, Any]) -> str:
    """Return the bar of controls; it is of use with a script only.

    Browsers fill in earlier choices on Back and reload unless `autocomplete` is off; the script would not know of them.
    """
    detectors = list(report.get("detectors", {}))
    sets = [one["name"] for one in report.get("sets", ())]
    shown = shown_at_first(report)
    parts = []
    if detectors:
        parts.append(_focus(detectors, report.get("lead")))
        parts.append(_menu("detector", "Detectors", detectors, [shown[one] for one in detectors]))
    if sets:
        parts.append(_menu("set", "Sets", sets, [True] * len(sets)))
    if report.get("map"):
        parts.append(_map_colours(report["map"]))
    parts.append(
        '<label class="control theme">Theme <select id="theme" autocomplete="off"><option value="auto">Auto</option>'
        '<option value="light">Light</option><option value="dark">Dark</option></select></label>'
    )
    return "".join(parts)


def _focus(detectors: list[str], lead: str | None) -> str:
    options = "".join(
        f'<option value="{index}"{" selected" if detector == lead else ""}>{escaped(named(detector))}</option>'
        for index, detector in enumerate(detectors)
    )
    choice = f'<select id="focus-detector" autocomplete="off">{options}</select>'
    return f'<label class="control focus">Detector in focus {choice}</label>'


def _menu(kind: str, title: str, names: list[str], shown: list[bool]) -> str:
    boxes = "".join(
        f'<label><input type="checkbox" autocomplete="off" data-toggle="{kind}" data-index="{index}"'
        f' data-{kind}="{escaped(text)}"{" checked" if is_shown else ""}>'
        f'<span class="swatch"></span>{name(text)}</label>'
        for index, (text, is_shown) in enumerate(zip(names, shown, strict=True))
    )
    note = ""
    if not all(shown):
        note = f'<p class="menu-note">The {sum(shown)} best of {len(shown)} by mean FPR are drawn at first.</p>'
    return (
        f'<details class="menu" data-menu="{kind}"><summary>{title} '
        f'<span class="tally" id="{kind}-tally"></span></summary>'
        f"<fieldset><legend>{title} drawn in the plots</legend>{note}"
        f'<div class="menu-buttons"><button type="button" data-all="{kind}">All</button>'
        f'<button type="button" data-none="{kind}">None</button></div>{boxes}</fieldset></details>'
    )


def _map_colours(drawn: Mapping[str, Any]) -> str:
    ways = {
        "class": any(place is not None for place in drawn.get("class") or ()),
        "verdict": any(verdicts is not None for verdicts in (drawn.get("is_ood") or {}).values()),
        "set": True,
    }
    known = [way for way, is_known in ways.items() if is_known]
    # Of very many classes a few colours tell little.
    first = next(way for way in known if way != "class" or len(drawn.get("classes", ())) <= MANY_CLASSES)
    options = "".join(f'<option value="{way}"{" selected" if way == first else ""}>{way}</option>' for way in known)
    return f'<label class="control">Map colour <select id="map-colour" autocomplete="off">{options}</select></label>'
