"""Extensions of griffe: examples are shown as code, and constants are described by the comment above them.

Markdown would read quotes in the `>>>` of an example, and griffe passes over a comment that begins with `#:`.
"""

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


def remark_above(lines: list[str], line: int) -> str:
    """Return the words of the comments `#:` right above a line, counted from one; empty if there are none."""
    words: list[str] = []
    while line >= 2 and lines[line - 2].startswith("#:"):
        words.insert(0, lines[line - 2].removeprefix("#:").strip())
        line -= 1
    return " ".join(words)


class FencedExamples(griffe.Extension):
    """Fences the examples of every docstring before it is rendered, and gives module constants theirs."""

    def on_attribute_instance(self, *, attr: griffe.Attribute, **_: Any) -> None:
        """Take the comment above a module's constant for its docstring."""
        if attr.docstring is None and attr.lineno is not None and attr.parent is not None and attr.parent.is_module:
            remark = remark_above(attr.lines_collection[attr.filepath], attr.lineno)
            if remark:
                attr.docstring = griffe.Docstring(remark, parent=attr)

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite the docstring of one object."""
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Rewrite the docstring of the package itself, for which `on_object` is not called."""
        self.on_object(obj=pkg)
