"""Checkpoints: a training that was killed at any moment ends with the bytes of one that never was."""

import os
import signal
import subprocess
import sys
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from made_images import TINY, coloured  # noqa: E402

from gem_ood import storage  # noqa: E402
from gem_ood.errors import FileFormatError, InputError  # noqa: E402
from gem_ood.experiments.training import running as training  # noqa: E402
from gem_ood.experiments.training import state as training_state  # noqa: E402
from gem_ood.experiments.training.running import TrainingOptions, train  # noqa: E402

OPTIONS = TrainingOptions(**TINY)
N_STEPS = 8


@pytest.fixture(scope="module")
def images():
    return coloured(30)


@pytest.fixture(scope="module")
def held_out():
    return coloured(20, seed=1)


@pytest.fixture(scope="module")
def whole(images, held_out, tmp_path_factory):
    """What an unbroken training writes."""
    out = tmp_path_factory.mktemp("whole") / "w.safetensors"
    train(images, held_out, out, options=OPTIONS)
    return out.read_bytes()


def stopping_at(step, error=KeyboardInterrupt):
    def on_step(progress):
        if progress.step == step:
            raise error

    return on_step


def interrupted(images, held_out, out, *, at=5, **options):
    with pytest.raises(KeyboardInterrupt):
        train(images, held_out, out, options=OPTIONS, on_step=stopping_at(at), **options)


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, BrokenPipeError])
def test_a_training_stopped_after_every_step_ends_with_the_same_bytes(error, images, held_out, whole, tmp_path):
    out = tmp_path / "w.safetensors"
    for step in range(1, N_STEPS + 1):
        with pytest.raises(error):
            train(images, held_out, out, options=OPTIONS, on_step=stopping_at(step, error))
        assert [path.name for path in tmp_path.iterdir()] == ["w.safetensors.checkpoint"]
    result = train(images, held_out, out, options=OPTIONS)
    assert result.resumed_from == N_STEPS
    assert [epoch.epoch for epoch in result.history] == [1, 2]
    assert out.read_bytes() == whole
    assert [path.name for path in tmp_path.iterdir()] == ["w.safetensors"]


def test_an_interrupt_in_the_middle_of_a_step_waits_for_its_end(images, held_out, whole, tmp_path, monkeypatch):
    learn = training_state.TrainingState._learn

    def interrupting(self, *batch):
        if self.step == 4:  # raised in the main thread, which waits for this one
            signal.raise_signal(signal.SIGINT)
        learn(self, *batch)

    out = tmp_path / "w.safetensors"
    with monkeypatch.context() as patch:
        patch.setattr(training_state.TrainingState, "_learn", interrupting)
        with pytest.raises(KeyboardInterrupt):
            train(images, held_out, out, options=OPTIONS)
    result = train(images, held_out, out, options=OPTIONS)
    assert result.resumed_from == 5
    assert out.read_bytes() == whole


def test_an_interrupt_during_a_test_goes_on_with_the_test(images, held_out, whole, tmp_path, monkeypatch):
    def interrupting(self, *batch):
        raise KeyboardInterrupt

    out = tmp_path / "w.safetensors"
    with monkeypatch.context() as patch:
        patch.setattr(training_state.TrainingState, "count_right", interrupting)
        with pytest.raises(KeyboardInterrupt):
            train(images, held_out, out, options=OPTIONS)
    epochs = []
    train(images, held_out, out, options=OPTIONS, on_epoch=epochs.append)
    assert [epoch.epoch for epoch in epochs] == [1, 2]
    assert out.read_bytes() == whole


def test_an_interrupt_before_the_first_step_costs_nothing(images, held_out, whole, tmp_path, monkeypatch):
    def interrupting(*_, **__):
        raise KeyboardInterrupt

    out = tmp_path / "w.safetensors"
    with monkeypatch.context() as patch:
        patch.setattr(training, "augmented", interrupting)
        with pytest.raises(KeyboardInterrupt):
            train(images, held_out, out, options=OPTIONS)
    assert train(images, held_out, out, options=OPTIONS).resumed_from == 0
    assert out.read_bytes() == whole


def test_a_step_that_fails_leaves_the_checkpoint_before_it(images, held_out, whole, tmp_path, monkeypatch):
    learn = training_state.TrainingState._learn

    def failing(self, *batch):
        if self.step == 6:
            self.network.fc.bias.data += 1.0
            self.is_whole = False
            raise RuntimeError("half done")
        learn(self, *batch)

    out = tmp_path / "w.safetensors"
    with monkeypatch.context() as patch:
        patch.setattr(training_state.TrainingState, "_learn", failing)
        with pytest.raises(RuntimeError, match="half done"):
            train(images, held_out, out, options=OPTIONS)
    assert train(images, held_out, out, options=OPTIONS).resumed_from == 4  # the end of the first epoch
    assert out.read_bytes() == whole


