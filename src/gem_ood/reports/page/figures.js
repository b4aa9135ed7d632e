// Figures: for each plot its traces, its layout, a sentence for who cannot see it, and its legend.

function axis(title, extra = {}) {
  const colours = ink();
  return {
    title: { text: title, standoff: 8 }, gridcolor: colours.grid, linecolor: colours.line, zeroline: false,
    tickcolor: colours.line, ticks: "outside", ticklen: 4, automargin: true, ...extra,
  };
}

function layout(extra) {
  const colours = ink();
  return {
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", showlegend: false, hovermode: "closest",
    font: { family: "system-ui, -apple-system, 'Segoe UI', Roboto, 'Liberation Sans', sans-serif", size: 13, color: colours.text },
    hoverlabel: { bgcolor: colours.paper, bordercolor: colours.line, font: { color: colours.text }, align: "left", namelength: 0 },
    margin: { l: 56, r: 16, t: 16, b: 48 }, modebar: { bgcolor: "rgba(0,0,0,0)", color: colours.muted, activecolor: colours.text },
    // A finger scrolls the page; zoom is for mice and keys.
    dragmode: matchMedia("(pointer: coarse)").matches ? false : "zoom",
    ...extra,
  };
}

// On paper plots are lower, so that two of them go on a page.
const onPage = (height) => (state.isPrinting ? Math.round(0.75 * height) : height);

const shareAxis = (title, extra = {}) => axis(title, { tickformat: ".0%", range: [-0.01, 1.01], ...extra });

function scoresFigure(width) {
  const { histogram, threshold } = state.focus;
  if (!histogram) return { missing: "This detector has no scores to draw." };
  const drawn = shownSets();
  const panels = drawn.length ? drawn : [null];
  const columns = panelColumns(panels.length, width);
  const rows = Math.ceil(panels.length / columns);
  const height = 60 + rows * onPage(rows > 4 ? 130 : 170);
  const data = [];
  const axes = {};
  const annotations = [];
  const limit = scoreRange(histogram.edges, threshold);
  const topShare = Math.max(0.01, ...histogram.id, ...drawn.flatMap((one) => histogram.ood[one.name] || []));
  panels.forEach((one, place) => {
    const suffix = place === 0 ? "" : String(place + 1);
    const [left, right, bottom, top] = panelPlace(place, columns, rows, height);
    const isLast = place + columns >= panels.length;
    axes[`xaxis${suffix}`] = axis(isLast ? "score" : "", { domain: [left, right], anchor: `y${suffix}`, range: limit, showticklabels: isLast, ...(place ? { matches: "x" } : {}) });
    axes[`yaxis${suffix}`] = axis("", { domain: [bottom, top], anchor: `x${suffix}`, tickformat: ".0~%", range: [0, 1.22 * topShare], nticks: 4, ...(place ? { matches: "y" } : {}) });
    data.push(...scorePanel(histogram, one, suffix));
    annotations.push({
      text: one ? plotText(cut(one.name, Math.floor(width / columns / 9))) : IN_DISTRIBUTION, x: left, y: top, xref: "paper", yref: "paper",
      xanchor: "left", yanchor: "bottom", showarrow: false, font: { size: 13 }, hovertext: one ? hoverText(one.name) : "",
    });
  });
  const shapes = [];
  if (threshold && isNumber(threshold.value)) {
    panels.forEach((_, place) => {
      const suffix = place === 0 ? "" : String(place + 1);
      shapes.push({ type: "line", xref: `x${suffix}`, yref: `y${suffix} domain`, x0: threshold.value, x1: threshold.value, y0: 0, y1: 1, line: { color: ink().text, width: 2, dash: "dash" } });
    });
    annotations.push({ text: "flagged ◂ ▸ kept", x: threshold.value, y: 0.99, xref: "x", yref: "y domain", yanchor: "top", showarrow: false, font: { size: 11.5 }, bgcolor: faded(ink().paper, 0.8) });
  }
  const against = drawn.length ? ` against ${joined(drawn.map((one) => one.name))}` : "";
  const line = threshold && isNumber(threshold.value) ? `, with its threshold at ${short(threshold.value)}` : ", without a threshold";
  return {
    data, height, layout: layout({ ...axes, shapes, annotations, height, barmode: "overlay", bargap: 0, hovermode: "x", margin: { l: 48, r: 16, t: 34, b: 44 } }),
    label: `Histograms of the scores of ${named(state.focus.name)}: ${IN_DISTRIBUTION} rows${against}${line}.`,
    words: beyondWords(histogram, drawn),
    legend: [
      { label: `${IN_DISTRIBUTION} (filled)`, colour: inColour(), fill: true },
      ...(drawn.length ? [{ label: "out-of-distribution set (outlined)", colour: ink().text }] : []),
      ...(shapes.length ? [{ label: "threshold", colour: ink().text, dash: "dash" }] : []),
    ],
  };
}

