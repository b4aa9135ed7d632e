"""What `gem-ood certify` prints, writes and refuses, run inside this process."""

import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from commands import fail, run, run_json
from gem_ood import load
from gem_ood.theory import certify

NAMES = np.array(["cat", "dog", "eel"])


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certify")
    rng = np.random.default_rng(0)
    means = 3.0 * rng.normal(size=(3, 6))
    for name, n_rows in {"train": 3000, "held_out": 1000, "test": 2000}.items():
        labels = rng.integers(0, 3, n_rows)
        np.savez(folder / f"{name}.npz", features=means[labels] + rng.normal(size=(n_rows, 6)), labels=NAMES[labels])
    noise = means.mean(axis=0) + 2.0 * rng.normal(size=(1500, 6))
    np.savez(folder / "noise.npz", features=noise)
    np.save(folder / "mean.npy", noise.mean(axis=0))
    run("fit", folder / "train.npz", "--out", folder / "gem.safetensors")
    run("fit", folder / "train.npz", "--out", folder / "mahalanobis.safetensors", "--method", "mahalanobis")
    run("fit", folder / "train.npz", "--out", folder / "relative.safetensors", "--relative")
    run("fit", folder / "train.npz", "--out", folder / "msp.safetensors", "--method", "msp")
    run("calibrate", folder / "gem.safetensors", folder / "held_out.npz", "--out", folder / "ready.safetensors")
    return folder


def test_help_has_an_example() -> None:
    assert "Examples:\n  gem-ood certify " in run("certify", "--help")


def test_everything_is_printed_in_order(data: Path) -> None:
    output = run("certify", data / "ready.safetensors", "--ood", data / "noise.npz", "--id", data / "test.npz")
    parts = ["What the theory says", "Predicted and measured", "Are the classes Gaussian?", "In plain words"]
    places = [output.index(part) for part in parts]
    assert places == sorted(places)
    assert "predicted FPR, GEM (B3)" in output
    for row in ("keeps 95 % of the ID rows", "the detector's own", "certified (B4)", "all rows", "cat", "dog", "eel"):
        assert f"\n{row} " in output
    assert "describe these rows closely" in output


def test_json_holds_what_the_library_returns(data: Path) -> None:
    printed = run_json(
        "certify", data / "gem.safetensors", "--ood", data / "noise.npz", "--id", data / "test.npz", "--tpr", 0.9
    )
    with np.load(data / "noise.npz") as noise, np.load(data / "test.npz") as test:
        detector = load(data / "gem.safetensors")
        result = certify(detector, ood=noise["features"], id=test["features"], id_labels=test["labels"], tpr=0.9)
    assert printed["predicted_fpr"] == pytest.approx(result.predicted_fpr)
    assert printed["analysis"]["half_distances"] == pytest.approx(result.analysis.half_distances.tolist())
    assert printed["rates"][0]["measured_fpr"] == result.rates[0].measured_fpr
    assert printed["diagnosis"]["by_class"][0]["name"] == "cat"
    assert printed["diagnosis"]["mix"]["names"] == NAMES.tolist()
    assert printed["diagnosis"]["mix"]["distance"] == pytest.approx(result.diagnosis.mix.distance)
    assert len(printed["diagnosis"]["kurtosis"]["by_direction"]) == 6
    assert printed["summary"] == list(result.summary)
    assert printed["figure"] is None


def test_mahalanobis_is_certified_in_its_own_units(data: Path) -> None:
    both = [
        run_json("certify", data / f"{name}.safetensors", "--ood", data / "noise.npz")["rates"][-1]
        for name in ("gem", "mahalanobis")
    ]
    assert both[1]["threshold"] == pytest.approx(2.0 * both[0]["threshold"])


def test_without_in_distribution_rows_it_says_what_to_pass(data: Path) -> None:
    output = run("certify", data / "gem.safetensors", "--ood", data / "noise.npz")
    assert "Are the classes Gaussian?" not in output
    assert "is not tested: pass held-out in-distribution rows" in output
    calibrated = run("certify", data / "ready.safetensors", "--ood", data / "noise.npz")
    assert "keeps 95 % of the calibration rows" in calibrated
    assert "The scores of 1,000 calibration rows are" in calibrated


def test_rows_without_labels_count_for_the_nearest_class(data: Path, tmp_path: Path) -> None:
    with np.load(data / "test.npz") as test:
        np.save(tmp_path / "rows.npy", test["features"])
        np.save(tmp_path / "labels.npy", test["labels"])
    common = ("certify", data / "gem.safetensors", "--ood", data / "noise.npz", "--id", tmp_path / "rows.npy")
    assert "to the nearest class mean" in run(*common)
    assert "to the own class mean" in run(*common, "--labels", tmp_path / "labels.npy")


