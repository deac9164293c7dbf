// The home page's data, the reader's choices, and the address that holds them: #q=position%3Drope&sort=-test%2Faccuracy.

const data = JSON.parse(document.getElementById("data").textContent);
const FACTS = ["run", "name", "state", "reason", "started", "seconds", "steps", "parameters", "tags", "note"];
const FIRST = 200; // rows that are drawn at once
const state = { query: "", sort: "-started", grouped: true, archived: false, all: false, metric: null, picked: new Set(), open: new Set(), differences: true };

// Run -> the sweeps whose cell it is.
const SWEEPS_OF = new Map();
const ARMS_OF = new Map();
for (const sweep of data.sweeps) {
  sweep.runs.forEach((run, k) => {
    SWEEPS_OF.set(run, [...(SWEEPS_OF.get(run) || []), sweep.name]);
    if ((sweep.arms || [])[k]) ARMS_OF.set(run, [...(ARMS_OF.get(run) || []), sweep.arms[k]]);
  });
}

/** The metrics that tell most: those on test first, scores before losses. */
function metricNames() {
  const place = (name) => (name.startsWith("test/") ? 0 : 2) + (data.directions[name] === "max" ? 0 : 1);
  return [...data.metrics].sort((a, b) => place(a) - place(b));
}

/** Take the choices from the address. */
function fromAddress() {
  const given = new URLSearchParams(location.hash.slice(1));
  state.query = given.get("q") || "";
  state.sort = given.get("sort") || "-started";
  state.grouped = given.get("seeds") !== "apart";
  state.archived = given.get("archived") === "shown";
  state.differences = given.get("rows") !== "all";
  state.metric = data.metrics.includes(given.get("metric")) ? given.get("metric") : null;
  state.picked = new Set(given.getAll("pick"));
}

/** Write the choices into the address. */
function toAddress() {
  const next = new URLSearchParams();
  if (state.query) next.set("q", state.query);
  if (state.sort !== "-started") next.set("sort", state.sort);
  if (!state.grouped) next.set("seeds", "apart");
  if (state.archived) next.set("archived", "shown");
  if (!state.differences) next.set("rows", "all");
  if (state.metric) next.set("metric", state.metric);
  for (const name of state.picked) next.append("pick", name);
  const text = next.toString();
  if (`#${text}` !== location.hash && (text || location.hash)) history.replaceState(null, "", text ? `#${text}` : location.href.replace(/#.*$/, ""));
}

/** A link to a file beside the page; only relative ones are followed. */
const address = (link) => (typeof link === "string" && /^\.{1,2}\/[^:]*$/.test(link) ? link : null);

/** Runs that differ in nothing but the seed share a folder, NAME-HASH. */
const groupOf = (run) => run.run.split("/")[0];

const mean = (values) => (values.length ? values.reduce((sum, value) => sum + value, 0) / values.length : undefined);

/** Half of the 95 % interval of a mean (Student's t), or undefined for fewer than two values and for equal ones. */
function halfInterval(values) {
  if (values.length < 2) return undefined;
  const middle = mean(values);
  const deviation = Math.sqrt(values.reduce((sum, value) => sum + (value - middle) ** 2, 0) / (values.length - 1));
  return deviation > 0 ? (student(values.length - 1) * deviation) / Math.sqrt(values.length) : undefined;
}

/** The text of a mean and of its interval: ["0.821", "± 0.003"], or ["0.4", "[0, 0.9]"] where a share ends at 0 or 1. */
function meanTexts(values, metric, precision = 4) {
  const [middle, half] = [mean(values), halfInterval(values)];
  if (half === undefined) return [short(middle, precision), ""];
  const [least, most] = data.ranges && data.ranges[metric] ? data.ranges[metric] : [-Infinity, Infinity];
  if (middle - half >= least && middle + half <= most) return [short(middle, precision), `± ${short(half, 2)}`];
  return [short(middle, precision), `[${short(Math.max(least, middle - half), 2)}, ${short(Math.min(most, middle + half), 2)}]`];
}

/** Whole numbers in full: "276,258", or "276,258 to 276,480". */
function exact(values) {
  const [least, most] = [Math.min(...values), Math.max(...values)].map((value) => value.toLocaleString("en", { maximumFractionDigits: 20 }));
  return least === most ? least : `${least} to ${most}`;
}

/** The rows of the table: {name, runs}, runs that meet the search, alone or by everything but the seed. */
function rowsShown() {
  const runs = data.runs.filter((run) => (state.archived || !run.archived) && meets(run, state.query));
  const groups = new Map();
  for (const run of runs) {
    const name = state.grouped ? groupOf(run) : run.run;
    if (!groups.has(name)) groups.set(name, { name, runs: [] });
    groups.get(name).runs.push(run);
  }
  for (const { runs: own } of groups.values()) own.sort((a, b) => a.run.localeCompare(b.run, "en", { numeric: true }));
  return sorted([...groups.values()]);
}

/** The value of a row by which it is sorted: the mean of numbers, else that of its first run. */
function rowValue(row, key) {
  const values = row.runs.map((run) => valueOf(run, key)).filter((value) => value !== undefined && value !== null && value !== "");
  const numbers = values.map(Number).filter((value) => !Number.isNaN(value));
  return values.length && numbers.length === values.length && !Array.isArray(values[0]) ? mean(numbers) : values[0];
}

/** Sorted by the chosen key; rows without a value last. */
function sorted(rows) {
  const [key, down] = [state.sort.replace(/^-/, ""), state.sort.startsWith("-")];
  const keyed = rows.map((row) => [row, rowValue(row, key)]);
  const blank = (value) => value === undefined;
  return keyed.sort(([, a], [, b]) => {
    if (blank(a) || blank(b)) return Number(blank(a)) - Number(blank(b));
    const order = typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), "en", { numeric: true });
    return down ? -order : order;
  }).map(([row]) => row);
}
