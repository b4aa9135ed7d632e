"""How a command ends: an exit code, and one line on stderr for what went wrong or deserves a warning."""

import os
import re
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import typer
from typer.core import TyperGroup

__all__ = ["OneLineGroup"]

EXIT_BAD_INPUT = 2
EXIT_INTERRUPTED = 130
#: The reader of a pipe went away; the same code as typer's own.
EXIT_BROKEN_PIPE = 1

#: How the library's messages name arguments, and the options that set these here.
_OPTION_NAMES = {
    r"has no option '(\w+)'; it takes .*": r"has no option --\1; leave it out",
    r"\brelative=True\b": "--relative",
    r"\b(with|out of) (features|labels)\b": r"\1 --\2",
    r"^features names a column": "--features names a column",
    r"pass fitted_names to open_features .*": "evaluate it on its own, or list the columns with --features",
    r"naming them or the labels if need be": "naming them with --features if need be",
}


class OneLineGroup(TyperGroup):
    """A group of commands in which bad input is one line on stderr, never a traceback."""

    def main(  # noqa: D102
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        try:
            with _warnings_as_lines():
                outcome = super().main(
                    args,
                    prog_name,
                    complete_var,
                    standalone_mode=False,
                    windows_expand_args=windows_expand_args,
                    **extra,
                )
                sys.stdout.flush()
        except KeyboardInterrupt:
            sys.exit(EXIT_INTERRUPTED)
        except BrokenPipeError:
            _close_stdout()
            sys.exit(EXIT_BROKEN_PIPE)
        except typer.Abort:
            sys.exit(EXIT_INTERRUPTED)
        except Exception as error:
            message = _bad_input(error)
            if message is None:
                raise
            typer.echo(f"gem-ood: error: {message}", err=True)
            sys.exit(EXIT_BAD_INPUT)
        sys.exit(outcome if isinstance(outcome, int) else 0)


def _bad_input(error: Exception) -> str | None:
    """Return one line about an error that the caller can mend, or None for a fault of this program."""
    from gem_ood.errors import InputError, MissingExtraError, NotFittedError

    format_message = getattr(error, "format_message", None)
    if callable(format_message):  # the command line itself was wrong
        message = str(format_message()) or "no command was given; see gem-ood --help"
    elif isinstance(error, InputError | MissingExtraError | NotFittedError):
        message = str(error)
    elif isinstance(error, OSError):
        reason = error.strerror or str(error)
        message = reason if error.filename is None else f"{error.filename}: {reason}"
    else:
        return None
    return _in_option_names(message)


def _in_option_names(message: str) -> str:
    for words, option in _OPTION_NAMES.items():
        message = re.sub(words, option, message)
    return " ".join(message.split())


@contextmanager
def _warnings_as_lines() -> Iterator[None]:
    shown: set[str] = set()

    def show(message: Warning | str, *_: Any, **__: Any) -> None:
        text = _in_option_names(str(message))
        if text not in shown:
            shown.add(text)
            typer.echo(f"gem-ood: warning: {text}", err=True)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("always", UserWarning)
        warnings.simplefilter("always", RuntimeWarning)
        warnings.showwarning = show
        yield


def _close_stdout() -> None:
    # Whatever is still buffered has no reader; without this, Python complains about it on exit.
    with suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
