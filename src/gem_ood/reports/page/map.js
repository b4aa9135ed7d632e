// Map: every drawn row as a mark; colour says its class, verdict or set, the mark its set, an open mark a flagged row.

function verdictOf(place) {
  const verdicts = report.map.is_ood && report.map.is_ood[state.focus.name];
  return verdicts ? Boolean(verdicts[place]) : null;
}

const classOf = (place) => (report.map.class ? report.map.class[place] : null);

// The largest classes get a colour each, the rest share one: more could not be told apart.
const colouredClasses = (() => {
  const counts = new Map();
  for (const place of (report.map && report.map.class) || [])
    if (place !== null) counts.set(place, (counts.get(place) || 0) + 1);
  const ranked = [...counts.keys()].sort((first, second) => counts.get(second) - counts.get(first) || first - second);
  const chosen = ranked.length > CLASSES_COLOURED + 1 ? ranked.slice(0, CLASSES_COLOURED) : ranked;
  return {
    places: chosen.sort((first, second) => first - second),
    isCut: chosen.length < ranked.length,
    nClasses: ranked.length,
  };
})();

function mapGroups() {
  if (state.mapColour === "verdict") {
    return [
      { key: "kept", label: "kept", colour: palette()[0], has: (place) => verdictOf(place) === false },
      {
        key: "flagged",
        label: "flagged (open marks)",
        colour: palette()[1],
        isOpen: true,
        has: (place) => verdictOf(place) === true,
      },
      {
        key: "none",
        label: "no verdict: not calibrated",
        colour: ink().other,
        has: (place) => verdictOf(place) === null,
      },
    ];
  }
  if (state.mapColour === "set") {
    return [
      {
        key: "in",
        label: IN_DISTRIBUTION,
        colour: inColour(),
        symbol: IN_SYMBOL,
        has: (place) => report.map.set[place] === 0,
      },
      ...shownSets().map((one) => ({
        key: `set ${one.index}`,
        label: one.name,
        colour: setColour(one),
        symbol: setSymbol(one),
        has: (place) => report.map.set[place] === one.index + 1,
      })),
    ];
  }
  const known = new Set(colouredClasses.places);
  const isOutside = (row) => classOf(row) === null && report.map.set[row] !== 0;
  return [
    ...colouredClasses.places.map((place, index) => ({
      key: `class ${place}`,
      label: report.map.classes[place],
      colour: classColour(index),
      labelled: true,
      has: (row) => classOf(row) === place,
    })),
    {
      key: "other",
      label: colouredClasses.isCut ? `other (${whole(colouredClasses.nClasses - known.size)} classes)` : "no class",
      colour: ink().other,
      isBehind: true,
      has: (row) => !known.has(classOf(row)) && !isOutside(row),
    },
    { key: "out", label: "out-of-distribution, no class", colour: ink().other, isBehind: true, has: isOutside },
  ];
}

function mapRowText(place) {
  const set = report.map.set[place];
  const verdict = verdictOf(place);
  const rowClass = classOf(place);
  return [
    hoverText(set === 0 ? IN_DISTRIBUTION : sets[set - 1].name),
    `row ${report.map.row[place]}`,
    ...(rowClass === null ? [] : [`class ${hoverText(report.map.classes[rowClass])}`]),
    verdict === null ? "no verdict" : verdict ? "flagged" : "kept",
  ].join("<br>");
}

function mapMembers() {
  const isShown = [true, ...sets.map((one) => one.isShown)];
  const rows = report.map.x.map((_, place) => place).filter((place) => isShown[report.map.set[place]]);
  return mapGroups()
    .map((group) => ({ ...group, rows: rows.filter(group.has) }))
    .filter((group) => group.rows.length);
}

function centreLabel(group) {
  const own = group.rows.filter((place) => report.map.set[place] === 0);
  if (!group.labelled || own.length < 3) return null;
  const middle = (values) => values.sort((first, second) => first - second)[Math.floor(values.length / 2)];
  return {
    x: middle(own.map((place) => report.map.x[place])),
    y: middle(own.map((place) => report.map.y[place])),
    text: plotText(cut(group.label, 16)),
    hovertext: hoverText(group.label),
    showarrow: false,
    bgcolor: faded(ink().paper, 0.82),
    borderpad: 2,
    font: { size: 12 },
  };
}

// What the colours mean, which the legend alone cannot tell.
function colourWords() {
  if (state.mapColour === "verdict") return `Verdicts of ${cut(state.focus.name, 60)}.`;
  const from = report.map.class_from;
  if (state.mapColour !== "class" || !from) return "";
  if (from === "labels") return "Colours are the labels.";
  return `Colours are the ${cut(from, 80).replace(/^nearest class by /, "nearest class, by ")}.`;
}

function mapFigure(width) {
  const groups = mapMembers();
  const drawn = groups
    .filter((group) => !state.hiddenGroups.has(group.key))
    .sort((first, second) => Boolean(second.isBehind) - Boolean(first.isBehind));
  const parts = joined(groups.map((group) => `${cut(group.label, 40)} ${whole(group.rows.length)}`));
  const nDrawn = groups.reduce((sum, group) => sum + group.rows.length, 0);
  const symbolOf = (place) => (report.map.set[place] === 0 ? IN_SYMBOL : setSymbol(sets[report.map.set[place] - 1]));
  const data = drawn.map((group) => ({
    type: "scatter",
    mode: "markers",
    x: group.rows.map((place) => report.map.x[place]),
    y: group.rows.map((place) => report.map.y[place]),
    text: group.rows.map(mapRowText),
    hovertemplate: "%{text}<extra></extra>",
    marker: {
      symbol: group.rows.map((place) => symbolOf(place) + (group.isOpen ? "-open" : "")),
      color: group.colour,
      size: group.rows.map((place) => (report.map.set[place] === 0 ? 6 : 7.5)),
      opacity: 0.8,
      line: { width: group.isOpen ? 1.6 : 0.5, color: group.isOpen ? group.colour : ink().paper },
    },
  }));
  const height = width < 500 ? 420 : onPage(600);
  const noTicks = { showticklabels: false, ticks: "", showgrid: false };
  const marks =
    state.mapColour === "set"
      ? []
      : [
          { label: IN_DISTRIBUTION, colour: ink().muted, symbol: IN_SYMBOL },
          ...shownSets().map((one) => ({ label: one.name, colour: ink().muted, symbol: setSymbol(one) })),
        ];
  const method = report.map.method;
  return {
    data,
    height,
    layout: layout({
      height,
      xaxis: axis(`${method} 1`, noTicks),
      yaxis: axis(`${method} 2`, noTicks),
      annotations: drawn.map(centreLabel).filter(Boolean),
      margin: { l: 32, r: 12, t: 12, b: 36 },
    }),
    label: `Map of the features by ${method}: ${counted(nDrawn, "row")}, coloured by ${state.mapColour}: ${parts}.`,
    words: colourWords(),
    legend: [
      ...groups.map((group) => ({
        label: group.label,
        colour: group.colour,
        symbol: (group.symbol || "circle") + (group.isOpen ? "-open" : ""),
        key: group.key,
      })),
      ...(marks.length ? [{ isBreak: true }] : []),
      ...marks,
    ],
  };
}
