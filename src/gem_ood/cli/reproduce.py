"""`gem-ood reproduce`: the paper's tables from its data sets and weights, or from stored features."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from gem_ood.cli.comparison_output import FORMATS, Format, about_left_out
from gem_ood.cli.completing import complete_methods
from gem_ood.cli.console import print_json, print_text
from gem_ood.cli.options import (
    METHODS_PANEL,
    ROWS_PANEL,
    Json,
    Seed,
    check_out,
    listed,
    named_files,
    naming,
    out_option,
)
from gem_ood.cli.voice import detail, note, step, tell, watching

if TYPE_CHECKING:
    from gem_ood.experiments import Experiment

__all__ = ["DataFolder", "Device", "Download", "reproduce"]

#: What is taken unless something else is asked for.
LIMIT, DEVICE, BATCH_SIZE = 10_000, "auto", 200

#: The sections of the options about drawing, and about where the work is done.
PROTOCOL_PANEL, WORK_PANEL = "Protocol", "Work"

DataFolder = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        rich_help_panel=ROWS_PANEL,
        help="The folder of the data sets, in any usual layout. Default: gem-ood's own in the user's cache.",
    ),
]
Download = Annotated[
    bool,
    typer.Option(
        "--download",
        rich_help_panel=ROWS_PANEL,
        help="Fetch what is missing into --data; nothing else uses the network.",
    ),
]
Device = Annotated[
    str,
    typer.Option(metavar="auto|cpu|cuda", rich_help_panel=WORK_PANEL, help="auto: a GPU where there is one."),
]
Weights = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        rich_help_panel=METHODS_PANEL,
        help="Weights of a WideResNet or a CIFAR ResNet, .pt or .safetensors. Default: the published WideResNet-40-2 "
        "in --data.",
    ),
]
Sets = Annotated[
    str | None,
    typer.Option(
        metavar="NAME[,NAME...]",
        rich_help_panel=ROWS_PANEL,
        help="Which of textures, svhn, places365, lsun-c, lsun-r, isun; none for none of them. Default: all six.",
    ),
]
OtherOod = Annotated[
    list[str] | None,
    typer.Option(
        "--ood",
        metavar="[NAME=]DIR",
        rich_help_panel=ROWS_PANEL,
        help="Another out-of-distribution set, a folder or an archive of pictures, and its name; repeatable.",
    ),
]
Stored = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        rich_help_panel=ROWS_PANEL,
        help="Stored features in place of pictures and network: a folder with files train, test, ood_NAME and head.",
    ),
]
Methods = Annotated[
    str | None,
    typer.Option(
        metavar="all|NAME[,NAME...]",
        rich_help_panel=METHODS_PANEL,
        help="Methods to compare; all: the whole catalogue. Default: the paper's five.",
        autocompletion=complete_methods,
    ),
]
OdinNoise = Annotated[
    float, typer.Option(metavar="STEP", rich_help_panel=METHODS_PANEL, help="ODIN's step in units of the pixels.")
]
DrawCount = Annotated[
    int | None,
    typer.Option(
        metavar="N", rich_help_panel=PROTOCOL_PANEL, help="Random draws of each out-of-distribution set. Default: 10."
    ),
]
WholeSets = Annotated[
    bool,
    typer.Option("--whole-sets", rich_help_panel=PROTOCOL_PANEL, help="Take every set whole, once, without draws."),
]
Limit = Annotated[
    int,
    typer.Option(
        metavar="N",
        rich_help_panel=PROTOCOL_PANEL,
        help="Most pictures of Places365 and of each --ood of another name; 0: all.",
    ),
]
BatchSize = Annotated[int, typer.Option(metavar="N", rich_help_panel=WORK_PANEL, help="Pictures in one pass.")]
Cache = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        rich_help_panel=WORK_PANEL,
        help="Where features are kept for the next run. Default: features in gem-ood's folder of the user's cache.",
    ),
]
NoCache = Annotated[bool, typer.Option("--no-cache", rich_help_panel=WORK_PANEL, help="Keep no features.")]
AsFormat = Annotated[
    Format | None,
    typer.Option("--format", rich_help_panel="Table", help="text unless given, or what the suffix of --out says."),
]
Out = Annotated[Path | None, out_option(f"Write the tables to this file: {', '.join(FORMATS)}.")]


def reproduce(
    in_distribution: Annotated[
        Literal["cifar10", "cifar100"], typer.Argument(metavar="SET", help="cifar10 or cifar100.")
    ],
    *,
    data: DataFolder = None,
    weights: Weights = None,
    download: Download = False,
    sets: Sets = None,
    ood: OtherOod = None,
    stored: Stored = None,
    methods: Methods = None,
    odin_noise: OdinNoise = 0.0,
    draws: DrawCount = None,
    whole_sets: WholeSets = False,
    limit: Limit = LIMIT,
    seed: Seed = 0,
    device: Device = DEVICE,
    batch_size: BatchSize = BATCH_SIZE,
    cache: Cache = None,
    no_cache: NoCache = False,
    as_format: AsFormat = None,
    out: Out = None,
    json: Json = False,
) -> None:
    r"""Regenerate the paper's tables beside its own numbers, with a verdict on each that was drawn several times.

    Examples:
        gem-ood reproduce cifar10 --download
        gem-ood reproduce cifar100 --data data --weights wrn.pt \
            --sets svhn,textures --ood noise=pictures --out tables.md
        gem-ood reproduce cifar10 --stored features --whole-sets
    """
    from gem_ood.errors import InputError
    from gem_ood.experiments import PAPER_METHODS, PAPER_SETS, Protocol

    _check_output(as_format, out, json)
    if stored is not None:
        _refuse_beside_stored(
            {"--data": data, "--weights": weights, "--sets": sets, "--ood": ood or None, "--cache": cache}
            | {"--download": download or None, "--no-cache": no_cache or None, "--odin-noise": odin_noise or None}
            | {"--limit": limit if limit != LIMIT else None, "--device": device if device != DEVICE else None}
            | {"--batch-size": batch_size if batch_size != BATCH_SIZE else None}
        )
    if cache is not None and no_cache:
        raise InputError("--cache and --no-cache contradict each other; pass one of them")
    if draws is not None and whole_sets:
        raise InputError("--draws and --whole-sets contradict each other; pass one of them")
    protocol = Protocol.whole(seed=seed) if whole_sets else Protocol(n_draws=10 if draws is None else draws, seed=seed)
    chosen: Any = "all" if methods == "all" else listed(methods) or PAPER_METHODS
    with watching("bytes") as downloads, watching("images") as progress:
        work: dict[str, Any] = {"methods": chosen, "protocol": protocol, "on_rows": progress.watch_each()}
        work["on_method"] = lambda method, place, total: detail(f"fitting {method} ({place}/{total})")
        if stored is not None:
            from gem_ood.experiments.stored import reproduce_features

            with step("measuring"):
                experiment = reproduce_features(in_distribution, stored, **work)
        else:
            from gem_ood.experiments.reproduction import reproduce as compute

            with step("measuring"):
                experiment = compute(
                    in_distribution,
                    data=data,
                    weights=weights,
                    download=download,
                    sets=PAPER_SETS if sets is None else () if sets == "none" else listed(sets) or (),
                    ood=named_files(ood or [], what="DIR", example="noise=pictures"),
                    limit=limit,
                    odin_noise=odin_noise,
                    device=device,
                    batch_size=batch_size,
                    cache=None if no_cache else cache or _default_cache(),
                    on_bytes=downloads.watch_each(),
                    **work,
                )
    for name, source in experiment.sources.items():
        detail(f"{name}: {source}")
    _show(experiment, as_format, out, json)


def _default_cache() -> Path | None:
    """Return where features are kept unless told otherwise; nowhere, and that is said, if it cannot be written."""
    from gem_ood.errors import InputError
    from gem_ood.experiments import FeatureCache
    from gem_ood.experiments.obtaining import default_cache

    folder = default_cache()
    try:
        return None if folder is None else FeatureCache(folder).folder
    except InputError as error:
        note(f"no features are kept: {error}")
        return None


def _refuse_beside_stored(given: Mapping[str, Any]) -> None:
    from gem_ood.errors import InputError

    for option, value in given.items():
        if value is not None:
            raise InputError(f"{option} is for pictures, but --stored has their place; pass one of the two")


def _check_output(as_format: Format | None, out: Path | None, json: bool) -> None:
    from gem_ood.errors import InputError

    if json and as_format is not None and out is None:
        raise InputError("--json and --format contradict each other; pass one of them, or --out for a file")
    if out is not None:
        check_out(out, tuple(FORMATS))


def _show(experiment: "Experiment", as_format: Format | None, out: Path | None, json: bool) -> None:
    form = as_format or (FORMATS.get(out.suffix.lower(), "text") if out is not None else "text")
    if out is not None:
        from gem_ood.storage import atomic_path

        with naming(out), atomic_path(out) as temporary:
            temporary.write_text(_rendered(experiment, form), encoding="utf-8", newline="")
    if json:
        print_json(experiment.as_dict() | {"out": out})
        return
    print_text(_rendered(experiment, form if out is None else "text").removesuffix("\n"))
    if out is not None:
        tell(f"Tables: {out}")
    for line in about_left_out(experiment.left_out, has_options=False):
        note(line)


def _rendered(experiment: "Experiment", form: Format) -> str:
    if form == "text":
        return experiment.to_text() + "\n"
    write = {
        "markdown": experiment.to_markdown,
        "latex": experiment.to_latex,
        "csv": experiment.to_csv,
        "json": experiment.to_json,
    }[form]
    return write()
