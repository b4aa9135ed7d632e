"""The map of the features: every row in the plane, coloured by class and by verdict (P42)."""

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gem_ood.errors import InputError
from gem_ood.features import as_features, refuse_non_finite
from gem_ood.plain import natural_order
from gem_ood.reports.panels.maps import Places
from gem_ood.reports.plots import style
from gem_ood.reports.plots.names import plain, shown, width_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["feature_map"]

#: The largest classes and the first sets have a look of their own; the rest are drawn together.
NAMED_CLASSES, NAMED_SETS = 11, 5

#: Wider names are cut, in points, so that legends of three columns fit under their panel; and two columns of verdicts.
WIDEST_NAME, WIDEST_VERDICT = 58.0, 100.0

#: Not even the narrowest letters make a longer name fit.
LONGEST_NAME = 40

#: Okabe and Ito's colours, then others that stay apart for colour-blind readers next to them.
CLASS_COLOURS = (
    style.BLUE,
    style.ORANGE,
    style.GREEN,
    style.PURPLE,
    style.SKY,
    "#882255",
    "#999933",
    style.YELLOW,
    "#332288",
    style.VERMILION,
    "#805030",
)
OTHER_COLOUR, NO_COLOUR = "#b8b8b8", "#dedede"

#: Markers of out-of-distribution sets and their colours: black among classes, bright where there are none.
SET_MARKERS = ("^", "s", "D", "v", "P", "X")
SET_COLOURS = (style.VERMILION, style.GREEN, style.PURPLE, style.ORANGE, style.BLACK, style.GREY)
SET_SHADES = ("#000000", "#5a5a5a", "#000000", "#5a5a5a", "#000000", "#5a5a5a")

KEPT_COLOUR, FLAGGED_COLOUR = style.BLUE, style.VERMILION

#: Areas of markers in square points: of few rows, of many.
LARGEST_MARKER, SMALLEST_MARKER = 16.0, 0.4

#: A class is named on the map where half its rows lie within this share of the map's size.
COMPACT = 0.06

#: In inches: the room for titles and labels of axes, a line of a legend, and the least and the largest panel.
AROUND, LEGEND_LINE, SHORTEST, TALLEST = 0.5, 0.15, 1.6, 3.4


class _Rows(NamedTuple):
    points: NDArray[np.float64]
    sets: NDArray[np.intp]  # 0: in-distribution, then the places of the sets, counted from 1
    set_names: list[str]
    full_set_names: list[str]  # for captions
    classes: NDArray[np.intp] | None  # places in class_names
    class_names: list[str]
    n_classes: int
    is_ood: NDArray[np.bool_] | None


def feature_map(
    places: Places | ArrayLike,
    *,
    sets: Iterable[object] | None = None,
    id_name: str = "in-distribution",
    classes: Iterable[object] | None = None,
    is_ood: ArrayLike | None = None,
    width: style.Width = "page",
) -> "Figure":
    """Return the map of rows in the plane: coloured by class, and, where verdicts are given, by verdict (P42).

    The first panel colours in-distribution rows by class, the 11 largest by name; rows of other sets have markers of
    their own. Without classes it shows the sets. The second panel shows what a detector keeps and what it flags.

    Args:
        places: What `place_rows` returned, or one point of the plane per row.
        sets: The name of each row's set; all rows are in-distribution if not given.
        id_name: Which of these names is the in-distribution set's.
        classes: The class of each row; those of out-of-distribution rows are not shown, and None is no class.
        is_ood: A detector's verdict on each row.
        width: "page" puts two panels side by side, "column" one under the other.

    Example:
        >>> from gem_ood.reports.panels.maps import place_rows
        >>> places = place_rows([[0.0, 1.0, 0.0], [0.1, 1.0, 0.0], [3.0, 0.0, 1.0], [9.0, 9.0, 9.0]], method="pca")
        >>> sets = ["in-distribution", "in-distribution", "in-distribution", "noise"]
        >>> figure = feature_map(places, sets=sets, classes=["cat", "cat", "dog", None], is_ood=[0, 0, 0, 1])
        >>> [axes.get_title(loc="left") for axes in figure.axes]
        ['(a) By class', '(b) By verdict']
    """
    is_page = style.is_page(width)
    style.require_matplotlib()
    points = places.points if isinstance(places, Places) else places
    method = places.method if isinstance(places, Places) else "map"
    rows = _checked(points, sets, id_name, classes, is_ood)
    titles = ["By class" if rows.classes is not None else "By set", "By verdict"][: 1 if rows.is_ood is None else 2]
    with style.drawing():
        figure, panels = _panels(rows, len(titles), is_page=is_page)
        _draw_sets(panels[0], rows)
        if rows.is_ood is not None:
            _draw_verdicts(panels[1], rows, rows.is_ood)
        for axes in panels:
            _set_axes(axes, method)
        if len(titles) > 1:
            style.letter(panels, titles)
        else:
            panels[0].set_title(titles[0])
        return style.finished(figure, title=_title(method, titles), description=_description(rows))


