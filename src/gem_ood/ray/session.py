"""A connection to Ray for one command: a cluster that runs, or workers on this machine."""

import logging
import os
import socket
import subprocess
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import ray
from ray._private import services, worker
from ray._private.node import Node
from ray.data import DataContext
from ray.exceptions import AuthenticationError

from gem_ood._version import __version__
from gem_ood.errors import InputError
from gem_ood.ray.failures import clear_errors, first_line

__all__ = ["session", "start"]

#: A head that does not answer by then is none.
PATIENCE_SECONDS = 10.0

#: At most how often Ray is started on this machine: where it is busy, Ray's own processes can be later than Ray waits.
STARTS = 3

#: What Ray says then, in an error of no kind of its own.
_LATE = "timed out during startup"

#: Says that it has started, then asks whatever listens for the number of its cluster.
_ASK = "import sys; from ray._raylet import GcsClient; print(flush=True); GcsClient(address=sys.argv[1])"

#: Ray's and Ray Data's own lines, which would break ours and the progress bar.
_LOGGERS = ("ray", "ray.data")


@contextmanager
def session(address: str | None = None) -> Iterator[None]:
    """Connect to the cluster at an address, or start one worker per core of this machine; quiet, and closed at the end.

    Args:
        address: `HOST:PORT` of a cluster's head, or "auto" for the one that runs on this machine. None starts workers
            here, which end with the block. Where this process is connected already, that connection is used.

    Raises:
        InputError: No cluster answers at the address, or its workers have no gem-ood or another version.
    """
    if ray.is_initialized():
        yield
        return
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is sent anywhere
    for name in _LOGGERS:
        logging.getLogger(name).setLevel(logging.CRITICAL)
    options: dict[str, Any] = {"logging_level": logging.CRITICAL, "log_to_driver": False}
    if address is None:
        options |= {"address": "local", "include_dashboard": False}
    else:
        options["address"] = address
    try:
        _reach(address)
        start(**options)
    except (OSError, ValueError, RuntimeError) as error:
        if _lacks_token(error):
            raise InputError(
                f"the cluster at {address} asks for a token; set RAY_AUTH_MODE=token, and have the same token on every "
                f"machine (ray get-auth-token)"
            ) from error
        raise InputError(
            f"no Ray cluster answers at {address or 'this machine'} ({first_line(str(error))}); start one with "
            f"ray start --head and pass its address as HOST:PORT, or leave the address out for workers on this machine"
        ) from error
    try:
        DataContext.get_current().enable_progress_bars = False
        with _silence():
            _refuse_other_version()
            yield
    finally:
        ray.shutdown()


@contextmanager
def _silence() -> Iterator[None]:
    """Keep what Ray has to say of its workers off standard output, where results go: it has no option for that."""
    printing = worker.print_to_stdstream
    worker.print_to_stdstream = lambda *_, **__: None
    try:
        yield
    finally:
        worker.print_to_stdstream = printing


def _lacks_token(error: BaseException | None) -> bool:
    """Return whether a connection failed because the cluster wants a token that this process does not show."""
    while error is not None:
        if isinstance(error, AuthenticationError) or "AuthToken" in str(error):
            return True
        error = error.__cause__ or error.__context__
    return False


def _reach(address: str | None) -> None:
    """Raise soon if no head of a cluster answers: Ray would try for a quarter of an hour, or end this process."""
    if address is None:
        return
    found = services.canonicalize_bootstrap_address_or_die(address) if address == "auto" else address
    host, _, port = found.rpartition(":")
    if "://" in found or not port.isdigit():
        raise ValueError("the address is not HOST:PORT or auto")
    with socket.create_connection((host.strip("[]"), int(port)), timeout=PATIENCE_SECONDS):
        pass
    # In a process of its own, as nothing else ends Ray's attempts; what came of it, ray.init says better.
    command = [sys.executable, "-c", _ASK, found]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as asking:
        try:
            asking.stdout.readline()  # type: ignore[union-attr]
            asking.wait(PATIENCE_SECONDS)
        except subprocess.TimeoutExpired as error:
            raise TimeoutError("something listens there, but it is not the head of a cluster") from error
        finally:
            asking.kill()


def start(**options: Any) -> None:
    """Connect to Ray or start it, again where its own processes were too late."""
    for attempt in range(1, STARTS + 1):
        try:
            ray.init(**options)
            return
        except Exception as error:
            if _LATE not in str(error):
                raise
            _end_late(error)
            if attempt == STARTS:
                raise TimeoutError(f"its processes had not started after {STARTS} attempts") from error


def _end_late(error: Exception) -> None:
    """End what was late: Ray forgets a node that has not started, and its processes would go on beside the next."""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        node = frame.f_locals.get("self")
        if isinstance(node, Node):
            node.kill_all_processes(check_alive=False)


def _refuse_other_version() -> None:
    with clear_errors():
        try:
            found = ray.get(_version.remote())
        except ModuleNotFoundError as error:
            raise InputError(
                f'the workers of the cluster have no gem-ood; run pip install "gem-ood[ray]=={__version__}" on every '
                f"machine"
            ) from error
    if found != __version__:
        raise InputError(
            f"the workers have gem-ood {found} but this machine has {__version__}; install one version everywhere"
        )


@ray.remote
def _version() -> str:
    from gem_ood._version import __version__ as found  # what this module holds is sent along: this is the worker's own

    return found
