"""What the figures show, read back from what was drawn."""

import sys

import numpy as np
import pytest
from scipy import stats

from gem_ood.errors import InputError, MissingExtraError
from gem_ood.reports import plots


def lines(axes):
    return {line.get_label(): line for line in axes.get_lines() if not line.get_label().startswith("_")}


def band(axes, label):
    """The lower and the upper edge of a shade, by x."""
    shade = next(shade for shade in axes.collections if shade.get_label() == label)
    x, y = shade.get_paths()[0].vertices.T
    places = np.unique(x)
    return places, *(np.array([edge(y[x == place]) for place in places]) for edge in (np.min, np.max))


@pytest.fixture(scope="module")
def one_dimension():
    return plots.scores_in_one_dimension()


@pytest.fixture(scope="module")
def figures(one_dimension, small_studies):
    rng = np.random.default_rng(0)
    many = [rng.chisquare(8, 60) for _ in range(20)]
    names = ["an unusually long name of a class", "_private", "cost in $", *"abcdefghi"]
    return {
        "in and out": plots.in_and_out(),
        "in and out, column": plots.in_and_out(width="column"),
        "one dimension": one_dimension,
        "uneven classes": plots.scores_in_one_dimension(means=(-3.0, 0.0, 1.0), sigma=0.5),
        "far classes": plots.scores_in_one_dimension(means=(-60.0, 60.0)),
        "three studies": plots.study_curves(small_studies),
        "three studies, column": plots.study_curves(small_studies, width="column"),
        "two studies, column": plots.study_curves(small_studies[:2], width="column"),
        "one study, page": plots.study_curves(small_studies[0], width="page"),
        "one study": plots.study_curves(small_studies[:1]),
        "one class": plots.quantile_quantile(many[:1], 8),
        "twelve classes": plots.quantile_quantile(many[:12], 8, names=names),
        "many classes": plots.quantile_quantile(many, 8),
        "a class of one row": plots.quantile_quantile([*many, [4.0]], 8),
        "heavy tails": plots.quantile_quantile([1e3 * rng.pareto(1.0, 500)], 8),
    }


def test_nothing_sticks_out_of_a_figure_and_legends_hide_nothing(figures):
    for name, figure in figures.items():
        width, height = figure.get_size_inches()
        assert width in (3.4, 7.0), name
        extent = figure.get_tightbbox()
        assert min(extent.x0, extent.y0) >= -0.005, name
        assert extent.x1 <= width + 0.005, name
        assert extent.y1 <= height + 0.005, name
        for legend in figure.legends:
            for axes in figure.axes:
                assert not legend.get_window_extent().overlaps(axes.get_tightbbox()), name


def test_letters_are_large_enough_to_read_in_print(figures):
    from matplotlib.text import Text

    for name, figure in figures.items():
        sizes = {text.get_fontsize() for text in figure.findobj(Text) if text.get_visible() and text.get_text()}
        assert min(sizes) >= 6.5, name
        assert max(sizes) <= 9.0, name


def test_every_figure_has_a_title_and_a_description(figures):
    for figure in figures.values():
        title, description = plots.caption(figure)
        assert 10 < len(title) < 100
        assert len(description) > 100
        assert "\n" not in description


# Out-of-distribution in the plane


def test_the_region_of_gem_keeps_95_percent_of_new_rows_and_none_of_the_far_ones():
    from matplotlib.contour import QuadContourSet

    from gem_ood.gaussians import TiedGaussians
    from gem_ood.reports.plots.plane import CLASS_MEANS, COVARIANCE

    figure = plots.in_and_out(n_rows=4000, random_state=1)
    axes = figure.axes[1]
    contour = [drawn for drawn in axes.collections if isinstance(drawn, QuadContourSet)][-1]
    region = contour.get_paths()[0]
    rows, _ = TiedGaussians.from_parameters(CLASS_MEANS, COVARIANCE).sample(20_000, random_state=2)
    # The share kept has a standard deviation of about 0.004 over fits, calibrations and these rows: 5 of them.
    assert region.contains_points(rows).mean() == pytest.approx(0.95, abs=0.02)
    far = np.column_stack(lines(axes)["out-of-distribution"].get_data())
    assert len(far) == 2000
    share = np.mean(~region.contains_points(far))
    assert f"it refuses {100 * share:.0f} % of the out-of-distribution rows" in plots.caption(figure)[1]


