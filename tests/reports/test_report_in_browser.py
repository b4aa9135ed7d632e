"""The report as its readers meet it: the demonstration's page in a real browser, from the disk, without a network.

Screenshots are kept in `build/screenshots`.
"""

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
    data = json.loads(visit.page.text_content("#report-data"))
    assert [one["name"] for one in demo[1]["detectors"]] == list(data["detectors"])


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


def test_the_false_positive_rates_behind_the_curves_are_those_of_the_comparison(visit: Visit, demo: Any) -> None:
    titles, *rows = visit.numbers("roc")
    assert titles == ["curve", *(f"FPR {word} TPR" for word in ("near 80 %", "near 90 %", "at 95 %", "near 99 %"))]
    first = json.loads(visit.page.text_content("#report-data"))["sets"][0]["name"]
    assert {row[0]: row[3] for row in rows} == {
        one["name"]: f"{100 * one['fpr_by_set'][first]:.2f} %" for one in demo[1]["detectors"]
    }
    assert "nearest point of the curve" in visit.page.text_content("[data-numbers=roc] caption")


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


def test_the_keyboard_zooms_and_goes_back(visit: Visit) -> None:
    reach = "document.querySelector('#plot-map')._fullLayout.xaxis.range.slice()"
    visit.page.locator("#plot-map").focus()
    whole = visit.page.evaluate(reach)
    visit.page.keyboard.press("+")
    visit.page.wait_for_function(f"([low, high]) => {reach}[1] - {reach}[0] < 0.95 * (high - low)", arg=whole)
    visit.page.keyboard.press("0")
    visit.page.wait_for_function(f"([low, high]) => {reach}[1] - {reach}[0] > 0.95 * (high - low)", arg=whole)
    assert visit.faults == []


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
