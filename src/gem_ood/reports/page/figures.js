// Figures: for each plot its traces, its layout, a sentence for who cannot see it, and its legend.

function axis(title, extra = {}) {
  const colours = ink();
  return {
    title: { text: title, standoff: 8 },
    gridcolor: colours.grid,
    linecolor: colours.line,
    zeroline: false,
    tickcolor: colours.line,
    ticks: "outside",
    ticklen: 4,
    automargin: true,
    ...extra,
  };
}

function layout(extra) {
  const colours = ink();
  return {
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    showlegend: false,
    hovermode: "closest",
    font: {
      family: "system-ui, -apple-system, 'Segoe UI', Roboto, 'Liberation Sans', sans-serif",
      size: 13,
      color: colours.text,
    },
    hoverlabel: {
      bgcolor: colours.paper,
      bordercolor: colours.line,
      font: { color: colours.text },
      align: "left",
      namelength: 0,
    },
    margin: { l: 56, r: 16, t: 16, b: 48 },
    modebar: { bgcolor: "rgba(0,0,0,0)", color: colours.muted, activecolor: colours.text },
    // A finger scrolls the page; zoom is for mice and keys.
    dragmode: matchMedia("(pointer: coarse)").matches ? false : "zoom",
    ...extra,
  };
}

// On paper plots are lower, so that two of them go on a page.
const onPage = (height) => (state.isPrinting ? Math.round(0.75 * height) : height);

// Curves of fewer points than these show them.
const FEW_POINTS = 20;

// As many digits as the ticks need, however far the reader zooms in.
const SHARE_TICKS = ".10~%";

const shareAxis = (title, extra = {}) => axis(title, { tickformat: SHARE_TICKS, range: [-0.01, 1.01], ...extra });

// What the two curve plots draw: every shown detector on one set, or every shown set for the detector in focus.
function curveSeries() {
  if (state.curveSet === "every") {
    return shownSets()
      .map((one) => ({
        name: one.name,
        detector: state.focus.name,
        set: one.name,
        colour: setColour(one),
        dash: setDash(one),
        width: 2.2,
        curve: (state.focus.curves || {})[one.name],
      }))
      .filter((one) => one.curve);
  }
  const chosen = sets[Number(state.curveSet)];
  if (!chosen.isShown) return [];
  return shownDetectors()
    .map((one) => ({
      name: one.name,
      detector: one.name,
      set: chosen.name,
      colour: detectorColour(one),
      dash: detectorDash(one),
      width: one === state.focus ? 3.6 : 1.8,
      curve: (one.curves || {})[chosen.name],
    }))
    .filter((one) => one.curve);
}

const curveSubject = () =>
  state.curveSet === "every"
    ? `the detector ${named(state.focus.name)}, one curve for each set`
    : `the set ${named(sets[Number(state.curveSet)].name)}, one curve for each detector`;

function curveFigure(kind) {
  const series = curveSeries();
  if (!series.length) return { missing: "Nothing is chosen to be drawn: tick a detector and a set above." };
  const isRoc = kind === "roc";
  const title = isRoc ? "ROC" : "Precision-recall";
  const [across, up] = isRoc ? ["fpr", "tpr"] : ["recall", "precision"];
  const [acrossTitle, upTitle] = isRoc ? ["false positive rate", "true positive rate"] : ["recall", "precision"];
  const data = series.map((one) => ({
    type: "scatter",
    mode: "lines",
    x: one.curve[across],
    y: one.curve[up],
    line: { color: one.colour, dash: one.dash, width: one.width },
    hovertemplate: `${hoverText(one.name)}<br>${acrossTitle} %{x:.2%}<br>${upTitle} %{y:.2%}<extra></extra>`,
  }));
  const chance = { type: "line", x0: 0, y0: 0, x1: 1, y1: 1, line: { color: ink().line, dash: "dot", width: 1 } };
  const asked = {
    type: "line",
    xref: "paper",
    x0: 0,
    x1: 1,
    y0: report.tpr,
    y1: report.tpr,
    line: { color: ink().line, dash: "dash", width: 1 },
  };
  const note = {
    text: `${rate(report.tpr)} kept`,
    x: 1,
    y: report.tpr,
    xref: "paper",
    xanchor: "right",
    yanchor: "top",
    showarrow: false,
    font: { size: 11.5, color: ink().muted },
  };
  return {
    data,
    height: onPage(400),
    layout: layout({
      height: onPage(400),
      xaxis: shareAxis(acrossTitle),
      yaxis: shareAxis(upTitle),
      shapes: isRoc ? [chance, asked] : [],
      annotations: isRoc ? [note] : [],
    }),
    label: `${title} curves of ${curveSubject()}: ${joined(series.map((one) => one.name))}.`,
    legend: series.map((one) => ({ label: one.name, colour: one.colour, dash: one.dash })),
  };
}

function band(across, low, high, colour = inColour()) {
  return {
    type: "scatter",
    mode: "lines",
    x: [...across, ...[...across].reverse()],
    y: [...low, ...[...high].reverse()],
    fill: "toself",
    fillcolor: faded(colour, 0.16),
    // Over one place a band has no breadth of its own.
    line: across.length === 1 ? { width: 10, color: faded(colour, 0.3) } : { width: 0 },
    hoverinfo: "skip",
  };
}