@pytest.mark.parametrize("suffix", ["npz", "csv", "parquet"])
@pytest.mark.parametrize("is_named", [True, False], ids=["named", "absent"])
def test_named_labels_are_left_out_of_the_other_file_but_not_demanded(
    data: Path, tmp_path: Path, suffix: str, is_named: bool
) -> None:
    with np.load(data / "test.npz") as test, np.load(data / "noise.npz") as noise:
        inside, targets, outside = test["features"], test["labels"], noise["features"]
    np.savez(tmp_path / "inside.npz", features=inside, target=targets)
    target = {"target": np.zeros(len(outside))} if is_named else {}
    columns = {f"x{place}": outside[:, place] for place in range(6)}
    if suffix == "npz":
        np.savez(tmp_path / "outside.npz", features=outside, **target)
    elif suffix == "parquet":
        pq.write_table(pa.table({**target, **columns}), tmp_path / "outside.parquet")
    else:
        table = np.column_stack([*target.values(), *columns.values()])
        np.savetxt(tmp_path / "outside.csv", table, "%.17g", ",", header=",".join([*target, *columns]), comments="")
    common = ("certify", data / "gem.safetensors", "--id", tmp_path / "inside.npz", "--labels", "target")
    found = run_json(*common, "--ood", tmp_path / f"outside.{suffix}")
    expected = run_json(*common, "--ood", data / "noise.npz")
    assert found["diagnosis"]["has_labels"]
    assert found["rates"][0]["measured_fpr"] == expected["rates"][0]["measured_fpr"]


def test_labels_as_text_in_the_other_file_are_left_out_without_a_warning(data: Path, tmp_path: Path) -> None:
    with np.load(data / "test.npz") as test, np.load(data / "noise.npz") as noise:
        np.savez(tmp_path / "inside.npz", features=test["features"], target=test["labels"])
        columns = {f"x{place}": noise["features"][:, place] for place in range(6)}
    pq.write_table(pa.table({"target": ["noise"] * 1500, **columns}), tmp_path / "outside.parquet")
    common = ("certify", data / "gem.safetensors", "--id", tmp_path / "inside.npz", "--labels", "target")
    assert run_json(*common, "--ood", tmp_path / "outside.parquet")["n_ood"] == 1500


def test_a_mean_of_other_things_than_numbers_is_called_so(data: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "complex.npy", np.ones(6) + 1j)
    np.save(tmp_path / "row.npy", np.ones((1, 6)) + 1j)
    np.savez(tmp_path / "text.npz", mean=np.array(list("abcdef")))
    for name, kind in {"complex.npy": "complex numbers", "row.npy": "complex numbers", "text.npz": "text"}.items():
        message = fail("certify", data / "gem.safetensors", "--ood-mean", tmp_path / name)
        assert f"holds {kind} but --ood-mean takes real numbers" in message
    (tmp_path / "row.csv").write_text("a,b,c,d,e,f\n1,2,3,4,5,x\n")
    message = fail("certify", data / "gem.safetensors", "--ood-mean", tmp_path / "row.csv")
    assert "holds other things in 'f' but --ood-mean takes numbers" in message


def test_the_mean_may_come_in_any_format(data: Path, tmp_path: Path) -> None:
    mean = np.load(data / "mean.npy")
    np.save(tmp_path / "row.npy", mean[np.newaxis])
    np.savez(tmp_path / "vector.npz", mean=mean)
    np.savez(tmp_path / "row.npz", features=mean[np.newaxis])
    (tmp_path / "row.csv").write_text(
        ",".join(f"x{place}" for place in range(6)) + "\n" + ",".join(map(repr, mean.tolist())) + "\n"
    )
    pq.write_table(pa.table({f"x{place}": [value] for place, value in enumerate(mean)}), tmp_path / "row.parquet")
    expected = run_json("certify", data / "gem.safetensors", "--ood-mean", data / "mean.npy")
    assert expected["n_ood"] == 0
    assert expected["rates"][0]["measured_fpr"] is None
    for name in ("row.npy", "vector.npz", "row.npz", "row.csv", "row.parquet"):
        found = run_json("certify", data / "gem.safetensors", "--ood-mean", tmp_path / name)
        assert found["predicted_fpr"] == pytest.approx(expected["predicted_fpr"]), name


