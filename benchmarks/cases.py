"""What every library does with a workload: fit, score, batches, one row; ratios first, times after."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from gem_ood import GEM
from limits import square_product, square_product_operations, working_precision
from peers import ALL_PAIRS, PEERS, RELATED, Features, Peer
from peers.scikit import ScikitCovariance, ScikitMixture
from sections import Section
from timing import FEWEST_ROWS, Measurement, RowStopwatch, Sampler, Stopwatch, fastest, interleave, paired_ratio
from workloads import Workload

__all__ = ["all_pairs", "batches", "fit", "one_row", "score"]

OURS = "gem-ood"
FASTEST = "fastest peer"
MILLISECONDS, MICROSECONDS = 1e3, 1e6
BATCH_ROWS = 200
# Peers return half a squared distance to the nearest class or a log-sum-exp, GEM the latter. The workload's classes
# lie apart, so all must rank rows alike; a lower correlation means that different things were timed.
LEAST_AGREEMENT = 0.999
# Where features are many, the arithmetic decides, and not what surrounds it.
MANY_FEATURES = 512
MOST_FIT_OF_PRODUCT = 1.5
# Asked in both ways of counting: of the fewest operations, at the rate of a large square product, and of the products
# as one writes them, zeros of W included, in the time that NumPy takes for these.
LEAST_FRACTION_OF_PRODUCT_RATE = 0.8
#: How many times as fast as the fastest peer, by the key of the workload: of plain rows, which no other kind's key is.
LEAST_SCORE = {"64x10": 10.0, "128x100": 50.0, "512x100": 100.0}
LEAST_BATCHES = {"64x10": 10.0, "128x100": 30.0, "512x100": 30.0}
LEAST_ALL_PAIRS = {"512x100": 1000.0}
# One of the passes of such a fit, over a row: beyond this it would take minutes, and one pass has to tell.
MOST_OPERATIONS_TO_FIT_BY_SCORING = 1e9
AT_LEAST = "at least: one of the three times that it scores its rows"
HALF_PRECISION = "half the precision that we keep"
MOST_MICROSECONDS_OF_ONE_ROW = {"128x10": 40.0}


def fit(work: Workload, *, rounds: int, with_peers: bool) -> Section:
    """How long a fit takes against the one product that no fit can do without, and against the peers."""
    product64, product32 = "NumPy X.T @ X, float64", "NumPy X.T @ X, float32"
    samplers: dict[str, Sampler] = {
        OURS: Stopwatch(lambda: lambda: GEM().fit(work.features, work.labels)),
        product64: Stopwatch(lambda: _own_product(work.features.astype(np.float64))),
        product32: Stopwatch(lambda: _own_product(work.features)),
    }
    peers = (*PEERS, *RELATED) if with_peers else ()
    samplers |= {peer.name: _fit_sampler(peer, work) for peer in peers}
    mixture64 = f"{ScikitMixture.name}, float64"
    if with_peers:
        samplers[mixture64] = Stopwatch(lambda: ScikitMixture().fitter(work.features.astype(np.float64), work.labels))
    times = interleave(samplers, rounds=rounds)
    for peer in peers:
        if peer.fits_by_scoring:
            times[peer.name] = times[peer.name].scaled(work.shape.rows, "s")

    is_wide = _has_wide_targets(work)
    most = MOST_FIT_OF_PRODUCT if is_wide else None
    ratios = [
        paired_ratio(f"{OURS} / {product64}", times[OURS], times[product64], at_most=most),
        paired_ratio(f"{OURS} / {product32}", times[OURS], times[product32], note=HALF_PRECISION),
    ]
    if with_peers:
        least = 1.0 if is_wide else None
        ratios.append(paired_ratio(f"{mixture64} / {OURS}", times[mixture64], times[OURS], at_least=least))
    for peer in peers:
        if isinstance(peer, ScikitMixture):  # as precise as the rows that it is given
            note = "; ".join(filter(None, [times[peer.name].note, HALF_PRECISION]))
            times[peer.name] = replace(times[peer.name], note=note)
        has_target = peer in PEERS and not isinstance(peer, ScikitMixture) and not work.kind
        ratios.append(_against(peer, times, at_least=1.0 if has_target else None))
    title = f"Fit of {work.shape.rows:,} rows, {work}"
    return Section(f"fit-{work.key}", title, ratios, _scaled(times, MILLISECONDS, "ms"))


def score(work: Workload, *, rounds: int, with_peers: bool) -> Section:
    """How close scoring comes to the machine's matrix-product rate, and how far ahead of the peers it is."""
    rows = len(work.queries)
    precision = working_precision(work.detector)
    product, bare = f"product of 2048^3, {precision}", "NumPy (X @ W) @ M.T"
    samplers: dict[str, Sampler] = {
        OURS: Stopwatch(lambda: lambda: work.detector.score_samples(work.queries)),
        product: Stopwatch(partial(square_product, precision)),
        bare: Stopwatch(lambda: _bare_products(work, precision)),
    }
    peers = PEERS if with_peers else ()
    for peer in (*PEERS, ScikitCovariance()) if with_peers else ():
        samplers[peer.name] = RowStopwatch(partial(_score_rows, work, peer), rows)
    times = interleave(samplers, rounds=rounds)
    for peer in (*PEERS, *RELATED):
        if peer.name in times:
            times[peer.name] = times[peer.name].scaled(rows, "s")

    m, k = work.shape.dimensions, work.shape.classes
    least = LEAST_FRACTION_OF_PRODUCT_RATE if _has_wide_targets(work) else None
    fraction = paired_ratio(
        f"{OURS}, fraction of the {precision} product rate",
        times[product],
        times[OURS],
        factor=rows * (m**2 + 2 * m * k) / square_product_operations(),
        at_least=least,
    )
    beside_bare = paired_ratio(
        f"{OURS} / {bare}",
        times[OURS],
        times[bare],
        at_most=None if least is None else 1.0 / least,
        note="the products alone, W in full",
    )
    ratios = [fraction, beside_bare, *_peer_ratios(peers, times, at_least=LEAST_SCORE.get(work.key))]
    ratios += [_against(peer, times) for peer in RELATED if peer.name in times]
    measurements = [_with_agreement(work, time) for time in _scaled(times, MILLISECONDS, "ms")]
    return Section(f"score-{work.key}", f"Score of {rows:,} rows, {work}", ratios, measurements)


