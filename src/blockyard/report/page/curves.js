// Learning curves: mean over seeds with a band, any metric against any axis.

const PARTS = { all: ["the whole run", 0], half: ["the last half", 0.5], tenth: ["the last tenth", 0.9] };
const SMOOTHINGS = { 0: "none", 0.6: "a little (0.6)", 0.9: "strong (0.9)", 0.97: "very strong (0.97)" };
const BANDS = { pointed: "of the arm pointed at", range: "lowest to highest seed", interval: "95 % interval of the mean (Student's t)", seeds: "every seed" };

/** Draw controls, chart, caption and data. */
function drawCurves(body) {
  const metrics = curveMetrics();
  const axes = Object.keys(AXES).filter((axis) => data.curves.some((curve) => (curve[axis] || []).some(known)));
  if (!axes.includes(state.axis)) state.axis = axes[0];
  const pick = (key) => (value) => { state[key] = value; redraw("curves"); };
  const curves = late(shown().map((arm) => series(arm.name, state.metric, state.axis, state.band)).filter(Boolean));
  const controls = [
    choice("curves:metric", "Metric", metrics.map((name) => [name, name]), state.metric, pick("metric")),
    choice("curves:axis", "Against", axes.map((axis) => [axis, AXES[axis].name]), state.axis, (axis) => { state.zoom = null; pick("axis")(axis); }),
    choice("curves:band", "Band", Object.entries(BANDS), state.band, pick("band")),
    choice("curves:part", "Part", Object.entries(PARTS).map(([key, [name]]) => [key, name]), state.part, pick("part")),
    choice("curves:smooth", "Smoothing", Object.entries(SMOOTHINGS), String(state.smooth), (value) => pick("smooth")(Number(value))),
    tick("curves:log", "log scale", state.logarithm, pick("logarithm")),
    state.zoom ? h("button", { type: "button", class: "quiet", "data-key": "curves:zoom", onclick: () => pick("zoom")(null) }, "Reset zoom") : null,
  ];
  const ragged = curves.some((one) => one.n.some((n) => n < one.seeds.length));
  const drawn = curves.length ? curveChart(body, curves) : { chart: h("p", { class: "empty" }, "None of the arms shown has this metric."), cutoff: null };
  const band = { seeds: "each thin line is one seed", pointed: "point at a line or its name to see the range from the lowest to the highest seed" }[state.band] ||
    `the band is the ${BANDS[state.band]}`;
  body.append(figure("curves", { controls, chart: drawn.chart, table: () => curveTable(curves),
    caption: `Mean of ${state.metric} over seeds; ${band}.${wish(state.metric) ? ` ${wish(state.metric)[0].toUpperCase()}${wish(state.metric).slice(1)}.` : ""}` +
      `${state.smooth ? ` Each run is smoothed by an exponential mean of weight ${state.smooth}; the table, too.` : ""}` +
      `${ragged ? " Where a line is faint, some of its seeds have no value." : ""}${drawn.cutoff || ""}${drawn.simple ? baselineNote(state.metric) : ""} Drag over the chart to zoom.` }));
}

/** Zoom to a range of the x axis. */
function zoomTo(from, to) {
  state.zoom = [from, to];
  redraw("curves");
}

/** Keep the selected part of the runs: what comes after a fraction of the longest one, or the range that is zoomed to. */
function late(curves) {
  const [start, end] = state.zoom || [PARTS[state.part][1] * Math.max(0, ...curves.flatMap((one) => one.x)), Infinity];
  const keep = (one) => (values) => values.filter((_, k) => one.x[k] >= start && one.x[k] <= end);
  return curves.map((one) => ({ ...one, seeds: one.seeds.map((run) => run.filter(([x]) => x >= start && x <= end)).filter((run) => run.length),
    x: keep(one)(one.x), mean: keep(one)(one.mean), low: keep(one)(one.low), high: keep(one)(one.high), n: keep(one)(one.n) }))
    .filter((one) => one.x.length);
}

