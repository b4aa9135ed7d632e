"""The report as its readers meet it: the demonstration's page in a real browser, from the disk, without a network.

Screenshots are kept in `build/screenshots`.
"""

import itertools
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

SCREENSHOTS = Path(__file__).parents[2] / "build" / "screenshots"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")

#: The demonstration and a first drawing on a busy machine.
PATIENCE_SECONDS = 300
DRAWING_MILLISECONDS = 60_000


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    path = next(filter(None, map(shutil.which, BROWSERS)), None)
    if path is None:
        pytest.skip("no Chromium here; Debian's package is called chromium")
    with playwright.sync_playwright() as driver:
        # Without a sandbox of its own, as CI often runs as root; the page comes from this very test.
        one = driver.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        yield one
        one.close()


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """Return the page of `gem-ood demo` and what its `--json` prints."""
    folder = tmp_path_factory.mktemp("demo")
    command = [sys.executable, "-m", "gem_ood", "demo", "--json", "--out", str(folder / "demo.safetensors")]
    command += ["--report", str(folder / "demo.html")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["report"] == str(folder / "demo.html")
    return folder / "demo.html", result


#: Brings an open page back to how it was when it came: every choice, every zoom, every box that was opened.
RESET = """async () => {
  for (const one of document.querySelectorAll("[data-toggle]:not(:checked)"))
    if (one.defaultChecked) one.click();
  for (const one of document.querySelectorAll("[data-toggle]:checked"))
    if (!one.defaultChecked) one.click();
  for (const one of document.querySelectorAll("select")) {
    const first = Math.max(0, [...one.options].findIndex((option) => option.defaultSelected));
    if (one.selectedIndex === first) continue;
    one.selectedIndex = first;
    one.dispatchEvent(new Event("change", { bubbles: true }));
  }
  for (const one of document.querySelectorAll("#legend-map [aria-pressed=false]")) one.click();
  const first = document.querySelector("#comparison-table th[data-sort=detector]");
  first.setAttribute("aria-sort", "none");
  first.querySelector("button").click();
  for (const one of document.querySelectorAll("details[open]")) one.open = false;
  for (const one of document.querySelectorAll("[data-plot]"))
    one.dispatchEvent(new KeyboardEvent("keydown", { key: "0" }));
  document.activeElement.blur();
  scrollTo(0, 0);
  await window.gemOodReport.drawAll();
}"""


class Visit:
    """A page that is open, and all that went wrong on it."""

    def __init__(self, browser: Any, path: Path, **settings: Any) -> None:
        self.page = browser.new_page(**settings)
        self.faults: list[str] = []
        self.requests: list[str] = []
        self.page.on(
            "console", lambda message: message.type in ("error", "warning") and self.faults.append(message.text)
        )
        self.page.on("pageerror", lambda error: self.faults.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(path.as_uri())
        self.page.wait_for_selector("html[data-ready=true]", timeout=DRAWING_MILLISECONDS)
        self.page.evaluate("window.gemOodReport.drawAll()")
        self.page.wait_for_function(
            "[...document.querySelectorAll('[data-plot]')].every((plot) => plot.dataset.drawn === 'true')",
            timeout=DRAWING_MILLISECONDS,
        )

        self.faults_at_first = tuple(self.faults)

    def reset(self) -> None:
        """Bring the page back to how it was when it came, so that no test depends on those before it."""
        self.page.emulate_media(media="null", color_scheme="null")
        self.page.mouse.move(0, 0)
        self.page.evaluate(RESET)
        self.faults.clear()

    def numbers(self, key: str) -> list[list[str]]:
        """Return the table behind a figure, its titles first."""
        self.page.locator(f"[data-numbers={key}] > summary").click()
        rows = f"[data-numbers={key}] tr"
        self.page.wait_for_selector(rows)
        table: list[list[str]] = self.page.eval_on_selector_all(
            rows, "rows => rows.map((row) => [...row.cells].map((cell) => cell.textContent))"
        )
        return table

    def data(self) -> dict[str, Any]:
        """Return the report that the page holds."""
        report: dict[str, Any] = json.loads(self.page.text_content("#report-data"))
        return report

    def choose(self, **choices: str) -> None:
        """Choose in the page's lists, for example `map_colour="set"`, and draw what that changes."""
        for control, value in choices.items():
            self.page.select_option(f"#{control.replace('_', '-')}", value)
        self.page.evaluate("window.gemOodReport.drawAll()")

    def tick(self, kind: str, name: str, *, shown: bool) -> None:
        """Show or hide a detector or a set in the plots."""
        menu = self.page.locator(f"details[data-menu={kind}]")
        if menu.get_attribute("open") is None:
            menu.locator("summary").click()
        menu.locator(f'input[data-{kind}="{name}"]').set_checked(shown)
        self.page.evaluate("window.gemOodReport.drawAll()")

    def drawn(self, key: str) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        """Return the traces and the layout that a plot has now."""
        data, layout = self.page.evaluate(
            "async (key) => { await window.gemOodReport.drawAll(); const plot = document.getElementById(`plot-${key}`);"
            " return [plot.data, plot.layout]; }",
            key,
        )
        return data, layout

    def keep(self, name: str) -> None:
        SCREENSHOTS.mkdir(parents=True, exist_ok=True)
        self.page.screenshot(path=SCREENSHOTS / f"{name}.png", full_page=True)


@pytest.fixture(scope="module")
def opened(browser: Any, demo: Any) -> Iterator[Visit]:
    one = Visit(browser, demo[0], viewport={"width": 1280, "height": 900})
    yield one
    one.page.close()


@pytest.fixture
def visit(opened: Visit) -> Visit:
    """Return the demonstration's page as it was when it came; to open it anew for each test takes seconds."""
    opened.reset()
    return opened


def test_the_page_draws_every_plot_without_a_fault_or_a_request(visit: Visit, demo: Any) -> None:
    assert visit.page.locator("[data-plot]").count() >= 5
    assert visit.page.locator("[data-plot] .main-svg").count() >= visit.page.locator("[data-plot]").count()
    assert visit.faults_at_first == ()
    assert visit.faults == []
    assert [url for url in visit.requests if not url.startswith("data:")] == [demo[0].as_uri()]
    visit.keep("report-light")
    visit.page.screenshot(path=SCREENSHOTS / "report.png")
    visit.page.locator("#scores").screenshot(path=SCREENSHOTS / "report-scores.png")


def test_the_numbers_shown_are_those_of_the_json(visit: Visit, demo: Any) -> None:
    cells = visit.page.eval_on_selector_all(
        "#comparison-table [data-metric][data-value]",
        "cells => cells.map((cell) => [cell.dataset, cell.textContent].map((one) => one.detector ? {...one} : one))",
    )
    shown = {
        (cell["detector"], cell.get("set"), cell["metric"]): (float(cell["value"]), text)
        for cell, text in cells
        if cell["value"]
    }
    for one in demo[1]["detectors"]:
        name = one["name"]
        for metric, value in (("fpr", one["fpr"]), ("auroc", one["auroc"]), ("aupr_in", one["aupr"])):
            assert shown[name, "mean", metric][0] == value
            assert f"{100 * value:.2f}" in shown[name, "mean", metric][1]
        for ood, value in one["fpr_by_set"].items():
            assert shown[name, ood, "fpr"][0] == value
            assert f"{100 * value:.2f}" in shown[name, ood, "fpr"][1]
    flagged = {ood: value for (name, ood, metric), (value, _) in shown.items() if (name, metric) == ("GEM", "flagged")}
    assert {ood: flagged[ood] for ood in demo[1]["flagged"]} == demo[1]["flagged"]
    assert [one["name"] for one in demo[1]["detectors"]] == list(visit.data()["detectors"])


def test_a_detector_can_be_hidden_and_shown_again(visit: Visit) -> None:
    n_curves = visit.page.evaluate("document.querySelector('#plot-roc').data.length")
    box = visit.page.locator("#controls input[data-toggle=detector][data-detector=KNN]")
    visit.page.locator("details[data-menu=detector] > summary").click()
    box.uncheck()
    visit.page.evaluate("window.gemOodReport.drawAll()")
    has_curves = "n => document.querySelector('#plot-roc').data.length === n"
    visit.page.wait_for_function(has_curves, arg=n_curves - 1)
    assert "KNN" not in visit.page.text_content("#legend-roc")
    assert visit.page.locator("#comparison-table tbody tr[data-shown=false]").count() == 1
    box.check()
    visit.page.evaluate("window.gemOodReport.drawAll()")
    visit.page.wait_for_function(has_curves, arg=n_curves)
    assert "KNN" in visit.page.text_content("#legend-roc")
    assert visit.faults == []


def test_curves_come_back_without_the_sentence_on_their_absence(visit: Visit) -> None:
    visit.page.locator("details[data-menu=detector] > summary").click()
    for kind, sentences in (("none", 1), ("all", 0), ("none", 1), ("all", 0)):
        visit.page.locator(f"[data-{kind}=detector]").click()
        visit.page.evaluate("window.gemOodReport.drawAll()")
        for plot in ("#plot-roc", "#plot-precision"):
            assert visit.page.locator(f"{plot} .absent").count() == sentences
            assert (visit.page.locator(f"{plot} .main-svg").count() > 0) is (sentences == 0)
    assert visit.faults == []


def assert_scores_are_drawn(visit: Visit, detector: str, sets: list[str]) -> None:
    """Check one panel per set: bars of both, the outline of the set's, hover texts and the threshold."""
    data = visit.data()
    found, threshold = data["detectors"][detector]["histogram"], data["detectors"][detector]["threshold"]
    traces, layout = visit.drawn("scores")
    edges = found["edges"]
    panels = [traces[place : place + 3] for place in range(0, len(traces), 3)]
    suffixes = ["", *(str(place + 2) for place in range(len(panels) - 1))]
    assert len(panels) == len(sets)
    for (inside, outside, outline), ood, suffix in zip(panels, sets, suffixes, strict=True):
        assert {one["xaxis"] for one in (inside, outside, outline)} == {f"x{suffix}"}
        shares = found["ood"][ood]
        assert (inside["y"], outside["y"]) == (found["id"], shares)
        assert outline["y"] == [0, *shares, shares[-1], 0]
        assert outline["x"] == [edges[0], *edges, edges[-1]]
        for bars, name in ((inside, "in-distribution"), (outside, ood)):
            assert bars["x"] == pytest.approx([sum(pair) / 2 for pair in itertools.pairwise(edges)])
            assert bars["width"] == pytest.approx([high - low for low, high in itertools.pairwise(edges)])
            for share, text in zip(bars["y"], bars["hovertemplate"], strict=True):
                assert text.startswith(f"{name}<br>")
                assert number(text.removesuffix("<extra></extra>").rpartition(":")[2]) == as_percent(share)
    lines = [(one["xref"], one["yref"], one["x0"], one["x1"]) for one in layout["shapes"]]
    value = threshold["value"]
    assert lines == [(f"x{suffix}", f"y{suffix} domain", value, value) for suffix in suffixes]
    titles = [note["text"] for note in layout["annotations"] if note["xref"] == "paper"]
    assert titles == sets
    assert visit.page.text_content("#guarantee").startswith(f"{detector}: Threshold ")


def assert_curves_are_drawn(visit: Visit, pairs: dict[str, tuple[str, str]]) -> None:
    """Check both plots of curves; `pairs` gives for each name in the legend the detector and the set."""
    detectors = visit.data()["detectors"]
    for key, across, up in (("roc", "fpr", "tpr"), ("precision", "recall", "precision")):
        traces, layout = visit.drawn(key)
        curves = [detectors[detector]["curves"][ood] for detector, ood in pairs.values()]
        assert [(one["x"], one["y"]) for one in traces] == [(one[across], one[up]) for one in curves]
        assert [one["hovertemplate"].split("<br>")[0] for one in traces] == list(pairs)
        assert visit.page.locator(f"#legend-{key} bdi").all_text_contents() == list(pairs)
        asked = [shape["y0"] for shape in layout["shapes"] if shape.get("xref") == "paper"]
        assert asked == ([visit.data()["tpr"]] if key == "roc" else [])


def assert_calibration_is_drawn(visit: Visit, detector: str) -> None:
    kept = visit.data()["detectors"][detector]["kept"]
    band, line, own_range, own = visit.drawn("calibration")[0]
    assert band["x"] == [*kept["asked"], *reversed(kept["asked"])]
    assert band["y"] == [*kept["low"], *reversed(kept["high"])]
    assert (line["x"], line["y"]) == (kept["asked"], kept["realised"])
    assert (own["x"], own["y"]) == ([kept["own"]["asked"]], [kept["own"]["realised"]])
    assert own_range["y"] == [kept["own"]["low"], kept["own"]["high"]]
    assert visit.page.text_content("#words-calibration").startswith(f"{detector}: ")


def assert_diagnosis_is_drawn(visit: Visit, n_bands: int) -> None:
    found = visit.data()["diagnosis"]
    traces = visit.drawn("diagnosis")[0]
    bands, curves = traces[:n_bands], traces[n_bands:]
    given = [found[key] for key in ("band", "class_band") if found[key]]
    for trace, band in zip(bands, given, strict=True):
        assert trace["x"] == [*band["expected"], *reversed(band["expected"])]
        assert trace["y"] == [*band["low"], *reversed(band["high"])]
    # The line of all rows comes last, over the others.
    expected = sorted(found["curves"], key=lambda one: one["name"] is None)
    assert [(one["x"], one["y"]) for one in curves] == [(one["expected"], one["found"]) for one in expected]
    names = ["all rows" if one["name"] is None else one["name"] for one in expected]
    assert [one["hovertemplate"].split("<br>")[0] for one in curves] == names


def assert_map_is_drawn(
    visit: Visit, detector: str, colour: str, sets: list[str], hidden: tuple[str, ...] = ()
) -> None:
    """Check every mark of the map: its place, its group by the legend, its hover text, and whether it is open."""
    data = visit.data()
    drawn, names = data["map"], ["in-distribution", *(one["name"] for one in data["sets"])]
    expected: dict[str, list[Any]] = {}
    columns = (drawn["x"], drawn["y"], drawn["set"], drawn["row"], drawn["class"], drawn["is_ood"][detector])
    for x, y, place, row, rows_class, is_ood in zip(*columns, strict=True):
        if place and names[place] not in sets:
            continue
        class_name = None if rows_class is None else drawn["classes"][rows_class]
        group = {
            "set": names[place],
            "verdict": "flagged (open marks)" if is_ood else "kept",
            "class": "out-of-distribution, no class" if class_name is None else class_name,
        }[colour]
        words = [names[place], f"row {row}", *([] if class_name is None else [f"class {class_name}"])]
        words.append("flagged" if is_ood else "kept")
        expected.setdefault(group, []).append([x, y, "<br>".join(words), bool(is_ood) and colour == "verdict"])
    legend = visit.page.eval_on_selector_all(
        "#legend-map button",
        """buttons => buttons.map((button) => [button.textContent, button.querySelector("path")])
           .map(([text, path]) => [path.getAttribute("stroke") || path.getAttribute("fill"), text])""",
    )
    assert sorted(label for _, label in legend) == sorted(expected)
    labels = dict(legend)
    assert len(labels) == len(legend)
    found = {
        labels[trace["marker"]["color"]]: [
            [x, y, text, symbol.endswith("-open")]
            for x, y, text, symbol in zip(trace["x"], trace["y"], trace["text"], trace["marker"]["symbol"], strict=True)
        ]
        for trace in visit.drawn("map")[0]
    }
    assert found == {group: rows for group, rows in expected.items() if group not in hidden}


def assert_surprises_are_shown(visit: Visit, detector: str) -> None:
    """Check that the rows shown are those of one detector, cell by cell, and their pictures."""
    data = visit.data()
    rows = visit.page.eval_on_selector_all(
        ".surprises:not([hidden]) tbody tr",
        "rows => rows.map((row) => [[...row.cells].map((cell) => cell.textContent), row.querySelector('img').src])",
    )
    expected = data["detectors"][detector]["surprises"]
    assert f"surprised {detector} most" in visit.page.text_content(".surprises:not([hidden]) caption")
    assert len(rows) == len(expected) > 0
    for place, ((cells, picture), one) in enumerate(zip(rows, expected, strict=True), 1):
        is_right = one["is_ood"] == (one["set"] is not None)
        assert cells[:2] == [str(place), ""]
        assert cells[2:4] == [one["set"] or "in-distribution", str(one["row"])]
        assert cells[4:6] == [one["label"] or "–", one["nearest_class"] or "–"]
        for cell, key in zip(cells[6:9], ("distance", "score", "p_value"), strict=True):
            assert cell == "–" if one[key] is None else number(cell) == pytest.approx(one[key], rel=5e-3)
        assert cells[9].startswith(f"{'✓' if is_right else '✗'} {'flagged' if one['is_ood'] else 'kept'}")
        assert picture == data["images"][one["image"]]


def number(text: str) -> float:
    return float(text.replace("%", "").replace(",", "").strip())


def as_percent(share: float) -> Any:
    """Return what a share with two decimals must equal; ties are rounded otherwise than by Python."""
    return pytest.approx(100 * share, abs=0.005 + 1e-9)


def test_plots_draw_the_numbers_of_the_report_whatever_is_hidden_and_in_focus(visit: Visit) -> None:
    data = visit.data()
    names, sets, lead = list(data["detectors"]), [one["name"] for one in data["sets"]], data["lead"]
    first = sets[0]
    assert len(sets) > 2
    assert lead not in names[:2]
    assert_scores_are_drawn(visit, lead, sets)
    assert_curves_are_drawn(visit, {name: (name, first) for name in names})
    assert_calibration_is_drawn(visit, lead)
    assert_diagnosis_is_drawn(visit, n_bands=1)
    assert_map_is_drawn(visit, lead, "class", sets)
    assert_surprises_are_shown(visit, lead)

    visit.tick("set", first, shown=False)
    visit.tick("detector", names[2], shown=False)
    assert_scores_are_drawn(visit, lead, sets[1:])
    assert_curves_are_drawn(visit, {name: (name, sets[1]) for name in names if name != names[2]})
    assert_map_is_drawn(visit, lead, "class", sets[1:])

    visit.choose(focus_detector="1", curve_set="every", map_colour="verdict")
    assert_scores_are_drawn(visit, names[1], sets[1:])
    assert_curves_are_drawn(visit, {ood: (names[1], ood) for ood in sets[1:]})
    assert_calibration_is_drawn(visit, names[1])
    assert_map_is_drawn(visit, names[1], "verdict", sets[1:])
    assert_surprises_are_shown(visit, names[1])

    visit.choose(focus_detector="0")
    assert_map_is_drawn(visit, names[0], "verdict", sets[1:])
    visit.tick("set", first, shown=True)
    visit.choose(map_colour="set")
    visit.page.locator("#legend-map button", has_text=sets[1]).click()
    assert_scores_are_drawn(visit, names[0], sets)
    assert_curves_are_drawn(visit, {ood: (names[0], ood) for ood in sets})
    assert_map_is_drawn(visit, names[0], "set", sets, hidden=(sets[1],))
    assert_surprises_are_shown(visit, names[0])
    assert visit.faults == []


def test_the_table_is_sorted_by_the_column_that_is_pressed(visit: Visit) -> None:
    measured = visit.data()["comparison"]["detectors"]
    first = visit.data()["sets"][0]["name"]
    values = {
        "[data-sort=fpr][data-set=mean]": {name: one["mean"]["fpr"] for name, one in measured.items()},
        f"[data-sort=auroc][data-set='{first}']": {
            name: one["evaluations"][first]["auroc"] for name, one in measured.items()
        },
        "[data-sort=id_kept]": {name: one["id_kept"] for name, one in measured.items()},
    }
    for heading, by_name in values.items():
        for direction in ("ascending", "descending"):
            visit.page.locator(f"#comparison-table th{heading} button").click()
            rows = visit.page.eval_on_selector_all(
                "#comparison-table tbody tr", "rows => rows.map((row) => row.dataset.detector)"
            )
            shown = [by_name[name] for name in rows]
            assert sorted(rows) == sorted(measured)
            assert shown == sorted(by_name.values(), reverse=direction == "descending")
            assert len(set(shown)) > 1
            assert visit.page.get_attribute(f"#comparison-table th{heading}", "aria-sort") == direction


def test_the_numbers_behind_the_curves_are_read_where_the_share_is_kept(visit: Visit, demo: Any) -> None:
    data = visit.data()
    first = data["sets"][0]["name"]

    def at_or_above(curve: dict[str, list[float]], kept: str, value: str, share: float) -> float:
        return next(one for at, one in zip(curve[kept], curve[value], strict=True) if at >= share)

    titles, *rows = visit.numbers("roc")
    words = ("at or above 80 %", "at or above 90 %", "at 95 %", "at or above 99 %")
    assert titles == ["curve", *(f"FPR {word} TPR" for word in words)]
    exact = {one["name"]: one["fpr_by_set"][first] for one in demo[1]["detectors"]}
    assert [row[0] for row in rows] == list(exact)
    for name, *cells in rows:
        curve = data["detectors"][name]["curves"][first]
        shares = [at_or_above(curve, "tpr", "fpr", share) for share in (0.8, 0.9, 0.99)]
        shares.insert(2, exact[name])
        assert [number(cell) for cell in cells] == [as_percent(share) for share in shares]
    assert "first drawn point" in visit.page.text_content("[data-numbers=roc] caption")

    titles, *rows = visit.numbers("precision")
    assert titles == ["curve", *(f"precision at or above {asked} % recall" for asked in (50, 80, 90, 95))]
    for name, *cells in rows:
        curve = data["detectors"][name]["curves"][first]
        shares = [at_or_above(curve, "recall", "precision", share) for share in (0.5, 0.8, 0.9, 0.95)]
        assert [number(cell) for cell in cells] == [as_percent(share) for share in shares]


def test_the_caption_of_the_map_follows_what_its_colours_mean(visit: Visit) -> None:
    lead = visit.page.evaluate("window.gemOodReport.state().focus")
    words = {"class": "Colours are the labels.", "verdict": f"Verdicts of {lead}.", "set": ""}
    for colour, expected in words.items():
        visit.page.select_option("#map-colour", colour)
        visit.page.evaluate("window.gemOodReport.drawAll()")
        assert visit.page.text_content("#words-map") == expected


def test_hiding_a_set_and_choosing_another_detector_redraws(visit: Visit) -> None:
    before = visit.page.locator("#guarantee").text_content()
    visit.page.select_option("#focus-detector", label="Energy")
    visit.page.wait_for_function(
        "before => document.querySelector('#guarantee').textContent !== before", arg=before, timeout=10_000
    )
    visit.page.locator("details[data-menu=set] > summary").click()
    visit.page.locator("#controls input[data-toggle=set][data-set=noise]").uncheck()
    assert visit.page.evaluate("window.gemOodReport.state().sets.includes('noise')") is False
    assert visit.page.evaluate("window.gemOodReport.state().focus") == "Energy"
    assert visit.faults == []


def test_hovering_a_curve_shows_its_numbers(visit: Visit) -> None:
    plot = visit.page.locator("#plot-roc")
    plot.scroll_into_view_if_needed()
    box = plot.locator(".nsewdrag").first.bounding_box()
    visit.page.mouse.move(box["x"] + 0.3 * box["width"], box["y"] + 0.1 * box["height"])
    visit.page.mouse.move(box["x"] + 0.31 * box["width"], box["y"] + 0.12 * box["height"])
    plot.locator(".hoverlayer .hovertext").first.wait_for(timeout=10_000)
    assert "%" in plot.locator(".hoverlayer").text_content()
    assert visit.faults == []


def test_the_keyboard_zooms_moves_and_goes_back(visit: Visit) -> None:
    reach = "[...'xy'].map((axis) => document.querySelector('#plot-map')._fullLayout[`${axis}axis`].range.map(Number))"
    visit.page.locator("#plot-map").focus()
    whole = visit.page.evaluate(reach)
    # For each key, by how much both reaches grow, and by what share of them the plot moves.
    keys = {
        "+": (0.8, 0.0, 0.0),
        "=": (0.8, 0.0, 0.0),
        "-": (1.25, 0.0, 0.0),
        "ArrowLeft": (1.0, -0.1, 0.0),
        "ArrowRight": (1.0, 0.1, 0.0),
        "ArrowUp": (1.0, 0.0, 0.1),
        "ArrowDown": (1.0, 0.0, -0.1),
    }
    for key, (scale, *moves) in keys.items():
        before = visit.page.evaluate(reach)
        visit.page.keyboard.press(key)
        after = visit.page.evaluate(reach)
        for (low, high), (new_low, new_high), move in zip(before, after, moves, strict=True):
            assert new_high - new_low == pytest.approx(scale * (high - low)), key
            assert (new_low + new_high) / 2 == pytest.approx((low + high) / 2 + move * (high - low), abs=1e-6), key
    visit.page.keyboard.press("0")
    assert visit.page.evaluate(reach) == [pytest.approx(ends) for ends in whole]
    assert visit.faults == []


def test_ticks_that_are_shares_differ_however_far_one_zooms_in(visit: Visit) -> None:
    for key, axis in (("roc", "x"), ("roc", "y"), ("calibration", "y"), ("scores", "y")):
        for span in (0.05, 1e-4):
            written = visit.page.evaluate(
                """async ([key, axis, span]) => {
                  const plot = document.getElementById(`plot-${key}`);
                  await Plotly.relayout(plot, { [`${axis}axis.range`]: [0.9, 0.9 + span] });
                  const ticks = plot.querySelectorAll(`.cartesianlayer .${axis}tick text`);
                  return [...ticks].map((tick) => tick.textContent);
                }""",
                [key, axis, span],
            )
            assert len(written) >= 2
            assert len(set(written)) == len(written), (key, axis, span)
            assert all(text.endswith("%") for text in written)


#: Scores such as a confident network's largest probability: close to 1, and to each other.
TIGHT = [0.99049, 0.99057, 0.99065, 0.99073]


@pytest.fixture(scope="module")
def crowded(browser: Any, demo: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Visit]:
    """Return a page of many sets, whose scores differ in late digits and are tied."""
    from gem_ood.reports.page import render

    html = demo[0].read_text("utf-8")
    text = html.split('id="report-data">')[1].split("</script>")[0]
    report = json.loads(text) | {"images": {}}
    band = report["diagnosis"]["band"]
    report["diagnosis"]["class_band"] = band | {"high": [2.0 * value for value in band["high"]], "n_classes": 99}
    sets = [f"set {place}" for place in range(36)]
    detector = report["detectors"]["MSP"]
    detector["surprises"] = []
    detector["threshold"]["value"] = 0.99999994
    beyond = {"id": [0, 0], "ood": {}}
    bars = {"id": [0.25, 0.25, 0.5], "ood": {ood: [0.5, 0.25, 0.25] for ood in sets}, "beyond": beyond}
    detector["histogram"] = {"edges": TIGHT, **bars}
    tied = {"fpr": [0.0, 0.125, 1.0], "tpr": [0.0, 0.4, 1.0], "recall": [0.0, 0.4, 1.0], "precision": [1.0, 0.9, 0.6]}
    detector["curves"] = dict.fromkeys(sets, tied)
    others = {f"MSP {place}": detector for place in range(1, 42)}
    n_rows = len(sets) + 1
    report |= {
        "lead": "MSP",
        "sets": [{"name": ood, "n_rows": 8} for ood in sets],
        "detectors": {"MSP": detector, **others},
        "comparison": {"detectors": {}},
        "map": report["map"]
        | {"x": [*range(n_rows)], "y": [*range(n_rows)], "set": [*range(n_rows)], "row": [0] * n_rows}
        | {"class": [None] * n_rows, "classes": [], "is_ood": {}},
    }
    path = tmp_path_factory.mktemp("crowded") / "report.html"
    path.write_text(render(report), "utf-8")
    one = Visit(browser, path, viewport={"width": 700, "height": 600})
    yield one
    one.page.close()


def test_no_two_sets_or_detectors_look_alike(crowded: Visit) -> None:
    crowded.page.evaluate("document.querySelector('[data-all=detector]').click()")
    looks = [(one["line"]["color"], one["line"]["dash"]) for one in crowded.drawn("roc")[0]]
    assert len(set(looks)) == len(looks) == 42
    crowded.choose(curve_set="every")
    looks = [(one["line"]["color"], one["line"]["dash"]) for one in crowded.drawn("roc")[0]]
    assert len(set(looks)) == len(looks) == 36
    marks = [(one["marker"]["color"], one["marker"]["symbol"][0]) for one in crowded.drawn("map")[0]]
    assert len(set(marks)) == len(marks) == 37
    # Where colour says something else, the mark alone has to tell sets apart as long as there are marks.
    symbols = [symbol for _, symbol in marks]
    assert len(set(symbols[:12])) == 12
    swatches = "paths => paths.map((path) => path.getAttribute('d'))"
    assert len(set(crowded.page.eval_on_selector_all("[data-toggle=set] + .swatch path", swatches))) == 11
    assert crowded.faults == []


def test_the_band_of_the_classes_is_drawn_beside_the_gaussians(crowded: Visit) -> None:
    assert_diagnosis_is_drawn(crowded, n_bands=2)
    assert "lowest to highest of 99 classes" in crowded.page.text_content("#legend-diagnosis")


def test_bins_and_thresholds_are_written_with_the_digits_that_tell_them_apart(crowded: Visit) -> None:
    _, *rows = crowded.numbers("scores")
    assert [row[0] for row in rows] == [f"{low} to {high}" for low, high in itertools.pairwise(TIGHT)]
    texts = crowded.drawn("scores")[0][0]["hovertemplate"]
    assert texts[1] == "in-distribution<br>0.99057 to 0.99065: 25.00 %<extra></extra>"
    assert crowded.page.text_content("#guarantee").startswith("MSP: Threshold 0.9999999, ")
    assert "threshold at 0.9999999." in crowded.page.get_attribute("#plot-scores", "aria-label")


def test_tied_scores_are_not_read_where_fewer_rows_are_kept_than_asked(crowded: Visit) -> None:
    _, first, *_ = crowded.numbers("precision")
    assert first[1:] == ["60.00 %"] * 4
    _, first, *_ = crowded.numbers("roc")
    assert [first[1], first[2], first[4]] == ["100.00 %"] * 3


def test_after_back_and_reload_the_controls_say_what_is_drawn(crowded: Visit) -> None:
    agree = """() => {
      const boxes = [...document.querySelectorAll("[data-toggle]")].filter((box) => box.checked);
      const state = window.gemOodReport.state();
      const named = (kind) => boxes.map((box) => box.dataset[kind]).filter((name) => name !== undefined);
      const focus = document.querySelector("#focus-detector");
      return [
        [state.detectors, named("detector")],
        [state.sets, named("set")],
        [state.focus, focus.options[focus.selectedIndex].text],
        [state.mapColour, document.querySelector("#map-colour").value],
        ["auto", document.querySelector("#theme").value],
        ["0", document.querySelector("#curve-set").value],
      ];
    }"""

    def back() -> None:
        crowded.page.goto("about:blank")
        crowded.page.go_back()

    for come_again in (crowded.page.reload, back):
        crowded.page.evaluate("document.querySelector('[data-set=\"set 3\"]').click()")
        for control, value in (("focus-detector", "1"), ("curve-set", "every"), ("theme", "dark")):
            crowded.page.select_option(f"#{control}", value)
        come_again()
        crowded.page.wait_for_selector("html[data-ready=true]", timeout=DRAWING_MILLISECONDS)
        for is_so, is_said in crowded.page.evaluate(agree):
            assert is_so == is_said
    assert crowded.faults == []


@pytest.mark.parametrize(("name", "width", "scheme"), [("dark", 1280, "dark"), ("phone", 360, "light")])
def test_dark_and_narrow_pages_fit(browser: Any, demo: Any, name: str, width: int, scheme: str) -> None:
    visit = Visit(browser, demo[0], viewport={"width": width, "height": 800}, color_scheme=scheme)
    assert visit.page.evaluate("document.documentElement.dataset.theme") == scheme
    assert visit.page.evaluate("document.documentElement.scrollWidth") <= width
    assert visit.faults == []
    visit.keep(f"report-{name}")
    visit.page.close()


def test_it_prints_in_light_colours_with_every_section(visit: Visit) -> None:
    visit.page.emulate_media(media="print", color_scheme="dark")
    paper = visit.page.pdf(format="A4", print_background=True)
    assert paper.startswith(b"%PDF")
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    (SCREENSHOTS / "report.pdf").write_bytes(paper)
    background = visit.page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert background in ("rgb(255, 255, 255)", "rgba(0, 0, 0, 0)")
    assert visit.page.locator("#controls").is_hidden()
    assert visit.faults == []


def test_rows_beyond_the_axis_are_said_to_be_and_leave_the_others_their_bars(browser: Any, tmp_path: Path) -> None:
    import numpy as np

    from gem_ood import GEM
    from gem_ood.reports import write

    rows = np.random.default_rng(0).normal(size=(900, 3))
    gem = GEM().fit(rows[:300]).calibrate(rows[300:600])
    sets = {"near": rows[:200] + 1.0, "far": rows[:200] + 500.0}
    report = write(tmp_path / "r.html", {"energy": gem}, id=rows[600:], ood=sets, map="pca")
    found = report.detectors["energy"].histogram
    visit = Visit(browser, tmp_path / "r.html", viewport={"width": 1280, "height": 900})
    drawn = visit.page.evaluate("(({data, layout}) => ({data, layout}))(document.querySelector('#plot-scores'))")
    bars = {trace["hovertemplate"][0].split("<br>")[0]: trace for trace in drawn["data"] if trace["type"] == "bar"}
    assert found.ood_beyond == {"near": (0, 0), "far": (200, 0)}
    assert bars["far"]["hovertemplate"][0].startswith(f"far<br>below {found.edges[1]:.4g}: 100.00 %")
    assert " to " in bars["near"]["hovertemplate"][0]
    assert " to " in bars["far"]["hovertemplate"][1]
    assert drawn["layout"]["yaxis"]["range"][1] < 2.0 * found.id.max() < 1.0
    notes = {note["text"]: note["yref"] for note in drawn["layout"]["annotations"]}
    assert notes["◂ 100 % beyond"] == "y2 domain"
    words = "Rows beyond the axis are counted in its first and last bar: far: 200 below."
    assert visit.page.text_content("#words-scores") == words
    titles, first, second, *_ = visit.numbers("scores")
    assert titles == ["score", "in-distribution", "near", "far"]
    assert first == [f"below {found.edges[1]:.4g}", "0.00 %", "0.00 %", "100.00 %"]
    assert second[0] == f"{found.edges[1]:.4g} to {found.edges[2]:.4g}"
    assert visit.page.text_content("#words-map") == "Colours are the nearest class, by energy."
    assert visit.faults == []
    visit.page.locator("#scores").screenshot(path=SCREENSHOTS / "report-far-scores.png")
    visit.page.close()


def test_names_that_are_html_stay_text(browser: Any, tmp_path: Path) -> None:
    import numpy as np

    from gem_ood import GEM
    from gem_ood.reports import write

    hostile = "<img src=x onerror=\"document.title='broken'\"><b>name</b>"
    rows = np.random.default_rng(0).normal(size=(60, 3))
    labels = np.array([hostile, "数字", "</script>"])[np.arange(60) % 3]
    gem = GEM().fit(rows, labels).calibrate(rows)
    write(tmp_path / "r.html", {hostile: gem}, id=rows, labels=labels, ood={hostile: rows + 5.0}, map="pca")
    visit = Visit(browser, tmp_path / "r.html")
    assert visit.page.title() == "gem-ood report"
    assert visit.page.locator("img[src=x]").count() == 0
    assert visit.page.locator("#comparison-table b:text-is('name')").count() == 0
    assert hostile in visit.page.text_content("#comparison-table")
    assert visit.page.locator("svg b, svg image[href=x]").count() == 0
    assert visit.faults == []
    visit.page.close()
