"""A report that is open in a browser, and all that went wrong on it."""

import json
from pathlib import Path
from typing import Any

SCREENSHOTS = Path(__file__).parents[2] / "build" / "screenshots"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")

#: The demonstration and a first drawing on a busy machine.
PATIENCE_SECONDS = 300
DRAWING_MILLISECONDS = 60_000

#: Brings an open page back to how it was when it came: every choice, every zoom, every box that was opened.
RESET = """async () => {
  dispatchEvent(new Event("afterprint"));
  for (const one of document.querySelectorAll("[data-toggle]:not(:checked)"))
    if (one.defaultChecked) one.click();
  for (const one of document.querySelectorAll("[data-toggle]:checked"))
    if (!one.defaultChecked) one.click();
  for (const one of document.querySelectorAll("select")) {
    const first = Math.max(0, [...one.options].findIndex((option) => option.defaultSelected));
    if (one.selectedIndex === first) continue;
    one.selectedIndex = first;
    one.dispatchEvent(new Event("change", { bubbles: true }));
  }
  for (const one of document.querySelectorAll("#legend-map [aria-pressed=false]")) one.click();
  const first = document.querySelector("#comparison-table th[data-sort=detector]");
  first.setAttribute("aria-sort", "none");
  first.querySelector("button").click();
  for (const one of document.querySelectorAll("details[open]")) one.open = false;
  for (const one of document.querySelectorAll("[data-plot]"))
    one.dispatchEvent(new KeyboardEvent("keydown", { key: "0" }));
  document.activeElement.blur();
  scrollTo(0, 0);
  await window.gemOodReport.drawAll();
}"""


class Visit:
    """A page that is open, and all that went wrong on it."""

    def __init__(self, browser: Any, path: Path, **settings: Any) -> None:
        self.page = browser.new_page(**settings)
        self.faults: list[str] = []
        self.requests: list[str] = []
        self.page.on(
            "console", lambda message: message.type in ("error", "warning") and self.faults.append(message.text)
        )
        self.page.on("pageerror", lambda error: self.faults.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(path.as_uri())
        self.page.wait_for_selector("html[data-ready=true]", timeout=DRAWING_MILLISECONDS)
        self.page.evaluate("window.gemOodReport.drawAll()")
        self.page.wait_for_function(
            "[...document.querySelectorAll('[data-plot]')].every((plot) => plot.dataset.drawn === 'true')",
            timeout=DRAWING_MILLISECONDS,
        )

        self.faults_at_first = tuple(self.faults)

    def reset(self) -> None:
        """Bring the page back to how it was when it came, so that no test depends on those before it."""
        self.page.emulate_media(media="null", color_scheme="null")
        self.page.mouse.move(0, 0)
        self.page.evaluate(RESET)
        self.faults.clear()

    def numbers(self, key: str) -> list[list[str]]:
        """Return the table behind a figure, its titles first."""
        self.page.locator(f"[data-numbers={key}] > summary").click()
        rows = f"[data-numbers={key}] tr"
        self.page.wait_for_selector(rows)
        table: list[list[str]] = self.page.eval_on_selector_all(
            rows, "rows => rows.map((row) => [...row.cells].map((cell) => cell.textContent))"
        )
        return table

    def data(self) -> dict[str, Any]:
        """Return the report that the page holds."""
        report: dict[str, Any] = json.loads(self.page.text_content("#report-data"))
        return report

    def choose(self, **choices: str) -> None:
        """Choose in the page's lists, for example `map_colour="set"`, and draw what that changes."""
        for control, value in choices.items():
            self.page.select_option(f"#{control.replace('_', '-')}", value)
        self.page.evaluate("window.gemOodReport.drawAll()")

    def tick(self, kind: str, name: str, *, shown: bool) -> None:
        """Show or hide a detector or a set in the plots."""
        menu = self.page.locator(f"details[data-menu={kind}]")
        if menu.get_attribute("open") is None:
            menu.locator("summary").click()
        menu.locator(f'input[data-{kind}="{name}"]').set_checked(shown)
        self.page.evaluate("window.gemOodReport.drawAll()")

    def drawn(self, key: str) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        """Return the traces and the layout that a plot has now."""
        data, layout = self.page.evaluate(
            "async (key) => { await window.gemOodReport.drawAll(); const plot = document.getElementById(`plot-${key}`);"
            " return [plot.data, plot.layout]; }",
            key,
        )
        return data, layout

    def keep(self, name: str) -> None:
        SCREENSHOTS.mkdir(parents=True, exist_ok=True)
        self.page.screenshot(path=SCREENSHOTS / f"{name}.png", full_page=True)
