"""What the benchmark gives to every library: in which precision it is scored, and that plain rows have the targets."""

from argparse import Namespace
from types import SimpleNamespace

import numpy as np
import pytest

import cases
import run
from peers.scikit import ScikitMixture
from workloads import DATA, REAL, Shape, conditioned, real, workload

SMALL = Shape(64, 10, 2_000)


@pytest.mark.parametrize(("draw", "working"), [(workload, np.float32), (conditioned, np.float64)])
def test_badly_conditioned_rows_and_no_others_are_scored_in_float64(draw, working):
    work = draw(SMALL)
    assert work.features.dtype == work.queries.dtype == np.float32
    assert work.detector.gaussians_.working_dtype(np.float32) == working
    assert np.unique(work.labels).size == SMALL.classes


def test_only_plain_rows_have_targets_and_their_keys(monkeypatch):
    for wait in ("SETTLE_SECONDS", "SHORTEST_SAMPLE_SECONDS"):  # the times do not matter here
        monkeypatch.setattr(f"timing.{wait}", 0.0)
    peer = SimpleNamespace(name="peer", fits_by_scoring=False, fitter=lambda *_: lambda: None)
    monkeypatch.setattr(cases, "PEERS", (ScikitMixture(), peer))  # others bring stand-ins for modules of other tests
    monkeypatch.setattr(cases, "RELATED", ())
    plain, other = (
        cases.fit(draw(Shape(512, 10, 2_000)), rounds=1, with_peers=True) for draw in (workload, conditioned)
    )
    assert plain.key == "fit-512x10"
    assert other.key == "fit-conditioned-512x10"
    assert other.title == "Fit of 2,000 rows, 512 features, 10 classes, condition number 100,000"
    assert sum(bool(row.target) for row in plain.ratios) == 3  # of X.T @ X, the mixture and the peer
    assert not any(row.target for row in other.ratios)


@pytest.mark.skipif(
    not (DATA / REAL).is_dir(), reason="the real features are not here; set GEM_OOD_DATA to their folder"
)
def test_the_real_rows_are_those_of_a_network_with_ten_classes():
    work = real()
    assert work.key == "real-64x10"
    assert work.features.shape == (50_000, 64)
    assert work.queries.shape == (10_000, 64)


def test_agreement_is_measured_on_rows_of_all_classes():
    work = workload(SMALL)
    seen = []
    peer = SimpleNamespace(
        name="peer", detector=lambda *_: None, scorer=lambda _, rows: lambda: _turned(seen, work, rows)
    )
    assert work.agreement(peer) == pytest.approx(1.0)
    assert np.shares_memory(seen[0], work.queries)
    assert seen[0][-1].tolist() == work.queries[255 * (len(work.queries) // 256)].tolist()


def _turned(seen, work, rows):
    seen.append(rows)
    return -work.detector.score_samples(rows)


def test_without_the_real_features_their_sections_say_so(monkeypatch):
    monkeypatch.setattr("workloads.REAL", "nowhere")
    real.cache_clear()
    options = Namespace(rounds=1, quick=True, shapes=None, gigabytes=1.0)
    sections = run._measures(options)["real"]()
    assert [section.key for section in sections] == ["fit-real", "score-real", "batches-real"]
    assert all("GEM_OOD_DATA" in section.skipped for section in sections)
