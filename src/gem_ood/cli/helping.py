"""What --help prints: plain text that fits 80 columns, options in sections, and examples that can be copied."""

from typing import Any

from typer.core import TyperCommand, TyperGroup

__all__ = ["ExampleCommand", "ExampleGroup", "examples_of"]

HEADING = "\nExamples:\n"

#: The section of options without one of their own, and the sections that come last.
USUAL_SECTION = "Options"
LAST_SECTIONS = ("Output", USUAL_SECTION)


def examples_of(command: Any) -> list[str]:
    """Return the examples of a command, each on one line however its help breaks it."""
    _, _, block = _help(command).partition(HEADING)
    return [line.strip() for line in block.replace("\\\n", " ").splitlines() if line.strip()]


class _Exemplary:
    """Ends a help text with the examples of its docstring, line by line as they were written."""

    def format_help_text(self, ctx: Any, formatter: Any) -> None:
        text, _, _ = _help(self).partition(HEADING)
        formatter.write_paragraph()
        with formatter.indentation():
            formatter.write_text(text.strip())

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        _, _, block = _help(self).partition(HEADING)
        if block:
            formatter.write_paragraph()
            formatter.write(HEADING.lstrip("\n"))
            for line in block.rstrip().splitlines():
                formatter.write(f"  {line.removeprefix('    ')}\n")

    def format_options(self, ctx: Any, formatter: Any) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):  # type: ignore[attr-defined]
            record = parameter.get_help_record(ctx)
            if record is None:
                continue
            is_argument = parameter.param_type_name == "argument"
            section = "Arguments" if is_argument else getattr(parameter, "rich_help_panel", None) or USUAL_SECTION
            # What is typed, without the type of an argument and the brackets of a literal's.
            name = parameter.metavar if is_argument else record[0].replace("<", "").replace(">", "")
            sections.setdefault(str(section), []).append((name or parameter.name, record[1]))
        for title in sorted(sections, key=_place):
            with formatter.section(title):
                formatter.write_dl(sections[title])

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        # Braces around an argument that must be given are no part of it.
        pieces: list[str] = super().collect_usage_pieces(ctx)  # type: ignore[misc]
        return [piece[1:-1] if piece.startswith("{") else piece for piece in pieces]


class ExampleCommand(_Exemplary, TyperCommand):
    """A command whose help ends with examples."""


class ExampleGroup(_Exemplary, TyperGroup):
    """A group whose help ends with examples and has the first sentence of each command in full."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the commands, then the options."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, _first_sentence(command)) for name, command in self.commands.items()])
        super().format_options(ctx, formatter)


def _place(section: str) -> int:
    if section == "Arguments":
        return -1
    return LAST_SECTIONS.index(section) + 1 if section in LAST_SECTIONS else 0


def _help(command: Any) -> str:
    return str(getattr(command, "help", None) or "")


def _first_sentence(command: Any) -> str:
    return " ".join(_help(command).partition("\n\n")[0].split())