def test_the_classifier_of_the_picture_is_sure_of_the_rows_that_gem_refuses(figures):
    description = plots.caption(figures["in and out"])[1]
    assert "that sure of 100 % of them" in description
    assert "refuses 100 % of the out-of-distribution rows" in description


@pytest.mark.parametrize(("name", "value"), [("n_rows", 10), ("n_rows", 99.5), ("random_state", -1)])
def test_a_picture_of_too_few_rows_or_without_a_seed_is_refused(name, value):
    with pytest.raises(InputError, match=f"{name} is {value}; pass a whole number of at least"):
        plots.in_and_out(**{name: value})


# Scores in one dimension


def test_the_curves_are_the_closed_forms(one_dimension):
    curves = {label: line.get_xydata().T for label, line in lines(one_dimension.axes[0]).items()}
    x = curves["MSP, as it is"][0]
    assert (x[0], x[-1]) == (-8.0, 8.0)
    density = stats.norm.pdf(x, 2.0) + stats.norm.pdf(x, -2.0)
    energy = np.logaddexp(2.0 * x, -2.0 * x)
    expected = {
        "MSP, as it is": 1.0 / (1.0 + np.exp(-4.0 * np.abs(x))),
        "f′-energy, affine to [0, 1]": (energy - energy.min()) / np.ptp(energy),
        "exp(½ Mahalanobis)": np.exp(-0.5 * (np.abs(x) - 2.0) ** 2),
        "exp(GEM) ÷ its peak": density / density.max(),
    }
    assert curves.keys() == expected.keys()
    for label, values in expected.items():
        np.testing.assert_allclose(curves[label][1], values, rtol=1e-5, atol=1e-9)


def test_the_density_is_the_curve_of_gem(one_dimension):
    axes = one_dimension.axes[0]
    x, _, top = band(axes, "density p(x) ÷ its peak")
    gem = lines(axes)["exp(GEM) ÷ its peak"]
    np.testing.assert_allclose(top, np.interp(x, *gem.get_data()), atol=1e-12)


def test_sigma_is_a_standard_deviation(one_dimension):
    figure = plots.scores_in_one_dimension(means=(-4.0, 4.0), sigma=2.0)
    for wide, plain in zip(figure.axes[0].get_lines(), one_dimension.axes[0].get_lines(), strict=True):
        np.testing.assert_allclose(wide.get_xdata(), 2.0 * plain.get_xdata())
        np.testing.assert_allclose(wide.get_ydata(), plain.get_ydata(), atol=1e-9)


def test_the_bars_mark_the_inversions_of_each_score(one_dimension):
    axes = one_dimension.axes[1]
    found = {}
    for bars in axes.collections:
        for path in bars.get_paths():
            (left, bottom), (right, _) = path.vertices.min(axis=0), path.vertices.max(axis=0)
            found.setdefault(round(bottom + 0.42), []).append((left, right))
    # MSP and f'-energy are misled everywhere beyond the modes, by a factor of ten from |x| = 2 + √(2 log 10) on.
    gross = 2.0 + np.sqrt(2.0 * np.log(10.0))
    for row in (0, 1):
        np.testing.assert_allclose(sorted(found[row]), [(-8, -gross), (-8, -2), (2, 8), (gross, 8)], atol=0.01)
    np.testing.assert_allclose(sorted(found[2]), [(-4, -2), (2, 4)], atol=0.01)
    assert 3 not in found
    texts = [text.get_text() for text in axes.texts]
    assert [text for text in texts if text] == ["over 10⁷× less likely"] * 2 + ["2× less likely", "no inversion"]


@pytest.mark.parametrize("means", [(1.0,), (1.0, 1.0), (0.0, np.nan), [[0.0, 1.0]]])
def test_means_that_are_not_two_numbers_are_refused(means):
    with pytest.raises(InputError, match="pass at least two distinct finite numbers"):
        plots.scores_in_one_dimension(means=means)


