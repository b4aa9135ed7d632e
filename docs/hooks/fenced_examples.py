"""An extension of griffe: examples in docstrings are shown as code, not as the quotes that Markdown reads in `>>>`."""

from typing import Any

import griffe

FENCE = "```"


def fenced(text: str) -> str:
    """Return a docstring with a fence around each bare example, which runs from its `>>>` to a blank line.

    What is fenced already stays as it is, so that doing it twice equals doing it once.
    """
    lines: list[str] = []
    indent: str | None = None  # that of the example being read
    in_fence = False
    for line in text.splitlines():
        words = line.strip()
        if indent is not None and not words:
            lines.append(indent + FENCE)
            indent = None
        elif indent is None and words.startswith(FENCE):
            in_fence = not in_fence
        elif indent is None and not in_fence and words.startswith(">>>"):
            indent = line[: line.index(">>>")]
            lines.append(f"{indent}{FENCE}pycon")
        lines.append(line)
    if indent is not None:
        lines.append(indent + FENCE)
    return "\n".join(lines)


class FencedExamples(griffe.Extension):
    """Fences the examples of every docstring before it is rendered."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite the docstring of one object."""
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Rewrite the docstring of the package itself, for which `on_object` is not called."""
        self.on_object(obj=pkg)
