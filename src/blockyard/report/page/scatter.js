// Quality against cost, with the Pareto front: the arms that no other arm beats in both.

/** Draw controls, chart, caption and data. */
function drawScatter(body) {
  const costs = Object.keys(COSTS).filter((key) => data.arms.some((arm) => known((arm.cost || {})[key])));
  const qualities = [data.metric, ...Object.keys(Object.assign({}, ...data.arms.map((arm) => arm.other || {})))];
  const pick = (key) => (value) => { state[key] = value; redraw("cost"); };
  const dots = shown().map(dot).filter((one) => known(one.x) && known(one.y));
  const missing = shown().length - dots.length;
  const best = direction(state.quality) ? front(dots) : [];
  const controls = [
    choice("cost:cost", "Cost", costs.map((key) => [key, COSTS[key].name]), state.cost, pick("cost")),
    choice("cost:quality", "Quality", [...new Set(qualities)].map((name) => [name, name]), state.quality, pick("quality")),
  ];
  const cost = COSTS[state.cost];
  const near = alike(dots.map((one) => one.x), lower(cost.name));
  body.append(figure("cost", {
    controls,
    chart: dots.length ? scatterChart(body, dots, best) : h("p", { class: "empty" }, "None of the arms shown has both values."),
    caption: `${state.quality}${wish(state.quality) ? ` (${wish(state.quality)})` : ""} against ${lower(cost.name)} (${cost.more ? "more" : "less"} is better). ` +
      `${near ? `${near} ` : !best.length ? "" : "The line connects the Pareto front: the arms that no other arm beats in both. "}Whiskers are 95 % intervals.${baselineNote(state.quality)}` +
      `${missing > 0 ? ` ${plural(missing, "arm")} not shown for lack of a value.` : ""}`,
    table: () => grid(`${state.quality} and ${cost.name}`, ["arm", state.quality, cost.name, "on the Pareto line"],
      dots.map((one) => [one.name, short(one.y), cost.format(one.x), best.includes(one) ? "yes" : "no"]), [1, 2]),
  }));
}

/** A sentence where the arms cost about the same, else null. */
function alike(costs, name) {
  const [low, high] = [Math.min(...costs), Math.max(...costs)];
  if (costs.length < 2 || high - low > ALIKE * Math.abs(low)) return null;
  return low === high ? `All arms have the same ${name}: no trade-off to see here.`
    : `The arms have about the same ${name}, within ${(100 * (high / low - 1)).toPrecision(2)} %: no trade-off to see here.`;
}

/** The point of an arm: {name, x, y, interval}. */
function dot(arm) {
  const chosen = state.quality === data.metric ? arm : (arm.other || {})[state.quality] || {};
  return { name: arm.name, diverged: arm.diverged, x: (arm.cost || {})[state.cost], y: chosen.mean, interval: chosen.interval || null };
}

/** The Pareto front, cheapest first. The mean of the runs that did not diverge is not the quality of an arm. */
function front(dots) {
  const up = direction(state.quality) === "max" ? 1 : -1;
  const cheap = COSTS[state.cost] && COSTS[state.cost].more ? -1 : 1;
  const sorted = dots.filter((one) => !one.diverged).sort((a, b) => cheap * (a.x - b.x) || up * (b.y - a.y));
  let best = -Infinity;
  return sorted.filter((one) => {
    const better = up * one.y > best;
    if (better) best = up * one.y;
    return better;
  });
}

