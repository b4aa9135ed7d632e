// Drawing: plots are drawn when they come near the screen, all of them before printing; keys zoom and move them.

const FIGURES = {
  scores: scoresFigure,
  roc: () => curveFigure("roc"),
  precision: () => curveFigure("precision"),
  calibration: calibrationFigure,
  diagnosis: diagnosisFigure,
  map: mapFigure,
};
const CONFIG = {
  responsive: true,
  displaylogo: false,
  scrollZoom: false,
  displayModeBar: matchMedia("(pointer: coarse)").matches ? false : "hover",
  typesetMath: false,
  // Named one by one: plotly's own choice holds a button that sends the data to a server.
  modeBarButtons: [["toImage"], ["zoom2d", "pan2d"], ["zoomIn2d", "zoomOut2d", "resetScale2d"]],
  plotlyServerURL: "",
  toImageButtonOptions: { format: "svg", filename: "gem-ood" },
};
const ZOOM_STEP = 1.25;
const MOVE_STEP = 0.1;
const plots = [...document.querySelectorAll("[data-plot]")].map((place) => ({
  key: place.dataset.plot,
  place,
  isNear: false,
  isStale: true,
}));
const SVG = "http://www.w3.org/2000/svg";
const DASH_LENGTHS = {
  solid: "",
  dash: "6 4",
  dot: "2 3",
  dashdot: "7 3 2 3",
  longdash: "10 4",
  longdashdot: "10 3 2 3",
};
const MARK_PATHS = {
  circle: "M14 2a4 4 0 1 0 0 8a4 4 0 1 0 0-8z",
  diamond: "M14 1l5 5l-5 5l-5-5z",
  square: "M10 2h8v8h-8z",
  "triangle-up": "M14 1l5 9h-10z",
  "triangle-down": "M14 11l5-9h-10z",
  cross: "M12 1h4v3h3v4h-3v3h-4v-3h-3v-4h3z",
  x: "M10 1l4 3l4-3l1 2l-3 3l3 3l-1 2l-4-3l-4 3l-1-2l3-3l-3-3z",
  star: "M14 0l1.6 4.2h4.4l-3.5 2.8l1.3 4.4l-3.8-2.6l-3.8 2.6l1.3-4.4l-3.5-2.8h4.4z",
  "triangle-left": "M9 6l9-5v10z",
  "triangle-right": "M19 6l-9-5v10z",
  hourglass: "M9 1h10l-10 10h10z",
  hexagon: "M11 1.5h6l3 4.5l-3 4.5h-6l-3-4.5z",
  "star-diamond": "M14 0l2 4l4 2l-4 2l-2 4l-2-4l-4-2l4-2z",
};

function swatch({ colour, dash = "solid", symbol, fill }) {
  const picture = document.createElementNS(SVG, "svg");
  for (const [key, value] of Object.entries({ viewBox: "0 0 28 12", width: 28, height: 12, "aria-hidden": "true" }))
    picture.setAttribute(key, value);
  const isOpen = Boolean(symbol) && symbol.endsWith("-open");
  const part = document.createElementNS(SVG, "path");
  const path = symbol ? MARK_PATHS[symbol.replace("-open", "")] : fill ? "M4 1h20v10h-20z" : "M0 6h28";
  const style = symbol
    ? isOpen
      ? { fill: "none", stroke: colour, "stroke-width": 1.8 }
      : { fill: colour }
    : fill
      ? { fill: colour, "fill-opacity": 0.45 }
      : { stroke: colour, "stroke-width": 3, "stroke-dasharray": DASH_LENGTHS[dash] };
  for (const [key, value] of Object.entries({ d: path, ...style })) part.setAttribute(key, value);
  picture.append(part);
  return picture;
}

function fillLegend(key, entries) {
  const list = document.getElementById(`legend-${key}`);
  list.hidden = !entries || !entries.length;
  list.replaceChildren(
    ...(entries || []).map((entry) => {
      if (entry.isBreak) return element("li", { className: "break", "aria-hidden": "true" });
      const inside = [swatch(entry), element("bdi", { textContent: cut(entry.label, 40), title: named(entry.label) })];
      if (!entry.key) return element("li", {}, inside);
      const button = element(
        "button",
        {
          type: "button",
          title: `Show or hide ${named(entry.label)}`,
          "aria-pressed": String(!state.hiddenGroups.has(entry.key)),
          "data-group": entry.key,
        },
        inside,
      );
      return element("li", {}, [button]);
    }),
  );
}

