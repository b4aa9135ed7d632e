"""Small studies, run once."""

import pytest

from gem_ood.simulation import run_study

SIZES = {"runs": 3, "sampler": "projected", "n_in": 400, "n_out": 400}


@pytest.fixture(scope="session")
def small_studies():
    return [
        run_study("classes", grid=[2, 4], dimension=16, distance=5.0, **SIZES),
        run_study("distance", grid=[2.0, 6.0], n_classes=[2, 4], dimension=16, **SIZES),
        run_study("dimension", grid=[8, 16], n_classes=[2, 4], distance=5.0, **SIZES),
    ]
