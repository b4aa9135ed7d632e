"""Two trainings that write the same file: the second stops at once, and the first ends as if it had been alone."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from made_images import TINY, coloured  # noqa: E402

from gem_ood.errors import InputError  # noqa: E402
from gem_ood.experiments.training import TrainingOptions, train, train_on  # noqa: E402

OPTIONS = TrainingOptions(**TINY)

#: A training that says when it has taken a step, and then waits for a line before it goes on.
WAITING = """
import sys
from pathlib import Path
import torch
from made_images import TINY, coloured
from gem_ood.experiments.training import TrainingOptions, train

def wait(progress):
    if progress.step == 3:
        print("waits", flush=True)
        sys.stdin.readline()

torch.set_num_threads(int(sys.argv[2]))
train(coloured(30), None, Path(sys.argv[1]), options=TrainingOptions(**TINY), checkpoint_seconds=0.0, on_step=wait)
"""


@pytest.fixture
def waiting(tmp_path):
    """A training in a process of its own, in the middle of its first epoch."""
    here = Path(__file__).parent
    paths = [str(here), str(here.parents[1] / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
    process = subprocess.Popen(
        [sys.executable, "-c", WAITING, str(tmp_path / "w.safetensors"), str(torch.get_num_threads())],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdout.readline() == "waits\n"
        yield process
        process.kill()


def refused(out, **options):
    with pytest.raises(InputError) as caught:
        train(coloured(30), None, out, options=OPTIONS, **options)
    assert str(caught.value) == f"another training writes {out}; wait for it or name another file"


def test_a_second_training_stops_and_the_first_is_not_disturbed(waiting, tmp_path):
    out = tmp_path / "w.safetensors"
    half_written = tmp_path / ".w.safetensors.0123abcd.checkpoint"  # as the first writes it
    half_written.write_bytes(b"half")
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    refused(out)
    refused(out, restart=True)
    with pytest.raises(InputError, match="another training writes"):
        train_on("cifar10", out, data=tmp_path / "nowhere", options=OPTIONS)
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before
    train(coloured(30), None, tmp_path / "other.safetensors", options=OPTIONS)
    waiting.communicate("go on\n", timeout=120)
    assert waiting.returncode == 0
    assert out.read_bytes() == (tmp_path / "other.safetensors").read_bytes()
    half_written.unlink()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["other.safetensors", "w.safetensors"]
    with pytest.raises(InputError, match="is there already"):
        train(coloured(30), None, out, options=OPTIONS)


def test_a_training_that_was_killed_keeps_nobody_off(waiting, tmp_path):
    out = tmp_path / "w.safetensors"
    refused(out)
    waiting.send_signal(signal.SIGKILL)
    waiting.wait(timeout=60)
    assert train(coloured(30), None, out, options=OPTIONS).resumed_from == 2
    assert [path.name for path in tmp_path.iterdir()] == ["w.safetensors"]


def test_a_second_training_of_the_same_process_stops_too(tmp_path):
    out = tmp_path / "w.safetensors"
    train(coloured(30), None, out, options=OPTIONS, on_epoch=lambda _: refused(out))
    assert [path.name for path in tmp_path.iterdir()] == ["w.safetensors"]
