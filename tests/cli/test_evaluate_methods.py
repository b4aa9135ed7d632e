"""`gem-ood evaluate`: methods fitted on the spot, every format, files that are written, and a real terminal."""

import json
import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from commands import fail, run, run_json
from gem_ood import GEM, Head, load
from gem_ood.cli import app
from gem_ood.comparison import METRICS, compare, fit_methods, fitting
from gem_ood.files import FeatureFile
from gem_ood.progress import RowProgress

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
    assert untimed(result) == {**untimed(expected), "left_out": {}, "out": None, "report": None}
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


@pytest.mark.parametrize("form", ["csv", "json"])
def test_csv_and_json_have_the_metrics_asked_for_and_no_time_if_told_so(
    form: str, data: Path, sets: Any, training: Any
) -> None:
    comparison = by_hand(data, ["msp", "gem"])
    arguments = ("evaluate", "--methods", "msp,gem", *training, *sets, "--no-time")
    write = getattr(comparison, f"to_{form}")
    assert run(*arguments, "--format", form) == write(time=False)
    chosen = (*arguments, "--metrics", "auroc,fpr", "--sort", "auroc")
    assert run(*chosen, "--format", form) == write(time=False, metrics=["auroc", "fpr"], sort="auroc")
    printed = run_json(*chosen)["detectors"]["gem"]
    assert (list(printed["mean"]), printed["seconds_per_10k"]) == (["fpr", "auroc"], None)
    assert list(run_json(*arguments)["detectors"]["gem"]["mean"]) == list(METRICS)


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


def test_rows_of_another_width_are_met_before_anything_is_fitted(
    data: Path, sets: Any, training: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fitting, "_fitted", lambda *_: pytest.fail("fitted too early"))
    narrow = tmp_path / "narrow.npy"
    np.save(narrow, np.load(data / "noise.npy")[:, :4])
    test, noise = data / "test.npz", data / "noise.npy"
    for others in (
        ("--id", test, "--ood", f"noise={noise}", "--ood", f"x={narrow}"),
        ("--id", narrow, "--ood", f"noise={noise}"),
        (*sets, "--calibrate", narrow),
    ):
        error = fail("evaluate", *NAMED, *training, *others)
        assert "narrow.npy has 4 features but " in error
        assert "train.npz of --train has 6; pass the same features" in error
    saved = fail("evaluate", data / "gem.safetensors", *NAMED, *training, "--id", test, "--ood", f"x={narrow}")
    assert f"narrow.npy has 4 features but the GEM detector '{data / 'gem.safetensors'}'" in saved


def test_tables_are_read_by_the_columns_of_the_training_rows(data: Path, tmp_path: Path) -> None:
    names = list("abcdef")
    for name, order in {"train": names, "test": names[::-1], "noise": [*names[1:], "a"]}.items():
        rows = pd.DataFrame(np.load(data / f"{name}.npy"), columns=names)
        rows[order].assign(extra=1.0).iloc[:, : 6 if name == "train" else 7].to_csv(
            tmp_path / f"{name}.csv", index=False
        )
    arguments = ("evaluate", "--methods", "mahalanobis,residual", "--train")
    expected = run_json(*arguments, data / "train.npy", *plain_sets(data, "test.npy"))
    others = ("--id", tmp_path / "test.csv", "--ood", f"noise={tmp_path / 'noise.csv'}")
    result = run_json(*arguments, tmp_path / "train.csv", *others)
    for name, one in result["detectors"].items():
        assert one["mean"] == pytest.approx(expected["detectors"][name]["mean"])


class Bar:
    """Takes down what a bar is told to show."""

    def __init__(self) -> None:
        self.titles: list[str] = []
        self.shown: dict[str, list[Any]] = {}

    def add_task(self, title: str, total: int | None) -> int:
        self.titles.append(title)
        self.shown[title] = []
        return len(self.titles) - 1

    def reset(self, task: int, *, total: int | None, description: str) -> None:
        self.titles[task] = description
        self.shown[description] = []

    def update(self, task: int, *, completed: int) -> None:
        self.shown[self.titles[task]].append(completed)


