// Scores: one panel per out-of-distribution set, the in-distribution rows behind each, and the threshold.

function scoresFigure(width) {
  const { histogram } = state.focus;
  if (!histogram) return { missing: "This detector has no scores to draw." };
  const threshold = thresholdValue();
  const drawn = shownSets();
  const panels = scorePanels(drawn.length ? drawn : [null], width);
  const marks = threshold === null ? [] : panels.map((panel) => thresholdLine(threshold, panel.suffix));
  const margin = { l: 48, r: 16, t: 34, b: 44 };
  const against = drawn.length ? ` against ${joined(drawn.map((one) => one.name))}` : "";
  const line = threshold === null ? "without a threshold" : `with its threshold at ${short(threshold)}`;
  return {
    data: panels.flatMap((panel) => scoreTraces(histogram, panel.one, panel.suffix)),
    height: panels[0].height,
    layout: layout({
      ...scoreAxes(histogram, panels, drawn),
      shapes: marks,
      annotations: [...panels.map((panel) => panelTitle(panel)), ...(threshold === null ? [] : [sidesNote(threshold)])],
      height: panels[0].height,
      barmode: "overlay",
      bargap: 0,
      hovermode: "x",
      margin,
    }),
    label: `Histograms of the scores of ${named(state.focus.name)}: ${IN_DISTRIBUTION} rows${against}, ${line}.`,
    words: beyondWords(histogram, drawn),
    legend: [
      { label: `${IN_DISTRIBUTION} (filled)`, colour: inColour(), fill: true },
      ...(drawn.length ? [{ label: "out-of-distribution set (outlined)", colour: ink().text }] : []),
      ...(marks.length ? [{ label: "threshold", colour: ink().text, dash: "dash" }] : []),
    ],
  };
}

function thresholdValue() {
  const { threshold } = state.focus;
  return threshold && isNumber(threshold.value) ? threshold.value : null;
}

// Where each panel stands, as shares of the figure, and how its axes are called.
function scorePanels(shown, width) {
  const columns = panelColumns(shown.length, width);
  const rows = Math.ceil(shown.length / columns);
  const height = 60 + rows * onPage(rows === 1 ? 230 : rows > 4 ? 130 : 170);
  return shown.map((one, place) => ({
    one,
    height,
    suffix: place === 0 ? "" : String(place + 1),
    isLowest: place + columns >= shown.length,
    titleLength: Math.floor(width / columns / 9),
    ...panelPlace(place, columns, rows, height),
  }));
}

function scoreAxes(histogram, panels, drawn) {
  const range = scoreRange(histogram.edges, thresholdValue());
  const highest = Math.max(0.01, ...histogram.id, ...drawn.flatMap((one) => histogram.ood[one.name] || []));
  const axes = {};
  for (const { suffix, isLowest, across, up } of panels) {
    const [xMatch, yMatch] = suffix ? [{ matches: "x" }, { matches: "y" }] : [{}, {}];
    const below = { domain: across, anchor: `y${suffix}`, range, showticklabels: isLowest };
    const beside = { domain: up, anchor: `x${suffix}`, range: [0, 1.22 * highest], tickformat: ".0~%", nticks: 4 };
    axes[`xaxis${suffix}`] = axis(isLowest ? "score" : "", { ...below, ...xMatch });
    axes[`yaxis${suffix}`] = axis("", { ...beside, ...yMatch });
  }
  return axes;
}

function panelTitle({ one, across, up, titleLength }) {
  return {
    text: one ? plotText(cut(one.name, titleLength)) : IN_DISTRIBUTION,
    hovertext: one ? hoverText(one.name) : "",
    x: across[0],
    y: up[1],
    xref: "paper",
    yref: "paper",
    xanchor: "left",
    yanchor: "bottom",
    showarrow: false,
    font: { size: 13 },
  };
}

function thresholdLine(value, suffix) {
  const place = { xref: `x${suffix}`, yref: `y${suffix} domain`, x0: value, x1: value, y0: 0, y1: 1 };
  return { type: "line", ...place, line: { color: ink().text, width: 2, dash: "dash" } };
}

function sidesNote(value) {
  const place = { x: value, y: 0.99, xref: "x", yref: "y domain", yanchor: "top" };
  const look = { showarrow: false, font: { size: 11.5 }, bgcolor: faded(ink().paper, 0.8) };
  return { text: "flagged ◂ ▸ kept", ...place, ...look };
}

function scoreRange(edges, threshold) {
  const ends = [edges[0], edges[edges.length - 1]];
  if (threshold !== null) ends.push(threshold);
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
  const left = column * (wide + between);
  return { across: [left, left + wide], up: [top - tall, top] };
}

function scoreTraces(histogram, one, suffix) {
  const { edges } = histogram;
  const centres = edges.slice(1).map((edge, place) => (edge + edges[place]) / 2);
  const widths = edges.slice(1).map((edge, place) => edge - edges[place]);
  const bars = (shares, name, colour) => ({
    type: "bar",
    x: centres,
    y: shares,
    width: widths,
    xaxis: `x${suffix}`,
    yaxis: `y${suffix}`,
    marker: { color: colour, line: { width: 0 } },
    hovertemplate: shares.map(
      (share, place) =>
        `${hoverText(name)}<br>${short(edges[place])} to ${short(edges[place + 1])}: ${percent(share)}<extra></extra>`,
    ),
  });
  const traces = [bars(histogram.id, IN_DISTRIBUTION, faded(inColour(), 0.45))];
  const shares = one && histogram.ood[one.name];
  if (!shares) return traces;
  traces.push(bars(shares, one.name, "rgba(0,0,0,0)"), {
    type: "scatter",
    mode: "lines",
    hoverinfo: "skip",
    xaxis: `x${suffix}`,
    yaxis: `y${suffix}`,
    x: [edges[0], ...edges, edges[edges.length - 1]],
    y: [0, ...shares, shares[shares.length - 1], 0],
    line: { shape: "hv", color: setColour(one), width: 2.2 },
  });
  return traces;
}

function beyondWords(histogram, drawn) {
  const parts = [];
  const beyond = histogram.beyond || {};
  for (const [name, counts] of [
    [IN_DISTRIBUTION, beyond.id],
    ...drawn.map((one) => [one.name, beyond.ood && beyond.ood[one.name]]),
  ]) {
    if (!counts || !(counts[0] + counts[1])) continue;
    parts.push(`${cut(name, 60)}: ${whole(counts[0])} below, ${whole(counts[1])} above`);
  }
  return parts.length ? `Rows outside the drawn range: ${parts.join("; ")}.` : "";
}
