"""Places of rows in the plane, and the figure that draws them."""

import sys
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.spatial.distance import pdist
from sklearn.decomposition import PCA

from gem_ood.errors import InputError, MissingExtraError
from gem_ood.reports.panels.maps import FEWEST_ROWS, place_rows
from gem_ood.reports.plots import feature_map, style


@pytest.fixture
def rows():
    generator = np.random.default_rng(3)
    return generator.normal(size=(80, 6)) * [9.0, 5.0, 1.0, 1.0, 0.5, 0.2] + 40.0


@pytest.fixture
def without_umap(monkeypatch):
    monkeypatch.setitem(sys.modules, "umap", None)


def same_up_to_sign(found, expected, tolerance=1e-9):
    scale = np.abs(expected).max()
    return all(
        min(np.abs(one - other).max(), np.abs(one + other).max()) < tolerance * scale
        for one, other in zip(found.T, expected.T, strict=True)
    )


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_principal_places_are_those_of_scikit_learn(rows, dtype):
    places = place_rows(rows.astype(dtype), method="pca")
    oracle = PCA(2, svd_solver="full").fit(rows.astype(dtype).astype(np.float64))
    assert same_up_to_sign(places.points, oracle.transform(rows.astype(dtype).astype(np.float64)))
    assert f"hold {100 * oracle.explained_variance_ratio_.sum():.3g} % of the variance" in places.note
    assert places.method == "PCA"


def test_principal_places_of_many_dimensions_are_those_of_scikit_learn():
    generator = np.random.default_rng(0)
    wide = generator.normal(size=(600, 700))
    wide[:, 0] *= 200.0
    wide[:, 1] *= 80.0
    assert same_up_to_sign(place_rows(wide, method="pca").points, PCA(2, svd_solver="full").fit_transform(wide), 1e-6)


def test_the_largest_loading_of_an_axis_is_positive(rows):
    for flip in (1.0, -1.0):
        points = place_rows(flip * rows, method="pca").points
        assert np.corrcoef(points[:, 0], flip * rows[:, 0])[0, 1] > 0.9


@pytest.mark.parametrize("scale", [1e150, 1.7e306, 1e-160, 1e-308])
def test_extreme_scales_give_the_same_map(rows, scale):
    points = place_rows(rows * scale, method="pca").points
    expected = place_rows(rows, method="pca").points
    np.testing.assert_allclose(points / np.abs(points).max(), expected / np.abs(expected).max(), atol=1e-9)
    assert np.abs(points).max() < 1e30


def test_ordinary_scales_keep_the_unit_of_the_features(rows):
    points = place_rows(rows[:, :2], method="pca").points
    np.testing.assert_allclose(pdist(points), pdist(rows[:, :2]), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("features", "reason"),
    [
        (np.ones((50, 4)), "needs 20 distinct rows and there is 1."),
        (np.arange(4.0).reshape(1, 4), "needs 20 distinct rows and there is 1."),
        (np.eye(3), "needs 20 distinct rows and there are 3;"),
        (np.repeat(np.eye(5), 20, axis=0), "needs 20 distinct rows and there are 5;"),
        (np.arange(50.0).reshape(-1, 1), "so few dimensions"),
        (np.arange(100.0).reshape(-1, 2), "so few dimensions"),
    ],
)
def test_rows_that_umap_has_no_use_for_are_placed_by_pca_and_the_note_says_why(features, reason):
    places = place_rows(features)
    assert places.method == "PCA"
    assert reason in places.note
    assert places.points.shape == (len(features), 2)
    assert np.isfinite(places.points).all()


def test_one_dimension_has_a_second_axis_of_zeros_and_equal_rows_lie_at_the_origin():
    np.testing.assert_allclose(place_rows([[1.0], [3.0], [8.0]]).points, [[-3.0, 0.0], [-1.0, 0.0], [4.0, 0.0]])
    assert not place_rows(np.full((4, 3), 7.0)).points.any()


