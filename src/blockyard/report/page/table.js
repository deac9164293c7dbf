// The table: one sortable row for each arm; a row opens to show what the arm changes.

const PRINTED = 24; // arms; with more, only the rows are printed
const MOST_ROWS = 100; // arms of the table that need no press
const EVERY_ARM = "arms"; // the key under which the press is kept
const NARROW = 560; // pixels of the section, below which the columns are in the order for a phone
const WHISKER = [4, 92]; // the ends of the scale of differences, in pixels
const SIGNS = { better: "▲", worse: "▼", baseline: "●", "no difference shown": "≈", "no difference that matters": "=", "not better by the margin": "≤", "not worse by the margin": "≥", "not asked": "·", undecided: "?", "too few seeds": "…",
  "not done yet": "…", "no value": "∅", failed: "✗", refused: "⊘" };

/** A verdict as a badge; the sign carries the meaning without colour. */
function chip(verdict) {
  const kind = { better: "good", worse: "bad", baseline: "base" }[verdict] || "even";
  return h("span", { class: `chip ${kind}` }, h("span", { "aria-hidden": "true" }, SIGNS[verdict] || "·"), verdict || NONE);
}

/** A mean with its interval in small print. */
const estimate = (text, pair, digits) => [h("span", { class: "main" }, text), h("small", {}, interval(pair, digits))];

/** The columns: key, name, group, the value to sort by, the content of a cell. */
function columns() {
  const means = decimals(data.arms.flatMap((arm) => [arm.mean, ...(arm.interval || [])]), data.arms.map((arm) => arm.interval));
  const gaps = data.arms.map((arm) => arm.difference).filter(Boolean);
  const digits = decimals([0, ...gaps.flatMap((gap) => [gap.mean, ...(gap.interval || [])])], gaps.map((gap) => gap.interval));
  const domain = extent([0, ...gaps.flatMap((gap) => gap.interval || [gap.mean])], 0.06);
  const p = (key, name, help) => ({ key, name, help, group: "Against the baseline", value: (arm) => (arm.difference || {})[key],
    cell: (arm) => (arm.difference ? chance(arm.difference[key]) : "") });
  const against = !gaps.length ? [] : [
    { key: "difference", name: "Difference", help: "to the baseline, paired by seed, with its 95 % interval",
      group: "Against the baseline", value: (arm) => (arm.difference || {}).mean,
      under: () => differenceAxis(domain),
      cell: (arm) => (arm.difference ? h("div", { class: "difference" }, whisker(arm, domain),
        h("div", {}, estimate(change(arm.difference.mean, digits), arm.difference.interval, digits),
          uncorrected(arm) ? h("small", { class: "uncorrected" }, "interval not corrected") : null)) : "") },
    ...(byBoundary() ? [p("t_p", "p alone", "of the t test over all looks, before the correction")] : data.evidence ? [{ key: "e", name: "e", help: "the largest e-value so far", group: "Against the baseline", value: (arm) => (arm.difference || {}).e,
      cell: (arm) => (arm.difference ? short(arm.difference.e) : "") }]
      : data.column_notes ? [] : [p("t_p", "p (t)", "paired t-test"), p("permutation_p", "p (perm.)", "exact permutation test over the signs of the pairs")]),
    p("holm_p", "p (Holm)", "the p that decides, corrected over the arms (Holm)"),
    ...(gaps.every((gap) => !known(gap.effect)) ? [] : [{ key: "effect", name: "Effect", help: (gaps.find((gap) => gap.effect_kind) || {}).effect_kind, group: "Against the baseline",
      value: (arm) => (arm.difference || {}).effect, cell: (arm) => (arm.difference ? change(arm.difference.effect, 2) : "") }])];
  return [
    { key: "verdict", name: "Verdict", group: "Quality", value: (arm) => arm.verdict, cell: (arm) => chip(arm.verdict), words: true },
    { key: "n", name: "n", help: "seeds with a result", group: "Quality", value: (arm) => arm.n,
      cell: (arm) => (arm.planned && arm.planned !== arm.n ? `${arm.n}/${arm.planned}` : String(arm.n)) },
    { key: "mean", name: data.metric, help: "mean over seeds with its 95 % interval", group: "Quality",
      value: (arm) => arm.mean, cell: (arm) => estimate(fixed(arm.mean, means), arm.interval, means) },
    ...against,
  ];
}

