"""The documentation is true: its examples run and print what they say, its links and lists are whole."""

import contextlib
import importlib
import importlib.util
import io
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
import types
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

import pytest

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(path.relative_to(ROOT).as_posix() for path in [ROOT / "README.md", *DOCS.glob("*.md")])

FENCED = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NOT_RUN = re.compile(r"<!-- not run: \S.* -->\s*\Z")
LINK = re.compile(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)")


@dataclass(frozen=True)
class Block:
    """A fenced block of a page; `printed` is the text block that follows with at most one short line between."""

    language: str
    text: str
    line: int
    printed: str | None


def blocks(page: str) -> list[Block]:
    text = (ROOT / page).read_text(encoding="utf-8")
    found = list(FENCED.finditer(text))
    kept = []
    for place, match in enumerate(found):
        if NOT_RUN.search(text[: match.start()]):
            continue
        after = found[place + 1] if place + 1 < len(found) else None
        printed = None
        if after is not None and after[1] == "text" and text[match.end() : after.start()].strip() in ("", "It prints:"):
            printed = after[2]
        kept.append(Block(match[1], match[2], text.count("\n", 0, match.start()) + 1, printed))
    return kept


def run_python(block: Block, page: str, namespace: dict[str, object]) -> None:
    out = io.StringIO()
    code = compile("\n" * block.line + block.text, str(ROOT / page), "exec")  # a traceback names the line of the page
    with contextlib.redirect_stdout(out):
        exec(code, namespace)
    if block.printed is not None:
        assert out.getvalue() == block.printed


def run_console(block: Block) -> None:
    """Run the commands of a console block; what is shown under one is what it prints, on either stream."""
    from typer.testing import CliRunner

    from gem_ood.cli import app

    for entry in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
        command, _, shown = entry.partition("\n")
        program, *arguments = shlex.split(command)
        assert program == "gem-ood", f"line {block.line}: {command}"
        result = CliRunner().invoke(app, arguments)
        assert result.exit_code == (2 if shown.startswith("gem-ood: error: ") else 0), result.output
        if shown:
            assert [line.rstrip() for line in result.output.splitlines()] == shown.splitlines()


@contextlib.contextmanager
def own_ray(page: str) -> Iterator[None]:
    """Start one Ray for a page that uses it: the workers of one that runs already have another working directory."""
    if not any("gem_ood.ray" in block.text for block in blocks(page)):
        yield
        return
    ray = pytest.importorskip("ray", reason="Ray is not installed")
    from gem_ood.ray.session import session

    ray.shutdown()
    with session():
        yield