@pytest.mark.parametrize("sigma", [0.0, -1.0, np.inf])
def test_a_sigma_that_is_not_positive_is_refused(sigma):
    with pytest.raises(InputError, match="pass a positive standard deviation"):
        plots.scores_in_one_dimension(sigma=sigma)


# Studies


def test_the_curves_of_a_study_are_its_means_and_predictions(figures, small_studies):
    figure = figures["three studies"]
    assert [axes.get_xlabel() for axes in figure.axes] == ["distance $r$", "dimension $d$", "number of classes $k$"]
    assert figure.axes[0].get_ylabel() == "FPR at 95 % TPR"
    by_name = {study.name: study for study in small_studies}
    for axes, name in zip(figure.axes, ("distance", "dimension", "classes"), strict=True):
        drawn = lines(axes)
        for curve in by_name[name].curves:
            tag = "" if curve.n_classes is None else f" k={curve.n_classes}"
            for score in ("gem", "mahalanobis", "msp", "linear-energy"):
                line = drawn.pop(score + tag)
                assert line.get_xdata().tolist() == [point.value for point in curve.points]
                assert line.get_ydata().tolist() == [point.mean(score) for point in curve.points]
            predicted = drawn.pop(f"gem{tag} predicted").get_ydata()
            assert list(predicted) == [point.predicted["gem"] for point in curve.points]
        assert drawn == {}


def test_the_shade_reaches_one_spread_to_each_side(small_studies):
    figure = plots.study_curves(small_studies[0], scores=["gem"])
    _, low, high = band(figure.axes[0], figure.axes[0].collections[0].get_label())
    points = small_studies[0].curves[0].points
    np.testing.assert_allclose(low, [point.mean() - point.spread() for point in points])
    np.testing.assert_allclose(high, [point.mean() + point.spread() for point in points])


def test_a_single_run_is_drawn_without_a_shade():
    from gem_ood.simulation import run_study

    study = run_study("classes", grid=[2, 4], runs=1, sampler="projected", n_in=100, n_out=100, dimension=16)
    axes = plots.study_curves(study, scores=["gem"]).axes[0]
    _, low, high = band(axes, axes.collections[0].get_label())
    np.testing.assert_array_equal(low, high)


def look(line):
    """What tells a line from others in grey print."""
    # matplotlib has no public word for dashes; these are before the width of the line scales them
    return line.get_marker(), line.get_markerfacecolor() == "white", line._unscaled_dash_pattern


def curves_of(name, numbers, **options):
    from gem_ood.simulation import run_study

    sizes = {"runs": 2, "sampler": "projected", "n_in": 100, "n_out": 100, "grid": [20, 40]}
    return run_study(name, n_classes=numbers, **{**sizes, **options})


def test_lines_of_one_panel_differ_without_colour(figures):
    axes = figures["three studies"].axes[0]
    looks = [str(look(line)) for line in axes.get_lines() if line.get_marker() != "None"]
    assert len(looks) == len(set(looks)) == 8


@pytest.mark.parametrize("numbers", [[2, 3, 4], [2, 3, 4, 5]])
def test_every_curve_of_gem_has_its_own_markers_and_dashes(numbers):
    drawn = lines(plots.study_curves(curves_of("dimension", numbers), scores=["gem"]).axes[0])
    markers = {str(look(drawn[f"gem k={number}"])[:2]) for number in numbers}
    dashes = {str(look(drawn[f"gem k={number} predicted"])[2]) for number in numbers}
    assert len(markers) == len(dashes) == len(numbers)


def test_a_number_of_classes_looks_the_same_in_every_panel_and_in_the_legend():
    studies = [curves_of("distance", [10, 20]), curves_of("dimension", 20)]
    figure = plots.study_curves(studies)
    entries = figure.legends[0]
    legend = {text.get_text(): line for text, line in zip(entries.get_texts(), entries.get_lines(), strict=True)}
    for axes, numbers in zip(figure.axes, ([10, 20], [20]), strict=True):
        drawn = lines(axes)
        for number in numbers:
            expected = look(legend[f"$k$ = {number}"])
            assert look(drawn[f"gem k={number}"])[:2] == expected[:2]
            assert look(drawn[f"gem k={number} predicted"])[2] == expected[2]
            assert look(drawn[f"linear-energy k={number}"])[1:] == expected[1:]


