// Results by seed: each arm beside the baseline, with a line for each common seed.

const MANY_SEEDS = 12; // whose points would cover each other in their usual size
const PANEL = { least: 150, most: 260, height: 190, gap: 18 };

/** The width of a panel: as many as there are fill the section, within limits. */
const panelWidth = (body, n) => Math.max(PANEL.least, Math.min(PANEL.most, Math.floor((body.clientWidth + PANEL.gap) / n - PANEL.gap)));

/** Draw one panel for each arm; without a baseline, the seeds of every arm as points. */
function drawPairs(body) {
  const base = data.arms.find((arm) => arm.name === data.baseline);
  const arms = shown().filter((arm) => arm !== baseOf(arm) && Object.keys(arm.values).length);
  const values = [...(base ? arms.flatMap((arm) => Object.values(baseOf(arm).values)) : []), ...arms.flatMap((arm) => Object.values(arm.values))].filter(known);
  const digits = decimals(values);
  const wide = panelWidth(body, arms.length);
  const chart = !values.length || !arms.length ? h("p", { class: "empty" }, "None of the arms shown has values.")
    : h("div", { class: "panels narrow" }, arms.map((arm) => (base ? slope(arm, baseOf(arm), extent(values, 0.08), wide) : strip(arm, extent(values, 0.08), wide))));
  const seeds = data.seeds.map(String);
  body.append(figure("pairs", {
    chart,
    caption: base ? `${data.metric} for each seed: baseline (hollow) and arm (filled). A dashed line is a seed for which the arm is not better. Bars are means over common seeds.`
      : `${data.metric} for each seed. Bars are means.`,
    table: () => grid(`${data.metric} by seed`, ["arm", ...seeds.map((seed) => `seed ${seed}`)],
      [...(base ? [base] : []), ...arms].map((arm) => [arm.name, ...seeds.map((seed) => fixed(arm.values[seed], digits))]), seeds.map((_, k) => k + 1)),
  }));
}

/** The frame of a small panel with the arm's name above. */
function panel(arm, domain, ticks, desc, width) {
  const chart = frame({ width, height: PANEL.height, margin: { left: 44, right: 8, bottom: 24, top: 10 },
    title: `${data.metric} of ${arm.name} by seed`, desc, x: { domain: [0, 1], ticks }, y: { domain } });
  const box = h("div", { class: "panel", style: { width: `${width}px` } }, h("p", { class: "name", title: arm.name }, breakable(panelName(arm.name))), chart.root);
  return { chart, box };
}

/** The short name of an arm of a grid; another name is cut only where it is very long. */
const panelName = (name) => (label(name).includes("…") ? label(name, 64) : label(name));

/** Baseline on the left, arm on the right, a line for each common seed. */
function slope(arm, base, domain, width) {
  const pairs = Object.keys(arm.values).filter((seed) => known(base.values[seed]) && known(arm.values[seed]))
    .map((seed) => [base.values[seed], arm.values[seed]]);
  const better = pairs.filter(([a, b]) => (data.direction === "max" ? b > a : b < a)).length;
  const text = pairs.length ? `${better} of ${pairs.length} better` : "no common seed";
  const { chart, box } = panel(arm, domain, [[0.2, "base"], [0.8, "arm"]], `${arm.name} against ${base.name}: ${text}.`, width);
  const { stroke } = look(arm.name);
  const [left, right] = [chart.x(0.2), chart.x(0.8)];
  const [radius, opacity] = pairs.length > MANY_SEEDS ? [2.3, "0.45"] : [3.5, "0.75"];
  for (const [a, b] of pairs) {
    const up = data.direction === "max" ? b > a : b < a;
    chart.plot.append(s("line", { class: "pair", x1: left, x2: right, y1: chart.y(a), y2: chart.y(b), "stroke-dasharray": up ? null : "3 3", style: { stroke, opacity } }));
  }
  for (const [a, b] of pairs) chart.plot.append(marker(base.name, left, chart.y(a), radius, true), marker(arm.name, right, chart.y(b), radius));
  for (const [x, k] of [[left - 14, 0], [right + 6, 1]]) {
    const mean = pairs.reduce((sum, pair) => sum + pair[k], 0) / pairs.length;
    if (known(mean)) chart.plot.append(s("line", { class: "mean", x1: x, x2: x + 8, y1: chart.y(mean), y2: chart.y(mean) }));
  }
  box.append(h("p", { class: "note" }, text));
  return box;
}

/** The seeds of one arm as points. */
function strip(arm, domain, width) {
  const values = Object.values(arm.values).filter(known);
  const { chart, box } = panel(arm, domain, [], `${plural(values.length, "seed")}, mean ${short(arm.mean)}.`, width);
  values.forEach((value, k) => chart.plot.append(marker(arm.name, chart.x(0.5 + 0.12 * ((k % 5) - 2)), chart.y(value), 3.5)));
  if (known(arm.mean)) chart.plot.append(s("line", { class: "mean", x1: chart.x(0.1), x2: chart.x(0.9), y1: chart.y(arm.mean), y2: chart.y(arm.mean) }));
  return box;
}
