// The state of every cell (arm and seed), and the reasons for cells without a result.

const STATES = { done: "✓", failed: "✗", running: "▶", queued: "·", interrupted: "‖", missing: "○", refused: "⊘" };
const WORST = ["failed", "refused", "interrupted", "missing", "running", "queued", "done"];
const ROWS = 200;

/** Draw a map of all cells and a list of those without a result. */
function drawCells(body) {
  const open = data.cells.filter((cell) => cell.state !== "done");
  const present = WORST.filter((name) => data.cells.some((cell) => cell.state === name)).reverse();
  if (allSeeds().length) {
    body.append(cellMap(), h("p", { class: "keys" }, present.map((name) =>
      h("span", {}, h("span", { class: `cell ${name}`, "aria-hidden": "true" }, STATES[name]), name))));
  }
  if (!open.length) {
    body.append(h("p", {}, `All ${plural(data.cells.length, "cell")} are done.`));
    return;
  }
  body.append(grid("Cells without a result", ["arm", "seed", "state", "reason", "run"],
    open.slice(0, ROWS).map((cell) => [
      [cell.arm, Object.keys(cell.setting || {}).length ? h("small", {}, ` ${setting(cell.setting)}`) : null], cell.state === "refused" ? "all" : String(cell.seed),
      h("span", { class: "state" }, h("span", { class: `cell ${cell.state}`, "aria-hidden": "true" }, STATES[cell.state] || "?"), cell.state),
      h("span", { class: "reason" }, cell.reason || NONE), cell.run ? h("code", {}, cell.run) : NONE])),
  open.length > ROWS ? h("p", { class: "note" }, `and ${open.length - ROWS} more`) : null || "");
}

/** Rows are arms, columns are seeds. A cell with several settings shows the worst state among them. */
function cellMap() {
  const byCell = new Map();
  const refused = new Map(); // a refusal applies to all seeds of the arm
  for (const cell of data.cells) {
    if (cell.state === "refused") refused.set(cell.arm, [cell]);
    const key = JSON.stringify([cell.arm, cell.seed]);
    byCell.set(key, [...(byCell.get(key) || []), cell]);
  }
  const names = [...new Set([...data.arms.map((arm) => arm.name), ...data.cells.map((cell) => cell.arm)])];
  const square = (arm, seed) => {
    const cells = byCell.get(JSON.stringify([arm, seed])) || refused.get(arm) || [];
    if (!cells.length) return h("td", {}, NONE);
    const worst = WORST.find((name) => cells.some((cell) => cell.state === name)) || "missing";
    const done = cells.filter((cell) => cell.state === "done").length;
    const text = cells.length > 1 ? `${done} of ${cells.length} settings done${worst === "done" ? "" : `, ${worst}`}` : worst;
    return h("td", {}, h("span", { class: `cell ${worst}`, title: text }, h("span", { "aria-hidden": "true" }, STATES[worst]), h("span", { class: "unseen" }, text)));
  };
  return h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Map of cells" },
    h("table", { class: "map" }, h("caption", {}, "State of every cell"),
      h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "arm"), allSeeds().map((seed) => h("th", { scope: "col" }, `s${seed}`)))),
      h("tbody", {}, names.map((name) => h("tr", {}, h("th", { scope: "row" }, name), allSeeds().map((seed) => square(name, seed)))))));
}
