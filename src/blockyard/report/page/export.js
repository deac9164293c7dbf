// Charts as SVG and PNG files, tables as CSV files. The page makes them itself and asks no server.

const DRAWN = ["fill", "fill-opacity", "stroke", "stroke-width", "stroke-opacity", "stroke-dasharray", "stroke-linecap",
  "stroke-linejoin", "paint-order", "opacity", "font-family", "font-size", "font-weight", "text-anchor"];

/** The text of an SVG file of a chart: what the page's style draws is written into each element. */
function svgText(chart) {
  const copy = chart.cloneNode(true);
  const copies = [copy, ...copy.querySelectorAll("*")];
  [chart, ...chart.querySelectorAll("*")].forEach((node, k) => {
    const style = getComputedStyle(node);
    for (const name of DRAWN) copies[k].setAttribute(name, style.getPropertyValue(name));
    copies[k].removeAttribute("class");
    copies[k].removeAttribute("style"); // it names variables of the page
    if (node.getAttribute("fill") === "transparent") copies[k].remove(); // it only feels the pointer
  });
  const { width, height } = chart.viewBox.baseVal;
  fill(copy, { width, height, xmlns: SVG }, []);
  copy.prepend(s("rect", { width, height, fill: ground(chart) }));
  return new XMLSerializer().serializeToString(copy);
}

/** The colour behind an element. */
function ground(node) {
  const colour = getComputedStyle(node).backgroundColor;
  return colour === "rgba(0, 0, 0, 0)" && node.parentElement ? ground(node.parentElement) : colour;
}

/** Draw a chart at twice its size and pass it on as a PNG. */
function toPng(chart, then) {
  const picture = new Image();
  picture.addEventListener("load", () => {
    const { width, height } = chart.viewBox.baseVal;
    const canvas = h("canvas", { width: 2 * width, height: 2 * height });
    canvas.getContext("2d").drawImage(picture, 0, 0, canvas.width, canvas.height);
    canvas.toBlob(then, "image/png");
  });
  picture.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(svgText(chart))}`;
}

/** The text of a CSV file of a table as it stands on the page, without the details of opened rows. */
function csvText(table) {
  const lines = [...table.rows].filter((row) => !row.matches(".detail, .groups"));
  return lines.map((row) => [...row.cells].map(csvCell).join(",")).join("\r\n") + "\r\n";
}

/** A cell in quotes. Text that a spreadsheet would take for a formula starts with an apostrophe. */
function csvCell(cell) {
  const text = spoken(cell).replace(/\s+/g, " ").trim().replace(/^−(?=\d)/, "-");
  const safe = /^[=+@-]/.test(text) && !/^[+-]?[\d.]/.test(text) ? `'${text}` : text;
  return `"${safe.replaceAll('"', '""')}"`;
}

/** The text inside a node, without pictures and without signs that a screen reader leaves out. */
function spoken(node) {
  if (node.nodeType === Node.TEXT_NODE) return node.textContent;
  if (node.nodeType !== Node.ELEMENT_NODE || node.localName === "svg" || node.getAttribute("aria-hidden") === "true") return "";
  const text = [...node.childNodes].map(spoken).join("");
  return ["div", "small", "p"].includes(node.localName) ? ` ${text} ` : text;
}

/** Let the browser save a file; its name is made of letters, digits and dashes. */
function save(name, end, blob) {
  const plain = `${data.title || "comparison"} ${name}`.toLowerCase().replace(/[^a-z0-9]+/g, "-").replace(/^-|-$/g, "");
  const address = URL.createObjectURL(blob);
  const link = h("a", { href: address, download: `${plain.slice(0, 80)}.${end}` });
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), 60_000);
}

/** Buttons that save the charts of a figure and its table. charts: a function that lists them; table: one, or null. */
function saving(key, charts, table) {
  const button = (end, press) => h("button", { type: "button", "data-key": `save:${key}:${end}`, onclick: press }, end.toUpperCase());
  const each = (work) => charts().forEach((chart, k, all) => work(chart, all.length > 1 ? `${key} ${k + 1}` : key));
  return h("div", { class: "save" }, h("span", {}, "Save as"),
    charts ? [button("svg", () => each((chart, name) => save(name, "svg", new Blob([svgText(chart)], { type: "image/svg+xml" })))),
      button("png", () => each((chart, name) => toPng(chart, (blob) => save(name, "png", blob))))] : null,
    table ? button("csv", () => save(key, "csv", new Blob(["\ufeff", csvText(table())], { type: "text/csv" }))) : null);
}
