"""Figures as files: the same bytes each time, whole or not at all, and errors before long work."""

import os
import subprocess
import sys
from xml.etree import ElementTree

import numpy as np
import pytest

from gem_ood.errors import InputError, MissingExtraError
from gem_ood.reports import paper_figures, plots, save_figure

WIDTHS = {
    "in-and-out": 7.0,
    "in-and-out-column": 3.4,
    "scores-in-one-dimension": 3.4,
    "simulations": 7.0,
    "simulations-column": 3.4,
}
NAMES = [f"{name}{suffix}" for name in WIDTHS for suffix in (".png", ".svg")]


def small():
    return plots.quantile_quantile([np.arange(1.0, 9.0)], 4, names=["a & <b>"])


@pytest.fixture(scope="module")
def figure():
    return small()


@pytest.fixture(scope="module")
def made(small_studies, tmp_path_factory):
    """The paths of the paper's figures, the calls that ran the studies, and what was told of their progress."""
    calls, seen = [], []

    def run_studies(*, progress, **options):
        progress(1, 2)
        calls.append(options)
        return iter(small_studies)

    directory = tmp_path_factory.mktemp("made") / "new" / "figures"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gem_ood.simulation.run_studies", run_studies)
        paths = paper_figures(directory, runs=2, seed=3, sampler="projected", progress=lambda *now: seen.append(now))
    return paths, calls, seen


@pytest.fixture(scope="module")
def written(made):
    return made[0]


def test_progress_and_options_reach_the_studies_which_are_run_once(made):
    _, calls, seen = made
    assert seen == [(1, 2)]
    assert calls == [{"runs": 2, "seed": 3, "sampler": "projected"}]


def test_the_papers_figures_are_written_as_png_and_svg(written):
    assert [path.name for path in written] == NAMES
    assert sorted(path.name for path in written[0].parent.iterdir()) == sorted(NAMES)


def test_drawing_anew_gives_the_same_bytes(written, small_studies, tmp_path):
    by_name = {path.name: path for path in written}
    anew = {
        "in-and-out.svg": plots.in_and_out(random_state=3),
        "in-and-out-column.svg": plots.in_and_out(random_state=3, width="column"),
        "simulations.svg": plots.study_curves(small_studies),
        "simulations-column.svg": plots.study_curves(small_studies, width="column"),
    }
    for name, figure in anew.items():
        assert save_figure(figure, tmp_path / name).read_bytes() == by_name[name].read_bytes()


def test_a_png_has_300_dots_per_inch_and_a_caption(written):
    from PIL import Image

    for path, width in zip(written[::2], WIDTHS.values(), strict=True):
        with Image.open(path) as image:
            assert image.width == round(300 * width)
            assert image.info["dpi"] == pytest.approx((300, 300), abs=0.01)
            assert image.info["Software"] == "gem-ood"
            assert len(image.info["Title"]) > 10
            assert len(image.info["Description"]) > 100


def test_an_svg_is_well_formed_and_described_and_needs_no_font(written):
    for path in written[1::2]:
        root = ElementTree.parse(path).getroot()
        names = [element.tag.rpartition("}")[2] for element in root.iter()]
        assert names[1:3] == ["title", "desc"]
        assert len(root[1].text) > 100
        assert "text" not in names
        assert not any("date" in name for name in names)


def test_a_description_of_any_characters_is_written(figure, tmp_path):
    other = small()
    other.set_label("A & B\n1 < 2 & µ > ∅")
    root = ElementTree.parse(save_figure(other, tmp_path / "figure.svg")).getroot()
    assert [root[0].text, root[1].text] == ["A & B", "1 < 2 & µ > ∅"]


@pytest.mark.parametrize("suffix", [".png", ".svg", ".pdf"])
def test_the_same_figure_gives_the_same_bytes_whatever_the_callers_settings(
    suffix, figure, tmp_path, monkeypatch, caplog
):
    import matplotlib

    first = save_figure(figure, tmp_path / f"first{suffix}").read_bytes()
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "123456789")
    with matplotlib.rc_context({"font.size": 20.0, "svg.fonttype": "none", "pdf.fonttype": 3, "savefig.dpi": 50}):
        again = save_figure(figure, tmp_path / f"again{suffix}").read_bytes()
        anew = save_figure(small(), tmp_path / f"anew{suffix}").read_bytes()
    assert first == again == anew
    assert caplog.records == []


