// Figures of a model of real values: errors of every arm, and predicted against true values of one.

/** The errors and the chart. */
function valueTables(own, width) {
  const errors = grid("Errors on the test samples", ["arm", "RMSE", "MAE", "mean error"],
    data.samples.arms.map(({ arm, rmse, mae, bias }) => [arm, short(rmse), short(mae), known(bias) && bias > 0 ? `+${short(bias)}` : short(bias)]), [1, 2, 3]);
  return h("div", { class: "halves" }, h("section", {}, h("h3", {}, "Predicted and true values"), agreement(own, Math.min(560, width))),
    h("section", {}, h("h3", {}, "Errors"), errors, h("p", { class: "note" }, "In the units of the data; means over runs.")));
}

/** Predicted against true values; on the diagonal they are equal. */
function agreement({ arm, dots }, width) {
  const domain = extent(dots.flat(), 0.04);
  if (!domain) return h("p", { class: "empty" }, "No sample has a target.");
  const chart = frame({ width: Math.max(260, width), height: 340, margin: { top: 30 }, title: `Predicted and true values of ${arm}`, desc: `${plural(dots.length, "value")}; the predictions are means over runs.`,
    x: { domain, label: "true value" }, y: { domain, label: "predicted" } });
  chart.plot.append(s("line", { class: "rule", x1: chart.x(domain[0]), y1: chart.y(domain[0]), x2: chart.x(domain[1]), y2: chart.y(domain[1]) }),
    ...dots.map(([x, y]) => marker(arm, chart.x(x), chart.y(y), 2.6)));
  return chart.root;
}