def _checked(
    points: ArrayLike,
    sets: Iterable[object] | None,
    id_name: str,
    classes: Iterable[object] | None,
    is_ood: ArrayLike | None,
) -> _Rows:
    plane = as_features(points, name="places").astype(np.float64)
    refuse_non_finite(plane, name="places")
    if plane.shape[1] != 2:
        raise InputError(f"places has shape {plane.shape}; pass two numbers per row, as place_rows returns them")
    n_rows = len(plane)
    names = [id_name] * n_rows if sets is None else _one_each(sets, n_rows, "sets")
    if id_name not in names:
        raise InputError(f"no row's set is {id_name!r}; name the in-distribution set: feature_map(..., id_name=...)")
    order = [id_name, *(name for name in dict.fromkeys(names) if name != id_name)]
    place_of = {name: min(place, NAMED_SETS + 1) for place, name in enumerate(order)}
    set_of = np.array([place_of[name] for name in names], dtype=np.intp)
    named, others = order[: NAMED_SETS + 1], order[NAMED_SETS + 1 :]
    rest = [f"{len(others)} other sets"] if others else []
    set_names, full_names = [*_cut(named), *rest], [*map(plain, named), *rest]
    verdicts = _verdicts(is_ood, n_rows)
    plane /= np.abs(plane).max() or 1.0  # axes have no numbers, and sums of large ones would overflow
    if classes is None:
        return _Rows(plane, set_of, set_names, full_names, None, [], 0, verdicts)
    ranked = _ranked(_one_each(classes, n_rows, "classes", is_none_kept=True), set_of)
    return _Rows(plane, set_of, set_names, full_names, *ranked, verdicts)


def _one_each(values: Iterable[object], n_rows: int, name: str, *, is_none_kept: bool = False) -> list[Any]:
    if isinstance(values, str):
        raise InputError(f"{name} is the text {values!r}; pass one value per row")
    listed = [None if is_none_kept and value is None else str(value) for value in values]
    if len(listed) != n_rows:
        raise InputError(f"{name} has {len(listed)} values but places has {n_rows} rows; pass one per row")
    return listed


def _ranked(names: list[str | None], set_of: NDArray[np.intp]) -> tuple[NDArray[np.intp], list[str], int]:
    """Return each row's place among the named classes, with their names; the largest are named, in order of name."""
    counts = Counter(name for name, place in zip(names, set_of, strict=True) if place == 0 and name is not None)
    by_size = sorted(counts, key=lambda name: (-counts[name], natural_order(name)))
    largest = sorted(by_size[:NAMED_CLASSES], key=natural_order)
    place_of: dict[str | None, int] = {name: place for place, name in enumerate(largest)}
    named = _cut(largest)
    if len(counts) > len(largest):
        named.append(f"{len(counts) - len(largest)} other classes")
    if any(name is None and place == 0 for name, place in zip(names, set_of, strict=True)):
        place_of[None] = len(named)
        named.append("no class")
    other = len(largest)
    return np.array([place_of.get(name, other) for name in names], dtype=np.intp), named, len(counts)