def test_upper_case_suffixes_and_other_figures_are_written(tmp_path):
    from matplotlib.figure import Figure

    assert save_figure(Figure((1.0, 1.0)), tmp_path / "plain.SVG").read_text(encoding="utf-8").startswith("<?xml")


def test_a_failed_write_leaves_the_old_file_and_nothing_else(figure, tmp_path, monkeypatch):
    path = tmp_path / "figure.png"
    path.write_bytes(b"old")

    def fail(*_):
        raise OSError("No space left on device")

    monkeypatch.setattr("os.replace", fail)
    with pytest.raises(OSError, match="No space left"):
        save_figure(figure, path)
    assert path.read_bytes() == b"old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["figure.png"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("figure.jpg", "has the suffix '.jpg' but .png .svg .pdf can be written; rename it"),
        ("figure", r"has the suffix '\(none\)' but .png .svg .pdf"),
        ("absent/figure.png", "absent does not exist; create it first"),
        ("folder.png", "is a directory; name a file inside it"),
    ],
)
def test_a_path_that_cannot_be_written_is_refused(name, message, figure, tmp_path):
    (tmp_path / "folder.png").mkdir()
    with pytest.raises(InputError, match=message):
        save_figure(figure, tmp_path / name)


@pytest.fixture
def no_long_work(monkeypatch):
    def fail(*_, **__):
        raise AssertionError("the simulations were started")

    monkeypatch.setattr("gem_ood.simulation.run_studies", fail)


@pytest.mark.usefixtures("no_long_work")
def test_a_place_that_is_no_directory_is_refused_before_any_work(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="file is a file; pass a directory, or a new name for one"):
        paper_figures(tmp_path / "file")
    with pytest.raises(InputError, match=r"inside cannot be written to \(Not a directory\)"):
        paper_figures(tmp_path / "file" / "inside")
    with pytest.raises(InputError, match="cannot be written to"):
        paper_figures("/proc/figures")
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]
    (tmp_path / "simulations.svg").mkdir()
    with pytest.raises(InputError, match=r"simulations.svg is a directory, but a figure is to be written there"):
        paper_figures(tmp_path)


@pytest.mark.usefixtures("no_long_work")
@pytest.mark.skipif(os.geteuid() == 0, reason="everything is writable to the superuser")
def test_a_read_only_directory_is_refused_before_any_work(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(InputError, match=r"cannot be written to \(Permission denied\)"):
        paper_figures(tmp_path)


@pytest.mark.parametrize(("name", "value"), [("runs", 0), ("seed", -1), ("sampler", "half")])
def test_a_refused_option_leaves_no_directory(name, value, tmp_path):
    with pytest.raises(InputError, match=f"{name} is {value!r}"):
        paper_figures(tmp_path / "new" / "figures", **{name: value})
    assert list(tmp_path.iterdir()) == []


def test_an_interruption_leaves_no_directory(tmp_path, monkeypatch):
    def interrupted(**_):
        raise KeyboardInterrupt

    monkeypatch.setattr("gem_ood.simulation.run_studies", interrupted)
    with pytest.raises(KeyboardInterrupt):
        paper_figures(tmp_path / "new" / "figures")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("no_long_work")
def test_without_matplotlib_nothing_is_begun(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtraError, match=r'run pip install "gem-ood\[report\]"$'):
        paper_figures(tmp_path / "figures")
    assert not (tmp_path / "figures").exists()


def test_the_room_loads_matplotlib_only_to_draw_and_pyplot_never():
    program = (
        "import sys, gem_ood.reports\n"
        "assert 'matplotlib' not in sys.modules\n"
        "gem_ood.reports.plots.quantile_quantile([[1.0, 2.0, 3.0]], 2)\n"
        "assert 'matplotlib.figure' in sys.modules\n"
        "assert 'matplotlib.pyplot' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
