// Elements are created by name and text content. No code of this page parses a string as HTML.

const SVG = "http://www.w3.org/2000/svg";
let lastId = 0;

/** A new id for labels and charts. */
function fresh(prefix) {
  lastId += 1;
  return `${prefix}-${lastId}`;
}

/** Set attributes and append children; values that are functions are listeners, "style" is an object. */
function fill(node, attributes, children) {
  for (const [key, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function") node.addEventListener(key.slice(2), value);
    else if (key === "style") for (const [name, text] of Object.entries(value)) node.style.setProperty(name, text);
    else node.setAttribute(key, value === true ? "" : String(value));
  }
  const nodes = children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false);
  node.append(...nodes.map((child) => (child instanceof Node ? child : String(child))));
  return node;
}

/** An HTML element: h("p", {class: "note"}, "text", other). */
function h(tag, attributes, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** An SVG element. */
function s(tag, attributes, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

/** The line of a comparison, or of a sweep, in which every arm is worse than a simple baseline. */
const outdone = ({ better_baseline: text }) => (text ? h("p", { class: "outdone" }, text) : null);

/** A select with its label; `options` are [value, text] pairs. */
function choice(key, label, options, value, change) {
  const id = fresh("choice");
  return h("span", { class: "control" },
    h("label", { for: id }, label),
    h("select", { id, "data-key": key, onchange: (event) => change(event.target.value) },
      options.map(([name, text]) => h("option", { value: name, selected: name === value }, text))));
}

/** A checkbox with its label. */
function tick(key, label, on, change) {
  const id = fresh("tick");
  const box = h("input", { id, type: "checkbox", "data-key": key, onchange: (event) => change(event.target.checked) });
  box.checked = on;
  return h("span", { class: "control" }, box, h("label", { for: id }, label));
}

/** A <details> whose content is built when it is first opened; it stays open across redraws. */
function disclosure(key, summary, build) {
  const box = h("details", { class: "more", "data-open": key }, h("summary", { "data-key": `open:${key}` }, summary));
  const open = () => {
    if (box.open && box.children.length === 1) box.append(build());
  };
  box.addEventListener("toggle", () => {
    state.open[box.open ? "add" : "delete"](key);
    toAddress();
    open();
  });
  box.open = state.open.has(key);
  open();
  return box;
}

/** A plain table in a scrolling box. Cells are text or nodes; `numbers` lists the right-aligned columns. */
function grid(caption, head, rows, numbers = []) {
  const side = (index) => (numbers.includes(index) ? "number" : null);
  return h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": caption },
    h("table", { class: "plain" },
      h("caption", {}, caption),
      h("thead", {}, h("tr", {}, head.map((cell, index) => h("th", { scope: "col", class: side(index) }, cell)))),
      h("tbody", {}, rows.map((row) => h("tr", {}, row.map((cell, index) =>
        index === 0 ? h("th", { scope: "row" }, cell) : h("td", { class: side(index) }, cell)))))));
}
