"""The bar appears on a terminal, after a while, and never elsewhere."""

import io
import sys

import pytest

from gem_ood import progress
from gem_ood.progress import RowProgress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def drawn(monkeypatch: pytest.MonkeyPatch, stream: io.StringIO, *, patience: float, total: int | None) -> str:
    monkeypatch.setattr(progress, "PATIENCE_SECONDS", patience)
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("TERM", "xterm")
    with RowProgress() as rows:
        on_rows = rows.watch("train.npz", total)
        on_rows(100)
        on_rows(200)
    assert rows.n_rows == 200
    return stream.getvalue()


@pytest.mark.parametrize("total", [400, None])
def test_long_work_on_a_terminal_shows_a_bar(total: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    text = drawn(monkeypatch, Terminal(), patience=-1.0, total=total)
    assert "train.npz" in text
    assert "rows" in text


def test_short_work_shows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert drawn(monkeypatch, Terminal(), patience=60.0, total=400) == ""


def test_a_pipe_gets_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert drawn(monkeypatch, io.StringIO(), patience=-1.0, total=400) == ""
