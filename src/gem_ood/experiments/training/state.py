"""The state of a training: a network with its optimiser, which one step changes and a checkpoint holds whole."""

from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from gem_ood.errors import FileFormatError, InputError
from gem_ood.experiments.networks.pixels import normalized
from gem_ood.experiments.networks.wide_resnet import WideResNet
from gem_ood.experiments.training.augmentation import drawing_seed
from gem_ood.experiments.training.checkpoints import Checkpoint
from gem_ood.experiments.training.recipe import EpochResult, TrainingOptions, learning_rate

__all__ = ["TrainingState"]


class TrainingState:
    """Between two steps it is whole: what follows depends on it, the recipe and the data alone.

    Args:
        options: The recipe, with a device and a number of classes.
        n_images: How many training images there are.
    """

    def __init__(self, options: TrainingOptions, n_images: int) -> None:
        self.options, self.n_images = options, n_images
        self.device = torch.device(options.device)
        self.n_batches = -(-n_images // options.batch_size)
        self.n_steps = options.epochs * self.n_batches
        self.step, self.seconds, self.is_whole = 0, 0.0, True
        self.history: list[EpochResult] = []
        with self._randomness("weights", 0), torch.device("cpu"):
            network = WideResNet(
                options.depth, options.width, n_classes=options.n_classes or 1, dropout=options.dropout
            )
        self.network = network.to(self.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.optimizer = torch.optim.SGD(
            self.network.parameters(),
            lr=options.learning_rate,
            momentum=options.momentum,
            weight_decay=options.weight_decay,
            nesterov=options.nesterov and options.momentum > 0.0,
        )
        self.precision = reduced_precision(self.device) if options.mixed_precision else None
        self.scaler = torch.amp.GradScaler(self.device.type) if self.precision == torch.float16 else None
        # Of each step of the epoch: read when they are told, so that a GPU need not be waited for at every step.
        self.losses = torch.zeros(self.n_batches, device=self.device)
        self.hits = torch.zeros(self.n_batches, dtype=torch.int64, device=self.device)

    @property
    def machine(self) -> dict[str, Any]:
        """What the last bits of the result depend on beside the recipe and the data."""
        is_cpu = self.device.type == "cpu"
        processor = torch.backends.cpu.get_cpu_capability() if is_cpu else torch.cuda.get_device_name(self.device)
        precision = str(self.precision or torch.float32).removeprefix("torch.")
        threads = torch.get_num_threads()
        return {"PyTorch": torch.__version__, "processor": processor, "precision": precision, "threads": threads}

    @property
    def n_images_seen(self) -> int:
        """How many images the epoch under way has seen."""
        n_steps = self.step - len(self.history) * self.n_batches
        return min(n_steps * self.options.batch_size, self.n_images)

    def take_step(self, images: NDArray[np.uint8], labels: NDArray[np.int64]) -> None:
        """Learn from one batch."""
        try:
            self._learn(images, labels)
        except torch.OutOfMemoryError as error:
            raise InputError(
                f"{self.device} has too little memory for steps of {len(images)} images; pass a lower batch_size "
                f"(--batch-size) or another device"
            ) from error

    def _learn(self, images: NDArray[np.uint8], labels: NDArray[np.int64]) -> None:
        self.is_whole = False
        place = self.step % self.n_batches
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(self.options, self.step, self.n_steps)
        inputs, classes = self._inputs(images), torch.from_numpy(labels).to(self.device)
        self.network.train()
        with self._randomness("dropout", self.step), self._autocast():
            logits = self.network(inputs)
            loss = functional.cross_entropy(logits, classes)
        self.optimizer.zero_grad()
        if self.scaler is None:
            loss.backward()  # type: ignore[no-untyped-call]
            self.optimizer.step()
        else:
            self.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
            self.scaler.step(self.optimizer)
            self.scaler.update()
        self.losses[place] = loss.detach()
        self.hits[place] = (logits.detach().argmax(dim=1) == classes).sum()
        self.step += 1
        self.is_whole = True

    def count_right(self, images: NDArray[np.uint8], labels: NDArray[np.int64]) -> int:
        """Return how many images the network classifies right."""
        self.network.eval()
        with torch.inference_mode(), self._autocast():
            found = self.network(self._inputs(images)).argmax(dim=1).cpu().numpy()
        return int((found == labels).sum())

    def running(self) -> tuple[float, float]:
        """Return the mean loss and the accuracy of the images that the epoch under way has seen."""
        n_done = self.step - len(self.history) * self.n_batches
        sizes = np.full(n_done, self.options.batch_size)
        sizes[-1] = self.n_images_seen - sizes[:-1].sum()
        losses = self.losses[:n_done].double().cpu().numpy()
        return float(losses @ sizes / sizes.sum()), int(self.hits[:n_done].sum()) / int(sizes.sum())

    def first_step_astray(self) -> int | None:
        """Return the first step of the epoch, counted from 1 in all, whose loss is not finite; None if all are."""
        start = len(self.history) * self.n_batches
        places = (~self.losses[: self.step - start].isfinite()).nonzero()
        return start + int(places[0]) + 1 if len(places) else None

    def end_epoch(self, epoch: EpochResult) -> None:
        """Take down what came of the epoch, and get ready for the next."""
        self.history.append(epoch)
        self.seconds = 0.0

    def as_checkpoint(self) -> Checkpoint:
        """Return all of it, on the CPU."""
        tensors = {f"network.{name}": tensor for name, tensor in self.network.state_dict().items()}
        for name, parameter in self.network.named_parameters():
            momentum = self.optimizer.state[parameter].get("momentum_buffer")
            if momentum is not None:  # none before the first step
                tensors[f"momentum.{name}"] = momentum
        tensors |= {"losses": self.losses, "hits": self.hits}
        arrays = {name: tensor.detach().cpu().contiguous().numpy() for name, tensor in tensors.items()}
        scaler = None if self.scaler is None else self.scaler.state_dict()
        return Checkpoint(self.step, arrays, tuple(self.history), self.seconds, scaler)

    def restore(self, checkpoint: Checkpoint, *, name: str) -> None:
        """Become what a checkpoint of the same recipe holds; `name` is what errors call it."""
        expected = self.as_checkpoint().tensors
        shapes = {key: array.shape for key, array in expected.items() if not key.startswith("momentum.")}
        # Files keep a single number as an array of one.
        arrays = {
            key: array.reshape(()) if shapes.get(key) == () and array.size == 1 else array
            for key, array in checkpoint.tensors.items()
        }
        parameters = dict(self.network.named_parameters())
        if any(key.startswith("momentum.") for key in arrays):
            shapes |= {f"momentum.{key}": tuple(parameter.shape) for key, parameter in parameters.items()}
        n_complete, n_history = checkpoint.step // self.n_batches, len(checkpoint.history)
        is_possible = checkpoint.step <= self.n_steps and n_history <= n_complete <= n_history + 1
        if {key: array.shape for key, array in arrays.items()} != shapes or not is_possible:
            raise FileFormatError(
                f"the checkpoint {name} does not fit the network or the steps that it names; put back a copy of it, or "
                f"start over with restart=True (--restart)"
            )
        tensors = {key: torch.from_numpy(array) for key, array in arrays.items()}
        self.network.load_state_dict({key: tensors[f"network.{key}"] for key in self.network.state_dict()})
        for key, parameter in parameters.items():
            if f"momentum.{key}" in tensors:
                momentum = torch.empty_like(parameter).copy_(tensors[f"momentum.{key}"])
                self.optimizer.state[parameter]["momentum_buffer"] = momentum.detach()
        self.losses.copy_(tensors["losses"])
        self.hits.copy_(tensors["hits"])
        if self.scaler is not None and checkpoint.scaler is not None:
            self.scaler.load_state_dict(dict(checkpoint.scaler))
        self.step, self.seconds, self.history = checkpoint.step, checkpoint.seconds, list(checkpoint.history)

    def _inputs(self, images: NDArray[np.uint8]) -> Tensor:
        """Return bytes (n, height, width, 3) as the network's input, normalised where the network is."""
        network = self.network
        return normalized(images, mean=network.pixel_mean, std=network.pixel_std, device=self.device)

    def _autocast(self) -> AbstractContextManager[Any]:
        precision = self.precision or torch.bfloat16
        return torch.autocast(self.device.type, dtype=precision, enabled=self.precision is not None)

    def _randomness(self, purpose: str, number: int) -> AbstractContextManager[Any]:
        return _Seeded(
            self.device, int(drawing_seed(self.options.seed, purpose, number).generate_state(1, np.uint64)[0])
        )


class _Seeded:
    """Random numbers of one seed, after which the caller's go on as if none had been drawn."""

    def __init__(self, device: torch.device, seed: int) -> None:
        devices = [] if device.type == "cpu" else [device]
        self._fork, self._seed = torch.random.fork_rng(devices=devices), seed

    def __enter__(self) -> None:
        self._fork.__enter__()
        torch.manual_seed(self._seed)

    def __exit__(self, *error: Any) -> None:
        self._fork.__exit__(*error)


def reduced_precision(device: torch.device) -> torch.dtype | None:
    """Return the precision in which a GPU multiplies fastest, or None for a CPU, which keeps to float32."""
    if device.type != "cuda":
        return None
    # Numbers of bfloat16 reach as far as those of float32, so that no gradient needs scaling.
    return torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else torch.float16
