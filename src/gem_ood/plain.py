"""Plain values: results as JSON can write them, and names in the order that readers expect."""

import math
import re
from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from typing import Any

__all__ = ["natural_order", "plain"]


def plain(value: Any) -> Any:
    """Return a value as text, numbers, truths, None, lists and dictionaries; what JSON cannot write becomes None.

    >>> plain({"scores": (1.0, -math.inf)})
    {'scores': [1.0, None]}
    """
    if is_dataclass(value) and not isinstance(value, type):
        return plain(asdict(value))
    if isinstance(value, Mapping):
        return {str(name): plain(entry) for name, entry in value.items()}
    if hasattr(value, "tolist"):  # an array or a number of NumPy
        return plain(value.tolist())
    if isinstance(value, list | tuple):
        return [plain(entry) for entry in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if isinstance(value, str | int) or value is None else str(value)


def natural_order(name: str) -> tuple[bool, int, str]:
    """Return by what to sort names so that whole numbers come first, by their value, and then all others.

    >>> sorted(["b", "10", "9", "--5", "-1"], key=natural_order)
    ['-1', '9', '10', '--5', 'b']
    """
    is_number = re.fullmatch(r"-?[0-9]{1,18}", name) is not None
    return not is_number, int(name) if is_number else 0, name