def test_the_caption_speaks_of_what_is_drawn(small_studies):
    captions = {score: plots.caption(plots.study_curves(small_studies, scores=[score]))[1] for score in ("gem", "msp")}
    assert "thin black line is the rate that theory predicts for GEM" in captions["gem"]
    assert "GEM" not in captions["msp"]
    assert "black" not in captions["msp"]


@pytest.mark.parametrize(("width", "inches"), [("page", 7.0), ("column", 3.4)])
def test_panels_stand_side_by_side_on_a_page_and_under_each_other_in_a_column(width, inches, small_studies):
    for figure in (plots.study_curves(small_studies, width=width), plots.in_and_out(width=width)):
        assert figure.get_size_inches()[0] == inches
        corners = np.array([axes.get_position().p0 for axes in figure.axes])
        across, up = np.ptp(corners, axis=0)
        assert (across > 0.3, up > 0.3) == ((True, False) if width == "page" else (False, True))


def test_both_widths_show_the_same(figures):
    for wide, narrow in (("in and out", "in and out, column"), ("three studies", "three studies, column")):
        assert plots.caption(figures[wide]) == plots.caption(figures[narrow])
        for one, other in zip(figures[wide].axes, figures[narrow].axes, strict=True):
            assert one.get_title(loc="left") == other.get_title(loc="left")
            assert lines(one).keys() == lines(other).keys()
            for label, line in lines(one).items():
                np.testing.assert_array_equal(line.get_xydata(), lines(other)[label].get_xydata())


def test_a_width_that_is_neither_is_refused(small_studies):
    for draw in (lambda: plots.study_curves(small_studies, width="wide"), lambda: plots.in_and_out(width="wide")):
        with pytest.raises(InputError, match='width is \'wide\'; pass "page" or "column"'):
            draw()


def test_studies_that_cannot_be_drawn_are_refused(small_studies):
    with pytest.raises(InputError, match="studies is empty"):
        plots.study_curves([])
    with pytest.raises(InputError, match="pass each study once"):
        plots.study_curves([small_studies[0], small_studies[0]])
    with pytest.raises(InputError, match="pass some of gem, mahalanobis, msp, linear-energy"):
        plots.study_curves(small_studies, scores=["energy"])
    at_another_rate = curves_of("distance", 2, tpr=0.9)
    with pytest.raises(InputError, match=r"studies were read at tpr 0.95 and 0.9 but share an axis; run them at one"):
        plots.study_curves([small_studies[0], at_another_rate])
    too_many = [curves_of("distance", [2, 3, 4]), curves_of("dimension", [4, 5, 6])]
    with pytest.raises(
        InputError, match=r"curves of 5 numbers of classes \(2, 3, 4, 5, 6\) but a figure tells 4 apart"
    ):
        plots.study_curves(too_many)


# Quantiles


def test_rows_are_drawn_in_order_against_the_quantiles_of_chi_square():
    rng = np.random.default_rng(3)
    cat, dog = rng.chisquare(5, 40), rng.chisquare(5, 25)
    drawn = lines(plots.quantile_quantile([cat, dog], 5, names=["cat", "dog"]).axes[0])
    for label, distances in {"cat": cat, "dog": dog, "all rows": np.concatenate([cat, dog])}.items():
        n = len(distances)
        x, y = drawn[label].get_data()
        np.testing.assert_array_equal(y, np.sort(distances))
        np.testing.assert_allclose(stats.chi2.cdf(x, 5), (np.arange(1, n + 1) - 0.5) / n, rtol=1e-9)


def test_the_band_holds_each_ordered_row_with_probability_95_percent():
    n = 40
    figure = plots.quantile_quantile([np.random.default_rng(0).chisquare(3, n)], 3)
    _, low, high = band(figure.axes[0], "95 % band if Gaussian")
    ranks = np.arange(1, n + 1)
    # The i-th smallest is at most t if at least i of n rows are.
    np.testing.assert_allclose(stats.binom.sf(ranks - 1, n, stats.chi2.cdf(low, 3)), 0.025, rtol=1e-6)
    np.testing.assert_allclose(stats.binom.sf(ranks - 1, n, stats.chi2.cdf(high, 3)), 0.975, rtol=1e-6)


