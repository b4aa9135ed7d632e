// Scores: one panel per out-of-distribution set, the in-distribution rows behind each, and the threshold.

// Bars of a set that are higher than this many of the highest in-distribution bars are cut, and their share is written.
const HIGHEST = 1.5;
// The share of a set's rows beyond the axis from which on it is written.
const SAID_BEYOND = 0.005;
// How high a panel is, in its highest bars.
const HEADROOM = 1.22;

function scoresFigure(width) {
  const { histogram } = state.focus;
  if (!histogram) return { missing: "This detector has no scores to draw." };
  const threshold = thresholdValue();
  const drawn = shownSets();
  const panels = scorePanels(drawn.length ? drawn : [null], width);
  const marks = threshold === null ? [] : panels.map((panel) => thresholdLine(threshold, panel.suffix));
  const margin = { l: 48, r: 16, t: 34, b: 44 };
  const against = drawn.length ? ` against ${joined(drawn.map((one) => one.name))}` : "";
  const line = threshold === null ? "It has no threshold." : `Dashed: its threshold at ${thresholdWords()}.`;
  return {
    data: panels.flatMap((panel) => scoreTraces(histogram, panel.one, panel.suffix)),
    height: panels[0].height,
    layout: layout({
      ...scoreAxes(histogram, panels, drawn),
      shapes: marks,
      annotations: [
        ...panels.flatMap((panel) => [panelTitle(panel), ...cutNotes(histogram, panel, highestBar(histogram, drawn))]),
        ...(threshold === null ? [] : [sidesNote(threshold)]),
      ],
      height: panels[0].height,
      barmode: "overlay",
      bargap: 0,
      hovermode: "x",
      margin,
    }),
    label: `Histograms of the scores of ${named(state.focus.name)}: ${IN_DISTRIBUTION} rows${against}. ${line}`,
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

// So many digits that the threshold is not taken for an edge beside it, nor for a whole number: 0.99999994 is not 1.
function thresholdWords() {
  const value = thresholdValue();
  const { edges } = state.focus.histogram || { edges: [] };
  const beside = [edges.filter((edge) => edge < value).pop(), edges.find((edge) => edge > value)];
  return short(value, digitsApart([value, value === null ? null : Math.round(value), ...beside]));
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

// The highest bar that panels have room for: a set that lies far away, all in one bar, leaves the others theirs.
function highestBar(histogram, drawn) {
  const own = Math.max(...histogram.id);
  const bars = drawn.flatMap((one) => histogram.ood[one.name] || []);
  return Math.max(0.01, own, ...bars.filter((share) => share <= HIGHEST * own));
}

// How many rows of a set, or of the in-distribution rows (null), lie below and above the axis.
function rowsBeyond(histogram, one) {
  const { id, ood } = histogram.beyond || {};
  return (one ? (ood || {})[one.name] : id) || [0, 0];
}

// The scores of each bar, in words: its end bars hold the rows beyond the axis too.
function binWords({ edges }, [below, above]) {
  const digits = digitsApart(edges);
  const written = edges.map((edge) => short(edge, digits));
  return written.slice(1).map((end, place) => {
    if (place === 0 && below > 0) return `below ${end}`;
    const isLast = place === edges.length - 2 && above > 0;
    return isLast ? `above ${written[place]}` : `${written[place]} to ${end}`;
  });
}

// What a panel cannot show as a bar: the rows beyond its ends, and bars that are higher than it.
function cutNotes(histogram, { one, suffix }, highest) {
  const { edges, ood } = histogram;
  const shares = one && ood[one.name];
  if (!shares) return [];
  const [below, above] = rowsBeyond(histogram, one).map((count) => count / one.n_rows);
  const isSaid = [below >= SAID_BEYOND, above >= SAID_BEYOND];
  const inside = shares.slice(isSaid[0] ? 1 : 0, isSaid[1] ? -1 : undefined);
  const top = Math.max(0, ...inside);
  const note = (text, isLeft, line) => ({
    text,
    xref: `x${suffix}`,
    yref: `y${suffix} domain`,
    // Beside the end bar, which it would hide the top of.
    x: edges[isLeft ? 1 : edges.length - 2],
    xshift: isLeft ? 3 : -3,
    y: 0.99,
    xanchor: isLeft ? "left" : "right",
    yanchor: "top",
    yshift: -18 * line,
    showarrow: false,
    font: { size: 11.5 },
    bgcolor: faded(ink().paper, 0.8),
  });
  return [
    ...(isSaid[0] ? [note(`◂ ${rate(below)} beyond`, true, 0)] : []),
    ...(isSaid[1] ? [note(`${rate(above)} beyond ▸`, false, 0)] : []),
    // One line lower: the first may be the threshold's.
    ...(top > HEADROOM * highest ? [note(`bars up to ${rate(top)}`, true, 1)] : []),
  ];
}

function scoreAxes(histogram, panels, drawn) {
  const range = scoreRange(histogram.edges, thresholdValue());
  const highest = highestBar(histogram, drawn);
  const hoverformat = `.${digitsApart(histogram.edges)}~g`;
  const axes = {};
  for (const { suffix, isLowest, across, up } of panels) {
    const [xMatch, yMatch] = suffix ? [{ matches: "x" }, { matches: "y" }] : [{}, {}];
    const below = { domain: across, anchor: `y${suffix}`, range, showticklabels: isLowest, hoverformat };
    const reach = { range: [0, HEADROOM * highest], tickformat: SHARE_TICKS, nticks: 4 };
    const beside = { domain: up, anchor: `x${suffix}`, ...reach };
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
  const bars = (shares, name, colour, beyond) => {
    const bins = binWords(histogram, beyond);
    return {
      type: "bar",
      x: centres,
      y: shares,
      width: widths,
      xaxis: `x${suffix}`,
      yaxis: `y${suffix}`,
      marker: { color: colour, line: { width: 0 } },
      hovertemplate: shares.map(
        (share, place) => `${hoverText(name)}<br>${bins[place]}: ${percent(share)}<extra></extra>`,
      ),
    };
  };
  const traces = [bars(histogram.id, IN_DISTRIBUTION, faded(inColour(), 0.45), rowsBeyond(histogram, null))];
  const shares = one && histogram.ood[one.name];
  if (!shares) return traces;
  traces.push(bars(shares, one.name, "rgba(0,0,0,0)", rowsBeyond(histogram, one)), {
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
  for (const one of [null, ...drawn]) {
    const [below, above] = rowsBeyond(histogram, one);
    const counts = [...(below ? [`${whole(below)} below`] : []), ...(above ? [`${whole(above)} above`] : [])];
    if (counts.length) parts.push(`${one ? cut(one.name, 60) : IN_DISTRIBUTION}: ${counts.join(", ")}`);
  }
  return parts.length ? `Rows beyond the axis are counted in its first and last bar: ${parts.join("; ")}.` : "";
}
