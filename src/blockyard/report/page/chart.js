// What all charts share: a frame with title and description for screen readers, axes, grid, a tooltip.

/**
 * Create an SVG with axes. x, y: {domain, label, format, logarithm, whole: no fractions, ticks: [[value, text]] | undefined}.
 * Labels of the x axis that would overlap the one before are left out; their ticks stay.
 * Returns {root, plot, x, y, left, right, top, bottom}; draw into `plot`.
 */
function frame({ width, height, title, desc, x, y, margin = {} }) {
  const edge = { top: 12, right: 16, bottom: 44, left: 58, ...margin };
  const [left, right, top, bottom] = [edge.left, width - edge.right, edge.top, height - edge.bottom];
  const across = scale(x.domain, [left, right], x.logarithm);
  const up = scale(y.domain, [bottom, top], y.logarithm);
  const [name, description] = [fresh("title"), fresh("desc")];
  const plot = s("g", {});
  const root = s("svg", { class: "chart", role: "img", "aria-labelledby": `${name} ${description}`, viewBox: `0 0 ${width} ${height}`,
    width, height }, s("title", { id: name }, title), s("desc", { id: description }, desc));
  const lines = s("g", { class: "axes", "aria-hidden": "true" });
  const upward = y.ticks || labels(up, Math.max(3, Math.round((bottom - top) / 48)), y);
  for (const [value, text] of upward) {
    const at = up(value);
    lines.append(s("line", { class: "grid", x1: left, x2: right, y1: at, y2: at }),
      s("text", { x: left - 8, y: at + 4, "text-anchor": "end" }, text));
  }
  const sideways = x.ticks || labels(across, Math.max(2, Math.round((right - left) / 95)), x);
  let taken = -Infinity;
  for (const [value, text] of [...sideways].sort(([a], [b]) => a - b)) {
    const [at, half] = [across(value), labelWidth(text) / 2];
    lines.append(s("line", { class: "tick", x1: at, x2: at, y1: bottom, y2: bottom + 5 }));
    if (at - half < taken + 6) continue;
    taken = at + half;
    lines.append(s("text", { x: at, y: bottom + 19, "text-anchor": "middle" }, text));
  }
  lines.append(s("line", { class: "base", x1: left, x2: right, y1: bottom, y2: bottom }));
  if (y.label) lines.append(s("text", { class: "label", x: 2, y: 12 }, y.label));
  if (x.label) lines.append(s("text", { class: "label", x: (left + right) / 2, y: height - 6, "text-anchor": "middle" }, x.label));
  root.append(lines, plot);
  return { root, plot, x: across, y: up, left, right, top, bottom };
}

/** The ticks of a scale with their labels. */
function labels(map, n, { format, logarithm, whole }) {
  const ticks = map.ticks(n, whole);
  const digits = ticks.length > 1 && !logarithm ? Math.max(0, Math.min(8, -Math.floor(Math.log10(ticks[1] - ticks[0]) + 1e-9))) : null;
  const fine = digits !== null && ticks.some((value) => Number(value.toFixed(digits)) !== value) ? digits + 1 : digits;
  if (format) {
    // As many digits as tell the ticks apart: 200.1 k, 200.2 k.
    const texts = [3, 4, 5, 6, 7].map((precision) => ticks.map((value) => format(value, precision)));
    const clear = texts.find((some) => new Set(some).size === some.length) || texts[0];
    return ticks.map((value, k) => [value, clear[k]]);
  }
  const texts = ticks.map((value) => (fine === null ? short(value) : fixed(value, Math.min(fine, 8))));
  if (new Set(texts).size === texts.length) return ticks.map((value, k) => [value, texts[k]]);
  const tiny = Math.max(...ticks.map(Math.abs)) < 1e-3;
  return ticks.map((value) => [value, tiny ? short(value, 4) : fixed(value, 12)]);
}

/** The width of a label in the font of the charts. */
function labelWidth(text) {
  const context = labelWidth.context || (labelWidth.context = document.createElement("canvas").getContext("2d"));
  context.font = `12px ${getComputedStyle(document.body).fontFamily}`;
  return context.measureText(text).width + 2;
}

/** The arms of a chart with their lines and markers, below it. */
const armKeys = (names, ...more) => h("p", { class: "keys" }, names.map((name) => h("span", { "data-arm": tag(name)["data-arm"] }, swatch(name), label(name))), more);

