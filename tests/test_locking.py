"""A lock is of the file that has its name now: one that was removed or replaced in between locks nothing."""

from collections.abc import Callable
from pathlib import Path

import pytest

from gem_ood import locking
from gem_ood.locking import locked, locked_at_once


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "lock"


def before_the_first_lock(monkeypatch: pytest.MonkeyPatch, happening: Callable[[], None]) -> None:
    """Let something happen after the file is opened and before it is locked."""
    lock = locking._lock

    def lock_late(descriptor: int) -> None:
        monkeypatch.undo()
        happening()
        lock(descriptor)

    monkeypatch.setattr(locking, "_lock", lock_late)


def test_a_lock_whose_file_another_has_replaced_and_holds_is_not_ours(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = []

    def replace() -> None:
        path.unlink()
        others.append(locked_at_once(path))
        assert others[0].__enter__()

    before_the_first_lock(monkeypatch, replace)
    with locked_at_once(path) as is_ours:
        assert not is_ours
    assert path.exists()
    others[0].__exit__(None, None, None)
    assert not path.exists()


def test_who_waits_gets_the_lock_that_the_name_stands_for(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[int] = []

    def replace() -> None:
        path.unlink()
        path.touch()

    monkeypatch.setattr(locking, "LOOK_SECONDS", 0.0)
    before_the_first_lock(monkeypatch, replace)
    with locked(path, lambda: waits.append(1)):
        assert waits == [1]
        with locked_at_once(path) as is_theirs:
            assert not is_theirs
    assert not path.exists()


def test_a_lock_whose_file_is_gone_is_not_ours(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before_the_first_lock(monkeypatch, path.unlink)
    with locked_at_once(path) as is_ours:
        assert not is_ours
    with locked_at_once(path) as is_ours:
        assert is_ours


def test_a_link_under_the_name_is_removed_and_its_target_left_alone(path: Path) -> None:
    target = path.with_name("target")
    target.write_text("x")
    path.symlink_to(target)
    with locked_at_once(path) as is_ours:
        assert is_ours
        assert not path.is_symlink()
    assert target.read_text() == "x"
    assert not path.exists()
