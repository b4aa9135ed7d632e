"""A directory of parts is there whole or not at all, and a run that stopped is gone on with."""

import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gem_ood import GEM
from gem_ood.errors import FileFormatError, InputError
from gem_ood.files import open_features, part_directories, score_to_directory, streaming
from gem_ood.files.part_directories import PartDirectory, part_directory
from gem_ood.storage import atomic_path

NAMES = ("a.txt", "inner/b.txt", "inner/deep/c.txt")
PARTS = dict.fromkeys(NAMES)


def write(parts: PartDirectory, *names: str) -> None:
    for name in names:
        with atomic_path(parts.path_of(name)) as temporary:
            temporary.write_text(name)


def contents(path: Path) -> list[str]:
    return sorted(file.relative_to(path).as_posix() for file in path.rglob("*") if file.is_file())


class StopError(Exception):
    """What ends a run in the middle."""


def run(out: Path, *names: str, plan: Any = 1) -> tuple[str, ...]:
    """Write these parts, or what is missing; return what was missing at first."""
    with part_directory(out, parts=PARTS, plan={"input": plan}) as parts:
        missing = parts.missing()
        write(parts, *(names or missing))
        if names:
            raise StopError
    return missing


def stopped(out: Path, *names: str, plan: Any = 1) -> tuple[PartDirectory, StopError]:
    """Write these parts and stop; return what the writers had, and the error."""
    try:
        with part_directory(out, parts=PARTS, plan={"input": plan}) as parts:
            write(parts, *names)
            raise StopError
    except StopError as error:
        return parts, error


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "scores"


def test_the_directory_appears_once_all_parts_are_there(out: Path) -> None:
    with part_directory(out, parts=PARTS, plan={}) as parts:
        assert parts.missing() == NAMES
        write(parts, *NAMES[:2])
        assert parts.missing() == NAMES[2:]
        write(parts, NAMES[2])
        assert not out.exists()
    assert contents(out) == sorted(NAMES)
    assert contents(out.parent) == sorted(f"scores/{name}" for name in NAMES)


def test_the_same_plan_goes_on_and_any_other_starts_clean(out: Path) -> None:
    with pytest.raises(StopError):
        run(out, NAMES[1])
    assert not out.exists()
    with pytest.raises(StopError):
        run(out, NAMES[0])
    folder = out.with_name(".scores.partial")
    (own,) = (path for path in folder.iterdir() if path.is_dir())
    assert [name.rpartition("-")[2] for name in contents(own)] == ["a.txt", "b.txt"]
    assert contents(folder) == sorted(["_plan.json", *(f"{own.name}/{name}" for name in contents(own))])
    assert run(out) == (NAMES[2],)
    for name in NAMES:
        (out / name).unlink()
    (out / "inner" / "deep").rmdir()
    (out / "inner").rmdir()
    with pytest.raises(StopError):
        run(out, NAMES[0], plan=1)
    assert run(out, plan=2) == NAMES
    assert contents(out) == sorted(NAMES)


def test_parts_that_are_missing_at_the_end_are_an_error_and_stay_unpublished(out: Path) -> None:
    with (
        pytest.raises(InputError, match=r"1 of 3 files for .*scores are not there, the first is inner/b.txt; run the"),
        part_directory(out, parts=PARTS, plan={}) as parts,
    ):
        write(parts, NAMES[0], NAMES[2])
    assert not out.exists()


def test_what_a_killed_writer_left_is_not_published(out: Path) -> None:
    with part_directory(out, parts=PARTS, plan={}) as parts:
        write(parts, *NAMES)
        (parts.folder / "inner" / ".b.12345678.txt").write_text("half")
    assert contents(out) == sorted(NAMES)


def test_a_second_run_at_the_same_time_is_refused(out: Path) -> None:
    with part_directory(out, parts=PARTS, plan={}) as parts:
        with (
            pytest.raises(InputError, match=r"another run is writing .*scores; wait for it to end, or name another"),
            part_directory(out, parts=PARTS, plan={}),
        ):
            pytest.fail("two runs at once")
        write(parts, *NAMES)
    assert contents(out) == sorted(NAMES)


