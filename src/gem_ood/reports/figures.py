"""Figures as files: one at a time, or all of the paper's. The same figure gives the same bytes."""

import io
import logging
import os
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from xml.sax.saxutils import escape

from gem_ood.errors import InputError
from gem_ood.reports.plots import in_and_out, scores_in_one_dimension, study_curves
from gem_ood.reports.plots.style import PRINT_DPI, caption, drawing, require_matplotlib
from gem_ood.storage import atomic_path

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from gem_ood.simulation import Study
    from gem_ood.simulation.running import Progress
    from gem_ood.simulation.sampling import Sampler

__all__ = ["SUFFIXES", "paper_figures", "save_figure"]

#: What `save_figure` writes.
SUFFIXES = (".png", ".svg", ".pdf")

#: The paper's figures by the names of their files (P40, P41, P43), and what each is written as.
NAMES = ("in-and-out", "in-and-out-column", "scores-in-one-dimension", "simulations", "simulations-column")
PAPER_SUFFIXES = (".png", ".svg")

CREATOR = "gem-ood"


def save_figure(figure: "Figure", path: str | os.PathLike[str]) -> Path:
    """Write a figure as `.png` (300 dpi), `.svg` or `.pdf`, all or nothing, and return the path.

    The file carries the figure's caption, for readers who cannot see it, and no date.

    Example:
        >>> from gem_ood.reports.plots import scores_in_one_dimension
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     save_figure(scores_in_one_dimension(), Path(directory) / "scores.svg").stat().st_size > 10_000
        True
    """
    path = Path(path)
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise InputError(
            f"{path} has the suffix {suffix or '(none)'!r} but {' '.join(SUFFIXES)} can be written; rename it"
        )
    if not path.parent.is_dir():
        raise InputError(f"the directory {path.parent} does not exist; create it first")
    if path.is_dir():
        raise InputError(f"{path} is a directory; name a file inside it")
    data = _rendered(figure, suffix)
    with atomic_path(path) as temporary:
        temporary.write_bytes(data)
    return path


def paper_figures(
    directory: str | os.PathLike[str],
    *,
    runs: int = 5,
    seed: int = 0,
    sampler: "Sampler" = "full",
    studies: "Iterable[Study] | None" = None,
    progress: "Progress | None" = None,
) -> list[Path]:
    """Write the paper's figures P40, P41 and P43 as `.png` and `.svg`, and return their paths.

    `in-and-out` and `simulations` are as wide as a page, `in-and-out-column`, `simulations-column` and
    `scores-in-one-dimension` as a column. Nothing is written, and no directory made, before all are drawn.

    Args:
        directory: Where to write; it is created if absent.
        runs: Runs of each point of the simulations.
        seed: The seed of all rows.
        sampler: "full" draws the paper's rows, "projected" their exact reduction, which is far quicker.
        studies: Simulations that have been run already, to be drawn instead of new ones.
        progress: Called with the rows of the simulations drawn so far and in all.

    Example:
        >>> from gem_ood.simulation import run_study
        >>> study = run_study("distance", grid=[4, 12], runs=2, sampler="projected", n_in=500, n_out=500, dimension=128)
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     [path.name for path in paper_figures(Path(directory) / "figures", studies=[study])][::4]
        ['in-and-out.png', 'scores-in-one-dimension.png', 'simulations-column.png']
    """
    from gem_ood.simulation import run_studies

    require_matplotlib()
    folder = Path(directory)
    paths = [folder / f"{name}{suffix}" for name in NAMES for suffix in PAPER_SUFFIXES]
    _refuse_unwritable(folder, paths)
    if studies is None:
        studies = run_studies(runs=runs, seed=seed, sampler=sampler, progress=progress)
    drawn = list(studies)
    figures = (
        in_and_out(random_state=seed),
        in_and_out(random_state=seed, width="column"),
        scores_in_one_dimension(),
        study_curves(drawn, width="page"),
        study_curves(drawn, width="column"),
    )
    folder.mkdir(parents=True, exist_ok=True)
    pictures = [figure for figure in figures for _ in PAPER_SUFFIXES]
    return [save_figure(figure, path) for figure, path in zip(pictures, paths, strict=True)]


def _refuse_unwritable(directory: Path, paths: Iterable[Path]) -> None:
    """Raise now rather than after long work, and leave nothing behind."""
    try:
        if directory.exists() and not directory.is_dir():
            raise InputError(f"{directory} is a file; pass a directory, or a new name for one")
        existing = next(folder for folder in (directory, *directory.absolute().parents) if folder.exists())
        with tempfile.TemporaryFile(dir=existing):
            pass
    except OSError as error:
        raise InputError(f"{directory} cannot be written to ({error.strerror}); pass another directory") from error
    for path in paths:
        if path.is_dir():
            raise InputError(f"{path} is a directory, but a figure is to be written there; remove or rename it")


def _rendered(figure: "Figure", suffix: str) -> bytes:
    title, description = caption(figure)
    metadata: dict[str, dict[str, str | None]] = {
        ".png": {"Software": CREATOR, "Title": title, "Description": description},
        ".svg": {"Creator": CREATOR, "Date": None, "Title": title},
        ".pdf": {"Creator": CREATOR, "Producer": CREATOR, "CreationDate": None, "Title": title, "Subject": description},
    }
    buffer = io.BytesIO()
    with drawing(), _without_font_remarks():
        figure.savefig(buffer, format=suffix[1:], dpi=PRINT_DPI, metadata=metadata[suffix])
    return _described(buffer.getvalue(), description) if suffix == ".svg" else buffer.getvalue()


@contextmanager
def _without_font_remarks() -> Iterator[None]:
    """Keep fontTools, which embeds letters in `.pdf`, from remarking on the dates inside matplotlib's own font."""
    logger = logging.getLogger("fontTools")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def _described(svg: bytes, description: str) -> bytes:
    """Return the picture with a description after its title: browsers read both aloud, and matplotlib writes one."""
    end = b"</title>\n"
    return svg.replace(end, end + f" <desc>{escape(description)}</desc>\n".encode(), 1)