/** The chart, and a note where extreme values are clipped. */
function curveChart(body, curves) {
  const width = Math.max(280, body.clientWidth);
  const direct = width > 720 && curves.length <= 8;
  const room = 34 + 6.8 * Math.max(0, ...curves.map((one) => label(one.name).length));
  const all = state.band === "seeds" ? curves.flatMap((one) => one.seeds.flatMap((run) => run.map(([, y]) => y)))
    : curves.flatMap((one) => [...one.low, ...one.high]);
  const { domain, cutoff } = reach(all, all.length ? baselineReach(state.metric) : []);
  const chart = frame({ width, height: Math.max(260, Math.min(420, width * 0.62)), margin: { right: direct ? room : 16, top: 30 },
    title: `${state.metric} against ${lower(AXES[state.axis].name)}`,
    desc: `${plural(curves.length, "arm")}; a line is the mean over seeds. ${curves.map(ending).join(" ")}`,
    x: { domain: state.zoom || extent([...(state.part === "all" ? [0] : []), ...curves.flatMap((one) => one.x)], 0), label: AXES[state.axis].name, format: AXES[state.axis].format, whole: AXES[state.axis].whole },
    y: { domain, logarithm: state.logarithm, label: state.metric } });
  const clip = fresh("clip");
  chart.root.prepend(s("clipPath", { id: clip }, s("rect", { x: chart.left, y: chart.top - 4, width: chart.right - chart.left + 4,
    height: chart.bottom - chart.top + 4 })));
  const lines = s("g", { "clip-path": `url(#${clip})` });
  chart.plot.append(lines);
  const simple = baselineLine(chart, state.metric);
  const at = (x, y) => [chart.x(x), chart.y(state.logarithm ? Math.max(y, domain[0] / 10) : y)];
  for (const one of curves) lines.append(...bandOf(one, at));
  for (const one of curves) lines.append(...lineOf(one, at));
  if (direct) {
    const tags = curves.map((one) => ({ one, y: Math.max(chart.top, Math.min(chart.bottom, at(0, one.mean[whole(one)])[1])) }));
    for (const { one, y } of apart(tags, 15, chart.top + 4, chart.bottom)) {
      chart.plot.append(marker(one.name, chart.right + 10, y, 4), s("text", { class: "direct", ...tag(one.name), x: chart.right + 19, y: y + 4 }, label(one.name)));
    }
  }
  follow(chart, curves, at);
  return { chart: chart.root, cutoff, simple };
}

/** The range of y. A few outliers are clipped so that they do not flatten the rest, except on a log scale; more
 * values have a place where they do not flatten the rest either. */
function reach(values, more) {
  const [own, { domain }] = [rangeOf(values), rangeOf([...values, ...more])];
  return more.every((y) => y >= domain[0] && y <= domain[1]) ? { ...own, domain } : own;
}

function rangeOf(values) {
  const full = extent(values, 0.04, state.logarithm) || [state.logarithm ? 0.1 : 0, 1];
  if (state.logarithm) return { domain: full, cutoff: values.some((value) => value <= 0) ? " Values of 0 or less have no place on a log scale." : null };
  if (values.length < 20) return { domain: full, cutoff: null };
  const sorted = [...values].sort((a, b) => a - b);
  const [low, high] = [sorted[Math.floor(0.03 * (sorted.length - 1))], sorted[Math.ceil(0.97 * (sorted.length - 1))]];
  const room = 3 * (high - low);
  const domain = [Math.max(full[0], low - room), Math.min(full[1], high + room)];
  if (!room || (domain[0] === full[0] && domain[1] === full[1])) return { domain: full, cutoff: null };
  return { domain, cutoff: ` The axis is clipped; values range from ${short(sorted[0])} to ${short(sorted[sorted.length - 1])}.` };
}

/** The band of an arm, or its seeds as thin lines. */
function bandOf(one, at) {
  const { stroke } = look(one.name);
  if (state.band === "seeds") {
    return one.seeds.map((run) => s("path", { class: "seed", ...tag(one.name), d: path(run.map(([x, y]) => at(x, y))), style: { stroke } }));
  }
  if (one.seeds.length < 2) return [];
  const inside = one.x.slice(0, whole(one) + 1);
  const upper = inside.map((x, k) => at(x, one.high[k]));
  const lower = inside.map((x, k) => at(x, one.low[k])).reverse();
  const hidden = state.band === "pointed" && shown().length > 1;
  return [s("path", { class: hidden ? "band pointed" : "band", ...tag(one.name), d: `${path([...upper, ...lower])}Z`, style: { fill: stroke } })];
}

