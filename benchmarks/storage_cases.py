"""Save and load: our file against what the peers' users write, with what each format may do to its reader."""

from __future__ import annotations

import pickle
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gem_ood import load
from peers.scikit import ScikitMixture
from peers.with_torch import PytorchOOD, load_torch
from sections import Section
from timing import Measurement, Stopwatch, interleave, paired_ratio
from workloads import Shape, Workload, workload

__all__ = ["storage"]

OURS = "gem-ood"
RUNS_CODE = "a pickle: loading it runs whatever code it names"


@dataclass(frozen=True)
class Format:
    """How one library's detector goes to a file and comes back."""

    name: str
    #: By which PyTorch tells formats apart.
    suffix: str
    note: str
    save: Callable[[Path], object]
    load: Callable[[Path], object]


def storage(shape: Shape, *, rounds: int, with_peers: bool) -> Section:
    """How long it takes to keep a detector and to have it back, and how large the file is."""
    work = workload(shape)
    formats = [_ours(work), *([_torch(work), _joblib(work), _pickle(work)] if with_peers else [])]
    with tempfile.TemporaryDirectory() as folder:
        paths = {format.name: Path(folder) / f"{number}{format.suffix}" for number, format in enumerate(formats)}
        samplers: dict[str, Stopwatch] = {}
        for format in formats:
            path = paths[format.name]
            samplers[f"save, {format.name}"] = Stopwatch(lambda format=format, path=path: lambda: format.save(path))
            samplers[f"load, {format.name}"] = Stopwatch(lambda format=format, path=path: lambda: format.load(path))
        times = interleave(samplers, rounds=rounds)
        sizes = [
            Measurement(f"file, {format.name}", (paths[format.name].stat().st_size / 1e6,), "MB", note=format.note)
            for format in formats
        ]
    ratios = [
        paired_ratio(f"{verb}, {format.name} / {OURS}", times[f"{verb}, {format.name}"], times[f"{verb}, {OURS}"])
        for verb in ("save", "load")
        for format in formats[1:]
    ]
    measurements = [*(time.scaled(1e3, "ms") for time in times.values()), *sizes]
    return Section(f"save-load-{shape.key}", f"Save and load, {shape}", ratios, measurements)


def _ours(work: Workload) -> Format:
    note = "means and scatter in float64, so that fits go on; flushed to disk and checked by its digest; runs no code"
    return Format(OURS, ".safetensors", note, work.detector.save, load)


def _torch(work: Workload) -> Format:
    """pytorch-ood has no file of its own: ``torch.save`` of the whole detector is what its users do."""
    torch = load_torch()
    detector = work.peer_detector(PytorchOOD())

    def load_detector(path: Path) -> Any:
        return torch.load(path, weights_only=False)

    note = f"means, covariance and its inverse in float32; {RUNS_CODE}"
    return Format("pytorch-ood 0.4.0, torch.save", ".pt", note, lambda path: torch.save(detector, path), load_detector)


def _joblib(work: Workload) -> Format:
    import joblib

    detector = work.peer_detector(ScikitMixture())
    name = "scikit-learn tied GaussianMixture, joblib"
    note = f"means, covariance and its factor in float32; {RUNS_CODE}"
    return Format(name, ".joblib", note, lambda path: joblib.dump(detector, path), joblib.load)


def _pickle(work: Workload) -> Format:
    detector = work.peer_detector(ScikitMixture())

    def save(path: Path) -> None:
        path.write_bytes(pickle.dumps(detector, protocol=pickle.HIGHEST_PROTOCOL))

    def load_detector(path: Path) -> Any:
        return pickle.loads(path.read_bytes())

    return Format("scikit-learn tied GaussianMixture, pickle", ".pickle", RUNS_CODE, save, load_detector)
