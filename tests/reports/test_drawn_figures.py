"""What the page draws is what the report holds, whatever is hidden, chosen or crowded."""

import itertools
import json
from collections.abc import Iterator
from typing import Any

import pytest
from browsing import DRAWING_MILLISECONDS, Visit


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


def test_the_numbers_behind_the_curves_are_read_where_the_share_is_kept(visit: Visit, demo: Any) -> None:
    data = visit.data()
    first = data["sets"][0]["name"]

    def at_or_above(curve: dict[str, list[float]], kept: str, value: str, share: float) -> float:
        return next(one for at, one in zip(curve[kept], curve[value], strict=True) if at >= share)

    titles, *rows = visit.numbers("roc")
    # Where the comparison's own number stands, the share kept is the nearest possible: its title names no share.
    measured = visit.page.text_content("#comparison-table th[data-sort=fpr]").split()[0]
    words = (f"FPR at or above {share} % TPR" for share in (80, 90, 99))
    assert titles == ["curve", next(words), next(words), measured, next(words)]
    assert measured == "FPR95"
    exact = {one["name"]: one["fpr_by_set"][first] for one in demo[1]["detectors"]}
    assert [row[0] for row in rows] == list(exact)
    for name, *cells in rows:
        curve = data["detectors"][name]["curves"][first]
        shares = [at_or_above(curve, "tpr", "fpr", share) for share in (0.8, 0.9, 0.99)]
        shares.insert(2, exact[name])
        assert [number(cell) for cell in cells] == [as_percent(share) for share in shares]
    note = visit.page.text_content("[data-numbers=roc] caption")
    assert note.startswith("FPR95 is the comparison’s own. ")
    assert "first drawn point" in note

    titles, *rows = visit.numbers("precision")
    assert titles == ["curve", *(f"precision at or above {asked} % recall" for asked in (50, 80, 90, 95))]
    for name, *cells in rows:
        curve = data["detectors"][name]["curves"][first]
        shares = [at_or_above(curve, "recall", "precision", share) for share in (0.5, 0.8, 0.9, 0.95)]
        assert [number(cell) for cell in cells] == [as_percent(share) for share in shares]


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
