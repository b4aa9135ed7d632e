"""`gem-ood reproduce`: tables as text, Markdown, LaTeX, CSV and JSON, and one clear line for what is wrong."""

import json
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

pytest.importorskip("torch")
sys.path.insert(0, str(Path(__file__).parents[1] / "experiments"))

from tiny_paper import N_OOD, N_TEST, stored, write_network, write_paper_sets

from commands import fail, run, run_json
from gem_ood.cli import app

pytestmark = pytest.mark.filterwarnings("ignore::gem_ood.errors.RankWarning")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    found = write_paper_sets(tmp_path_factory.mktemp("paper"))
    write_network(found / "wrn.pt")
    return found


@pytest.fixture
def own_cache(tmp_path, monkeypatch):
    """The user's cache of this test alone."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user"))
    return tmp_path / "user"


def test_the_tables_are_printed_beside_the_papers_numbers(folder, own_cache):
    printed = run("reproduce", "cifar10", "--data", folder, "--weights", folder / "wrn.pt", "--no-cache")
    lines = printed.splitlines()
    assert lines[0] == "CIFAR-10 in-distribution, mean over 6 out-of-distribution sets"
    assert [line.split()[0] for line in lines[3:8]] == ["msp", "odin", "mahalanobis", "energy", "gem"]
    assert "37.21" in lines[7]
    assert "iSUN" in printed
    assert "Network: WideResNet" in printed
    assert not own_cache.exists()


def test_features_are_kept_in_the_users_cache_unless_told_otherwise(folder, own_cache, tmp_path):
    options = ("--data", folder, "--weights", folder / "wrn.pt", "--sets", "svhn", "--methods", "gem")
    run("reproduce", "cifar10", *options)
    assert len(list((own_cache / "gem-ood" / "features").glob("features-*.safetensors"))) == 3
    run("reproduce", "cifar10", *options, "--cache", tmp_path / "mine")
    assert len(list((tmp_path / "mine").iterdir())) == 3


def test_json_has_every_draw(folder, own_cache):
    found = run_json(
        "reproduce", "cifar10", "--data", folder, "--weights", folder / "wrn.pt", "--sets", "svhn", "--draws", 4
    )
    assert found["n_id"] == N_TEST
    assert len(found["methods"]["gem"]["svhn"]["fpr"]["draws"]) == 4
    assert found["methods"]["gem"]["svhn"]["fpr"]["paper"] == 0.1342
    assert found["sources"]["svhn"].endswith("test_32x32.mat (matlab version)")


@pytest.mark.parametrize(
    ("suffix", "begins"), [(".txt", "CIFAR-10"), (".md", "**CIFAR-10"), (".tex", "% CIFAR-10"), (".csv", "method,set")]
)
def test_tables_are_written_in_the_form_of_the_suffix(tmp_path, suffix, begins):
    out = tmp_path / f"tables{suffix}"
    printed = run("reproduce", "cifar10", "--stored", stored(tmp_path), "--out", out)
    assert out.read_text(encoding="utf-8").startswith(begins)
    assert printed.endswith(f"Tables: {out}\n")


def test_a_format_is_printed_where_there_is_no_file(tmp_path):
    assert run("reproduce", "cifar10", "--stored", stored(tmp_path), "--format", "latex").startswith("% CIFAR-10")
    assert json.loads(run("reproduce", "cifar10", "--stored", tmp_path, "--format", "json"))["n_id"] == 100


def test_whole_sets_are_taken_once(tmp_path):
    found = run_json("reproduce", "cifar10", "--stored", stored(tmp_path), "--whole-sets")
    assert found["n_drawn"] == {"svhn": 60, "noise": 60}
    assert found["methods"]["gem"]["svhn"]["fpr"]["spread"] is None


def test_one_draw_has_no_verdict(tmp_path):
    for option in (["--draws", "1"], ["--whole-sets"]):
        found = run_json("reproduce", "cifar10", "--stored", stored(tmp_path), *option)
        assert found["methods"]["gem"]["svhn"]["auroc"]["difference"] is not None
        assert found["methods"]["gem"]["svhn"]["auroc"]["verdict"] is None
        assert found["methods"]["gem"]["mean"]["auroc"]["verdict"] is None
    found = run_json("reproduce", "cifar10", "--stored", tmp_path, "--draws", "2")
    assert found["methods"]["gem"]["mean"]["auroc"]["verdict"] in ("within", "beyond")


def test_a_users_cache_that_cannot_be_written_is_a_note_and_the_run_goes_on(folder, tmp_path, monkeypatch):
    (tmp_path / "user").write_text("a file", encoding="utf-8")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user"))
    options = ("--data", folder, "--weights", folder / "wrn.pt", "--sets", "svhn", "--methods", "gem")
    result = CliRunner().invoke(app, ["reproduce", "cifar10", *map(str, options)])
    assert result.exit_code == 0, result.output
    assert "no features are kept: " in result.stderr
    assert result.stdout.startswith("CIFAR-10 in-distribution")


def test_the_same_seed_gives_the_same_numbers(tmp_path):
    stored(tmp_path)
    first, second, other = (run("reproduce", "cifar10", "--stored", tmp_path, "--seed", seed) for seed in (1, 1, 2))
    assert first == second != other


def test_other_sets_come_by_name(folder, own_cache):
    found = run_json(
        "reproduce",
        *("cifar10", "--data", folder, "--weights", folder / "wrn.pt", "--methods", "gem"),
        *("--sets", "none", "--ood", f"mine={folder / 'dtd'}", "--ood", str(folder / "places365")),
    )
    assert found["n_ood"] == {"places365": N_OOD, "mine": N_OOD}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--stored", ".", "--data", "."], "--data is for pictures, but --stored has their place"),
        (["--stored", ".", "--download"], "--download is for pictures"),
        (["--stored", ".", "--odin-noise", "0.3"], "--odin-noise is for pictures"),
        (["--stored", ".", "--limit", "5"], "--limit is for pictures"),
        (["--stored", ".", "--batch-size", "1"], "--batch-size is for pictures"),
        (["--stored", ".", "--device", "cpu"], "--device is for pictures"),
        (["--draws", "3", "--whole-sets"], "--draws and --whole-sets contradict each other"),
        (["--stored", "nowhere"], "nowhere is not a folder"),
        (["--cache", "x", "--no-cache"], "--cache and --no-cache contradict each other"),
        (["--data", "nowhere"], "nowhere does not exist"),
        (["--draws", "0"], "n_draws must be a whole number, at least 1"),
        (["--stored", ".", "--out", "tables.xlsx"], ".xlsx"),
        (["--stored", ".", "--json", "--format", "csv"], "--json and --format contradict each other"),
        (["--data", ".", "--ood", "=x"], "must be DIR or NAME=DIR"),
        (["--data", ".", "--ood", "a=x", "--ood", "a=y"], "--ood names 'a' twice"),
    ],
)
def test_bad_options_are_one_clear_line(options, message, own_cache):
    assert message in fail("reproduce", "cifar10", *options)


def test_another_set_is_refused():
    assert "cifar10" in fail("reproduce", "mnist")
