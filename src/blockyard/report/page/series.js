// Curves over seeds: mean, band, and the number of seeds at each point.

const POINTS = 160;
/** The points of one run that have both the metric and the axis, in order. */
function points(curve, metric, axis) {
  const [across, values] = [curve[axis] || [], curve.metrics[metric] || []];
  const pairs = [];
  for (let k = 0; k < values.length; k += 1) if (known(values[k]) && known(across[k])) pairs.push([across[k], values[k]]);
  return smoothed(pairs.sort((a, b) => a[0] - b[0]), state.smooth);
}

/** The exponential mean of the values, started without bias: after k points the weights sum to 1 - weight^k. */
function smoothed(pairs, weight) {
  if (!weight) return pairs;
  let mean = 0;
  return pairs.map(([x, y], k) => {
    mean = weight * mean + (1 - weight) * y;
    return [x, mean / (1 - weight ** (k + 1))];
  });
}

/** The curves of an arm; where it was tuned, those of the chosen setting. */
function runs(name) {
  const { budget } = data.arms.find((arm) => arm.name === name) || {};
  const same = (curve) => Object.entries(budget.chosen).every(([key, value]) => word((curve.setting || {})[key]) === word(value));
  return data.curves.filter((curve) => curve.arm === name && (!budget || !budget.chosen || !curve.setting || same(curve)));
}

/** Mean and band of an arm: {name, seeds, x, mean, low, high, n}; null where no run has the metric. */
function series(name, metric, axis, band) {
  const seeds = runs(name).map((curve) => points(curve, metric, axis)).filter((run) => run.length);
  if (!seeds.length) return null;
  const result = { name, seeds, x: xValues(seeds), mean: [], low: [], high: [], n: [] };
  const at = result.x.map(() => []);
  for (const run of seeds) {
    let k = 0;
    result.x.forEach((x, index) => {
      if (x < run[0][0] || x > run[run.length - 1][0]) return;
      while (k < run.length - 1 && run[k + 1][0] <= x) k += 1;
      const [[x0, y0], [x1, y1]] = [run[k], run[Math.min(k + 1, run.length - 1)]];
      at[index].push(x1 === x0 ? y0 : y0 + ((x - x0) / (x1 - x0)) * (y1 - y0));
    });
  }
  for (const values of at) {
    const n = values.length;
    const mean = values.reduce((sum, value) => sum + value, 0) / n;
    let [low, high] = [Math.min(...values), Math.max(...values)];
    if (band === "interval") {
      const deviation = Math.sqrt(values.reduce((sum, value) => sum + (value - mean) ** 2, 0) / Math.max(n - 1, 1));
      const half = n > 1 ? (student(n - 1) * deviation) / Math.sqrt(n) : 0;
      const [least, most] = (data.ranges || {})[metric] || [-Infinity, Infinity];
      [low, high] = [Math.max(least, mean - half), Math.min(most, mean + half)];
    }
    result.mean.push(mean); result.low.push(low); result.high.push(high); result.n.push(n);
  }
  return result;
}

/** The last index at which the most seeds have a value. */
const whole = (one) => one.n.lastIndexOf(Math.max(...one.n));

/** The x values at which the mean is computed: those of the runs where all agree, else evenly spaced ones. */
function xValues(seeds) {
  const first = seeds.reduce((a, b) => (a.length >= b.length ? a : b)).map(([x]) => x);
  const agree = seeds.every((run) => run.every(([x], k) => x === first[k]));
  if (agree) return first;
  const low = Math.min(...seeds.map((run) => run[0][0]));
  const high = Math.max(...seeds.map((run) => run[run.length - 1][0]));
  const most = Math.min(POINTS, Math.max(2, ...seeds.map((run) => run.length)));
  // The ends of the runs are included, so that the mean extends as far as all of them do.
  const ends = seeds.map((run) => run[run.length - 1][0]);
  const even = Array.from({ length: most }, (_, k) => low + ((high - low) * k) / (most - 1));
  return [...new Set([...even, ...ends])].filter((x) => x <= high).sort((a, b) => a - b);
}
