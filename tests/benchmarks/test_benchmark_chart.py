from itertools import pairwise

import pytest
from made_runs import FACTS, made_run, row

from report import Run
from sections import Section

pytest.importorskip("matplotlib")
import chart
from gem_ood.reports.plots import caption


def test_the_caption_has_the_numbers_for_those_who_cannot_see_the_chart():
    title, description = caption(chart.draw(made_run()))
    assert title == "gem-ood beside its peers"
    assert "Fit, time of each peer over that of gem-ood: oodeel 0.4.0 0.8 to 1.5, pytorch-ood 0.4.0 2 to 4." in (
        description
    )
    assert "fit at 512 features, 100 classes 60 %" in description


def test_there_is_a_panel_for_each_kind_of_work_and_one_for_the_limit():
    titles = [axes.get_title(loc="left") for axes in chart.draw(made_run()).axes]
    assert titles[0] == "(a) Fit: time of a peer / gem-ood"
    assert titles[1].startswith("(b) Score")
    assert titles[2].startswith("(c) gem-ood: share")
    assert len(titles) == 3


def test_a_run_without_peers_has_the_limit_alone():
    run = made_run()
    limits = Run(FACTS, [section for section in run.sections if section.key.startswith("limit")])
    assert len(chart.draw(limits).axes) == 1


def test_a_run_with_nothing_to_draw_says_so():
    with pytest.raises(ValueError, match="neither ratios to peers"):
        chart.draw(Run(FACTS, [Section("import", "Import", [row("gem-ood / sklearn", 1.1)])]))


def test_a_run_is_drawn_to_the_same_bytes_twice(tmp_path):
    one, other = (chart.write(made_run(), tmp_path / name).read_bytes() for name in ("a.svg", "b.svg"))
    assert one == other
    assert b"<desc>" in one


def test_names_are_pushed_apart_in_their_order_and_stay_inside():
    places = chart.apart({"a": 0.5, "b": 0.5, "c": 0.99, "d": 1.0, "e": -0.2}, step=0.1)
    heights = list(places.values())
    assert list(places) == ["e", "a", "b", "c", "d"]
    assert all(above - below > 0.09 for below, above in pairwise(heights))
    assert min(heights) >= 0.0
    assert max(heights) <= 1.0
