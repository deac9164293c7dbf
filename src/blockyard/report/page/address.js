// The reader's choices in the page's address: #curves&metric=val%2Floss&hide=post_norm. A copied address opens the same view.

// Key in the address -> [the choice, how it is read]; values that are the initial ones are left out.
const KEPT = {
  metric: ["metric", String], axis: ["axis", String], band: ["band", String], part: ["part", String], smooth: ["smooth", Number],
  log: ["logarithm", (text) => text === "true"], cost: ["cost", String], quality: ["quality", String], arm: ["sampleArm", String], cell: ["cell", String],
  across: ["across", String], lines: ["lines", String],
};
let initial = null;

/** Take the choices from the address; those that it does not name are the initial ones, and so are values that do not exist. */
function fromAddress() {
  initial = initial || { ...state, hidden: new Set(state.hidden) };
  const given = new URLSearchParams(location.hash.replace(/^#[^&]*&?/, ""));
  for (const [key, [name, read]] of Object.entries(KEPT)) state[name] = given.has(key) ? read(given.get(key)) : initial[name];
  const valid = { across: state.across in factors(), lines: state.lines in factors(), metric: curveMetrics().includes(state.metric), axis: state.axis in AXES, band: state.band in BANDS, part: state.part in PARTS,
    smooth: state.smooth in SMOOTHINGS, cost: data.arms.some((arm) => known((arm.cost || {})[state.cost])) && state.cost in COSTS };
  for (const [name, fine] of Object.entries(valid)) if (!fine) state[name] = initial[name];
  const zoom = (given.get("zoom") || "").split("~").map(Number);
  state.zoom = zoom.length === 2 && zoom.every(Number.isFinite) && zoom[0] < zoom[1] ? zoom : null;
  const sort = given.get("sort");
  state.sort = sort ? { column: sort.replace(/^-/, ""), down: sort.startsWith("-") } : initial.sort;
  state.hidden = given.has("hide") ? new Set(given.getAll("hide").filter((name) => data.arms.some((arm) => arm.name === name))) : new Set(initial.hidden);
  state.open = new Set(given.getAll("open"));
}

/** The section that the address points to. */
const section = () => location.hash.slice(1).split("&")[0];

/** Write the choices into the address, without an entry in the browser's history. */
function toAddress(place = section()) {
  if (!initial) return;
  const next = new URLSearchParams();
  for (const [key, [name]] of Object.entries(KEPT)) if (state[name] !== null && state[name] !== initial[name]) next.set(key, String(state[name]));
  if (state.zoom) next.set("zoom", state.zoom.map((x) => Number(x.toPrecision(6))).join("~"));
  if (state.sort.column) next.set("sort", `${state.sort.down ? "-" : ""}${state.sort.column}`);
  if ([...state.hidden].sort().join("\n") !== [...initial.hidden].sort().join("\n")) {
    for (const name of state.hidden) next.append("hide", name);
    if (!state.hidden.size) next.set("hide", "");
  }
  for (const key of state.open) next.append("open", key);
  const text = next.toString();
  const hash = text ? `#${place}&${text}` : place ? `#${place}` : "";
  if (hash === location.hash) return;
  history.replaceState(null, "", hash || location.href.replace(/#.*$/, ""));
}

/** A link of the menu goes to its section and keeps the choices. */
function goTo(event, id) {
  event.preventDefault();
  unfold(id);
  toAddress(id);
  document.getElementById(id).scrollIntoView();
}
