"use strict";
// State: what the report holds, what the reader has chosen, and how names, numbers and colours are written.

const report = JSON.parse(document.getElementById("report-data").textContent);
const settings = JSON.parse(document.getElementById("page-settings").textContent);
const root = document.documentElement;

// Okabe and Ito's colours; on white the light ones are darkened, on black the dark ones lightened, to a contrast of 3.
const PALETTES = {
  light: ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#b07a00", "#2f8fc9", "#222222"],
  dark: ["#2b8fd0", "#ff7f1f", "#00b383", "#cc79a7", "#e69f00", "#7cc8f2", "#e8e8e8"],
};
const INKS = {
  light: { text: "#1b2430", muted: "#56616f", grid: "#e4e8ee", line: "#8b95a3", paper: "#ffffff", other: "#8b95a3" },
  dark: { text: "#e8ecf2", muted: "#a7b1bf", grid: "#2c333e", line: "#7d8794", paper: "#181c23", other: "#7d8794" },
};
// Five more for classes; they differ in lightness too, and the largest classes are named on the map itself.
const MORE_COLOURS = {
  light: ["#8c510a", "#7b3294", "#5e6b00", "#b2182b", "#01665e"],
  dark: ["#d8b365", "#c2a5cf", "#b8c94a", "#f4777f", "#80cdc1"],
};
const DASHES = ["solid", "dash", "dot", "dashdot", "longdash", "longdashdot"];
// Eleven: together with the six colours of the sets no two of the first 66 sets look alike.
const OOD_SYMBOLS = [
  "diamond",
  "square",
  "triangle-up",
  "cross",
  "x",
  "star",
  "triangle-down",
  "hexagon",
  "triangle-left",
  "triangle-right",
  "hourglass",
];
const IN_SYMBOL = "circle";
const CLASSES_COLOURED = 11;
const IN_DISTRIBUTION = "in-distribution";

const detectors = settings.detectors.map((name, index) => ({
  name,
  index,
  isShown: settings.shown[index],
  ...report.detectors[name],
}));
const sets = (report.sets || []).map((one, index) => ({ ...one, index, isShown: true }));
const lead = detectors.find((one) => one.name === report.lead) || detectors[0] || { name: "", index: 0 };
const state = {
  focus: lead,
  curveSet: "0",
  mapColour: "set",
  hiddenGroups: new Set(),
  theme: "auto",
  isPrinting: false,
};

const shownDetectors = () => detectors.filter((one) => one.isShown);
const shownSets = () => sets.filter((one) => one.isShown);

const isDark = () => root.dataset.theme === "dark";
const ink = () => INKS[isDark() ? "dark" : "light"];
const palette = () => PALETTES[isDark() ? "dark" : "light"];
const detectorColour = (one) => palette()[one.index % palette().length];
// Seven colours and six dashes come together again after 42 detectors only.
const detectorDash = (one) => DASHES[one.index % DASHES.length];
// The first colour is the in-distribution rows' own.
const setColour = (one) => palette()[1 + (one.index % (palette().length - 1))];
// Six colours too: each round of them takes the next dash, or the seventh set would look like the first.
const setDash = (one) => DASHES[(one.index + Math.floor(one.index / (palette().length - 1))) % DASHES.length];
const setSymbol = (one) => OOD_SYMBOLS[one.index % OOD_SYMBOLS.length];
const classColour = (place) => [...palette(), ...MORE_COLOURS[isDark() ? "dark" : "light"]][place];
const inColour = () => palette()[0];

function faded(colour, opacity) {
  const [red, green, blue] = [1, 3, 5].map((place) => parseInt(colour.slice(place, place + 2), 16));
  return `rgba(${red},${green},${blue},${opacity})`;
}

const named = (name) => (String(name).trim() === "" ? settings.no_name : String(name));

function cut(name, length = 28) {
  const letters = [...named(name)];
  return letters.length > length ? `${letters.slice(0, length - 1).join("")}…` : letters.join("");
}

// Plotly reads a small HTML, TeX between dollars and %{places to fill} in the texts it draws.
const plotText = (text) =>
  String(text)
    .replace(/&/g, "&amp;")
    .replace(/</g, "&lt;")
    .replace(/>/g, "&gt;")
    .replace(/\$/g, "&#36;")
    .replace(/%/g, "&#37;")
    .replace(/[\u0000-\u001f\u2028\u2029]+/g, " ");

// Whole names in hover labels, on as many lines as they need, up to a limit that any screen can show.
function hoverText(name) {
  const letters = [...cut(name, 400)];
  const lines = [];
  for (let start = 0; start < letters.length; start += 60)
    lines.push(plotText(letters.slice(start, start + 60).join("")));
  return lines.join("<br>");
}

const isNumber = (value) => typeof value === "number" && Number.isFinite(value);
const percent = (share) => (isNumber(share) ? `${(100 * share).toFixed(2)} %` : "–");
const rate = (share) => (isNumber(share) ? `${Number((100 * share).toFixed(2))} %` : "–");
const short = (value, digits = 4) =>
  isNumber(value)
    ? Number(value.toPrecision(digits)).toLocaleString("en-US", { maximumSignificantDigits: digits })
    : "–";
// The fewest digits that write different values differently, as many as a number has at most.
function digitsApart(values) {
  const different = [...new Set(values.filter(isNumber))];
  const isApart = (digits) => new Set(different.map((value) => short(value, digits))).size === different.length;
  let digits = 4;
  while (digits < 17 && !isApart(digits)) digits += 1;
  return digits;
}

const whole = (value) => Number(value).toLocaleString("en-US");
const counted = (number, noun) => `${whole(number)} ${noun}${number === 1 ? "" : "s"}`;
// A name may hold a comma.
const joined = (names) => names.map((name) => cut(name, 60)).join("; ");

// Elements are built with textContent only: no name of the data is ever read as HTML.
function element(tag, properties = {}, children = []) {
  const made = document.createElement(tag);
  for (const [key, value] of Object.entries(properties)) {
    if (key in made) made[key] = value;
    else made.setAttribute(key, value);
  }
  made.append(...children);
  return made;
}
