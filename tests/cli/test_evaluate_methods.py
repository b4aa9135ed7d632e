"""`gem-ood evaluate`: methods fitted on the spot, every format, files that are written, and a real terminal."""

import json
import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import fail, run, run_json
from typer.testing import CliRunner

from gem_ood import GEM, Head, load
from gem_ood.cli import app
from gem_ood.comparison import compare, fit_methods, fitting

EXISTING = ("msp", "energy", "gem", "gem-unit", "mahalanobis", "mos")
NAMED = ("--methods", "msp,gem,gem-unit")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    rng = np.random.default_rng(0)
    means = 3.0 * rng.normal(size=(3, 6))
    for name, n_rows in {"train": 600, "held_out": 400, "test": 300}.items():
        labels = rng.integers(0, 3, n_rows)
        features = means[labels] + rng.normal(size=(n_rows, 6))
        np.savez(folder / f"{name}.npz", features=features, labels=labels)
        np.save(folder / f"{name}.npy", features)
        np.save(folder / f"{name}_labels.npy", labels)
    np.save(folder / "noise.npy", 4.0 * rng.normal(size=(200, 6)))
    np.save(folder / "far.npy", 9.0 + rng.normal(size=(100, 6)))
    np.savez(folder / "head.npz", weight=means, bias=-0.5 * (means**2).sum(axis=1))
    np.save(folder / "groups.npy", np.zeros(3, dtype=int))
    run("fit", folder / "train.npz", "--out", folder / "gem.safetensors")
    return folder


@pytest.fixture
def sets(data: Path) -> tuple[Any, ...]:
    return ("--id", data / "test.npz", "--ood", f"noise={data / 'noise.npy'}", "--ood", f"far={data / 'far.npy'}")


@pytest.fixture
def training(data: Path) -> tuple[Any, ...]:
    return ("--train", data / "train.npz", "--head", data / "head.npz")


def by_hand(data: Path, methods: list[str], **options: Any) -> Any:
    with np.load(data / "head.npz") as file:
        head = Head(file["weight"], file["bias"])
    with np.load(data / "train.npz") as file:
        fitted = fit_methods(file["features"], file["labels"], methods=methods, head=head).detectors
    with np.load(data / "test.npz") as file:
        ood = {name: np.load(data / f"{name}.npy") for name in ("noise", "far")}
        return compare(fitted, id=file["features"], ood=ood, labels=file["labels"], **options)


def untimed(values: dict[str, Any]) -> dict[str, Any]:
    return {
        **values,
        "detectors": {
            name: {key: value for key, value in one.items() if key != "seconds_per_10k"}
            for name, one in values["detectors"].items()
        },
    }


def test_methods_are_fitted_and_compared_as_by_hand(data: Path, sets: Any, training: Any) -> None:
    result = run_json("evaluate", *NAMED, *training, *sets, "--tpr", "0.9")
    expected = json.loads(by_hand(data, ["msp", "gem", "gem-unit"], tpr=0.9).to_json())
    assert untimed(result) == {**untimed(expected), "left_out": {}, "out": None}
    assert all(one["seconds_per_10k"] > 0.0 for one in result["detectors"].values())


@pytest.mark.parametrize(("form", "write"), [("text", "to_text"), ("markdown", "to_markdown"), ("latex", "to_latex")])
def test_every_format_is_that_of_the_library(form: str, write: str, data: Path, sets: Any, training: Any) -> None:
    comparison = by_hand(data, ["msp", "gem", "gem-unit"])
    arguments = ("evaluate", *NAMED, *training, *sets, "--format", form, "--no-time")
    assert run(*arguments).rstrip("\n") == getattr(comparison, write)(time=False).rstrip("\n")
    shown = run(*arguments, "--sort", "fpr", "--metrics", "auroc,fpr").rstrip("\n")
    assert shown == getattr(comparison, write)(time=False, sort="fpr", metrics=["auroc", "fpr"]).rstrip("\n")


def test_csv_and_json_are_those_of_the_library(data: Path, sets: Any, training: Any) -> None:
    comparison = by_hand(data, ["msp", "gem"])
    arguments = ("evaluate", "--methods", "msp,gem", *training, *sets, "--format")
    printed = [line for line in run(*arguments, "csv").splitlines() if "seconds" not in line]
    assert printed == [line for line in comparison.to_csv().splitlines() if "seconds" not in line]
    assert untimed(json.loads(run(*arguments, "json"))) == untimed(json.loads(comparison.to_json()))


