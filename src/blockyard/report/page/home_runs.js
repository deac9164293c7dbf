// The tables of sweeps and of runs.

const VERDICT_SIGNS = { supported: "✓", contradicted: "✗", undecided: "?" };
const STATE_SIGNS = { done: "✓", failed: "✗", running: "▶", queued: "·", interrupted: "‖" };

/** Every sweep with its claim and verdict. A press on the number of cells shows its runs. */
function sweepTable() {
  const states = new Map(data.runs.map((run) => [run.run, run.state]));
  return h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Sweeps" },
    h("table", { class: "plain sweeps" }, h("caption", {}, "Sweeps"),
      h("thead", {}, h("tr", {}, ["sweep", "claim", "verdict", "answer", "cells"].map((name) => h("th", { scope: "col" }, name)))),
      h("tbody", {}, data.sweeps.map((sweep) => {
        const kind = { supported: "good", contradicted: "bad" }[sweep.verdict] || "even";
        const done = sweep.runs.filter((run) => states.get(run) === "done").length;
        const at = address(sweep.page);
        return h("tr", {},
          h("th", { scope: "row" }, at ? h("a", { href: at }, sweep.name) : sweep.name, sweep.time ? h("small", { class: "below" }, sweep.time.slice(0, 10)) : null),
          h("td", { class: "wide" }, sweep.claim || NONE),
          h("td", {}, h("span", { class: `chip ${kind}` }, h("span", { "aria-hidden": "true" }, VERDICT_SIGNS[sweep.verdict] || "·"), sweep.verdict || "not judged")),
          h("td", { class: "wide" }, sweep.stale ? h("strong", {}, `${sweep.stale} `) : null, sweep.answer || NONE),
          h("td", { class: "number" }, h("button", { type: "button", class: "quiet", "data-key": `cells:${sweep.name}`, title: `show the runs of ${sweep.name}`,
            onclick: () => { state.query = `sweep=${sweep.name}`; document.getElementById("query").value = state.query; redraw(); document.getElementById("runs").scrollIntoView(); } },
          `${done} of ${sweep.runs.length}`)));
      }))));
}

/** The columns of the table of runs: [key, name, content of a row's cell, whether it is a number]. */
function runColumns() {
  const metrics = state.metric ? [state.metric] : metricNames().slice(0, 2);
  const figure = (key, format) => (row) => {
    const values = row.runs.map((run) => valueOf(run, key)).filter(known);
    const spread = deviation(values);
    return values.length ? [format(mean(values)), spread ? h("small", {}, ` ± ${format(spread, 2)}`) : null] : NONE;
  };
  const common = (key) => (row) => [...new Set(row.runs.map((run) => word(valueOf(run, key) ?? null)))].join(", ").replace(/^none$/, NONE);
  return [
    ["state", "state", states],
    ...metrics.map((name) => [name, name, figure(name, (value, precision = 4) => short(value, precision)), true]),
    ...data.families.slice(0, 6).map((family) => [family, family, common(family)]),
    ["parameters", "parameters", figure("parameters", count), true],
    ["seconds", "time", figure("seconds", time), true],
    ["started", "started", (row) => (row.runs[0].started || NONE).slice(0, 16).replace("T", " ")],
    ["tags", "tags, note", (row) => [...new Set(row.runs.flatMap((run) => run.tags))].map((tag) => h("span", { class: "tag" }, tag)).concat([...new Set(row.runs.map((run) => run.note).filter(Boolean))].map((note) => h("small", {}, cut(note, 80))))],
  ];
}

/** The states of a row's runs, each a link to its folder, and the reasons of those that failed. */
function states(row) {
  const reasons = [...new Set(row.runs.filter((run) => run.reason && run.state !== "done").map((run) => run.reason))];
  return [row.runs.map((run) => {
    const [at, text] = [address(run.link), run.run.split("/")[1]];
    const mark = [h("span", { "aria-hidden": "true" }, STATE_SIGNS[run.state] || "?"), ` ${text}`, h("span", { class: "unseen" }, run.state)];
    return at ? h("a", { class: `seed ${run.state}`, href: `${at}/`, title: `${run.run}: ${run.state}` }, mark) : h("span", { class: `seed ${run.state}`, title: run.state }, mark);
  }), reasons.length ? h("small", { class: "below" }, cut(reasons.join("; "), 160)) : null];
}

/** The table of runs. */
function runTable(rows) {
  const all = runColumns();
  const header = ([key, name, , number]) => {
    const on = state.sort.replace(/^-/, "") === key;
    const down = state.sort.startsWith("-");
    const first = number || key === "started" ? data.directions[key] !== "min" : false;
    return h("th", { scope: "col", class: number ? "number" : null, "data-column": key, "aria-sort": on ? (down ? "descending" : "ascending") : "none" },
      h("button", { type: "button", class: "sort", "data-key": `sort:${key}`, onclick: () => { state.sort = `${(on ? !down : first) ? "-" : ""}${key}`; redraw(); } },
        name, h("span", { class: "arrow", "aria-hidden": "true" }, on ? (down ? "↓" : "↑") : "↕")));
  };
  const shown = state.all ? rows : rows.slice(0, FIRST);
  return h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Runs" },
    h("table", { class: "plain runs" }, h("caption", {}, "Runs"),
      h("thead", {}, h("tr", {}, h("th", { scope: "col" }, h("span", { class: "unseen" }, "compare")), header(["run", state.grouped ? "config" : "run"]), all.map(header))),
      h("tbody", {}, shown.map((row) => h("tr", { "data-row": row.name },
        h("td", {}, h("input", { type: "checkbox", checked: state.picked.has(row.name), "aria-label": `compare ${row.name}`, "data-key": `pick:${row.name}`,
          onchange: () => { state.picked[state.picked.has(row.name) ? "delete" : "add"](row.name); redraw("compare"); } })),
        h("th", { scope: "row" }, h("code", {}, row.name), files(row)),
        all.map(([key, , cell, number]) => h("td", { class: number ? "number" : null, "data-column": key }, cell(row))))))));
}

/** Links to the files of a row's only run; the files of several are in their folders. */
function files(row) {
  const [run] = row.runs;
  const at = address(run.link);
  if (row.runs.length > 1 || !at) return null;
  return h("small", { class: "below" }, run.files.map((file) => h("a", { class: "fact", href: `${at}/${encodeURIComponent(file)}` }, file)));
}
