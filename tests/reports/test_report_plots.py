"""What the figures of a report show, read back from what was drawn."""

import sys

import numpy as np
import pytest
from sklearn.metrics import average_precision_score, roc_auc_score

from gem_ood import GEM
from gem_ood.errors import InputError, MissingExtraError
from gem_ood.metrics import evaluate
from gem_ood.reports import plots, save_figure
from gem_ood.reports.panels.histograms import score_histogram
from gem_ood.thresholds import conformal_threshold, pac_threshold, quantile_threshold

ODD_NAMES = ["cost in $", "_hidden", "a name of a set that is much too long for any legend", "", "two\nlines", "中文 ☃"]


@pytest.fixture(scope="module")
def scores():
    rng = np.random.default_rng(8)
    return {
        "calibration": rng.normal(-30.0, 5.0, 300),
        "id": rng.normal(-30.0, 5.0, 500),
        "near": rng.normal(-40.0, 6.0, 400),
        "far": np.append(np.full(99, -1e6), -np.inf),
    }


@pytest.fixture(scope="module")
def figures(scores):
    calibration, inside = scores["calibration"], scores["id"]
    sets = {"near": scores["near"], "far": scores["far"]}
    odd = {name: scores["near"] + place for place, name in enumerate(ODD_NAMES)}
    own = conformal_threshold(calibration)
    detectors = {name: (inside, outside) for name, outside in odd.items()}
    many = {f"detector {place} of many": (inside, scores["near"] + place) for place in range(20)}
    return {
        "two sets": plots.score_histograms(inside, sets, threshold=own),
        "two sets, column": plots.score_histograms(inside, sets, threshold=own, width="column"),
        "odd names": plots.score_histograms(inside, odd, threshold=pac_threshold(calibration)),
        "odd names, column": plots.score_histograms(inside, odd, width="column"),
        "four sets": plots.score_histograms(inside, dict(list(odd.items())[:4]), threshold=-38.0),
        "most sets": plots.score_histograms(inside, {str(place): scores["near"] for place in range(18)}),
        "no set": plots.score_histograms(inside, {}, threshold=quantile_threshold(calibration), width="column"),
        "one row": plots.score_histograms([1.0], {"one": [1.0]}, threshold=1.0),
        "no finite threshold": plots.score_histograms([1.0, -np.inf], {"one": [1.0]}, threshold=-np.inf),
        "roc": plots.roc_curves(detectors),
        "roc, page": plots.roc_curves(detectors, width="page"),
        "roc of one": plots.roc_curves({"GEM": (inside, scores["near"])}),
        "roc of many": plots.roc_curves(many),
        "roc of many, page": plots.roc_curves(many, width="page"),
        "precision": plots.precision_recall_curves(detectors),
        "precision, page": plots.precision_recall_curves(many, width="page"),
        "precision of rows": plots.precision_recall_curves({"GEM": ([1.0], [2.0])}),
        "kept": plots.asked_and_kept(calibration, inside, threshold=own),
        "kept, page": plots.asked_and_kept(calibration, inside, threshold=own, width="page"),
        "kept of one row": plots.asked_and_kept([1.0], [1.0, 0.0], threshold=quantile_threshold([1.0])),
    }


def stairs(axes, label):
    from matplotlib.patches import StepPatch

    drawn = [patch for patch in axes.patches if isinstance(patch, StepPatch) and patch.get_label() == label]
    return drawn[0].get_data() if drawn else None


def curves(axes):
    """The lines of detectors, in order, and the dots on them."""
    colours = {tuple(line.get_color()) for line in axes.get_lines() if line.get_marker() == "o"}
    lines = [line for line in axes.get_lines() if line.get_marker() == "None" and tuple(line.get_color()) in colours]
    dots = [line.get_xydata()[0] for line in axes.get_lines() if line.get_marker() == "o"]
    return [line for line in lines if line.get_zorder() > 2.0], dots


def legend_texts(figure):
    return [text.get_text() for text in figure.legends[0].get_texts()]


# All of them