function calibrationFigure() {
  const { kept, name } = state.focus;
  if (!kept) return { missing: "This detector is not calibrated, so no share of kept rows was asked for." };
  const own = kept.own ? ownWords(kept.own) : "";
  const fitted = counted(kept.n_calibration, "row");
  const lowest = (...values) => Math.min(...values.flat().filter(isNumber)) - 0.02;
  const exact = { type: "line", x0: 0, y0: 0, x1: 1, y1: 1, line: { color: ink().line, dash: "dot", width: 1.2 } };
  return {
    data: [
      band(kept.asked, kept.low, kept.high),
      {
        type: "scatter",
        mode: "lines+markers",
        x: kept.asked,
        y: kept.realised,
        line: { color: detectorColour(state.focus), width: 2.4 },
        marker: { size: 5 },
        hovertemplate: "asked %{x:.2%}<br>kept %{y:.2%}<extra></extra>",
      },
      ...(kept.own ? ownTraces(kept.own) : []),
    ],
    height: onPage(420),
    layout: layout({
      height: onPage(420),
      xaxis: shareAxis("asked to be kept", { range: [lowest(kept.asked), 1.01] }),
      yaxis: shareAxis("kept", { range: [lowest(kept.asked, kept.realised, kept.low), 1.01] }),
      shapes: [exact],
    }),
    label: `Share of ${IN_DISTRIBUTION} rows kept by ${named(name)} against the share asked for, and its range.${own}`,
    words: `${cut(name, 60)}: calibrated on ${fitted}, checked on ${counted(kept.n_test, "row")}.${own}`,
    legend: [
      { label: "kept", colour: detectorColour(state.focus) },
      { label: "range that luck explains, 95 %", colour: inColour(), fill: true },
      ...(kept.own ? [{ label: "threshold in use, and its range", colour: ink().text, symbol: "star-diamond" }] : []),
      { label: "exactly as asked", colour: ink().line, dash: "dot" },
    ],
  };
}

// The detector's own threshold may ask for more than a conformal one, so it has a range of its own.
function ownTraces({ asked, realised, low, high }) {
  const range = isNumber(low) && isNumber(high) ? [low, high] : [];
  return [
    {
      type: "scatter",
      mode: "lines",
      x: range.map(() => asked),
      y: range,
      line: { color: ink().text, width: 3 },
      hoverinfo: "skip",
    },
    {
      type: "scatter",
      mode: "markers",
      x: [asked],
      y: [realised],
      marker: { symbol: "star-diamond", size: 15, color: ink().text, line: { color: ink().paper, width: 1.5 } },
      hovertemplate: "the threshold in use<br>asked %{x:.2%}<br>kept %{y:.2%}<extra></extra>",
    },
  ];
}

function ownWords({ asked, realised, low, high }) {
  const range = isNumber(low) && isNumber(high) ? `; luck explains ${percent(low)} to ${percent(high)}` : "";
  return ` Its own threshold was asked to keep ${percent(asked)} and kept ${percent(realised)}${range}.`;
}

// The line of all rows has the text's colour to itself.
const curveColour = (place) => [0, 1, 2, 3, 4, 5, 7, 8, 9, 10, 11].map(classColour)[place % 11];

// So few points are seen as points too: a line through one of them is nothing.
const modeOf = (values) => (values.length < FEW_POINTS ? "lines+markers" : "lines");

function diagnosisFigure() {
  const { curves, band: range, class_band: classRange, detector } = report.diagnosis;
  const many = curves.filter((one) => one.name !== null).length > CLASSES_COLOURED + 1;
  const data = range ? [band(range.expected, range.low, range.high)] : [];
  const legend = [];
  if (classRange) {
    data.push(band(classRange.expected, classRange.low, classRange.high, palette()[4]));
    const label = `lowest to highest of ${classRange.n_classes} classes`;
    legend.push({ label, colour: palette()[4], fill: true });
  }
  let place = 0;
  for (const one of [...curves].sort((first, second) => (second.name !== null) - (first.name !== null))) {
    const isAll = one.name === null;
    const colour = isAll ? ink().text : many ? ink().other : curveColour(place);
    const dash = isAll || many ? "solid" : DASHES[place % DASHES.length];
    if (!isAll) place += 1;
    const name = isAll ? "all rows" : one.name;
    data.push({
      type: "scatter",
      mode: modeOf(one.expected),
      x: one.expected,
      y: one.found,
      line: { color: colour, dash, width: isAll ? 3 : 1.4 },
      marker: { color: colour, size: isAll ? 8 : 6 },
      hovertemplate: `${hoverText(name)}<br>expected %{x:.4~g}<br>found %{y:.4~g}<extra></extra>`,
    });
    if (isAll || !many) legend.push({ label: name, colour, dash });
  }
  if (many) legend.push({ label: `${place} classes, one line each`, colour: ink().other });
  if (range) legend.push({ label: "95 % range of a Gaussian", colour: inColour(), fill: true });
  const high = Math.max(...curves.flatMap((one) => one.expected).filter(isNumber));
  return {
    data,
    height: onPage(420),
    layout: layout({
      height: onPage(420),
      xaxis: axis("expected squared distance", { rangemode: "tozero" }),
      yaxis: axis("found squared distance", { rangemode: "tozero" }),
      shapes: [
        { type: "line", x0: 0, y0: 0, x1: high, y1: high, line: { color: ink().line, dash: "dot", width: 1.2 } },
      ],
    }),
    label: `Quantiles of ${named(detector)}: distances found against a Gaussian's, ${counted(curves.length, "curve")}.`,
    legend,
  };
}
