// Scales and ticks.

/** The smallest range that contains all values, with a margin; null where there are none. */
function extent(values, room = 0.04, logarithm = false) {
  let [low, high] = [Infinity, -Infinity];
  for (const value of values) {
    if (!known(value) || (logarithm && value <= 0)) continue;
    if (value < low) low = value;
    if (value > high) high = value;
  }
  if (low > high) return null;
  if (logarithm) {
    const factor = (high / low) ** room || 1;
    return low === high ? [low / 1.5, high * 1.5] : [low / factor, high * factor];
  }
  const margin = high > low ? (high - low) * room : Math.abs(high) * 0.05 || 1;
  return [low - margin, high + margin];
}

/** A function from values to pixels; `.ticks(n)` are round values inside. */
function scale(domain, pixels, logarithm = false) {
  const transform = logarithm ? Math.log10 : (x) => x;
  const [low, high] = domain.map(transform);
  const map = (x) => pixels[0] + ((transform(x) - low) / (high - low || 1)) * (pixels[1] - pixels[0]);
  map.back = (pixel) => {
    const value = low + ((pixel - pixels[0]) / (pixels[1] - pixels[0] || 1)) * (high - low);
    return logarithm ? 10 ** value : value;
  };
  map.ticks = (n, whole = false) => (logarithm ? powers(domain, n) : rounds(domain, n, whole));
  map.domain = domain;
  return map;
}

/** Round values about (high - low) / n apart; with `whole`, such as for steps, whole numbers only. */
function rounds([low, high], n, whole = false) {
  const rough = (high - low) / Math.max(n, 1);
  const size = 10 ** Math.floor(Math.log10(rough));
  const fits = (factor) => size * factor >= rough * 0.999 && (!whole || Number.isInteger(Number((size * factor).toPrecision(12))));
  const step = size * ([1, 2, 2.5, 5].find(fits) || Math.max(10, whole ? 1 / size : 0));
  const ticks = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high * (1 + 1e-12) + step * 1e-9; k += 1) {
    ticks.push(Number((k * step).toPrecision(12)));
  }
  return ticks;
}

/** 1, 2, 5, 10 ... inside the range, or only powers of ten, or every second, third ... of these, where those are too many. */
function powers([low, high], n) {
  for (const factors of [[1, 1.5, 2, 3, 5, 7], [1, 2, 5], [1, 3], [1]]) {
    const ticks = [];
    for (let k = Math.floor(Math.log10(low)); k <= Math.ceil(Math.log10(high)); k += 1) {
      for (const factor of factors) {
        const value = Number((factor * 10 ** k).toPrecision(12));
        if (value >= low && value <= high) ticks.push(value);
      }
    }
    if (ticks.length <= n + 2) return ticks.length > 1 ? ticks : rounds([low, high], n);
  }
  const [from, to] = [Math.ceil(Math.log10(low)), Math.floor(Math.log10(high))];
  const step = Math.ceil((to - from + 1) / (n + 2));
  return Array.from({ length: Math.ceil((to - from + 1) / step) }, (_, k) => Number(`1e${from + k * step}`));
}
