// Tables of a classifier: confusion matrix, scores of each class, calibration.

/** A number of samples, exact: 1,135, or 1,134.6 where it is a mean over runs. */
const samples = (n) => n.toLocaleString("en", { maximumFractionDigits: 1 });

/** Confusions, scores and calibration of an arm, side by side where there is room. */
function classTables(own, width) {
  return h("div", { class: "halves" },
    h("section", {}, h("h3", {}, "Confusion"), own.confusion ? matrix(own) : confusions(own)),
    h("section", {}, h("h3", {}, "Scores by class"), scoreTable(own)),
    h("section", { class: "whole" }, h("h3", {}, "Calibration"), reliability(own, Math.min(460, width))));
}

/** The confusion matrix; the shade of a cell is its share of the row, the number a mean count of a run. */
function matrix({ confusion, runs }) {
  const names = confusion.map((_, index) => className(index));
  const cell = (row, i, j) => {
    const total = row.reduce((sum, value) => sum + value, 0);
    const part = total ? row[j] / total : 0;
    const mean = row[j] / runs;
    return h("td", { class: i === j ? "hit" : null, title: `${names[i]} predicted as ${names[j]}: ${samples(mean)} of ${samples(total / runs)} (${(100 * part).toFixed(1)} %)`,
      style: { "--share": `${Math.round(100 * Math.sqrt(part) * 0.6)}%` } }, row[j] ? (mean < 10 && runs > 1 ? fixed(mean, 1) : String(Math.round(mean))) : "");
  };
  return [h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Confusion matrix" },
    h("table", { class: "confusion" }, h("caption", {}, "Confusion matrix: rows are the true classes, columns the predicted ones"),
      h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "true \\ predicted"), names.map((name) => h("th", { scope: "col", title: name }, h("span", {}, cut(name, 12)))))),
      h("tbody", {}, confusion.map((row, i) => h("tr", {}, h("th", { scope: "row", title: names[i] }, cut(names[i], 18)), row.map((_, j) => cell(row, i, j))))))),
  h("p", { class: "note" }, `Rows are the true classes. A number is a count${runs > 1 ? ", the mean over runs" : ""}; the shade is its share of the row.`)];
}

/** The most frequent confusions, for data with many classes. */
const confusions = ({ confused, runs }) => grid("Most frequent confusions", ["true", "predicted", "times"],
  confused.map(([i, j, n]) => [className(i), className(j), samples(n / runs)]), [2]);

/** Precision, recall, F1 and support of each class, and the F1 of the baseline beside it. */
function scoreTable(own) {
  const base = data.samples.arms.find(({ arm }) => arm === data.baseline);
  const other = base && base !== own ? new Map(base.scores.map(([index, , , f1]) => [index, f1])) : null;
  const rows = own.scores.map(([index, precision, recall, f1, support]) => [className(index), fixed(precision, 3), fixed(recall, 3), fixed(f1, 3),
    ...(other ? [known(f1) && known(other.get(index)) ? change(f1 - other.get(index), 3) : NONE] : []), samples(support)]);
  const head = ["class", "precision", "recall", "F1", ...(other ? ["against baseline"] : []), "support"];
  return [h("div", { class: "tall" }, grid(`Scores of ${own.arm} by class`, head, rows, head.map((_, k) => k).slice(1))),
    h("p", { class: "note" }, `Macro F1 ${fixed(own.macro_f1, 4)}. Means over runs; a dash is 0 / 0, such as the precision of a class that is never predicted.`)];
}

/** The reliability diagram of all shown arms, and their expected calibration errors. */
function reliability(own, width) {
  const arms = data.samples.arms.filter(({ arm }) => arm === own.arm || !state.hidden.has(arm));
  const chart = frame({ width: Math.max(260, width), height: 300, margin: { right: 14, top: 30 }, title: "Reliability diagram",
    desc: arms.map(({ arm, calibration }) => `${arm}: expected calibration error ${fixed(calibration.ece, 3)}.`).join(" "),
    x: { domain: [0, 1], label: "probability of the predicted class" }, y: { domain: [0, 1], label: "share that is right" } });
  chart.plot.append(s("line", { class: "rule", x1: chart.x(0), y1: chart.y(0), x2: chart.x(1), y2: chart.y(1) }));
  for (const { arm, calibration: { count: n, confidence, accuracy } } of arms) {
    const dots = n.map((_, k) => [confidence[k], accuracy[k], n[k]]).filter(([x, y]) => known(x) && known(y));
    const { stroke, dash } = look(arm);
    chart.plot.append(s("path", { class: arm === own.arm ? "line" : "line faint", ...tag(arm), d: path(dots.map(([x, y]) => [chart.x(x), chart.y(y)])), "stroke-dasharray": dash, style: { stroke } }));
    if (arm === own.arm) for (const [x, y] of dots) chart.plot.append(marker(arm, chart.x(x), chart.y(y), 4));
  }
  const bins = own.calibration.count.map((n, k) => [`${fixed(k / 15, 2)} to ${fixed((k + 1) / 15, 2)}`, n.toLocaleString("en"), fixed(own.calibration.confidence[k], 3), fixed(own.calibration.accuracy[k], 3)]);
  return h("div", { class: "halves" }, h("div", {}, chart.root, armKeys(arms.map(({ arm }) => arm), h("span", {}, "dotted: probabilities are exact"))), h("div", {}, grid("Expected calibration error", ["arm", "ECE", "by run"], data.samples.arms.map(({ arm, calibration: { ece, ece_runs: each } }) =>
    [arm, fixed(ece, 4), each.length < 6 ? each.map((value) => fixed(value, 4)).join(" ") : `${fixed(Math.min(...each), 4)} to ${fixed(Math.max(...each), 4)}, ${each.length} runs`]), [1]),
  h("p", { class: "note" }, "ECE (Guo et al. 2017, equation 3): the mean gap between probability and accuracy over 15 bins, weighted by their samples; the mean over runs. On the dotted line, probabilities are exact; below it they are too high."),
  disclosure("data:reliability", "Show data", () => grid(`Bins of ${own.arm}, all runs together`, ["probability", "samples", "mean probability", "accuracy"], bins, [1, 2, 3]))));
}
