// Attention maps that runs have saved.

/** Draw a table of maps: a row for each arm, a column for each layer, all on one scale. */
function drawAttention(body) {
  const maps = data.attention.filter((one) => !state.hidden.has(one.arm));
  const layers = [...new Set(data.attention.map((one) => one.layer))];
  const arms = [...new Set(maps.map((one) => one.arm))];
  const top = Math.max(0, ...maps.map((one) => (Array.isArray(one.map) ? largestOf(one.map) : 0))) || 1;
  const cell = (arm, layer) => {
    const one = maps.find((each) => each.arm === arm && each.layer === layer);
    return h("td", {}, one ? picture(one, `${arm}, seed ${one.seed}, ${layer}`, top) : h("span", { class: "note" }, NONE));
  };
  body.append(h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Attention maps" },
    h("table", { class: "maps" }, h("caption", {}, "Attention maps: rows are arms, columns are layers"),
      h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "arm"), layers.map((layer) => h("th", { scope: "col" }, layer)))),
      h("tbody", {}, arms.map((arm) => h("tr", {}, h("th", { scope: "row" }, swatch(arm), h("span", { class: "name" }, breakable(arm)),
        h("small", {}, `seed ${maps.find((one) => one.arm === arm).seed}`)), layers.map((layer) => cell(arm, layer))))))),
  maps.some((one) => Array.isArray(one.map)) ? shades(top) : null,
  h("p", { class: "note" }, "Rows of a map are queries, columns are keys; darker means more attention, on one scale for all maps."));
}

/** The largest number of a map, which has more numbers than a call takes arguments. */
const largestOf = (rows) => rows.reduce((most, row) => row.reduce((sofar, value) => (known(value) && value > sofar ? value : sofar), most), 0);

/** The scale of the shades, from no attention, or another least value, to the largest one of any map. */
const shades = (top, low = 0) => h("p", { class: "keys" }, short(low), h("span", { class: "shades", style: { background:
  `linear-gradient(to right, ${Array.from({ length: 11 }, (_, k) => `rgb(${shade(k / 10).join(" ")})`).join(", ")})` } }), short(top));

/** The image that the run saved, or the map drawn on a canvas. Only images inside the page are shown. */
function picture({ image, map: rows }, name, top) {
  if (typeof image === "string" && /^data:image\/(png|jpeg|webp|gif);base64,/.test(image)) {
    return h("img", { class: "attention", src: image, alt: `Attention of ${name}` });
  }
  if (!Array.isArray(rows) || !rows.length) return h("p", { class: "empty" }, "No map.");
  const wide = Math.max(...rows.map((row) => row.length));
  const largest = largestOf(rows);
  const canvas = h("canvas", { class: "attention", width: wide, height: rows.length, role: "img", title: `${name}: largest weight ${short(largest)}`,
    "aria-label": `Attention of ${name}: ${rows.length} queries by ${wide} keys` });
  const pixels = new ImageData(wide, rows.length);
  rows.forEach((row, i) => row.forEach((value, j) => {
    pixels.data.set([...shade((known(value) ? value : 0) / top), 255], 4 * (i * wide + j));
  }));
  canvas.getContext("2d").putImageData(pixels, 0, 0);
  return canvas;
}

/** The colour of a share of the largest weight: from near white over blue to near black, always darker; its root is linear. */
function shade(share) {
  const part = Math.sqrt(Math.max(0, Math.min(1, share)));
  return part < 0.5 ? mix([246, 248, 251], [66, 133, 190], part * 2) : mix([66, 133, 190], [8, 20, 58], part * 2 - 1);
}

/** Mix two colours. */
const mix = (from, to, part) => from.map((value, k) => Math.round(value + (to[k] - value) * part));