def test_nothing_sticks_out_and_legends_hide_nothing(figures):
    for name, figure in figures.items():
        width, height = figure.get_size_inches()
        assert width in (3.4, 7.0), name
        assert height <= 9.0, name
        extent = figure.get_tightbbox()
        assert min(extent.x0, extent.y0) >= -0.005, name
        assert extent.x1 <= width + 0.005, name
        assert extent.y1 <= height + 0.005, name
        labels = [figure._supxlabel, figure._supylabel]  # matplotlib has no public word for their places
        parts = [axes.get_tightbbox() for axes in figure.axes]
        parts += [label.get_window_extent() for label in labels if label is not None]
        for legend in figure.legends:
            assert not any(legend.get_window_extent().overlaps(part) for part in parts), name


def test_titles_of_panels_side_by_side_do_not_meet(figures):
    for name in ("two sets", "odd names", "four sets", "most sets"):
        # matplotlib has no public word for a title at the left
        extents = [axes._left_title.get_window_extent() for axes in figures[name].axes]
        for place, one in enumerate(extents):
            assert not any(one.overlaps(other) for other in extents[place + 1 :]), name


def test_letters_are_large_enough_to_read_in_print(figures):
    from matplotlib.text import Text

    for name, figure in figures.items():
        sizes = {text.get_fontsize() for text in figure.findobj(Text) if text.get_visible() and text.get_text()}
        assert min(sizes) >= 6.5, name
        assert max(sizes) <= 9.0, name


def test_every_figure_has_a_title_and_a_description_in_one_line(figures):
    for figure in figures.values():
        title, description = plots.caption(figure)
        assert 10 < len(title) < 100
        assert len(description) > 100
        assert "\n" not in description


@pytest.mark.parametrize("suffix", [".png", ".svg", ".pdf"])
def test_files_of_any_names_are_written_and_are_the_same_each_time(figures, suffix, tmp_path):
    figure = figures["odd names"]
    first = save_figure(figure, tmp_path / f"first{suffix}").read_bytes()
    assert save_figure(figure, tmp_path / f"second{suffix}").read_bytes() == first


def test_captions_have_names_in_full(figures):
    description = plots.caption(figures["odd names"])[1]
    for name in ("cost in $", "_hidden", ODD_NAMES[2], "(no name)", "two lines", "中文 ☃"):
        assert f"{name} (" in description


def test_names_are_shown_as_they_are_and_cut(figures):
    expected = [r"cost in \$", " _hidden", "a name of a se…", "(no name)", "two lines", r"\u4e2d\u6587 ☃"]
    assert [text.rsplit(" ", 2)[0] for text in legend_texts(figures["roc"])] == expected


@pytest.mark.parametrize(
    "draw",
    [
        lambda: plots.score_histograms([1.0], {}, width="wide"),
        lambda: plots.roc_curves({"GEM": ([1.0], [0.0])}, width="wide"),
        lambda: plots.precision_recall_curves({"GEM": ([1.0], [0.0])}, width="wide"),
        lambda: plots.asked_and_kept([1.0], [1.0], threshold=quantile_threshold([1.0]), width="wide"),
    ],
)
def test_a_width_that_is_neither_is_refused(draw):
    with pytest.raises(InputError, match='width is \'wide\'; pass "page" or "column"'):
        draw()


@pytest.mark.parametrize(
    "draw",
    [
        lambda: plots.score_histograms([1.0], {}),
        lambda: plots.roc_curves({"GEM": ([1.0], [0.0])}),
        lambda: plots.precision_recall_curves({"GEM": ([1.0], [0.0])}),
        lambda: plots.asked_and_kept([1.0], [1.0], threshold=quantile_threshold([1.0])),
    ],
)
def test_without_matplotlib_the_error_has_the_command_that_installs_it(draw, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtraError, match=r'run pip install "gem-ood\[report\]"$'):
        draw()


# Histograms


@pytest.mark.parametrize("name", ["two sets", "two sets, column"])
def test_bars_are_the_shares_of_each_set_and_the_threshold_is_drawn(figures, scores, name):
    sets = {"near": scores["near"], "far": scores["far"]}
    own = conformal_threshold(scores["calibration"])
    expected = score_histogram(scores["id"], sets, threshold=own.value)
    for axes, ood in zip(figures[name].axes, sets, strict=True):
        for label, shares in (("in-distribution", expected.id), ("out-of-distribution", expected.ood[ood])):
            values, edges, _ = stairs(axes, label)
            np.testing.assert_array_equal(values, shares)
            np.testing.assert_array_equal(edges, expected.edges)
        line = next(line for line in axes.get_lines() if line.get_label() == "threshold")
        assert line.get_xdata()[0] == own.value
        out = np.mean(sets[ood] < own.value)
        assert f"{ood}: {100 * out:.1f} % out" in axes.get_title(loc="left")


