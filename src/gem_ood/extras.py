"""Extras: optional dependencies, imported where they are used, with the command that installs them when absent."""

from importlib import import_module

from gem_ood.errors import MissingExtraError

__all__ = ["require_extra"]


def require_extra(extra: str, *modules: str, purpose: str) -> None:
    """Raise, with the command that installs them, if a module of this extra cannot be imported.

    >>> require_extra("report", "no_such_module", purpose="figures")
    Traceback (most recent call last):
        ...
    gem_ood.errors.MissingExtraError: figures need no_such_module, which cannot be imported; run
    pip install "gem-ood[report]"
    """
    for module in modules:
        package = module.partition(".")[0]
        try:
            import_module(package)
            import_module(module)
        except ImportError as error:
            raise MissingExtraError(
                f'{purpose} need {package}, which cannot be imported; run pip install "gem-ood[{extra}]"'
            ) from error
