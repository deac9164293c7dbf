// The tables of sweeps and of runs.

const VERDICT_SIGNS = { supported: "✓", contradicted: "✗", undecided: "?" };
const STATE_SIGNS = { done: "✓", failed: "✗", running: "▶", queued: "·", interrupted: "‖" };
const MOST_SEEDS = 6; // links to the runs of a config that need no press

/** Every sweep with its claim and verdict. A press on the number of cells shows its runs. */
function sweepTable() {
  const states = new Map(data.runs.map((run) => [run.run, run.state]));
  return h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Sweeps" },
    h("table", { class: "plain sweeps" }, h("caption", {}, "Sweeps"),
      h("thead", {}, h("tr", {}, ["sweep", "claim", "verdict", "answer", "cells done"].map((name) => h("th", { scope: "col" }, name)))),
      h("tbody", {}, data.sweeps.map((sweep) => {
        const kind = { supported: "good", contradicted: "bad" }[sweep.verdict] || "even";
        const done = sweep.runs.filter((run) => states.get(run) === "done").length;
        const at = address(sweep.page);
        return h("tr", {},
          h("th", { scope: "row" }, at ? h("a", { href: at }, sweep.name) : sweep.name, sweep.time ? h("small", { class: "below" }, sweep.time.slice(0, 10)) : null),
          h("td", { class: "wide", "data-label": "claim" }, sweep.claim || NONE),
          h("td", { "data-label": "verdict" }, h("span", { class: `chip ${kind}` }, h("span", { "aria-hidden": "true" }, VERDICT_SIGNS[sweep.verdict] || "·"), sweep.verdict || "not judged"), sweep.sense ? h("small", { class: "below" }, sweep.sense) : null),
          h("td", { class: "wide", "data-label": "answer" }, h("div", {}, sweep.stale ? h("strong", {}, `${sweep.stale} `) : null, folded(sweep.answer, 260) || NONE, outdone(sweep))),
          h("td", { class: "number", "data-label": "cells done" }, h("button", { type: "button", class: "quiet", "data-key": `cells:${sweep.name}`, title: `show the runs of ${sweep.name}`,
            onclick: () => { state.query = `sweep=${sweep.name}`; document.getElementById("query").value = state.query; redraw(); document.getElementById("runs").scrollIntoView(); } },
          `${done} of ${sweep.runs.length}`)));
      }))));
}

/** A text that is long, cut; a press shows the whole. */
function folded(text, most) {
  if (!text || text.length <= most) return text || null;
  return h("details", { class: "fold" }, h("summary", {}, `${text.slice(0, most).trimEnd()}…`), h("span", {}, text));
}

/** What tells the configs apart, below a name: position=rope, token_mixer.qk_norm=true. */
function apart(row) {
  const names = data.apart || [];
  const briefly = (key) => (names.filter((other) => other.split(".").pop() === key.split(".").pop()).length > 1 ? key : key.split(".").pop());
  const pairs = [...data.families, ...names].map((key) => [key, valueOf(row.runs[0], key)]).filter(([, value]) => value !== undefined && value !== null);
  return pairs.length ? h("small", { class: "below apart" }, pairs.map(([key, value]) =>
    h("span", { title: `${key}=${word(value)}`, "data-apart": key }, `${briefly(key)}=${cut(word(value), 24)}`))) : null;
}

/** The sweeps of a row, links to their pages, each with the arm. */
function memberships(row) {
  const pairs = new Map();
  for (const sweep of data.sweeps) {
    sweep.runs.forEach((run, k) => {
      if (row.runs.some((own) => own.run === run)) pairs.set(`${sweep.name} ${(sweep.arms || [])[k]}`, [sweep, (sweep.arms || [])[k]]);
    });
  }
  return [...pairs.values()].map(([sweep, arm]) => {
    const at = address(sweep.page);
    return h("span", { class: "member" }, arm ? h("strong", {}, arm) : null, " ", h("small", {}, at ? h("a", { href: at }, sweep.name) : sweep.name));
  });
}

