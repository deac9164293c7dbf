// The settings tried for each arm, and the ones chosen.

/** Draw a chart for every tuned key: the best validation value reached at each of its values. */
function drawTuning(body) {
  const tried = data.tuning.filter((one) => !state.hidden.has(one.arm));
  const keys = [...new Set(data.tuning.flatMap((one) => Object.keys(one.setting)))];
  const varied = keys.filter((key) => new Set(data.tuning.map((one) => word(one.setting[key]))).size > 1 && tried.some(({ mean, setting: own }) => known(mean) && key in own));
  const metric = data.tuned_by || String(data.metric).replace(/^test\//, "val/"); // whatever metric is shown
  const wanted = direction(metric) || data.direction;
  const width = varied.length > 1 && body.clientWidth > 760 ? Math.floor((body.clientWidth - 30) / 2) : body.clientWidth;
  const settings = tried.map((one) => ({ name: one.arm, setting: { arm: one.arm, ...one.setting }, value: one.mean }));
  const best = (a, b) => (wanted === "max" ? b.mean - a.mean : a.mean - b.mean);
  body.append(figure("tuning", {
    chart: tried.some((one) => known(one.mean)) ? h("div", {}, armKeys([...new Set(tried.filter((one) => known(one.mean)).map((one) => one.arm))]), h("div", { class: "panels" }, varied.map((key) => tuningChart(key, tried, metric, Math.max(270, width), best))))
      : h("p", { class: "empty" }, "No setting has a value yet."),
    caption: `Mean ${metric} of every setting tried, ${wanted === "max" ? "higher" : "lower"} is better. A line joins settings that differ in nothing else; a ring marks the chosen one. ` +
      "Settings are chosen on validation, never on test.",
    table: () => grid("Settings tried", ["arm", "setting", `mean ${metric}`, "seeds", "chosen"],
      tried.map((one) => [one.arm, h("code", {}, setting(one.setting)), short(one.mean), String(Object.keys(one.values || {}).length), one.chosen ? "yes" : "no"]), [2, 3]),
  }), varied.length > 1 ? parallelFigure("settings", settings, metric, wanted, body) : "");
}

/** One key on the x axis, the metric on the y axis; values that are not numbers are evenly spaced. */
function tuningChart(key, tried, metric, width, best) {
  const good = tried.filter((one) => known(one.mean) && key in one.setting);
  const own = ({ setting: { [key]: value } }) => (known(value) ? value : word(value)); // lists are compared by what they hold
  const values = [...new Set(good.map(own))];
  const numeric = values.every(known);
  if (numeric) values.sort((a, b) => a - b);
  const logarithm = numeric && wideRange(values);
  const position = (one) => (numeric ? own(one) : values.indexOf(own(one)));
  const ticks = numeric && values.length > 8 ? undefined : values.map((value, k) => [numeric ? value : k, numeric ? short(value) : cut(word(value), 14)]);
  const chart = frame({ width, height: Math.max(240, Math.min(320, width * 0.5)), title: `${metric} by ${key}`,
    desc: `${plural(good.length, "setting")} of ${plural(new Set(good.map((one) => one.arm)).size, "arm")}; chosen: ` +
      `${good.filter((one) => one.chosen).map((one) => `${one.arm} ${word(one.setting[key])}`).join(", ")}.`,
    x: { domain: extent(good.map(position), 0.06, logarithm), label: key, ticks, logarithm, whole: numeric && values.every(Number.isInteger) },
    y: { domain: extent(good.map((one) => one.mean), 0.1), label: metric }, margin: { top: 30 } });
  const at = (one) => [chart.x(position(one)), chart.y(one.mean)];
  for (const arm of new Set(good.map((one) => one.arm))) {
    const these = good.filter((one) => one.arm === arm);
    const top = values.map((value) => these.filter((one) => own(one) === value).sort(best)[0]).filter(Boolean);
    const { stroke, dash } = look(arm);
    for (const line of joined(these, key, position)) chart.plot.append(s("path", { class: "line", ...tag(arm), d: path(line.map(at)), "stroke-dasharray": dash, style: { stroke } }));
    for (const one of these) {
      const dot = marker(arm, ...at(one), 4.5);
      if (!top.includes(one)) dot.classList.add("faint");
      chart.plot.append(dot);
      if (one.chosen) chart.plot.append(s("circle", { class: "ring", cx: at(one)[0], cy: at(one)[1], r: 9, style: { stroke } }));
    }
  }
  return chart.root;
}

/** The settings of an arm that differ in one key alone, in the order of its values: what a line may join. */
function joined(own, key, position) {
  const groups = new Map();
  for (const one of own) {
    const others = setting(Object.fromEntries(Object.entries(one.setting).filter(([name]) => name !== key).sort()));
    groups.set(others, [...(groups.get(others) || []), one]);
  }
  return [...groups.values()].filter((group) => group.length > 1).map((group) => group.sort((a, b) => position(a) - position(b)));
}