def test_all_methods_say_what_was_left_out_and_why(
    data: Path, sets: Any, training: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fitting, "entries", lambda: EXISTING)
    arguments = ["evaluate", "--methods", "all", *map(str, training), *map(str, sets)]
    result = CliRunner().invoke(app, arguments)
    assert (result.exit_code, result.stderr) == (
        0,
        "gem-ood: note: left out mos: needs --groups; pass the group of each logit\n",
    )
    assert [line.split()[0] for line in result.stdout.splitlines()[2:7]] == list(EXISTING[:-1])
    without_head = CliRunner().invoke(app, [*arguments[:5], *map(str, sets)])
    assert without_head.stderr == (
        "gem-ood: note: left out msp, energy, mos: needs --head; pass the classifier's last layer\n"
    )
    assert list(run_json(*arguments)["left_out"]) == ["mos"]
    assert list(run_json(*arguments, "--groups", data / "groups.npy")["detectors"]) == list(EXISTING)


def test_the_whole_catalogue_runs(data: Path, sets: Any, training: Any) -> None:
    result = run_json("evaluate", "--methods", "all", *training, "--groups", data / "groups.npy", *sets)
    assert (list(result["detectors"]), result["left_out"]) == (list(fitting.entries()), {})


def test_a_method_that_cannot_be_fitted_is_left_out_of_all_but_an_error_by_name(
    data: Path, sets: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fitting, "entries", lambda: ("gem", "gem-relative"))
    unlabelled = ("--train", data / "train.npy")
    arguments = ["evaluate", "--methods", "all", *unlabelled, *sets]
    result = CliRunner().invoke(app, list(map(str, arguments)))
    assert result.exit_code == 0
    assert result.stderr.startswith("gem-ood: note: left out gem-relative: ")
    assert "gem-relative: " in fail("evaluate", "--methods", "gem-relative", *unlabelled, *sets)


def test_held_out_rows_calibrate_every_detector(data: Path, sets: Any, training: Any) -> None:
    saved = data / "gem.safetensors"
    before = saved.read_bytes()
    arguments = ("evaluate", saved, "--methods", "msp,gem", *training, *sets, "--tpr", "0.9")
    assert all(one["flagged"] is None for one in run_json(*arguments)["detectors"].values())
    result = run_json(*arguments, "--calibrate", data / "held_out.npz")
    assert list(result["detectors"]) == [str(saved), "msp", "gem"]  # a file and a method of one name stay apart
    detector = load(saved).calibrate(np.load(data / "held_out.npy"), tpr=0.9)
    for name in (str(saved), "gem"):
        one = result["detectors"][name]
        assert one["id_kept"] == pytest.approx(1.0 - detector.is_ood(np.load(data / "test.npy")).mean())
        assert one["flagged"]["noise"] == pytest.approx(detector.is_ood(np.load(data / "noise.npy")).mean())
    assert saved.read_bytes() == before
    table = run(*arguments, "--calibrate", data / "held_out.npz")
    assert "flagged" in table
    assert "ID kept" in table


def test_too_few_held_out_rows_leave_a_method_out_of_all_and_are_an_error_otherwise(
    data: Path, sets: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fitting, "entries", lambda: ("gem", "recommended"))
    few, fewer = tmp_path / "few.npy", tmp_path / "fewer.npy"
    np.save(few, np.load(data / "held_out.npy")[:30])  # a combination needs half of them as its reference
    np.save(fewer, np.load(data / "held_out.npy")[:10])
    arguments = ("--train", data / "train.npz", *sets)
    result = run_json("evaluate", "--methods", "all", *arguments, "--calibrate", few)
    assert (list(result["detectors"]), list(result["left_out"])) == (["gem"], ["recommended"])
    assert "calibration rows" in result["left_out"]["recommended"]
    for methods, rows in (("gem,recommended", few), ("all", fewer)):
        assert "calibration rows" in fail("evaluate", "--methods", methods, *arguments, "--calibrate", rows)


