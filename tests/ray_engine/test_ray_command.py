"""`--engine ray`: the same files, numbers and words as the local engine."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from commands import fail, run, run_json

pytest.importorskip("ray", reason="Ray is not installed")

pytestmark = pytest.mark.usefixtures("ray_session")

WIDTH = 5
RAY = ("--engine", "ray")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("command")
    rng = np.random.default_rng(0)
    for name, sizes in {"train": (700, 400), "held_out": (300, 1), "new": (200, 0, 150)}.items():
        (folder / name).mkdir()
        for number, n_rows in enumerate(sizes):
            labels = np.arange(n_rows) % 3
            rows = (rng.normal(size=(n_rows, WIDTH)) + 5.0 * np.eye(WIDTH)[labels]).astype(np.float32)
            lists = pa.FixedSizeListArray.from_arrays(pa.array(rows.ravel()), WIDTH)
            table = pa.table({"features": lists, "label": np.array(["ant", "bee", "cat"])[labels]})
            pq.write_table(table, folder / name / f"part-{number}.parquet", row_group_size=90)
    return folder


@pytest.fixture(scope="module")
def detectors(place):
    """The same detector, made by each engine."""
    paths = {}
    for engine in ("local", "ray"):
        paths[engine] = place / f"{engine}.safetensors"
        run("fit", place / "train", "--out", paths[engine], "--engine", engine)
        run("calibrate", paths[engine], place / "held_out", "--engine", engine)
    return paths


def test_fit_and_calibrate_say_the_same_on_both_engines(place, tmp_path):
    for arguments in (("--method", "gem"), ("--method", "mahalanobis", "--covariance", "ledoit-wolf")):
        local, ray = (
            run_json("fit", place / "train", "--out", tmp_path / "d.safetensors", "--engine", engine, *arguments)
            for engine in ("local", "ray")
        )
        assert local == ray
        local, ray = (
            run_json("calibrate", tmp_path / "d.safetensors", place / "held_out", "--engine", engine, "--tpr", 0.9)
            for engine in ("local", "ray")
        )
        assert local.pop("threshold") == pytest.approx(ray.pop("threshold"), rel=1e-9)
        assert local == ray


def test_a_directory_of_verdicts_is_the_same_from_both_engines(place, detectors, tmp_path):
    local = run("score", detectors["local"], place / "new", "--out", tmp_path / "local")
    ray = run("score", detectors["local"], place / "new", "--out", tmp_path / "ray", *RAY)
    assert ray.replace(str(tmp_path / "ray"), "OUT") == local.replace(str(tmp_path / "local"), "OUT")
    names = sorted(path.name for path in (tmp_path / "ray").iterdir())
    assert names == ["part-0.parquet", "part-1.parquet", "part-2.parquet"]
    for name in names:
        assert pq.read_table(tmp_path / "ray" / name).equals(pq.read_table(tmp_path / "local" / name))


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
def test_one_file_of_verdicts_keeps_the_order_of_the_rows(place, detectors, tmp_path, suffix):
    local, ray = tmp_path / f"local.{suffix}", tmp_path / f"ray.{suffix}"
    run("score", detectors["ray"], place / "new", "--out", local)
    run("score", detectors["ray"], place / "new", "--out", ray, *RAY)
    read = pq.read_table if suffix == "parquet" else type(ray).read_text
    assert read(local) == read(ray)


def test_detectors_of_both_engines_judge_alike(place, detectors):
    local, ray = (run_json("score", path, place / "new") for path in detectors.values())
    assert local["n_ood"] == ray["n_ood"]
    assert list(local["score_quantiles"].values()) == pytest.approx(list(ray["score_quantiles"].values()), rel=1e-9)


def test_labels_of_a_file_beside_belong_to_the_rows_of_all_files(place, tmp_path):
    labels = np.arange(1100) % 2
    np.save(tmp_path / "labels.npy", labels)
    out = tmp_path / "d.safetensors"
    for engine in ("local", "ray"):
        run("fit", place / "train", "--out", out, "--labels", tmp_path / "labels.npy", "--engine", engine)
        threshold = run_json("calibrate", out, place / "held_out")["threshold"]
        assert engine == "local" or threshold == pytest.approx(expected, rel=1e-9)
        expected = threshold


def test_every_format_of_rows_is_read(place, tmp_path):
    rows = np.random.default_rng(1).normal(size=(50, WIDTH))
    np.savez(tmp_path / "rows.npz", features=rows, labels=np.arange(50) % 2)
    np.savetxt(tmp_path / "rows.csv", rows, delimiter=",", header="a,b,c,d,e", comments="")
    for name in ("rows.npz", "rows.csv"):
        assert run_json("fit", tmp_path / name, "--out", tmp_path / "d.safetensors", *RAY)["n_rows"] == 50


def test_what_cannot_be_is_one_line(place, detectors, tmp_path):
    out = tmp_path / "d.safetensors"
    assert "--engine ray" in fail("fit", place / "train", "--out", out, "--address", "auto")
    (tmp_path / "bad").mkdir()
    content = (place / "train" / "part-0.parquet").read_bytes()
    (tmp_path / "bad" / "a.parquet").write_bytes(content[: len(content) // 2])
    assert "a.parquet is not a Parquet file" in fail("fit", tmp_path / "bad", "--out", out, *RAY)
    assert "bank" in fail("fit", place / "train", "--out", out, "--method", "knn", *RAY)
    assert not out.exists()
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "file").touch()
    assert "not empty" in fail("score", detectors["ray"], place / "new", "--out", tmp_path / "taken", *RAY)
