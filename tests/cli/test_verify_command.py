"""What `gem-ood verify` prints, and how it ends."""

import io
import json
import sys

import pytest
from typer.testing import CliRunner, Result

from gem_ood import scores
from gem_ood.cli import app
from gem_ood.cli.voice import watching

ITEMS = ("--item", "P12", "--item", "P22", "--item", "E10")


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["verify", *arguments])


def test_a_table_and_a_summary_are_printed() -> None:
    done = run(*ITEMS)
    assert (done.exit_code, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0].split() == ["item", "statement", "computed", "verdict"]
    assert [line.split()[0] for line in lines[1:4]] == ["P12", "P22", "E10"]
    assert lines[1].rstrip().endswith("holds")
    assert lines[2].rstrip().endswith("holds, loose by 88 decades")
    assert lines[3].rstrip().endswith("false as printed, corrected here")
    assert "5 standard errors" in lines[4]
    assert lines[5] == (
        "3 items: 1 holds, 1 holds loosely, 1 false as printed and corrected here; all verdicts are the documented ones"
    )


def test_json_has_the_same_and_nothing_else() -> None:
    done = run(*ITEMS, "--json", "--seed", "3")
    assert (done.exit_code, done.stderr, done.stdout.count("\n")) == (0, "", 1)
    document = json.loads(done.stdout)
    assert document["seed"] == 3
    assert [entry["item"] for entry in document["results"]] == ["P12", "P22", "E10"]
    loose = document["results"][1]
    assert loose["verdict"] == "holds, loose by 88 decades"
    assert loose["documented"] == "holds, loose"
    assert loose["is_as_documented"] is True
    assert document["summary"].startswith("3 items: ")


def test_the_seed_decides_the_figures() -> None:
    first, same, other = (run("--item", "P28", "--seed", seed).stdout for seed in ("1", "1", "2"))
    assert first == same != other


def test_a_verdict_that_is_not_the_documented_one_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    original = scores.gem_threshold
    monkeypatch.setattr(scores, "gem_threshold", lambda *values, **options: original(*values, **options) + 0.1)
    done = run(*ITEMS)
    assert done.exit_code == 1
    assert done.stdout.splitlines()[1].rstrip().endswith("fails")
    assert done.stdout.splitlines()[5] == (
        "3 items: 0 hold, 1 holds loosely, 1 false as printed and corrected here, 1 fails; "
        "not as documented: P12 (holds)"
    )
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--item", "P99"), "item 'P99' is not one of the claims; pass any of P1 to P39, E1 to E15, B1 to B9"),
        (("--item", "P1", "--item", "lemma"), "item 'LEMMA' is not one of the claims"),
        (("--seed", "-1"), "seed is -1; pass a whole number of at least 0"),
        (("--seed", "one"), "--seed"),
    ],
)
def test_bad_input_is_two_and_one_line(arguments: tuple[str, ...], words: str) -> None:
    done = run(*arguments)
    assert (done.exit_code, done.stdout) == (2, "")
    assert words in done.stderr
    assert done.stderr.startswith("gem-ood: error: ")
    assert done.stderr.count("\n") == 1


def test_help_has_an_example_and_the_exit_code() -> None:
    text = run("--help").stdout
    assert "Examples:\n  gem-ood verify --item P22 --item E5\n" in text
    assert "Exit code 1" in " ".join(text.split())


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("stream", "patience", "is_shown"),
    [(Terminal(), -1.0, True), (Terminal(), 60.0, False), (io.StringIO(), -1.0, False)],
    ids=["long work on a terminal", "short work", "a pipe"],
)
def test_progress_is_shown_on_a_terminal_after_a_while(
    monkeypatch: pytest.MonkeyPatch, stream: io.StringIO, patience: float, is_shown: bool
) -> None:
    monkeypatch.setattr("gem_ood.progress.PATIENCE_SECONDS", patience)
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("TERM", "xterm")
    with watching("items") as progress:
        on_item = progress.watch_named()
        on_item(0, 2, "P1")
        on_item(1, 2, "P22")
    assert ("P22" in stream.getvalue()) is is_shown
    assert ("1/2 items" in stream.getvalue()) is is_shown
    assert is_shown or stream.getvalue() == ""