/** The chart. */
function scatterChart(body, dots, best) {
  const width = Math.max(280, body.clientWidth);
  const cost = COSTS[state.cost];
  const values = dots.map((one) => one.x);
  const logarithm = wideRange(values);
  const chart = frame({ width, height: Math.max(260, Math.min(400, width * 0.62)), margin: { top: 30 },
    title: `${state.quality} against ${lower(cost.name)}`,
    desc: `${plural(dots.length, "arm")}. On the Pareto front: ${best.map((one) => one.name).join(", ")}.`,
    x: { domain: alike(values, "") ? around(values) : extent(values, 0.12, logarithm), label: `${cost.name}${cost.unit ? ` (${cost.unit})` : ""}`, format: cost.format, logarithm },
    y: { domain: extent([...dots.flatMap((one) => [one.y, ...(one.interval || [])]), ...baselineReach(state.quality)], 0.08), label: state.quality } });
  const at = (one) => [chart.x(one.x), chart.y(one.y)];
  // Between two arms the line stays at the quality of the cheaper one.
  const steps = alike(values, "") ? [] : best.flatMap((one, k) => (k ? [[at(one)[0], at(best[k - 1])[1]], at(one)] : [at(one)]));
  chart.plot.append(s("path", { class: "pareto", d: path(steps) }));
  baselineLine(chart, state.quality);
  for (const one of dots) {
    const [x] = at(one);
    if (one.interval) {
      chart.plot.append(s("line", { class: "reach", ...tag(one.name), x1: x, x2: x, y1: chart.y(one.interval[0]), y2: chart.y(one.interval[1]), style: { stroke: look(one.name).stroke } }));
    }
  }
  for (const one of dots) chart.plot.append(marker(one.name, ...at(one), best.includes(one) ? 7 : 5.5));
  names(chart, dots, at, best, steps);
  listen(chart, (event, x, y) => {
    const near = dots.reduce((a, b) => (Math.hypot(at(a)[0] - x, at(a)[1] - y) <= Math.hypot(at(b)[0] - x, at(b)[1] - y) ? a : b));
    if (Math.hypot(at(near)[0] - x, at(near)[1] - y) > 40) return untip();
    return tip(event, near.name, [[near.name, `${short(near.y)} ${state.quality}`], [null, `${cost.format(near.x)} ${lower(cost.name)}`]]);
  }, () => {});
  return chart.root;
}

/** A range wide enough that costs which are about the same lie about in one place. */
function around(values) {
  const middle = (Math.min(...values) + Math.max(...values)) / 2;
  const half = 2 * ALIKE * Math.abs(middle) || 1;
  return [middle - half, middle + half];
}

/** Write names beside the points, on a side that is free; a name that fits nowhere is in the tooltip only. */
function names(chart, dots, at, best, steps) {
  const taken = dots.map((one) => { const [x, y] = at(one); return [x - 7, y - 7, x + 7, y + 7]; });
  const line = steps.slice(1).map(([x, y], k) => [Math.min(x, steps[k][0]), Math.min(y, steps[k][1]) - 2, Math.max(x, steps[k][0]), Math.max(y, steps[k][1]) + 2]);
  for (const one of dots) {
    const text = label(one.name);
    const [[x, y], wide] = [at(one), labelWidth(text)];
    // The line leaves each point of the front to the right; its name is placed clear of it.
    const clear = direction(state.quality) === "max" ? [9, -9, "start"] : [9, 17, "start"];
    const spots = [...(best.includes(one) ? [clear] : []), [10, 4, "start"], [-10, 4, "end"], [0, -13, "middle"], [0, 21, "middle"], [9, -9, "start"], [9, 16, "start"], [-9, -9, "end"], [-9, 16, "end"]];
    for (const [dx, dy, anchor] of spots) {
      const from = x + dx - (anchor === "end" ? wide : anchor === "middle" ? wide / 2 : 0);
      const box = [from, y + dy - 10, from + wide, y + dy + 3];
      if (box[0] < chart.left || box[2] > chart.right + 14 || box[1] < 0 || box[3] > chart.bottom) continue;
      if ([...taken, ...line].some((other) => box[0] < other[2] && other[0] < box[2] && box[1] < other[3] && other[1] < box[3])) continue;
      taken.push(box);
      chart.plot.append(s("text", { class: "direct", ...tag(one.name), x: x + dx, y: y + dy, "text-anchor": anchor }, text));
      break;
    }
  }
}
