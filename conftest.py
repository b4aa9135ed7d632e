"""Examples in docstrings: those of `gem_ood.ray` find a Ray that runs; where it is not installed they are left out."""

import os
from collections.abc import Iterator
from importlib.util import find_spec

import pytest

os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # Ray warns of a default that will change

collect_ignore = [] if find_spec("ray") else ["src/gem_ood/ray"]


#: Modules whose examples run on Ray.
WITH_EXAMPLES = ("fitting", "calibrating", "scoring", "writing")


@pytest.fixture(scope="session")
def running_ray() -> Iterator[None]:
    """Start Ray quietly, or use the one that tests have left running."""
    from gem_ood.ray.session import session

    with session():
        yield


@pytest.fixture(autouse=True)
def ray_for_its_examples(request: pytest.FixtureRequest) -> None:
    """Only the room that needs Ray waits for it."""
    if request.path.parent.name == "ray" and request.path.stem in WITH_EXAMPLES:
        request.getfixturevalue("running_ray")
