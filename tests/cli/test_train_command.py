"""`gem-ood train`: what it prints and writes, how it is stopped and goes on, and what it refuses."""

import io
import json
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from typer.testing import CliRunner  # noqa: E402

from commands import fail, run, run_json  # noqa: E402
from gem_ood.cli import app  # noqa: E402
from gem_ood.cli.train import train as command  # noqa: E402
from gem_ood.experiments import data_sets, obtaining  # noqa: E402
from gem_ood.experiments.networks.wide_resnet import WideResNet  # noqa: E402
from gem_ood.experiments.sources import ARCHIVES, Archive  # noqa: E402
from gem_ood.experiments.training.running import TrainingOptions, train  # noqa: E402

PROGRAM = [sys.executable, "-c", "from gem_ood.cli import main; main()"]
RECIPE = ("--depth", 10, "--width", 1, "--batch-size", 8, "--device", "cpu")
N_TRAIN, N_TEST = 20, 10


def records(n_images: int, seed: int, *, n_label_bytes: int = 1) -> bytes:
    """Images as CIFAR's binary files hold them: the labels, then all of red, green and blue."""
    generator = np.random.default_rng(seed)
    labels = np.arange(n_images) % 10
    pixels = generator.integers(0, 120, size=(n_images, 3, 1024)) + 12 * labels[:, None, None]
    rows = np.concatenate([np.repeat(labels[:, None], n_label_bytes, axis=1), pixels.reshape(n_images, -1)], axis=1)
    return rows.astype(np.uint8).tobytes()


