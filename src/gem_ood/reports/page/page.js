// Page: the controls, the theme, printing, and the start.

const byId = (id) => document.getElementById(id);
const listen = (id, type, action) => {
  if (byId(id)) byId(id).addEventListener(type, action);
};
const prefersDark = matchMedia("(prefers-color-scheme: dark)");
const print = matchMedia("print");

const NO_THRESHOLD =
  "This detector has no threshold, so nothing is guaranteed and no row is flagged. Calibrate it on held-out rows.";

function applyTheme() {
  const isDarkAsked = state.theme === "dark" || (state.theme === "auto" && prefersDark.matches);
  const theme = isDarkAsked && !state.isPrinting ? "dark" : "light";
  if (root.dataset.theme === theme && root.dataset.painted) return;
  root.dataset.theme = theme;
  root.dataset.painted = "true";
  paintSwatches();
  refresh();
}

// The rows of the table keep the order of the comparison, which need not be that of the detectors.
const detectorOf = (row) => (row.dataset.index === "" ? undefined : detectors[Number(row.dataset.index)]);

function paintSwatches() {
  for (const row of document.querySelectorAll("#comparison-table tbody tr")) {
    const one = detectorOf(row);
    if (one)
      row.querySelector(".swatch").replaceChildren(swatch({ colour: detectorColour(one), dash: detectorDash(one) }));
  }
  for (const box of document.querySelectorAll("#controls [data-toggle]")) {
    const index = Number(box.dataset.index);
    const look =
      box.dataset.toggle === "set"
        ? { colour: setColour(sets[index]), symbol: setSymbol(sets[index]) }
        : { colour: detectorColour(detectors[index]), dash: detectorDash(detectors[index]) };
    box.nextElementSibling.replaceChildren(swatch(look));
  }
}

const NOTES = {
  detector: (number) =>
    `${counted(number, "detector")} in italics ${number === 1 ? "is" : "are"} not drawn in the plots. `,
  set: (number) => `${counted(number, "set")} ${number === 1 ? "is" : "are"} hidden; the mean is over all sets.`,
};

function showTable() {
  const hidden = new Set(sets.filter((one) => !one.isShown).map((one) => one.name));
  for (const row of document.querySelectorAll("#comparison-table tbody tr")) {
    const one = detectorOf(row);
    if (!one) continue;
    row.dataset.shown = String(one.isShown);
    row.dataset.focus = String(one === state.focus);
    row.title = one.isShown ? "" : "not drawn in the plots";
  }
  for (const cell of document.querySelectorAll("#comparison-table [data-set]"))
    cell.hidden = hidden.has(cell.dataset.set);
  for (const [kind, all] of [
    ["detector", detectors],
    ["set", sets],
  ]) {
    const notDrawn = all.filter((one) => !one.isShown).length;
    if (byId(`${kind}-note`)) byId(`${kind}-note`).textContent = notDrawn ? NOTES[kind](notDrawn) : "";
    if (byId(`${kind}-tally`))
      byId(`${kind}-tally`).textContent = `${all.filter((one) => one.isShown).length}/${all.length}`;
  }
}

function showFocus() {
  for (const part of document.querySelectorAll(".surprises")) {
    part.hidden = Number(part.dataset.index) !== state.focus.index;
    if (part.hidden) continue;
    for (const image of part.querySelectorAll("img:not([src])")) image.src = report.images[image.dataset.image];
  }
  const place = byId("guarantee");
  if (!place) return;
  const { threshold } = state.focus;
  const asked = threshold && `from ${counted(threshold.n_rows, "row")}, asked to keep ${rate(threshold.tpr)}`;
  const words = threshold
    ? `Threshold ${thresholdWords()}, ${threshold.method}, ${asked}. ${threshold.guarantee}`
    : NO_THRESHOLD;
  place.replaceChildren(
    element("strong", {}, [element("bdi", { textContent: `${named(state.focus.name)}: ` })]),
    words,
  );
}

function toggled(kind, changes) {
  const all = kind === "set" ? sets : detectors;
  for (const [index, isShown] of changes) {
    all[index].isShown = isShown;
    document.querySelector(`#controls [data-toggle="${kind}"][data-index="${index}"]`).checked = isShown;
  }
  if (kind === "set") followCurveSet();
  showTable();
  refresh(kind === "set" ? ["scores", "roc", "precision", "map"] : ["roc", "precision"]);
}

