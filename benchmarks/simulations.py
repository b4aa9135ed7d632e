"""The paper's simulations against the loop that draws and scores one sample after the other."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from gem_ood.simulation import STUDIES, Setting, simulate_once, simulate_settings, study_means
from sections import Section
from timing import Measurement, Sampler, Stopwatch, interleave, paired_ratio

__all__ = ["simulation"]

SETTING = Setting(n_classes=10, dimension=512, distance=10.0)
# The loop takes some 0.1 s a sample and each sample alike: a few tell what 40,000 would take.
LOOP_SAMPLES = 10
LEAST_SPEED = 1000.0
OURS = "simulate_once"
LOOP = "sample by sample, multivariate_normal"
PLAIN_LOOP = "sample by sample, standard normals"
STUDY_ROWS = 2000
STUDY_ROUNDS = 3
# The curves of the first two studies.
CURVES = (10, 100)


def simulation(*, rounds: int, is_quick: bool) -> list[Section]:
    """One setting at the paper's size, and the settings of the three studies with a tenth of the paper's rows."""
    return [_one_setting(rounds=rounds), *([] if is_quick else [_studies(rounds=min(rounds, STUDY_ROUNDS))])]


def naive_sample_by_sample(setting: Setting, n_samples: int, *, knows_identity: bool) -> NDArray[np.float64]:
    """GEM scores of in-distribution samples, drawn and scored one by one as such code is commonly written.

    NumPy's `multivariate_normal` factors the covariance anew in each call. Where ``knows_identity``, the loop draws
    standard normals instead, as only code for this one covariance can. The precision is computed once in both.
    """
    rng = np.random.default_rng(0)
    means = study_means(setting.n_classes, setting.dimension, setting.distance)
    covariance = setting.sigma**2 * np.eye(setting.dimension)
    precision = np.linalg.inv(covariance)
    scores = np.empty(n_samples)
    for sample in range(n_samples):
        mean = means[rng.integers(setting.n_classes)]
        if knows_identity:
            row = mean + setting.sigma * rng.standard_normal(setting.dimension)
        else:
            row = rng.multivariate_normal(mean, covariance)
        energies = []
        for class_mean in means:
            offset = row - class_mean
            energies.append(-0.5 * offset @ precision @ offset)
        scores[sample] = np.logaddexp.reduce(energies)
    return scores


def _one_setting(*, rounds: int) -> Section:
    def loop(knows_identity: bool) -> Stopwatch:
        call = partial(naive_sample_by_sample, SETTING, LOOP_SAMPLES, knows_identity=knows_identity)
        return Stopwatch(lambda: call)

    samplers: dict[str, Sampler] = {
        OURS: Stopwatch(lambda: partial(simulate_once, SETTING, random_state=0)),
        LOOP: loop(False),
        PLAIN_LOOP: loop(True),
    }
    times = interleave(samplers, rounds=rounds)
    a_sample = {OURS: times[OURS].scaled(1 / SETTING.n_rows, "s")}
    a_sample |= {name: times[name].scaled(1 / LOOP_SAMPLES, "s") for name in (LOOP, PLAIN_LOOP)}
    note = f"{LOOP_SAMPLES} samples of the loop"
    ratios = [
        paired_ratio(f"{LOOP} / {OURS}", a_sample[LOOP], a_sample[OURS], at_least=LEAST_SPEED, note=note),
        paired_ratio(f"{PLAIN_LOOP} / {OURS}", a_sample[PLAIN_LOOP], a_sample[OURS], note=f"{note}, GEM alone"),
    ]
    title = (
        f"Simulation of one setting, d = {SETTING.dimension}, k = {SETTING.n_classes}, {SETTING.n_in:,} samples a side"
    )
    whole = times[OURS].scaled(1e3, "ms")
    rows = [time.scaled(1e6, "us a sample") for time in a_sample.values()]
    return Section("simulation", title, ratios, [Measurement("one run", whole.samples, "ms"), *rows])


def _studies(*, rounds: int) -> Section:
    """One run of every setting of a study, without the predictions that `run_study` adds."""
    samplers: dict[str, Sampler] = {
        name: Stopwatch(lambda name=name: partial(simulate_settings, _settings(name), runs=1)) for name in STUDIES
    }
    times = interleave(samplers, rounds=rounds)
    rows = [replace(time, note=f"{len(_settings(name))} settings") for name, time in times.items()]
    return Section("studies", f"The three studies, one run of {STUDY_ROWS:,} samples a side", [], rows)


def _settings(study: str) -> list[Setting]:
    """The grid of one of the paper's studies, with fewer rows."""
    _, field, grid = STUDIES[study]
    curves = CURVES if field != "n_classes" else CURVES[:1]
    starts = [replace(SETTING, n_classes=n_classes, n_in=STUDY_ROWS, n_out=STUDY_ROWS) for n_classes in curves]
    return [replace(start, **{field: value}) for start in starts for value in grid]
