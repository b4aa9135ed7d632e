"""The bar appears on a terminal, after a while, and never elsewhere."""

import io
import sys

import pytest

from gem_ood import progress
from gem_ood.progress import RowProgress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def drawn(
    monkeypatch: pytest.MonkeyPatch,
    stream: io.StringIO,
    *,
    patience: float,
    total: int | None,
    terminal: str = "xterm",
    is_shown: bool = True,
) -> str:
    monkeypatch.setattr(progress, "PATIENCE_SECONDS", patience)
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("TERM", terminal)
    with RowProgress(is_shown=is_shown) as rows:
        on_rows = rows.watch("train.npz", total)
        on_rows(100)
        on_rows(200)
    assert rows.n_rows == 200
    return stream.getvalue()


@pytest.mark.parametrize("total", [400, None])
def test_long_work_on_a_terminal_shows_a_bar(total: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    text = drawn(monkeypatch, Terminal(), patience=-1.0, total=total)
    assert "train.npz" in text
    assert f"200/{total or '?'} rows" in text


def test_short_work_shows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert drawn(monkeypatch, Terminal(), patience=60.0, total=400) == ""


def test_a_pipe_gets_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert drawn(monkeypatch, io.StringIO(), patience=-1.0, total=400) == ""


def test_a_terminal_that_cannot_take_a_line_back_gets_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert drawn(monkeypatch, Terminal(), patience=-1.0, total=400, terminal="dumb") == ""


def test_a_bar_that_is_not_wanted_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    assert drawn(monkeypatch, Terminal(), patience=-1.0, total=400, is_shown=False) == ""


def test_other_units_are_counted_under_the_name_of_the_work_at_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Terminal()
    monkeypatch.setattr(progress, "PATIENCE_SECONDS", -1.0)
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("TERM", "xterm")
    with RowProgress(unit="items") as items:
        on_item = items.watch_named()
        for place, name in enumerate(("P1", "P22", "B3")):
            on_item(place, 3, name)
    assert "B3" in stream.getvalue()
    assert "2/3 items" in stream.getvalue()


@pytest.mark.parametrize("columns", [60, 80, 200])
def test_a_bar_stays_on_one_line(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Terminal()
    monkeypatch.setattr(progress, "PATIENCE_SECONDS", -1.0)
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", str(columns))
    with RowProgress() as rows:
        on_rows = rows.watch("calibrate a method of a very long name that goes on and on (12/32)", 2_000_000_000)
        for place in range(1, 8):
            on_rows(place * 123_456_789)
            rows.bar().refresh()
    assert "rows/s" in stream.getvalue()
    # The last new line is that of the end, after which the bar is wiped; a bar of two lines would have more.
    assert stream.getvalue().count("\n") == 1


def test_work_that_is_to_end_does_so_where_it_next_counts() -> None:
    rows = RowProgress()
    on_rows = rows.watch_total("distance")
    on_rows(1, 2)
    rows.end()
    with pytest.raises(KeyboardInterrupt):
        on_rows(2, 2)
    assert rows.n_rows == 1
