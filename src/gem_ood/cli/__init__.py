"""The `gem-ood` command: each command parses, calls the library and prints.

Heavy modules are imported inside the commands, so that `gem-ood --help` stays quick.
"""

from gem_ood.cli.app import app, main

__all__ = ["app", "main"]