// A plot that was drawn once keeps its width, on the screen the paper's too, until it is told to look again.
function fitted(place) {
  const isSeen = place._fullLayout && place.clientWidth > 0;
  const isFitting = !isSeen || Math.abs(place._fullLayout.width - place.clientWidth) < 1;
  return state.isPrinting || isFitting ? place : Plotly.Plots.resize(place);
}

const figureOf = (key, width) => FIGURES[key](width);

function draw(plot) {
  const { key, place } = plot;
  const width = place.clientWidth;
  const figure = figureOf(key, width);
  plot.isStale = false;
  place.style.minHeight = "0";
  if (figure.missing) {
    Plotly.purge(place);
    place.replaceChildren(element("p", { className: "absent", textContent: figure.missing }));
    place.style.height = "auto";
  } else {
    // What stands here before a first drawing, or since the last was purged, is a sentence.
    if (!place._fullLayout) place.replaceChildren();
    place.style.height = `${figure.height}px`;
    figure.layout.uirevision = `${state.focus.name} ${state.curveSet}`;
    if (state.isPrinting) Object.assign(figure.layout, { width, autosize: false });
    plot.drawing = Plotly.react(place, figure.data, figure.layout, CONFIG).then(() => fitted(place));
  }
  place.setAttribute("aria-label", figure.missing || figure.label);
  document.getElementById(`words-${key}`).textContent = figure.words || "";
  fillLegend(key, figure.legend);
  fillNumbers(document.querySelector(`[data-numbers="${key}"]`));
  place.dataset.drawn = "true";
}

function drawStale(isWanted) {
  for (const plot of plots) if (plot.isStale && isWanted(plot)) draw(plot);
}

function drawAll() {
  drawStale(() => true);
  return Promise.all(plots.map((plot) => plot.drawing));
}

// Marks plots as out of date and draws those that can be seen; the others follow when they come near.
function refresh(keys = Object.keys(FIGURES)) {
  for (const plot of plots.filter((one) => keys.includes(one.key))) {
    plot.isStale = true;
    plot.place.dataset.drawn = "false";
  }
  drawStale((plot) => plot.isNear || state.isPrinting);
}

function watch() {
  const finish = () => {
    root.dataset.ready = "true";
  };
  if (!plots.length) return finish();
  const observer = new IntersectionObserver(
    (entries) => {
      for (const entry of entries) plots.find((plot) => plot.place === entry.target).isNear = entry.isIntersecting;
      drawStale((plot) => plot.isNear);
      finish();
    },
    { rootMargin: "400px 0px" },
  );
  for (const plot of plots) observer.observe(plot.place);
  return undefined;
}

function axesOf(place) {
  return Object.entries(place._fullLayout || {})
    .filter(([key]) => /^[xy]axis\d*$/.test(key))
    .map(([key, full]) => ({ key, range: full.range.map(Number) }));
}

function steered(place, pressed) {
  const changes = {};
  for (const { key, range } of axesOf(place)) {
    const [low, high] = range;
    const isAcross = key.startsWith("x");
    const middle = (low + high) / 2;
    const span = high - low;
    let [scale, move] = [1, 0];
    if (pressed === "+" || pressed === "=") scale = 1 / ZOOM_STEP;
    if (pressed === "-") scale = ZOOM_STEP;
    if (isAcross && pressed === "ArrowLeft") move = -MOVE_STEP;
    if (isAcross && pressed === "ArrowRight") move = MOVE_STEP;
    if (!isAcross && pressed === "ArrowDown") move = -MOVE_STEP;
    if (!isAcross && pressed === "ArrowUp") move = MOVE_STEP;
    changes[`${key}.range`] = [middle - (span * scale) / 2 + move * span, middle + (span * scale) / 2 + move * span];
  }
  return changes;
}

function homeward(plot) {
  const first = figureOf(plot.key, plot.place.clientWidth).layout;
  return Object.fromEntries(
    axesOf(plot.place).map(({ key }) =>
      first[key].range ? [`${key}.range`, first[key].range] : [`${key}.autorange`, true],
    ),
  );
}

function steer(event) {
  const plot = plots.find((one) => one.place === event.currentTarget);
  const isKnown = ["+", "=", "-", "0", "ArrowLeft", "ArrowRight", "ArrowUp", "ArrowDown"].includes(event.key);
  if (
    !isKnown ||
    event.ctrlKey ||
    event.metaKey ||
    event.altKey ||
    event.target !== plot.place ||
    !plot.place._fullLayout
  )
    return;
  event.preventDefault();
  Plotly.relayout(plot.place, event.key === "0" ? homeward(plot) : steered(plot.place, event.key));
}
