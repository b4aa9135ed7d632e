"""Reports from the command line: the options that ask for one, and the checks before any long work."""

import shlex
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from gem_ood.cli.options import check_out, named_file
from gem_ood.cli.voice import detail

if TYPE_CHECKING:
    from gem_ood.comparison import Comparison

__all__ = ["ARGUMENTS", "ImageFiles", "MapOption", "ReportPath", "Reporting", "command_line"]

#: The section of the options that shape a report.
REPORT_PANEL = "Report"

#: Where the context of a command keeps the arguments of the whole line.
ARGUMENTS = "gem_ood.arguments"

MapKind = Literal["auto", "umap", "pca", "none"]

ReportPath = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE.html",
        rich_help_panel=REPORT_PANEL,
        help="Write all of it, with figures and surprising rows, as one HTML page.",
    ),
]
ImageFiles = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=IMAGES",
        rich_help_panel=REPORT_PANEL,
        help="Pictures of a set's rows (.npy, .npz or a directory), shown beside those that surprise; NAME is id for "
        "those of --id; repeatable.",
    ),
]
MapOption = Annotated[
    MapKind,
    typer.Option(
        "--map",
        rich_help_panel=REPORT_PANEL,
        help="How features are placed in two dimensions; auto is UMAP where it is installed, else PCA.",
    ),
]


@dataclass(frozen=True)
class Reporting:
    """A report that is asked for: where it goes, and what it shows beside the comparison."""

    path: Path
    images: Mapping[str, Any]
    map: MapKind

    @classmethod
    def checked(
        cls,
        path: Path | None,
        images: list[str] | None,
        map: MapKind,
        *,
        sets: Iterable[str],
        others: Iterable[Path | None],
    ) -> "Reporting | None":
        """Return what is asked for, or None; raise now rather than after long work if it could not be made."""
        from gem_ood.errors import InputError
        from gem_ood.extras import require_extra

        if path is None:
            for option, is_given in {"--images": bool(images), "--map": map != "auto"}.items():
                if is_given:
                    raise InputError(f"{option} is for --report, which is not given; pass --report FILE.html, too")
            return None
        require_extra("report", "plotly", purpose="reports")
        if map == "umap":
            require_extra("report", "umap", purpose="maps by UMAP")
        files = _named_images(images or [], [*sets])
        check_out(path, (".html", ".htm"), *others)
        return cls(path, files, map)

    def write(
        self,
        detectors: Mapping[str, Any],
        *,
        command: str,
        notes: Iterable[str],
        on_step: Callable[[str], None],
        **rows: Any,
    ) -> "Comparison":
        """Write the page and return the comparison in it."""
        from gem_ood.reports import write
        from gem_ood.reports.gathering import SCORING

        def told(name: str) -> None:
            detail(f"report: {name}")
            if name != SCORING:  # its rows have a bar of their own
                on_step(name)

        return write(
            self.path,
            detectors,
            images=self.images,
            map=None if self.map == "none" else self.map,
            command=command,
            notes=notes,
            on_step=told,
            **rows,
        ).comparison


def command_line(context: typer.Context) -> str:
    """Return the command as it was typed, quoted for a shell."""
    return shlex.join(["gem-ood", *context.meta.get(ARGUMENTS, [])])


def _named_images(texts: list[str], sets: list[str]) -> dict[str, Any]:
    from gem_ood.errors import InputError
    from gem_ood.reports.panels.images import open_images

    found: dict[str, Any] = {}
    for text in texts:
        name, path = named_file(text, option="--images")
        if name in found:
            raise InputError(f"--images names {name!r} twice; give each set its pictures once")
        if name not in ("id", *sets):
            raise InputError(
                f"--images names {name!r}, but the sets are {', '.join(['id', *sets])}; pass NAME=IMAGES with one of "
                f"these"
            )
        found[name] = open_images(path)
    return found
