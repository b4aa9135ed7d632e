"""`gem-ood fit`: a detector from a file of in-distribution features."""

import math
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from gem_ood.cli.console import print_json, print_text
from gem_ood.cli.options import Features, Json, Labels, Rows, open_rows
from gem_ood.progress import RowProgress

__all__ = ["fit"]


#: How many columns or classes are named; --json has all of them.
SHOWN_NAMES = 10

Out = Annotated[Path, typer.Option(metavar="DETECTOR.safetensors", help="Where to save the detector.")]
Method = Annotated[
    str, typer.Option(metavar="NAME", help="gem, mahalanobis, knn, vim, energy, ...; a wrong name lists them all.")
]
Option = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=VALUE", help="Any option of the method, such as k=50: a number, true, false or text; repeatable."
    ),
]
NoLabels = Annotated[bool, typer.Option("--no-labels", help="Ignore labels: all rows are one class.")]
Priors = Annotated[
    Literal["uniform", "empirical"] | None, typer.Option(help="Class weights of gem; uniform unless given.")
]
Covariance = Annotated[
    str | None,
    typer.Option(
        metavar="POLICY", help="empirical, oas, ledoit-wolf, or a shrinkage between 0 and 1; empirical unless given."
    ),
]
Normalize = Annotated[bool, typer.Option("--normalize", help="Scale every row to unit length.")]
Relative = Annotated[bool, typer.Option("--relative", help="Score relative to one Gaussian over all rows.")]
HeadPath = Annotated[
    Path | None,
    typer.Option(
        metavar="HEAD.npz", help="The classifier's last layer ('weight', 'bias'), if the rows are not logits."
    ),
]
Temperature = Annotated[float | None, typer.Option(metavar="T", help="Divide logits by it (msp, energy).")]


def fit(
    file: Rows,
    *,
    out: Out,
    method: Method = "gem",
    features: Features = None,
    labels: Labels = None,
    no_labels: NoLabels = False,
    priors: Priors = None,
    covariance: Covariance = None,
    normalize: Normalize = False,
    relative: Relative = False,
    head: HeadPath = None,
    temperature: Temperature = None,
    option: Option = None,
    json: Json = False,
) -> None:
    """Fit a detector to in-distribution rows and save it.

    Example: gem-ood fit train.npz --out detector.safetensors
    """
    from gem_ood.detectors import make
    from gem_ood.errors import InputError
    from gem_ood.files import refuse_overwriting, refuse_unwritable

    if labels is not None and no_labels:
        raise InputError("--labels and --no-labels contradict each other; pass one of them")
    options = _given(
        priors=priors,
        covariance=covariance,
        normalize=normalize or None,
        relative=relative or None,
        head=head,
        temperature=temperature,
    )
    options |= _by_name(option or [], method, options)
    detector = make(method, **options)
    refuse_unwritable(out, (".safetensors",))
    refuse_overwriting(out, file, *([] if head is None else [head]))
    rows = open_rows(file, features, labels, with_labels=not no_labels)
    with RowProgress() as progress:
        detector.fit_batches(rows.watched(progress.watch(rows.path.name, rows.n_rows)))
    detector.save(out)
    result = {
        "detector": out,
        "method": method,
        "n_rows": progress.n_rows,
        "n_features": rows.n_features,
        "features": rows.feature_names,
        "left_out": rows.left_out,
        "classes": detector.classes_,
        "has_labels": rows.has_labels,
    }
    if json:
        print_json(result)
    else:
        _print(result)


def _given(
    *,
    priors: str | None,
    covariance: str | None,
    normalize: bool | None,
    relative: bool | None,
    head: Path | None,
    temperature: float | None,
) -> dict[str, Any]:
    """Return the detector's options that were given, so that it keeps its own defaults for the others."""
    from gem_ood.errors import InputError
    from gem_ood.files import read_head

    if temperature is not None and not 0.0 < temperature < math.inf:
        raise InputError(f"--temperature is {temperature:g}; pass a positive number, 1 for none")
    options = {
        "priors": priors,
        "covariance": None if covariance is None else _covariance(covariance),
        "normalize": normalize,
        "relative": relative,
        "head": None if head is None else read_head(head),
        "temperature": temperature,
    }
    return {name: value for name, value in options.items() if value is not None}


def _by_name(texts: list[str], method: str, given: dict[str, Any]) -> dict[str, Any]:
    """Return the options of --option by name, their values read as numbers or truths where they are such."""
    from gem_ood.detectors import make
    from gem_ood.errors import InputError

    options: dict[str, Any] = {}
    for text in texts:
        name, is_named, value = text.partition("=")
        if not (name and is_named and value):
            raise InputError(f"--option is {text!r} but must be NAME=VALUE, such as k=50")
        if name in options or name in given:
            raise InputError(f"the option {name!r} is given twice; pass it once")
        allowed = make(method).get_params(deep=False)
        if name not in allowed:
            raise InputError(f"--option names {name!r}, but {method} takes {', '.join(allowed)}; pass one of these")
        options[name] = _value(value)
    return options


def _value(text: str) -> int | float | bool | str:
    """Return a whole number, a number, a truth, or else the text itself.

    >>> _value("50"), _value("0.5"), _value("true"), _value("cosine")
    (50, 0.5, True, 'cosine')
    """
    for read in (int, float, {"true": True, "false": False}.__getitem__):
        try:
            return read(text)
        except (ValueError, KeyError):
            continue
    return text


def _print(result: dict[str, Any]) -> None:
    out, names = result["detector"], result["features"]
    print_text(f"Fitted {result['method']} to {result['n_rows']:,} rows of {result['n_features']} features: {out}")
    if names is not None:
        shown = ", ".join(names[:SHOWN_NAMES]) + (", ..." if len(names) > SHOWN_NAMES else "")
        print_text(f"{len(names)} columns as features: {shown}")
    print_text(_about_classes(result["classes"], result["has_labels"]))
    print_text(f"Next, with rows that this fit has not seen: gem-ood calibrate {out} FILE")


def _covariance(text: str) -> str | float:
    from gem_ood.errors import InputError

    if text in ("empirical", "oas", "ledoit-wolf"):
        return text
    try:
        share = float(text)
    except ValueError:
        share = -1.0
    if not 0.0 <= share <= 1.0:
        raise InputError(f"--covariance is {text!r}; pass empirical, oas, ledoit-wolf or a shrinkage between 0 and 1")
    return share


def _about_classes(classes: Any, has_labels: bool) -> str:
    names = ", ".join(str(name) for name in classes[:SHOWN_NAMES]) + (", ..." if len(classes) > SHOWN_NAMES else "")
    if has_labels:
        return f"{len(classes)} classes: {names}"
    if len(classes) == 1:
        return "No labels: all rows are one class. Name them with --labels if there are some."
    return f"{len(classes)} logits, named by their column: {names}"