def test_the_guarantee_is_in_the_legend_and_in_full_in_the_caption(figures, scores):
    calibration = scores["calibration"]
    for name, threshold, words in (
        ("two sets", conformal_threshold(calibration), "keeps on average\n≥ 95 % of new ID rows"),
        ("odd names", pac_threshold(calibration), "keeps, 99 % sure,\n≥ 95 % of new ID rows"),
        ("no set", quantile_threshold(calibration), "keeps ≥ 95 % of\ncalibration rows, no promise"),
    ):
        assert legend_texts(figures[name])[-1] == f"threshold: {words}"
        assert plots.caption(figures[name])[1].endswith(threshold.guarantee)


def test_a_set_beyond_the_axis_is_written_and_leaves_in_distribution_bars_high(figures):
    near, far = figures["two sets"].axes
    assert [text.get_text() for text in far.texts] == ["◂ 100 % beyond"]
    assert [text.get_text() for text in near.texts] == []
    values, _, _ = stairs(far, "in-distribution")
    assert values.max() > 0.5 * far.get_ylim()[1]


def test_bars_that_are_cut_have_their_share_written(scores):
    figure = plots.score_histograms(scores["id"], {"ties": [-35.0] * 3 + [-32.0]})
    assert [text.get_text() for text in figure.axes[0].texts] == ["bars up to 75 %"]
    assert figure.axes[0].get_ylim()[1] < 0.25


def test_a_row_at_the_threshold_is_in(figures):
    assert figures["one row"].axes[0].get_title(loc="left") == "one: 0.0 % out"


def test_without_a_set_in_distribution_rows_are_alone(figures):
    (axes,) = figures["no set"].axes
    assert stairs(axes, "in-distribution")[0].sum() == pytest.approx(1.0)
    assert stairs(axes, "out-of-distribution") is None


def test_panels_share_their_axes(figures):
    for name in ("odd names", "odd names, column", "four sets", "most sets"):
        assert len({(axes.get_xlim(), axes.get_ylim()) for axes in figures[name].axes}) == 1


def test_more_sets_than_a_figure_holds_are_refused():
    with pytest.raises(
        InputError, match="ood_scores has 8 sets but a figure as wide as a column holds 7; draw several"
    ):
        plots.score_histograms([1.0], {str(place): [0.0] for place in range(8)}, width="column")


# ROC and precision-recall


def test_legends_have_the_areas_of_scikit_learn_and_dots_mark_the_false_positive_rate(figures, scores):
    is_in = np.repeat([1, 0], [500, 400])
    _, roc_dots = curves(figures["roc"].axes[0])
    _, precision_dots = curves(figures["precision"].axes[0])
    for place in range(len(ODD_NAMES)):
        outside = scores["near"] + place
        both = np.concatenate([scores["id"], outside])
        for name, score in (("roc", roc_auc_score), ("precision", average_precision_score)):
            assert legend_texts(figures[name])[place].endswith(f" {100 * score(is_in, both):.1f} %")
        cut = np.sort(scores["id"])[25]  # 475 of 500 rows lie from it up
        kept = np.count_nonzero(outside >= cut)
        assert roc_dots[place].tolist() == [kept / 400, 0.95]
        np.testing.assert_allclose(precision_dots[place], [0.95, 475 / (475 + kept)])


def test_dots_lie_on_their_curves(figures):
    for name in ("roc", "precision"):
        lines, dots = curves(figures[name].axes[0])
        assert len(lines) == len(dots) == 6
        for line, (x, y) in zip(lines, dots, strict=True):
            nearest = np.abs(line.get_xydata() - [x, y]).sum(axis=1).min()
            assert nearest < 0.02, name


def test_dots_of_few_rows_are_where_the_rate_is_really_read():
    scores = {"GEM": ([1.0, 2.0, 3.0], [1.5, 0.0])}
    _, (on_roc,) = curves(plots.roc_curves(scores, tpr=0.6).axes[0])
    _, (on_precision,) = curves(plots.precision_recall_curves(scores, tpr=0.9).axes[0])
    np.testing.assert_allclose(on_roc, [0.0, 2 / 3])
    np.testing.assert_allclose(on_precision, [1.0, 3 / 4])


