"""The application: its commands, in the order in which they are used."""

from typing import Annotated

import typer

from gem_ood._version import __version__
from gem_ood.cli.calibrate import calibrate
from gem_ood.cli.certify import certify
from gem_ood.cli.demo import demo
from gem_ood.cli.evaluate import evaluate
from gem_ood.cli.figures import figures
from gem_ood.cli.fit import fit
from gem_ood.cli.helping import ExampleCommand
from gem_ood.cli.info import info
from gem_ood.cli.outcome import OneLineGroup, signals_end_cleanly
from gem_ood.cli.reproduce import reproduce
from gem_ood.cli.score import score
from gem_ood.cli.simulate import simulate
from gem_ood.cli.train import train
from gem_ood.cli.verify import verify
from gem_ood.cli.voice import Quiet, Verbose, ask, spoken

__all__ = ["app", "main"]

app = typer.Typer(
    name="gem-ood",
    cls=OneLineGroup,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(is_asked: bool) -> None:
    if is_asked:
        typer.echo(f"gem-ood {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    *,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and stop.")
    ] = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    r"""Tell in-distribution inputs from out-of-distribution ones, post hoc, on any classifier.

    gem-ood COMMAND --help has the options and examples of a command.

    Examples:
        gem-ood demo
        gem-ood info train.npz
        gem-ood fit train.npz --out gem.safetensors
        gem-ood calibrate gem.safetensors held_out.npz
        gem-ood score gem.safetensors new.npz
        gem-ood evaluate gem.safetensors --id test.npz --ood noise.npz \
            --report report.html
    """
    ask(quiet=quiet, verbose=verbose)


for _command in (demo, info, fit, calibrate, score, evaluate, train, certify, simulate, figures, verify, reproduce):
    app.command(cls=ExampleCommand)(spoken(_command))


def main() -> None:
    """Run the command line and exit.

    The code is 0 if all went well, 1 if a cluster could not finish, 2 for bad input, 130 for Ctrl-C, 143 for SIGTERM.
    """
    with signals_end_cleanly():
        app(prog_name="gem-ood")