/** The columns of the second table: what each arm costs, and its ratio to the baseline. */
function costColumns() {
  return Object.entries(COSTS).filter(([key]) => data.arms.some((arm) => known((arm.cost || {})[key]))).map(([key, { name, unit, format }]) => ({
    key, name, help: unit, value: (arm) => (arm.cost || {})[key],
    cell: (arm) => [h("span", { class: "main" }, format((arm.cost || {})[key])),
      h("small", {}, arm.name === data.baseline ? "" : ratio((arm.cost_ratio || {})[key]))] }));
}

/** Whether the interval, which is not corrected, leaves 0 out while the corrected p shows no difference. */
const uncorrected = ({ verdict, difference }) => Boolean(verdict === "no difference shown" && difference && difference.interval && (difference.interval[0] > 0 || difference.interval[1] < 0));

/** The axis of the column of differences: its ends and zero, below the name of the column. */
function differenceAxis(domain) {
  const across = scale(domain, WHISKER);
  const values = [0, ...rounds(domain, 4).filter((value) => value !== 0)].sort((a, b) => Math.abs(b) - Math.abs(a) || a - b);
  const taken = [];
  const texts = [0, ...values.filter((value) => value !== 0)].map((value) => {
    const [at, text] = [across(value), value > 0 ? `+${short(value, 2)}` : short(value, 2)];
    const half = labelWidth(text) * 0.4 + 1;
    const x = Math.max(half, Math.min(96 - half, at));
    const free = taken.every(([from, to]) => x + half < from || x - half > to);
    if (free) taken.push([x - half, x + half]);
    return [s("line", { x1: at, x2: at, y1: 12, y2: 16 }), free ? s("text", { x, y: 9, "text-anchor": "middle" }, text) : null];
  });
  return s("svg", { class: "scale", width: 96, height: 17, viewBox: "0 0 96 17", role: "img", "aria-label": `scale of the differences, from ${short(domain[0])} to ${short(domain[1])}` },
    s("line", { x1: WHISKER[0], x2: WHISKER[1], y1: 16, y2: 16 }), texts.flat());
}

/** On a phone the difference, which is the answer, comes first, the verdict stands below the arm's name, and groups of columns have no heading. */
function narrowed(all) {
  const first = ["difference", "mean"];
  const place = ({ key }) => (first.includes(key) ? first.indexOf(key) : first.length);
  return all.filter(({ key }) => key !== "verdict").sort((a, b) => place(a) - place(b));
}

/** The difference and its interval on a common scale for all arms, with zero marked. */
function whisker(arm, domain) {
  const { mean, interval: pair } = arm.difference;
  if (!known(mean)) return null;
  const across = scale(domain, WHISKER);
  return s("svg", { class: `whisker ${{ better: "good", worse: "bad" }[arm.verdict] || "even"}`, width: 96, height: 20,
    viewBox: "0 0 96 20", "aria-hidden": "true", focusable: "false" },
    s("line", { class: "zero", x1: across(0), x2: across(0), y1: 0, y2: 20 }),
    pair ? s("line", { class: "reach", x1: across(pair[0]), x2: across(pair[1]), y1: 10, y2: 10 }) : null,
    s("circle", { cx: across(mean), cy: 10, r: 3.5 }));
}

/** Arms in the chosen order; those without a value come last either way. */
function ordered(all) {
  const column = [...all, ...costColumns()].find((one) => one.key === state.sort.column) ||
    (state.sort.column === "name" ? { value: (arm) => arm.name } : null);
  if (!column) return data.arms;
  const sign = state.sort.down ? -1 : 1;
  const blank = (x) => x === null || x === undefined;
  return [...data.arms].sort((a, b) => {
    const [x, y] = [column.value(a), column.value(b)];
    if (blank(x) || blank(y)) return Number(blank(x)) - Number(blank(y));
    return sign * (typeof x === "number" ? x - y : String(x).localeCompare(String(y), "en", { numeric: true }));
  });
}

/** A header cell with its sort button. The first click sorts numbers best or largest first, text from A to Z. */
function head(column, first) {
  const on = state.sort.column === column.key;
  const press = () => {
    const lower = column.words || column.key.endsWith("_p") || (column.key === "mean" && data.direction === "min");
    state.sort = !on ? { column: column.key, down: !lower } : { column: column.key, down: !state.sort.down };
    redraw("table");
  };
  return h("th", { scope: "col", class: first ? "arm" : column.words ? null : "number", "data-column": column.key,
    "aria-sort": on ? (state.sort.down ? "descending" : "ascending") : "none" },
    h("button", { type: "button", class: "sort", "data-key": `sort:${column.key}`, onclick: press, title: column.help },
      column.name, h("span", { class: "arrow", "aria-hidden": "true" }, on ? (state.sort.down ? "↓" : "↑") : "↕")),
    column.under ? column.under() : null);
}