def batches(work: Workload, *, rounds: int, with_peers: bool) -> Section:
    """How long a batch takes when rows come two hundred at a time."""
    rows = len(work.queries)
    samplers: dict[str, Sampler] = {
        OURS: Stopwatch(lambda: _in_turn([partial(work.detector.score_samples, part) for part in _batches(work, rows)]))
    }
    peers = PEERS if with_peers else ()
    for peer in peers:
        samplers[peer.name] = RowStopwatch(partial(_score_batches, work, peer), rows, step=BATCH_ROWS)
    times = interleave(samplers, rounds=rounds)
    times[OURS] = times[OURS].scaled(BATCH_ROWS / rows, "s")
    for peer in peers:
        times[peer.name] = times[peer.name].scaled(BATCH_ROWS, "s")
    ratios = _peer_ratios(peers, times, at_least=LEAST_BATCHES.get(work.key))
    title = f"Score of {rows:,} rows in batches of {BATCH_ROWS}, {work}"
    return Section(f"batches-{work.key}", title, ratios, _scaled(times, MILLISECONDS, "ms a batch"))


def one_row(work: Workload, *, rounds: int, with_peers: bool) -> Section:
    """How long a caller waits for a single row, our validation included."""
    row = work.queries[:1].copy()
    samplers: dict[str, Sampler] = {OURS: Stopwatch(lambda: lambda: work.detector.score_samples(row))}
    peers = PEERS if with_peers else ()
    for peer in peers:
        samplers[peer.name] = Stopwatch(partial(_score_row, work, peer, row))
    times = interleave(samplers, rounds=rounds)
    ours, *others = _scaled(times, MICROSECONDS, "us")
    ours = replace(ours, at_most=MOST_MICROSECONDS_OF_ONE_ROW.get(work.key))
    ratios = _peer_ratios(peers, times, at_least=None)
    return Section(f"one-row-{work.key}", f"Score of one row, {work}", ratios, [ours, *others])


