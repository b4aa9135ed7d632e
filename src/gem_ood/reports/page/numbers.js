// Numbers: the table behind each figure, made when its details are opened; and the sortable table of detectors.

function thinned(values, limit = 24) {
  const step = Math.max(1, Math.ceil(values.length / limit));
  return values.map((_, place) => place).filter((place) => place % step === 0 || place === values.length - 1);
}

// The value of a curve at its first point that keeps a share of the rows; one that keeps fewer would flatter it.
function keeping(kept, values, share) {
  const place = kept.findIndex((value) => value >= share);
  return place < 0 ? null : values[place];
}

const AT_OR_ABOVE = "“At or above” is at the first drawn point of the curve that keeps this share or more.";

// As the table of detectors calls it: of tied or few rows the share that is kept need not be the one asked for.
const MEASURED_FPR = `FPR${Number((100 * report.tpr).toPrecision(6))}`;

function measuredFpr(detector, set) {
  const measured = ((report.comparison || {}).detectors || {})[detector] || {};
  return ((measured.evaluations || {})[set] || {}).fpr;
}

const NUMBERS = {
  scores() {
    const { histogram } = state.focus;
    const drawn = shownSets().filter((one) => histogram.ood[one.name]);
    const beyond = [null, ...drawn].map((one) => rowsBeyond(histogram, one));
    const inAll = [0, 1].map((side) => beyond.reduce((sum, counts) => sum + counts[side], 0));
    const bins = binWords(histogram, inAll);
    return {
      titles: ["score", IN_DISTRIBUTION, ...drawn.map((one) => one.name)],
      rows: histogram.id.map((share, place) => [
        bins[place],
        percent(share),
        ...drawn.map((one) => percent(histogram.ood[one.name][place])),
      ]),
    };
  },
  roc() {
    // The comparison's own number where it is read at this place: in-distribution rows are positive in both.
    const isExact = (share) => share === report.tpr && report.convention === "paper";
    const asked = [...new Set([0.8, 0.9, 0.95, 0.99, report.tpr])].sort((first, second) => first - second);
    const value = (one, share) =>
      isExact(share) ? measuredFpr(one.detector, one.set) : keeping(one.curve.tpr, one.curve.fpr, share);
    const title = (share) => (isExact(share) ? MEASURED_FPR : `FPR at or above ${rate(share)} TPR`);
    return {
      titles: ["curve", ...asked.map(title)],
      rows: curveSeries().map((one) => [named(one.name), ...asked.map((share) => percent(value(one, share)))]),
      note: asked.some(isExact) ? `${MEASURED_FPR} is the comparison’s own. ${AT_OR_ABOVE}` : AT_OR_ABOVE,
    };
  },
  precision() {
    const asked = [0.5, 0.8, 0.9, 0.95];
    return {
      titles: ["curve", ...asked.map((share) => `precision at or above ${rate(share)} recall`)],
      rows: curveSeries().map((one) => [
        named(one.name),
        ...asked.map((share) => percent(keeping(one.curve.recall, one.curve.precision, share))),
      ]),
      note: AT_OR_ABOVE,
    };
  },
  calibration() {
    const { kept } = state.focus;
    return {
      titles: ["asked", "kept", "low", "high"],
      rows: thinned(kept.asked).map((place) =>
        [kept.asked, kept.realised, kept.low, kept.high].map((values) => percent(values[place])),
      ),
    };
  },
  diagnosis() {
    const rows = report.diagnosis.curves
      .slice(0, 12)
      .flatMap((one) =>
        thinned(one.expected, 12).map((place) => [
          one.name === null ? "all rows" : named(one.name),
          short(one.expected[place]),
          short(one.found[place]),
        ]),
      );
    return { titles: ["curve", "expected", "found"], rows };
  },
  map() {
    const shown = [{ index: -1, name: IN_DISTRIBUTION }, ...shownSets()];
    return {
      titles: [state.mapColour, ...shown.map((one) => named(one.name))],
      rows: mapMembers().map((group) => [
        named(group.label),
        ...shown.map((one) => whole(group.rows.filter((place) => report.map.set[place] === one.index + 1).length)),
      ]),
    };
  },
};

function fillNumbers(details) {
  const box = details.querySelector(".table-box");
  const key = details.dataset.numbers;
  if (!details.open || figureOf(key, 600).missing) return box.replaceChildren();
  const { titles, rows, note } = NUMBERS[key]();
  const head = element(
    "tr",
    {},
    titles.map((title) => element("th", { scope: "col", textContent: named(title) })),
  );
  const body = rows.map((row) =>
    element(
      "tr",
      {},
      row.map((cell, place) =>
        element(place ? "td" : "th", { textContent: cell, ...(place ? { className: "number" } : { scope: "row" }) }),
      ),
    ),
  );
  const caption = note ? [element("caption", { textContent: note })] : [];
  return box.replaceChildren(
    element("table", {}, [...caption, element("thead", {}, [head]), element("tbody", {}, body)]),
  );
}

function sortValue(row, heading) {
  if (heading.dataset.sort === "detector") return Number(row.dataset.index);
  const cell = [...row.cells].find(
    (one) => one.dataset.metric === heading.dataset.sort && one.dataset.set === heading.dataset.set,
  );
  return cell && cell.dataset.value !== "" ? Number(cell.dataset.value) : null;
}

function sortTable(heading) {
  const body = heading.closest("table").tBodies[0];
  const isRising = heading.getAttribute("aria-sort") !== "ascending";
  for (const one of heading.closest("thead").querySelectorAll("[aria-sort]")) one.setAttribute("aria-sort", "none");
  heading.setAttribute("aria-sort", isRising ? "ascending" : "descending");
  const rows = [...body.rows].map((row) => ({ row, value: sortValue(row, heading) }));
  rows.sort((first, second) => {
    // Rows without a number stay last, whichever way the others run.
    if (first.value === null || second.value === null) return (first.value === null) - (second.value === null);
    return isRising ? first.value - second.value : second.value - first.value;
  });
  body.append(...rows.map(({ row }) => row));
}

function makeSortable(table) {
  for (const heading of table.querySelectorAll("th[data-sort]")) {
    const button = element("button", { type: "button", className: "sort" }, [...heading.childNodes]);
    button.addEventListener("click", () => sortTable(heading));
    heading.setAttribute("aria-sort", "none");
    heading.append(button);
  }
}
