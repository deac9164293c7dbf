// Statistics of layers while training, as heat maps: a row for each layer, a column for each step that was measured.

const OF_LAYER = /^train\/(.+?)\.((?:\w+\.)*\d+)$/;

/** The layers of each statistic that a curve has, in order: Map {"grad_norm" => ["0", "1"]}. */
function layerStatistics() {
  const found = new Map();
  for (const name of curveMetrics()) {
    const match = name.match(OF_LAYER);
    if (match) found.set(match[1], [...(found.get(match[1]) || []), match[2]]);
  }
  return new Map([...found].map(([name, layers]) => [name, layers.sort((a, b) => a.localeCompare(b, "en", { numeric: true }))]));
}

/** Draw the choice of a statistic and a map for each arm, all on one scale. */
function drawLayers(body) {
  const statistics = layerStatistics();
  const names = [...statistics.keys()];
  const name = names.includes(state.layers) ? state.layers : names[0];
  const layers = statistics.get(name);
  const maps = shown().map((arm) => layerMap(arm.name, name, layers)).filter((one) => one.steps.length);
  const range = extent(maps.flatMap((one) => one.rows.flat()), 0) || [0, 1];
  body.append(h("div", { class: "controls" }, choice("layers:name", "Statistic", names.map((one) => [one, one]), name, (value) => { state.layers = value; redraw("layers"); })),
    h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Statistics of layers" }, h("table", { class: "maps" },
      h("caption", {}, `${name} by layer and step, mean over seeds`),
      h("tbody", {}, maps.map((one) => h("tr", {}, h("th", { scope: "row" }, swatch(one.arm), h("span", { class: "name" }, breakable(one.arm))),
        h("td", {}, layerPicture(one, name, layers, range))))))),
    shades(range[1], range[0]),
    h("p", { class: "note" }, `Rows are layers, the first at the top (${layers[0]} to ${layers[layers.length - 1]}); columns are the measured steps. The curves above show each layer as a metric.`));
}

/** The mean of a statistic over seeds: {arm, steps, rows: one for each layer}. */
function layerMap(arm, name, layers) {
  const lines = layers.map((layer) => series(arm, `train/${name}.${layer}`, "step", "range"));
  const steps = [...new Set(lines.flatMap((line) => (line ? line.x : [])))].sort((a, b) => a - b);
  const rows = lines.map((line) => {
    const means = new Map(line ? line.x.map((x, k) => [x, line.mean[k]]) : []);
    return steps.map((step) => (means.has(step) ? means.get(step) : null));
  });
  return { arm, steps, rows };
}

/** A map as an image; a cell without a value is clear. */
function layerPicture({ arm, steps, rows }, name, layers, [low, high]) {
  const canvas = h("canvas", { class: "layers", width: steps.length, height: rows.length, role: "img", style: { height: `${Math.max(40, Math.min(400, 18 * rows.length))}px` },
    "aria-label": `${name} of ${arm}: ${plural(rows.length, "layer")} by ${plural(steps.length, "step")}`, onpointerleave: untip,
    onpointermove: (event) => {
      const box = canvas.getBoundingClientRect();
      const column = Math.min(steps.length - 1, Math.max(0, Math.floor(((event.clientX - box.left) / box.width) * steps.length)));
      const row = Math.min(rows.length - 1, Math.max(0, Math.floor(((event.clientY - box.top) / box.height) * rows.length)));
      const value = rows[row][column];
      tip(event, `layer ${layers[row]}, step ${count(steps[column])}`, [[arm, known(value) ? short(value) : NONE]]);
    } });
  const pixels = new ImageData(steps.length, rows.length);
  rows.forEach((values, i) => values.forEach((value, j) => {
    if (known(value)) pixels.data.set([...shade((value - low) / (high - low || 1)), 255], 4 * (i * steps.length + j));
  }));
  canvas.getContext("2d").putImageData(pixels, 0, 0);
  return canvas;
}
