// Simple baselines: rules and simple models of the same data, as a table and as a line in the charts of their metric.

/** The baselines with a value of a metric, the best first; a metric on validation has those on test. */
function baselinesOf(metric) {
  const name = metric ? metric.replace(/^val\//, "test/") : "";
  const sign = direction(name) === "max" || direction(metric) === "max" ? -1 : 1;
  return (data.baselines || []).map((one) => ({ ...one, value: (one.values || {})[name] })).filter((one) => known(one.value))
    .sort((a, b) => sign * (a.value - b.value));
}

/** "tf_idf", or "tf_idf (small, large)" where arms have baselines of their own. */
const baselineName = (one) => (one.arms ? `${one.name} (${one.arms.join(", ")})` : one.name);

/** The value of the best baseline of a metric, in a list to extend the range of an axis; empty without one. */
const baselineReach = (metric) => baselinesOf(metric).slice(0, 1).map((one) => one.value);

/** Draw the best baseline of a metric as a dotted line across a chart, with its name; false where it has no place there. */
function baselineLine(chart, metric) {
  const [best] = baselinesOf(metric);
  if (!best) return false;
  const y = chart.y(best.value);
  if (!(y >= chart.top - 1 && y <= chart.bottom + 1)) return false;
  const text = `${baselineName(best)} ${short(best.value)}${metric.startsWith("val/") ? " on test" : ""}`;
  chart.plot.append(s("g", { class: "simple" },
    s("line", { x1: chart.left, x2: chart.right, y1: y, y2: y, "stroke-dasharray": "2 4" }),
    s("text", { class: "direct", x: chart.left + 6, y: y - 5 < chart.top + 8 ? y + 14 : y - 5 }, text)));
  return true;
}

/** A sentence for the caption of a chart with the line of a baseline. */
function baselineNote(metric) {
  const [best] = baselinesOf(metric);
  return best ? ` The dotted line is the best simple baseline, ${baselineName(best)}${metric.startsWith("val/") ? ", on test" : ""}.` : "";
}

/** The figures from papers and other tools; null where the question has none. */
function externalTable() {
  const rows = data.external || [];
  if (!rows.length) return null;
  const digits = decimals(data.arms.map((arm) => arm.mean).concat(rows.map((row) => row.value)), rows.flatMap((row) => row.arms.map((gap) => gap.interval)));
  const cells = rows.flatMap((row) => row.arms.map((gap, k) => [k ? "" : row.name, k ? "" : fixed(row.value, digits), gap.arm,
    [change(gap.mean, digits), gap.interval ? h("small", {}, ` ${interval(gap.interval, digits)}`) : null], chance(gap.holm_p), chip(gap.verdict),
    k ? "" : `${row.source} (${row.n ? `${plural(row.n, "run")}${known(row.sd) ? `, sd ${short(row.sd)}` : ""}` : "runs unknown, taken as exact"})`]));
  return h("div", { id: "external" }, h("h3", {}, "Figures from elsewhere"),
    h("p", { class: "note" }, "They share no seeds with the runs, so nothing is paired, and may differ in data, code and budget."),
    grid(`Arms against figures from elsewhere, ${data.metric}`, ["figure", data.metric, "arm", "difference", "p (Holm)", "verdict", "source"], cells, [1, 3, 4]));
}

/** The table of all baselines; null where there are none. */
function baselineTable() {
  const rows = data.baselines || [];
  if (!rows.length) return null;
  const digits = Math.max(3, decimals(data.arms.flatMap((arm) => [arm.mean, ...(arm.interval || [])])));
  const note = (one) => {
    if (one.missing) return `no value: ${one.missing}`;
    const others = Object.entries(one.values || {}).filter(([name]) => name !== data.metric).map(([name, value]) => `${name} ${short(value)}`);
    return [...others, ...(one.note ? [one.note] : [])].join("; ");
  };
  return h("div", { id: "simple-baselines" }, h("h3", {}, "Simple baselines"),
    grid(`Rules and simple models of the same data: ${data.metric}`, ["baseline", data.metric, "also"],
      rows.map((one) => [baselineName(one), known(one.value) ? fixed(one.value, digits) : NONE, note(one)]), [1]));
}
