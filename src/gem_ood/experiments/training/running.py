"""Training a WideResNet by the paper's recipe, so that a kill at any moment costs a minute and changes no bit.

Everything random follows from the seed and the number of the epoch or step. A checkpoint therefore holds the state
between two steps and nothing else, and a training that goes on from it ends with the same weights: bit for bit on the
same machine with as many threads. GPUs are asked for deterministic algorithms; where one has none, the last digits may
differ from run to run.
"""

import math
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from gem_ood._version import __version__
from gem_ood.errors import InputError
from gem_ood.experiments.image_sets import ImageSet
from gem_ood.experiments.networks.devices import resolved_device
from gem_ood.experiments.networks.weights import weights_suffix, write_weights
from gem_ood.experiments.networks.wide_resnet import IMAGE_SIDES
from gem_ood.experiments.training.augmentation import augmented, epoch_order
from gem_ood.experiments.training.checkpoints import (
    alone,
    checkpoint_path,
    load_checkpoint,
    lower_rate,
    refuse_taken,
    remove_leftovers,
    save_checkpoint,
)
from gem_ood.experiments.training.recipe import EpochResult, Progress, TrainingOptions, TrainingResult, learning_rate
from gem_ood.experiments.training.state import TrainingState
from gem_ood.plain import plain
from gem_ood.storage import refuse_unwritable_place

__all__ = ["EpochResult", "Progress", "TrainingOptions", "TrainingResult", "check_output", "learning_rate", "train"]

#: How many test images are classified at once.
TEST_BATCH = 250

#: How often a GPU, which works ahead of the program, is made to wait for the numbers that are told.
GPU_REPORT_SECONDS = 0.2


def train(
    train_set: ImageSet,
    test_set: ImageSet | None,
    out: str | os.PathLike[str],
    *,
    options: TrainingOptions | None = None,
    checkpoint_seconds: float = 60.0,
    restart: bool = False,
    on_step: Callable[[Progress], None] | None = None,
    on_epoch: Callable[[EpochResult], None] | None = None,
) -> TrainingResult:
    """Train a WideResNet, write its weights to one file, and return what came of each epoch.

    A checkpoint beside the file (its name and ".checkpoint") is written every so many seconds, at the end of each epoch
    and where the training is interrupted. The same call goes on from it; it is removed once the weights are written.

    Args:
        train_set: Images with labels.
        test_set: Images with labels on which each epoch is tested, or None. Nothing is learned or chosen by them.
        out: The file of the weights: .safetensors, .pt or .pth.
        options: The recipe; the paper's unless given.
        checkpoint_seconds: How long to wait between two checkpoints within an epoch.
        restart: Whether to start over where there is a checkpoint or a file of weights already.
        on_step: Called with how far training is: after each step on a CPU, some times a second on a GPU.
        on_epoch: Called with what came of each epoch.

    >>> import tempfile
    >>> pixels = np.zeros((8, 32, 32, 3), dtype=np.uint8)
    >>> pixels[::2] = 255
    >>> images = ImageSet("black and white", pixels, labels=[1, 0] * 4)
    >>> recipe = TrainingOptions(depth=10, width=1, epochs=2, batch_size=4, device="cpu")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     result = train(images, None, Path(folder, "weights.safetensors"), options=recipe)
    >>> len(result.history), result.options.n_classes
    (2, 2)

    Raises:
        InputError: The sets or options do not fit each other, the file is there already, another training writes it,
            the checkpoint is of another training, a file cannot be written, or the loss is not finite any more.
        FileFormatError: The checkpoint is damaged.
    """
    target = Path(out)
    check_output(target, checkpoint_seconds=checkpoint_seconds)
    check_recipe(options)
    _refuse_no_set("train_set", train_set)
    if test_set is not None:
        _refuse_no_set("test_set", test_set)
    recipe = _resolved(options or TrainingOptions(), train_set, test_set)
    with alone(target), _deterministic(recipe.device):
        # Only now: a training that ended a moment ago has put its weights there and removed its checkpoint.
        refuse_taken(target, restart=restart)
        training = _Training(train_set, test_set, target, recipe, checkpoint_seconds)
        resumed_from = training.begin(restart=restart)
        training.run(on_step, on_epoch)
        training.finish()
    state = training.state
    n_parameters = sum(parameter.numel() for parameter in state.network.parameters())
    return TrainingResult(target, recipe, tuple(state.history), n_parameters, resumed_from)