function scoreRange(edges, threshold) {
  const ends = [edges[0], edges[edges.length - 1]];
  if (threshold && isNumber(threshold.value)) ends.push(threshold.value);
  const [low, high] = [Math.min(...ends), Math.max(...ends)];
  const margin = 0.02 * (high - low) || 1;
  return [low - margin, high + margin];
}

function panelColumns(number, width) {
  if (width > 860 && (number === 3 || number > 4)) return 3;
  return width > 600 && number > 1 ? 2 : 1;
}

function panelPlace(place, columns, rows, height) {
  const column = place % columns;
  const row = Math.floor(place / columns);
  const gap = Math.min(0.12, 34 / Math.max(1, height - 78));
  const tall = (1 - gap * (rows - 1)) / rows;
  const top = 1 - row * (tall + gap);
  const between = 0.08;
  const wide = (1 - between * (columns - 1)) / columns;
  return [column * (wide + between), column * (wide + between) + wide, top - tall, top];
}

function scorePanel(histogram, one, suffix) {
  const { edges } = histogram;
  const centres = edges.slice(1).map((edge, place) => (edge + edges[place]) / 2);
  const widths = edges.slice(1).map((edge, place) => edge - edges[place]);
  const bars = (shares, name, colour) => ({
    type: "bar", x: centres, y: shares, width: widths, xaxis: `x${suffix}`, yaxis: `y${suffix}`, marker: { color: colour, line: { width: 0 } },
    hovertemplate: shares.map((share, place) => `${hoverText(name)}<br>${short(edges[place])} to ${short(edges[place + 1])}: ${percent(share)}<extra></extra>`),
  });
  const traces = [bars(histogram.id, IN_DISTRIBUTION, faded(inColour(), 0.45))];
  const shares = one && histogram.ood[one.name];
  if (!shares) return traces;
  traces.push(bars(shares, one.name, "rgba(0,0,0,0)"), {
    type: "scatter", mode: "lines", hoverinfo: "skip", xaxis: `x${suffix}`, yaxis: `y${suffix}`,
    x: [edges[0], ...edges, edges[edges.length - 1]], y: [0, ...shares, shares[shares.length - 1], 0],
    line: { shape: "hv", color: setColour(one), width: 2.2 },
  });
  return traces;
}

function beyondWords(histogram, drawn) {
  const parts = [];
  const beyond = histogram.beyond || {};
  for (const [name, counts] of [[IN_DISTRIBUTION, beyond.id], ...drawn.map((one) => [one.name, beyond.ood && beyond.ood[one.name]])]) {
    if (!counts || !(counts[0] + counts[1])) continue;
    parts.push(`${cut(name, 60)}: ${whole(counts[0])} below, ${whole(counts[1])} above`);
  }
  return parts.length ? `Rows outside the drawn range: ${parts.join("; ")}.` : "";
}

// What the two curve plots draw: every shown detector on one set, or every shown set for the detector in focus.
function curveSeries() {
  if (state.curveSet === "every") {
    return shownSets().map((one) => ({ name: one.name, colour: setColour(one), dash: setDash(one), width: 2.2, curve: (state.focus.curves || {})[one.name] })).filter((one) => one.curve);
  }
  const chosen = sets[Number(state.curveSet)];
  return shownDetectors().map((one) => ({
    name: one.name, colour: detectorColour(one), dash: detectorDash(one), width: one === state.focus ? 3.6 : 1.8, curve: (one.curves || {})[chosen.name],
  })).filter((one) => one.curve);
}

const curveSubject = () => (state.curveSet === "every" ? `the detector ${named(state.focus.name)}, one curve for each set` : `the set ${named(sets[Number(state.curveSet)].name)}, one curve for each detector`);

function curveFigure(kind) {
  const series = curveSeries();
  if (!series.length) return { missing: "Nothing is chosen to be drawn: tick a detector and a set above." };
  const isRoc = kind === "roc";
  const [across, up] = isRoc ? ["fpr", "tpr"] : ["recall", "precision"];
  const [acrossTitle, upTitle] = isRoc ? ["false positive rate", "true positive rate"] : ["recall", "precision"];
  const data = series.map((one) => ({
    type: "scatter", mode: "lines", x: one.curve[across], y: one.curve[up], line: { color: one.colour, dash: one.dash, width: one.width },
    hovertemplate: `${hoverText(one.name)}<br>${acrossTitle} %{x:.2%}<br>${upTitle} %{y:.2%}<extra></extra>`,
  }));
  const chance = { type: "line", x0: 0, y0: 0, x1: 1, y1: 1, line: { color: ink().line, dash: "dot", width: 1 } };
  const asked = { type: "line", xref: "paper", x0: 0, x1: 1, y0: report.tpr, y1: report.tpr, line: { color: ink().line, dash: "dash", width: 1 } };
  const note = { text: `${percent(report.tpr, 0)} kept`, x: 1, y: report.tpr, xref: "paper", xanchor: "right", yanchor: "top", showarrow: false, font: { size: 11.5, color: ink().muted } };
  return {
    data, height: onPage(400),
    layout: layout({ height: onPage(400), xaxis: shareAxis(acrossTitle), yaxis: shareAxis(upTitle), shapes: isRoc ? [chance, asked] : [], annotations: isRoc ? [note] : [] }),
    label: `${isRoc ? "ROC" : "Precision-recall"} curves of ${curveSubject()}: ${joined(series.map((one) => one.name))}.`,
    legend: series.map((one) => ({ label: one.name, colour: one.colour, dash: one.dash })),
  };
}