/** The SVG path through [x, y] pairs. */
const path = (points) => points.map(([x, y], index) => `${index ? "L" : "M"}${x.toFixed(1)},${y.toFixed(1)}`).join("");

/** A figure: controls, the chart, its caption, and its data as a table. */
function figure(key, { controls, chart, caption, table }) {
  const box = h("figure", { class: "figure" },
    controls && controls.length ? h("div", { class: "controls" }, controls) : null,
    chart,
    caption ? h("figcaption", {}, caption) : null,
    table ? disclosure(`data:${key}`, "Show data", table) : null);
  const charts = () => [...box.querySelectorAll("svg.chart")];
  if (charts().length) box.append(saving(key, charts, table ? () => table().querySelector("table") : null));
  return box;
}

/** Show the tooltip beside the pointer; its rows are [arm or null, text]. */
function tip(event, head, rows) {
  const box = document.getElementById("tip");
  box.replaceChildren(h("strong", {}, head),
    ...rows.map(([name, text]) => h("span", {}, name === null ? null : swatch(name), text)));
  box.hidden = false;
  const { width, height } = box.getBoundingClientRect();
  const beside = event.clientX + 16 + width > innerWidth ? event.clientX - width - 16 : event.clientX + 16;
  box.style.left = `${Math.max(4, beside)}px`;
  box.style.top = `${Math.max(4, Math.min(innerHeight - height - 4, event.clientY - height / 2))}px`;
}

/** Hide the tooltip. */
const untip = () => { document.getElementById("tip").hidden = true; };

/**
 * Put a transparent rectangle over the plot that reports the pointer's position in the plot's pixels.
 * zoom: called with the two ends, on the x axis, of a range over which the mouse was dragged.
 */
function listen(chart, move, leave, zoom) {
  // The empty title keeps browsers from showing the chart's title beside the tooltip.
  const sheet = s("rect", { x: chart.left, y: chart.top, width: Math.max(0, chart.right - chart.left),
    height: Math.max(0, chart.bottom - chart.top), fill: "transparent" }, s("title", {}));
  const place = (event) => {
    const box = chart.root.getBoundingClientRect();
    const factor = chart.root.viewBox.baseVal.width / box.width;
    return [(event.clientX - box.left) * factor, (event.clientY - box.top) * factor];
  };
  sheet.addEventListener("pointermove", (event) => move(event, ...place(event)));
  if (zoom) drag(chart, sheet, place, zoom);
  sheet.addEventListener("pointerleave", () => { untip(); leave(); });
  chart.root.append(sheet);
}

/** Mark the range over which the mouse is dragged, and report it; ranges of a few pixels are clicks. */
function drag(chart, sheet, place, zoom) {
  const mark = s("rect", { class: "drag", y: chart.top, height: Math.max(0, chart.bottom - chart.top), visibility: "hidden" });
  chart.root.append(mark);
  let start = null;
  const range = (event) => [start, Math.max(chart.left, Math.min(chart.right, place(event)[0]))].sort((a, b) => a - b);
  sheet.addEventListener("pointerdown", (event) => {
    if (event.pointerType !== "mouse" || event.button) return;
    start = place(event)[0];
    sheet.setPointerCapture(event.pointerId);
  });
  sheet.addEventListener("pointermove", (event) => {
    if (start === null) return;
    const [from, to] = range(event);
    fill(mark, { x: from, width: to - from, visibility: "visible" }, []);
  });
  sheet.addEventListener("pointerup", (event) => {
    if (start === null) return;
    const [from, to] = range(event);
    start = null;
    mark.setAttribute("visibility", "hidden");
    if (to - from > 6) zoom(chart.x.back(from), chart.x.back(to));
  });
}

/** Push labels apart so that none overlaps another: [{y, ...}], sorted and at least `gap` apart within limits. */
function apart(items, gap, top, bottom) {
  const sorted = [...items].sort((a, b) => a.y - b.y);
  sorted.forEach((item, index) => { item.y = Math.max(item.y, index ? sorted[index - 1].y + gap : top); });
  for (let index = sorted.length - 1; index >= 0; index -= 1) {
    const limit = index === sorted.length - 1 ? bottom : sorted[index + 1].y - gap;
    sorted[index].y = Math.min(sorted[index].y, limit);
  }
  return sorted;
}
