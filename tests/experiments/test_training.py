"""Training: the recipe against a plain loop, augmentation against a loop over images, and what is told on the way."""

import math
import os
import threading
from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from made_images import TINY, coloured  # noqa: E402
from scipy.stats import chi2  # noqa: E402
from torch.nn import functional  # noqa: E402

from gem_ood.errors import InputError  # noqa: E402
from gem_ood.experiments.networks.wide_resnet import WideResNet  # noqa: E402
from gem_ood.experiments.training import running as training  # noqa: E402
from gem_ood.experiments.training import state as training_state  # noqa: E402
from gem_ood.experiments.training.augmentation import (  # noqa: E402
    augmented,
    drawing_seed,
    epoch_order,
    flipped_and_cropped,
)
from gem_ood.experiments.training.running import TrainingOptions, learning_rate, train  # noqa: E402


def test_the_defaults_are_the_papers_recipe():
    options = TrainingOptions()
    assert (options.depth, options.width, options.dropout) == (40, 2, 0.3)
    assert (options.epochs, options.batch_size, options.padding, options.flip) == (100, 128, 4, True)
    assert (options.learning_rate, options.final_learning_rate) == (0.1, 1e-6)
    assert (options.momentum, options.nesterov, options.weight_decay) == (0.9, True, 5e-4)


def test_learning_rates_follow_half_a_cosine_from_step_to_step():
    options, n_steps = TrainingOptions(learning_rate=0.2, final_learning_rate=0.01), 40
    rates = [learning_rate(options, step, n_steps) for step in range(n_steps)]
    expected = 0.01 + 0.19 * np.cos(np.linspace(0.0, np.pi / 2, n_steps, endpoint=False)) ** 2
    np.testing.assert_allclose(rates, expected, rtol=1e-12)
    # PyTorch's own schedule of the same name.
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([weight], lr=0.2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=n_steps, eta_min=0.01)
    for rate in rates:
        assert rate == pytest.approx(schedule.get_last_lr()[0], rel=1e-9)
        optimizer.step()
        schedule.step()


@pytest.mark.parametrize(("height", "width", "padding"), [(32, 32, 4), (29, 33, 3), (32, 32, 0)])
def test_flips_and_crops_equal_a_loop_over_images(height, width, padding):
    generator = np.random.default_rng(0)
    images = generator.integers(0, 256, size=(20, height, width, 3), dtype=np.uint8)
    is_mirrored = generator.random(20) < 0.5
    corners = generator.integers(0, 2 * padding + 1, size=(20, 2))
    found = flipped_and_cropped(images, is_mirrored=is_mirrored, corners=corners, padding=padding)
    for image, mirrored, (top, left), result in zip(images, is_mirrored, corners, found, strict=True):
        turned = image[:, ::-1] if mirrored else image
        framed = np.pad(turned, ((padding, padding), (padding, padding), (0, 0)))
        np.testing.assert_array_equal(result, framed[top : top + height, left : left + width])


def test_random_flips_and_shifts_are_all_met_equally_often():
    # One white pixel in the middle of the left half tells by its place how the image was moved and turned.
    images = np.zeros((8100, 32, 32, 3), dtype=np.uint8)
    images[:, 16, 10] = 255
    found = augmented(images, padding=4, flip=True, seed=1, step=0)
    _, rows, columns, _ = np.nonzero(found[..., :1])
    moved_right = np.where(columns < 16, columns - 10, columns - 21)
    counts = np.zeros((9, 9, 2))
    np.add.at(counts, (rows - 12, moved_right + 4, (columns >= 16).astype(int)), 1)
    # 162 cells of 50 images each; one seed in a million would fail.
    assert ((counts - 50) ** 2 / 50).sum() < chi2.isf(1e-6, 161)
    unmoved = augmented(images[:9], padding=0, flip=False, seed=1, step=0)
    np.testing.assert_array_equal(unmoved, images[:9])


