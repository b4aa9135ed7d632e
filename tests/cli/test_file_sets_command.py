"""Commands take a directory or a pattern of Parquet files wherever they take a file of rows."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from commands import fail, run, run_json
from gem_ood import load
from gem_ood.cli import app, score_summary
from gem_ood.cli.score_summary import QUANTILES, ScoreSummary
from gem_ood.files import open_features
from gem_ood.files.part_directories import part_directory
from gem_ood.files.streaming import directory_parts, input_states, score_plan, write_verdicts

PROGRAM = [sys.executable, "-c", "from gem_ood.cli import main; main()"]
FILES = {"0.parquet": 200, "more/1.parquet": 150, "more/2.parquet": 50}


def write_rows(path: Path, n_rows: int, seed: int, *, shift: float = 0.0) -> None:
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 3, n_rows)
    features = 8.0 * np.eye(3, 5)[labels] + rng.normal(size=(n_rows, 5)) + shift
    path.parent.mkdir(parents=True, exist_ok=True)
    columns = {"features": list(features.astype(np.float32)), "label": np.array(["ant", "bee", "cat"])[labels]}
    pq.write_table(pa.table(columns), path, row_group_size=40)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    for seed, set_name in enumerate(("train", "held_out", "new", "far")):
        for place, (name, n_rows) in enumerate(FILES.items()):
            path = tmp_path / set_name / name
            write_rows(path, n_rows, 10 * seed + place, shift=30.0 if set_name == "far" else 0.0)
    run("fit", tmp_path / "train", "--out", tmp_path / "gem.safetensors")
    run("calibrate", tmp_path / "gem.safetensors", tmp_path / "held_out")
    return tmp_path


def rows_of(path: Path) -> Any:
    names = sorted(path.rglob("*.parquet"))
    return np.concatenate([np.stack(pq.read_table(name)["features"].to_numpy()) for name in names])


def test_a_directory_is_fitted_calibrated_and_scored_as_one_file_of_all_rows(data: Path) -> None:
    for name in ("train", "held_out", "new"):
        parts = [pq.read_table(path) for path in sorted((data / name).rglob("*.parquet"))]
        pq.write_table(pa.concat_tables(parts), data / f"{name}.parquet")
    one = data / "one.safetensors"
    fitted = run_json("fit", data / "train.parquet", "--out", one)
    by_directory = run_json("fit", data / "train", "--out", data / "gem.safetensors")
    assert {**by_directory, "detector": None} == {**fitted, "detector": None}
    thresholds = [
        run_json("calibrate", detector, rows)["threshold"]
        for detector, rows in ((one, data / "held_out.parquet"), (data / "gem.safetensors", data / "held_out"))
    ]
    assert thresholds[0] == pytest.approx(thresholds[1], rel=1e-12)
    outs = [data / "one.csv", data / "set.csv"]
    run("score", one, data / "new.parquet", "--out", outs[0])
    run("score", one, data / "new", "--out", outs[1])
    whole, parted = (pa_csv.read_csv(out) for out in outs)
    np.testing.assert_allclose(parted["score"], whole["score"], rtol=1e-12)  # batches differ, and with them rounding
    assert parted.drop_columns("score") == whole.drop_columns("score")
    far = ("--ood", f"far={data / 'far'}", "--no-time")
    by_file = run_json("evaluate", one, "--id", data / "new.parquet", *far)
    assert run_json("evaluate", one, "--id", data / "new", *far) == by_file


def test_a_pattern_is_what_matches_it(data: Path) -> None:
    assert run_json("score", data / "gem.safetensors", data / "new" / "*.parquet")["n_rows"] == 200
    assert run_json("score", data / "gem.safetensors", data / "new" / "more" / "*")["n_rows"] == 200
    assert run_json("score", data / "gem.safetensors", data / "n*w")["n_rows"] == 400
    assert "matches no .parquet file" in fail("score", data / "gem.safetensors", data / "old" / "*.parquet")


def test_scores_go_to_a_directory_of_the_same_names(data: Path) -> None:
    gem = data / "gem.safetensors"
    result = run_json("score", gem, data / "new", "--out", data / "scores")
    found = [path.relative_to(data / "scores").as_posix() for path in sorted((data / "scores").rglob("*.parquet"))]
    assert found == list(FILES)
    tables = [pq.read_table(data / "scores" / name) for name in found]
    assert [table.num_rows for table in tables] == list(FILES.values())
    expected = load(gem).verdicts(rows_of(data / "new"))
    scores = pa.concat_tables(tables)
    np.testing.assert_allclose(scores["score"].to_numpy(), expected.score, rtol=1e-6)
    assert scores["nearest_class"].to_pylist() == expected.nearest_class.tolist()
    assert expected.is_ood is not None
    assert (result["n_rows"], result["n_ood"], result["out"]) == (400, expected.is_ood.sum(), str(data / "scores"))
    assert result["quantiles_are_exact"] is True
    assert not list(data.glob(".scores*"))
    assert "400 rows" in run("score", gem, data / "new", "--out", data / "again")
    (data / "empty").mkdir()
    run("score", gem, data / "new" / "*.parquet", "--out", data / "empty")
    assert [path.name for path in (data / "empty").iterdir()] == ["0.parquet"]


def test_what_cannot_be_written_is_refused_before_any_work(data: Path) -> None:
    gem = data / "gem.safetensors"
    (data / "scores").mkdir()
    (data / "scores" / "old.txt").write_text("x")
    error = fail("score", gem, data / "new", "--out", data / "scores")
    assert "scores is a directory that is not empty; remove it, or name another" in error
    assert "the directory" in fail("score", gem, data / "new", "--out", data / "nowhere" / "scores")
    for out in ("new/scores", "new/scores.parquet", "new", "new/more"):
        assert "which is read; name another place" in fail("score", gem, data / "new", "--out", data / out)
    assert "which is read" in fail("fit", data / "new", "--out", data / "new" / "gem.safetensors")
    out = data / "new" / "0.parquet"
    assert "which is also read" in fail("score", gem, data / "new" / "*.parquet", "--out", out)
    for name in ("scores.d", "scores.tar"):
        assert fail("score", gem, data / "new", "--out", data / name).endswith(
            f"{name} has the suffix {Path(name).suffix!r} but .csv .parquet .npz .jsonl can be written; rename it, or "
            f"name it without a suffix for a directory of .parquet files\n"
        )
    for name in ("one", "scores"):
        assert fail("score", gem, data / "new" / "0.parquet", "--out", data / name).endswith(
            f"{name} has the suffix '(none)' but .csv .parquet .npz .jsonl can be written; rename it, or pass a "
            f"directory or pattern of .parquet files as FILE to write a directory of them\n"
        )
    assert "does not exist" in fail("score", gem, data / "old", "--out", data / "one")
    assert not (data / "one").exists()


def spoil(path: Path) -> None:
    table = pq.read_table(path)
    rows = [list(row) for row in table["features"].to_pylist()]
    rows[7][2] = float("nan")
    pq.write_table(table.set_column(0, "features", pa.array(rows, pa.list_(pa.float32()))), path)


def errors(*arguments: Any, exit_code: int = 2) -> list[str]:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == exit_code, result.output
    return result.stderr.splitlines()


def kept(data: Path) -> str:
    folder = data / ".scores.partial"
    return f"gem-ood: note: the files that are complete are kept in {folder}; run the same again to go on from there"


@pytest.fixture(params=["local", "ray"])
def engine(request: pytest.FixtureRequest) -> tuple[str, str]:
    if request.param == "ray":
        request.getfixturevalue("ray_session")
    return ("--engine", request.param)


def test_a_bad_file_leaves_the_others_for_the_next_run_and_says_so(data: Path, engine: tuple[str, str]) -> None:
    gem, out, last = data / "gem.safetensors", data / "scores", data / "new" / "more" / "2.parquet"
    good = last.read_bytes()
    spoil(last)
    bad = f"{last}: features row 7, column 2 is NaN; every value must be finite: remove or impute that row"
    run_it = ("score", gem, data / "new", "--out", out)
    assert errors(*run_it) == [kept(data), f"gem-ood: error: {bad}"]
    # Of the next one, no file is scored: what is kept is from the run before.
    assert errors(*run_it, *engine) == [kept(data), f"gem-ood: error: {bad}"]
    assert not out.exists()
    last.write_bytes(good)
    assert run_json(*run_it, *engine)["n_rows"] == 400
    assert len(list(out.rglob("*.parquet"))) == 3


def test_nothing_is_kept_nor_said_to_be_where_no_file_is_complete(data: Path, engine: tuple[str, str]) -> None:
    for name in FILES:
        spoil(data / "new" / name)
    (error,) = errors("score", data / "gem.safetensors", data / "new", "--out", data / "scores", *engine)
    assert "parquet: features row 7, column 2 is NaN" in error
    assert not list(data.glob(".scores*"))


def test_a_run_beside_another_is_refused_and_claims_none_of_its_files(data: Path, engine: tuple[str, str]) -> None:
    gem, out = data / "gem.safetensors", data / "scores"
    file = open_features(data / "new")
    detector = load(gem)
    with part_directory(out, parts=input_states(file), plan=score_plan(detector, file)) as parts:
        for name, rows in directory_parts(detector, file).items():
            write_verdicts(detector, rows, parts.path_of(name))
        (error,) = errors("score", gem, data / "new", "--out", out, *engine)
        assert error == f"gem-ood: error: another run is writing {out}; wait for it to end, or name another directory"
        assert parts.missing() == ()
    assert len(list(out.rglob("*.parquet"))) == 3


@pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="a process cannot be halted on this system")
def test_an_interrupted_run_is_gone_on_with_and_one_beside_it_is_refused(data: Path) -> None:
    many, partial = data / "many", data / ".scores.partial"
    for place in range(40):
        write_rows(many / f"{place:02}.parquet", 20_000 if place else 50, place)
    arguments = [*PROGRAM, "score", "gem.safetensors", "many", "--out", "scores"]
    process = subprocess.Popen(arguments, cwd=data, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        deadline = time.monotonic() + 90
        while not list(partial.glob("*/*-01.parquet")) and time.monotonic() < deadline:
            time.sleep(0.005)
        process.send_signal(signal.SIGSTOP)
        (refused,) = errors("score", data / "gem.safetensors", many, "--out", data / "scores")
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGCONT)
        _, error = process.communicate(timeout=90)
    finally:
        process.kill()
    assert f"another run is writing {data / 'scores'}; wait for it to end" in refused
    assert process.returncode == 130, error
    assert error.splitlines() == [kept(data), "gem-ood: interrupted; no file is left half-written"]
    assert not (data / "scores").exists()
    written = {path.name.rpartition("-")[2]: path.stat().st_mtime_ns for path in partial.glob("*/*.parquet")}
    assert 2 <= len(written) < 40
    result = run_json("score", data / "gem.safetensors", many, "--out", data / "scores")
    assert result["n_rows"] == 39 * 20_000 + 50
    assert {name: (data / "scores" / name).stat().st_mtime_ns for name in written} == written
    assert not list(data.glob(".scores*"))
    expected = run_json("score", data / "gem.safetensors", many)
    assert {**result, "out": None} == expected


def test_a_label_that_is_no_class_is_mended_with_an_option(data: Path) -> None:
    error = fail("fit", data / "train", "--out", data / "d.safetensors", "--classes", "ant,bee")
    assert "'cat', which is not among the 2 classes of this fit; name every class with --classes, or leave it" in error


def test_info_tells_of_all_files(data: Path) -> None:
    output = run("info", data / "new")
    n_bytes = sum(path.stat().st_size for path in (data / "new").rglob("*.parquet"))
    assert output.startswith(f"{data / 'new'}: rows of features, 3 parquet files, {n_bytes / 1000:.1f} kB\n")
    assert "rows:        400" in output
    result = run_json("info", data / "new")
    assert (result["n_files"], result["n_bytes"], result["rows"]["n_rows"]) == (3, n_bytes, 400)
    assert "1 parquet file," in run("info", data / "new" / "*.parquet")
    rows = [[1.0] * 5, [float("inf")] * 5]
    table = pa.table({"features": pa.array(rows, pa.list_(pa.float32())), "label": ["ant", "bee"]})
    pq.write_table(table, data / "new" / "more" / "3.parquet")
    bad = data / "new" / "more" / "3.parquet"
    assert f"the first is row 1 of {bad}, counted from 0" in run("info", data / "new")


def test_verbose_counts_the_files(data: Path) -> None:
    arguments = ["--verbose", "score", str(data / "gem.safetensors"), str(data / "new")]
    assert f"opened {data / 'new'}: 3 parquet files, 400 rows" in CliRunner().invoke(app, arguments).stderr


# The summary of very many scores


def summary_of(scores: Any, size: int) -> ScoreSummary:
    summary = ScoreSummary()
    for start in range(0, len(scores), size):
        part = scores[start : start + size]
        summary.add({"score": part, "is_ood": part < 0.0, "nearest_class": np.zeros(len(part), dtype=int)})
    return summary


def order_statistics(scores: Any) -> list[float]:
    return np.quantile(scores, list(QUANTILES.values()), method="inverted_cdf").tolist()  # type: ignore[no-any-return]


SCORES = {
    "normal": np.random.default_rng(1).normal(size=30_000),
    "huge": -np.exp(np.random.default_rng(2).uniform(-300, 300, size=30_000)),
    "tied": np.repeat([-3.5, 0.0, 7.25], 10_000),
    "infinitely far": np.r_[np.full(9000, -np.inf), np.random.default_rng(3).normal(size=21_000)],
    "all infinitely far": np.full(3000, -np.inf),
    "tiny": np.random.default_rng(4).normal(size=5000) * 1e-310,
}


@pytest.mark.parametrize("case", SCORES)
@pytest.mark.parametrize("size", [1, 700, 100_000])
def test_few_scores_give_exact_order_statistics_and_many_nearly(
    case: str, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    scores = np.random.default_rng(0).permutation(SCORES[case])[: 500 if size == 1 else None]
    exact = summary_of(scores, size)
    assert exact.is_exact
    assert list(exact.quantiles().values()) == order_statistics(scores)
    monkeypatch.setattr(score_summary, "EXACT_ROWS", 400)
    monkeypatch.setattr(score_summary, "ROWS_AT_ONCE", 150)
    rounded = summary_of(scores, size)
    assert not rounded.is_exact
    found = rounded.quantiles()
    np.testing.assert_allclose(list(found.values()), order_statistics(scores), rtol=2.0**-11, atol=1e-320)
    assert (found["minimum"], found["maximum"]) == (scores.min(), scores.max())
    assert (rounded.n_rows, rounded.n_ood) == (len(scores), (scores < 0).sum())
    assert rounded.quantiles() == found


def test_the_summary_of_many_scores_stays_small() -> None:
    rng = np.random.default_rng(0)
    summary = ScoreSummary()
    for _ in range(25):
        summary.add({"score": rng.normal(size=200_000)})
    assert not summary.is_exact
    assert summary._counts is not None
    assert len(summary._counts[0]) < 100_000
    assert sum(map(len, summary._held)) <= score_summary.ROWS_AT_ONCE
    assert summary.quantiles()["95%"] == pytest.approx(1.645, abs=0.005)
    text = json.dumps(summary.result(is_calibrated=False, out=None))
    assert json.loads(text)["quantiles_are_exact"] is False


def test_an_inexact_quantile_says_so(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(score_summary, "EXACT_ROWS", 100)
    assert "\nScores (quantiles within 0.05 %): minimum " in run("score", data / "gem.safetensors", data / "new")
