"""The tables and lists of the documentation are those that the program gives.

`python tests/test_recorded_tables.py` runs the commands and writes the tables into the page again.
"""

import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from gem_ood.experiments.data_sets import DATA_SETS, TITLES
from gem_ood.experiments.sources import ARCHIVES, WEIGHTS
from real_data import DATA

DOCS = Path(__file__).parents[1] / "docs"
PAGE = DOCS / "reproduce-the-paper.md"

#: A command of the page, and between comments what it prints.
RECORDED = re.compile(
    r"```sh\n(gem-ood reproduce [^\n]+)\n```\n\n<!-- tables:(\S+):start -->\n```text\n(.*?)```\n<!-- tables:\2:end -->",
    re.DOTALL,
)

#: What the commands name, and where it is.
FOLDERS = {
    "cifar10_resnet56": DATA / "cifar10_resnet56",
    "weights.safetensors": DATA / "cifar10_resnet56" / "weights.safetensors",
    "images": DATA / "images",
}

#: In points: rows and draws are the same, so only the rounding may differ; from pixels, the sums of float32 as well.
TOLERANCES = {"features": 0.02, "whole-sets": 0.02, "pixels": 0.3}

DECIMAL = re.compile(r"[+−]?\d+\.\d+")


def without_data():
    """Return why the commands cannot be run here, or None if they can."""
    if all(path.exists() for path in FOLDERS.values()):
        return None
    return f"the real data are not in {DATA}; set GEM_OOD_DATA to their folder"


def recorded():
    return {name: (command, shown) for command, name, shown in RECORDED.findall(PAGE.read_text(encoding="utf-8"))}


def printed(command):
    """Return what a command prints, with the folders where they are in place of those that it names."""
    from typer.testing import CliRunner

    from gem_ood.cli import app

    program, *words = shlex.split(command)
    assert program == "gem-ood"
    result = CliRunner().invoke(app, [str(FOLDERS.get(word, word)) for word in words])
    assert result.exit_code == 0, result.output
    return "".join(line.rstrip() + "\n" for line in result.stdout.splitlines())


def words_of(line):
    """Return a line without its decimals and without the widths of its columns."""
    return DECIMAL.sub("#", line).split()


def decimals_of(line):
    return [float(number.replace("−", "-")) for number in DECIMAL.findall(line)]


def test_the_page_has_a_table_for_each_command():
    assert set(recorded()) == set(TOLERANCES)
    assert all(len(shown.splitlines()) > 20 for _, shown in recorded().values())


@pytest.mark.parametrize("name", TOLERANCES)
def test_the_tables_of_the_page_are_those_that_its_commands_print(name, tmp_path, monkeypatch):
    if name == "pixels":
        pytest.importorskip("pooch")
        pytest.importorskip("torch")
    if without_data():
        pytest.skip(f"{without_data()} to run this test")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    command, shown = recorded()[name]
    lines, expected = printed(command).splitlines(), shown.splitlines()
    assert [words_of(line) for line in lines] == [words_of(line) for line in expected]
    for line, recorded_line in zip(lines, expected, strict=True):
        assert decimals_of(line) == pytest.approx(decimals_of(recorded_line), abs=TOLERANCES[name]), line


def rates(shown):
    """Return FPR95 and AUROC of each set and method in a table of whole sets, which has no spreads."""
    found = {}
    for line in shown.split("\n\n", 1)[1].splitlines():
        cells = line.split()
        if len(cells) > 3 and cells[1] in ("msp", "energy", "mahalanobis", "gem"):
            numbers = decimals_of(line)
            auroc = numbers[3] if len(numbers) > 3 else numbers[1]  # beside the paper's number and the difference
            found[cells[0].lower(), cells[1]] = numbers[0], auroc
    return found


def test_whole_sets_agree_with_numbers_that_were_computed_elsewhere():
    description = DATA / "README.md"
    if not description.is_file():
        pytest.skip(f"the numbers of the real data are not in {description}; set GEM_OOD_DATA to their folder")
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in description.read_text(encoding="utf-8").splitlines()
        if line.count(" / ") == 3
    ]
    methods = {"MSP": "msp", "Energy, T=1": "energy", "Mahalanobis": "mahalanobis", "GEM": "gem"}
    assert [row[0] for row in rows] == list(methods)
    ours = rates(recorded()["whole-sets"][1])
    for title, *cells in rows:
        for ood, cell in zip(("svhn", "textures", "places"), cells, strict=True):
            expected = [float(number) for number in cell.split(" / ")]
            assert ours[ood, methods[title]] == pytest.approx(expected, abs=0.1), (title, ood)


def table_rows(page, heading):
    """Return the cells of the first table under a heading of a page."""
    text = (DOCS / page).read_text(encoding="utf-8")
    section = text[text.index(f"\n## {heading}\n") :].partition("\n\n|")[2].partition("\n\n")[0]
    lines = f"|{section}".splitlines()[2:]
    return [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in lines]


def test_the_page_of_data_sets_has_every_source_with_its_checksum():
    files = [(name, archive) for known in (ARCHIVES, WEIGHTS) for name, archive in known.items()]
    assert table_rows("data-sets.md", "Sources") == [
        [f"`{name}`<br>{archive.about}", f"[`{archive.file_name}`]({archive.url})<br>`{archive.checksum}`"]
        for name, archive in files
    ]


def test_the_page_of_data_sets_has_a_layout_for_every_set():
    rows = table_rows("data-sets.md", "Layouts")
    assert [row[0] for row in rows] == [f"`{name}`<br>{TITLES[name]}" for name in DATA_SETS]


def test_writing_the_tables_without_the_data_ends_with_one_line(tmp_path):
    before = PAGE.read_bytes()
    done = subprocess.run(
        [sys.executable, __file__],
        env={**os.environ, "GEM_OOD_DATA": str(tmp_path / "nowhere")},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 1
    expected = (
        f"the real data are not in {tmp_path / 'nowhere'}; set GEM_OOD_DATA to their folder, and run this again\n"
    )
    assert (done.stdout, done.stderr) == ("", expected)
    assert PAGE.read_bytes() == before


def write():
    """Run the commands of the page and put what they print under them; return why not, if that is so."""
    if without_data():
        return f"{without_data()}, and run this again"
    with tempfile.TemporaryDirectory() as cache:
        os.environ["XDG_CACHE_HOME"] = cache
        text = PAGE.read_text(encoding="utf-8")
        for found in RECORDED.finditer(text):
            text = text.replace(found[0], found[0].replace(f"```text\n{found[3]}", f"```text\n{printed(found[1])}"))
        PAGE.write_text(text, encoding="utf-8")
    return None


if __name__ == "__main__":
    sys.exit(write())