def check_output(out: Path, *, checkpoint_seconds: float) -> None:
    """Raise now, rather than after long work, if weights or checkpoints cannot be written there or so often."""
    weights_suffix(out)
    for path in (out, checkpoint_path(out)):
        refuse_unwritable_place(path)
    if not isinstance(checkpoint_seconds, int | float) or not checkpoint_seconds >= 0.0:
        raise InputError(f"checkpoint_seconds is {checkpoint_seconds!r}; pass a number of at least 0")


def check_recipe(options: object) -> None:
    """Raise if this is no recipe."""
    if not isinstance(options, TrainingOptions | None):
        raise InputError(
            f"options is a {type(options).__name__}; pass TrainingOptions(epochs=..., ...) or leave it out"
        )


def _refuse_no_set(name: str, images: object) -> None:
    if not isinstance(images, ImageSet):
        raise InputError(
            f"{name} is a {type(images).__name__}; pass ImageSet(name, images, labels), the images of uint8 and shape "
            f"(n, height, width, 3)"
        )


class _Batch(NamedTuple):
    images: NDArray[np.uint8]
    labels: NDArray[np.int64]


class _Training:
    """One training: its data, its state and its files."""

    def __init__(
        self, train_set: ImageSet, test_set: ImageSet | None, out: Path, options: TrainingOptions, every: float
    ) -> None:
        self.train_set, self.test_set, self.out, self.options, self.every = train_set, test_set, out, options, every
        self.checkpoint = checkpoint_path(out)
        self.state = TrainingState(options, len(train_set))
        self.identity = {
            **{name: plain(value) for name, value in asdict(options).items()},
            "training images": train_set.digest,
            "test images": None if test_set is None else test_set.digest,
        }
        self._order: tuple[int, NDArray[np.int64]] | None = None
        self._saved_at = time.monotonic()

    def begin(self, *, restart: bool) -> int | None:
        """Take up the checkpoint, if there is one, and return its step."""
        remove_leftovers(self.checkpoint)
        remove_leftovers(self.out)
        if restart:
            self.checkpoint.unlink(missing_ok=True)
        if self.checkpoint.exists():
            found = load_checkpoint(self.checkpoint, identity=self.identity, machine=self.state.machine)
            self.state.restore(found, name=str(self.checkpoint))
            return found.step
        return None

    def run(self, on_step: Callable[[Progress], None] | None, on_epoch: Callable[[EpochResult], None] | None) -> None:
        """Take all steps that are left; where that is interrupted, leave a checkpoint of the last whole step."""
        # An interrupt is raised in the main thread, at any moment. Steps are taken in another one, so that none is
        # left half done; meanwhile the main thread makes the next batch ready.
        worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="training")
        try:
            while len(self.state.history) < self.options.epochs:
                self._take_steps(worker, on_step)
                self._end_epoch(worker, on_epoch)
        except BaseException as error:
            worker.shutdown(wait=True)
            # After an InputError, a file could not be written or the state is not worth it.
            if self.state.is_whole and not isinstance(error, InputError):
                self.save()
            raise
        finally:
            worker.shutdown(wait=True)

    def _take_steps(self, worker: ThreadPoolExecutor, on_step: Callable[[Progress], None] | None) -> None:
        """Take the steps that are left of an epoch."""
        state = self.state
        end = (len(state.history) + 1) * state.n_batches
        n_before, started, told_at = state.n_images_seen, time.perf_counter(), -math.inf
        upcoming = self._batch(min(state.step, end - 1))
        for step in range(state.step, end):
            begun = time.perf_counter()
            taken = worker.submit(state.take_step, *upcoming)
            if step + 1 < end:
                upcoming = self._batch(step + 1)
            taken.result()
            now = time.perf_counter()
            state.seconds += now - begun
            is_due = time.monotonic() - self._saved_at >= self.every
            if is_due or step + 1 == end or state.device.type == "cpu" or now - told_at > GPU_REPORT_SECONDS:
                told_at = now
                progress = self._progress((state.n_images_seen - n_before) / max(now - started, 1e-9))
                if on_step is not None:
                    on_step(progress)
            if is_due:
                self.save()

    def _end_epoch(self, worker: ThreadPoolExecutor, on_epoch: Callable[[EpochResult], None] | None) -> None:
        begun, state = time.perf_counter(), self.state
        tested = None
        if self.test_set is not None and self.test_set.labels is not None:
            images, labels = self.test_set.images, self.test_set.labels
            n_right = 0
            for start in range(0, len(labels), TEST_BATCH):
                rows = slice(start, start + TEST_BATCH)
                n_right += worker.submit(state.count_right, images[rows], labels[rows]).result()
            tested = n_right / len(labels)
        loss, accuracy = state.running()
        seconds = state.seconds + time.perf_counter() - begun
        rate = learning_rate(self.options, state.step - 1, state.n_steps)
        epoch = EpochResult(len(state.history) + 1, loss, accuracy, tested, rate, seconds)
        state.end_epoch(epoch)
        self.save()
        if on_epoch is not None:
            on_epoch(epoch)

    def _batch(self, step: int) -> _Batch:
        """Return the images and labels of a step, which its number alone decides."""
        options, labels = self.options, np.asarray(self.train_set.labels)
        epoch, place = divmod(step, self.state.n_batches)
        if self._order is None or self._order[0] != epoch:
            self._order = epoch, epoch_order(len(self.train_set), seed=options.seed, epoch=epoch)
        rows = self._order[1][place * options.batch_size : (place + 1) * options.batch_size]
        images = augmented(
            self.train_set.images[rows], padding=options.padding, flip=options.flip, seed=options.seed, step=step
        )
        return _Batch(images, labels[rows])

    def _progress(self, images_per_second: float) -> Progress:
        """Return how far training is; raise if its loss is not finite any more."""
        state = self.state
        loss, accuracy = state.running()
        astray = state.first_step_astray()
        if astray is not None:
            kept = f"the checkpoint before it is {self.checkpoint}; " if self.checkpoint.exists() else ""
            raise InputError(
                f"the loss of step {astray:,} of {state.n_steps:,} is not finite; {kept}{lower_rate(self.checkpoint)}"
            )
        return Progress(
            epoch=len(state.history) + 1,
            n_epochs=self.options.epochs,
            step=state.step,
            n_steps=state.n_steps,
            n_images=state.n_images_seen,
            n_epoch_images=len(self.train_set),
            loss=loss,
            accuracy=accuracy,
            learning_rate=learning_rate(self.options, state.step - 1, state.n_steps),
            images_per_second=images_per_second,
            test_accuracy=state.history[-1].test_accuracy if state.history else None,
        )

    def save(self) -> None:
        """Write the checkpoint."""
        save_checkpoint(self.checkpoint, self.state.as_checkpoint(), identity=self.identity, machine=self.state.machine)
        self._saved_at = time.monotonic()

    def finish(self) -> None:
        """Write the weights, and remove the checkpoint once they are on disk."""
        # Without times, so that the same training writes the same bytes.
        history = [
            {name: value for name, value in asdict(epoch).items() if name != "seconds"} for epoch in self.state.history
        ]
        about = {
            "network": "WideResNet",
            "training": self.identity,
            "training set": self.train_set.name,
            "epochs": history,
            "library": __version__,
        }
        write_weights(self.state.network, self.out, about=about)
        self.checkpoint.unlink(missing_ok=True)


