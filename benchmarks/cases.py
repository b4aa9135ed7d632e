"""What is measured: one function per question, each returning a section with ratios first and times after."""

from __future__ import annotations

import tempfile
import tracemalloc
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gem_ood import GEM
from gem_ood.metrics import evaluate
from peers import PEERS, Features, Labels, Peer, PytorchOOD
from timing import Measurement, Sampler, Stopwatch, import_seconds, interleave, paired_ratio

__all__ = ["Section", "Workload", "fit", "imports", "memory", "metrics", "one_row", "score"]

OURS = "gem-ood"
PRODUCT_SIZE = 2048
CLASSES = 100
MEGABYTE = 1e6
MICROSECONDS = 1e6
# Peers return half a squared distance to the nearest class, GEM a log-sum-exp over classes. The workload's
# classes lie apart, so both must rank rows alike; a lower correlation means that different things were timed.
LEAST_AGREEMENT = 0.999


@dataclass(frozen=True)
class Section:
    """Answers to one question: ratios, which are what is published, and the measurements behind them."""

    title: str
    ratios: Sequence[Measurement]
    measurements: Sequence[Measurement]
    #: Why there are none, where a section was left out.
    skipped: str = ""


class Workload:
    """Labelled Gaussian features to fit, rows to score, and each library's detector fitted once."""

    def __init__(self, *, rows: int, queries: int, dimensions: int, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        self._class_means = rng.standard_normal((CLASSES, dimensions), dtype=np.float32)
        # A spread of 30 between columns: conditioned like penultimate features, and easy for every library.
        self._column_scales = np.geomspace(0.2, 6, dimensions).astype(np.float32)
        self.labels: Labels = rng.integers(CLASSES, size=rows)
        self.features = self._draw(rng, self.labels)
        self.queries = self._draw(rng, rng.integers(CLASSES, size=queries))
        self._peer_detectors: dict[str, Any] = {}

    def _draw(self, rng: np.random.Generator, labels: Labels) -> Features:
        noise = rng.standard_normal((labels.size, self._class_means.shape[1]), dtype=np.float32)
        return (self._class_means[labels] + noise) * self._column_scales

    @property
    def shape(self) -> str:
        """The size of a scoring call, for titles."""
        return f"{len(self.queries):,} x {self.queries.shape[1]}, {CLASSES} classes"

    @cached_property
    def detector(self) -> GEM:
        """Our detector, fitted at the first use."""
        return GEM().fit(self.features, self.labels)

    def peer_detector(self, peer: Peer) -> Any:
        """The peer's detector, fitted at the first use."""
        if peer.name not in self._peer_detectors:
            self._peer_detectors[peer.name] = peer.fitter(self.features, self.labels)()
        return self._peer_detectors[peer.name]

    def agreement(self, peer: Peer) -> float:
        """Correlation of our scores with the peer's, sign turned, on the first rows."""
        rows = self.queries[:512]
        theirs = peer.scorer(self.peer_detector(peer), rows)()
        return float(np.corrcoef(self.detector.score_samples(rows), -theirs)[0, 1])


def fit(workload: Workload, *, rounds: int, with_peers: bool) -> Section:
    """How long a fit takes against the one product that no fit can do without, and against the peers."""
    features, labels = workload.features, workload.labels
    features64 = features.astype(np.float64)
    product = "NumPy X64.T @ X64"
    samplers: dict[str, Sampler] = {
        OURS: Stopwatch(lambda: lambda: GEM().fit(features, labels)),
        product: Stopwatch(lambda: lambda: features64.T @ features64),
    }
    for peer in PEERS if with_peers else ():
        samplers[peer.name] = Stopwatch(partial(peer.fitter, features, labels))
    times = interleave(samplers, rounds=rounds)
    ratios = [paired_ratio(f"{OURS} / {product}", times[OURS], times[product], at_most=2)]
    ratios += _against_peers(times, with_peers)
    title = f"Fit, {len(features):,} x {features.shape[1]}, {CLASSES} classes"
    return Section(title, ratios, [time.scaled(1e3, "ms") for time in times.values()])


def score(workload: Workload, *, rounds: int, with_peers: bool, least_fraction: float | None) -> Section:
    """How close scoring comes to the machine's matrix-product rate, and to the peers."""
    queries, detector = workload.queries, workload.detector
    precision = _working_precision(detector)
    samplers: dict[str, Sampler] = {OURS: Stopwatch(lambda: lambda: detector.score_samples(queries))}
    for dtype in (np.float32, np.float64):
        samplers[_product_name(np.dtype(dtype).name)] = Stopwatch(partial(_square_product, dtype))
    samplers |= _peer_scorers(workload, queries, with_peers)
    times = interleave(samplers, rounds=rounds)

    rows, dimensions = queries.shape
    work = rows * dimensions**2 + 2 * rows * dimensions * CLASSES
    fraction = paired_ratio(
        f"{OURS}, fraction of the {precision} product rate",
        times[_product_name(precision)],
        times[OURS],
        factor=work / _product_work(),
        at_least=least_fraction,
    )
    measurements = []
    for name, time in times.items():
        measurement = time.scaled(1e3, "ms")
        if not time.failure and not _is_peer(name):
            flops = work if name == OURS else _product_work()
            measurement = replace(measurement, note=f"{flops / time.median / 1e9:.0f} GFlop/s")
        measurements.append(measurement)
    if with_peers:
        measurements = _with_agreement(workload, measurements)
    return Section(f"Score, {workload.shape}", [fraction, *_against_peers(times, with_peers)], measurements)


def one_row(workload: Workload, *, rounds: int, with_peers: bool) -> Section:
    """How long a caller waits for a single row."""
    row, detector = workload.queries[:1].copy(), workload.detector
    samplers: dict[str, Sampler] = {OURS: Stopwatch(lambda: lambda: detector.score_samples(row))}
    samplers |= _peer_scorers(workload, row, with_peers)
    times = interleave(samplers, rounds=rounds)
    measurements = [time.scaled(MICROSECONDS, "us") for time in times.values()]
    measurements[0] = replace(measurements[0], at_most=60)
    title = f"One row, 1 x {row.shape[1]}, {CLASSES} classes"
    return Section(title, _against_peers(times, with_peers), measurements)


def metrics(*, rounds: int, with_peers: bool, size: int = 1_000_000) -> Section:
    """How long the metrics take against the sort they need, scikit-learn and pytorch-ood (all in float64).

    scikit-learn's areas are those of our default convention, pytorch-ood's those of "openood": each is compared
    with the convention that gives its numbers.
    """
    from sklearn.metrics import average_precision_score, roc_auc_score, roc_curve

    rng = np.random.default_rng(1)
    id_scores, ood_scores = rng.normal(1.0, 1.0, size), rng.normal(-1.0, 1.5, size)
    scores = np.concatenate([id_scores, ood_scores])
    is_id = np.repeat([1, 0], size)

    def scikit_learn() -> None:
        roc_auc_score(is_id, scores)
        average_precision_score(is_id, scores)
        average_precision_score(1 - is_id, -scores)
        roc_curve(is_id, scores)

    openood = f'{OURS}, convention="openood"'
    sort, scikit, four, all_five = (
        "np.sort of the joined scores",
        "scikit-learn, four calls",
        "pytorch-ood 0.4.0, the same four metrics",
        "pytorch-ood 0.4.0 OODMetrics (AUTC too)",
    )
    samplers: dict[str, Sampler] = {
        OURS: Stopwatch(lambda: lambda: evaluate(id_scores, ood_scores)),
        openood: Stopwatch(lambda: lambda: evaluate(id_scores, ood_scores, convention="openood")),
        sort: Stopwatch(lambda: lambda: np.sort(scores)),
        scikit: Stopwatch(lambda: scikit_learn),
    }
    if with_peers:
        for name in (four, all_five):
            prepare = partial(PytorchOOD().metrics, id_scores, ood_scores, same_four=name == four)
            samplers[name] = Stopwatch(prepare)
    times = interleave(samplers, rounds=rounds)
    ratios = [
        paired_ratio(f"{OURS} / {sort}", times[OURS], times[sort]),
        paired_ratio(f"{scikit} / {OURS}", times[scikit], times[OURS], at_least=1),
    ]
    ratios += [
        paired_ratio(f"{name} / {openood}", times[name], times[openood], at_least=1)
        for name in ((four, all_five) if with_peers else ())
    ]
    title = f"Metrics, {size:,} + {size:,} scores"
    return Section(title, ratios, [time.scaled(1e3, "ms") for time in times.values()])


def imports(*, rounds: int) -> Section:
    """What importing a detector costs beyond the libraries it stands on, in fresh interpreters.

    `import gem_ood` alone loads its rooms when they are asked for and costs next to nothing.
    """
    ours, base = "from gem_ood import GEM", "import sklearn.base, scipy.linalg"
    with tempfile.TemporaryDirectory() as folder:
        samplers = {name: import_seconds(name, bytecode=Path(folder)) for name in (ours, base)}
        times = interleave(samplers, rounds=rounds)
    note = "FLATTERS US: pandas is installed, and scikit-learn loads it" if find_spec("pandas") else ""
    ratio = paired_ratio(f"{ours} / {base}", times[ours], times[base], at_most=1.2, note=note)
    return Section("Import", [ratio], [time.scaled(1e3, "ms") for time in times.values()])


def memory(workload: Workload, *, rows: int = 200_000) -> Section:
    """Peak of what NumPy allocates beside input and output; tracemalloc does not see a BLAS's own buffers."""
    detector = workload.detector
    queries = np.resize(workload.queries, (rows, workload.queries.shape[1]))
    scoring = _peak_extra_bytes(lambda: detector.score_samples(queries))
    fitting = _peak_extra_bytes(lambda: GEM().fit(workload.features, workload.labels))
    dimensions = workload.queries.shape[1]
    fit_name = f"fit, {len(workload.features):,} x {dimensions}, beside the input"
    measurements = [
        Measurement(
            f"score_samples, {rows:,} x {dimensions}, beside input and output",
            (scoring / MEGABYTE,),
            "MB",
            at_most=64,
        ),
        Measurement(fit_name, (fitting / MEGABYTE,), "MB"),
    ]
    return Section("Peak memory", [], measurements)


def _against_peers(times: dict[str, Measurement], with_peers: bool) -> list[Measurement]:
    peers = PEERS if with_peers else ()
    return [paired_ratio(f"{p.name} / {OURS}", times[p.name], times[OURS], at_least=1) for p in peers]


def _peer_scorers(workload: Workload, queries: Features, with_peers: bool) -> dict[str, Sampler]:
    def prepare(peer: Peer) -> Callable[[], Any]:
        return peer.scorer(workload.peer_detector(peer), queries)

    return {peer.name: Stopwatch(partial(prepare, peer)) for peer in PEERS if with_peers}


def _with_agreement(workload: Workload, measurements: Sequence[Measurement]) -> list[Measurement]:
    """The measurements, those of peers noted with how well their scores agree with ours."""
    peers = {peer.name: peer for peer in PEERS}
    noted = []
    for measurement in measurements:
        peer = peers.get(measurement.name)
        if peer is not None and not measurement.failure:
            agreement = workload.agreement(peer)
            word = "agrees" if agreement >= LEAST_AGREEMENT else "DISAGREES"
            noted.append(replace(measurement, note=f"{word} with ours, r = {agreement:.6f}"))
        else:
            noted.append(measurement)
    return noted


def _is_peer(name: str) -> bool:
    return name in {peer.name for peer in PEERS}


def _working_precision(detector: GEM) -> str:
    """The precision in which float32 rows are scored; float32 where the detector does not tell."""
    ask = getattr(getattr(detector, "gaussians_", None), "working_dtype", None)
    return np.dtype(ask(np.float32) if ask else np.float32).name


def _product_name(precision: str) -> str:
    return f"product {PRODUCT_SIZE}^3, {precision}"


def _product_work() -> int:
    return 2 * PRODUCT_SIZE**3


def _square_product(dtype: type) -> Callable[[], NDArray[Any]]:
    rng = np.random.default_rng(2)
    left: NDArray[Any] = rng.standard_normal((PRODUCT_SIZE, PRODUCT_SIZE)).astype(dtype)
    right = left.T.copy()
    out = np.empty_like(left)
    return lambda: np.matmul(left, right, out=out)


def _peak_extra_bytes(call: Callable[[], Any]) -> int:
    call()  # modules loaded on first use are not the call's memory
    tracemalloc.start()
    try:
        result = call()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    return peak - (result.nbytes if isinstance(result, np.ndarray) else 0)
