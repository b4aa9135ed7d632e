"""`gem-ood evaluate --report` and `gem-ood demo --report`: the page, its numbers, and what is refused."""

import json
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from commands import fail, run, run_json
from gem_ood import GEM, Energy, Head
from gem_ood.cli import app


@pytest.fixture
def folder(blobs: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    features, labels, held_out, far = blobs
    monkeypatch.chdir(tmp_path)
    GEM().fit(features, labels).calibrate(held_out[:200]).save("gem.safetensors")
    Energy(head=Head(np.eye(3, 5), np.zeros(3))).fit(features, labels).save("energy.safetensors")
    np.savez("id.npz", features=held_out[200:], labels=(np.arange(400) % 3)[200:])
    np.savez("far.npz", features=far)
    np.save("pictures.npy", np.zeros((200, 6, 6), dtype=np.uint8))
    return tmp_path


def data_of(page: Path) -> dict[str, Any]:
    """Return the numbers that a page carries."""
    found = re.search(r'<script type="application/json" id="report-data">(.*?)</script>', page.read_text("utf-8"), re.S)
    assert found is not None
    return dict(json.loads(found[1]))


def test_the_page_holds_the_numbers_of_the_json(folder: Path) -> None:
    arguments = ["evaluate", "gem.safetensors", "energy.safetensors", "--id", "id.npz", "--ood", "far=far.npz"]
    printed = run_json(*arguments, "--report", "r.html", "--map", "pca")
    assert printed["report"] == "r.html"
    page = data_of(folder / "r.html")
    for one in (*page["comparison"]["detectors"].values(), *printed["detectors"].values()):
        del one["seconds_per_10k"]
    assert page["comparison"]["detectors"] == printed["detectors"]
    assert page["run"]["inputs"][1] == {"name": "far", "source": "far.npz", "n_rows": 100}


def test_the_command_to_rerun_is_the_one_that_was_typed(folder: Path) -> None:
    arguments = ["evaluate", "gem.safetensors", "--id", "id.npz", "--ood", "far away=far.npz", "--report", "r.html"]
    output = run(*arguments, "--map", "none")
    assert output.splitlines()[-1] == "Report: r.html"
    page = data_of(folder / "r.html")
    assert shlex.split(page["run"]["command"]) == ["gem-ood", *arguments, "--map", "none"]
    assert page["map"] is None


def test_a_report_needs_no_ood_set(folder: Path) -> None:
    output = run("evaluate", "gem.safetensors", "--id", "id.npz", "--report", "r.html", "--map", "pca")
    assert "no out-of-distribution set" in output
    assert data_of(folder / "r.html")["sets"] == []
    message = fail("evaluate", "gem.safetensors", "--id", "id.npz")
    assert "pass --ood NAME=FILE, or --report FILE.html for a report without one" in message


def test_pictures_come_from_files(folder: Path) -> None:
    run(
        *["evaluate", "gem.safetensors", "--id", "id.npz", "--ood", "far=far.npz", "--report", "r.html"],
        *["--map", "none", "--images", "id=pictures.npy"],
    )
    page = data_of(folder / "r.html")
    assert len(page["images"]) == sum(one["set"] is None for one in page["detectors"]["gem"]["surprises"]) > 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--report", "r.pdf"], "r.pdf"),
        (["--report", "no/r.html"], "no"),
        (["--report", "id.npz"], "id.npz"),
        (["--map", "pca"], "--map is for --report"),
        (["--images", "id=pictures.npy"], "--images is for --report"),
        (["--report", "r.html", "--images", "near=pictures.npy"], "--images names 'near', but the sets are id, far"),
        (["--report", "r.html", "--images", "far=pictures.npy"], "has 100 rows but 200 images"),
        (
            ["--report", "r.html", "--images", "id=pictures.npy", "--images", "id=pictures.npy"],
            "--images names 'id' twice; give each set its pictures once",
        ),
        (["--report", "r.html", "--images", "id=nothing.npy"], "nothing.npy"),
        (["--report", "r.html", "--images", "id=id.npz"], "id.npz"),
    ],
)
def test_what_a_report_cannot_be_made_of_is_refused(folder: Path, options: list[str], message: str) -> None:
    before = sorted(folder.iterdir())
    assert message in fail("evaluate", "gem.safetensors", "--id", "id.npz", "--ood", "far=far.npz", *options)
    assert sorted(folder.iterdir()) == before


def test_without_the_extra_the_remedy_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "plotly", None)
    arguments = ["evaluate", "gem.safetensors", "--id", "id.npz", "--ood", "far=far.npz"]
    assert 'pip install "gem-ood[report]"' in fail(*arguments, "--report", "r.html")
    assert "gem" in run(*arguments)


def test_the_demo_runs_without_the_extra_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "plotly", None)
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["demo"])
    assert result.exit_code == 0
    assert result.stderr.endswith(
        "gem-ood: note: no report is written: reports need plotly, which cannot be imported; run pip install "
        '"gem-ood[report]"\n'
    )
    assert "ote: " not in result.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["gem-ood-demo.safetensors"]


@pytest.mark.parametrize("quiet", [[], ["-q"]])
def test_a_report_that_the_demo_was_asked_for_needs_the_extra_before_any_work(
    quiet: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "plotly", None)
    monkeypatch.setattr("gem_ood.demonstration.run", None)  # calling it would be another error
    monkeypatch.chdir(tmp_path)
    assert 'pip install "gem-ood[report]"' in fail("demo", "--report", "gem-ood-demo.html", *quiet)
    assert list(tmp_path.iterdir()) == []


def test_a_report_and_none_contradict_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert "--report and --no-report contradict each other" in fail("demo", "--report", "r.html", "--no-report")


def test_the_demo_writes_no_report_where_none_is_wanted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    loud, quiet = (CliRunner().invoke(app, ["demo", "--no-report", "--json", *flag]) for flag in ([], ["-q"]))
    assert loud.stdout == quiet.stdout
    document = json.loads(loud.stdout)
    assert document["report"] is None
    assert loud.stderr == "".join(f"gem-ood: note: {text}\n" for text in document["notes"]) != ""
    assert quiet.stderr == ""
    assert [path.name for path in tmp_path.iterdir()] == ["gem-ood-demo.safetensors"]