#: Trainings that kill themselves, one after another, each at a moment of its own; each goes on from what the one
#: before has left. They are forks of a process that has only imported what they need.
KILLED = """
import os, signal, sys
from pathlib import Path
import torch
from made_images import TINY, coloured
from gem_ood.experiments.training.running import TrainingOptions, train

write_bytes, replace, unlink = Path.write_bytes, os.replace, Path.unlink
n_calls = 0

def die(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)

def is_second():
    global n_calls
    n_calls += 1
    return n_calls == 2

def half_a_checkpoint(self, data):
    die(write_bytes(self, data[: len(data) // 2])) if is_second() else write_bytes(self, data)

def half_of_the_weights(self, data):
    die(write_bytes(self, data[:999])) if self.suffix == ".safetensors" else write_bytes(self, data)

def killed_at(moment, out):
    seconds, on_step = 0.0, None
    if moment == "between checkpoints":
        seconds, on_step = 1e9, lambda progress: die() if progress.step == 3 else None
    elif moment == "half a checkpoint":
        Path.write_bytes = half_a_checkpoint
    elif moment == "before the rename":
        os.replace = lambda *paths: die() if is_second() else replace(*paths)
    elif moment == "half of the weights":
        Path.write_bytes = half_of_the_weights
    elif moment == "before the end":
        Path.unlink = lambda self, **rest: die() if self.name == f"{out.name}.checkpoint" else unlink(self, **rest)
    options = TrainingOptions(**TINY)
    train(coloured(30), coloured(20, seed=1), out, options=options, checkpoint_seconds=seconds, on_step=on_step)

for moment in sys.argv[3:]:
    child = os.fork()
    if child == 0:
        torch.set_num_threads(int(sys.argv[2]))
        killed_at(moment, Path(sys.argv[1]))
        os._exit(0)
    _, status = os.waitpid(child, 0)
    files = sorted(path.name for path in Path(sys.argv[1]).parent.iterdir() if path.suffix != ".lock")
    print(moment, os.waitstatus_to_exitcode(status), *files, sep="|", flush=True)
"""


def this_tree():
    """The environment of a child that runs the tree in which this test lies."""
    here = Path(__file__).parent
    before = os.environ.get("PYTHONPATH")
    paths = [str(here), str(here.parents[1] / "src"), *([before] if before else [])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs processes that fork")
def test_kills_at_the_worst_moments_change_no_byte(images, held_out, whole, tmp_path):
    moments = ("between checkpoints", "half a checkpoint", "before the rename", "half of the weights", "before the end")
    out = tmp_path / "w.safetensors"
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(out), str(torch.get_num_threads()), *moments],
        env=this_tree(),
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    lines = [line.split("|") for line in done.stdout.splitlines()]
    assert [(line[0], int(line[1])) for line in lines] == [(moment, -signal.SIGKILL) for moment in moments]
    files = [line[2:] for line in lines]
    assert files[0] == []
    for left, kind in zip(files[1:4], ("checkpoint", "checkpoint", "safetensors"), strict=True):
        assert left[-1] == "w.safetensors.checkpoint"
        assert [name for name in left if name.startswith(".w.") and name.endswith(kind)] == left[:-1]
        assert len(left) == 2
    assert files[4] == ["w.safetensors", "w.safetensors.checkpoint"]
    assert train(images, held_out, out, options=OPTIONS).resumed_from == N_STEPS
    assert out.read_bytes() == whole
    assert [path.name for path in tmp_path.iterdir()] == ["w.safetensors"]


def test_checkpoints_come_every_so_many_seconds_and_at_the_end_of_an_epoch(images, held_out, tmp_path, monkeypatch):
    saved = []
    save = training.save_checkpoint

    def counting(path, checkpoint, **rest):
        saved.append(checkpoint.step)
        save(path, checkpoint, **rest)

    monkeypatch.setattr(training, "save_checkpoint", counting)
    train(images, held_out, tmp_path / "a.pt", options=OPTIONS, checkpoint_seconds=1e9)
    assert saved == [4, 8]
    saved.clear()
    train(images, held_out, tmp_path / "b.pt", options=OPTIONS, checkpoint_seconds=0.0)
    assert saved == [1, 2, 3, 4, 4, 5, 6, 7, 8, 8]
    for seconds in (-1.0, float("nan")):
        with pytest.raises(InputError, match=r"checkpoint_seconds is .*; pass a number of at least 0"):
            train(images, held_out, tmp_path / "c.pt", options=OPTIONS, checkpoint_seconds=seconds)


def test_a_full_disk_is_a_clear_error_and_the_checkpoint_before_it_stays(
    images, held_out, whole, tmp_path, monkeypatch
):
    out = tmp_path / "w.safetensors"
    interrupted(images, held_out, out)
    before = (tmp_path / "w.safetensors.checkpoint").read_bytes()

    def full(self, data):
        with self.open("wb") as file:
            file.write(data[:100])
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", full)
        with pytest.raises(InputError, match=r"w.safetensors.checkpoint cannot be written \(No space left on device\)"):
            train(images, held_out, out, options=OPTIONS, checkpoint_seconds=0.0)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"w.safetensors.checkpoint": before}
    train(images, held_out, out, options=OPTIONS)
    assert out.read_bytes() == whole