def test_without_umap_the_map_is_by_pca_and_names_the_command(rows, without_umap):
    places = place_rows(rows)
    assert places.method == "PCA"
    assert 'pip install "gem-ood[report]"' in places.note
    np.testing.assert_array_equal(places.points, place_rows(rows, method="pca").points)
    with pytest.raises(MissingExtraError, match=r'UMAP maps need umap.*pip install "gem-ood\[report\]"'):
        place_rows(rows, method="umap")


def test_a_umap_that_fails_or_leaves_rows_out_is_replaced_by_pca(rows, monkeypatch):
    def use_umap(fit_transform):
        numba = SimpleNamespace(get_num_threads=lambda: 1, set_num_threads=lambda n_threads: None)
        umap = SimpleNamespace(UMAP=lambda **options: SimpleNamespace(fit_transform=fit_transform))
        monkeypatch.setitem(sys.modules, "numba", numba)
        monkeypatch.setitem(sys.modules, "umap", umap)

    use_umap(lambda values: 1 // 0)
    assert "as UMAP failed on these rows (ZeroDivisionError)" in place_rows(rows).note
    with pytest.raises(InputError, match=r'UMAP failed on these rows.*pass method="pca"'):
        place_rows(rows, method="umap")
    use_umap(lambda values: np.full((len(values), 2), np.nan))
    assert "as UMAP gave no place to some rows" in place_rows(rows).note


def test_umap_keeps_groups_apart_repeats_itself_and_disturbs_nothing():
    numba = pytest.importorskip("numba")
    pytest.importorskip("umap", exc_type=ImportError)
    generator = np.random.default_rng(1)
    labels = np.repeat([0, 1, 2], 25)
    features = generator.normal(size=(75, 5)) + 30.0 * np.eye(5)[labels]
    features[5] = features[6]
    features[7] = 1e150  # one row out of all bounds must not press the others into a point
    np.random.seed(9)  # noqa: NPY002
    before, n_threads = np.random.get_state()[1].copy(), numba.get_num_threads()  # noqa: NPY002
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        places = place_rows(features)
    assert not caught
    np.testing.assert_array_equal(np.random.get_state()[1], before)  # noqa: NPY002
    assert numba.get_num_threads() == n_threads
    assert places.method == "UMAP"
    assert "15 neighbours, seed 0" in places.note
    assert np.isfinite(places.points).all()
    np.testing.assert_array_equal(places.points[5], places.points[6])
    usual = np.arange(75) != 7
    distances = np.linalg.norm(places.points[:, np.newaxis] - places.points, axis=2)
    distances[np.diag_indices(75)] = np.inf
    distances[:, 7] = np.inf
    assert (labels[distances.argmin(axis=1)] == labels)[usual].all()
    order = generator.permutation(75)
    np.testing.assert_array_equal(place_rows(features[order], method="umap").points, places.points[order])
    assert not np.array_equal(place_rows(features, random_state=1).points, places.points)


@pytest.mark.parametrize(
    ("features", "options", "message"),
    [
        ([[1.0, np.nan]], {}, "features row 0, column 1 is NaN"),
        ([1.0, 2.0], {}, "two dimensions"),
        ([[1.0]], {"method": "tsne"}, 'pass "auto", "umap" or "pca"'),
        ([[1.0]], {"random_state": -1}, "random_state is -1"),
        ([[1.0]], {"random_state": 2**32}, "random_state is 4294967296"),
        (np.eye(FEWEST_ROWS - 1), {"method": "umap"}, 'needs 20 distinct rows and there are 19; pass method="pca"'),
    ],
)
def test_a_map_that_cannot_be_made_says_why(features, options, message):
    with pytest.raises(InputError, match=message):
        place_rows(features, **options)


# The figure.


@pytest.fixture
def drawn(rows):
    """Places, sets, classes and verdicts of 60 in-distribution rows and of 20 others."""
    sets = ["in-distribution"] * 60 + ["noise"] * 12 + ["svhn"] * 8
    classes = [*np.resize(["cat", "dog", "eel"], 60), *[None] * 20]
    is_ood = np.arange(80) % 5 == 0
    return place_rows(rows, method="pca"), sets, classes, is_ood


def legend(axes):
    return [text.get_text() for text in axes.get_legend().get_texts()]


def n_drawn(axes):
    return sum(len(collection.get_offsets()) for collection in axes.collections)


@pytest.mark.parametrize("width", ["page", "column"])
def test_the_map_shows_every_row_by_class_and_by_verdict(drawn, width):
    places, sets, classes, is_ood = drawn
    figure = feature_map(places, sets=sets, classes=classes, is_ood=is_ood, width=width)
    by_class, by_verdict = figure.axes
    assert legend(by_class) == ["cat", "dog", "eel", "noise", "svhn"]
    assert legend(by_verdict) == [
        "in-distribution, kept: 48",
        "in-distribution, flagged: 12",
        "OOD sets, kept: 16",
        "OOD sets, flagged: 4",
    ]
    assert [n_drawn(axes) for axes in figure.axes] == [80, 80]
    assert by_class.get_xlabel() == "principal component 1"
    assert "20 % of in-distribution, 25 % of noise, 12 % of svhn" in style.caption(figure)[1]


def test_colours_follow_classes_and_verdicts(drawn):
    from matplotlib.colors import to_hex

    places, sets, classes, is_ood = drawn
    figure = feature_map(places, sets=sets, classes=classes, is_ood=is_ood)
    scaled = places.points / np.abs(places.points).max()
    for axes, expected in (
        (figure.axes[0], {"cat": style.BLUE, "dog": style.ORANGE, "eel": style.GREEN}),
        (figure.axes[1], {False: style.BLUE, True: style.VERMILION}),
    ):
        known = classes if axes is figure.axes[0] else is_ood
        collection = axes.collections[0]
        assert len(collection.get_offsets()) == 60
        for point, colour in zip(collection.get_offsets(), collection.get_facecolors(), strict=True):
            row = int(np.abs(scaled[:60] - point).sum(axis=1).argmin())
            assert to_hex(colour) == expected[known[row]]


def test_panels_appear_only_for_what_is_given(drawn):
    places, sets, classes, _ = drawn
    titles = {
        "By set": feature_map(places, sets=sets),
        "By class": feature_map(places, classes=[*classes[:60], *["cat"] * 20]),
    }
    for title, figure in titles.items():
        assert [axes.get_title(loc="left") for axes in figure.axes] == [title]
    assert legend(titles["By set"].axes[0]) == ["in-distribution", "noise", "svhn"]
    two = feature_map(places.points, is_ood=np.zeros(80))
    assert [axes.get_title(loc="left") for axes in two.axes] == ["(a) By set", "(b) By verdict"]
    assert legend(two.axes[1]) == ["in-distribution, kept: 80"]
    assert two.axes[0].get_ylabel() == "map 2"
    assert style.caption(two)[0] == "Map of the features, by set and by verdict"


def test_the_largest_classes_are_named_and_the_rest_drawn_together(rows):
    classes = [f"{place % 14}" for place in range(70)] + ["0", "3", "11", *[None] * 7]
    names = legend(feature_map(place_rows(rows, method="pca"), classes=classes).axes[0])
    # Classes 0, 3 and 11 have 6 rows, the others 5: of those the lowest numbers are named.
    assert names == ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "11", "3 other classes", "no class"]


