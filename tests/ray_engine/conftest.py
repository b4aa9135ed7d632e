"""One Ray of two workers for all tests of a process; without Ray they are skipped."""

import logging
import os
from collections.abc import Iterator

import pytest

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is sent anywhere
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # Ray warns of a default that will change

collect_ignore = ["cluster_job.py"]  # a program, which cannot be imported without Ray


@pytest.fixture(scope="session")
def ray_until_the_end() -> Iterator[None]:
    """Stop the Ray that tests have left running after the last of them."""
    ray = pytest.importorskip("ray", reason="Ray is not installed")
    yield
    ray.shutdown()


@pytest.fixture(scope="module")
def ray_session(ray_until_the_end: None) -> None:
    """Start Ray on this machine unless it runs: tests elsewhere may have stopped it since the last module."""
    import ray
    import ray.data

    if not ray.is_initialized():
        ray.init("local", num_cpus=2, include_dashboard=False, logging_level="error", log_to_driver=False)
    ray.data.DataContext.get_current().enable_progress_bars = False
    logging.getLogger("ray.data").setLevel(logging.CRITICAL)