@pytest.mark.parametrize("suffix", [".png", ".svg", ".pdf"])
def test_the_figure_is_written(data: Path, tmp_path: Path, suffix: str) -> None:
    pytest.importorskip("matplotlib")
    figure = tmp_path / f"qq{suffix}"
    output = run(
        "certify", data / "gem.safetensors", "--ood", data / "noise.npz", "--id", data / "test.npz", "--figure", figure
    )
    assert figure.stat().st_size > 5_000
    assert f"Figure: {figure}" in output


def test_only_the_worst_of_many_classes_are_shown(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    labels = np.arange(3000) % 15
    rows = rng.normal(size=(3000, 4)) + 10.0 * rng.normal(size=(15, 4))[labels]
    np.savez(tmp_path / "train.npz", features=rows[:1500], labels=labels[:1500])
    np.savez(tmp_path / "test.npz", features=rows[1500:], labels=labels[1500:])
    np.save(tmp_path / "ood.npy", rng.normal(size=(50, 4)))
    run("fit", tmp_path / "train.npz", "--out", tmp_path / "gem.safetensors")
    arguments = ("certify", tmp_path / "gem.safetensors", "--ood", tmp_path / "ood.npy", "--id", tmp_path / "test.npz")
    assert "The 10 of 15 classes that are farthest" in run(*arguments)
    assert len(run_json(*arguments)["diagnosis"]["by_class"]) == 15


def test_columns_are_picked_by_the_names_of_the_fit(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    rows, labels = rng.normal(size=(500, 3)), np.arange(500) % 2
    columns = {name: rows[:, place] + 5.0 * labels for place, name in enumerate("abc")}
    pq.write_table(pa.table({**columns, "label": labels}), tmp_path / "train.parquet")
    pq.write_table(
        pa.table({"c": columns["c"], "extra": labels, "b": columns["b"], "a": columns["a"]}), tmp_path / "new.parquet"
    )
    run("fit", tmp_path / "train.parquet", "--out", tmp_path / "gem.safetensors")
    result = run_json(
        "certify", tmp_path / "gem.safetensors", "--ood", tmp_path / "new.parquet", "--id", tmp_path / "train.parquet"
    )
    assert result["rates"][0]["measured_fpr"] == pytest.approx(0.95, abs=0.005)


def test_bad_input_is_one_clear_line(data: Path, tmp_path: Path) -> None:
    gem, noise, test = data / "gem.safetensors", data / "noise.npz", data / "test.npz"
    np.savez(tmp_path / "strange.npz", features=np.zeros((3, 6)), labels=["cat", "emu", "yak"])
    np.save(tmp_path / "short.npy", np.zeros(5))
    np.save(tmp_path / "narrow.npy", np.zeros((4, 5)))
    assert "either --ood" in fail("certify", gem)
    assert "either --ood" in fail("certify", gem, "--ood", noise, "--ood-mean", data / "mean.npy")
    assert "pass rows with --ood" in fail("certify", gem, "--ood-mean", noise)
    assert "fitted on 6 features" in fail("certify", gem, "--ood-mean", tmp_path / "short.npy")
    assert "has 5 features" in fail("certify", gem, "--ood", tmp_path / "narrow.npy")
    assert "'emu', 'yak'" in fail("certify", gem, "--ood", noise, "--id", tmp_path / "strange.npz")
    assert "does not exist" in fail("certify", gem, "--ood", tmp_path / "absent.npz")
    assert "does not exist" in fail("certify", gem, "--ood-mean", tmp_path / "absent.npz")
    assert "tpr" in fail("certify", gem, "--ood", noise, "--tpr", 1.5)
    assert "relative to a background" in fail("certify", data / "relative.safetensors", "--ood", noise)
    assert "GEM or Mahalanobis" in fail("certify", data / "msp.safetensors", "--ood", noise)
    assert "where a saved detector (.safetensors) must be" in fail("certify", test, "--ood", noise)


def test_a_figure_that_cannot_be_made_is_refused_before_the_work(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    common = ("certify", data / "gem.safetensors", "--ood", data / "noise.npz")
    test = ("--id", data / "test.npz")
    assert "pass them with --id" in fail(*common, "--figure", tmp_path / "qq.png")
    assert ".png .svg .pdf can be written" in fail(*common, *test, "--figure", tmp_path / "qq.gif")
    assert "create it first" in fail(*common, *test, "--figure", tmp_path / "absent" / "qq.png")
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert 'pip install "gem-ood[report]"' in fail(*common, *test, "--figure", tmp_path / "qq.png")
    assert not (tmp_path / "qq.png").exists()
