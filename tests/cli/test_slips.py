"""The slips of a first day: every answer is one line that says what to do."""

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from commands import fail, run, run_json
from gem_ood import GEM, load

rng = np.random.default_rng(0)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("slips")
    np.savez(folder / "train.npz", features=rng.normal(size=(200, 3)))
    np.savez(folder / "a=b.npz", features=rng.normal(size=(50, 3)))
    save_file({"features": rng.normal(size=(9, 3))}, folder / "rows.safetensors")
    GEM().fit(rng.normal(size=(200, 3))).save(folder / "gem.safetensors")
    return folder


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("fti", "fit"), ("Fit", "fit"), ("predict", "score"), ("eval", "evaluate"), ("trian", "train")],
)
def test_a_wrong_command_is_answered_with_the_right_one(typed: str, meant: str) -> None:
    assert fail(typed) == f"gem-ood: error: there is no command {typed!r}; did you mean gem-ood {meant}?\n"


def test_help_and_version_as_commands_are_answered_with_the_option() -> None:
    assert "did you mean gem-ood --help?" in fail("help")
    assert "did you mean gem-ood --version?" in fail("version")


def test_a_word_that_is_like_no_command_is_answered_with_all_of_them() -> None:
    assert "the commands are demo, info, fit, calibrate, score, evaluate" in fail("xyzzy")


def test_a_file_in_place_of_a_command_is_answered_with_info(data: Path) -> None:
    assert f"run gem-ood info {data / 'train.npz'}" in fail(data / "train.npz")


def test_what_is_missing_is_answered_with_an_example(data: Path) -> None:
    assert "Missing argument 'FILE'; see gem-ood fit --help, or try gem-ood fit train.npz --out" in fail("fit")
    assert "Missing option '--out'; see gem-ood fit --help, or try gem-ood fit " in fail("fit", data / "train.npz")
    assert "No such option: --ouput" in fail("fit", data / "train.npz", "--ouput", "x")
    assert "see gem-ood fit --help" in fail("fit", data / "train.npz", "--ouput", "x")
    assert "see gem-ood score --help" in fail("score", "a", "b", "c")
    assert "Invalid value for 'STUDY': 'distances' is not one of 'distance', " in fail("simulate", "distances")
    assert "see gem-ood simulate --help" in fail("simulate", "distances")
    assert "Invalid value for '--map': 'tsne' is not one of 'auto', " in fail("evaluate", "--map", "tsne")
    assert "Missing command; see gem-ood --help, or try gem-ood demo" in fail("--verbose")


def test_detectors_and_rows_in_each_others_place_are_told_apart(data: Path) -> None:
    gem, train = data / "gem.safetensors", data / "train.npz"
    assert f"{train} is given where a saved detector (.safetensors) must be" in fail("score", train, gem)
    for command in (("score", gem, gem), ("fit", gem, "--out", data / "x.safetensors")):
        assert f"{gem} is a saved detector, given where rows of features must be" in fail(*command)
    assert "but not one of gem-ood's; pass a saved detector" in fail("score", data / "rows.safetensors", train)


def test_directories_and_dashes_are_one_line(data: Path) -> None:
    gem = data / "gem.safetensors"
    assert "is a directory; pass the file of a detector" in fail("score", data, data / "train.npz")
    assert "a=b.npz is no .parquet file, but a directory of rows holds nothing else" in fail("score", gem, data)
    assert "is a directory; name a file inside it" in fail(
        "score", gem, data / "train.npz", "--out", folder_named(data)
    )
    for command in (("score", gem, "-"), ("score", "-", gem), ("fit", "-", "--out", data / "x.safetensors")):
        assert "- stands for standard input, which cannot be read; pass the path of a file" in fail(*command)
    assert "has the suffix '(none)'" in fail("score", gem, data / "train.npz", "--out", "-")


def folder_named(data: Path) -> Path:
    folder = data / "folder.csv"
    folder.mkdir(exist_ok=True)
    return folder


def test_a_place_that_cannot_be_written_is_told_before_long_work(data: Path) -> None:
    name = f"{'x' * 250}.csv"
    assert "cannot be written (File name too long)" in fail(
        "score", data / "gem.safetensors", data / "no.npz", "--out", name
    )


def test_a_set_goes_by_the_name_of_its_file_unless_another_is_given(data: Path) -> None:
    common = ("evaluate", data / "gem.safetensors", "--id", data / "train.npz", "--no-time")
    sets = run_json(*common, "--ood", data / "a=b.npz", "--ood", f"far={data / 'train.npz'}")["detectors"]["gem"]
    assert list(sets["evaluations"]) == ["a=b", "far"]
    assert "'train' twice" in fail(*common, *(("--ood", data / "train.npz") * 2))


def test_paths_with_spaces_and_any_letters_work(tmp_path: Path, data: Path) -> None:
    folder = tmp_path / "mein Ordner 測試 [red]"
    folder.mkdir()
    (folder / "trein ü.npz").write_bytes((data / "train.npz").read_bytes())
    out = folder / "gem ü.safetensors"
    assert f"Fitted gem to 200 rows of 3 features: {out}\n" in run("fit", folder / "trein ü.npz", "--out", out)
    assert load(out).n_features_in_ == 3
    assert "200 rows" in run("score", out, folder / "trein ü.npz", "--out", folder / "scores ü.csv")
    assert (folder / "scores ü.csv").read_text().startswith("score,")