/** Draw the table in a scrolling box, and the notes on its columns. */
function drawTable(body) {
  const narrow = body.clientWidth < NARROW;
  const all = narrow ? narrowed(columns()) : columns();
  const groups = [...new Set(all.map((column) => column.group))];
  const arms = ordered(all).slice(0, state.printing || state.open.has(EVERY_ARM) ? Infinity : MOST_ROWS);
  body.append(
    h("div", { class: "scroll arms", tabindex: 0, role: "region", "aria-label": "Table of arms" },
      h("table", { id: "arms-table", class: "arms" },
        h("caption", {}, `All arms: ${data.metric} (${wish(data.metric)}), difference to the baseline`),
        h("thead", {},
          narrow ? null : h("tr", { class: "groups" }, h("td", { class: "arm" }), groups.map((group) =>
            h("th", { scope: "colgroup", colspan: all.filter((column) => column.group === group).length }, group))),
          h("tr", {}, head({ key: "name", name: "Arm", words: true }, true), all.map((column) => head(column, false)))),
        h("tbody", {}, arms.flatMap((arm) => row(arm, all))))),
    arms.length < data.arms.length ? h("p", {}, h("button", { type: "button", class: "quiet", "data-key": "table:all", onclick: showEveryArm },
      `Show all ${data.arms.length} arms`)) : "",
    saving("arms", null, () => { showEveryArm(); return document.getElementById("arms-table"); }),
    h("p", { class: "note" }, smallest()),
    baselineTable() || "",
    externalTable() || "",
    costTable(arms) || "",
    disclosure("how", "How to read this table", reading));
}

/** Show the rows of all arms. */
function showEveryArm() {
  if (data.arms.length <= MOST_ROWS || state.open.has(EVERY_ARM)) return;
  state.open.add(EVERY_ARM);
  redraw("table");
}

/** What the arms cost, in the order of the first table; null where no cost is known. */
function costTable(arms) {
  const all = costColumns();
  if (!all.length) return null;
  return h("div", {}, h("h3", {}, "Cost"),
    h("div", { class: "scroll costs", tabindex: 0, role: "region", "aria-label": "Table of costs" },
      h("table", { class: "arms" }, h("caption", {}, "What each arm costs, and its ratio to the baseline"),
        h("thead", {}, h("tr", {}, head({ key: "name", name: "Arm", words: true }, true), all.map((column) => head(column, false)))),
        h("tbody", {}, arms.map((arm) => h("tr", { class: arm.name === data.baseline ? "baseline" : null },
          h("th", { scope: "row", class: "arm" }, h("span", { class: "named" }, swatch(arm.name), h("span", { class: "name" }, breakable(arm.name)))),
          all.map((column) => h("td", { class: "number", "data-column": column.key }, column.cell(arm)))))))));
}

/** An arm's row and, where it is open, the row with its details. */
function row(arm, all) {
  const index = data.arms.indexOf(arm);
  const key = `arm:${arm.name}`;
  const open = state.open.has(key) || (state.printing && data.arms.length <= PRINTED);
  const press = () => {
    state.open[open ? "delete" : "add"](key);
    redraw("table");
  };
  const line = h("tr", { class: arm.name === data.baseline ? "baseline" : null, "data-arm": index },
    h("th", { scope: "row", class: "arm" },
      h("button", { type: "button", class: "expand", "aria-expanded": String(open), "aria-controls": `detail-${index}`,
        "data-key": `expand:${index}`, onclick: press, title: arm.name },
      h("span", { class: "twisty", "aria-hidden": "true" }, open ? "▾" : "▸"), swatch(arm.name), h("span", { class: "name" }, breakable(arm.name))),
      all.some(({ key }) => key === "verdict") ? null : h("div", { class: "verdict" }, chip(arm.verdict))),
    all.map((column) => h("td", { class: column.words ? null : "number", "data-column": column.key }, column.cell(arm))));
  if (!open) return [line];
  return [line, h("tr", { class: "detail", id: `detail-${index}` }, h("td", { colspan: all.length + 1 }, detail(arm)))];
}

/** A name that may wrap after its commas and signs of equality: block=pre_norm,optimizer.lr=0.001. */
const breakable = (name) => name.split(/(?<=[,=_])/).flatMap((part, k) => (k ? [h("wbr"), part] : [part]));