/** The columns of the table of runs: [key, name, content of a row's cell, whether it is a number]. */
function runColumns() {
  const metrics = state.metric ? [state.metric] : metricNames().slice(0, 2);
  const numbers = (row, key) => row.runs.map((run) => valueOf(run, key)).filter(known);
  const metric = (key) => (row) => {
    const values = numbers(row, key);
    if (!values.length) return NONE;
    const [middle, reach] = meanTexts(values, key);
    return [middle, reach ? h("small", {}, ` ${reach}`) : null];
  };
  const several = (key, text) => (row) => { const values = numbers(row, key); return values.length ? text(values) : NONE; };
  return [
    data.sweeps.length ? ["sweep", "arm, sweep", memberships] : null,
    ["state", "state", states],
    ...metrics.map((name) => [name, name, metric(name), true]),
    ["parameters", "parameters", several("parameters", exact), true],
    ["seconds", "time", several("seconds", (values) => time(mean(values))), true],
    ["started", "started", (row) => (row.runs[0].started || NONE).slice(0, 16).replace("T", " ")],
    ["tags", "tags, note", (row) => [...new Set(row.runs.flatMap((run) => run.tags))].map((tag) => h("span", { class: "tag" }, tag)).concat([...new Set(row.runs.map((run) => run.note).filter(Boolean))].map((note) => h("small", {}, folded(note, 80))))],
  ].filter(Boolean);
}

/** By what the rows can be sorted: [key, name]. Choices and options that tell runs apart have no column of their own. */
const sortKeys = () => [["run", state.grouped ? "config" : "run"], ...runColumns().map(([key, name]) => [key, name]),
  ...[...data.families, ...(data.apart || [])].map((key) => [key, key])];

/** How many of a row's runs are done, and how many are in each other state: "9 of 10 done, 1 failed". */
function stateCounts(row) {
  const count = (name) => row.runs.filter((run) => run.state === name).length;
  const others = Object.keys(STATE_SIGNS).filter((name) => name !== "done" && count(name));
  return [`${count("done")} of ${row.runs.length} done`, ...others.map((name) => `${count(name)} ${name}`)].join(", ");
}

/** The states of a row's runs, each a link to its folder, and the reasons of those that failed. A press shows many links. */
function states(row) {
  const reasons = [...new Set(row.runs.filter((run) => run.reason && run.state !== "done").map((run) => run.reason))];
  const links = row.runs.map((run) => {
    const [at, text] = [address(run.link), run.run.split("/")[1]];
    const mark = [h("span", { "aria-hidden": "true" }, STATE_SIGNS[run.state] || "?"), ` ${text}`, h("span", { class: "unseen" }, run.state)];
    return at ? h("a", { class: `seed ${run.state}`, href: `${at}/`, title: `${run.run}: ${run.state}` }, mark) : h("span", { class: `seed ${run.state}`, title: run.state }, mark);
  });
  const shown = links.length > MOST_SEEDS ? h("details", { class: "fold" }, h("summary", {}, stateCounts(row)), h("span", {}, links)) : links;
  return [shown, reasons.length ? h("small", { class: "below" }, folded(reasons.join("; "), 60)) : null];
}

/** What the signs, the sign ± and the brackets of the table mean. */
function legendOfRuns(rows) {
  const present = Object.keys(STATE_SIGNS).filter((name) => rows.some((row) => row.runs.some((run) => run.state === name)));
  const several = rows.some((row) => row.runs.length > 1);
  return h("p", { class: "keys", id: "keys" }, present.map((name) => h("span", {}, h("span", { class: `seed ${name}`, "aria-hidden": "true" }, STATE_SIGNS[name]), ` ${name}`)),
    several ? h("span", {}, "Metrics: mean over seeds ± half of its 95 % interval (Student's t), as on the pages of sweeps; in brackets where it ends at the range of the metric. Time: mean.") : null);
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
        h("th", { scope: "row" }, h("code", {}, row.name), apart(row), files(row)),
        all.map(([key, name, cell, number]) => h("td", { class: number ? "number" : null, "data-column": key, "data-label": name }, h("div", {}, cell(row)))))))));
}

/** Links to the files of a row's only run; the files of several are in their folders. */
function files(row) {
  const [run] = row.runs;
  const at = address(run.link);
  if (row.runs.length > 1 || !at) return null;
  return run.files.length ? h("details", { class: "fold below" }, h("summary", {}, plural(run.files.length, "file")),
    h("small", {}, run.files.map((file) => h("a", { class: "fact", href: `${at}/${encodeURIComponent(file)}` }, file)))) : null;
}
