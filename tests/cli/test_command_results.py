"""What each command prints and writes, run inside this process."""

import errno
import json
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from commands import fail, run, run_json
from gem_ood import Energy, Head, load
from gem_ood._version import __version__
from gem_ood.cli import app
from gem_ood.metrics import evaluate

NAMES = np.array(["cat", "dog", "eel"])


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    rng = np.random.default_rng(0)
    means = 4.0 * rng.normal(size=(3, 6))
    for name, n_rows in {"train": 600, "held_out": 400, "test": 300}.items():
        labels = rng.integers(0, 3, n_rows)
        np.savez(folder / f"{name}.npz", features=means[labels] + rng.normal(size=(n_rows, 6)), labels=NAMES[labels])
    np.savez(folder / "noise.npz", features=6.0 * rng.normal(size=(200, 6)))
    np.savez(folder / "head.npz", weight=means, bias=-0.5 * (means**2).sum(axis=1))
    for method in ("gem", "mahalanobis"):
        run("fit", folder / "train.npz", "--out", folder / f"{method}.safetensors", "--method", method)
    run("calibrate", folder / "gem.safetensors", folder / "held_out.npz", "--out", folder / "ready.safetensors")
    return folder


def test_the_version_is_printed() -> None:
    assert run("--version") == f"gem-ood {__version__}\n"


