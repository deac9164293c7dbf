// The home page: sweeps, the search, the runs, and what is picked side by side.

/** Draw the section of runs anew, or only what is picked. Keeps the focus. */
function redraw(what = "all") {
  const key = document.activeElement && document.activeElement.dataset ? document.activeElement.dataset.key : null;
  if (what === "all") drawRuns();
  drawCompare();
  toAddress();
  if (key && document.activeElement.dataset.key !== key) {
    const again = document.querySelector(`[data-key="${CSS.escape(key)}"]`);
    if (again) again.focus({ preventScroll: true });
  }
}

/** The table of runs that meet the search, and a line on how many do. */
function drawRuns() {
  const rows = rowsShown();
  const runs = rows.reduce((sum, row) => sum + row.runs.length, 0);
  const more = rows.length > FIRST && !state.all;
  const absent = unknownKey(state.query);
  document.getElementById("list").replaceChildren(...[
    h("p", { class: "note", role: "status" }, `${plural(runs, "run")} of ${data.runs.length.toLocaleString("en")}${state.grouped ? `, ${plural(rows.length, "config")}` : ""}${absent === null ? "" : `; this page has no option or metric ${absent}`}`),
    rows.length ? [legendOfRuns(rows), runTable(rows)] : h("p", { class: "empty" }, data.runs.length ? "No run meets the search." : "There is no run here yet."),
    more ? h("button", { type: "button", class: "quiet", "data-key": "more", onclick: () => { state.all = true; redraw(); } }, `Show all ${rows.length.toLocaleString("en")}`) : ""].flat());
}

/** The picked rows side by side. */
function drawCompare() {
  const rows = pickedRows();
  const box = document.getElementById("compare");
  box.hidden = !rows.length;
  const bar = document.getElementById("picked");
  bar.hidden = !rows.length;
  bar.replaceChildren(h("a", { href: "#compare", onclick: (event) => { event.preventDefault(); box.scrollIntoView(); } }, `${rows.length} picked: ${rows.length > 1 ? "side by side" : "see it"}`));
  box.replaceChildren(h("h2", {}, rows.length === 1 ? "One picked" : `${rows.length} side by side`),
    h("div", { class: "controls" }, tick("rows", "differences only", state.differences, (on) => { state.differences = on; redraw("compare"); }),
      h("button", { type: "button", class: "quiet", "data-key": "clear", onclick: () => { state.picked.clear(); redraw(); } }, "Clear")),
    rows.length ? compareTable(rows) : "",
    rows.some((row) => row.runs.length > 1) ? h("p", { class: "note" }, "± is half of the 95 % interval of the mean over seeds (Student's t).") : "",
    rows.length > 1 ? h("p", { class: "note" }, "For statistics and curves: ", h("code", {}, `blockyard compare ${rows.map((row) => row.name).join(" ")}`)) : "");
}

/** The search and the switches. They stay while the rest is drawn anew. */
function controls() {
  const box = h("input", { type: "search", id: "query", "data-key": "query", placeholder: "position=rope test/accuracy>0.9 state=failed", "aria-label": "Search", spellcheck: "false",
    oninput: (event) => { state.query = event.target.value; state.all = false; redraw(); } });
  box.value = state.query;
  return h("div", { class: "controls" }, box,
    choice("metric", "Metric", [["", metricNames().slice(0, 2).join(", ") || "none"], ...metricNames().map((name) => [name, name])], state.metric || "", (value) => { state.metric = value || null; redraw(); }),
    choice("sort", "Sort by", sortKeys(), state.sort.replace(/^-/, ""), (key) => { state.sort = `${numeric(key) && data.directions[key] !== "min" ? "-" : ""}${key}`; redraw(); }),
    tick("grouped", "seeds together", state.grouped, (on) => { state.grouped = on; redraw(); }),
    data.runs.some((run) => run.archived) ? tick("archived", "archived too", state.archived, (on) => { state.archived = on; redraw(); }) : null);
}

/** Whether a key is sorted from the largest value at first. */
const numeric = (key) => key === "started" || data.metrics.includes(key) || ["parameters", "seconds"].includes(key);

/** Draw everything. */
function build() {
  document.getElementById("main").replaceChildren(
    data.sweeps.length ? h("section", { class: "sheet", id: "sweeps" }, h("h2", {}, plural(data.sweeps.length, "sweep")), sweepTable()) : "",
    h("section", { class: "sheet", id: "runs" }, h("h2", {}, "Runs"), controls(), h("div", { id: "list" })),
    h("section", { class: "sheet", id: "compare", "aria-label": "Side by side" }), h("div", { id: "picked", class: "picked", role: "status" }));
  redraw();
}

theme();
fromAddress();
build();
addEventListener("hashchange", () => {
  if (document.getElementById(location.hash.slice(1))) return toAddress();
  fromAddress();
  return build();
});