def test_missing_files_and_bad_rates_are_met_before_anything_is_fitted(
    data: Path, sets: Any, training: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fitting, "_fitted", lambda *_: pytest.fail("fitted too early"))
    missing = ("--id", data / "test.npz", "--ood", f"x={data / 'no.npz'}")
    assert "no.npz does not exist" in fail("evaluate", *NAMED, *training, *missing)
    assert "tpr must lie" in fail("evaluate", *NAMED, *training, *sets, "--tpr", "95")


def test_labels_of_their_own_files_belong_to_their_rows(data: Path) -> None:
    expected = run_json("evaluate", "--methods", "gem", "--train", data / "train.npz", *plain_sets(data, "test.npz"))
    labels = ("--labels", data / "test_labels.npy", "--train-labels", data / "train_labels.npy")
    arguments = ("--methods", "gem", "--train", data / "train.npy", *labels, "--calibrate", data / "held_out.npy")
    result = run_json("evaluate", *arguments, *plain_sets(data, "test.npy"))
    assert result["detectors"]["gem"]["id_error"] == expected["detectors"]["gem"]["id_error"] is not None
    assert result["detectors"]["gem"]["mean"] == expected["detectors"]["gem"]["mean"]


def plain_sets(data: Path, name: str) -> tuple[Any, ...]:
    return ("--id", data / name, "--ood", f"noise={data / 'noise.npy'}")


@pytest.mark.parametrize(
    ("suffix", "beginning"), [("txt", "  "), ("md", "| "), ("tex", "% "), ("csv", "detector,"), ("json", "{")]
)
def test_the_suffix_of_the_file_chooses_the_format(
    suffix: str, beginning: str, sets: Any, training: Any, tmp_path: Path
) -> None:
    out = tmp_path / f"table.{suffix}"
    output = run("evaluate", *NAMED, *training, *sets, "--out", out)
    assert output.endswith(f"\nTable: {out}\n")
    assert "best on its set" in output
    assert out.read_text(encoding="utf-8").startswith(beginning)
    assert out.read_text(encoding="utf-8").endswith("\n")
    assert run_json("evaluate", *NAMED, *training, *sets, "--out", out)["out"] == str(out)
    run("evaluate", *NAMED, *training, *sets, "--out", out, "--format", "csv")
    assert out.read_text(encoding="utf-8").startswith("detector,set,")
    assert list(tmp_path.iterdir()) == [out]


def test_bad_requests_are_one_line_and_write_nothing(data: Path, sets: Any, training: Any, tmp_path: Path) -> None:
    gem, train, test = data / "gem.safetensors", data / "train.npz", data / "test.npz"
    before = {path: path.read_bytes() for path in data.iterdir()}
    cases = {
        (*sets,): "nothing to compare; pass saved detectors, or --methods with --train",
        (*NAMED, *sets): "--methods fits detectors but has no rows to fit them to; pass --train FILE",
        (gem, "--train", train, *sets): "--train is for --methods, which is not given",
        (gem, "--head", data / "head.npz", *sets): "--head is for --methods, which is not given",
        ("--methods", "gme", *training, *sets): "there is no method 'gme'; choose among msp",
        ("--methods", "gem,gem", *training, *sets): "the method 'gem' is named twice",
        ("--methods", "msp", "--train", train, *sets): "msp: needs --head; pass the classifier's last layer",
        ("--methods", "mos", *training, *sets): "mos: needs --groups; pass the group of each logit",
        ("--methods", "mos", *training, *sets, "--groups", train): "has the suffix '.npz' but .npy can be read",
        (*NAMED, *training, *sets, "--calibrate", data / "no.npz"): "no.npz does not exist",
        (*NAMED, *training, *sets, "--format", "html"): "--format",
        (*NAMED, *training, *sets, "--sort", "time"): "--sort",
        (*NAMED, *training, *sets, "--metrics", "f1"): "--metrics names 'f1'; choose among fpr",
        (*NAMED, *training, *sets, "--format", "csv", "--json"): "--json and --format contradict each other",
        (*NAMED, *training, *sets, "--out", tmp_path / "table.html"): "has the suffix '.html' but .txt .md .tex .csv",
        (*NAMED, *training, *sets, "--out", tmp_path / "no" / "table.md"): "does not exist; create it first",
        (*NAMED, *training, "--id", test, "--ood", f"mean={test}"): "--ood names a set 'mean'",
        (*NAMED, *training, "--id", test, "--ood", f" ={test}"): "must be NAME=FILE",
        ("--methods", "gem", "--train", data / "groups.npy", *sets): "groups.npy",
        (gem, "--id", data / "groups.npy", "--ood", f"x={test}"): "groups.npy",
    }
    for arguments, message in cases.items():
        assert message in fail("evaluate", *arguments), arguments
    assert {path: path.read_bytes() for path in data.iterdir()} == before
    assert list(tmp_path.iterdir()) == []


