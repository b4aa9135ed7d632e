"""What can go wrong: the errors and warnings a caller may want to catch by name.

Every message says what was expected, what came, and the remedy.
"""

from sklearn.exceptions import NotFittedError

__all__ = [
    "CalibrationSizeError",
    "ClusterError",
    "FileFormatError",
    "InputError",
    "LabelOrderWarning",
    "MissingExtraError",
    "NotCalibratedError",
    "NotFittedError",
    "RankWarning",
]


class InputError(ValueError):
    """An argument, an array or a file does not fit what was asked."""


class FileFormatError(InputError):
    """A file is damaged, truncated, foreign, or written by a newer version."""


class CalibrationSizeError(InputError):
    """There are too few calibration rows for the guarantee that was asked."""


class ClusterError(RuntimeError):
    """A cluster could not finish: workers died or ran out of memory more often than they were started again."""


class MissingExtraError(ImportError):
    """A feature needs an optional dependency; the message has the exact command to install it."""


class NotCalibratedError(NotFittedError):  # type: ignore[misc]
    """A verdict was asked of a detector that has a score but no threshold yet."""


class RankWarning(UserWarning):
    """The covariance has fewer dimensions than the features; scores use those it has."""


class LabelOrderWarning(UserWarning):
    """Words name the logits, but most rows are classified as another class: the order may be another one."""
