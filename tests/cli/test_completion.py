"""What TAB offers, asked for as a shell asks."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gem_ood.claims import claims
from gem_ood.cli.completing import METHODS, METRICS, complete_item, complete_methods, complete_metrics
from gem_ood.comparison.measured import chosen_metrics
from gem_ood.detectors.cataloguing import entries, methods

PROGRAM = [sys.executable, "-c", "from gem_ood.cli import main; main()"]


def asked(shell: str, line: str) -> str:
    words = {"COMP_WORDS": line, "COMP_CWORD": str(len(line.split(" ")) - 1), "_TYPER_COMPLETE_ARGS": line}
    environment = {**os.environ, **words, "_GEM_OOD_COMPLETE": f"complete_{shell}"}
    environment["_TYPER_COMPLETE_FISH_ACTION"] = "get-args"
    done = subprocess.run(PROGRAM, env=environment, capture_output=True, text=True, check=True, timeout=60)
    assert done.stderr == ""
    return done.stdout


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("gem-ood c", ["calibrate", "certify"]),
        ("gem-ood --ve", ["--version", "--verbose"]),
        ("gem-ood fit --me", ["--method"]),
        ("gem-ood fit x.npz --method gem", ["gem", "gem-unit", "gem-relative", "gem-shrunk"]),
        ("gem-ood evaluate --methods knn,nn", ["knn,nn-guide"]),
        ("gem-ood evaluate --methods al", ["all"]),
        ("gem-ood evaluate --sort ", list(METRICS)),
        ("gem-ood evaluate --metrics fpr,auroc,aupr_i", ["fpr,auroc,aupr_in"]),
        ("gem-ood evaluate --format ", ["text", "markdown", "latex", "csv", "json"]),
        ("gem-ood verify --item E15", ["E15"]),
        ("gem-ood verify --item e15", ["e15"]),
        ("gem-ood simulate d", ["distance", "dimension"]),
        ("gem-ood score ", []),
    ],
)
def test_bash_is_offered_what_fits(line: str, offered: list[str]) -> None:
    assert asked("bash", line).split() == offered


def test_zsh_and_fish_are_offered_the_same_with_words_about_it() -> None:
    assert '"gem,knn"' in asked("zsh", "gem-ood evaluate --methods gem,kn")
    assert asked("fish", "gem-ood figu").startswith("figures\tDraw the paper's figures")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_shell_gets_its_script(shell: str) -> None:
    environment = {**os.environ, "_GEM_OOD_COMPLETE": f"source_{shell}"}
    done = subprocess.run(PROGRAM, env=environment, capture_output=True, text=True, check=True, timeout=60)
    assert f"_GEM_OOD_COMPLETE=complete_{shell}" in done.stdout
    assert "gem-ood" in done.stdout


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash to install the completion for")
def test_installing_writes_what_bash_reads(tmp_path: Path) -> None:
    environment = {**os.environ, "HOME": str(tmp_path), "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    command = [*PROGRAM, "--install-completion", "bash"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert "gem-ood.sh" in (tmp_path / ".bashrc").read_text()
    assert "complete_bash" in (tmp_path / ".bash_completions" / "gem-ood.sh").read_text()


def test_the_names_that_are_offered_are_those_of_the_library() -> None:
    assert methods() == METHODS
    assert sorted(complete_methods("")) == sorted([*entries(), "all"])
    assert chosen_metrics(METRICS) == METRICS
    assert sorted(complete_item("")) == sorted(claim.item for claim in claims())


def test_what_stands_before_the_comma_is_not_offered_again() -> None:
    assert complete_methods("gem,gem") == ["gem,gem-unit", "gem,gem-relative", "gem,gem-shrunk"]
    assert complete_methods("gem-unit,knn,gem-") == ["gem-unit,knn,gem-relative", "gem-unit,knn,gem-shrunk"]
    assert complete_metrics("fpr,auroc,") == [f"fpr,auroc,{name}" for name in METRICS if name not in ("fpr", "auroc")]
    assert complete_metrics("fpr") == ["fpr"]  # without a comma it is what is being typed


@pytest.mark.parametrize("before", ["gem,", "gem,knn,", ",", "all,"])
def test_all_methods_are_offered_only_where_nothing_stands_before(before: str) -> None:
    assert complete_methods(f"{before}al") == []
    assert not [offered for offered in complete_methods(before) if offered.endswith("all")]
    assert complete_methods("")[0] == "all"


def test_claims_are_offered_in_the_case_that_was_typed() -> None:
    assert (
        complete_item("b") == [item.lower() for item in complete_item("B")] == [f"b{place}" for place in range(1, 10)]
    )
    assert {item.upper() for item in complete_item("p")} <= {claim.item for claim in claims()}


def test_completing_loads_neither_numpy_nor_a_detector() -> None:
    check = (
        "import sys; from gem_ood.cli.completing import complete_methods; import gem_ood.cli; complete_methods('gem,');"
        "print([name for name in ('numpy', 'scipy', 'sklearn', 'pyarrow', 'rich') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "[]\n"
