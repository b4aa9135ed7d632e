"""run: the paper's tables for any network and any sets, in one call."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from os import PathLike
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from gem_ood.comparison import fit_methods
from gem_ood.comparison.scoring import check_sets
from gem_ood.detectors import Detector, Head
from gem_ood.detectors.cataloguing import chosen_entries, entries, lacking
from gem_ood.errors import InputError, MissingExtraError
from gem_ood.experiments.extracted import Extracted, FeatureCache
from gem_ood.experiments.paper_numbers import ODIN_TEMPERATURE, PAPER_METHODS, PaperTable
from gem_ood.experiments.protocol import Protocol, Scores, measure_draws
from gem_ood.experiments.results import Experiment
from gem_ood.features import is_share
from gem_ood.progress import RowProgress

if TYPE_CHECKING:
    from torch import nn

    from gem_ood.experiments.extraction import Extractor, OnRows, Source
    from gem_ood.torch.batches import Unpack
    from gem_ood.torch.layers import Layer
    from gem_ood.torch.pooling import Pool

__all__ = ["check_choices", "run", "run_features"]

_UNLABELLED = "id_train has no labels, but class means need them; pass one per row, as (inputs, labels) or labels="

Methods = Sequence[str] | Literal["all"]
OnMethod = Callable[[str, int, int], None]

#: Told what is done, such as the reading of a set, how much of it, and of how much if that is known.
OnProgress = Callable[[str, int, int | None], None]


def run(
    model: "nn.Module",
    id_train: "Source",
    id_test: "Source",
    ood: "Mapping[str, Source]",
    *,
    methods: Methods = PAPER_METHODS,
    protocol: Protocol | None = None,
    layer: "Layer" = "auto",
    pool: "Pool" = "mean",
    pixel_mean: Sequence[float] | None = None,
    pixel_std: Sequence[float] | None = None,
    odin_noise: float = 0.0,
    batch_size: int = 200,
    cache: str | PathLike[str] | None = None,
    unpack: "Unpack | None" = None,
    name: str = "your network",
    paper: PaperTable | None = None,
    progress: bool = True,
    on_rows: "OnRows | None" = None,
    on_method: OnMethod | None = None,
) -> Experiment:
    """Return the paper's tables for a network: every method fitted to its training features, measured on every set.

    Each set passes through the network once; features and logits are held in memory. Sets may be an `ImageSet`, a
    PyTorch data set, or a loader that yields (inputs, labels).

    Args:
        model: Any classifier; it is run in evaluation mode on the device it is on, and not changed.
        id_train: What it was trained on, with labels, without augmentation: methods are fitted to it.
        id_test: In-distribution rows that it was not trained on; with labels, its error is measured (P53).
        ood: The out-of-distribution sets by name.
        methods: Names of the catalogue, or "all".
        protocol: How the sets are drawn; ten draws of a fifth of `id_test` unless given.
        layer: Where the features are, as `gem_ood.torch.OODModel`.
        pool: As `gem_ood.torch.OODModel`.
        pixel_mean: What is subtracted from the colours of an `ImageSet`, as a share of 255; the network's own
            `pixel_mean` unless given.
        pixel_std: What they are divided by.
        odin_noise: The size of ODIN's step: of an `ImageSet` as a share of 255, of others in units of the inputs; 0, as
            in the authors' runs, needs no second pass.
        batch_size: Of image sets and data sets.
        cache: A folder that keeps features, by the weights and the data they come from; a later run reads them there,
            if the network still gives the first of them. A loader is then read twice, once for what its inputs are, and
            one that shuffles never finds them again. Of one that can be read only once, and where `layer` or `pool` is
            a function, nothing is kept.
        unpack: From what loaders yield to (inputs, labels), where they yield something else.
        name: What the in-distribution set is called.
        paper: Printed numbers to compare with.
        progress: Show a bar on a terminal once the work has lasted two seconds.
        on_rows: Called with the name of a set, how many rows are done and how many there are, instead of the bar.
        on_method: Called before a method is fitted with its name, its place from 1 and how many there are.

    Example:
        >>> import torch
        >>> _ = torch.manual_seed(0)
        >>> model = torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
        >>> train, test = ([(torch.randn(n, 2), torch.arange(n) % 2)] for n in (400, 200))
        >>> result = run(model, train, test, {"far": [20.0 + torch.randn(100, 2)]}, methods=["msp", "gem"])
        >>> result.value("gem", "auroc"), result.n_drawn("far")
        (1.0, 40)
    """
    from gem_ood.extras import require_extra

    require_extra("torch", "torch", purpose="networks")
    from gem_ood.experiments.extraction import Extractor

    methods = check_choices(methods, protocol, odin_noise=odin_noise, paper=paper)
    _check_names(name, ood)
    with RowProgress(is_shown=progress and on_rows is None) as bar:
        extract = Extractor(
            model,
            layer=layer,
            pool=pool,
            pixel_mean=pixel_mean,
            pixel_std=pixel_std,
            batch_size=batch_size,
            cache=None if cache is None else FeatureCache(cache),
            unpack=unpack,
            on_rows=on_rows or bar.watch_each(),
        )
        is_stepping = odin_noise > 0.0 and "odin" in _chosen(methods)
        tests = {"": (id_test, f"{name} (test)"), **{key: (source, key) for key, source in ood.items()}}
        _check_sources(extract, (id_train, f"{name} (train)"), tests, is_stepping=is_stepping)
        train = extract(id_train, f"{name} (train)")
        if train.labels is None:
            raise InputError(_UNLABELLED)
        found = {key: extract(*inputs, with_labels=key == "") for key, inputs in tests.items()}
        ready: dict[str, dict[str, Scores]] = {}
        if is_stepping:
            ready["odin"] = {key: extract.odin(*inputs, noise=float(odin_noise)) for key, inputs in tests.items()}
    result = run_features(
        train,
        found[""],
        {key: rows for key, rows in found.items() if key},
        head=extract.head(found[""]),
        methods=methods,
        protocol=protocol,
        name=name,
        paper=paper,
        on_method=on_method,
        ready=ready,
    )
    stepped = [_about_odin(odin_noise)] if is_stepping else []
    return replace(result, notes=(*stepped, *result.notes, *extract.notes))


def run_features(
    id_train: Extracted,
    id_test: Extracted,
    ood: Mapping[str, Extracted],
    *,
    head: Head | None = None,
    methods: Methods = PAPER_METHODS,
    protocol: Protocol | None = None,
    name: str = "your network",
    paper: PaperTable | None = None,
    on_method: OnMethod | None = None,
    ready: Mapping[str, Mapping[str, Scores]] | None = None,
) -> Experiment:
    """Return the same tables from features that are there already; needs no PyTorch.

    Args:
        id_train: Features and labels that methods are fitted to.
        id_test: Features of in-distribution rows; with labels and logits or a head, the error is measured.
        ood: Features of the out-of-distribution sets by name.
        head: The classifier's last layer, for the methods that read logits; without it these read the logits of the
            sets, and methods that read both are left out.
        methods: Names of the catalogue, or "all".
        protocol: As `run`.
        name: As `run`.
        paper: As `run`.
        on_method: As `run`.
        ready: Scores that were computed elsewhere, by method, then by set ("" for the in-distribution one).

    Example:
        >>> rng = np.random.default_rng(0)
        >>> labels = np.arange(300) % 3
        >>> train, test = (Extracted(rng.normal(size=(300, 4)), labels=labels) for _ in range(2))
        >>> far = Extracted(9.0 + rng.normal(size=(50, 4)))
        >>> print(run_features(train, test, {"far": far}, methods=["gem"], name="blobs"))
        blobs in-distribution, mean over 1 out-of-distribution set
                FPR95 ↓    AUROC ↑    AUPR ↑
        method     here       here      here
        gem        0.00     100.00    100.00
        In percent, paper convention; 300 in-distribution test rows
        10 draws, seed 0; rows a draw: far 50 of 50
        Taken whole, once, as there are too few to draw from: far
    """
    methods = check_choices(methods, protocol, paper=paper)
    chosen, given = _chosen(methods), dict(ready or {})
    _check_names(name, ood)
    for key, found in {"id_train": id_train, "id_test": id_test, **ood}.items():
        if not isinstance(found, Extracted):
            raise InputError(f"{key} is a {type(found).__name__}; pass Extracted(features, logits, labels)")
    if id_train.labels is None:
        raise InputError(_UNLABELLED)
    _check_ready(given, {"": id_test, **ood})
    drawing = protocol or Protocol()
    rows = {key: drawing.rows(key, n_id=len(id_test), n_ood=len(found)) for key, found in ood.items()}
    fitted, left_out = _fitted(
        id_train, [method for method in chosen if method not in given], head, _is_all(methods), on_method
    )
    draws = {}
    for method in chosen:
        if method in given:
            scores: Mapping[str, Scores] = given[method]
        elif method in fitted:
            scores = {key: _scores(fitted[method], key or name, found) for key, found in {"": id_test, **ood}.items()}
        else:
            continue
        draws[method] = {key: measure_draws(scores[""], scores[key], rows[key], tpr=drawing.tpr) for key in ood}
    if not draws:
        # What was not given is known to whoever left it out; what is wrong with the rows may not be.
        method = next((method for method in left_out if lacking(method, head=head) is None), next(iter(left_out)))
        raise InputError(f"no method could be fitted; {method}: {left_out[method]}")
    if head is not None and id_test.logits is None:
        id_test = replace(id_test, logits=head.logits(id_test.features))
    return Experiment(
        name=name,
        draws=draws,
        n_id=len(id_test),
        n_ood={key: len(found) for key, found in ood.items()},
        protocol=drawing,
        id_error=id_test.error(),
        paper=paper,
        left_out=left_out,
        notes=(_about_odin(0.0),) if "odin" in fitted else (),
    )


def _fitted(
    train: Extracted, methods: list[str], head: Head | None, is_optional: bool, on_method: OnMethod | None
) -> tuple[dict[str, Callable[[Extracted], Scores]], dict[str, str]]:
    """Return the score of each method as a function of a set, and why others have none."""
    score: dict[str, Callable[[Extracted], Scores]] = {}
    left_out: dict[str, str] = {}
    for place, method in enumerate(methods, start=1):
        if on_method is not None:
            on_method(method, place, len(methods))
        # Without a head, methods that read nothing but logits take those that the network gave.
        reads_logits = lacking(method, head=head) is not None and lacking(method, logits=True) is None
        try:
            found = _logits(train) if reads_logits else train.features
            options: dict[str, Any] = {"logits": True} if reads_logits else {"head": head}
            detector = fit_methods(found, train.labels, methods=[method], **options).detectors[method]
        except (InputError, MissingExtraError) as error:
            reason = str(error).removeprefix(f"{method}: ")
            if not is_optional:
                raise type(error)(f"{method}: {reason}") from error
            left_out[method] = reason
        else:
            score[method] = _scorer(method, detector, reads_logits)
    return score, left_out


def _scores(score: Callable[[Extracted], Scores], name: str, found: Extracted) -> Scores:
    try:
        return score(found)
    except InputError as error:
        raise InputError(f"{name}: {error}") from error


def _scorer(method: str, detector: Detector, reads_logits: bool) -> Callable[[Extracted], Scores]:
    def score(found: Extracted) -> NDArray[np.float64]:
        try:
            return detector.score_samples(_logits(found) if reads_logits else found.features)
        except InputError as error:
            raise InputError(f"{method}: {error}") from error

    return score


def _logits(found: Extracted) -> NDArray[Any]:
    if found.logits is None:
        raise InputError("needs logits, which are not there; pass head, the classifier's last layer")
    return found.logits


def _is_all(methods: Methods | Iterable[str]) -> bool:
    return isinstance(methods, str) and methods == "all"


def _chosen(methods: Methods | Iterable[str]) -> tuple[str, ...]:
    return entries() if _is_all(methods) else chosen_entries(methods)


def check_choices(
    methods: Methods, protocol: Protocol | None, *, odin_noise: float = 0.0, paper: PaperTable | None = None
) -> Methods:
    """Return the methods, "all" or each by name; raise now, not after the long work, for a choice that is none."""
    if not isinstance(methods, Iterable):
        raise InputError(f"methods is a {type(methods).__name__}; pass names of the catalogue, or 'all'")
    settled: Methods = "all" if _is_all(methods) else chosen_entries(methods)
    for option, value, kind in (("protocol", protocol, Protocol), ("paper", paper, PaperTable)):
        if value is not None and not isinstance(value, kind):
            raise InputError(f"{option} is a {type(value).__name__}; pass a {kind.__name__}, or None")
    if not is_share(odin_noise) or odin_noise == 1.0:
        raise InputError(f"odin_noise must be a number from 0 to below 1 but is {odin_noise!r}; pass 0 or 0.0014, say")
    return settled


def _check_sources(
    extract: "Extractor", train: "tuple[Source, str]", tests: "Mapping[str, tuple[Source, str]]", *, is_stepping: bool
) -> None:
    """Raise before the first pass if a set is nothing that can be read, as often as it must be."""
    extract.check(*train)
    for inputs in tests.values():
        extract.check(*inputs, is_read_twice=is_stepping)
    if getattr(train[0], "labels", train[0]) is None:  # of images in memory, known before the pass
        raise InputError(_UNLABELLED)


def _check_names(name: str, ood: Mapping[str, Any]) -> None:
    check_sets(ood)
    if not ood:
        raise InputError("there is no out-of-distribution set; pass at least one, such as ood={'noise': loader}")
    if name in ood:
        raise InputError(f"the in-distribution set and another are both called {name!r}; rename one of them")


def _check_ready(ready: Mapping[str, Mapping[str, Scores]], sets: Mapping[str, Extracted]) -> None:
    """Raise unless every method that has its scores has one for each row of every set."""
    for method, scores in ready.items():
        for key, found in sets.items():
            if key not in scores or len(scores[key]) != len(found):
                came = f"{len(scores[key])} scores" if key in scores else "none"
                raise InputError(f"{method} must have {len(found)} scores of {key or 'id_test'!r} but has {came}")


def _about_odin(noise: float) -> str:
    return f"ODIN with temperature {ODIN_TEMPERATURE:g} and a step of {noise:g}"