AWKWARD = ["_hidden", "$5 or $6", "<b>bold</b>", "", "猫と犬" * 40, "two\nlines", "W" * 500, "\ud800\x00", "x" * 40]


@pytest.mark.parametrize("width", ["page", "column"])
@pytest.mark.parametrize("has_classes", [True, False])
def test_awkward_names_are_shown_inside_the_figure(rows, width, has_classes):
    sets = ["W" * 90] * 40 + list(np.resize(AWKWARD, 40))
    classes = [*np.resize(np.array(AWKWARD, dtype=object), 40), *[None] * 40] if has_classes else None
    places = place_rows(rows, method="pca")
    figure = feature_map(places, sets=sets, id_name="W" * 90, classes=classes, is_ood=np.arange(80) % 2, width=width)
    extent, (across, up) = figure.get_tightbbox(), figure.get_size_inches()
    assert min(extent.x0, extent.y0) >= -0.005
    assert extent.x1 <= across + 0.005
    assert extent.y1 <= up + 0.005
    names = legend(figure.axes[0])
    assert names[-1] == "4 other sets"
    if has_classes:
        assert len(names) == len(AWKWARD) + 6
        assert {" _hidden", r"\$5 or \$6", "<b>bold</b>", "(no name)", "two lines"} <= set(names)
    figure.canvas.draw()
    title, description = style.caption(figure)
    assert 10 < len(title) < 100
    assert len(description) > 100


