// Parallel coordinates: a line for each arm or setting through its options to its result, and what each option explains.

const AXIS = 118; // the least pixels from one axis to the next

/** The figure, below the table of importance. lines: [{ name, setting, value }] */
function parallelFigure(key, lines, metric, wanted, body) {
  const good = lines.filter((line) => known(line.value));
  const keys = [...new Set(good.flatMap((line) => Object.keys(line.setting)))].filter((name) => new Set(good.map((line) => word(line.setting[name]))).size > 1);
  if (keys.length < 2) return "";
  return h("div", {}, importanceTable() || "", h("h3", {}, "Parallel coordinates"), figure(key, {
    chart: h("div", { class: "scroll" }, parallelChart(good, keys, metric, wanted, body)),
    caption: `A line goes through the options of a setting to its ${metric}; the better the result, the stronger its colour. Drag along an axis to keep a part of it, press it to keep all.`,
    table: () => grid("Settings and results", ["name", ...keys, metric], good.map((line) => [line.name, ...keys.map((name) => word(line.setting[name])), short(line.value, 4)]), [keys.length + 1]),
  }));
}

/** The chart: an axis for each key, and the metric on the right. */
function parallelChart(lines, keys, metric, wanted, body) {
  const width = Math.max(body.clientWidth, AXIS * (keys.length + 1));
  const first = inOrder([...new Set(lines.map((line) => word(line.setting[keys[0]])))]).map((text) => labelWidth(cut(text, 14)));
  const [top, bottom, left, right] = [34, 292, Math.max(46, ...first) + 10, width - 62];
  const axes = [...keys, metric].map((name, k, { length }) => {
    const value = (line) => (k < keys.length ? line.setting[name] : line.value);
    const values = inOrder([...new Set(lines.map((line) => word(value(line))))]);
    const numeric = numbers(values);
    const logarithm = numeric && k < keys.length && wideRange(values.map(Number));
    const map = scale(numeric ? extent(values.map(Number), 0.04, logarithm) : [-0.5, values.length - 0.5], [bottom, top], logarithm);
    const ticks = !numeric ? values.map((text, index) => [index, cut(text, 14)]) : values.length < 8 && k < keys.length ? values.map((number) => [Number(number), short(Number(number))]) : labels(map, 5, { logarithm });
    return { name, x: left + (k / (length - 1)) * (right - left), map, ticks, at: (line) => map(numeric ? Number(value(line)) : values.indexOf(word(value(line)))) };
  });
  const sorted = [...lines].sort((a, b) => (wanted === "max" ? a.value - b.value : b.value - a.value)); // the best is drawn last
  const [name, description] = [fresh("title"), fresh("desc")];
  const root = s("svg", { class: "chart parallel", role: "img", "aria-labelledby": `${name} ${description}`, viewBox: `0 0 ${width} 310`, width, height: 310 },
    s("title", { id: name }, `${metric} of settings, in parallel coordinates`), s("desc", { id: description }, `${plural(lines.length, "setting")} of ${keys.join(", ")}; the best is ${sorted[sorted.length - 1].name}.`));
  const drawn = sorted.map((line, rank) => s("path", { class: "line", d: path(axes.map((axis) => [axis.x, axis.at(line)])),
    style: { stroke: `color-mix(in oklab, var(--link) ${Math.round(100 * (rank / Math.max(1, sorted.length - 1)) ** 2)}%, var(--line))` } }, s("title", {}, `${line.name}: ${setting(line.setting)}, ${short(line.value, 4)}`)));
  root.append(...drawn);
  const kept = new Map();
  for (const axis of axes) {
    root.append(s("line", { class: "base", x1: axis.x, x2: axis.x, y1: top, y2: bottom }), s("text", { class: "label", x: axis.x, y: 14, "text-anchor": "middle" }, cut(axis.name, 20)),
      ...axis.ticks.map(([value, text]) => s("text", { class: "direct", x: axis.x + (axis === axes[axes.length - 1] ? 8 : -8), y: axis.map(value) + 4, "text-anchor": axis === axes[axes.length - 1] ? "start" : "end" }, text)),
      ...brush(root, axis, top, bottom, (range) => {
        kept[range ? "set" : "delete"](axis, range);
        drawn.forEach((node, k) => node.classList.toggle("dim", [...kept].some(([other, [from, to]]) => other.at(sorted[k]) < from || other.at(sorted[k]) > to)));
      }));
  }
  return root;
}

/** The part of an axis over which the pointer is dragged; a press reports null, for all of it. */
function brush(root, { x }, top, bottom, report) {
  const mark = s("rect", { class: "drag", x: x - 9, width: 18, visibility: "hidden" });
  const strip = s("rect", { class: "strip", x: x - 14, width: 28, y: top - 8, height: bottom - top + 16, fill: "transparent" });
  const height = (event) => (event.clientY - root.getBoundingClientRect().top) * (root.viewBox.baseVal.height / root.getBoundingClientRect().height);
  let start = null;
  strip.addEventListener("pointerdown", (event) => { start = height(event); strip.setPointerCapture(event.pointerId); });
  strip.addEventListener("pointermove", (event) => {
    if (start === null) return;
    const [from, to] = [start, height(event)].sort((a, b) => a - b);
    const wide = to - from > 4;
    fill(mark, { y: from, height: to - from, visibility: wide ? "visible" : "hidden" }, []);
    report(wide ? [from, to] : null);
  });
  strip.addEventListener("pointerup", (event) => {
    if (Math.abs(height(event) - start) <= 4) { mark.setAttribute("visibility", "hidden"); report(null); }
    start = null;
  });
  return [mark, strip];
}

/** The share of the differences that each option explains alone; null where none is known. */
function importanceTable() {
  const rows = (data.importance || []).filter(({ shares }) => Object.keys(shares).length);
  const without = (data.importance || []).filter((row) => !rows.includes(row));
  if (![...rows, ...without].length) return null;
  const bar = (part) => (known(part) ? [s("svg", { class: "swatch", width: 80, height: 10, "aria-hidden": "true" }, s("rect", { width: 80 * part, height: 10, rx: 2, style: { fill: "var(--link)" } })), ` ${Math.round(100 * part)} %`] : NONE);
  const keys = [...new Set(rows.flatMap(({ shares }) => Object.keys(shares)))];
  const searched = rows.some(({ fit }) => known(fit));
  return h("div", { id: "importance" }, h("h3", {}, "Importance"),
    rows.length ? grid("The share of the differences that each option explains alone", ["option", ...rows.map(({ arm }) => arm || "explains alone")], keys.map((key) => [key, ...rows.map(({ shares }) => bar(shares[key]))])) : "",
    h("p", { class: "note" }, searched ? `Functional ANOVA of a random forest (Hutter et al. 2014), of ${rows.map(({ arm, count: n, fit }) => `${n} trials of ${arm} (R² ${short(fit, 2)} on trials left out)`).join(", ")}. `
      : rows.length ? `Shares of the sum of squares of ${plural(rows[0].count, rows[0].arm ? "setting" : "arm")}. ` : "", rows.length ? "What is missing to 100 % is noise, and the options acting together." : "",
    without.length ? ` None for ${without.map(({ arm }) => arm).join(", ")}: the settings do not predict the results of trials that were left out.` : ""));
}
