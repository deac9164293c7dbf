// What an arm changes, below its row in the table.

/** The details of one arm. */
function detail(arm) {
  const changes = arm.changes || {};
  const config = Object.entries(changes.config || {});
  const modules = moduleRows(changes.modules || {});
  return h("div", { class: "inside" },
    arm.words ? h("p", { class: "lead" }, arm.words) : null,
    h("div", { class: "parts" },
      part("Setup", setup(arm)),
      part("Config", arm === baseOf(arm) ? h("p", { class: "note" }, "This is the baseline.")
        : config.length ? grid(`Config of ${arm.name}`, ["key", "baseline", "arm"],
          config.map(([key, [old, fresh]]) => [h("code", {}, key), h("code", {}, word(old)), h("code", {}, word(fresh))]))
          : h("p", { class: "note" }, "No option differs from the baseline.")),
      modules.length ? part("Modules", grid(`Modules of ${arm.name}`, ["path", "baseline", "arm"], modules)) : null,
      part("Size", size(changes.parameters)),
      part("By seed", grid(`${data.metric} of ${arm.name} by seed`, ["seed", data.metric, ...(arm.difference ? ["difference"] : [])],
        bySeed(arm), [1, 2])),
      others(arm)));
}

/** A part with a heading. */
const part = (name, ...content) => h("section", {}, h("h3", {}, name), content);

/** Overrides, levels, and the tuned setting with the number of settings tried. */
function setup(arm) {
  const lines = [
    arm.overrides && arm.overrides.length ? ["overrides", arm.overrides.map((one) => h("code", { class: "tag" }, one))] : null,
    arm.levels && Object.keys(arm.levels).length ? ["levels", h("code", {}, setting(arm.levels))] : null,
    arm.budget ? ["tuned", [h("code", {}, setting(arm.budget.chosen) || NONE), ` chosen of ${plural(arm.budget.settings, "setting")}, on validation`]]
      : null,
  ].filter(Boolean);
  if (!lines.length) return h("p", { class: "note" }, "None beyond the base config.");
  return h("dl", { class: "pairs" }, lines.map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]));
}

/** Rows of the modules that change, with a * for the numbers of layers: blocks.*.norm_1. */
const moduleRows = (modules) => Object.entries(modules).map(([where, classes]) =>
  [where, ...classes.map((name) => (name === null ? "absent" : word(name)))].map((text) => h("code", {}, text)));

/** The number of parameters and its difference to the baseline's. */
function size(pair) {
  if (!pair || !known(pair[1])) return h("p", { class: "note" }, "The number of parameters is unknown.");
  const [old, fresh] = pair;
  const same = !known(old) || old === fresh;
  return h("p", {}, `${fresh.toLocaleString("en")} parameters`, same ? null
    : h("small", {}, ` ${change(fresh - old, 0).replace(/\B(?=(\d{3})+$)/g, ",")} against the baseline's ${old.toLocaleString("en")}`));
}

/** Each seed's value and its difference to the baseline's value for that seed. */
function bySeed(arm) {
  const base = (baseOf(arm) || {}).values || {};
  const digits = decimals(data.arms.flatMap((other) => Object.values(other.values)));
  return data.seeds.map((seed) => {
    const value = arm.values[seed];
    const gap = known(value) && known(base[seed]) ? value - base[seed] : null;
    return [String(seed), fixed(value, digits), ...(arm.difference ? [change(gap, digits)] : [])];
  });
}

/** The other metrics of an arm. */
function others(arm) {
  const rows = Object.entries(arm.other || {}).filter(([name]) => name !== data.metric).map(([name, { mean, interval: pair, n }]) => {
    const digits = decimals(data.arms.map((other) => ((other.other || {})[name] || {}).mean));
    return [name, fixed(mean, digits), interval(pair, digits) || NONE, String(n)];
  });
  return rows.length ? part("Other metrics", grid(`Other metrics of ${arm.name}`, ["metric", "mean", "95 % interval", "n"], rows, [1, 2, 3])) : null;
}