def test_what_is_drawn_depends_on_the_seed_and_the_number_alone():
    images = coloured(30).images
    first = augmented(images, padding=4, flip=True, seed=3, step=5)
    np.testing.assert_array_equal(augmented(images, padding=4, flip=True, seed=3, step=5), first)
    for seed, step in ((4, 5), (3, 6)):
        assert (augmented(images, padding=4, flip=True, seed=seed, step=step) != first).any()
    order = epoch_order(1000, seed=3, epoch=2)
    np.testing.assert_array_equal(np.sort(order), np.arange(1000))
    np.testing.assert_array_equal(epoch_order(1000, seed=3, epoch=2), order)
    assert (epoch_order(1000, seed=3, epoch=3) != order).sum() > 900


def plain_loop(images, options):
    """The recipe as a loop of plain PyTorch over the same batches: the weights, and loss and accuracy by epoch."""
    drawn = drawing_seed(options.seed, "weights", 0).generate_state(1, np.uint64)
    torch.manual_seed(int(drawn[0]))
    network = WideResNet(options.depth, options.width, n_classes=images.n_classes, dropout=options.dropout)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4, nesterov=True)
    n_batches = math.ceil(len(images) / options.batch_size)
    n_steps, step, history = n_batches * options.epochs, 0, []
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: 1e-5 + (1.0 - 1e-5) * 0.5 * (1.0 + math.cos(math.pi * step / n_steps))
    )
    for epoch in range(options.epochs):
        order, losses, hits = epoch_order(len(images), seed=options.seed, epoch=epoch), [], []
        for place in range(n_batches):
            rows = order[place * options.batch_size : (place + 1) * options.batch_size]
            pixels = augmented(images.images[rows], padding=4, flip=True, seed=options.seed, step=step)
            inputs = torch.from_numpy(pixels.astype(np.float64).transpose(0, 3, 1, 2)) / 255.0
            mean, std = (torch.tensor(values)[:, None, None] for values in (network.pixel_mean, network.pixel_std))
            labels = torch.from_numpy(images.labels[rows])
            drawn = drawing_seed(options.seed, "dropout", step).generate_state(1, np.uint64)
            torch.manual_seed(int(drawn[0]))
            # Dropout draws along memory: the same units are dropped only where it lies in the same order.
            order_in_memory = torch.channels_last if options.dropout else torch.contiguous_format
            logits = network(((inputs - mean) / std).contiguous(memory_format=order_in_memory))
            loss = functional.cross_entropy(logits, labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            losses += [loss.item()] * len(rows)
            hits += (logits.argmax(dim=1) == labels).tolist()
            step += 1
        history.append((np.mean(losses), np.mean(hits)))
    return network, history


@pytest.fixture
def _double_precision():
    """New tensors are of float64, in which rounding cannot grow to a difference that shows."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.usefixtures("_double_precision")
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_weights_losses_and_accuracies_equal_those_of_a_plain_loop(dropout, tmp_path):
    images, test_images = coloured(30), coloured(40, seed=1)
    options = TrainingOptions(**TINY, dropout=dropout)
    state = torch.get_rng_state()
    result = train(images, test_images, tmp_path / "w.safetensors", options=options)
    assert torch.equal(torch.get_rng_state(), state)
    network, history = plain_loop(images, options)
    trained = WideResNet.load(tmp_path / "w.safetensors")
    for name, tensor in network.state_dict().items():
        torch.testing.assert_close(trained.state_dict()[name], tensor, rtol=1e-7, atol=1e-9)
    for epoch, (loss, accuracy) in zip(result.history, history, strict=True):
        assert epoch.loss == pytest.approx(loss, rel=1e-9)
        assert epoch.accuracy == pytest.approx(accuracy, abs=1e-12)
    pixels = torch.from_numpy(test_images.images.transpose(0, 3, 1, 2)) / 255.0
    mean, std = (torch.tensor(values)[:, None, None] for values in (trained.pixel_mean, trained.pixel_std))
    with torch.inference_mode():
        right = trained((pixels - mean) / std).argmax(dim=1).numpy() == test_images.labels
    assert result.test_accuracy == result.history[-1].test_accuracy == right.mean()
    assert result.n_parameters == sum(parameter.numel() for parameter in network.parameters())
    assert (result.resumed_from, result.options.n_classes, result.path) == (None, 3, tmp_path / "w.safetensors")
    assert [path.name for path in tmp_path.iterdir()] == ["w.safetensors"]


def test_separable_images_are_learned(tmp_path):
    options = TrainingOptions(**TINY | {"epochs": 6, "batch_size": 16}, n_classes=5)
    result = train(coloured(120, n_classes=4), coloured(80, n_classes=4, seed=1), tmp_path / "w.pt", options=options)
    assert result.test_accuracy > 0.9
    assert result.history[-1].loss < 0.5 * result.history[0].loss
    assert WideResNet.load(tmp_path / "w.pt").fc.out_features == 5


def test_every_step_tells_how_far_and_how_well(tmp_path):
    told, epochs, threads = [], [], set()
    images = coloured(30)

    def on_step(progress):
        told.append(progress)
        threads.add(threading.current_thread())

    options = TrainingOptions(**TINY)
    result = train(images, coloured(9), tmp_path / "w.pt", options=options, on_step=on_step, on_epoch=epochs.append)
    assert threads == {threading.current_thread()}
    assert [progress.step for progress in told] == list(range(1, 9))
    assert {(progress.n_steps, progress.n_epochs, progress.n_epoch_images) for progress in told} == {(8, 2, 30)}
    assert [(progress.epoch, progress.n_images) for progress in told] == [
        (epoch, n_images) for epoch in (1, 2) for n_images in (8, 16, 24, 30)
    ]
    rates = [learning_rate(options, step, 8) for step in range(8)]
    assert [progress.learning_rate for progress in told] == rates
    assert (told[3].loss, told[3].accuracy) == (epochs[0].loss, epochs[0].accuracy)
    assert [progress.test_accuracy for progress in told] == [None] * 4 + [epochs[0].test_accuracy] * 4
    assert all(progress.images_per_second > 0.0 for progress in told)
    assert tuple(epochs) == result.history
    assert [epoch.learning_rate for epoch in epochs] == [rates[3], rates[7]]
    document = result.as_dict()
    assert document["epochs"][1]["loss"] == epochs[1].loss
    assert document["weights"] == str(tmp_path / "w.pt")


def test_without_test_images_no_test_accuracy_is_told(tmp_path):
    result = train(coloured(8), None, tmp_path / "w.pt", options=TrainingOptions(**TINY | {"epochs": 1}))
    assert result.test_accuracy is None


def test_images_that_must_not_be_changed_are_not(tmp_path):
    images = coloured(16)
    before = images.images.copy()
    images.images.flags.writeable = False
    train(images, images, tmp_path / "w.pt", options=TrainingOptions(**TINY | {"epochs": 1}))
    np.testing.assert_array_equal(images.images, before)


@pytest.mark.parametrize("was_asked", [False, True])
def test_a_gpu_is_asked_for_the_same_bits_again_and_the_callers_settings_come_back(was_asked, monkeypatch):
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    cudnn = torch.backends.cudnn

    def settings():
        return torch.are_deterministic_algorithms_enabled(), cudnn.deterministic, cudnn.benchmark

    torch.use_deterministic_algorithms(was_asked)
    try:
        before = settings()
        with training._deterministic("cuda"):
            assert settings() == (True, True, False)
            assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
        assert settings() == before
        with training._deterministic("cpu"):
            assert settings() == before
    finally:
        torch.use_deterministic_algorithms(False)
        os.environ.pop("CUBLAS_WORKSPACE_CONFIG", None)


def test_another_seed_gives_other_weights_and_the_same_seed_the_same_bytes(tmp_path):
    options = TrainingOptions(**TINY | {"epochs": 1})
    for name, seed in (("a.pt", 0), ("b.pt", 0), ("c.pt", 1)):
        train(coloured(16), None, tmp_path / name, options=replace(options, seed=seed))
    first, again, other = ((tmp_path / name).read_bytes() for name in ("a.pt", "b.pt", "c.pt"))
    assert first == again
    assert first != other


def test_a_loss_that_is_not_finite_ends_training_with_the_step_and_a_remedy(tmp_path, monkeypatch):
    images = coloured(30)
    learn = training_state.TrainingState._learn

    def astray(self, *batch):
        if self.step == 5:
            self.network.fc.bias.data.fill_(torch.nan)
        learn(self, *batch)

    monkeypatch.setattr(training_state.TrainingState, "_learn", astray)
    kept = {}
    with pytest.raises(
        InputError, match=r"the loss of step 6 of 8 is not finite; the checkpoint before it is .*--restart"
    ):
        train(
            images,
            None,
            tmp_path / "w.pt",
            options=TrainingOptions(**TINY),
            on_epoch=lambda _: kept.update({path: path.read_bytes() for path in tmp_path.glob("[!.]*")}),
        )
    assert [path.name for path in kept] == ["w.pt.checkpoint"]
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == kept


@pytest.mark.parametrize("seconds", [1e9, 0.0])
def test_a_first_step_that_goes_astray_names_no_restart_where_nothing_is(seconds, tmp_path, monkeypatch):
    learn = training_state.TrainingState._learn

    def astray(self, *batch):
        learn(self, *batch)
        (self.losses if seconds else self.network.fc.bias.data).fill_(torch.nan)

    monkeypatch.setattr(training_state.TrainingState, "_learn", astray)
    options = {"options": TrainingOptions(**TINY), "checkpoint_seconds": seconds}
    with pytest.raises(InputError, match=r"start over with a lower learning_rate \(--learning-rate\)$"):
        train(coloured(30), None, tmp_path / "w.pt", **options)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "w.pt").write_bytes(b"older weights")
    with pytest.raises(InputError, match=r"\(--learning-rate\) and restart=True \(--restart\)$"):
        train(coloured(30), None, tmp_path / "w.pt", restart=True, **options)


def test_a_learning_rate_that_is_far_too_high_is_an_error_not_weights_of_nan(tmp_path):
    options = TrainingOptions(**TINY, learning_rate=1e30)
    with pytest.raises(InputError, match=r"(the loss of step|went astray by step) [1-8]\b.*start over with a lower"):
        train(coloured(30), None, tmp_path / "w.pt", options=options, checkpoint_seconds=0.0)
    assert not (tmp_path / "w.pt").exists()


@pytest.mark.parametrize("precision", [torch.bfloat16, torch.float16])
def test_mixed_precision_goes_on_after_an_interrupt_with_the_same_bytes(precision, tmp_path, monkeypatch):
    monkeypatch.setattr(training_state, "reduced_precision", lambda device: precision)
    images, options = coloured(16), TrainingOptions(**TINY)
    result = train(images, coloured(8, seed=1), tmp_path / "whole.pt", options=options)

    def stop(progress):
        if progress.step == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(images, coloured(8, seed=1), tmp_path / "w.pt", options=options, on_step=stop)
    train(images, coloured(8, seed=1), tmp_path / "w.pt", options=options)
    assert (tmp_path / "w.pt").read_bytes() == (tmp_path / "whole.pt").read_bytes()
    full = train(images, None, tmp_path / "full.pt", options=replace(options, mixed_precision=False))
    assert full.history[0].loss != result.history[0].loss
    assert full.history[0].loss == pytest.approx(result.history[0].loss, rel=0.05)


def test_too_little_memory_is_one_clear_error(tmp_path, monkeypatch):
    def no_memory(self, *batch):
        self.is_whole = False
        raise torch.OutOfMemoryError("no memory")

    monkeypatch.setattr(training_state.TrainingState, "_learn", no_memory)
    with pytest.raises(InputError, match="cpu has too little memory for steps of 8 images; pass a lower batch_size"):
        train(coloured(30), None, tmp_path / "w.pt", options=TrainingOptions(**TINY))
    assert list(tmp_path.iterdir()) == []


def test_plain_descent_without_momentum_is_a_recipe_too(tmp_path):
    options = TrainingOptions(**TINY | {"epochs": 1}, momentum=0.0, padding=0, flip=False)
    assert len(train(coloured(16), None, tmp_path / "w.pt", options=options, checkpoint_seconds=0.0).history) == 1


def test_a_rate_below_the_final_one_stays_as_it_is():
    slow = TrainingOptions(learning_rate=1e-7)
    assert [learning_rate(slow, step, 10) for step in (0, 5, 9)] == [1e-7] * 3