function band(across, low, high) {
  return { type: "scatter", mode: "lines", x: [...across, ...[...across].reverse()], y: [...low, ...[...high].reverse()], fill: "toself", fillcolor: faded(inColour(), 0.16), line: { width: 0 }, hoverinfo: "skip" };
}

function calibrationFigure() {
  const { kept, name } = state.focus;
  if (!kept) return { missing: "This detector is not calibrated, so no share of kept rows was asked for." };
  const data = [
    band(kept.asked, kept.low, kept.high),
    { type: "scatter", mode: "lines", x: kept.asked, y: kept.realised, line: { color: detectorColour(state.focus), width: 2.4 }, hovertemplate: "asked %{x:.2%}<br>kept %{y:.2%}<extra></extra>" },
  ];
  if (kept.own) {
    data.push({ type: "scatter", mode: "markers", x: [kept.own.asked], y: [kept.own.realised], marker: { symbol: "star-diamond", size: 15, color: palette()[1], line: { color: ink().paper, width: 1.5 } }, hovertemplate: "the threshold in use<br>asked %{x:.2%}<br>kept %{y:.2%}<extra></extra>" });
  }
  const lowest = Math.min(...[...kept.asked, ...kept.realised, ...kept.low].filter(isNumber));
  const range = [lowest - 0.02, 1.01];
  const own = kept.own ? ` Its own threshold was asked to keep ${percent(kept.own.asked)} and kept ${percent(kept.own.realised)}.` : "";
  return {
    data, height: onPage(420),
    layout: layout({ height: onPage(420), xaxis: shareAxis("asked to be kept", { range }), yaxis: shareAxis("kept", { range }), shapes: [{ type: "line", x0: 0, y0: 0, x1: 1, y1: 1, line: { color: ink().line, dash: "dot", width: 1.2 } }] }),
    label: `Share of ${IN_DISTRIBUTION} rows kept by ${named(name)} against the share asked for, with its 95 % range.${own}`,
    words: `${cut(name, 60)}: calibrated on ${counted(kept.n_calibration, "row")}, checked on ${counted(kept.n_test, "row")}.${own}`,
    legend: [{ label: "kept", colour: detectorColour(state.focus) }, { label: "95 % range", colour: inColour(), fill: true }, ...(kept.own ? [{ label: "threshold in use", colour: palette()[1], symbol: "star-diamond" }] : []), { label: "exactly as asked", colour: ink().line, dash: "dot" }],
  };
}

function diagnosisFigure() {
  const { curves, band: range, detector } = report.diagnosis;
  const many = curves.filter((one) => one.name !== null).length > palette().length - 1;
  const data = range ? [band(range.expected, range.low, range.high)] : [];
  const legend = [];
  let place = 0;
  for (const one of [...curves].sort((first, second) => (second.name !== null) - (first.name !== null))) {
    const isAll = one.name === null;
    const colour = isAll ? ink().text : many ? ink().other : palette()[place % (palette().length - 1)];
    const dash = isAll || many ? "solid" : DASHES[place % DASHES.length];
    if (!isAll) place += 1;
    const name = isAll ? "all rows" : one.name;
    data.push({ type: "scatter", mode: "lines", x: one.expected, y: one.found, line: { color: colour, dash, width: isAll ? 3 : 1.4 }, hovertemplate: `${hoverText(name)}<br>expected %{x:.4~g}<br>found %{y:.4~g}<extra></extra>` });
    if (isAll || !many) legend.push({ label: name, colour, dash });
  }
  if (many) legend.push({ label: `${place} classes, one line each`, colour: ink().other });
  if (range) legend.push({ label: "95 % range of a Gaussian", colour: inColour(), fill: true });
  const high = Math.max(...curves.flatMap((one) => one.expected).filter(isNumber));
  return {
    data, height: onPage(420),
    layout: layout({ height: onPage(420), xaxis: axis("expected squared distance", { rangemode: "tozero" }), yaxis: axis("found squared distance", { rangemode: "tozero" }), shapes: [{ type: "line", x0: 0, y0: 0, x1: high, y1: high, line: { color: ink().line, dash: "dot", width: 1.2 } }] }),
    label: `Quantile plot of the fit of ${named(detector)}: squared distances found against those expected of a Gaussian, ${counted(curves.length, "curve")}.`,
    legend,
  };
}
