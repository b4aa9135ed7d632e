import numpy as np
import pytest

from gem_ood.gaussians import parallel
from gem_ood.metrics import labelled


@pytest.mark.parametrize("n_rows", [50, 51])
@pytest.mark.parametrize("decimals", [0, 15])
def test_two_threads_sort_as_one_does(monkeypatch, n_rows, decimals):
    rng = np.random.default_rng(n_rows)
    sides = [rng.normal(size=n_rows).round(decimals), rng.normal(size=20).round(decimals)]
    expected = labelled.labelled_sort(*sides)
    parts = []

    def run_in_turns(*arguments, **options):
        parts.extend(parallel.run_in_turns(*arguments, **options))

    monkeypatch.setattr(labelled, "LEAST_ROWS_TO_SHARE", 10)
    monkeypatch.setattr(labelled, "run_in_turns", run_in_turns)
    monkeypatch.setattr(parallel, "blas_threads", lambda: 2)
    found = labelled.labelled_sort(*sides)
    assert len(parts) == 2
    # Rows of one score may come in either order of their sides where it is zero.
    np.testing.assert_array_equal(found & ~1, expected & ~1)
    np.testing.assert_array_equal(np.sort(found), np.sort(expected))
