"""`gem-ood train`: the paper's network on CIFAR, by the paper's recipe, from where it was stopped."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from gem_ood.cli.console import percent, print_json, print_text
from gem_ood.cli.options import Json, Seed, check_out, out_option
from gem_ood.cli.reproduce import WORK_PANEL, BatchSize, DataFolder, Device, Download
from gem_ood.cli.voice import detail, note, step, tell, watching

if TYPE_CHECKING:
    from gem_ood.experiments.image_sets import ImageSet
    from gem_ood.experiments.training.recipe import EpochResult, Progress, TrainingOptions, TrainingResult
    from gem_ood.progress import RowProgress

__all__ = ["train"]

#: The section of the options that make up the recipe.
RECIPE_PANEL = "Recipe"


def _recipe(text: str, metavar: str) -> Any:
    return typer.Option(metavar=metavar, rich_help_panel=RECIPE_PANEL, help=text)


def train(
    data_set: Annotated[Literal["cifar10", "cifar100"], typer.Argument(metavar="SET", help="cifar10 or cifar100.")],
    *,
    out: Annotated[Path, out_option("Write the weights to this file: .safetensors, .pt or .pth.")],
    data: DataFolder = None,
    download: Download = False,
    depth: Annotated[int, _recipe("Of the network: 6n + 4.", "N")] = 40,
    width: Annotated[int, _recipe("How many times as many channels as the narrow network.", "N")] = 2,
    dropout: Annotated[float, _recipe("The share of activations that is dropped within a block.", "SHARE")] = 0.3,
    epochs: Annotated[int, _recipe("How often every image is seen.", "N")] = 100,
    batch_size: BatchSize = 128,
    learning_rate: Annotated[float, _recipe("At the first step; it falls along half a cosine.", "RATE")] = 0.1,
    momentum: Annotated[float, _recipe("Nesterov's, of the descent; 0 for none.", "SHARE")] = 0.9,
    weight_decay: Annotated[float, _recipe("How strongly weights are drawn to zero.", "RATE")] = 5e-4,
    seed: Seed = 0,
    device: Device = "auto",
    checkpoint_every: Annotated[
        float,
        typer.Option(
            metavar="SECONDS",
            rich_help_panel=WORK_PANEL,
            help="How long to wait between two checkpoints within an epoch.",
        ),
    ] = 60.0,
    restart: Annotated[
        bool,
        typer.Option(
            "--restart",
            rich_help_panel=WORK_PANEL,
            help="Start over where there is a checkpoint or a file of weights already.",
        ),
    ] = False,
    json: Json = False,
) -> None:
    r"""Train a WideResNet on CIFAR-10 or CIFAR-100 by the paper's recipe, and test it after every epoch.

    A checkpoint is kept beside the weights until they are written. Stopped or killed at any moment, the same command
    goes on from it, and ends with the same weights as if it had never stopped.

    Examples:
        gem-ood train cifar10 --out wrn.safetensors --download
        gem-ood train cifar100 --data data --out wrn100.pt --device cuda
        gem-ood train cifar10 --data data --out small.safetensors \
            --depth 16 --width 1 --epochs 20
    """
    from gem_ood.extras import require_extra

    require_extra("torch", "torch", purpose="networks")
    from gem_ood.experiments import TrainingOptions
    from gem_ood.experiments.networks.weights import WEIGHT_SUFFIXES

    check_out(out, WEIGHT_SUFFIXES)
    options = TrainingOptions(
        depth=depth,
        width=width,
        dropout=dropout,
        epochs=epochs,
        batch_size=batch_size,
        learning_rate=learning_rate,
        momentum=momentum,
        weight_decay=weight_decay,
        seed=seed,
        device=device,
    )
    teller = _Teller(is_told=not json)
    with watching("bytes") as downloads, watching("images") as reading:

        def on_begin(*begun: Any) -> None:
            downloads.close()
            reading.close()
            teller.on_begin(*begun)

        result = _trained(
            data_set,
            out,
            teller,
            data=data,
            download=download,
            options=options,
            checkpoint_seconds=checkpoint_every,
            restart=restart,
            on_bytes=downloads.watch_each(),
            on_rows=reading.watch_each(),
            on_begin=on_begin,
        )
    if json:
        print_json({"data_set": data_set} | result.as_dict())
    else:
        _print(result)


def _trained(data_set: str, out: Path, teller: "_Teller", *, restart: bool, **work: Any) -> "TrainingResult":
    """Train, and say where an interrupted training goes on."""
    from gem_ood.experiments import train_on
    from gem_ood.experiments.training.checkpoints import checkpoint_path

    try:
        with step("training"):
            return train_on(data_set, out, restart=restart, on_step=teller.on_step, on_epoch=teller.on_epoch, **work)
    except (KeyboardInterrupt, SystemExit):
        teller.close()
        checkpoint = checkpoint_path(out)
        if checkpoint.exists():
            without = " without --restart" if restart else ""
            note(f"training stopped; the same command{without} goes on from {checkpoint}")
        raise
    finally:
        teller.close()


class _Teller:
    """Says how training goes: a bar with the live accuracy during an epoch, and one line after it."""

    def __init__(self, *, is_told: bool) -> None:
        self._is_told = is_told
        self._bar: RowProgress | None = None
        self._watch: Callable[[int, int, str], None] | None = None
        self._title, self._n_epochs = "", 0

    def on_begin(self, train_set: "ImageSet", test_set: "ImageSet", options: "TrainingOptions") -> None:
        for images in (train_set, test_set):
            detail(f"{len(images):,} images of {images.source}")
        self._title = (
            f"WideResNet-{options.depth}-{options.width} on {len(train_set):,} images of {train_set.name}, "
            f"epochs {options.epochs}, seed {options.seed}, {options.device}"
        )

    def on_step(self, progress: "Progress") -> None:
        if not self._n_epochs:  # what is refused before the first step is refused without a word before
            self._tell(self._title)
            if progress.step > 1:
                self._tell(f"Going on after step {progress.step - 1:,} of {progress.n_steps:,}")
        self._n_epochs = progress.n_epochs
        if self._bar is None or self._watch is None:
            self._bar = watching("images")
            self._watch = self._bar.watch_named()
        shown = f"{progress.epoch}/{progress.n_epochs} loss {progress.loss:.2f} acc {100 * progress.accuracy:.1f}"
        if progress.test_accuracy is not None:
            shown += f" test {100 * progress.test_accuracy:.1f}"
        self._watch(progress.n_images, progress.n_epoch_images, shown)

    def on_epoch(self, epoch: "EpochResult") -> None:
        self.close()  # a line would break through the bar
        self._tell(
            f"epoch {epoch.epoch}/{self._n_epochs}  loss {epoch.loss:.4f}  train {percent(epoch.accuracy)} %  "
            f"test {percent(epoch.test_accuracy)} %  {epoch.seconds:.1f} s"
        )

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()
        self._bar = self._watch = None

    def _tell(self, text: str) -> None:
        if self._is_told:
            tell(text)


def _print(result: "TrainingResult") -> None:
    print_text(f"Test accuracy: {percent(result.test_accuracy)} %")
    tell(f"Weights: {result.path}, {result.n_parameters:,} parameters")
