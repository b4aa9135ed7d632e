"""How a command ends: an exit code, and one line on stderr for what went wrong or deserves a warning."""

import os
import re
import signal
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NoReturn

import typer

from gem_ood.cli.console import any_encoding
from gem_ood.cli.helping import ExampleGroup, examples_of
from gem_ood.cli.reporting import ARGUMENTS
from gem_ood.cli.voice import afresh, end_watched, note

__all__ = ["OneLineGroup", "signals_end_cleanly"]

EXIT_BAD_INPUT = 2
#: The input may be good, but a cluster could not finish: the same command may succeed the next time.
EXIT_CLUSTER = 1
EXIT_INTERRUPTED = 130
EXIT_TERMINATED = 143
#: The reader of a pipe went away; the same code as typer's own.
EXIT_BROKEN_PIPE = 1

#: How the library's messages name arguments, and the options that set these here.
_OPTION_NAMES = {
    r"has no option '(\w+)'; it takes .*": r"has no option --\1; leave it out",
    r"\brelative=True\b": "--relative",
    r"\b(with|out of) (features|labels)\b": r"\1 --\2",
    r"^features names a column": "--features names a column",
    r"pass fitted_names to open_features .*": "evaluate it on its own, or list the columns with --features",
    r"declare every class in the first call: partial_fit.*": "name every class with --classes, or leave it out",
    r"naming them or the labels if need be": "naming them with --features if need be",
}

#: What other programs call our commands.
_OTHER_NAMES = {
    "predict": "score",
    "detect": "score",
    "test": "evaluate",
    "compare": "evaluate",
    "benchmark": "evaluate",
    "inspect": "info",
    "describe": "info",
    "show": "info",
    "plot": "figures",
    "threshold": "calibrate",
    "help": "--help",
    "version": "--version",
}


class OneLineGroup(ExampleGroup):
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
            with afresh(), any_encoding(), _warnings_as_lines():
                outcome = super().main(
                    args,
                    prog_name,
                    complete_var,
                    standalone_mode=False,
                    windows_expand_args=windows_expand_args,
                    **extra,
                )
                sys.stdout.flush()
        except (KeyboardInterrupt, typer.Abort):
            outcome = EXIT_INTERRUPTED
        except BrokenPipeError:
            _close_stdout()
            sys.exit(EXIT_BROKEN_PIPE)
        except Exception as error:
            message = _bad_input(error)
            if message is None:
                raise
            typer.echo(f"gem-ood: error: {message}", err=True)
            from gem_ood.errors import ClusterError

            sys.exit(EXIT_CLUSTER if isinstance(error, ClusterError) else EXIT_BAD_INPUT)
        if outcome == EXIT_INTERRUPTED:
            typer.echo("gem-ood: interrupted; no file is left half-written", err=True)
        sys.exit(outcome if isinstance(outcome, int) else 0)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Keep the arguments for whoever shows how to run it again; show the help where no command is given."""
        ctx.meta[ARGUMENTS] = list(args)
        if not args and not ctx.resilient_parsing:
            typer.echo(ctx.get_help())
            ctx.exit()
        return list(super().parse_args(ctx, args))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command; a wrong name is answered with the nearest."""
        name = args[0]
        if name not in self.commands and not name.startswith("-") and not ctx.resilient_parsing:
            self._refuse(name)
        return super().resolve_command(ctx, args)

    def _refuse(self, name: str) -> NoReturn:
        from gem_ood.errors import InputError

        known = list(self.commands)
        near = get_close_matches(name.lower(), [*known, *_OTHER_NAMES], n=1)
        if near:
            remedy = f"did you mean gem-ood {_OTHER_NAMES.get(near[0], near[0])}?"
        elif Path(name).exists():
            remedy = f"to see what is in this file, run gem-ood info {name}"
        else:
            remedy = f"the commands are {', '.join(known)}: see gem-ood --help"
        raise InputError(f"there is no command {name!r}; {remedy}")


@contextmanager
def signals_end_cleanly() -> Iterator[None]:
    """Let Ctrl-C and SIGTERM unwind what is under way, so that temporary files vanish; a second signal waits for it."""

    def end(number: int, _: Any) -> None:
        for kind in kinds:
            signal.signal(kind, signal.SIG_IGN)
        end_watched()
        if number == signal.SIGTERM:
            raise SystemExit(EXIT_TERMINATED)
        raise KeyboardInterrupt

    # One that is ignored, as in a job that outlives its terminal, stays so.
    kinds = [kind for kind in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(kind) is not signal.SIG_IGN]
    for kind in kinds:
        signal.signal(kind, end)
    yield


def _bad_input(error: Exception) -> str | None:
    """Return one line about an error that the caller can mend, or None for a fault of this program."""
    from gem_ood.errors import ClusterError, InputError, MissingExtraError, NotFittedError

    format_message = getattr(error, "format_message", None)
    if callable(format_message):  # the command line itself was wrong
        # Typer's checks begin what they find wrong with the name of Python's error.
        words = str(format_message()).replace(": Value error, ", ": ", 1)
        message = _with_example(words, getattr(error, "ctx", None))
    elif isinstance(error, InputError | MissingExtraError | NotFittedError | ClusterError):
        message = str(error)
    elif isinstance(error, OSError):
        reason = error.strerror or str(error)
        message = reason if error.filename is None else f"{error.filename}: {reason}"
    else:
        return None
    return _in_option_names(message)


def _with_example(message: str, context: Any) -> str:
    """Return what was wrong with the command line, and how it is right."""
    if context is None:
        return message
    examples = examples_of(context.command)
    such_as = f", or try {examples[0]}" if examples and message.startswith("Missing") else ""
    return f"{message.rstrip('.')}; see {context.command_path} --help{such_as}"


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
            note(text, kind="warning")

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
