// The state of every cell (arm, setting and seed), its run, and the reasons for cells without a result.

const STATES = { done: "✓", failed: "✗", running: "▶", queued: "·", interrupted: "‖", missing: "○", refused: "⊘" };
const ORDER = ["done", "queued", "running", "missing", "interrupted", "refused", "failed"];
const ROWS = 200;
const MOST_CELL_ROWS = 24; // of more, those of which all cells are done open with a press

const cellKey = (cell) => JSON.stringify([cell.arm, setting(cell.setting), cell.seed]);

/** Draw a map of all cells, the chosen one, and a list of those without a result. */
function drawCells(body) {
  const open = data.cells.filter((cell) => cell.state !== "done");
  const present = ORDER.filter((name) => data.cells.some((cell) => cell.state === name));
  if (allSeeds().length) {
    const rows = cellRows();
    const done = rows.length > MOST_CELL_ROWS ? rows.filter((cells) => cells.every((cell) => cell.state === "done")) : [];
    const others = rows.filter((cells) => !done.includes(cells));
    body.append(others.length ? cellMap(others) : "", done.length ? disclosure("cells:done", `${plural(done.length, "row")} of which all cells are done`, () => cellMap(done)) : "", h("p", { class: "keys" }, present.map((name) =>
      h("span", {}, h("span", { class: `cell ${name}`, "aria-hidden": "true" }, STATES[name]), name)),
    h("span", {}, "Press a cell to see its run.")));
  }
  if (/^\.\.\/\.\.\/index\.html#q=[^:/]*$/.test(data.home || "")) {
    body.append(h("p", { class: "note" }, "Among all runs of the folder: ", h("a", { href: data.home }, "home page"), ", which ", h("code", {}, "blockyard runs --html"), " writes."));
  }
  const chosen = data.cells.find((cell) => cellKey(cell) === state.cell);
  if (chosen) body.append(cellDetail(chosen));
  if (!open.length) {
    body.append(h("p", {}, data.cells.length === 1 ? "The only cell is done." : `All ${plural(data.cells.length, "cell")} are done.`));
    return;
  }
  body.append(grid("Cells without a result", ["arm", "seed", "state", "reason", "run"],
    open.slice(0, ROWS).map((cell) => [
      [cell.arm, Object.keys(cell.setting || {}).length ? h("small", {}, ` ${setting(cell.setting)}`) : null], cell.state === "refused" ? "all" : String(cell.seed),
      h("span", { class: "state" }, h("span", { class: `cell ${cell.state}`, "aria-hidden": "true" }, STATES[cell.state] || "?"), cell.state),
      h("span", { class: "reason" }, cell.reason || NONE), runName(cell)])),
  open.length > ROWS ? h("p", { class: "note" }, `and ${open.length - ROWS} more`) : "");
}

/** The cells of each arm and setting, in the order of the arms. */
function cellRows() {
  const rows = new Map();
  for (const cell of data.cells) {
    const key = JSON.stringify([cell.arm, setting(cell.setting)]);
    rows.set(key, [...(rows.get(key) || []), cell]);
  }
  const place = (name) => { const index = data.arms.findIndex((arm) => arm.name === name); return index < 0 ? Infinity : index; };
  return [...rows.values()].sort(([a], [b]) => place(a.arm) - place(b.arm) || 0);
}

/** Rows are arms and their settings, columns are seeds. A refusal applies to all seeds. */
function cellMap(rows) {
  const square = (cells, seed) => {
    const cell = cells.find((one) => one.state === "refused" || one.seed === seed);
    if (!cell) return h("td", {}, NONE);
    const text = `${cell.state}${known(cell.seconds) ? `, ${time(cell.seconds)}` : ""}`;
    return h("td", {}, h("button", { type: "button", class: `cell ${cell.state}`, title: `${cell.run || cell.arm}: ${text}`, "aria-pressed": String(state.cell === cellKey(cell)),
      "data-key": `cell:${cellKey(cell)}:${seed}`, onclick: () => { state.cell = state.cell === cellKey(cell) ? null : cellKey(cell); redraw("cells"); } },
    h("span", { "aria-hidden": "true" }, STATES[cell.state]), h("span", { class: "unseen" }, text)));
  };
  return h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Map of cells" },
    h("table", { class: "map" }, h("caption", {}, "State of every cell"),
      h("thead", {}, h("tr", {}, h("th", { scope: "col" }, ["arm", ...new Set(rows.flat().flatMap((cell) => Object.keys(cell.setting || {})))].join(" · ")), allSeeds().map((seed) => h("th", { scope: "col" }, `s${seed}`)))),
      h("tbody", {}, rows.map((cells) => h("tr", {}, h("th", { scope: "row", title: `${cells[0].arm} ${setting(cells[0].setting)}`.trim() }, label(cells[0].arm),
        Object.keys(cells[0].setting || {}).length ? h("small", {}, ` ${brief(cells[0].setting)}`) : null),
      allSeeds().map((seed) => square(cells, seed)))))));
}

/** The run of a cell: state, times, metrics, its folder and the files in it. */
function cellDetail(cell) {
  const at = address(cell.link);
  const facts = [
    ["run", runName(cell)],
    ["state", cell.state + (cell.reason ? `: ${cell.reason}` : "")],
    ["started", cell.started],
    ["training", known(cell.seconds) ? time(cell.seconds) : null],
    ["metrics", Object.entries(cell.metrics || {}).map(([name, value]) => h("span", { class: "fact" }, h("small", {}, name), " ", short(value, 5)))],
    ["files", at && (cell.files || []).length ? cell.files.map((file) => h("a", { class: "fact", href: `${at}/${encodeURIComponent(file)}` }, file)) : null],
  ].filter(([, value]) => value && value.length !== 0);
  return h("div", { class: "chosen", role: "status" }, h("h3", {}, `${cell.arm} ${setting(cell.setting)} s${cell.seed}`),
    h("dl", { class: "pairs" }, facts.map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)])));
}

/** The name of a run, a link to its folder where the page is a file beside it. */
function runName(cell) {
  if (!cell.run) return NONE;
  const at = address(cell.link);
  return at ? h("a", { href: `${at}/` }, h("code", {}, cell.run)) : h("code", {}, cell.run);
}

/** A link to a folder; only relative ones are followed. */
const address = (link) => (typeof link === "string" && /^\.{1,2}\/[^:]*$/.test(link) ? link : null);