/** A sentence on the smallest possible permutation p. */
function smallest() {
  const gaps = data.arms.map((arm) => arm.difference).filter((gap) => gap && known(gap.smallest_p));
  if (!gaps.length || data.evidence || data.column_notes) return null;
  const limits = [...new Map(gaps.map((gap) => [gap.n, gap.smallest_p]))].sort((a, b) => b[0] - a[0]);
  const parts = limits.map(([n, p], k) => `${short(p)} with ${k ? n : plural(n, "pair of seeds", "pairs of seeds")}`);
  const never = limits.filter(([, p]) => p > 0.05).length;
  const note = !never ? "" : `; ${never < limits.length ? "where that is above 0.05, it" : "it"} cannot reach 0.05, however large the difference`;
  return `The exact permutation test cannot give a p below ${parts.join(", or ")}${note}.`;
}

/** How to read the table of a sweep that stops when it is decided. */
function readingByLooks() {
  const [rule, evidence, kind] = byBoundary()
    ? ["A group-sequential boundary holds at all looks up to the largest number of seeds, which stood before the first run.",
      "p alone is that of the t test of the paired differences over all looks. p is corrected over the arms (Holm); at 0.05 or less the verdict is better or worse.", "interval over all looks"]
    : ["e-values and confidence sequences hold whenever it stopped.",
      "e is the largest so far of the t statistic of the paired differences: above 1 speaks for a difference. p is 1 / e, corrected over the arms (Holm); at 0.05 or less the verdict is better or worse.", "confidence sequence"];
  return h("ul", { class: "note" },
    h("li", {}, `The sweep looked at its results after every seed and stopped when it was decided, so a t test of a fixed number of seeds would be wrong too often. ${rule}`),
    h("li", {}, evidence),
    h("li", {}, `No difference that matters: the ${kind}, corrected for the number of comparisons, lies within the margin. Undecided: none of these.`),
    h("li", {}, `Differences are paired: arm minus baseline within each seed, then averaged. The interval of a difference is its 95 % ${kind}; that of a mean is Student's t.`),
    ofAnyTable());
}

/** How to read a table whose differences are those of outcomes of whole runs, or over test samples or splits. */
const readingByNotes = (notes) => h("ul", { class: "note" },
  notes.map((note) => h("li", {}, `${note.charAt(0).toUpperCase()}${note.slice(1)}.`)), ofAnyTable());

/** The last lines of all three. */
const ofAnyTable = () => [h("li", {}, "× is the ratio to the baseline. A dash is a missing value."),
  h("li", {}, "Open a row to see what the arm changes in config, modules and parameters.")];

/** How to read the table of a fixed number of seeds. */
function reading() {
  const kinds = [...new Set(data.arms.filter((arm) => arm.interval).map((arm) => arm.interval_kind))];
  const ranged = (data.ranges || {})[data.metric];
  const named = { t: "Student's t", bca: "the BCa bootstrap", exact: "Clopper and Pearson's exact method" };
  if (data.column_notes) return readingByNotes(data.column_notes);
  if (data.evidence) return readingByLooks();
  return h("ul", { class: "note" },
    h("li", {}, `Intervals are 95 %${kinds.length ? `, by ${kinds.map((kind) => named[kind] || kind).join(" and ")}` : ""}.`),
    ranged ? h("li", {}, `Intervals of ${data.metric} end at ${ranged[0]} and ${ranged[1]}, beyond which it has no values.`) : null,
    h("li", {}, "Intervals are those of one arm alone: they are not corrected for the number of arms, the verdict is. Where an interval leaves 0 out and the corrected p is above 0.05, the row says \u201cinterval not corrected\u201d, and the verdict is that no difference is shown."),
    h("li", {}, "Differences are paired: arm minus baseline within each seed, then averaged."),
    data.expect ? h("li", {}, "An arm has the verdict of the clause that compares it with the baseline; an arm without one was not asked. Clauses with > share 5 % by Holm's correction, and one of several clauses is contradicted at 5 % over their number.")
      : h("li", {}, "The verdict is better or worse where the Holm-corrected p of the t test is at most 0.05 (that of the exact test where all differences are equal). Fewer than three common seeds give no verdict."),
    data.arms.some((arm) => arm.diverged) ? h("li", {}, "A run whose loss was not finite counts as worse than every run that ended, so arms with such runs are compared by order.") : null,
    ofAnyTable());
}
