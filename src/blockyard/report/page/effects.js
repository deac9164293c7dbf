// The options of the arms: the metric over the values of one, what each level changes, interactions, and importance.

const FEW_LINES = 5; // of more, the one that is pointed at stands out
const DODGE = 4; // pixels between points at one value

/** The options in which arms differ: key -> its values, numbers in order. */
function factors() {
  const result = {};
  for (const arm of data.arms) {
    for (const [key, value] of Object.entries(arm.levels || {})) result[key] = new Set([...(result[key] || []), value]);
  }
  return Object.fromEntries(Object.entries(result).filter(([, values]) => values.size > 1).map(([key, values]) => [key, inOrder([...values])]));
}

/** Whether all of these texts are numbers. */
const numbers = (values) => values.every((value) => String(value).trim() !== "" && known(Number(value)));

/** Values in the order of their size, where they are numbers. */
const inOrder = (values) => (numbers(values) ? [...values].sort((a, b) => a - b) : values);

/** Whether a range of numbers asks for a logarithmic scale. */
const wideRange = (values) => Math.min(...values) > 0 && Math.max(...values) / Math.min(...values) > 8;

/** The options of the chart at first: across, the numeric one with the most values; for the lines, the other one with the fewest. */
function firstFactors() {
  const every = Object.entries(factors()).sort(([, a], [, b]) => numbers(b) - numbers(a) || b.length - a.length).map(([key]) => key);
  const [across, ...others] = every;
  return [across || null, others.pop() || null];
}

/** Whether the arms are points of a chart over an option: several options, or one whose values are numbers. */
function overOptions() {
  const values = Object.values(factors());
  return !data.ladder && (values.length > 1 || (values.length === 1 && numbers(values[0])));
}

/** Draw the chart, the table of main effects, the interactions, and the arms in parallel coordinates. */
function drawEffects(body) {
  if (overOptions()) body.append(optionFigure(body));
  if (data.effects) {
    const { main, interactions, formula } = data.effects;
    const digits = decimals([0, ...main.flatMap((one) => [one.effect, ...(one.interval || [])])], main.map((one) => one.interval));
    const order = ({ factor, level }) => (factors()[factor] || []).indexOf(level);
    const sorted = [...new Set(main.map((one) => one.factor))].flatMap((factor) => main.filter((one) => one.factor === factor).sort((a, b) => order(a) - order(b)));
    const table = () => grid(`Effect of each level on ${data.metric}, relative to the first level of its factor`,
      ["factor", "level", "reference", "effect", "95 % interval", "p", "p (Holm)"],
      sorted.map((one) => [one.factor, word(one.level), word(one.reference), change(one.effect, digits), interval(one.interval, digits) || NONE,
        chance(one.p), chance(one.holm_p)]), [3, 4, 5, 6]);
    if (main.length) body.append(h("h3", {}, "Effects"), main.length > 8 ? disclosure("effects", plural(main.length, "level"), table) : table());
    const tested = interactions.filter(({ F }) => known(F));
    if (tested.length) {
      body.append(h("h3", {}, "Interactions"), grid("Tests of the interactions", ["factors", "F", "p", "p (Holm)"],
        tested.sort((a, b) => (a.holm_p ?? 2) - (b.holm_p ?? 2)).map((one) => [one.factors.join(" × "), short(one.F), chance(one.p), chance(one.holm_p)]), [1, 2, 3]));
    }
    if (formula) body.append(h("p", { class: "note" }, formula.includes(" ~ ") ? ["Ordinary least squares: ", h("code", {}, formula)] : `Effects: ${formula}.`));
  }
  if (Object.keys(factors()).length > 1) {
    body.append(parallelFigure("parallel", data.arms.map((arm) => ({ name: arm.name, setting: arm.levels || {}, value: arm.mean })), data.metric, data.direction, body));
  }
}

/** The chart over an option with its two choices; a point is the mean over seeds, and over the options that have no choice. */
function optionFigure(body) {
  const all = factors();
  const others = Object.keys(all).filter((key) => key !== state.across);
  if (!others.includes(state.lines)) state.lines = others[0] || null;
  const pick = (key) => (value) => { state[key] = value; redraw("effects"); };
  const named = (keys) => keys.map((key) => [key, key]);
  const rest = others.filter((key) => key !== state.lines);
  const { lines, count: averaged } = optionLines(all, rest);
  const digits = decimals(lines.flatMap((line) => line.points.map((point) => point.mean)));
  return figure("options", {
    controls: others.length ? [choice("options:across", "Against", named(Object.keys(all)), state.across, pick("across")), choice("options:lines", "A line for each", named(others), state.lines, pick("lines"))] : [],
    chart: lines.length ? optionChart(body, lines, all[state.across]) : h("p", { class: "empty" }, `No point has a value${rest.length ? `: the arms have no setting of ${rest.join(", ")} in common` : ""}.`),
    caption: `Mean ${data.metric} over seeds${wish(data.metric) ? ` (${wish(data.metric)})` : ""}; whiskers are 95 % intervals.` +
      `${rest.length ? ` Each point is the mean over the ${plural(averaged, "setting")} of ${rest.join(", ")} that all points have.` : ""}${others.length ? " Parallel lines: the two options act independently." : ""}`,
    table: () => grid(`Mean ${data.metric} by ${state.across}`, [state.lines ? `${state.across} \\ ${state.lines}` : state.across, ...lines.map((line) => line.name)],
      all[state.across].map((value) => [value, ...lines.map((line) => {
        const point = line.points.find((one) => one.value === value);
        return point ? `${fixed(point.mean, digits)} ${interval(point.interval, digits)}` : NONE;
      })]), lines.map((_, k) => k + 1)),
  });
}