// A set that is not drawn cannot be chosen for the curves; the next one that is takes its place.
function followCurveSet() {
  const choice = byId("curve-set");
  if (!choice) return;
  for (const one of sets) choice.options[one.index].disabled = !one.isShown;
  const [first] = shownSets();
  if (choice.value !== "every" && !sets[Number(choice.value)].isShown && first) choice.value = String(first.index);
  state.curveSet = choice.value;
}

function wireControls() {
  listen("focus-detector", "change", (event) => {
    state.focus = detectors[Number(event.target.value)];
    showTable();
    showFocus();
    refresh(["scores", "roc", "precision", "calibration", "map"]);
  });
  listen("curve-set", "change", (event) => {
    state.curveSet = event.target.value;
    refresh(["roc", "precision"]);
  });
  listen("map-colour", "change", (event) => {
    state.mapColour = event.target.value;
    state.hiddenGroups.clear();
    refresh(["map"]);
  });
  listen("theme", "change", (event) => {
    state.theme = event.target.value;
    applyTheme();
  });
  listen("controls", "change", ({ target }) => {
    if (target.dataset.toggle) toggled(target.dataset.toggle, [[Number(target.dataset.index), target.checked]]);
  });
  listen("controls", "click", ({ target }) => {
    const kind = target.dataset.all || target.dataset.none;
    if (kind)
      toggled(
        kind,
        (kind === "set" ? sets : detectors).map((one) => [one.index, Boolean(target.dataset.all)]),
      );
  });
  listen("legend-map", "click", (event) => {
    const button = event.target.closest("[data-group]");
    if (!button) return;
    const { group } = button.dataset;
    if (!state.hiddenGroups.delete(group)) state.hiddenGroups.add(group);
    refresh(["map"]);
    const again = [...document.querySelectorAll("#legend-map [data-group]")].find((one) => one.dataset.group === group);
    if (again) again.focus();
  });
}

// A menu closes when the reader goes elsewhere, or by Escape.
function wireMenus() {
  const menus = [...document.querySelectorAll("details.menu")];
  document.addEventListener("click", ({ target }) => {
    for (const menu of menus) if (!menu.contains(target)) menu.open = false;
  });
  for (const menu of menus) {
    menu.addEventListener("keydown", (event) => {
      if (event.key !== "Escape" || !menu.open) return;
      menu.open = false;
      menu.querySelector("summary").focus();
    });
  }
}

function wireCopy() {
  listen("copy-command", "click", async () => {
    const command = byId("rerun-command");
    try {
      await navigator.clipboard.writeText(command.textContent);
      byId("copy-status").textContent = "Copied.";
    } catch {
      getSelection().selectAllChildren(command);
      byId("copy-status").textContent = "Selected: copy it with your keyboard.";
    }
  });
}

function printing(isPrinting) {
  if (state.isPrinting === isPrinting) return;
  state.isPrinting = isPrinting;
  root.dataset.printing = String(isPrinting);
  applyTheme();
  refresh();
}

function start() {
  if (byId("map-colour")) state.mapColour = byId("map-colour").value;
  if (byId("focus-detector")) byId("focus-detector").value = String(state.focus.index);
  if (byId("comparison-table")) makeSortable(byId("comparison-table"));
  wireControls();
  wireMenus();
  wireCopy();
  for (const plot of plots) plot.place.addEventListener("keydown", steer);
  for (const details of document.querySelectorAll("[data-numbers]"))
    details.addEventListener("toggle", () => fillNumbers(details));
  addEventListener("beforeprint", () => printing(true));
  addEventListener("afterprint", () => printing(false));
  print.addEventListener("change", () => printing(print.matches));
  prefersDark.addEventListener("change", applyTheme);
  // The number of panels side by side hangs on the width, which plotly's own resizing knows nothing of.
  let waiting = 0;
  addEventListener("resize", () => {
    clearTimeout(waiting);
    waiting = setTimeout(() => refresh(["scores", "map"]), 200);
  });
  showTable();
  showFocus();
  applyTheme();
  watch();
  window.gemOodReport = {
    drawAll,
    data: report,
    state: () => ({
      focus: state.focus.name,
      detectors: shownDetectors().map((one) => one.name),
      sets: shownSets().map((one) => one.name),
      mapColour: state.mapColour,
      theme: root.dataset.theme,
    }),
  };
}

start();