def test_the_bar_is_named_by_what_is_done(
    data: Path, sets: Any, training: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    bar, read = Bar(), []
    batches = FeatureFile.batches
    monkeypatch.setattr(RowProgress, "bar", lambda _: bar)
    monkeypatch.setattr(FeatureFile, "batches", lambda file: read.append(file.path.name) or batches(file))
    arguments = (*NAMED, *training, *sets, "--calibrate", data / "held_out.npz", "--intervals", "bootstrap")
    run("evaluate", *arguments)
    assert list(bar.shown) == [
        "read train.npz",
        *("fit msp (1/3)", "fit gem (2/3)", "fit gem-unit (3/3)"),
        *("calibrate msp (1/3)", "calibrate gem (2/3)", "calibrate gem-unit (3/3)"),
        *("in-distribution", "noise", "far"),
        "bootstrap intervals",
    ]
    assert all(bar.shown.values())
    assert bar.shown["fit gem (2/3)"][-1] == 600
    assert bar.shown["calibrate msp (1/3)"][-1] == 400
    assert read.count("train.npz") == 1


def test_labels_of_their_own_files_belong_to_their_rows(data: Path) -> None:
    expected = run_json("evaluate", "--methods", "gem", "--train", data / "train.npz", *plain_sets(data, "test.npz"))
    labels = ("--labels", data / "test_labels.npy", "--train-labels", data / "train_labels.npy")
    arguments = ("--methods", "gem", "--train", data / "train.npy", *labels, "--calibrate", data / "held_out.npy")
    result = run_json("evaluate", *arguments, *plain_sets(data, "test.npy"))
    assert result["detectors"]["gem"]["id_error"] == expected["detectors"]["gem"]["id_error"] is not None
    assert result["detectors"]["gem"]["mean"] == expected["detectors"]["gem"]["mean"]


@pytest.fixture(scope="module")
def named(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same rows under names whose sorted order is not that of the logits."""
    folder, names = tmp_path_factory.mktemp("named"), np.array(["eel", "cat", "dog"])
    for name in ("train", "test"):
        labels = names[np.load(data / f"{name}_labels.npy")]
        np.savez(folder / f"{name}.npz", features=np.load(data / f"{name}.npy"), labels=labels)
    with np.load(data / "head.npz") as file:
        np.savez(folder / "head.npz", **file, classes=names)
    (folder / "names.txt").write_text("eel\ncat\ndog\n", encoding="utf-8")
    np.save(folder / "names.npy", names)
    return folder


@pytest.mark.parametrize("given", ["list", "text file", "array file", "head"])
def test_class_names_in_the_order_of_the_logits_say_the_same_as_their_numbers(
    given: str, data: Path, named: Path, sets: Any, training: Any
) -> None:
    methods = ("--methods", "msp,openmax,she,gem")
    expected = run_json("evaluate", *methods, *training, *sets)["detectors"]
    classes = {
        "list": ("--head", data / "head.npz", "--classes", "eel, cat,dog"),
        "text file": ("--head", data / "head.npz", "--classes", named / "names.txt"),
        "array file": ("--head", data / "head.npz", "--classes", named / "names.npy"),
        "head": ("--head", named / "head.npz"),
    }[given]
    result = run_json(
        "evaluate", *methods, "--train", named / "train.npz", *classes, "--id", named / "test.npz", *sets[2:]
    )
    for name, one in result["detectors"].items():
        assert one["id_error"] == expected[name]["id_error"] == 0.0
        assert one["mean"] == pytest.approx(expected[name]["mean"])


def test_given_class_names_go_before_those_of_the_head(data: Path, named: Path, sets: Any) -> None:
    arguments = ("--head", named / "head.npz", "--train", named / "train.npz", "--id", named / "test.npz", *sets[2:])
    result = run_json("evaluate", "--methods", "msp", *arguments, "--classes", "cat,dog,eel")
    assert result["detectors"]["msp"]["id_error"] == 1.0


def test_the_table_is_never_written_over_the_class_names(named: Path, sets: Any, training: Any) -> None:
    names = named / "names.txt"
    arguments = (*NAMED, *training, *sets, "--classes", names, "--out", names)
    assert "which is also read; name another file" in fail("evaluate", *arguments)


def test_rows_of_logits_need_no_head(data: Path, tmp_path: Path) -> None:
    with np.load(data / "head.npz") as file:
        head = Head(file["weight"], file["bias"])
    for name in ("train", "test", "noise"):
        np.save(tmp_path / f"{name}.npy", head.logits(np.load(data / f"{name}.npy")))
    expected = run_json(
        "evaluate", "--methods", "msp,energy", "--train", data / "train.npy", "--head", data / "head.npz",
        *plain_sets(data, "test.npy"),
    )["detectors"]  # fmt: skip
    labels = ("--train-labels", data / "train_labels.npy")
    arguments = ("--train", tmp_path / "train.npy", *labels, *plain_sets(tmp_path, "test.npy"), "--logits")
    result = run_json("evaluate", "--methods", "all", *arguments)
    for name, one in expected.items():
        assert result["detectors"][name]["mean"] == pytest.approx(one["mean"])
    assert {"gem", "openmax", "recommended"} <= set(result["detectors"])
    assert "rows are logits" in result["left_out"]["react"]


def test_a_head_of_other_features_is_named_with_its_file(data: Path, sets: Any, tmp_path: Path) -> None:
    np.savez(tmp_path / "wide.npz", weight=np.ones((3, 7)))
    error = fail("evaluate", *NAMED, "--train", data / "train.npz", "--head", tmp_path / "wide.npz", *sets)
    assert f"{data / 'train.npz'} of --train has 6 features but {tmp_path / 'wide.npz'} of --head takes 7" in error


def test_where_no_method_can_be_fitted_the_rows_are_to_blame_before_a_missing_head(data: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "train.npy", np.full((50, 6), np.nan))
    arguments = ("--methods", "all", "--train", tmp_path / "train.npy", *plain_sets(data, "test.npy"))
    assert "features row 0, column 0 is NaN" in fail("evaluate", *arguments)


@pytest.mark.parametrize("name", ["table.md", f"{'long' * 62}.md"])
def test_a_table_that_cannot_be_written_is_met_before_anything_is_fitted(
    name: str, sets: Any, training: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path, **_: Any) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(fitting, "_fitted", lambda *_: pytest.fail("fitted too early"))
    if name == "table.md":  # whoever is root may write everywhere
        monkeypatch.setattr(Path, "touch", refuse)
    error = fail("evaluate", *NAMED, *training, *sets, "--out", tmp_path / name)
    assert error.startswith(f"gem-ood: error: {tmp_path / name} cannot be written (")
    assert list(tmp_path.iterdir()) == []


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
        (gem, "--classes", "a,b", *sets): "--classes is for --methods, which is not given",
        (gem, "--logits", *sets): "--logits is for --methods, which is not given",
        (*NAMED, *training, *sets, "--logits"): "--logits says that rows are logits, but --head reads features",
        (*NAMED, *training, *sets, "--classes", "0,1"): "--classes has 2 names but there are 3 logits",
        (*NAMED, *training, *sets, "--classes", "0,1,1"): "--classes: classes names 1 twice",
        (*NAMED, *training, *sets, "--classes", "0,,1"): "--classes: name 2 of 3 in '0,,1' is empty",
        (*NAMED, *training, *sets, "--classes", "no.txt"): "--classes: no.txt does not exist",
        (*NAMED, *training, *sets, "--classes", "0,1,3"): "label 2 is none of the classes; pass --classes, all names",
        ("--methods", "msp", *training, *sets, "--classes", "0,1,3"): "label 2 is none of the classes",
        ("--methods", "react", "--train", train, *sets, "--logits"): "pass features and --head, without --logits",
        (*NAMED, *training, *sets, "--format", "html"): "--format",
        (*NAMED, *training, *sets, "--sort", "time"): "--sort",
        (*NAMED, *training, *sets, "--metrics", "f1"): "--metrics: there is no metric 'f1'; choose among fpr",
        (*NAMED, *training, *sets, "--metrics", "fpr,fpr"): "--metrics: the metric 'fpr' is named twice",
        (*NAMED, *training, *sets, "--format", "csv", "--json"): "--json and --format contradict each other",
        (*NAMED, *training, *sets, "--out", tmp_path / "table.html"): "has the suffix '.html' but .txt .md .tex .csv",
        (*NAMED, *training, *sets, "--out", tmp_path / "no" / "table.md"): "does not exist; create it first",
        (*NAMED, *training, "--id", test, "--ood", f"mean={test}"): "is named 'mean', as the mean over all sets is",
        (*NAMED, *training, "--id", test, "--ood", f" ={test}"): "must be FILE or NAME=FILE",
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
