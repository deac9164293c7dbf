// Any number of runs, or of groups of seeds, side by side: config, choices, metrics and facts.

/** The picked rows, by their present grouping or as they were picked. */
function pickedRows() {
  return [...state.picked].map((name) => ({ name, runs: data.runs.filter((run) => run.run === name || groupOf(run) === name) })).filter((row) => row.runs.length);
}

/** A text for the value of a row: the mean and 95 % interval of a metric, the mean time, else all values. */
function comparedText(row, key, metric) {
  const values = row.runs.map((run) => valueOf(run, key)).filter((value) => value !== undefined && value !== null && !(Array.isArray(value) && !value.length) && value !== "");
  if (!values.length) return NONE;
  if (metric && values.every(known)) return meanTexts(values, key, 5).filter(Boolean).join(" ");
  if (key === "seconds") return time(mean(values), 4);
  if (["parameters", "steps"].includes(key)) return exact(values);
  return [...new Set(values.flat().map(word))].join(", ");
}

/** The table: a column for each picked row; rows in which all are alike are left out, unless they are asked for. */
function compareTable(rows) {
  const parts = [
    ["Metrics", metricNames(), true],
    ["Choices", [...new Set(rows.flatMap((row) => row.runs.flatMap((run) => Object.keys(run.choices))))], false],
    ["Options", data.keys.filter((key) => !key.endsWith("_target_") && !key.endsWith("_partial_")), false],
    ["Facts", ["sweep", "arm", "state", "reason", "started", "seconds", "steps", "parameters", "tags", "note"], false],
  ];
  const body = parts.flatMap(([part, keys, metric]) => {
    const alike = (key, texts) => new Set(texts).size === 1 && new Set(rows.map((row) => JSON.stringify(row.runs.map((run) => valueOf(run, key))))).size === 1;
    const lines = keys.map((key) => [key, rows.map((row) => comparedText(row, key, metric))])
      .filter(([key, texts]) => texts.some((text) => text !== NONE) && (!state.differences || rows.length === 1 || (metric ? !alike(key, texts) : new Set(texts).size > 1)));
    return lines.length ? [h("tr", { class: "part" }, h("th", { colspan: rows.length + 1, scope: "rowgroup" }, part)),
      ...lines.map(([key, texts]) => h("tr", { "data-compared": key }, h("th", { scope: "row" }, h("code", {}, key)), texts.map((text) => h("td", {}, text))))] : [];
  });
  return h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Runs side by side" },
    h("table", { class: "plain beside" }, h("caption", {}, "Runs side by side"),
      h("thead", {}, h("tr", {}, h("th", { scope: "col" }, ""), rows.map((row) => h("th", { scope: "col" }, h("code", {}, row.name),
        h("button", { type: "button", class: "quiet", "aria-label": `leave out ${row.name}`, "data-key": `drop:${row.name}`, onclick: () => { state.picked.delete(row.name); redraw(); } }, "×"))))),
      h("tbody", {}, body)));
}
