// What the reader has chosen. It outlives every redraw, so a live page keeps it.

let data = JSON.parse(document.getElementById("data").textContent);

const state = {
  hidden: new Set(),
  open: new Set(),
  sort: { column: null, down: false },
  metric: null,
  axis: "step",
  band: "range",
  part: "all",
  logarithm: false,
  quality: null,
  cost: null,
};

const SHOWN = 12; // arms drawn at first; more lines than that cannot be told apart

const COSTS = {
  parameters: { name: "Parameters", format: count },
  flops_per_sample: { name: "FLOPs per sample", format: count },
  step_seconds: { name: "Step time", format: time },
  samples_per_second: { name: "Throughput", unit: "samples/s", format: count, more: true },
  peak_memory: { name: "Peak memory", format: bytes },
  cache_bytes_per_token: { name: "Cache per token", format: bytes },
  decode_tokens_per_second: { name: "Decoding", unit: "tokens/s", format: count, more: true },
  seconds: { name: "Training time", format: time },
};

const AXES = {
  step: { name: "Step", format: count },
  samples: { name: "Samples seen", format: count },
  flops: { name: "Training FLOPs", format: count },
  seconds: { name: "Wall time", format: time },
};

/** The arms of which there is anything to draw: a refused one has no figure and no curve. */
const drawable = () => data.arms.filter((arm) => known(arm.mean) || data.curves.some((curve) => curve.arm === arm.name));

/** The arms that are switched on. */
const shown = () => drawable().filter((arm) => !state.hidden.has(arm.name));

/** The seeds, also those of which no arm has a result yet. */
const allSeeds = () => [...new Set([...data.seeds, ...data.cells.filter((cell) => cell.state !== "refused").map((cell) => cell.seed)])]
  .sort((a, b) => a - b);

/** An arm's name where room is scarce: of a grid's arm its levels, without the factors' names. */
function label(name, most = 28) {
  const brief = (arm) => Object.values(arm.levels || {}).join(" · ");
  const arm = data.arms.find((one) => one.name === name);
  const plainly = !arm || name.length <= most || Object.keys(arm.levels || {}).length < 2;
  if (plainly || data.arms.filter((one) => brief(one) === brief(arm)).length > 1) return cut(name, most);
  return cut(brief(arm), most);
}

/** "max" or "min". */
const direction = (metric) => (metric === data.metric ? data.direction : (data.directions || {})[metric] || "min");

/** "higher is better" or "lower is better". */
const wish = (metric) => `${direction(metric) === "max" ? "higher" : "lower"} is better`;

/** Arms sorted from the best mean; those without one last. */
function ranked(arms) {
  const turn = data.direction === "max" ? -1 : 1;
  return [...arms].sort((a, b) => (known(a.mean) ? turn * a.mean : Infinity) - (known(b.mean) ? turn * b.mean : Infinity));
}

/** The baseline and the best others, as many as can be told apart. */
function leaders() {
  const best = ranked(data.arms.filter((arm) => arm.name !== data.baseline)).slice(0, SHOWN - (data.baseline ? 1 : 0));
  return new Set([data.baseline, ...best.map((arm) => arm.name)]);
}

/** The choices that a fresh page opens with. */
function begin() {
  const names = curveMetrics();
  const twin = String(data.metric).replace(/^test\//, "val/");
  state.metric = [twin, data.metric, "val/loss", names[0]].find((name) => names.includes(name)) || null;
  state.quality = data.metric;
  const costs = Object.keys(COSTS).filter((key) => data.arms.some((arm) => known((arm.cost || {})[key])));
  // A cost in which no arm differs says nothing; then one in which some do.
  const differs = (key) => new Set(data.arms.map((arm) => (arm.cost || {})[key]).filter(known)).size > 1;
  const asked = costs.find((key) => key.startsWith(String(data.cost_axis)));
  state.cost = [asked, ...costs].find((key) => key && differs(key)) || asked || costs[0] || null;
  if (data.arms.length > SHOWN) {
    const keep = leaders();
    state.hidden = new Set(data.arms.map((arm) => arm.name).filter((name) => !keep.has(name)));
  }
}

/** The metrics that any curve has, in the comparison's order. */
function curveMetrics() {
  const found = new Set(data.curves.flatMap((curve) => Object.keys(curve.metrics)));
  return [...data.metrics.filter((name) => found.has(name)), ...[...found].filter((name) => !data.metrics.includes(name))];
}
