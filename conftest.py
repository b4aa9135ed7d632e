"""How tests are dealt out, and one Ray of two workers for those that need it; without Ray they are left out."""

import logging
import os
import re
import sys
from importlib.util import find_spec
from typing import Any

import pytest

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is sent anywhere
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # Ray warns of a default that will change
os.environ.setdefault("RAY_worker_niceness", "0")  # nice ones hardly get a turn beside another process of tests

collect_ignore = [] if find_spec("ray") else ["src/gem_ood/ray"]

#: Modules whose examples run on Ray.
WITH_EXAMPLES = ("fitting", "calibrating", "scoring", "writing")


def needs_ray(test: str) -> bool:
    """Return whether a test is one of those that run on Ray, by its name."""
    return re.search(r"\bray\b|\bray_engine\b", test) is not None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the tests that need Ray first: no others take as long."""
    items.sort(key=lambda item: not needs_ray(item.nodeid))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Deal tests by file, so that what they share is made once, and all that need Ray to one process."""
    from xdist.scheduler import LoadFileScheduling

    class ByFileOrRay(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return "ray" if needs_ray(nodeid) else super()._split_scope(nodeid)

    config.option.loadscopereorder = False
    return ByFileOrRay(config, log)


@pytest.fixture(scope="module")
def ray_session() -> None:
    """Start Ray on this machine unless it runs."""
    pytest.importorskip("ray", reason="Ray is not installed")
    import ray
    import ray.data

    from gem_ood.ray.session import start

    if not ray.is_initialized():
        start(address="local", num_cpus=2, include_dashboard=False, logging_level="error", log_to_driver=False)
    ray.data.DataContext.get_current().enable_progress_bars = False
    logging.getLogger("ray.data").setLevel(logging.CRITICAL)


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Stop Ray after the last test that needs it: even idle it takes a share of the machine."""
    ray = sys.modules.get("ray")
    if ray is not None and ray.is_initialized() and (nextitem is None or not needs_ray(nextitem.nodeid)):
        ray.shutdown()


@pytest.fixture(autouse=True)
def ray_for_its_examples(request: pytest.FixtureRequest) -> None:
    """Only the room that needs Ray waits for it."""
    if request.path.parent.name == "ray" and request.path.stem in WITH_EXAMPLES:
        request.getfixturevalue("ray_session")