/** The lines, and over how many settings of the other options their points are averaged: those that every point has. */
function optionLines(all, rest) {
  const groups = new Map();
  for (const arm of data.arms) {
    const at = [(arm.levels || {})[state.across], state.lines ? (arm.levels || {})[state.lines] : data.metric];
    if (!known(arm.mean) || at.includes(undefined)) continue;
    const key = JSON.stringify(at);
    groups.set(key, { ...groups.get(key), [JSON.stringify(rest.map((name) => arm.levels[name]))]: arm });
  }
  const settings = [...groups.values()].map((group) => Object.keys(group));
  const shared = (settings[0] || []).filter((setting) => settings.every((some) => some.includes(setting)));
  const lines = (state.lines ? all[state.lines] : [data.metric]).map((name, k) => ({ name, k, points: all[state.across].flatMap((value) => {
    const group = groups.get(JSON.stringify([value, name]));
    return group && shared.length ? [{ value, ...meanOf(shared.map((setting) => group[setting])) }] : [];
  }).filter((point) => known(point.mean)) }));
  return { lines: lines.filter((line) => line.points.length), count: shared.length };
}

/** The mean of arms and its interval: of one arm its own, of several that of their means on each seed that all have. */
function meanOf(arms) {
  if (arms.length === 1) return { mean: arms[0].mean, interval: arms[0].interval };
  const values = Object.keys(arms[0].values).map((seed) => arms.reduce((sum, arm) => sum + (arm.values[seed] ?? NaN), 0) / arms.length).filter(known);
  const n = values.length;
  const mean = values.reduce((sum, value) => sum + value, 0) / n;
  const half = n > 1 ? student(n - 1) * Math.sqrt(values.reduce((sum, value) => sum + (value - mean) ** 2, 0) / (n - 1) / n) : 0;
  return { mean, interval: n > 1 ? [mean - half, mean + half] : null };
}

/** The chart: a line for each value of an option, whiskers at its points. */
function optionChart(body, lines, values) {
  const numeric = numbers(values);
  const coordinate = (value) => (numeric ? Number(value) : values.indexOf(value));
  const logarithm = numeric && wideRange(values.map(Number));
  const points = lines.flatMap((line) => line.points);
  const width = Math.max(280, body.clientWidth);
  const chart = frame({ width, height: Math.max(260, Math.min(400, width * 0.6)), margin: { top: 30 }, title: `${data.metric} against ${state.across}`,
    desc: lines.map((line) => `${line.name}: ${line.points.map((point) => `${point.value} ${short(point.mean)}`).join(", ")}.`).join(" "),
    x: { domain: numeric ? extent(values.map(Number), 0.06, logarithm) : [-0.4, values.length - 0.6], label: state.across, logarithm,
      ticks: numeric && values.length > 12 ? undefined : values.map((value, k) => [numeric ? Number(value) : k, numeric ? short(Number(value)) : cut(value, 14)]) },
    y: { domain: extent(points.flatMap((point) => [point.mean, ...(point.interval || [])]), 0.06), label: data.metric } });
  const at = (line, point) => [chart.x(coordinate(point.value)) + DODGE * (lines.indexOf(line) - (lines.length - 1) / 2) * Math.min(1, 6 / lines.length), chart.y(point.mean)];
  for (const line of lines) {
    const { stroke, dash } = styleOf(line.k);
    const group = s("g", { "data-line": line.k });
    chart.plot.append(group);
    group.append(s("path", { class: "line", d: path(line.points.map((point) => at(line, point))), "stroke-dasharray": dash, style: { stroke } }),
      ...line.points.flatMap((point) => {
        const [x, y] = at(line, point);
        return [point.interval ? s("line", { class: "reach", x1: x, x2: x, y1: chart.y(point.interval[0]), y2: chart.y(point.interval[1]), style: { stroke } }) : "",
          mark(styleOf(line.k), x, y, 4)];
      }));
  }
  const single = (k) => { for (const group of chart.plot.children) group.classList.toggle("dim", k !== null && lines.length > FEW_LINES && group.dataset.line !== String(k)); };
  listen(chart, (event, x, y) => {
    const near = lines.flatMap((line) => line.points.map((point) => [line, point])).reduce((a, b) => (Math.hypot(at(...a)[0] - x, at(...a)[1] - y) <= Math.hypot(at(...b)[0] - x, at(...b)[1] - y) ? a : b));
    single(near[0].k);
    tip(event, `${state.across} ${near[1].value}`, [[null, `${short(near[1].mean, 4)} ${near[0].name}`]]);
  }, () => single(null));
  return h("div", {}, chart.root, state.lines ? h("p", { class: "keys" }, `${state.lines}: `, lines.map((line) => h("span", {}, swatch(line.name, styleOf(line.k)), line.name))) : null);
}
