"""One Ray of two workers for all tests of a process; without Ray they are skipped."""

import logging
import os
from collections.abc import Iterator

import pytest

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is sent anywhere
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # Ray warns of a default that will change


@pytest.fixture(scope="session")
def ray_session() -> Iterator[None]:
    """Start Ray on this machine, and stop it after the last test."""
    ray = pytest.importorskip("ray", reason="Ray is not installed")
    import ray.data

    if ray.is_initialized():  # by an example of the documentation
        ray.shutdown()
    ray.init("local", num_cpus=2, include_dashboard=False, logging_level="error", log_to_driver=False)
    ray.data.DataContext.get_current().enable_progress_bars = False
    logging.getLogger("ray.data").setLevel(logging.CRITICAL)
    yield
    ray.shutdown()