def test_lines_differ_without_colour(figures):
    lines, _ = curves(figures["roc"].axes[0])
    # matplotlib has no public word for dashes; these are before the width of the line scales them
    assert len({str(line._unscaled_dash_pattern) for line in lines}) == 6
    many, _ = curves(figures["roc of many"].axes[0])
    assert len({(line.get_color(), str(line._unscaled_dash_pattern)) for line in many}) == 12


def test_of_many_detectors_the_best_are_drawn_and_said(figures):
    # Each further detector has higher scores of out-of-distribution rows, so a smaller area.
    texts = legend_texts(figures["roc of many"])
    assert len(texts) == 12
    assert figures["roc of many"].legends[0].get_title().get_text().startswith("AUROC, the 12 best of 20")
    description = plots.caption(figures["roc of many"])[1]
    assert "detector 11 of many" in description
    assert "detector 12 of many" not in description
    assert "The 12 best of 20 detectors are drawn." in description


def test_captions_have_the_numbers_of_evaluate(figures, scores):
    expected = evaluate(scores["id"], scores["near"], tpr=0.95)
    description = plots.caption(figures["roc of one"])[1]
    assert f"GEM (AUROC {100 * expected.auroc:.1f} %, FPR at 95 % TPR {100 * expected.fpr:.1f} %)" in description


@pytest.mark.parametrize("draw", [plots.roc_curves, plots.precision_recall_curves])
@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "scores is empty; pass the scores of at least one detector"),
        ({"GEM": [1.0, 2.0, 3.0]}, r"scores\['GEM'\] is no pair; pass a tuple"),
        ({"GEM": ([1.0], [np.nan])}, r"scores\['GEM'\]\[1\] row 0 is NaN"),
    ],
)
def test_what_is_no_pair_of_scores_is_refused(draw, given, message):
    with pytest.raises(InputError, match=message):
        draw(given)


# Shares asked for and kept


def test_asked_and_kept_draws_its_panel(figures, scores):
    from gem_ood.reports.panels.kept import kept_shares

    own = conformal_threshold(scores["calibration"])
    found = kept_shares(scores["calibration"], scores["id"], threshold=own)
    axes = figures["kept"].axes[0]
    lines = {line.get_label(): line.get_xydata() for line in axes.get_lines()}
    np.testing.assert_array_equal(lines["kept"], np.column_stack([found.asked, found.realised]))
    kept = np.mean(scores["id"] >= own.value)
    assert lines["the detector's threshold"].tolist() == [[0.95, kept]]
    assert axes.get_title(loc="left") == f"{100 * kept:.1f} % kept where 95 % were asked for"
    shade = axes.collections[0].get_paths()[0].vertices
    for x, low, high in zip(found.asked, found.low, found.high, strict=True):
        heights = shade[shade[:, 0] == x, 1]
        assert (heights.min(), heights.max()) == (low, high)


def test_the_range_of_a_single_share_is_a_bar(figures):
    bar = figures["kept of one row"].axes[0].collections[-1].get_segments()[0]
    assert bar.tolist() == [[0.5, 0.0], [0.5, 1.0]]


# Real features


def test_real_features_are_drawn(cifar10, tmp_path):
    train, test = cifar10["train"], cifar10["test"]["features"]
    detector = GEM().fit(train["features"][:5000], train["labels"][:5000]).calibrate(test[::2], tpr=0.95)
    inside = detector.score_samples(test[1::2])
    sets = {name: detector.score_samples(cifar10[f"ood_{name}"]["features"]) for name in ("svhn", "textures")}
    figure = plots.score_histograms(inside, sets, threshold=detector.threshold_)
    out = {name: float(np.mean(values < detector.threshold_.value)) for name, values in sets.items()}
    titles = [axes.get_title(loc="left") for axes in figure.axes]
    assert titles == [
        f"({letter}) {name}: {100 * out[name]:.1f} % out" for letter, name in zip("ab", sets, strict=True)
    ]
    assert save_figure(figure, tmp_path / "histograms.png").stat().st_size > 10_000