def _verdicts(is_ood: ArrayLike | None, n_rows: int) -> NDArray[np.bool_] | None:
    if is_ood is None:
        return None
    verdicts = np.asarray(is_ood)
    if verdicts.shape != (n_rows,):
        raise InputError(f"is_ood has shape {verdicts.shape} but places has {n_rows} rows; pass one verdict per row")
    if verdicts.dtype.kind not in "biuf" or not np.isin(verdicts, (0, 1)).all():
        raise InputError("is_ood holds a value that is neither True nor False; pass what detector.is_ood returns")
    return verdicts.astype(np.bool_)


def _cut(names: list[str]) -> list[str]:
    return shown(names, length=LONGEST_NAME, width=WIDEST_NAME)


def _panels(rows: _Rows, n_panels: int, *, is_page: bool) -> "tuple[Figure, list[Axes]]":
    """Return the figure and its panels, as tall as rows need at equal scales."""
    wide = style.DOUBLE_COLUMN if is_page else style.SINGLE_COLUMN
    n_columns = n_panels if is_page else 1
    across, up = np.ptp(rows.points, axis=0)
    ratio = float(up / across) if across > 0.0 else 1.0
    panel = float(np.clip(ratio * wide / n_columns, SHORTEST, TALLEST))
    n_lines = -(-(len(rows.class_names or [""]) + len(rows.set_names) - 1) // 3)
    legends = LEGEND_LINE * (max(n_lines, 4) if n_columns == 2 else n_lines + 4 * (n_panels - 1))
    n_stacked = n_panels // n_columns
    figure = style.new_figure(wide, n_stacked * (panel + AROUND) + legends)
    return figure, list(np.atleast_1d(figure.subplots(n_stacked, n_columns)))


def _area(n_rows: int) -> float:
    return float(np.clip(4000.0 / n_rows, SMALLEST_MARKER, LARGEST_MARKER))


def _scatter(axes: "Axes", points: NDArray[np.float64], marker: str, area: float, **look: Any) -> None:
    # Pixels, even in .svg and .pdf: a hundred thousand markers would make files that no viewer opens.
    axes.scatter(points[:, 0], points[:, 1], s=area, marker=marker, rasterized=True, **look)


def _draw_sets(axes: "Axes", rows: _Rows) -> None:
    area = _area(len(rows.points))
    is_id = rows.sets == 0
    entries: list[tuple[str, Any]] = []  # names that were cut may be equal
    if rows.classes is None:
        _scatter(axes, rows.points[is_id], "o", area, c=style.SKY, linewidths=0.0)
        entries.append((rows.set_names[0], _key("o", style.SKY)))
        colours = SET_COLOURS
    else:
        n_named = min(NAMED_CLASSES, rows.n_classes)
        palette = np.array([*CLASS_COLOURS[:n_named], OTHER_COLOUR, NO_COLOUR])
        mixed = np.random.default_rng(0).permutation(np.flatnonzero(is_id))  # no class lies over all others
        _scatter(axes, rows.points[mixed], "o", area, c=palette[rows.classes[mixed]], linewidths=0.0)
        present = set(rows.classes[is_id].tolist())
        entries += [
            (name, _key("o", palette[place])) for place, name in enumerate(rows.class_names) if place in present
        ]
        colours = SET_SHADES
    for place, name in enumerate(rows.set_names[1:]):
        look = {"facecolors": "none", "edgecolors": colours[place], "linewidths": min(0.35, 0.25 * area), "alpha": 0.8}
        _scatter(axes, rows.points[rows.sets == place + 1], SET_MARKERS[place], 1.5 * area, **look)
        entries.append((name, _key(SET_MARKERS[place], colours[place], is_hollow=True)))
    if rows.classes is not None:
        _name_classes(axes, rows, rows.classes)
    _draw_legend(axes, entries, 3)


def _name_classes(axes: "Axes", rows: _Rows, classes: NDArray[np.intp]) -> None:
    """Write the names of classes that lie together below them, so that colours need not be told apart."""
    from matplotlib.patheffects import withStroke

    size = float(np.ptp(rows.points, axis=0).max())
    for place, name in enumerate(rows.class_names[: min(NAMED_CLASSES, rows.n_classes)]):
        own = rows.points[(classes == place) & (rows.sets == 0)]
        centre = np.median(own, axis=0)
        spread = float(np.median(np.linalg.norm(own - centre, axis=1)))
        if spread < COMPACT * size:
            axes.annotate(
                name,
                (centre[0], centre[1] - 2.0 * spread),
                ha="center",
                va="top",
                fontsize=6.5,
                path_effects=[withStroke(linewidth=1.5, foreground="white")],
            )


def _key(marker: str, colour: str, *, is_hollow: bool = False) -> Any:
    from matplotlib.lines import Line2D

    face = "none" if is_hollow else colour
    return Line2D(
        [],
        [],
        linestyle="none",
        marker=marker,
        markersize=4,
        markerfacecolor=face,
        markeredgecolor=colour,
        markeredgewidth=0.6,
    )


def _draw_verdicts(axes: "Axes", rows: _Rows, is_ood: NDArray[np.bool_]) -> None:
    area = _area(len(rows.points))
    is_id = rows.sets == 0
    entries: list[tuple[str, Any]] = []  # names that were cut may be equal
    others = rows.set_names[1] if len(rows.set_names) == 2 else "OOD sets"
    groups = [(is_id, rows.set_names[0], "o", area), (~is_id, others, "^", 1.4 * area)]
    for is_member, name, marker, size in groups if (~is_id).any() else groups[:1]:
        for is_flagged, verdict, colour in ((False, "kept", KEPT_COLOUR), (True, "flagged", FLAGGED_COLOUR)):
            chosen = is_member & (is_ood == is_flagged)
            if chosen.any():
                entries.append((f"{name}, {verdict}: {chosen.sum():,}", _key(marker, colour)))
        mixed = np.random.default_rng(0).permutation(np.flatnonzero(is_member))
        colours = np.where(is_ood[mixed], FLAGGED_COLOUR, KEPT_COLOUR)
        _scatter(axes, rows.points[mixed], marker, size, c=colours, alpha=0.7, linewidths=0.0)
    _draw_legend(axes, entries, 2 if max(width_of(name) for name, _ in entries) < WIDEST_VERDICT else 1)


def _draw_legend(axes: "Axes", entries: list[tuple[str, Any]], n_columns: int) -> None:
    axes.legend(
        [key for _, key in entries],
        [name for name, _ in entries],
        loc="upper center",
        bbox_to_anchor=(0.5, -0.06),
        ncols=n_columns,
        handlelength=1.0,
        columnspacing=1.0,
    )


def _set_axes(axes: "Axes", method: str) -> None:
    """Scale both axes alike and leave out their numbers: only nearness on the map has a meaning."""
    name = {"PCA": "principal component"}.get(method, method)
    axes.set_aspect("equal", adjustable="datalim")
    axes.set(xticks=[], yticks=[], xlabel=f"{name} 1", ylabel=f"{name} 2")


def _title(method: str, titles: list[str]) -> str:
    name = "Map" if method == "map" else f"{method} map"
    return f"{name} of the features, {' and '.join(title.lower() for title in titles)}"


def _description(rows: _Rows) -> str:
    counts = np.bincount(rows.sets, minlength=len(rows.set_names))
    names = rows.full_set_names
    listed = ", ".join(f"{count:,} of {name}" for name, count in zip(names, counts, strict=True))
    sentences = [f"Each of {len(rows.points):,} rows is a point of the plane, near those like it: {listed}."]
    if rows.classes is not None:
        sentences.append(
            f"In-distribution rows are coloured by class ({rows.n_classes} classes); rows of other sets have hollow "
            f"markers."
        )
    if rows.is_ood is not None:
        shares = ", ".join(
            f"{style.percent(float(rows.is_ood[rows.sets == place].mean()))} of {name}"
            for place, name in enumerate(names)
        )
        sentences.append(f"The panel by verdict colours kept and flagged rows; the detector flags {shares}.")
    else:
        sentences.append("Only nearness on the map has a meaning; axes have no unit.")
    return " ".join(sentences)
