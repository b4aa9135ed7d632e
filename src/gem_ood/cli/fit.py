"""`gem-ood fit`: a detector from a file of in-distribution features."""

import math
from inspect import Parameter
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_origin

import typer

from gem_ood.cli.completing import complete_covariance, complete_method
from gem_ood.cli.console import print_json
from gem_ood.cli.engines import Address, EngineName, labels_seen_by, opened_engine, seen_by
from gem_ood.cli.options import (
    METHODS_PANEL,
    ROWS_PANEL,
    Classes,
    Features,
    Groups,
    HeadPath,
    Json,
    Labels,
    Rows,
    check_out,
    naming,
    open_rows,
    out_option,
    read_classes,
    read_groups,
    read_head,
    refuse_other_head,
)
from gem_ood.cli.voice import detail, step, tell, watching

__all__ = ["fit"]


#: How many columns or classes are named; --json has all of them.
SHOWN_NAMES = 10

Out = Annotated[Path, out_option("Save the detector to this file: .safetensors.")]
Method = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        rich_help_panel=METHODS_PANEL,
        help="gem, mahalanobis, knn, vim, energy, recommended, ...; a wrong name lists them all.",
        autocompletion=complete_method,
    ),
]
Option = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=VALUE",
        rich_help_panel=METHODS_PANEL,
        help="Any option of the method, such as k=50: a number, true, false, none or text; repeatable.",
    ),
]
NoLabels = Annotated[
    bool, typer.Option("--no-labels", rich_help_panel=ROWS_PANEL, help="Ignore labels: all rows are one class.")
]
Priors = Annotated[
    Literal["uniform", "empirical"] | None,
    typer.Option(rich_help_panel=METHODS_PANEL, help="Class weights of gem; uniform unless given."),
]
Covariance = Annotated[
    str | None,
    typer.Option(
        metavar="POLICY",
        rich_help_panel=METHODS_PANEL,
        help="empirical, oas, ledoit-wolf, or a shrinkage between 0 and 1; empirical unless given.",
        autocompletion=complete_covariance,
    ),
]
Normalize = Annotated[
    bool, typer.Option("--normalize", rich_help_panel=METHODS_PANEL, help="Scale every row to unit length.")
]
Relative = Annotated[
    bool,
    typer.Option("--relative", rich_help_panel=METHODS_PANEL, help="Score relative to one Gaussian over all rows."),
]
Temperature = Annotated[
    float | None,
    typer.Option(metavar="T", rich_help_panel=METHODS_PANEL, help="Divide logits by it (msp, energy)."),
]


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
    classes: Classes = None,
    groups: Groups = None,
    temperature: Temperature = None,
    option: Option = None,
    engine: EngineName = "local",
    address: Address = None,
    json: Json = False,
) -> None:
    r"""Fit a detector to in-distribution rows and save it.

    Examples:
        gem-ood fit train.npz --out gem.safetensors
        gem-ood fit train.npz --out knn.safetensors --method knn --option k=5
        gem-ood fit train.npz --out energy.safetensors --method energy \
            --head head.npz
        gem-ood fit parts/ --out gem.safetensors --engine ray
    """
    from gem_ood.detectors.cataloguing import make_method
    from gem_ood.errors import InputError

    if labels is not None and no_labels:
        raise InputError("--labels and --no-labels contradict each other; pass one of them")
    options = _given(
        priors=priors,
        covariance=covariance,
        normalize=normalize or None,
        relative=relative or None,
        head=head,
        groups=groups,
        temperature=temperature,
    )
    options |= _by_name(option or [], method, options)
    detector = make_method(method, **options)
    _check_needs(detector, method)
    named = read_classes(classes, head)
    check_out(out, (".safetensors",), file, head, groups)
    rows = open_rows(seen_by(engine, file), features, labels_seen_by(engine, labels), with_labels=not no_labels)
    refuse_other_head(rows, head, options.get("head"))
    _check_number(named, detector, options.get("head"), rows)
    detail(f"detector {detector!r}")
    with opened_engine(engine, address) as worker, watching() as progress, step(f"fitting {method}"):
        worker.fit(detector, rows, progress.watch(rows.path.name, rows.n_rows), classes=named)
    with naming(out), step(f"writing {out}"):
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
    groups: Path | None,
    temperature: float | None,
) -> dict[str, Any]:
    """Return the detector's options that were given, so that it keeps its own defaults for the others."""
    from gem_ood.errors import InputError

    if temperature is not None and not 0.0 < temperature < math.inf:
        raise InputError(f"--temperature is {temperature:g}; pass a positive number, 1 for none")
    options = {
        "priors": priors,
        "covariance": None if covariance is None else _covariance(covariance),
        "normalize": normalize,
        "relative": relative,
        "head": read_head(head),
        "groups": read_groups(groups),
        "temperature": temperature,
    }
    return {name: value for name, value in options.items() if value is not None}