@pytest.mark.parametrize("page", PAGES)
def test_the_examples_of_a_page_run_and_print_what_they_say(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {"__name__": "example"}
    with own_ray(page):
        for block in blocks(page):
            if block.language == "python":
                run_python(block, page, namespace)
            elif block.language == "console":
                run_console(block)


def shell_lines(block: Block) -> list[list[str]]:
    """Return the commands of a block as words, without settings of the environment before them and remarks behind."""
    lines = [shlex.split(line, comments=True) for line in block.text.replace("\\\n", " ").splitlines()]
    for words in lines:
        while words and re.match(r"\w+=", words[0]):
            del words[0]
    return [words for words in lines if words]


def check_gem_ood(arguments: list[str]) -> None:
    """Parse the arguments as the program does, without running what they ask for."""
    from typer.main import get_command

    from gem_ood.cli import app

    root: Any = get_command(app)
    name, *further = arguments
    assert name in root.commands
    root.commands[name].make_context(name, further)  # an option that is not there, or lacks its value, raises


def check_make(arguments: list[str]) -> None:
    targets = re.search(r"^\.PHONY: (.+)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)[1].split()
    assert [target for target in arguments if target not in targets] == []


def check_pip(arguments: list[str]) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    verb, requirement = arguments
    name, extras = re.fullmatch(r"([\w-]+)(?:\[([\w,]+)\])?", requirement).groups()
    assert (verb, name) == ("install", project["name"])
    assert extras is None or set(extras.split(",")) <= set(project["optional-dependencies"])


CHECKS = {"gem-ood": check_gem_ood, "make": check_make, "pip": check_pip}


@pytest.mark.parametrize("page", [*PAGES, "CONTRIBUTING.md"])
def test_the_shell_commands_of_a_page_could_be_typed(page):
    for block in blocks(page):
        for program, *arguments in shell_lines(block) if block.language == "sh" else []:
            assert program in CHECKS, (
                f"line {block.line}: cannot be checked; write <!-- not run: why --> above the block"
            )
            try:
                CHECKS[program](arguments)
            except Exception as error:
                error.add_note(f"{page}, block of line {block.line}: {shlex.join([program, *arguments])}")
                raise


@pytest.mark.parametrize(
    "line",
    [
        "gem-ood train rows.npz",
        "gem-ood fit rows.npz --out x.safetensors --covarianze oas",
        "gem-ood fit --out x.safetensors",
        "gem-ood evaluate gem.safetensors --id a.npz --map tsne",
        "make tests",
        'pip install "gem-ood[reports]"',
        'pip install "gem-ood[data,reports]"',
    ],
)
def test_a_shell_command_that_is_wrong_is_noticed(line):
    ((program, *arguments),) = shell_lines(Block("sh", f"SETTING=1 {line}  # remark\n", 1, None))
    with pytest.raises(Exception, match=r".") as caught:
        CHECKS[program](arguments)
    assert isinstance(caught.value, AssertionError) or hasattr(caught.value, "format_message")


def test_every_block_is_run_parsed_or_no_code():
    assert {block.language for page in PAGES for block in blocks(page)} <= {"python", "console", "sh", "text", "bibtex"}


def test_the_readme_shows_what_the_demo_prints(tmp_path, monkeypatch):
    pytest.importorskip("PIL")  # which decodes the photographs
    from typer.testing import CliRunner

    from gem_ood.cli import app

    monkeypatch.chdir(tmp_path)
    (tmp_path / "build").mkdir()
    printed = CliRunner().invoke(app, ["demo", "--no-report", "--out", "build/demo.safetensors"]).stdout
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    shown = re.search(r"<!-- demo:start -->\n```text\n(.*?)```\n<!-- demo:end -->", text, re.DOTALL)[1]
    assert shown == f"{printed}\nReport: build/demo.html\n"


def test_the_readme_has_its_example_its_two_commands_and_a_place_for_the_demo():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    example = next(block for block in blocks("README.md") if block.language == "python")
    assert len([line for line in example.text.splitlines() if line]) == 10
    assert "make demo" in text
    assert "make test" in text
    assert text.index("<!-- demo:start -->") < text.index("<!-- demo:end -->")


def test_the_table_of_contents_names_every_page_and_no_other():
    listed = re.findall(r"^ +- .+: (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(listed) == sorted(path.name for path in DOCS.glob("*.md"))


@pytest.mark.parametrize("page", [*PAGES, "CONTRIBUTING.md", "CHANGELOG.md"])
def test_links_to_files_lead_somewhere(page):
    path = ROOT / page
    for target in LINK.findall(path.read_text(encoding="utf-8")):
        assert (path.parent / target).exists(), target


def named(requirement: str) -> str:
    return re.match(r"[\w.-]+", requirement)[0]


def test_every_dependency_has_its_reason_and_its_licence_and_nothing_else_is_listed():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    extras = project["project"]["optional-dependencies"]
    groups = [
        project["build-system"]["requires"],
        project["project"]["dependencies"],
        *extras.values(),
        *project["dependency-groups"].values(),
        *(
            (ROOT / "benchmarks" / name).read_text().splitlines()
            for name in ("requirements.txt", "requirements-peers.txt")
        ),
    ]
    wanted = {named(entry) for group in groups for entry in group if not entry.startswith("#")} - {"gem-ood"}
    page = (DOCS / "dependencies.md").read_text(encoding="utf-8")
    rows = [line.strip("|").split("|") for line in page.splitlines() if line.startswith("| `")]
    assert {row[0].strip(" `") for row in rows} == wanted
    assert [row for row in rows if len(row) < 3 or not all(cell.strip() for cell in row)] == []
    for extra, packages in extras.items():
        assert f"`{extra}`" in page
        for package in {named(entry) for entry in packages} - {"gem-ood"}:
            assert re.search(rf"^\| `{package}` \| [^|]*`{extra}`[^|]* \|", page, re.MULTILINE), (extra, package)


@pytest.fixture
def comparison(monkeypatch):
    """Return the script that writes the pages of the comparison, and the recorded run that it writes them from."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    page = importlib.import_module("page")
    return page, importlib.import_module("report").read(page.RECORDED)


def test_the_pages_of_the_comparison_are_those_that_the_recorded_run_gives(comparison):
    page, run = comparison
    for name, text in page.pages(run, page.TEMPLATE.read_text(encoding="utf-8")).items():
        assert (DOCS / name).read_text(encoding="utf-8") == text, "write it again: python benchmarks/page.py"


def test_the_chart_of_the_comparison_is_of_the_recorded_run(comparison):
    pytest.importorskip("matplotlib")
    page, run = comparison
    from gem_ood.reports.plots import caption

    title, description = caption(importlib.import_module("chart").draw(run))
    picture = (DOCS / page.CHART).read_text(encoding="utf-8")
    assert f"<title>{escape(title)}</title>" in picture
    assert f"<desc>{escape(description)}</desc>" in picture


def test_the_recorded_run_leaves_nothing_out(comparison):
    _, run = comparison
    shapes = ("64x10", "128x100", "512x100", "768x150", "2048x1000")
    wanted = {
        f"{what}-{shape}" for what in ("fit", "score", "batches", "one-row", "limit", "memory") for shape in shapes
    }
    wanted |= {"one-row-128x10", "all-pairs-512x100", "metrics", "limit-metrics", "rates", "simulation", "studies"}
    wanted |= {"save-load-128x100", "import", "install-size", "memory-rows", "growth-fit", "growth-score"}
    wanted |= {"accuracy-float32", "accuracy-float64", "robustness"}
    assert wanted - {section.key for section in run.sections if not section.skipped} == set()


def test_the_recorded_run_is_small(comparison):
    assert comparison[0].RECORDED.stat().st_size < 300_000


def loaded(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def drawing_script():
    pytest.importorskip("matplotlib")
    return loaded(DOCS / "figures.py")


def test_the_figures_of_the_explanation_say_what_the_page_says():
    script = drawing_script()
    from gem_ood.reports.plots import caption

    title, description = caption(script.calibration())
    assert title == "Training rows score higher than new rows do"
    page = (DOCS / "gem.md").read_text(encoding="utf-8")
    of_training, of_held_out = re.findall(r"calibrated on .* rows: (\d+)% of new rows are kept\n", page)
    assert f"keeps {of_training} % of new rows; one from held-out rows keeps {of_held_out} %" in description
    _, description = caption(script.far_from_everything())
    assert "0 % of the odd rows. (b)" in description
    assert description.endswith("100 % of the odd rows.")


def test_a_figure_of_the_documentation_is_drawn_to_the_same_bytes_twice(tmp_path):
    from gem_ood.reports import save_figure

    draw = drawing_script().far_from_everything
    one, other = (save_figure(draw(), tmp_path / f"{name}.svg").read_bytes() for name in "ab")
    assert one == other


def test_every_picture_of_the_documentation_is_drawn_by_the_repository_and_shown(comparison):
    recipes = (ROOT / "Makefile").read_text(encoding="utf-8")
    copied = re.findall(r"build/(?:figures|screenshots)/([\w-]+\.\w+) (?=.*docs/images$)", recipes, re.MULTILINE)
    drawn = {*copied, *(f"{name}.svg" for name in drawing_script().FIGURES), Path(comparison[0].CHART).name}
    shown = {
        name
        for page in DOCS.glob("*.md")
        for name in re.findall(r"\(images/([^)]+)\)", page.read_text(encoding="utf-8"))
    }
    assert shown == {path.name for path in (DOCS / "images").iterdir()} == drawn
    assert {Path(name).suffix for name in shown} == {".svg", ".png"}


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_making_screenshots_without_a_browser_fails_and_keeps_the_old_ones(tmp_path):
    shutil.copy(ROOT / "Makefile", tmp_path)
    for folder in (".venv/bin", "build/screenshots", "docs/images"):
        (tmp_path / folder).mkdir(parents=True)
    for name in ("report.png", "report-scores.png"):
        (tmp_path / "build" / "screenshots" / name).write_bytes(b"stale")
        (tmp_path / "docs" / "images" / name).write_bytes(b"shown")
    for done in ("pyproject.toml", "constraints.txt", ".venv/.demo", ".venv/.test"):
        (tmp_path / done).touch()
    python = tmp_path / ".venv" / "bin" / "python"
    python.write_text("#!/bin/sh\nexit 0\n")  # as pytest ends where every test was skipped
    python.chmod(0o755)
    command = ["make", "screenshots", "VENV=.venv"]
    made = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60)
    assert made.returncode != 0
    assert "no pictures were taken" in made.stdout
    assert {path.read_bytes() for path in (tmp_path / "docs" / "images").iterdir()} == {b"shown"}


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Return the folder of the built pages; a warning of the build is an error."""
    pytest.importorskip("mkdocstrings_handlers")
    pytest.importorskip("material")
    folder = tmp_path_factory.mktemp("site")
    build = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert build.returncode == 0, build.stdout + build.stderr
    return folder


def hooks():
    pytest.importorskip("griffe")
    return loaded(DOCS / "hooks" / "fenced_examples.py")


def fenced(text):
    return hooks().fenced(text)


def test_a_constant_is_described_by_the_comment_right_above_it():
    lines = [
        "#: Not this one.",
        "",
        "#: How many rows",
        "#: there are.",
        "ROWS = 3",
        "OTHER = 4",
        "# plain",
        "LAST = 5",
    ]
    assert [hooks().remark_above(lines, line) for line in (5, 6, 8, 1)] == ["How many rows there are.", "", "", ""]


def test_bare_examples_are_fenced_where_they_stand():
    text = "One.\n\n>>> 1\n1\n>>> 2\n2\n\nTwo.\n\nExample:\n    >>> for i in []:\n    ...     i"
    assert fenced(text) == (
        "One.\n\n```pycon\n>>> 1\n1\n>>> 2\n2\n```\n\nTwo.\n\n"
        "Example:\n    ```pycon\n    >>> for i in []:\n    ...     i\n    ```"
    )


@pytest.mark.parametrize("text", ["No example.", "One.\n\n```pycon\n>>> 1\n1\n\n>>> 2\n2\n```\n\nTwo."])
def test_a_docstring_without_bare_examples_stays_as_it_is(text):
    assert fenced(text) == text


def test_the_reference_shows_examples_as_code_and_no_private_base(site):
    page = (site / "reference" / "index.html").read_text(encoding="utf-8")
    assert page.count("&gt;&gt;&gt;") > 200
    assert "<blockquote" not in page
    assert re.findall(r"Bases:.*?</p>", page, re.DOTALL) != []  # those of the errors, which callers catch by
    assert [bases for bases in re.findall(r"Bases:.*?</p>", page, re.DOTALL) if re.search(r"\b_\w", bases)] == []


def test_the_reference_describes_no_name_of_a_room_twice(site):
    page = (site / "reference" / "index.html").read_text(encoding="utf-8")
    places = [name.split(".") for name in re.findall(r'<h[3-6] id="(gem_ood\.\w+\.[\w.]+)"', page)]
    of_rooms = Counter((place[1], place[-1]) for place in places if "".join(place[:-1]).islower())  # no class's members
    assert len(of_rooms) > 100
    assert [name for name, count in of_rooms.items() if count > 1] == []


def public_rooms():
    """Return every module whose names are public: those that `gem_ood` exports, those of extras, and parts of these."""
    pytest.importorskip("torch")
    pytest.importorskip("ray")
    import gem_ood

    rooms = [f"gem_ood.{name}" for name in gem_ood.__all__ if isinstance(getattr(gem_ood, name), types.ModuleType)]
    parts = [f"gem_ood.experiments.{name}" for name in ("data_sets", "networks", "training")]
    return [
        importlib.import_module(name)
        for name in [*rooms, "gem_ood.experiments", *parts, "gem_ood.torch", "gem_ood.ray", "gem_ood.reports.plots"]
    ]


def test_the_reference_describes_every_public_name(site):
    page = (site / "reference" / "index.html").read_text(encoding="utf-8")
    found = set(re.findall(r'id="(gem_ood[\w.]*)"', page))
    missing = []
    for room in public_rooms():
        for name in room.__all__:
            place = f"{room.__name__}.{name}"  # a function in a module of its own name is found one step further
            is_scikit_learns = str(getattr(getattr(room, name), "__module__", "")).startswith("sklearn.")
            above = f"{room.__name__.rpartition('.')[0]}.{name}"  # what the room of a part exports is described there
            is_there = place in found or f"{place}.{name}" in found or above in found
            if not (is_there or (is_scikit_learns and f"<code>{name}</code>" in page)):
                missing.append(place)
    assert missing == []


def test_the_site_loads_nothing_from_elsewhere(site):
    loads = re.compile(r"""<(?:script|link|img|iframe|source)[^>]*(?:src|href)=["']?(?:https?:)?//[^>]*>""")
    for path in site.rglob("*.html"):
        assert [tag for tag in loads.findall(path.read_text(encoding="utf-8")) if "canonical" not in tag] == []
    for path in site.rglob("*.css"):
        assert re.findall(r"""(?:url\(|@import )["']?(?:https?:)?//""", path.read_text(encoding="utf-8")) == []


def test_sentences_that_are_printed_wrap_on_the_site(site):
    assert 'class="language-text highlight sentences"' in (site / "index.html").read_text(encoding="utf-8")


def test_the_site_follows_the_systems_colours_and_keeps_scripts_out(site):
    page = (site / "index.html").read_text(encoding="utf-8")
    assert 'data-md-color-media="(prefers-color-scheme)"' in page
    assert 'data-md-color-scheme="slate"' in page
    assert list(site.rglob("*.py")) == []


def test_output_wraps_where_it_is_sentences_and_not_where_it_is_columns():
    wrapped = loaded(DOCS / "hooks" / "wrapped_output.py").wrapped
    block = '<div class="language-text highlight"><pre><span></span><code>{}</code></pre></div>'
    sentence, short, columns = block.format("word " * 30), block.format("word"), block.format("name      value " * 9)
    assert wrapped(sentence + short + columns) == sentence.replace("highlight", "highlight sentences") + short + columns


def test_the_tables_of_the_pages_keep_names_whole(site):
    page = (site / "detectors" / "index.html").read_text(encoding="utf-8")
    sheet = re.search(r'href="\.\./(styles/[^"]+\.css)"', page)[1]
    assert re.search(r"td code \{\s*word-break: normal;", (site / sheet).read_text(encoding="utf-8"))
    assert not (site / "hooks").exists()


def test_making_the_documentation_counts_every_warning():
    recipe = re.search(r"^docs:.*\n\t(.+)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)[1]
    assert "--strict" in recipe
    assert "--quiet" not in recipe  # it drops warnings before --strict counts them