def write_cifar10(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for batch in range(1, 6):
        (folder / f"data_batch_{batch}.bin").write_bytes(records(N_TRAIN // 5, batch))
    (folder / "test_batch.bin").write_bytes(records(N_TEST, 6))
    return folder


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    write_cifar10(folder / "cifar-10-batches-bin")
    (folder / "cifar-100-binary").mkdir()
    for name, n_images in (("train", N_TRAIN), ("test", N_TEST)):
        (folder / "cifar-100-binary" / f"{name}.bin").write_bytes(records(n_images, 7, n_label_bytes=2))
    return folder


def test_each_epoch_is_one_line_and_the_weights_are_those_of_the_library(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "w.safetensors"
    lines = run("train", "cifar10", "--data", data, "--out", out, *RECIPE, "--epochs", 2).splitlines()
    options = TrainingOptions(depth=10, width=1, batch_size=8, device="cpu", epochs=2, n_classes=10)
    images, test_images = (data_sets.load("cifar10", data, split=split) for split in ("train", "test"))
    result = train(images, test_images, tmp_path / "same.safetensors", options=options)
    assert out.read_bytes() == (tmp_path / "same.safetensors").read_bytes()
    assert lines[0] == f"WideResNet-10-1 on 20 images of {images.name}, epochs 2, seed 0, cpu"
    for line, epoch in zip(lines[1:3], result.history, strict=True):
        shown, _, seconds = line.rpartition("  ")
        assert shown == (
            f"epoch {epoch.epoch}/2  loss {epoch.loss:.4f}  train {100 * epoch.accuracy:.2f} %  "
            f"test {100 * (epoch.test_accuracy or 0.0):.2f} %"
        )
        assert seconds.endswith(" s")
        assert float(seconds[:-2]) >= 0.0
    assert lines[3:] == [
        f"Test accuracy: {100 * (result.test_accuracy or 0.0):.2f} %",
        f"Weights: {out}, {result.n_parameters:,} parameters",
    ]


def test_json_has_every_epoch_and_the_recipe(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "w.pt"
    options = ("--epochs", 2, "--momentum", 0, "--learning-rate", 0.05, "--weight-decay", 0, "--dropout", 0)
    result = run_json("train", "cifar100", "--data", data, "--out", out, *RECIPE, *options)
    assert (result["data_set"], result["weights"], result["resumed_from"]) == ("cifar100", str(out), None)
    assert [epoch["epoch"] for epoch in result["epochs"]] == [1, 2]
    assert result["test_accuracy"] == result["epochs"][1]["test_accuracy"]
    recipe = result["options"]
    assert (recipe["n_classes"], recipe["momentum"]) == (100, 0.0)
    assert (recipe["learning_rate"], recipe["weight_decay"], recipe["dropout"]) == (0.05, 0.0, 0.0)
    assert WideResNet.load(out).fc.out_features == 100


def test_the_defaults_are_those_of_the_library() -> None:
    import inspect

    defaults = {name: value.default for name, value in inspect.signature(command).parameters.items()}
    options = TrainingOptions()
    for name in ("depth", "width", "dropout", "epochs", "batch_size", "learning_rate", "momentum", "weight_decay"):
        assert defaults[name] == getattr(options, name)
    assert (defaults["seed"], defaults["device"]) == (options.seed, options.device)


def test_quiet_prints_the_result_alone(data: Path, tmp_path: Path) -> None:
    text = run("train", "cifar10", "--data", data, "--out", tmp_path / "w.pt", *RECIPE, "--epochs", 1, "--quiet")
    assert text.startswith("Test accuracy: ")
    assert text.count("\n") == 1


def stopped(arguments: list[str], number: signal.Signals) -> tuple[int, list[str], list[str]]:
    """Return the exit code of a training that gets a signal after its first epoch, and the lines it printed."""
    process = subprocess.Popen([*PROGRAM, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    watchdog = threading.Timer(90.0, process.kill)
    watchdog.start()
    try:
        assert process.stdout is not None
        assert process.stderr is not None
        lines = []
        for line in process.stdout:
            lines.append(line)
            if line.startswith("epoch"):
                break
        process.send_signal(number)
        lines += process.stdout.readlines()
        return process.wait(), lines, process.stderr.read().splitlines()
    finally:
        watchdog.cancel()
        process.kill()
        process.wait()
        for stream in (process.stdout, process.stderr):
            assert stream is not None
            stream.close()


def test_signals_leave_a_checkpoint_and_the_same_command_goes_on_to_the_same_bytes(data: Path, tmp_path: Path) -> None:
    out, checkpoint = tmp_path / "w.safetensors", tmp_path / "w.safetensors.checkpoint"
    arguments = ["train", "cifar10", "--data", data, "--out", out, *RECIPE, "--epochs", 15]
    words = list(map(str, arguments))
    notice = f"gem-ood: note: training stopped; the same command goes on from {checkpoint}"
    code, _, errors = stopped(words, signal.SIGINT)
    assert (code, errors) == (130, [notice, "gem-ood: interrupted; no file is left half-written"])
    assert [path.name for path in tmp_path.iterdir()] == [checkpoint.name]
    code, lines, errors = stopped(words, signal.SIGTERM)
    assert (code, errors) == (143, [notice])
    assert lines[1].startswith("Going on after step ")
    assert lines[1].endswith(" of 45\n")
    assert [path.name for path in tmp_path.iterdir()] == [checkpoint.name]
    resumed = run_json(*arguments)
    assert resumed["resumed_from"] > 3
    assert [epoch["epoch"] for epoch in resumed["epochs"]] == list(range(1, 16))
    whole = tmp_path / "whole.safetensors"
    run(*[whole if word == out else word for word in arguments])
    assert out.read_bytes() == whole.read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["w.safetensors", "whole.safetensors"]


def test_weights_that_are_there_are_replaced_only_on_request(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "w.pt"
    out.write_bytes(b"before")
    arguments = ("train", "cifar10", "--data", data, "--out", out, *RECIPE, "--epochs", 1)
    assert f"{out} is there already, and no checkpoint to go on from" in fail(*arguments)
    assert out.read_bytes() == b"before"
    run(*arguments, "--restart")
    assert WideResNet.load(out).fc.out_features == 10


def test_a_checkpoint_of_other_options_is_refused_with_the_remedy(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    arguments = ("train", "cifar10", "--data", data, "--out", tmp_path / "w.pt", *RECIPE, "--epochs", 1)
    with monkeypatch.context() as patch:
        patch.setattr("gem_ood.cli.train._Teller.on_step", stop)
        result = CliRunner().invoke(app, list(map(str, (*arguments, "--restart"))))
    assert result.exit_code == 130
    assert "the same command without --restart goes on from" in result.stderr
    error = fail(*arguments, "--seed", 3)
    assert "w.pt.checkpoint is the checkpoint of another training: seed was 0 and is 3;" in error
    assert "(--restart)" in error


def test_a_missing_set_is_downloaded_once_where_that_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetched: list[tuple[Archive, Path]] = []

    def fetch(archive: Archive, folder: Path, *, on_bytes: Any) -> Path:
        fetched.append((archive, folder))
        on_bytes(10, None)
        on_bytes(20, 20)
        return write_cifar10(folder / "cifar-10-batches-bin")

    monkeypatch.setattr(obtaining, "fetch", fetch)
    folder = tmp_path / "new" / "data"
    arguments = ("train", "cifar10", "--data", folder, *RECIPE, "--epochs", 1)
    assert str(folder) in fail(*arguments, "--out", tmp_path / "a.pt")
    for name in ("a.pt", "b.pt"):
        run(*arguments, "--out", tmp_path / name, "--download")
    assert fetched == [(ARCHIVES["cifar10"], folder)]
    assert (tmp_path / "a.pt").read_bytes() == (tmp_path / "b.pt").read_bytes()


def test_a_folder_that_cannot_be_made_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    arguments = ("--data", tmp_path / "file" / "data", "--out", tmp_path / "a.pt", "--download")
    assert f"{tmp_path / 'file' / 'data'} (Not a directory); " in fail("train", "cifar10", *arguments)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_shows_a_bar_with_the_live_accuracy_beside_lines_on_stdout(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    terminal = Terminal()
    monkeypatch.setattr("gem_ood.progress.PATIENCE_SECONDS", -1.0)
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    command("cifar10", data=data, out=tmp_path / "w.pt", depth=10, width=1, epochs=2, batch_size=8, device="cpu")
    shown = terminal.getvalue()
    assert "1/2 loss " in shown
    assert " acc " in shown
    assert " test " in shown[shown.index("2/2 loss ") :]
    assert "/20 images" in shown
    # Lines that a reader of stdout is to have do not end up above the bar.
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()][1:3] == ["epoch", "epoch"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "Missing argument 'SET'"),
        (["cifar10"], "Missing option '--out'"),
        (["mnist", "--out", "w.pt"], "'mnist' is not one of"),
        (["cifar10", "--out", "w.bin"], "w.bin has the suffix '.bin' but .safetensors .pt .pth can be written"),
        (["cifar10", "--out", "no/w.pt"], "the directory no does not exist; create it first"),
        (["cifar10", "--out", "w.pt", "--depth", "41"], "depth must be 6n + 4"),
        (["cifar10", "--out", "w.pt", "--epochs", "0"], "epochs is 0; pass a whole number of at least 1"),
        (["cifar10", "--out", "w.pt", "--seed", "-1"], "seed is -1; pass a whole number of at least 0"),
        (["cifar10", "--out", "w.pt", "--learning-rate", "0"], "learning_rate is 0"),
        (["cifar10", "--out", "w.pt", "--device", "tpu"], "device is 'tpu'; pass 'auto'"),
        (["cifar10", "--out", "w.pt", "--device", "cuda:99"], "device is 'cuda:99', which cannot be used here"),
        (["cifar10", "--out", "w.pt", "--data", "no"], "no does not exist; pass the folder"),
        (["cifar10", "--out", "w.pt", "--data", "."], "--download"),
        (["cifar10", "--out", "w.pt", "--checkpoint-every", "-1"], "checkpoint_seconds is -1.0"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_two(
    arguments: list[str], message: str, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    needed = [] if "--data" in arguments or "--out" not in arguments else ["--data", data]
    assert message in fail("train", *arguments, *needed)
    assert list(tmp_path.iterdir()) == []


def test_what_is_said_of_a_run_is_json_that_can_be_read_again(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "w.safetensors"
    run("train", "cifar10", "--data", data, "--out", out, *RECIPE, "--epochs", 1)
    header = json.loads(out.read_bytes()[8 : 8 + int.from_bytes(out.read_bytes()[:8], "little")])
    about = json.loads(header["__metadata__"]["about"])
    assert (about["network"], about["training"]["epochs"], len(about["epochs"])) == ("WideResNet", 1, 1)
