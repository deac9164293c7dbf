// The evidence of a sweep that stops when it is decided: e-values or p values and intervals after each seed.

/** Whether a boundary decides, by p values over all looks, in place of e-values. */
const byBoundary = () => Boolean(data.evidence) && data.evidence.by === "boundary";

/** The names of the evidence and of the interval. */
const evidenceNames = () => (byBoundary() ? { value: "1 / p", interval: "interval over all looks" } : { value: "e-value", interval: "confidence sequence" });

/** The style of a comparison: its arm's where it is named after one, else by its place. */
function lookOf(name, k) {
  if (data.arms.some((arm) => arm.name === name)) return look(name);
  return styleOf(k);
}

/** Whether a comparison is about an arm that the legend hides. */
const aboutShown = (one) => !one.arms.every((arm) => arm === data.baseline || state.hidden.has(arm));

/** Draw why the sweep stopped, the e-values, the differences, and the clauses. */
function drawEvidence(body) {
  const all = data.evidence.looks.map((one, k) => ({ ...one, k }));
  const looks = all.filter((one) => one.seeds.length && aboutShown(one));
  body.append(h("p", { class: "lead" }, data.evidence.words));
  const side = body.clientWidth > 760;
  const width = Math.max(270, side ? Math.floor((body.clientWidth - 30) / 2) : body.clientWidth);
  body.append(figure("evidence", {
    chart: looks.length ? h("div", {}, keysOf(looks), h("div", { class: "panels" }, evidenceChart(looks, width), gapChart(looks, width)))
      : h("p", { class: "empty" }, "None of the comparisons shown has values yet."),
    caption: `Left: the evidence for a difference after each seed, as ${byBoundary() ? "1 / p of a look" : "an e-value"}; at the dashed line it decides. The interval at the margin decides about ~ and >=, and below it contradicts >. It may be looked at after every seed: ` +
      `without a difference, it ever reaches 1/a in at most a share a of all sweeps. Right: the mean difference (line) and its ${Math.round(100 * (1 - data.evidence.alpha))} % ` +
      `${evidenceNames().interval} (thin lines), which covers the true mean at all seeds at once. A ring marks the seed of the decision` +
      `${data.margin ? `; dotted lines are the margin, ${short(data.margin)}` : ""}.`,
    table: () => grid("Evidence after each seed", ["comparison", "seeds", evidenceNames().value, "mean difference", "from", "to", "decided"],
      looks.flatMap((one) => one.log10_e.map((value, n) => [one.name, String(n + 1), short(10 ** value), short(one.mean[n]), short(one.low[n]), short(one.high[n]),
        one.at !== null && n + 1 >= one.at ? one.outcome : ""])), [1, 2, 3, 4, 5]),
  }));
}

/** The comparisons with their lines, and what became of each. */
function keysOf(looks) {
  return h("p", { class: "keys" }, looks.map((one) => h("span", {}, swatch(one.name, lookOf(one.name, one.k)),
    `${one.name}: ${one.outcome || "undecided"}${one.at === null ? "" : ` at ${one.at} seeds`}`)));
}

/** The seeds on the x axis, from the first to the last. */
function seedAxis(looks) {
  const most = Math.max(...looks.map((one) => one.seeds.length));
  return { domain: [0.7, most + 0.3], label: "seeds", whole: true, ticks: most <= 10 ? Array.from({ length: most }, (_, n) => [n + 1, String(n + 1)]) : undefined };
}

/** The evidence on a logarithmic scale, with the line at which it decides. */
function evidenceChart(looks, width) {
  const goals = [...new Set(looks.map((one) => one.threshold))];
  const domain = extent([0, ...goals, ...looks.flatMap((one) => one.log10_e)], 0.06);
  const ticks = rounds(domain, 6, true).map((value) => [value, value >= 0 && value <= 4 ? String(10 ** value) : `10^${signed(String(value))}`]);
  const chart = frame({ width, height: 280, title: "Evidence for a difference after each seed", x: seedAxis(looks), y: { domain, label: evidenceNames().value, ticks }, margin: { top: 30 },
    desc: looks.map((one) => `${one.name}: ${evidenceNames().value} = ${short(10 ** Math.max(...one.log10_e))} after ${plural(one.seeds.length, "seed")}, ${one.outcome || "undecided"}.`).join(" ") });
  for (const goal of goals) {
    chart.plot.append(s("line", { class: "goal", x1: chart.left, x2: chart.right, y1: chart.y(goal), y2: chart.y(goal), "stroke-dasharray": "6 4", style: { stroke: "var(--baseline)" } }));
  }
  for (const one of looks) drawLook(chart, one, one.log10_e);
  return chart.root;
}

/** The mean difference and its interval, with zero and the margin. */
function gapChart(looks, width) {
  const ends = looks.flatMap((one) => [...one.low, ...one.high]).filter(known);
  const domain = extent([0, ...ends, ...(data.margin ? [-data.margin, data.margin] : []), ...looks.flatMap((one) => one.mean)], 0.06);
  const chart = frame({ width, height: 280, title: `Mean difference after each seed, with its ${evidenceNames().interval}`, x: seedAxis(looks), margin: { top: 30 },
    y: { domain, label: `difference in ${data.metric}` }, desc: looks.map((one) => `${one.name}: ${short(one.mean[one.mean.length - 1])}, ` +
      `${short(one.low[one.low.length - 1])} to ${short(one.high[one.high.length - 1])}.`).join(" ") });
  for (const [value, dash] of [[0, null], ...(data.margin ? [[-data.margin, "2 4"], [data.margin, "2 4"]] : [])]) {
    chart.plot.append(s("line", { class: "goal", x1: chart.left, x2: chart.right, y1: chart.y(value), y2: chart.y(value), "stroke-dasharray": dash, style: { stroke: "var(--baseline)" } }));
  }
  for (const one of looks) {
    const { stroke } = lookOf(one.name, one.k);
    for (const pairs of [one.low, one.high]) {
      const points = pairs.map((value, n) => [n + 1, value]).filter(([, value]) => known(value)).map(([n, value]) => [chart.x(n), chart.y(value)]);
      chart.plot.append(s("path", { class: "line", d: path(points), style: { stroke, "stroke-width": "1", opacity: "0.6" } }));
    }
    drawLook(chart, one, one.mean);
  }
  return chart.root;
}

/** The line of a comparison, its markers, and a ring at the seed of the decision. */
function drawLook(chart, one, values) {
  const style = lookOf(one.name, one.k);
  const { stroke, dash } = style;
  const points = values.map((value, n) => [chart.x(n + 1), chart.y(value)]);
  chart.plot.append(s("path", { class: "line", d: path(points), "stroke-dasharray": dash, style: { stroke } }),
    ...points.map(([x, y]) => mark(style, x, y, 3.5)));
  if (one.at !== null && points[one.at - 1]) {
    const [cx, cy] = points[one.at - 1];
    chart.plot.append(s("circle", { class: "ring", cx, cy, r: 9, style: { stroke } }));
  }
}
