// Colour, dash and marker of each arm: arms never differ by colour alone. The colours are in style.css.

const COLOURS = 7;
const DASHES = [null, "7 3", "2 3", "9 3 2 3", "13 4"];
const MARKERS = ["circle", "square", "triangle", "diamond", "cross", "down"];

/** The style of a line that is no arm's, by its number. */
const styleOf = (k) => ({ stroke: `var(--arm-${k % COLOURS})`, dash: DASHES[k % DASHES.length], marker: MARKERS[(k + 1) % MARKERS.length], width: 2 });

/** The style of an arm: {stroke, dash, marker, width}. The baseline is drawn in the text colour, solid, with circles. */
function look(name) {
  if (name === data.baseline) return { stroke: "var(--baseline)", dash: null, marker: "circle", width: 2.5 };
  const others = data.arms.map((arm) => arm.name).filter((other) => other !== data.baseline);
  const index = Math.max(0, others.indexOf(name));
  return { ...styleOf(index), dash: DASHES[(index + Math.floor(index / COLOURS)) % DASHES.length] };
}

/** The attribute by which the legend highlights an arm's marks in every chart. */
const tag = (name) => ({ "data-arm": data.arms.findIndex((arm) => arm.name === name) });

/** The path of a marker around a point. */
function shape(kind, x, y, r) {
  const at = (dx, dy) => `${(x + dx * r).toFixed(1)},${(y + dy * r).toFixed(1)}`;
  switch (kind) {
    case "square": return `M${at(-0.9, -0.9)}L${at(0.9, -0.9)}L${at(0.9, 0.9)}L${at(-0.9, 0.9)}Z`;
    case "triangle": return `M${at(0, -1.15)}L${at(1.1, 0.85)}L${at(-1.1, 0.85)}Z`;
    case "down": return `M${at(0, 1.15)}L${at(1.1, -0.85)}L${at(-1.1, -0.85)}Z`;
    case "diamond": return `M${at(0, -1.25)}L${at(1.25, 0)}L${at(0, 1.25)}L${at(-1.25, 0)}Z`;
    case "cross": return `M${at(-0.4, -1.1)}L${at(0.4, -1.1)}L${at(0.4, -0.4)}L${at(1.1, -0.4)}L${at(1.1, 0.4)}L${at(0.4, 0.4)}` +
      `L${at(0.4, 1.1)}L${at(-0.4, 1.1)}L${at(-0.4, 0.4)}L${at(-1.1, 0.4)}L${at(-1.1, -0.4)}L${at(-0.4, -0.4)}Z`;
    default: return `M${at(-1, 0)}a${r},${r} 0 1,0 ${2 * r},0a${r},${r} 0 1,0 ${-2 * r},0Z`;
  }
}

/** A marker in an arm's colour, outlined in the background colour so that neighbours stay apart. */
const marker = (name, x, y, r, hollow) => fill(mark(look(name), x, y, r, hollow), tag(name), []);

/** A marker of a style. */
function mark({ stroke, marker: kind }, x, y, r, hollow) {
  const paint = hollow ? { fill: "var(--ground)", stroke } : { fill: stroke, stroke: "var(--ground)" };
  return s("path", { d: shape(kind, x, y, r), style: { ...paint, "stroke-width": hollow ? "1.8" : "1" } });
}

/** The line and marker before an arm's name, or before another name in a style of its own. */
function swatch(name, style = look(name)) {
  const { stroke, dash, width } = style;
  return s("svg", { class: "swatch", width: 30, height: 12, viewBox: "0 0 30 12", "aria-hidden": "true", focusable: "false" },
    s("line", { x1: 1, x2: 29, y1: 6, y2: 6, "stroke-dasharray": dash, style: { stroke, "stroke-width": String(width) } }),
    mark(style, 15, 6, 4));
}
