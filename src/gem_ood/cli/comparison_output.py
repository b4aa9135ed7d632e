"""How a comparison is shown: where its table goes, in which form, and what is said of methods left out."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from gem_ood.cli.console import print_json, print_text
from gem_ood.cli.options import check_out, listed, naming
from gem_ood.cli.voice import note, tell

if TYPE_CHECKING:
    from gem_ood.comparison import Comparison

__all__ = ["FORMATS", "ComparisonOutput", "Format", "about_left_out", "in_option_names"]

Format = Literal["text", "markdown", "latex", "csv", "json"]

#: The format that a file's suffix asks for.
FORMATS: dict[str, Format] = {".txt": "text", ".md": "markdown", ".tex": "latex", ".csv": "csv", ".json": "json"}


@dataclass(frozen=True)
class ComparisonOutput:
    """Where the table goes and in which form."""

    format: Format
    out: Path | None
    options: dict[str, Any]
    json: bool

    @classmethod
    def checked(
        cls,
        as_format: Format | None,
        out: Path | None,
        inputs: list[Path],
        *,
        metrics: str | None,
        sort: str | None,
        time: bool,
        json: bool,
    ) -> "ComparisonOutput":
        """Raise now rather than after long work if the table could not be written as asked."""
        from gem_ood.errors import InputError

        if json and as_format is not None and out is None:
            raise InputError("--json and --format contradict each other; pass one of them, or --out for a file")
        options: dict[str, Any] = {"sort": sort, "time": time}
        if metrics is not None:
            options["metrics"] = _metrics(metrics)
        suffix = "" if out is None else check_out(out, tuple(FORMATS), *inputs)
        form = as_format or FORMATS.get(suffix, "text")
        return cls(form, out, options, json)

    def show(self, comparison: "Comparison", left_out: Mapping[str, str], report: Path | None = None) -> None:
        """Write the file, if one is asked for, print, name the report, and say on stderr what was left out."""
        if self.out is not None:
            from gem_ood.storage import atomic_path

            with naming(self.out), atomic_path(self.out) as temporary:
                temporary.write_text(self._rendered(comparison, self.format), encoding="utf-8", newline="")
        if self.json:
            print_json(
                comparison.as_dict(**self.options) | {"left_out": dict(left_out), "out": self.out, "report": report}
            )
            return
        if self.out is None and self.format != "text":
            print_text(self._rendered(comparison, self.format).removesuffix("\n"))
        else:
            self._print_text(comparison)
        if self.out is not None:
            tell(f"Table: {self.out}")
        if report is not None:
            tell(f"Report: {report}")
        for line in about_left_out(left_out):
            note(line)

    def _rendered(self, comparison: "Comparison", form: Format) -> str:
        if form == "text":
            return comparison.to_text(**self.options) + "\n"
        write = {
            "markdown": comparison.to_markdown,
            "latex": comparison.to_latex,
            "csv": comparison.to_csv,
            "json": comparison.to_json,
        }[form]
        return write(**self.options)

    def _print_text(self, comparison: "Comparison") -> None:
        from rich.console import Console
        from rich.text import Text

        console = Console()
        if not console.is_terminal or console.color_system is None:  # a pipe, or a terminal without bold
            width: dict[str, Any] = {"width": console.width} if console.is_terminal else {}
            print_text(comparison.to_text(**width, **self.options))
            return
        text = comparison.to_text(width=console.width, ansi=True, **self.options)
        console.print(Text.from_ansi(text), soft_wrap=True)


def _metrics(text: str) -> tuple[str, ...]:
    from gem_ood.comparison.measured import chosen_metrics
    from gem_ood.errors import InputError

    try:
        return chosen_metrics(listed(text) or ())
    except InputError as error:
        raise InputError(f"--metrics: {error}") from error


def about_left_out(left_out: Mapping[str, str], *, has_options: bool = True) -> list[str]:
    """Return one line for each reason, with the methods that it holds for; of a command that may have no options."""
    by_reason: dict[str, list[str]] = {}
    for name, reason in left_out.items():
        by_reason.setdefault(in_option_names(reason) if has_options else reason, []).append(name)
    return [f"left out {', '.join(names)}: {reason}" for reason, names in by_reason.items()]


def in_option_names(reason: str) -> str:
    """Return a reason of the library with the options that set its arguments here.

    >>> in_option_names("energy needs head")
    'energy needs --head'
    """
    for words, option in {
        r"\bneeds (head|groups)\b": r"needs --\1",
        r"\bpass features and head\b": "pass features and --head, without --logits",
        r"^classes has\b": "--classes has",
        r"\bnone of the classes; pass classes\b": "none of the classes; pass --classes",
    }.items():
        reason = re.sub(words, option, reason)
    return " ".join(reason.split())
