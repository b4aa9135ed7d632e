"""What a library costs before it does anything: seconds to import, and bytes on disk with all that it requires."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from sections import Section, Table
from timing import SLOW_ROUNDS, Measurement, import_seconds, interleave, paired_ratio

__all__ = ["imports", "install"]

OURS, BASE = "from gem_ood import GEM", "import sklearn.base, scipy.linalg"
MOST_OF_BASE = 1.2
# Kept from run to run: to compile all of SciPy takes longer than all the imports.
BYTECODE = Path(__file__).parents[1] / "build" / "bytecode"
# torchvision and faiss are replaced by stand-ins, in favour of those that would import them.
WITH_STAND_INS = f"import sys; sys.path.append({str(Path(__file__).parent / 'peers')!r})"
PEER_IMPORTS = {
    "pytorch-ood 0.4.0": "from with_torch import load_torch; load_torch(); import pytorch_ood.detector",
    "oodeel 0.4.0": "from with_torch import load_torch; load_torch(); import oodeel.methods",
    "scikit-learn mixture": "from sklearn.mixture import GaussianMixture",
    "PyOD 3.6.7 GMM": "from pyod.models.gmm import GMM",
    "torchmetrics 1.9.0": "import torchmetrics.functional.classification",
}
# oodeel leaves the choice between PyTorch and TensorFlow to its user, and does not run without one of them.
UNSTATED_NEEDS = {"oodeel": ("torch",)}
LIBRARIES = ("gem-ood", "pytorch-ood", "oodeel", "scikit-learn", "pyod", "torchmetrics")


def imports(*, rounds: int, with_peers: bool) -> Section:
    """What importing a detector costs beyond the libraries it stands on, and what it costs elsewhere.

    `import gem_ood` alone loads its rooms when they are asked for and costs next to nothing.
    """
    samplers = {name: import_seconds(name, bytecode=BYTECODE) for name in (OURS, BASE)}
    for name, statement in PEER_IMPORTS.items() if with_peers else ():
        samplers[name] = import_seconds(statement, before=WITH_STAND_INS, most_samples=SLOW_ROUNDS)
    times = interleave(samplers, rounds=rounds)
    note = "FLATTERS US: pandas is installed, and scikit-learn loads it" if find_spec("pandas") else ""
    ratios = [paired_ratio(f"{OURS} / {BASE}", times[OURS], times[BASE], at_most=MOST_OF_BASE, note=note)]
    ratios += [paired_ratio(f"{name} / {OURS}", times[name], times[OURS]) for name in PEER_IMPORTS if name in times]
    measurements = [time.scaled(1e3, "ms") for time in times.values()]
    return Section("import", "Import in a fresh interpreter", ratios, measurements)


def install() -> Section:
    """Bytes on disk of each library, alone and with what it requires, as far as that is installed here."""
    installed = [name for name in LIBRARIES if _distribution(name)]
    sizes, rows = {}, []
    for name in installed:
        required, missing = _closure(name)
        sizes[name] = sum(_bytes(each) for each in required)
        words = [f"{len(required) - 1} packages"]
        words += [f"not installed here, so not counted: {', '.join(missing)}"] if missing else []
        rows.append((name, f"{_bytes(name) / 1e6:.1f} MB", f"{sizes[name] / 1e6:.0f} MB", "; ".join(words)))
    ratios = [
        Measurement(f"{name} / gem-ood", (sizes[name] / sizes["gem-ood"],), "x")
        for name in installed
        if name != "gem-ood"
    ]
    table = Table(("library", "alone", "with all that it requires", "which are"), rows)
    measurements = [Measurement(f"{name}, with all that it requires", (sizes[name] / 1e6,), "MB") for name in installed]
    title = "Install size, torch being its build for the CPU"
    return Section("install-size", title, ratios, measurements, table)


def _closure(name: str) -> tuple[list[str], list[str]]:
    """The package with all that it requires, and what of that is not installed."""
    found, missing, waiting = [], [], [canonicalize_name(name), *UNSTATED_NEEDS.get(name, ())]
    while waiting:
        package = waiting.pop()
        if package in found or package in missing:
            continue
        if _distribution(package) is None:
            missing.append(package)
            continue
        found.append(package)
        waiting += _required(package)
    return found, sorted(missing)


def _required(package: str) -> Iterator[str]:
    """What a package requires on this system, without extras."""
    for line in distribution(package).requires or ():
        requirement = Requirement(line)
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            yield canonicalize_name(requirement.name)


def _bytes(package: str) -> int:
    """Bytes of the files of a package, compiled ones left out: an installer need not write them."""
    if package == "gem-ood":  # installed from the source tree, its record lists a link alone
        folder = Path(find_spec("gem_ood").origin).parent
        paths = [path for path in folder.rglob("*") if path.is_file()]
    else:
        paths = [Path(file.locate()) for file in distribution(package).files or ()]
    return sum(path.stat().st_size for path in paths if path.suffix != ".pyc" and path.exists())


def _distribution(package: str) -> Distribution | None:
    try:
        return distribution(package)
    except PackageNotFoundError:
        return None
