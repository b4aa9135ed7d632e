"""A hook of MkDocs: output that is sentences wraps at the width of the page, output in columns does not."""

import re
from typing import Any

OUTPUT = re.compile(r'<div class="language-text highlight">(<pre>.*?</pre>)', re.DOTALL)

#: A shorter line fits most pages.
LONG_LINE = 85


def is_prose(text: str) -> bool:
    """Return whether output has long lines, and none of them is lined up by spaces or is code."""
    long_lines = [line for line in re.sub(r"<[^>]*>", "", text).splitlines() if len(line) > LONG_LINE]
    return bool(long_lines) and not any("  " in line or "\\" in line for line in long_lines)


def wrapped(page: str) -> str:
    """Return a page with the class `sentences` on each block of output that is prose."""
    return OUTPUT.sub(
        lambda found: found[0].replace("highlight", "highlight sentences", 1) if is_prose(found[1]) else found[0], page
    )


def on_page_content(html: str, **_: Any) -> str:
    """Rewrite the content of one page."""
    return wrapped(html)