def _resolved(options: TrainingOptions, train_set: ImageSet, test_set: ImageSet | None) -> TrainingOptions:
    """Return the recipe with its device and number of classes; raise if the sets do not fit it."""
    n_classes = options.n_classes or train_set.n_classes
    low, high = IMAGE_SIDES
    for images in (train_set, test_set):
        if images is None:
            continue
        if images.labels is None:
            raise InputError(f"{images.name!r} has no labels; pass images with the class of each")
        if images.n_classes > n_classes:
            raise InputError(
                f"{images.name!r} has a label {images.n_classes - 1} but the network has {n_classes} classes, counted "
                f"from 0; pass n_classes or other labels"
            )
        if not all(low <= side <= high for side in images.images.shape[1:3]):
            height, width = images.images.shape[1:3]
            raise InputError(
                f"{images.name!r} has images of {height}×{width} pixels but the network takes sides from {low} to "
                f"{high}; resize or crop them to 32×32"
            )
    return replace(options, n_classes=n_classes, device=resolved_device(options.device))


@contextmanager
def _deterministic(device: str) -> Iterator[None]:
    """Ask a GPU for algorithms that give the same bits again, where it has them; a CPU has no others here."""
    if device == "cpu":
        yield
        return
    cudnn = torch.backends.cudnn
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    cudnn_before = cudnn.deterministic, cudnn.benchmark
    # Without a workspace of its own for each stream, cuBLAS may add up in another order; read when it first starts.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True, warn_only=True)
    cudnn.deterministic, cudnn.benchmark = True, False
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
        cudnn.deterministic, cudnn.benchmark = cudnn_before