def test_the_share_under_the_95_percent_point_is_said():
    distances = np.concatenate([np.full(93, 1.0), np.full(7, 100.0)])
    figure = plots.quantile_quantile([distances], 4)
    assert figure.axes[0].get_title(loc="left") == "93.0 % of rows under χ²'s 95 % point, 9.488 (dotted)"


@pytest.mark.parametrize(("factor", "scale"), [(1.0, "linear"), (1000.0, "log")])
def test_a_wide_range_has_logarithmic_axes(factor, scale):
    distances = np.random.default_rng(0).chisquare(64, 200)
    distances[0] *= factor
    axes = plots.quantile_quantile([distances], 64).axes[0]
    assert (axes.get_xscale(), axes.get_yscale()) == (scale, scale)


def test_long_data_are_thinned_and_keep_their_ends():
    distances = np.random.default_rng(0).chisquare(4, 50_000)
    x, y = lines(plots.quantile_quantile([distances], 4).axes[0])["all rows"].get_data()
    assert len(x) <= 300
    assert (y[0], y[-1]) == (distances.min(), distances.max())
    assert np.isin(y, distances).all()


def test_more_than_twelve_classes_are_one_band():
    rng = np.random.default_rng(1)
    classes = [scale * rng.chisquare(4, 50) for scale in np.linspace(0.5, 2.0, 13)]
    axes = plots.quantile_quantile(classes, 4).axes[0]
    assert set(lines(axes)) == {"all rows", "diagonal"}
    _, low, high = band(axes, "13 classes, lowest to highest")
    together = np.sort(classes, axis=1)
    np.testing.assert_allclose(low, together.min(axis=0))
    np.testing.assert_allclose(high, together.max(axis=0))


@pytest.mark.parametrize(("n_small", "n_drawn"), [(1, 199), (20, 180)])
def test_small_classes_leave_the_band_of_the_others_as_it_is(n_small, n_drawn):
    rng = np.random.default_rng(1)
    large = rng.chisquare(4, (n_drawn, 50))
    small = [rng.chisquare(4, 1 + place % 24) for place in range(n_small)]
    figure = plots.quantile_quantile([*small, *large], 4)
    _, low, high = band(figure.axes[0], f"{n_drawn} classes of ≥ 25 rows,\nlowest to highest")
    together = np.sort(large, axis=1)
    np.testing.assert_allclose(low, together.min(axis=0))
    np.testing.assert_allclose(high, together.max(axis=0))
    assert f"leaves out {n_small} of them, of fewer than 25 rows" in plots.caption(figure)[1]


def test_classes_of_a_single_row_have_no_band():
    figure = plots.quantile_quantile(np.random.default_rng(1).chisquare(4, (13, 1)), 4)
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [
        "all rows",
        "95 % band if Gaussian",
        "diagonal",
    ]
    assert "leaves out 13 of them" in plots.caption(figure)[1]


@pytest.mark.parametrize(
    ("distances", "freedom", "names", "message"),
    [
        ([], 3, None, "distances_by_class is empty"),
        ([[1.0], [-1.0]], 3, None, r"distances_by_class\[1\] holds a negative or infinite value"),
        ([[1.0], [np.nan]], 3, None, r"distances_by_class\[1\] row 0 is NaN"),
        ([[0.0, 0.0]], 3, None, "all distances are 0"),
        ([[1.0]], 0, None, "degrees_of_freedom is 0; pass a positive number"),
        ([[1.0]], 3, ["a", "b"], "names has 2 names but there are 1 classes"),
    ],
)
def test_what_is_no_distance_is_refused(distances, freedom, names, message):
    with pytest.raises(InputError, match=message):
        plots.quantile_quantile(distances, freedom, names=names)


# Without matplotlib


@pytest.mark.parametrize(
    "draw",
    [
        plots.in_and_out,
        plots.scores_in_one_dimension,
        lambda: plots.quantile_quantile([[1.0, 2.0]], 3),
    ],
)
def test_without_matplotlib_the_error_has_the_command_that_installs_it(draw, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtraError, match=r'run pip install "gem-ood\[report\]"$'):
        draw()