def test_a_run_that_was_killed_is_gone_on_with(out: Path) -> None:
    code = (
        "import os, signal\n"
        "from gem_ood.files.part_directories import part_directory\n"
        f"with part_directory('scores', parts={PARTS!r}, plan={{'input': 1}}) as parts:\n"
        "    parts.path_of('a.txt').write_text('a.txt')\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=out.parent, timeout=60, check=False).returncode == -9
    assert not out.exists()
    assert run(out) == NAMES[1:]
    assert contents(out.parent) == sorted(f"scores/{name}" for name in NAMES)


def test_an_empty_directory_is_filled_and_any_other_is_refused_before_the_work(out: Path) -> None:
    out.mkdir()
    run(out)
    with pytest.raises(InputError, match=r"scores is a directory that is not empty; remove it, or name another"):
        run(out)
    other = out.with_name("file")
    other.write_text("x")
    with pytest.raises(InputError, match=r"file is a file, where a directory is to be written"):
        run(other)
    with pytest.raises(InputError, match=r"the directory .*nowhere does not exist; create it first"):
        run(out.parent / "nowhere" / "scores")
    with pytest.raises(InputError, match=r"is where a disk is mounted|is not empty"):
        run(Path("/"))


def test_a_link_to_an_empty_directory_is_followed(out: Path) -> None:
    (out.parent / "far").mkdir()
    out.symlink_to("far")
    run(out)
    assert out.is_symlink()
    assert contents(out.parent / "far") == sorted(NAMES)


def test_files_of_others_under_the_temporary_name_are_left_alone(out: Path) -> None:
    folder = out.with_name(".scores.partial")
    folder.mkdir()
    (folder / "mine.txt").write_text("x")
    with pytest.raises(InputError, match=r"\.scores\.partial is in the way, and no earlier run has left it; remove it"):
        run(out)
    assert (folder / "mine.txt").read_text() == "x"
    (folder / "mine.txt").unlink()
    folder.rmdir()
    folder.symlink_to(out.parent)
    with pytest.raises(InputError, match=r"\.scores\.partial is in the way"):
        run(out)
    folder.unlink()
    folder.write_text("x")
    with pytest.raises(InputError, match=r"\.scores\.partial is in the way"):
        run(out)
    assert folder.read_text() == "x"


def test_a_late_writer_of_a_dead_run_finds_no_folder(out: Path) -> None:
    late = stopped(out)[0]
    with part_directory(out, parts=PARTS, plan={"input": 2}) as parts:
        assert parts.folder != late.folder
        with pytest.raises(FileNotFoundError, match=r"does not exist"):
            write(late, NAMES[1])
        assert parts.missing() == NAMES
        for name in NAMES:
            parts.path_of(name).write_text("new")
    assert [(out / name).read_text() for name in NAMES] == ["new"] * 3
    with pytest.raises(FileNotFoundError, match=r"does not exist"):
        write(parts, NAMES[1])
    assert contents(out.parent) == sorted(f"scores/{name}" for name in NAMES)


def test_a_writer_that_is_at_work_when_its_run_is_removed_adds_nothing(out: Path) -> None:
    late = stopped(out, NAMES[1])[0]
    with pytest.raises(FileNotFoundError), atomic_path(late.path_of("a.txt")):
        run(out, plan=2)
    assert contents(out.parent) == sorted(f"scores/{name}" for name in NAMES)
    assert (out / "a.txt").read_text() == "a.txt"


def test_a_file_that_is_begun_until_the_rename_is_not_published(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = os.rename

    def begin_and_rename(source: Path, target: Path) -> None:
        if target == out:
            assert contents(source) == sorted(NAMES)  # should this run be killed at once after the rename
            write(parts, NAMES[1])  # a task that is tried twice
        plain(source, target)

    with part_directory(out, parts=PARTS, plan={}) as parts:
        write(parts, *NAMES)
        (parts.folder / "inner" / ".a.12345678.txt").write_text("half")
        monkeypatch.setattr(os, "rename", begin_and_rename)
    assert contents(out) == sorted(NAMES)
    assert contents(out.parent) == sorted(f"scores/{name}" for name in NAMES)


@pytest.mark.parametrize("n_gathered", [1, 3])
def test_a_run_that_was_killed_as_it_gathered_its_parts_is_gone_on_with(
    n_gathered: int, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, moved = os.rename, []

    def stop_late(source: Path, target: Path) -> None:
        if source.parent.name.startswith("_") or len(moved) == n_gathered:
            raise StopError
        moved.append(source)
        plain(source, target)

    stopped(out, *NAMES)
    with monkeypatch.context() as patched:
        patched.setattr(os, "rename", stop_late)
        with pytest.raises(StopError):
            run(out)
    assert len(moved) == n_gathered
    assert not out.exists()
    assert run(out) == ()
    assert contents(out.parent) == sorted(f"scores/{name}" for name in NAMES)


def test_only_parts_whose_own_input_has_changed_are_written_again(out: Path) -> None:
    stopped(out, *NAMES)
    with part_directory(out, parts={**PARTS, NAMES[1]: "other", "d.txt": 1}, plan={"input": 1}) as parts:
        assert parts.missing() == (NAMES[1], "d.txt")
        write(parts, "d.txt")
        parts.path_of(NAMES[1]).write_text("changed")
    assert contents(out) == sorted([*NAMES, "d.txt"])
    assert (out / NAMES[1]).read_text() == "changed"


@pytest.mark.parametrize("left", [(), ("._plan.1234abcd.json",), ("_plan.json",), ("_plan.json", "removed-1/a.txt")])
def test_a_run_that_was_killed_as_it_began_or_removed_is_not_in_the_way(left: tuple[str, ...], out: Path) -> None:
    for name in left:
        path = out.with_name(".scores.partial") / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text('{"half')
    out.with_name(".scores.partial").mkdir(exist_ok=True)
    assert run(out) == NAMES
    assert contents(out.parent) == sorted(f"scores/{name}" for name in NAMES)


def test_the_plan_is_the_last_to_be_removed(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = shutil.rmtree
    are_ours: list[bool] = []

    def watch(path: Path) -> None:
        are_ours.append(path.with_name("_plan.json").is_file())
        plain(path)

    monkeypatch.setattr(shutil, "rmtree", watch)
    with pytest.raises(StopError):
        run(out, NAMES[0])
    with part_directory(out, parts=PARTS, plan={"input": 2}) as parts:
        write(parts, *NAMES)
        for place in range(20):
            (parts.folder.parent / f"removed-{place}").mkdir()
    assert are_ours == [True] * 22
    assert contents(out.parent) == sorted(f"scores/{name}" for name in NAMES)


def test_a_run_that_was_killed_as_it_removed_another_starts_clean(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(_: Path) -> None:
        raise StopError

    stopped(out, NAMES[0])
    with monkeypatch.context() as patched:
        patched.setattr(shutil, "rmtree", stop)
        with pytest.raises(StopError):
            run(out, plan=2)
    assert run(out) == NAMES
    assert contents(out.parent) == sorted(f"scores/{name}" for name in NAMES)


def test_an_error_says_what_is_kept_and_only_if_there_is_something(out: Path) -> None:
    assert not hasattr(stopped(out)[1], "__notes__")
    partial = out.with_name(".scores.partial")
    notes = [f"the files that are complete are kept in {partial}; run the same again to go on from there"]
    assert stopped(out, NAMES[1])[1].__notes__ == notes
    assert stopped(out)[1].__notes__ == notes
    assert not hasattr(stopped(out, plan=2)[1], "__notes__")
    with (
        pytest.raises(InputError, match="are not there") as missing,
        part_directory(out, parts=PARTS, plan={}) as parts,
    ):
        write(parts, NAMES[0])
    assert missing.value.__notes__ == notes


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="nothing is forbidden to root")
def test_a_place_that_cannot_be_written_is_one_line(out: Path) -> None:
    out.parent.chmod(0o500)
    try:
        with pytest.raises(InputError, match=r"scores cannot be written \(Permission denied\)"):
            run(out)
    finally:
        out.parent.chmod(0o700)


def test_a_system_that_refuses_to_write_is_one_line(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(InputError, match=r"scores cannot be written \(Read-only file system\); mend that or name"):
        run(out)


@pytest.mark.parametrize("name", ["", "/etc/x", "../x", "a/../x", "_x", "a/.x"])
def test_a_part_that_would_lie_elsewhere_is_refused(name: str, out: Path) -> None:
    with (
        pytest.raises(InputError, match=r"name it by a path within the directory"),
        part_directory(out, parts={name: 1}, plan={}),
    ):
        pytest.fail("a part outside")


def test_parts_travel(out: Path) -> None:
    with part_directory(out, parts=PARTS, plan={}) as parts:
        write(pickle.loads(pickle.dumps(parts)), *NAMES)
    assert contents(out) == sorted(NAMES)


# Verdicts in a directory


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    root = tmp_path / "rows"
    (root / "b").mkdir(parents=True)
    for place, (name, n_rows) in enumerate(
        (("a.parquet", 300), ("b/0.parquet", 0), ("b/1.parquet", 1), ("c.parquet", 99))
    ):
        features = np.random.default_rng(place).normal(size=(n_rows, 3))
        table = pa.table({f"x{column}": features[:, column] for column in range(3)})
        pq.write_table(table.append_column("label", pa.array(["q", "r", "s"] * 100, pa.string())[:n_rows]), root / name)
    return root


@pytest.fixture
def detector() -> GEM:
    features = np.random.default_rng(8).normal(size=(300, 3))
    return GEM().fit(features, ["q", "r", "s"] * 100).calibrate(np.random.default_rng(9).normal(size=(100, 3)))


def test_each_file_has_the_verdicts_on_its_own_rows(rows: Path, detector: GEM, out: Path) -> None:
    met: list[Any] = []
    counts: list[int] = []
    file = open_features(rows).watched(counts.append)
    assert score_to_directory(detector, file, out, on_columns=met.append) == 400
    assert contents(out) == ["a.parquet", "b/0.parquet", "b/1.parquet", "c.parquet"]
    assert counts[-1] == 400
    for name in contents(out):
        table = pq.read_table(rows / name)
        features = np.stack([table[f"x{column}"].to_numpy() for column in range(3)], axis=1)
        found = pq.read_table(out / name)
        assert found.column_names == ["score", "p_value", "is_ood", "nearest_class"]
        assert found.schema.field("nearest_class").type == pa.string()
        assert found.num_rows == len(features)
        if len(features):
            expected = detector.verdicts(features)
            np.testing.assert_allclose(found["score"].to_numpy(), expected.score, rtol=1e-12)
            np.testing.assert_array_equal(found["p_value"].to_numpy(), expected.p_value)
            np.testing.assert_array_equal(found["is_ood"].to_numpy(), expected.is_ood)
            assert found["nearest_class"].to_pylist() == expected.nearest_class.tolist()
    assert sum(len(columns["score"]) for columns in met) == 400


def test_a_second_run_scores_only_the_files_that_are_missing(
    rows: Path, detector: GEM, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = out.with_name("whole")
    score_to_directory(detector, open_features(rows), whole)
    scored: list[str] = []
    plain = streaming.score_file

    def score_some(fitted: Any, file: Any) -> Any:
        scored.append(file.path.name)
        if scored.count("c.parquet") == 1:
            raise StopError
        return plain(fitted, file)

    monkeypatch.setattr(streaming, "score_file", score_some)
    with pytest.raises(StopError):
        score_to_directory(detector, open_features(rows), out)
    assert not out.exists()
    met: list[Any] = []
    assert score_to_directory(detector, open_features(rows), out, on_columns=met.append) == 400
    assert scored == ["a.parquet", "1.parquet", "c.parquet", "c.parquet"]
    assert sum(len(columns["score"]) for columns in met) == 400
    for name in contents(whole):
        assert pq.read_table(out / name).equals(pq.read_table(whole / name))


def test_another_detector_or_other_columns_start_clean(rows: Path, detector: GEM) -> None:
    def plan(**options: Any) -> dict[str, Any]:
        return streaming.score_plan(detector, open_features(rows, **options))

    before = plan()
    assert plan() == before
    detector.calibrate(tpr=0.5)
    assert plan() != before
    detector.calibrate(tpr=0.95)
    assert plan() == before
    assert plan(features="x1,x0,x2") != before


def test_a_file_that_was_mended_is_scored_and_no_other_is_scored_again(rows: Path, detector: GEM, out: Path) -> None:
    good = (rows / "c.parquet").read_bytes()
    opened = open_features(rows)
    (rows / "c.parquet").write_bytes(good.replace(b"PAR1", b"PAR0"))
    with pytest.raises(FileFormatError, match=r"c\.parquet is not a Parquet file"):
        score_to_directory(detector, opened, out)
    kept = {path.name: path.stat().st_mtime_ns for path in out.with_name(".scores.partial").rglob("*.parquet")}
    (rows / "c.parquet").write_bytes(good)
    assert score_to_directory(detector, open_features(rows), out) == 400
    times = {path.stat().st_mtime_ns for path in out.rglob("*.parquet")}
    assert len(kept) == 3
    assert set(kept.values()) < times


def test_a_part_of_an_earlier_run_that_was_damaged_since_is_named(rows: Path, detector: GEM, out: Path) -> None:
    file = open_features(rows)
    states, plan = streaming.input_states(file), streaming.score_plan(detector, file)
    with pytest.raises(InputError, match="are not there"), part_directory(out, parts=states, plan=plan) as parts:
        parts.path_of("a.parquet").write_text("damaged")
    with pytest.raises(FileFormatError, match=r"a.parquet, which an earlier run wrote, is damaged .*; remove it and"):
        score_to_directory(detector, file, out)


def test_a_run_that_published_just_before_the_lock_was_taken_is_left_alone(
    out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = part_directories.locked_at_once

    def lock_late(path: Path) -> Any:
        monkeypatch.undo()
        run(out)
        return lock(path)

    monkeypatch.setattr(part_directories, "locked_at_once", lock_late)
    with (
        pytest.raises(InputError, match=r"scores is a directory that is not empty; remove it, or name another"),
        part_directory(out, parts={"other.txt": 1}, plan={}),
    ):
        pytest.fail("work that nothing can come of")
    assert contents(out.parent) == sorted(f"scores/{name}" for name in NAMES)