def test_fit_says_what_it_learned_and_saves_it(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "gem.safetensors"
    output = run("fit", data / "train.npz", "--out", out)
    assert "Fitted gem to 600 rows of 6 features" in output
    assert "3 classes: cat, dog, eel" in output
    assert f"gem-ood calibrate {out} FILE" in output
    result = run_json("fit", data / "train.npz", "--out", out, "--covariance", "0.1", "--priors", "empirical")
    assert result["classes"] == ["cat", "dog", "eel"]
    assert (result["n_rows"], result["n_features"], result["has_labels"]) == (600, 6, True)
    detector = load(out)
    assert (detector.covariance, detector.priors) == (0.1, "empirical")


def test_fit_without_labels_is_one_class(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "gem.safetensors"
    assert "all rows are one class" in run("fit", data / "train.npz", "--out", out, "--no-labels")
    assert len(load(out).classes_) == 1
    assert "all rows are one class" in run("fit", data / "noise.npz", "--out", out, "--covariance", "oas")


def test_fit_passes_every_option_on(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "gem.safetensors"
    run("fit", data / "train.npz", "--out", out, "--normalize", "--relative", "--covariance", "ledoit-wolf")
    detector = load(out)
    assert (detector.normalize, detector.relative, detector.covariance) == (True, True, "ledoit-wolf")


def test_scores_of_logits_read_features_through_the_head(data: Path, tmp_path: Path) -> None:
    out, scores = tmp_path / "energy.safetensors", tmp_path / "scores.npz"
    run(
        "fit", data / "train.npz", "--out", out, "--method", "energy", "--head", data / "head.npz", "--temperature", "2"
    )
    run("score", out, data / "test.npz", "--out", scores)
    with np.load(data / "head.npz") as file:
        head = Head(file["weight"], file["bias"])
    with np.load(data / "test.npz") as file:
        expected = Energy(head=head, temperature=2.0).fit(file["features"]).score_samples(file["features"])
    with np.load(scores) as file:
        np.testing.assert_allclose(file["score"], expected, rtol=1e-12)


def test_logits_are_named_by_their_column(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "msp.safetensors"
    output = run("fit", data / "noise.npz", "--out", out, "--method", "msp")
    assert "6 logits, named by their column: 0, 1, 2, 3, 4, 5" in output


def test_calibrate_prints_the_guarantee_and_keeps_the_old_file_with_out(data: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.safetensors"
    before = (data / "gem.safetensors").read_bytes()
    result = run_json("calibrate", data / "gem.safetensors", data / "held_out.npz", "--tpr", "0.9", "--out", other)
    assert (data / "gem.safetensors").read_bytes() == before
    threshold = load(other).threshold_
    assert result["threshold"] == threshold.value
    assert result["guarantee"] == threshold.guarantee
    assert (result["tpr"], result["method"], result["n_rows"]) == (0.9, "conformal", 400)
    assert threshold.guarantee in run("calibrate", other, data / "held_out.npz", "--tpr", "0.9")


def test_calibrate_overwrites_the_detector_without_out(data: Path, tmp_path: Path) -> None:
    path = tmp_path / "gem.safetensors"
    path.write_bytes((data / "gem.safetensors").read_bytes())
    result = run_json("calibrate", path, data / "held_out.npz", "--confidence", "0.9")
    assert load(path).threshold_.confidence == 0.9
    assert (result["method"], result["detector"]) == ("pac", str(path))


@pytest.mark.parametrize("suffix", ["csv", "parquet", "npz", "jsonl"])
def test_score_writes_every_row_in_every_format(suffix: str, data: Path, tmp_path: Path) -> None:
    out = tmp_path / f"scores.{suffix}"
    result = run_json("score", data / "ready.safetensors", data / "test.npz", "--out", out)
    with np.load(data / "test.npz") as file:
        expected = load(data / "ready.safetensors").verdicts(file["features"])
    assert result["n_rows"] == 300
    assert result["n_ood"] == int(expected.is_ood.sum())
    assert result["ood_share"] == pytest.approx(expected.is_ood.mean())
    assert result["score_quantiles"]["minimum"] == expected.score.min()
    if suffix == "parquet":
        table = pq.read_table(out).to_pydict()
        assert table["nearest_class"] == expected.nearest_class.tolist()
        assert table["is_ood"] == expected.is_ood.tolist()
        np.testing.assert_array_equal(table["score"], expected.score)
        np.testing.assert_array_equal(table["p_value"], expected.p_value)
    else:
        assert out.stat().st_size > 0


def test_score_shows_the_first_ten_rows_as_plain_text_in_a_pipe(data: Path) -> None:
    lines = run("score", data / "ready.safetensors", data / "test.npz").splitlines()
    assert lines[0].startswith("300 rows, ")
    header = next(place for place, line in enumerate(lines) if line.startswith("row "))
    assert lines[header].split() == ["row", "score", "p_value", "is_ood", "nearest_class"]
    assert [line.split()[0] for line in lines[header + 1 : header + 11]] == [str(row) for row in range(10)]
    assert lines[-1] == "... and 290 more rows"
    assert all(character not in "\n".join(lines) for character in "│╭\x1b")


def test_score_works_uncalibrated_and_says_so(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "scores.csv"
    output = run("score", data / "gem.safetensors", data / "test.npz", "--out", out)
    assert "no verdicts" in output
    assert "is not calibrated" in output
    assert out.read_text().splitlines()[0] == "score,nearest_class"
    result = run_json("score", data / "gem.safetensors", data / "test.npz")
    assert (result["is_calibrated"], result["ood_share"]) == (False, None)


def test_evaluate_compares_detectors_in_percent(data: Path) -> None:
    arguments = ("evaluate", data / "ready.safetensors", data / "mahalanobis.safetensors")
    files = ("--id", data / "test.npz", "--ood", f"noise={data / 'noise.npz'}", "--ood", f"train={data / 'train.npz'}")
    metrics = ("--metrics", "fpr,auroc,aupr_in,aupr_out")
    lines = run(*arguments, *files, *metrics).splitlines()
    titles = ["FPR95 ↓", "AUROC ↑", "AUPR in ↑", "AUPR out ↑", "flagged", "ID error", "ID kept", "s/10k"]
    assert re.split(r" {2,}", lines[0].strip()) == ["OOD set", "detector", *titles]
    firsts = [tuple(line.split()[:2]) for line in lines[1:9] if line]
    assert firsts == [(kind, name) for kind in ("noise", "train", "mean") for name in ("ready", "mahalanobis")]
    ready = load(data / "ready.safetensors")
    with np.load(data / "noise.npz") as noise, np.load(data / "test.npz") as test:
        scores = ready.score_samples(test["features"]), ready.score_samples(noise["features"])
        flagged, kept = ready.is_ood(noise["features"]).mean(), 1.0 - ready.is_ood(test["features"]).mean()
        error = (ready.verdicts(test["features"]).nearest_class != test["labels"]).mean()
    expected = evaluate(*scores)
    shown = [expected.fpr, expected.auroc, expected.aupr_in, expected.aupr_out, flagged]
    assert lines[1].replace("*", "").split()[2:] == [f"{100 * value:.2f}" for value in shown]
    assert lines[7].split()[-3:-1] == [f"{100 * error:.2f}", f"{100 * kept:.2f}"]
    assert lines[8].split()[-2] == "-"
    assert "300 in-distribution rows against noise (200), train (600)" in lines[-3]
    result = run_json(*arguments, *files, "--tpr", "0.9", "--convention", "openood", "--intervals", "delong")
    assert (result["tpr"], result["convention"], result["n_ood"]) == (0.9, "openood", {"noise": 200, "train": 600})
    ready = result["detectors"]["ready"]
    assert ready["evaluations"]["noise"]["convention"] == "openood"
    assert ready["evaluations"]["noise"]["auroc"] > 0.99
    assert ready["flagged"]["noise"] > 0.9
    assert 0.85 < ready["id_kept"] <= 1.0
    assert ready["id_error"] < 0.1
    assert list(ready["evaluations"]["noise"]["intervals"]) == ["auroc"]
    assert result["detectors"]["mahalanobis"]["flagged"] is None


def test_evaluate_shows_intervals_and_one_detector_of_each_name(data: Path, tmp_path: Path) -> None:
    copy = tmp_path / "gem.safetensors"
    copy.write_bytes((data / "gem.safetensors").read_bytes())
    files = ("--id", data / "test.npz", "--ood", f"noise={data / 'noise.npz'}")
    output = run("evaluate", copy, data / "gem.safetensors", *files, "--intervals", "bootstrap")
    assert str(copy) in output
    assert "[" in output


def test_a_singular_covariance_is_one_line_of_warning(data: Path, tmp_path: Path) -> None:
    with np.load(data / "train.npz") as file:
        np.savez(tmp_path / "twice.npz", features=np.hstack([file["features"]] * 2), labels=file["labels"])
    arguments = ["fit", str(tmp_path / "twice.npz"), "--out", str(tmp_path / "gem.safetensors"), "--json"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0
    assert result.stderr.startswith("gem-ood: warning: ")
    assert result.stderr.count("\n") == 1
    assert json.loads(result.stdout)["n_features"] == 12


def test_bad_requests_are_one_line(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.safetensors"
    train, gem, test = data / "train.npz", data / "gem.safetensors", data / "test.npz"
    noise = f"noise={data / 'noise.npz'}"
    narrow = data / "narrow.npy"
    np.save(narrow, np.ones((3, 4)))
    cases = {
        ("fit", train, "--out", out, "--method", "gme"): "there is no detector 'gme'; choose one of gem",
        (
            "fit",
            train,
            "--out",
            out,
            "--method",
            "mahalanobis",
            "--priors",
            "empirical",
        ): "mahalanobis has no option --priors; leave it out",
        ("fit", train, "--out", out, "--temperature", "2"): "gem has no option --temperature; leave it out",
        ("fit", train, "--out", out, "--method", "msp", "--temperature", "0"): "--temperature is 0; pass a positive",
        ("fit", train, "--out", out, "--method", "msp", "--normalize"): "msp has no option --normalize; leave it out",
        ("fit", train, "--out", out, "--covariance", "oops"): "--covariance is 'oops'",
        ("fit", train, "--out", out, "--covariance", "1.5"): "--covariance is '1.5'",
        ("fit", train, "--out", out, "--priors", "oops"): "--priors",
        ("fit", train, "--out", out, "--labels", "labels", "--no-labels"): "contradict each other",
        ("fit", train, "--out", out, "--labels", "target"): "no array 'target' for the labels",
        ("fit", train, "--out", out, "--features", "x"): "no array 'x' for the features",
        ("fit", train, "--out", out, "--method", "msp", "--head", train): "must hold one 'weight'",
        ("fit", train, "--out", tmp_path / "out.pkl"): "has the suffix '.pkl' but .safetensors can be written",
        ("fit", train, "--out", tmp_path / "no" / "out.safetensors"): "does not exist; create it first",
        ("fit", data / "noise.npz", "--out", out, "--relative"): "a relative score compares classes",
        ("fit", train): "Missing option '--out'",
        ("fit", tmp_path / "no.npz", "--out", out): "no.npz does not exist",
        ("oops",): "there is no command 'oops'",
        ("calibrate", gem, test, "--tpr", "95"): "tpr must lie strictly between 0 and 1",
        ("calibrate", gem, test, "--tpr", "0.9999"): "rows",
        ("calibrate", gem, train, "--features", "labels"): "features have two dimensions",
        ("calibrate", tmp_path / "no.safetensors", test): "no.safetensors does not exist",
        ("calibrate", data / "train.npz", test): "is given where a saved detector (.safetensors) must be",
        ("score", test, test): "is given where a saved detector (.safetensors) must be",
        ("score", gem, narrow): "has 4 features but the GEM detector was fitted on 6",
        ("score", gem, test, "--out", test): "which is also read; name another file",
        ("score", gem, test, "--out", tmp_path / "scores.txt"): "has the suffix '.txt'",
        ("demo", "--seed", "-1"): "--seed",
        ("demo", "--out", tmp_path / "x.txt"): "has the suffix '.txt' but .safetensors can be written",
        ("demo", "--out", tmp_path / "no" / "x.safetensors"): "does not exist; create it first",
        ("evaluate", gem, "--id", test, "--ood", "=noise.npz"): "must be FILE or NAME=FILE",
        ("evaluate", gem, "--id", test, "--ood", "noise="): "must be FILE or NAME=FILE",
        ("evaluate", gem, "--id", test, "--ood", noise, "--ood", noise): "names 'noise' twice",
        ("evaluate", gem, gem, "--id", test, "--ood", noise): "a detector is given twice",
        ("evaluate", gem, "--id", test, "--ood", noise, "--tpr", "2"): "tpr must lie strictly between 0 and 1",
    }
    for arguments, message in cases.items():
        assert message in fail(*arguments), arguments
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_one_line_and_keeps_the_old_detector(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "gem.safetensors"
    path.write_bytes((data / "gem.safetensors").read_bytes())

    def no_room(self: Path, *_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self))

    monkeypatch.setattr(Path, "write_bytes", no_room)
    assert "No space left on device" in fail("calibrate", path, data / "held_out.npz")
    assert path.read_bytes() == (data / "gem.safetensors").read_bytes()
    assert list(tmp_path.iterdir()) == [path]


def test_a_bad_row_far_down_leaves_nothing_behind(data: Path, tmp_path: Path) -> None:
    features = np.zeros((100_000, 6))
    features[99_999, 3] = np.nan
    np.save(tmp_path / "bad.npy", features)
    for suffix in ("csv", "parquet", "npz", "jsonl"):
        error = fail("score", data / "ready.safetensors", tmp_path / "bad.npy", "--out", tmp_path / f"out.{suffix}")
        assert "bad.npy: features row 99999, column 3 is NaN" in error
    assert "row 99999" in fail("fit", tmp_path / "bad.npy", "--out", tmp_path / "out.safetensors")
    assert [path.name for path in tmp_path.iterdir()] == ["bad.npy"]
