"""The page of a report: what users name stays text, and nothing is fetched."""

import base64
import hashlib
import json
import re
from importlib.resources import files

import pytest
from pages import HOSTILE, NAMES, PIXEL, Page, made_report

pytest.importorskip("plotly")

from gem_ood.reports.page import render


def test_hostile_names_make_no_element_and_no_handler(page):
    harmless = Page(render(made_report([f"d{place}" for place in range(len(NAMES))], ["s0", "s1", "s2", "s3"])))
    assert [one["tag"] for one in page.elements] == [one["tag"] for one in harmless.elements]
    assert len(page.all("script")) == 5
    assert not [key for one in page.elements for key in one["attributes"] if key.startswith("on")]


@pytest.mark.parametrize(
    ("tag", "attributes"),
    [
        ("title", {}),
        ("h1", {}),
        ("p", {"id": "headline"}),
        ("ul", {"class": "caveats"}),
        ("div", {"id": "guarantee"}),
        ("code", {"id": "rerun-command"}),
        ("table", {"id": "comparison-table"}),
        ("select", {"id": "focus-detector"}),
        ("select", {"id": "curve-set"}),
        ("section", {"id": "diagnosis"}),
        ("section", {"id": "map"}),
        ("section", {"id": "surprises"}),
        ("section", {"id": "run"}),
    ],
)
def test_hostile_names_are_shown_as_they_are(page, tag, attributes):
    assert HOSTILE in page.one(tag, **attributes)["text"]


def test_every_name_of_a_detector_is_in_the_table_and_an_empty_one_is_said_to_be(page):
    rows = [one for one in page.all("tr") if "data-detector" in one["attributes"]]
    assert [one["attributes"]["data-detector"] for one in rows] == NAMES
    assert all(name in row["text"] for name, row in zip(NAMES, rows, strict=True))
    assert "(no name)" in rows[-1]["text"]


def test_the_data_round_trips_through_the_page(report, page):
    text = page.one("script", id="report-data")["text"]
    assert json.loads(text) == report
    assert not set(text) & set("<>&\u2028\u2029")


def test_line_separators_and_half_surrogates_survive_as_json_and_as_a_file():
    report = {"headline": "a\u2028b\u2029c", "title": "half \ud800", "findings": ["<", ">", "&"]}
    html = render(report)
    html.encode("utf-8")
    data = json.loads(Page(html).one("script", id="report-data")["text"])
    assert data == report | {"title": "half ?"}


def test_a_name_with_a_carriage_return_keeps_it_in_its_attribute():
    html = render(made_report(["a\rb"], ["s"]))
    assert "\r" not in html
    assert Page(html).all("tr", data_detector="a\rb")


def test_the_order_of_detectors_is_kept_where_names_are_numbers(page):
    settings = json.loads(page.one("script", id="page-settings")["text"])
    assert settings == {"detectors": NAMES, "shown": [True] * len(NAMES), "no_name": "(no name)"}


def test_nothing_is_fetched_from_anywhere(page):
    for element in page.elements:
        for key in ("src", "href", "action", "srcset", "data", "poster"):
            value = element["attributes"].get(key) or ""
            assert value.startswith(("#", "data:")) or not value, (element["tag"], key, value)
    policy = page.one("meta", http_equiv="Content-Security-Policy")["attributes"]["content"]
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == "'none'"
    assert rules["img-src"] == "data: blob:"
    assert "unsafe" not in rules["script-src"]
    assert "http" not in policy
    assert not re.search(r"@import|url\(|@font-face", page.one("style")["text"])


def test_only_the_pages_own_scripts_may_run(page):
    policy = page.one("meta", http_equiv="Content-Security-Policy")["attributes"]["content"]
    scripts = [one["text"] for one in page.all("script") if "type" not in one["attributes"]]
    hashes = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in scripts]
    assert re.findall(r"'sha256-([^']+)'", policy) == hashes
    assert len(hashes) == 3


def test_the_script_reads_no_name_as_html_and_offers_no_upload():
    folder = files("gem_ood.reports.page")
    script = "".join(one.read_text("utf-8") for one in folder.iterdir() if one.name.endswith(".js"))
    assert not re.search(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|fetch\(", script
    )
    assert 'plotlyServerURL: ""' in script
    assert "modeBarButtons:" in script


def test_a_picture_that_would_have_to_be_fetched_is_not_shown(page):
    assert {one["attributes"].get("src") for one in page.all("img")} == {PIXEL, None}
    assert {one["attributes"]["data-image"] for one in page.all("img")} == {HOSTILE}
