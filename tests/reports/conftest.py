"""Small studies, run once; the demonstration's report, and a browser that opens it."""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browsing import BROWSERS, PATIENCE_SECONDS, Visit
from pages import Page, made_report

from gem_ood.simulation import run_study

SIZES = {"runs": 3, "sampler": "projected", "n_in": 400, "n_out": 400}


@pytest.fixture(scope="session")
def small_studies():
    return [
        run_study("classes", grid=[2, 4], dimension=16, distance=5.0, **SIZES),
        run_study("distance", grid=[2.0, 6.0], n_classes=[2, 4], dimension=16, **SIZES),
        run_study("dimension", grid=[8, 16], n_classes=[2, 4], distance=5.0, **SIZES),
    ]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    path = next(filter(None, map(shutil.which, BROWSERS)), None)
    if path is None:
        pytest.skip("no Chromium here; Debian's package is called chromium")
    with playwright.sync_playwright() as driver:
        # Without a sandbox of its own, as CI often runs as root; the page comes from this very test.
        one = driver.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        yield one
        one.close()


@pytest.fixture(scope="session")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """Return the page of `gem-ood demo` and what its `--json` prints."""
    folder = tmp_path_factory.mktemp("demo")
    command = [sys.executable, "-m", "gem_ood", "demo", "--json", "--out", str(folder / "demo.safetensors")]
    command += ["--report", str(folder / "demo.html")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["report"] == str(folder / "demo.html")
    return folder / "demo.html", result


@pytest.fixture(scope="module")
def opened(browser: Any, demo: Any) -> Iterator[Visit]:
    one = Visit(browser, demo[0], viewport={"width": 1280, "height": 900})
    yield one
    one.page.close()


@pytest.fixture
def visit(opened: Visit) -> Visit:
    """Return the demonstration's page as it was when it came; to open it anew for each test takes seconds."""
    opened.reset()
    return opened


@pytest.fixture(scope="session")
def report():
    return made_report()


@pytest.fixture(scope="session")
def page(report):
    from gem_ood.reports.page import render

    return Page(render(report))