/** The mean line: opaque where all seeds have a value, faint where some have none. A mark where it is one point. */
function lineOf(one, at) {
  if (one.x.length === 1) {
    const mark = marker(one.name, ...at(one.x[0], one.mean[0]), 4);
    mark.classList.add("point");
    return [mark];
  }
  const { stroke, dash, width } = look(one.name);
  const last = whole(one);
  const draw = (from, to, faint) => s("path", { class: faint ? "line faint" : "line", ...tag(one.name),
    d: path(one.x.slice(from, to).map((x, k) => at(x, one.mean[from + k]))), "stroke-dasharray": dash,
    style: { stroke, "stroke-width": String(width) } });
  return [draw(0, last + 1, false), last < one.x.length - 1 ? draw(last, one.x.length, true) : null].filter(Boolean);
}

/** Show a vertical line at the pointer and the values there. */
function follow(chart, curves, at) {
  const rule = s("line", { class: "rule", y1: chart.top, y2: chart.bottom, visibility: "hidden" });
  chart.plot.append(rule);
  const digits = decimals(curves.flatMap((one) => one.mean));
  listen(chart, (event, x, y) => {
    const value = chart.x.back(x);
    const near = curves.map((one) => [one, one.x.reduce((best, at_, k) => (Math.abs(at_ - value) < Math.abs(one.x[best] - value) ? k : best), 0)])
      .sort(([a, i], [b, j]) => b.mean[j] - a.mean[i]).slice(0, 14);
    // The points whose values are listed, not the place of the pointer; where arms have different ones, each has its own.
    const [step, ...others] = new Set(near.map(([one, k]) => one.x[k]));
    pointAt(chart, near.reduce((a, b) => (Math.abs(at(0, a[0].mean[a[1]])[1] - y) <= Math.abs(at(0, b[0].mean[b[1]])[1] - y) ? a : b))[0].name);
    const { name, format } = AXES[state.axis];
    const place = others.length ? x : chart.x(step);
    rule.setAttribute("x1", place); rule.setAttribute("x2", place); rule.setAttribute("visibility", "visible");
    tip(event, others.length ? `nearest ${lower(name)}s` : `${name} ${format(step)}`,
      near.map(([one, k]) => [one.name, `${fixed(one.mean[k], digits)}  ${label(one.name)}${others.length ? ` at ${format(one.x[k])}` : ""}`]));
  }, () => { rule.setAttribute("visibility", "hidden"); pointAt(chart, null); }, zoomTo);
}

/** Show the band of one arm, or of none. */
function pointAt(chart, name) {
  for (const band of chart.root.querySelectorAll(".band.pointed")) band.classList.toggle("on", name !== null && band.dataset.arm === String(tag(name)["data-arm"]));
}

/** "pre_norm ends at 0.95." */
const ending = (one) => `${one.name} ends at ${short(one.mean[whole(one)])}.`;

/** The means nearest to quarters of the x axis, each with its own x, for those who do not see the chart. */
function curveTable(curves) {
  const digits = decimals(curves.flatMap((one) => one.mean));
  const parts = [0.25, 0.5, 0.75, 1];
  const rows = curves.map((one) => {
    const last = whole(one);
    const nearest = (x) => one.x.slice(0, last + 1).reduce((best, each, k) => Math.abs(each - x) < Math.abs(one.x[best] - x) ? k : best, 0);
    const cells = parts.map((part) => nearest(part * one.x[last])).map((k) =>
      `${fixed(one.mean[k], digits)} ${one.seeds.length > 1 ? interval([one.low[k], one.high[k]], digits) : ""}${k < last ? ` at ${AXES[state.axis].format(one.x[k])}` : ""}`);
    return [one.name, String(one.seeds.length), AXES[state.axis].format(one.x[last]), ...cells];
  });
  return grid(`${state.metric}: mean over seeds and ${state.band === "interval" ? "95 % interval" : "range"}`,
    ["arm", "seeds", `last ${lower(AXES[state.axis].name)}`, "near 25 %", "near 50 %", "near 75 %", "at the end"], rows, [1, 2, 3, 4, 5, 6]);
}
