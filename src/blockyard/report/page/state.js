// The reader's choices. They survive every redraw, so a live page keeps them.

let data = JSON.parse(document.getElementById("data").textContent);

const state = {
  hidden: new Set(),
  open: new Set(),
  sort: { column: null, down: false },
  metric: null,
  axis: "step",
  band: "pointed",
  part: "all",
  smooth: 0,
  zoom: null,
  logarithm: false,
  quality: null,
  cost: null,
  sampleArm: null,
  cell: null,
  across: null,
  lines: null,
};

const SHOWN = 12; // arms drawn at first; more lines cannot be told apart

const ALIKE = 0.05; // costs within this part of each other are no trade-off: matching leaves as much
const NOISE = 0.2; // the same of a measured cost, which differs between runs of one arm

const COSTS = {
  parameters: { name: "Parameters", format: count },
  active_parameters: { name: "Active parameters", format: count },
  flops_per_sample: { name: "Training FLOPs per sample", format: count },
  step_seconds: { name: "Step time", format: time, measured: true },
  samples_per_second: { name: "Throughput", unit: "samples/s", format: count, more: true, measured: true },
  mfu: { name: "Share of peak (MFU)", format: percent, more: true, measured: true },
  peak_memory: { name: "Peak memory", format: bytes, measured: true },
  cache_bytes_per_token: { name: "Cache per token", format: bytes },
  decode_tokens_per_second: { name: "Decoding", unit: "tokens/s", format: count, more: true, measured: true },
  seconds: { name: "Training time", format: time, measured: true },
};

const AXES = {
  step: { name: "Step", format: count, whole: true },
  samples: { name: "Samples seen", format: count, whole: true },
  flops: { name: "Training FLOPs", format: count },
  seconds: { name: "Wall time", format: time },
};

/** The arms that have a mean or a curve to draw. */
const drawable = () => data.arms.filter((arm) => known(arm.mean) || data.curves.some((curve) => curve.arm === arm.name));

/** The arms that are switched on. */
const shown = () => drawable().filter((arm) => !state.hidden.has(arm.name));

/** All seeds, including those for which no arm has a result yet. */
const allSeeds = () => [...new Set([...data.seeds, ...data.cells.filter((cell) => cell.state !== "refused").map((cell) => cell.seed)])]
  .sort((a, b) => a - b);

/** Values without their keys: "rope · 0.001". Where they are long, texts are shortened, and numbers stay whole. */
function brief(values, most = 28) {
  const texts = Object.values(values || {}).map(word);
  const long = texts.join(" · ").length > most;
  return texts.map((text) => (long && Number.isNaN(Number(text)) ? cut(text, Math.max(5, Math.floor(most / texts.length))) : text)).join(" · ");
}

/** A short name of an arm; for an arm of a grid its levels, without the names of the factors. */
function label(name, most = 28) {
  const arm = data.arms.find((one) => one.name === name);
  if (!arm || name.length <= most || Object.keys(arm.levels || {}).length < 2) return cut(name, most);
  const text = brief(arm.levels, most);
  return data.arms.some((one) => one !== arm && brief(one.levels, most) === text) ? cut(name, most) : text;
}

/** "max" or "min"; null for what is neither better high nor low, such as a learning rate. */
const direction = (metric) => (metric === data.metric ? data.direction : (data.directions || {})[metric]) || null;

/** "higher is better" or "lower is better"; nothing for a metric without a direction. */
const wish = (metric) => ({ max: "higher is better", min: "lower is better" })[direction(metric)] || "";

/** Arms sorted by their mean, the best first; those without one last. */
function ranked(arms) {
  const sign = data.direction === "max" ? -1 : 1;
  return [...arms].sort((a, b) => (known(a.mean) ? sign * a.mean : Infinity) - (known(b.mean) ? sign * b.mean : Infinity));
}

/** The arm that an arm is compared with. */
const baseOf = (arm) => data.arms.find((other) => other.name === (arm.against || data.baseline));

/** The baseline and the best other arms, SHOWN in all. */
function leaders() {
  const best = ranked(data.arms.filter((arm) => arm.name !== data.baseline)).slice(0, SHOWN - (data.baseline ? 1 : 0));
  return new Set([data.baseline, ...best.map((arm) => arm.name)]);
}

/** Set the initial choices. */
function begin() {
  state.metric = firstMetric();
  state.quality = data.metric;
  state.cost = firstCost();
  [state.across, state.lines] = firstFactors();
  if (data.arms.length > MOST_ROWS) state.sort = { column: "mean", down: data.direction === "max" };
  if (data.arms.length > SHOWN) {
    const keep = leaders();
    state.hidden = new Set(data.arms.map((arm) => arm.name).filter((name) => !keep.has(name)));
  }
}

/** The metric of the curves that is shown first; null where none has a value. */
function firstMetric() {
  const names = curveMetrics();
  const twin = String(data.metric).replace(/^test\//, "val/").replace(/@last\d+$/, "");
  return [twin, data.metric, "val/loss", names[0]].find((name) => names.includes(name)) || null;
}

/** The cost that is shown first: the comparison's, or where the arms share it one in which they differ; null where none is known. */
function firstCost() {
  const values = (key) => data.arms.map((arm) => (arm.cost || {})[key]).filter(known);
  const costs = Object.keys(COSTS).filter((key) => values(key).length);
  const chosen = costs.find((key) => key.startsWith(String(data.cost_axis))) || costs[0] || null;
  const differs = (key) => Math.max(...values(key)) - Math.min(...values(key)) > (COSTS[key].measured ? NOISE : ALIKE) * Math.abs(Math.min(...values(key)));
  return [chosen, ...costs].find((key) => key && differs(key)) || chosen;
}

/** The metrics that any curve has, in the comparison's order. */
function curveMetrics() {
  const present = new Set(data.curves.flatMap((curve) => Object.keys(curve.metrics)));
  return [...data.metrics.filter((name) => present.has(name)), ...[...present].filter((name) => !data.metrics.includes(name))];
}
