"""`--engine ray`: the same files, numbers and words as the local engine."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from commands import fail, run, run_json
from gem_ood import load
from gem_ood.files import open_features

pytest.importorskip("ray", reason="Ray is not installed")

from gem_ood.ray import pieces

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


@pytest.fixture
def beside(tmp_path):
    """Labels of all rows in one file: any run of them is unlike any other."""
    labels = np.random.default_rng(2).integers(0, 5, 1100)
    np.save(tmp_path / "labels.npy", labels)
    return tmp_path / "labels.npy", labels


def test_labels_of_a_file_beside_belong_to_the_rows_of_all_files(place, beside, tmp_path, monkeypatch):
    monkeypatch.setattr(pieces, "BYTES_PER_PIECE", 1)  # each row group is a piece
    out, found = tmp_path / "d.safetensors", {}
    for engine in ("local", "ray"):
        fit = run_json("fit", place / "train", "--out", out, "--labels", beside[0], "--engine", engine)
        found[engine] = fit, load(out).statistics_, run_json("calibrate", out, place / "held_out")["threshold"]
    assert found["ray"][0] == found["local"][0]
    ours, theirs = found["ray"][1], found["local"][1]
    assert ours.counts.tolist() == theirs.counts.tolist() == np.bincount(beside[1]).tolist()
    np.testing.assert_allclose(ours.means, theirs.means, rtol=1e-9)
    assert found["ray"][2] == pytest.approx(found["local"][2], rel=1e-9)


@pytest.mark.parametrize("rows_per_part", [1, 200, 5000])
@pytest.mark.parametrize("batch_rows", [7, None])
def test_every_piece_has_the_labels_of_its_own_rows(place, beside, rows_per_part, batch_rows):
    file = open_features(place / "train", labels=beside[0])
    cuts = list(pieces.cut(file, rows_per_part=rows_per_part))
    assert len(cuts) == {1: 13, 200: 7, 5000: 2}[rows_per_part]  # row groups of 90 rows, in files of 700 and 400
    labels = [labels for piece in cuts for _, labels in piece.batches(batch_rows)]
    np.testing.assert_array_equal(np.concatenate(labels), beside[1])


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