def all_pairs(work: Workload) -> Section:
    """What a rows x rows matrix per class costs those who build one, given all rows in one call: measured once."""
    rows = len(work.queries)
    samplers: dict[str, Sampler] = {OURS: Stopwatch(lambda: lambda: work.detector.score_samples(work.queries))}
    for peer in ALL_PAIRS:
        samplers[peer.name] = Stopwatch(partial(_score_rows, work, peer, rows))
    times = interleave(samplers, rounds=1)
    ratios = [_against(peer, times, at_least=LEAST_ALL_PAIRS.get(work.key)) for peer in ALL_PAIRS]
    title = f"Score of {rows:,} rows by a rows x rows matrix per class, {work}"
    return Section(f"all-pairs-{work.key}", title, ratios, _scaled(times, MILLISECONDS, "ms"))


def _has_wide_targets(work: Workload) -> bool:
    """Whether the rows are those of the targets, and so wide that the arithmetic decides about the time."""
    return work.shape.dimensions >= MANY_FEATURES and not work.kind


# Calls


def _own_product(features: np.ndarray) -> Callable[[], np.ndarray]:
    return lambda: features.T @ features


def _bare_products(work: Workload, precision: str) -> Callable[[], np.ndarray]:
    """Whitening and the product with the class means, as one writes them: no centre, checks, distances, scores."""
    gaussians = work.detector.gaussians_
    given = (work.queries, gaussians.factor.whitener, gaussians.whitened_means)
    rows, whitener, means = (array.astype(precision, copy=False) for array in given)
    return lambda: (rows @ whitener) @ means.T


def _fit_sampler(peer: Peer, work: Workload) -> Sampler:
    if not peer.fits_by_scoring:
        return Stopwatch(partial(peer.fitter, work.features, work.labels))
    shape = work.shape
    if shape.classes * shape.dimensions**2 > MOST_OPERATIONS_TO_FIT_BY_SCORING:
        return RowStopwatch(partial(_score_rows, work, peer), shape.rows, note=AT_LEAST)
    # No fewer rows than classes, which the fit refuses, and so many that its checks of the parameters do not weigh.
    step = max(4 * FEWEST_ROWS, shape.classes)
    return RowStopwatch(lambda rows: peer.fitter(work.features, work.labels, rows=rows), shape.rows, step=step)


def _score_rows(work: Workload, peer: Peer, rows: int) -> Callable[[], Any]:
    return peer.scorer(work.peer_detector(peer), work.queries[:rows])


def _score_row(work: Workload, peer: Peer, row: Features) -> Callable[[], Any]:
    return peer.scorer(work.peer_detector(peer), row)


def _score_batches(work: Workload, peer: Peer, rows: int) -> Callable[[], None]:
    detector = work.peer_detector(peer)
    return _in_turn([peer.scorer(detector, part) for part in _batches(work, rows)])


def _batches(work: Workload, rows: int) -> list[Features]:
    return [work.queries[start : start + BATCH_ROWS] for start in range(0, rows, BATCH_ROWS)]


def _in_turn(calls: Sequence[Callable[[], object]]) -> Callable[[], None]:
    def call_all() -> None:
        for call in calls:
            call()

    return call_all


# Rows of the tables


def _peer_ratios(peers: Sequence[Peer], times: dict[str, Measurement], *, at_least: float | None) -> list[Measurement]:
    """The fastest peer against ours, which has the target, then each of them."""
    if not peers:
        return []
    quickest = fastest(FASTEST, [times[peer.name] for peer in peers])
    first = paired_ratio(f"{FASTEST} / {OURS}", quickest, times[OURS], at_least=at_least, note=quickest.note)
    return [first, *(_against(peer, times) for peer in peers)]


def _against(peer: Peer, times: dict[str, Measurement], *, at_least: float | None = None) -> Measurement:
    time = times[peer.name]
    return paired_ratio(f"{peer.name} / {OURS}", time, times[OURS], at_least=at_least, note=time.note)


def _scaled(times: dict[str, Measurement], factor: float, unit: str) -> list[Measurement]:
    return [time.scaled(factor, unit) for time in times.values()]


def _with_agreement(work: Workload, time: Measurement) -> Measurement:
    """The measurement of a peer noted with what it computes, and with how well its scores agree with ours."""
    peer = next((peer for peer in (*PEERS, *RELATED) if peer.name == time.name), None)
    if peer is None or time.failure:
        return time
    notes = [time.note, peer.computes]
    if peer in PEERS:
        agreement = work.agreement(peer)
        word = "agrees" if agreement >= LEAST_AGREEMENT else "DISAGREES"
        notes.append(f"{word} with ours, r = {agreement:.6f}")
    return replace(time, note="; ".join(filter(None, notes)))