def test_names_of_letters_that_the_font_lacks_or_that_are_cut_stay_different(rows):
    own = ["日", "本", "a class of a long name, 1", "a class of a long name, 2"]
    figure = feature_map(place_rows(rows, method="pca"), classes=np.resize(own, 80))
    names = legend(figure.axes[0])
    assert len(set(names)) == 4
    assert {r"\u65e5", r"\u672c"} <= set(names)
    figure.canvas.draw()  # a letter without a glyph would warn


def test_the_caption_of_a_map_names_sets_in_full(rows):
    long = "a set of an unusually long name"
    figure = feature_map(place_rows(rows, method="pca"), sets=["in-distribution"] * 79 + [long])
    assert f"79 of in-distribution, 1 of {long}." in style.caption(figure)[1]


@pytest.mark.parametrize("points", [np.zeros((1, 2)), np.zeros((5, 2)), [[-1.7e308, 0.0], [1.7e308, 1.0]]])
def test_degenerate_places_are_drawn(points):
    figure = feature_map(points, classes=["a"] * len(points), is_ood=[1] * len(points))
    figure.canvas.draw()
    assert n_drawn(figure.axes[0]) == len(points)


@pytest.mark.parametrize(
    ("points", "options", "message"),
    [
        (np.zeros((3, 3)), {}, "two numbers per row"),
        ([[0.0, np.inf]], {}, "places row 0, column 1 is infinity"),
        (np.zeros((3, 2)), {"sets": ["a"] * 2}, "sets has 2 values but places has 3 rows"),
        (np.zeros((3, 2)), {"sets": "abc"}, "sets is the text 'abc'"),
        (np.zeros((3, 2)), {"sets": ["a"] * 3}, "no row's set is 'in-distribution'"),
        (np.zeros((3, 2)), {"classes": [1, 2]}, "classes has 2 values"),
        (np.zeros((3, 2)), {"is_ood": [True]}, "is_ood has shape"),
        (np.zeros((3, 2)), {"is_ood": [0.0, 1.0, np.nan]}, "neither True nor False"),
        (np.zeros((3, 2)), {"is_ood": ["a", "b", "c"]}, "neither True nor False"),
        (np.zeros((3, 2)), {"width": "poster"}, "width is 'poster'"),
    ],
)
def test_a_map_of_other_input_is_refused(points, options, message):
    with pytest.raises(InputError, match=message):
        feature_map(points, **options)


def test_the_map_of_real_features_names_its_classes(cifar10):
    generator = np.random.default_rng(0)
    own = generator.choice(10_000, 300, replace=False)
    features = np.vstack([cifar10["test"]["features"][own], cifar10["ood_svhn"]["features"][:100]])
    classes = [*cifar10["test"]["labels"][own], *[None] * 100]
    sets = ["in-distribution"] * 300 + ["svhn"] * 100
    figure = feature_map(place_rows(features, method="pca"), sets=sets, classes=classes)
    assert legend(figure.axes[0]) == [*"0123456789", "svhn"]
    assert n_drawn(figure.axes[0]) == 400
