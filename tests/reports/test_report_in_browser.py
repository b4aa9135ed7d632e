"""The report as its readers meet it: the demonstration's page in a real browser, from the disk, without a network.

Screenshots are kept in `build/screenshots`.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browsing import SCREENSHOTS, Visit


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


def widths(visit: Visit) -> dict[str, tuple[float, float]]:
    """Return for each plot its width and that of its place."""
    found = visit.page.evaluate(
        """async () => {
          await window.gemOodReport.drawAll();
          return [...document.querySelectorAll("[data-plot]")].map((plot) =>
            [plot.dataset.plot, [plot._fullLayout.width, plot.clientWidth]]);
        }"""
    )
    return {key: tuple(pair) for key, pair in found}


@pytest.mark.parametrize("way", ["media", "events", "pdf"])
def test_after_printing_every_plot_has_the_width_of_the_screen_again(visit: Visit, way: str) -> None:
    before = widths(visit)
    if way == "pdf":
        visit.page.pdf(format="A4")
    else:
        for is_printing in (True, False):
            if way == "media":
                visit.page.emulate_media(media="print" if is_printing else "screen")
            else:
                visit.page.evaluate(f"dispatchEvent(new Event('{'before' if is_printing else 'after'}print'))")
            visit.page.wait_for_selector(f"html[data-printing={str(is_printing).lower()}]")
            if is_printing:
                on_paper = widths(visit)
                assert all(drawn == place < before[key][0] for key, (drawn, place) in on_paper.items()), on_paper
    after = widths(visit)
    assert len(after) >= 5
    assert all(drawn == pytest.approx(place, abs=1.0) for drawn, place in after.values()), after
    assert {key: place for key, (_, place) in after.items()} == {key: place for key, (_, place) in before.items()}
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


LONG_SET = "photographs_of_an_afternoon_at_the_harbour_in_the_rain_without_any_ships_and_with_few_people_" * 2


@pytest.fixture(scope="module")
def single(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Visit]:
    """Return the page of one in-distribution row, with names that hold commas or are long."""
    import numpy as np

    from gem_ood import GEM
    from gem_ood.reports import write

    rows = np.random.default_rng(0).normal(size=(600, 3))
    gem = GEM().fit(rows[:300]).calibrate(rows[300:599])
    sets = {"near, but outside": rows[:20] + 1.0, LONG_SET: rows[:20] + 3.0}
    path = tmp_path_factory.mktemp("single") / "report.html"
    write(path, {"GEM, unit length": gem, "GEM": gem}, id=rows[599:], ood=sets, map=None)
    one = Visit(browser, path, viewport={"width": 1280, "height": 900})
    yield one
    one.page.close()


def test_the_quantiles_of_a_single_row_can_be_seen(single: Visit) -> None:
    (curve,) = single.data()["diagnosis"]["curves"]
    assert len(curve["found"]) == 1
    assert single.page.locator("#plot-diagnosis .scatterlayer .point").count() == 1
    (band, drawn), _ = single.drawn("diagnosis")
    assert (drawn["x"], drawn["y"]) == (curve["expected"], curve["found"])
    assert band["line"]["width"] > 0
    single.page.locator("#diagnosis").screenshot(path=SCREENSHOTS / "report-single-row.png")
    assert single.faults == []


def test_the_quantiles_of_many_rows_are_lines_alone(visit: Visit) -> None:
    curves = visit.data()["diagnosis"]["curves"]
    marks = visit.page.locator("#plot-diagnosis .scatterlayer .point").count()
    assert marks == sum(len(one["found"]) for one in curves if len(one["found"]) < 20)


@pytest.mark.parametrize("width", [360, 1280])
def test_a_long_name_leaves_a_short_source_on_one_line(single: Visit, width: int) -> None:
    single.page.set_viewport_size({"width": width, "height": 900})
    lines = single.page.eval_on_selector_all(
        "#run .run-tables > :first-child tbody td:nth-child(2)",
        """cells => cells.map((cell) => {
          const range = document.createRange();
          range.selectNodeContents(cell);
          return [cell.textContent, new Set([...range.getClientRects()].map((box) => Math.round(box.top))).size];
        })""",
    )
    box = single.page.eval_on_selector("#run .table-box", "box => [box.scrollWidth, box.clientWidth]")
    single.page.locator("#run").screenshot(path=SCREENSHOTS / f"report-run-{width}.png")
    assert len(lines) >= 3
    assert set(map(tuple, lines)) == {("ndarray", 1)}
    assert box[0] == box[1]


def test_names_that_hold_commas_are_told_apart_by_who_hears_them(single: Visit) -> None:
    names = ("near, but outside", f"{LONG_SET[:59]}…")
    roc = single.page.get_attribute("#plot-roc", "aria-label")
    assert roc.endswith(": GEM, unit length; GEM.")
    scores = single.page.get_attribute("#plot-scores", "aria-label")
    assert f" against {names[0]}; {names[1]}. Dashed: its threshold at " in scores
