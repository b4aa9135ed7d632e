"""Page: a report as one HTML file that needs nothing else, neither a server nor the network.

`render` joins what Python writes (verdict, tables, sections), the style sheet, plotly.js and the page's own script.
"""

import hashlib
from base64 import b64encode
from collections.abc import Mapping
from importlib.resources import files
from string import Template
from typing import Any

from gem_ood.extras import require_extra
from gem_ood.reports.page.controls import controls, shown_at_first
from gem_ood.reports.page.sections import contents, sections, summary
from gem_ood.reports.page.text import embedded, escaped
from gem_ood.reports.plots.names import NO_NAME

__all__ = ["render"]

#: The page's own script, in the order in which its parts need each other.
SCRIPTS = ("state.js", "figures.js", "scores.js", "map.js", "numbers.js", "drawing.js", "page.js")


def render(report: Mapping[str, Any]) -> str:
    """Return the report as one HTML page that works offline.

    Args:
        report: What `Report.as_dict()` returns; parts that are missing are left out with a word on why.

    Example:
        >>> page = render({"title": "A report", "headline": "Nothing was measured."})
        >>> page[:15], "Nothing was measured." in page
        ('<!doctype html>', True)
    """
    require_extra("report", "plotly", purpose="HTML reports")
    from plotly.offline import get_plotlyjs

    scripts = {
        "theme_script": _asset("theme.js"),
        "plotly_script": _one_line_end(get_plotlyjs()),
        "page_script": "(() => {\n" + "\n".join(map(_asset, SCRIPTS)) + "})();\n",
    }
    shown = shown_at_first(report)
    page = Template(_asset("page.html")).substitute(
        scripts,
        script_hashes=" ".join(map(_hash, scripts.values())),
        style=_asset("page.css"),
        title=escaped(report.get("title") or "gem-ood report"),
        summary=summary(report),
        contents=contents(),
        controls=controls(report),
        sections=sections(report),
        # An object of JavaScript puts names such as "10" first, so the order of the detectors is given apart.
        page_settings=embedded({"detectors": list(shown), "shown": list(shown.values()), "no_name": NO_NAME}),
        report_data=embedded(report),
    )
    # A file name may hold half a surrogate pair, which no UTF-8 file can.
    return page.encode("utf-8", "replace").decode("utf-8")


def _asset(file_name: str) -> str:
    return _one_line_end(files(__package__).joinpath(file_name).read_text("utf-8"))


def _one_line_end(text: str) -> str:
    """Return text with the line ends that an HTML parser makes of all, since hashes are taken after it."""
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _hash(script: str) -> str:
    """Return what a content security policy allows a script by: no other script of the page can run."""
    return f"'sha256-{b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"