def _check_needs(detector: Any, method: str) -> None:
    from gem_ood.errors import InputError

    if getattr(detector, "needs_head", False) and detector.head is None:
        raise InputError(f"{method} needs --head; pass the classifier's last layer")
    if getattr(detector, "groups", ()) is None:
        raise InputError(f"{method} needs --groups; pass the group of each logit")


def _check_number(classes: Any, detector: Any, head: Any, rows: Any) -> None:
    """Raise if there is not one name for each logit."""
    from gem_ood.errors import InputError

    n_logits = head.n_classes if head is not None else rows.n_features if detector.reads_logits else None
    if classes is not None and n_logits is not None and len(classes) != n_logits:
        raise InputError(
            f"--classes has {len(classes)} names but there are {n_logits} logits; pass one name per logit, in their "
            f"order"
        )


def _by_name(texts: list[str], method: str, given: dict[str, Any]) -> dict[str, Any]:
    """Return the options of --option by name, their values read as the method takes them."""
    from gem_ood.detectors.cataloguing import method_options
    from gem_ood.errors import InputError

    options: dict[str, Any] = {}
    for text in texts:
        name, is_named, value = text.partition("=")
        if not (name and is_named and value):
            raise InputError(f"--option is {text!r} but must be NAME=VALUE, such as k=50")
        if name in options or name in given:
            raise InputError(f"the option {name!r} is given twice; pass it once")
        if name in ("head", "groups"):
            raise InputError(f"--option names {name!r}, which is a file; pass it with --{name}")
        allowed = method_options(method)
        if name not in allowed:
            names = ", ".join(sorted(allowed))
            raise InputError(f"--option names {name!r}, but {method} takes {names}; pass one of these")
        options[name] = _value(name, value, _kinds(allowed[name]))
    return options


#: What an option may be, and how an error calls it.
_KINDS = {
    "truth": "true or false",
    "whole": "a whole number",
    "number": "a number",
    "text": "text",
    "none": "none",
}

_TRUTHS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


def _kinds(option: Parameter) -> set[str]:
    """Return which of `_KINDS` an option may be, by its default and its type.

    >>> sorted(_kinds(Parameter("k", Parameter.KEYWORD_ONLY, default=5, annotation=int | None)))
    ['none', 'whole']
    """
    whole = get_origin(option.annotation) in (None, Literal)
    types = {type(option.default), *((option.annotation,) if whole else get_args(option.annotation))}
    kinds = {"truth": bool in types, "number": float in types, "none": NoneType in types}
    kinds["whole"] = int in types and float not in types
    kinds["text"] = str in types or any(get_origin(kind) is Literal for kind in types)
    return {kind for kind, is_one in kinds.items() if is_one}


def _value(name: str, text: str, kinds: set[str]) -> int | float | bool | str | None:
    """Return a truth, none, a number or the text itself, whichever the option may be.

    >>> _value("k", "50", {"whole"}), _value("normalize", "No", {"truth"}), _value("metric", "cosine", {"text"})
    (50, False, 'cosine')
    """
    from gem_ood.errors import InputError

    word = text.strip().lower()
    if "truth" in kinds and word in _TRUTHS:
        return _TRUTHS[word]
    if "none" in kinds and word == "none":
        return None
    number = _number(text)
    if number is not None and ("number" in kinds or ("whole" in kinds and isinstance(number, int))):
        return number
    if "text" in kinds:
        return text
    expected = " or ".join(words for kind, words in _KINDS.items() if kind in kinds)
    raise InputError(f"--option {name} is {text!r}, which {name} cannot be; pass {expected}")


def _number(text: str) -> int | float | None:
    for read in (int, float):
        try:
            number: int | float = read(text)
        except ValueError:
            continue
        return number if math.isfinite(number) else None
    return None


def _print(result: dict[str, Any]) -> None:
    out, names = result["detector"], result["features"]
    tell(f"Fitted {result['method']} to {result['n_rows']:,} rows of {result['n_features']} features: {out}")
    if names is not None:
        shown = ", ".join(names[:SHOWN_NAMES]) + (", ..." if len(names) > SHOWN_NAMES else "")
        tell(f"{len(names)} columns as features: {shown}")
    tell(_about_classes(result["classes"], result["has_labels"]))
    tell(f"Next, with rows that this fit has not seen: gem-ood calibrate {out} FILE")


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
