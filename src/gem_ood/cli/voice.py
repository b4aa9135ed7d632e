"""How much a command says: results and errors always, the rest as -q/--quiet and -v/--verbose ask."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from inspect import Parameter, signature
from typing import Annotated, Any

import typer

from gem_ood._version import __version__
from gem_ood.cli.console import print_text
from gem_ood.progress import RowProgress

__all__ = [
    "Quiet",
    "Verbose",
    "afresh",
    "ask",
    "detail",
    "end_watched",
    "is_quiet",
    "is_verbose",
    "note",
    "spoken",
    "step",
    "tell",
    "watching",
]

Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print results and errors only.")]
Verbose = Annotated[
    bool, typer.Option("--verbose", "-v", help="Say on stderr what is done: files, options, times, versions.")
]

#: What the numbers of a command may depend on.
LIBRARIES = ("numpy", "scipy", "scikit-learn", "pyarrow")

#: "--quiet" or "--verbose", before or after the command. One command runs in a process at a time; warnings of its
#: other threads must see it too, so it is no context variable.
_asked: set[str] = set()

#: The bars of the command that runs.
_watched: list[RowProgress] = []


@contextmanager
def afresh() -> Iterator[None]:
    """Forget, at the end of a command, what was asked of it."""
    try:
        yield
    finally:
        _asked.clear()
        _watched.clear()


def ask(*, quiet: bool, verbose: bool) -> None:
    """Take note of what was asked for; both at once are an error."""
    _asked.update(option for option, is_given in (("--quiet", quiet), ("--verbose", verbose)) if is_given)
    if len(_asked) > 1:
        from gem_ood.errors import InputError

        raise InputError("--quiet and --verbose contradict each other; pass one of them")


def is_quiet() -> bool:
    """Return whether only results and errors are wanted."""
    return "--quiet" in _asked


def is_verbose() -> bool:
    """Return whether every step is to be told."""
    return "--verbose" in _asked


def tell(text: str) -> None:
    """Print a line that is no result: a confirmation, a remark, what to do next."""
    if not is_quiet():
        print_text(text)


def note(text: str, *, kind: str = "note") -> None:
    """Say on stderr what deserves attention but stops nothing."""
    if not is_quiet():
        typer.echo(f"gem-ood: {kind}: {text}", err=True)


def detail(text: str) -> None:
    """Say on stderr what is done, if that was asked for."""
    if is_verbose():
        typer.echo(f"gem-ood: {text}", err=True)


@contextmanager
def step(title: str) -> Iterator[None]:
    """Say, if that was asked for, that a step begins and how long it took."""
    started = time.perf_counter()
    detail(f"{title} ...")
    yield
    detail(f"{title}: {time.perf_counter() - started:.2f} s")


def watching(unit: str = "rows") -> RowProgress:
    """Return the bar of a command, which stays hidden where quiet was asked for."""
    _watched.append(RowProgress(unit=unit, is_shown=not is_quiet()))
    return _watched[-1]


def end_watched() -> None:
    """Let the threads of the command that runs end their work soon."""
    for progress in _watched:
        progress.end()


def spoken(command: Callable[..., None]) -> Callable[..., None]:
    """Return the command with -q/--quiet and -v/--verbose among its options."""

    @wraps(command)
    def speaking(*arguments: Any, quiet: bool = False, verbose: bool = False, **options: Any) -> None:
        ask(quiet=quiet, verbose=verbose)
        detail(_versions())
        with step(command.__name__):
            command(*arguments, **options)

    flags = {"quiet": Quiet, "verbose": Verbose}
    own = signature(command)
    further = [Parameter(name, Parameter.KEYWORD_ONLY, default=False, annotation=kind) for name, kind in flags.items()]
    # What typer reads a command's options from.
    speaking.__signature__ = own.replace(parameters=[*own.parameters.values(), *further])  # type: ignore[attr-defined]
    speaking.__annotations__ = {**command.__annotations__, **flags}
    return speaking


def _versions() -> str:
    if not is_verbose():  # looking them up takes a while
        return ""
    from importlib.metadata import PackageNotFoundError, version

    found = []
    for library in LIBRARIES:
        try:
            found.append(f"{library} {version(library)}")
        except PackageNotFoundError:  # installed in a way that leaves no record
            found.append(f"{library} of unknown version")
    python = ".".join(map(str, sys.version_info[:3]))
    return f"version {__version__}, Python {python}, {', '.join(found)}"
