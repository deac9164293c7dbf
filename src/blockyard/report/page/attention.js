// Attention maps that runs have saved.

/** Draw an image for each arm, seed and layer. */
function drawAttention(body) {
  body.append(h("div", { class: "panels narrow" }, data.attention.filter((one) => !state.hidden.has(one.arm)).map((one) => {
    const name = `${one.arm}, seed ${one.seed}, ${one.layer}`;
    return h("figure", { class: "panel" }, picture(one, name), h("figcaption", {}, h("strong", {}, one.arm), ` ${one.layer}, seed ${one.seed}`));
  })), h("p", { class: "note" }, "Rows are queries, columns are keys; darker means more attention. Each map has its own scale."));
}

/** The image that the run saved, or the map drawn on a canvas. Only images inside the page are shown. */
function picture({ image, map: rows }, name) {
  if (typeof image === "string" && /^data:image\/(png|jpeg|webp|gif);base64,/.test(image)) {
    return h("img", { class: "attention", src: image, alt: `Attention of ${name}` });
  }
  if (!Array.isArray(rows) || !rows.length) return h("p", { class: "empty" }, "No map.");
  const wide = Math.max(...rows.map((row) => row.length));
  const canvas = h("canvas", { class: "attention", width: wide, height: rows.length, role: "img",
    "aria-label": `Attention of ${name}: ${rows.length} queries by ${wide} keys` });
  const pixels = new ImageData(wide, rows.length);
  const top = Math.max(...rows.flat().filter(known)) || 1;
  rows.forEach((row, i) => row.forEach((value, j) => {
    const part = Math.sqrt(Math.max(0, known(value) ? value : 0) / top);
    // From near white over blue to near black: lightness decreases monotonically.
    const paint = part < 0.5 ? mix([246, 248, 251], [66, 133, 190], part * 2) : mix([66, 133, 190], [8, 20, 58], part * 2 - 1);
    pixels.data.set([...paint, 255], 4 * (i * wide + j));
  }));
  canvas.getContext("2d").putImageData(pixels, 0, 0);
  return canvas;
}

/** Mix two colours. */
const mix = (from, to, part) => from.map((value, k) => Math.round(value + (to[k] - value) * part));
