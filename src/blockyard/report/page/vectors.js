// The page of vectors: points of a projection, and the nearest neighbours of the picked one.

const data = JSON.parse(document.getElementById("data").textContent);
const [WIDTH, HEIGHT, EDGE] = [640, 520, 14];
const COLOURS = 7;
const SHAPES = ["M-1-1H1V1H-1Z", "M0-1.3 1.2 1-1.2 1Z", "M0-1.4 1.3 0 0 1.4-1.3 0Z", "M0 1.3 1.2-1-1.2-1Z"];
const ROUND = "M-1.1 0A1.1 1.1 0 1 0 1.1 0 1.1 1.1 0 1 0-1.1 0Z";
let picked = data.shown[0];

/** The colour and the shape of a class, so that none differs by colour alone. */
function look(kind) {
  const shapes = [ROUND, ...SHAPES];
  return { fill: `var(--arm-${kind % COLOURS})`, d: shapes[(kind + Math.floor(kind / COLOURS)) % shapes.length] };
}

const kindOf = (point) => (data.classes ? data.classes[point] : 0);
const className = (point) => (data.classes ? data.class_names[kindOf(point)] : null);
const at = new Map(data.shown.map((point, row) => [point, row]));

/** A function from values to pixels. */
function scale(values, low, high) {
  const drawn = data.shown.map((point) => values[point]);
  const [least, most] = [Math.min(...drawn), Math.max(...drawn)];
  return (value) => low + ((value - least) / (most - least || 1)) * (high - low);
}

/** The projection. */
function map() {
  const [x, y] = [scale(data.x, EDGE, WIDTH - EDGE), scale(data.y, HEIGHT - EDGE, EDGE)];
  const points = data.shown.map((point) => {
    const { fill, d } = look(kindOf(point));
    return s("path", { d, fill, "data-point": point,
      transform: `translate(${x(data.x[point]).toFixed(1)} ${y(data.y[point]).toFixed(1)}) scale(4)`,
      "vector-effect": "non-scaling-stroke", onclick: () => pick(point) },
    s("title", {}, className(point) === null ? data.names[point] : `${data.names[point]}: ${className(point)}`));
  });
  return s("svg", { class: "map", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": `${data.shown.length} vectors, ${data.projection}` }, points);
}

/** A row of the list: picture, name, class, cosine. */
function row(point, cosine) {
  return h("li", {},
    data.pictures && h("img", { src: data.pictures[point], alt: "" }),
    at.has(point) ? h("button", { type: "button", onclick: () => pick(point) }, data.names[point]) : h("span", {}, data.names[point]),
    h("small", {}, [className(point), cosine === null ? null : cosine.toFixed(3)].filter((text) => text !== null).join(" · ")));
}

/** Show a vector and its neighbours. */
function pick(point) {
  picked = point;
  const place = at.get(point);
  const near = data.neighbours[place];
  document.getElementById("picked").replaceChildren(
    h("ul", { class: "nearest" }, row(point, null)),
    h("h3", {}, `Nearest ${near.length} by cosine`),
    h("ul", { class: "nearest" }, near.map((other, rank) => row(other, data.cosines[place][rank]))));
  for (const node of document.querySelectorAll(".map path")) {
    const own = Number(node.dataset.point);
    node.classList.toggle("picked", own === picked);
    node.classList.toggle("near", near.includes(own));
    if (own === picked) node.parentNode.append(node);
  }
}

/** Pick the first input whose name or class has the text. */
function find(text) {
  const wanted = text.trim().toLowerCase();
  const match = wanted && data.shown.find((point) => `${data.names[point]} ${className(point) ?? ""}`.toLowerCase().includes(wanted));
  if (match !== undefined && match !== "") pick(match);
}

const kinds = [...new Set(data.shown.map(kindOf))].sort((a, b) => a - b);
document.getElementById("main").append(
  h("section", { class: "sheet" },
    h("h1", {}, data.title), data.facts.map((fact) => h("p", { class: "note" }, fact))),
  h("div", { class: "vectors" },
    h("section", { class: "sheet" }, h("h2", {}, `Projection: ${data.projection}`), map(),
      data.classes && h("ul", { class: "kinds" }, kinds.map((kind) =>
        h("li", {}, s("svg", { viewBox: "-2 -2 4 4" }, s("path", look(kind))), data.class_names[kind])))),
    h("section", { class: "sheet" }, h("h2", {}, "Neighbours"),
      h("input", { class: "search", type: "search", placeholder: "Find an input by its name or class", "aria-label": "Find an input", oninput: (event) => find(event.target.value) }),
      h("div", { id: "picked", "aria-live": "polite" }))));
pick(picked);
theme();