def test_the_table_is_never_written_over_an_input(data: Path, tmp_path: Path) -> None:
    rows = tmp_path / "rows.csv"
    np.savetxt(rows, np.load(data / "test.npy"), delimiter=",", header="a,b,c,d,e,f", comments="")
    before = rows.read_bytes()
    for arguments in (
        ("--train", rows, "--id", data / "test.npz", "--ood", f"x={data / 'noise.npy'}"),
        ("--train", data / "train.npz", "--id", rows, "--ood", f"x={data / 'noise.npy'}"),
        ("--train", data / "train.npz", "--id", data / "test.npz", "--ood", f"x={rows}"),
        ("--train", data / "train.npz", "--id", data / "test.npz", "--ood", f"x={rows}", "--calibrate", rows),
    ):
        assert "which is also read; name another file" in fail(
            "evaluate", "--methods", "gem", *arguments, "--out", rows
        )
    assert rows.read_bytes() == before


def in_terminal(arguments: list[str], *, term: str, columns: int) -> str:
    """Return what the program prints on a terminal of this kind and width."""
    leader, follower = pty.openpty()
    environment = {**os.environ, "TERM": term, "COLUMNS": str(columns), "LINES": "50"}
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "CI", "GITHUB_ACTIONS"):
        environment.pop(name, None)
    command = [sys.executable, "-c", "from gem_ood.cli import main; main()", *arguments]
    with subprocess.Popen(command, stdin=follower, stdout=follower, stderr=follower, env=environment) as process:
        os.close(follower)
        parts = []
        try:
            while part := os.read(leader, 65536):
                parts.append(part)
        except OSError:  # the other end is closed
            pass
        assert process.wait(60) == 0
    os.close(leader)
    return b"".join(parts).decode().replace("\r\n", "\n")


def test_a_terminal_gets_bold_and_its_own_width_and_a_pipe_gets_stars(data: Path, sets: Any, training: Any) -> None:
    arguments = [*map(str, ("evaluate", *NAMED, *training, *sets, "--no-time"))]
    comparison = by_hand(data, ["msp", "gem", "gem-unit"])
    narrow = in_terminal(arguments, term="xterm-256color", columns=70)
    assert narrow.startswith("OOD set")
    assert "\x1b[1m" in narrow
    assert "*" not in narrow
    assert in_terminal(arguments, term="xterm-256color", columns=200).splitlines()[0].split() == [
        "noise",
        "far",
        "mean",
    ]
    dumb = in_terminal(arguments, term="dumb", columns=200)
    assert dumb.rstrip("\n") == run(*arguments).rstrip("\n") == comparison.to_text(time=False)


def test_fit_takes_any_method_and_any_of_its_options(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "detector.safetensors"
    options = ("--option", "normalize=true", "--option", "covariance=0.25", "--option", "priors=empirical")
    run("fit", data / "train.npz", "--out", out, *options, "--option", "random_state=7")
    detector = load(out)
    assert isinstance(detector, GEM)
    assert (detector.normalize, detector.covariance, detector.priors) == (True, 0.25, "empirical")
    assert (detector.random_state, type(detector.random_state)) == (7, int)
    fit = ("fit", data / "train.npz", "--out", tmp_path / "other.safetensors")
    cases = {
        ("--option", "k=5"): "--option names 'k', but gem takes calibration, covariance, normalize, priors",
        ("--option", "normalize"): "--option is 'normalize' but must be NAME=VALUE",
        ("--option", "tpr=0.9", "--option", "tpr=0.8"): "the option 'tpr' is given twice",
        ("--option", "covariance=oas", "--covariance", "0.1"): "the option 'covariance' is given twice",
        ("--option", "priors=oops"): "priors",
        ("--method", "gme", "--option", "k=5"): "there is no detector 'gme'",
    }
    for arguments, message in cases.items():
        assert message in fail(*fit, *arguments), arguments
    assert [path.name for path in tmp_path.iterdir()] == ["detector.safetensors"]