DIFFERENCES = {
    "learning_rate": ({"learning_rate": 0.05}, "learning_rate was 0.1 and is 0.05"),
    "epochs": ({"epochs": 3}, "epochs was 2 and is 3"),
    "seed": ({"seed": 1}, "seed was 0 and is 1"),
    "network": ({"width": 2, "depth": 16}, "depth was 10 and is 16; width was 1 and is 2"),
}


@pytest.mark.parametrize("difference", DIFFERENCES)
def test_the_checkpoint_of_another_recipe_is_refused_by_what_differs(difference, images, held_out, tmp_path):
    out = tmp_path / "w.pt"
    interrupted(images, held_out, out)
    changed, message = DIFFERENCES[difference]
    with pytest.raises(InputError, match=rf"checkpoint of another training: {message}; pass what .*--restart"):
        train(images, held_out, out, options=replace(OPTIONS, **changed))
    assert train(images, held_out, out, options=OPTIONS).resumed_from == 5


def test_the_checkpoint_of_other_data_is_refused_by_what_differs(images, held_out, tmp_path):
    out = tmp_path / "w.pt"
    interrupted(images, held_out, out)
    others = coloured(30, seed=5)
    with pytest.raises(InputError, match=f"training images was {images.digest} and is {others.digest}; pass"):
        train(others, held_out, out, options=OPTIONS)
    with pytest.raises(InputError, match=f"test images was {held_out.digest} and is not given; pass"):
        train(images, None, out, options=OPTIONS)


def test_restart_starts_over_and_replaces_weights_only_at_the_end(images, held_out, whole, tmp_path):
    out = tmp_path / "w.safetensors"
    out.write_bytes(b"older weights")
    with pytest.raises(InputError, match=r"w.safetensors is there already, and no checkpoint .*--restart"):
        train(images, held_out, out, options=OPTIONS)
    interrupted(images, held_out, out, restart=True)
    assert out.read_bytes() == b"older weights"
    interrupted(images, held_out, out, at=2, restart=True)  # over again: step 2 comes before 5
    result = train(images, held_out, out, options=OPTIONS)
    assert (result.resumed_from, out.read_bytes()) == (2, whole)


def flipped_bit(data):
    return data[:-5] + bytes([data[-5] ^ 1]) + data[-4:]


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: data[: len(data) // 2],
        lambda data: data[:-1],
        flipped_bit,
        lambda data: data.replace(b"training checkpoint", b"something different"),
        lambda data: data.replace(b'\\"step\\": 5', b'\\"step\\": 7'),
        lambda data: data.replace(b'\\"history\\"', b'\\"hostory\\"'),
        lambda data: b"PK\x03\x04" + data,
    ],
    ids=["empty", "half", "one byte short", "one bit", "other kind", "other step", "other header", "archive"],
)
def test_a_damaged_checkpoint_is_refused(damage, images, held_out, tmp_path):
    out = tmp_path / "w.pt"
    interrupted(images, held_out, out)
    path = tmp_path / "w.pt.checkpoint"
    damaged = damage(path.read_bytes())
    assert damaged != path.read_bytes()
    path.write_bytes(damaged)
    with pytest.raises(FileFormatError, match=r"checkpoint .*w.pt.checkpoint (is damaged|does not fit).*--restart"):
        train(images, held_out, out, options=OPTIONS)
    assert path.read_bytes() == damaged
    assert train(images, held_out, out, options=OPTIONS, restart=True).resumed_from is None


def test_weights_that_are_not_finite_take_no_sound_checkpoints_place(images, held_out, tmp_path):
    out, path = tmp_path / "w.pt", tmp_path / "w.pt.checkpoint"
    interrupted(images, held_out, out)
    before = path.read_bytes()
    tensors, header = storage.read(path)
    spoilt = {**tensors, "momentum.fc.bias": np.full(3, np.inf, dtype=np.float32)}
    checkpoint = training_state.Checkpoint(5, spoilt, (), 0.0)
    with pytest.raises(InputError, match=r"went astray by step 5: fc.bias is not finite any more; start over"):
        training.save_checkpoint(path, checkpoint, identity=header["identity"], machine=header["machine"])
    assert path.read_bytes() == before


def test_another_number_of_threads_is_told_but_refuses_nothing(images, held_out, tmp_path, monkeypatch):
    out = tmp_path / "w.pt"
    interrupted(images, held_out, out)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        interrupted(images, held_out, out, at=6)
    n_threads = torch.get_num_threads()
    monkeypatch.setattr(torch, "get_num_threads", lambda: 99)
    with pytest.warns(UserWarning, match=rf"threads was {n_threads} and is 99\); training goes on") as caught:
        train(images, held_out, out, options=OPTIONS)
    assert caught[0].filename == __file__
