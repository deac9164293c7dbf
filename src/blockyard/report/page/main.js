// The page: sections are drawn when they come near the viewport and redrawn when a choice changes.

const SECTIONS = [
  { id: "answer", name: "Answer", draw: drawAnswer, bare: true },
  { id: "table", name: "Arms", heading: "Arms", draw: drawTable, here: () => data.arms.length },
  { id: "evidence", name: "Evidence", heading: "Evidence over seeds", draw: drawEvidence, chart: true, here: () => data.evidence },
  { id: "curves", name: "Curves", heading: "Learning curves", draw: drawCurves, chart: true, here: () => data.curves.length && state.metric },
  { id: "layers", name: "Layers", heading: "Layers while training", draw: (body) => drawLayers(body), chart: true, here: () => typeof layerStatistics === "function" && layerStatistics().size },
  { id: "ladder", name: "Ladder", heading: "Ladder of sizes", draw: drawLadder, here: () => data.ladder || data.decisions?.length },
  { id: "cost", name: "Cost", heading: "Quality against cost", draw: drawScatter, chart: true, here: () => state.cost },
  { id: "pairs", name: "Seeds", heading: "Results by seed", draw: drawPairs, chart: true, here: () => data.arms.some((arm) => known(arm.mean)) },
  { id: "effects", name: "Options", heading: "Options", draw: drawEffects, chart: true, here: () => data.effects || overOptions() },
  { id: "tuning", name: "Tuning", heading: "Tuning", draw: drawTuning, chart: true, here: () => data.tuning.some((one) => known(one.mean)) },
  { id: "cells", name: "Cells", heading: "Cells", draw: drawCells, here: () => data.cells.length },
  { id: "attention", name: "Attention", heading: "Attention maps", draw: drawAttention, chart: true, here: () => data.attention.length },
  { id: "predictions", name: "Predictions", heading: "Predictions", draw: drawPredictions, chart: true, here: () => data.predictions.length },
  { id: "samples", name: "Samples", heading: "Test samples", draw: drawSamples, chart: true, here: () => data.samples },
  { id: "written", name: "Texts", heading: "Written texts", draw: drawWritten, chart: true, here: () => data.written },
  { id: "provenance", name: "Provenance", heading: "Provenance", draw: drawProvenance },
];

// On a phone these sections show their heading only, until it is pressed: a page of all of them is twenty screens long.
const FOLDED = new Set(["evidence", "layers", "ladder", "pairs", "effects", "tuning", "cells", "attention", "predictions", "samples", "written", "provenance"]);
const PHONE = matchMedia("(max-width: 640px)");

/** Whether a section shows its heading only. */
const foldedUp = (id) => PHONE.matches && !state.printing && FOLDED.has(id) && !state.open.has(`section:${id}`);

/** Open or close a section; one that is opened is drawn. */
function foldSection(id) {
  const node = document.getElementById(id);
  const up = foldedUp(id);
  node.classList.toggle("folded", up);
  const button = node.querySelector("h2 > button");
  if (button) { // nothing folds on a wide screen, so the heading takes no focus there
    button.disabled = !PHONE.matches;
    if (PHONE.matches) button.setAttribute("aria-expanded", String(!up));
    else button.removeAttribute("aria-expanded");
  }
  const body = node.querySelector(".body");
  if (up || drawn.has(id)) body.classList.remove("waiting");
  if (!up && !drawn.has(id)) {
    body.classList.add("waiting");
    watch.observe(body);
  }
}

/** Open the section that a link points to. */
function unfold(id) {
  if (!foldedUp(id) || !document.getElementById(id)) return;
  state.open.add(`section:${id}`);
  foldSection(id);
  paint(id);
}

/** The heading of a section; on a phone a button that opens and closes it. */
function sectionHeading(id, heading) {
  if (!FOLDED.has(id)) return h("h2", {}, heading);
  return h("h2", {}, h("button", { type: "button", class: "unfold", "data-key": `fold:${id}`, "aria-expanded": "true", onclick: () => {
    state.open[state.open.has(`section:${id}`) ? "delete" : "add"](`section:${id}`);
    foldSection(id);
    toAddress();
  } }, heading));
}

const drawn = new Set();
const watch = new IntersectionObserver((entries) => {
  for (const entry of entries) if (entry.isIntersecting) paint(entry.target.closest("section").id);
}, { rootMargin: "600px 0px" });

/** Draw the sections that nobody has scrolled to, one at a time while the browser is idle: for searches and whole-page pictures. */
function drawRest() {
  const next = SECTIONS.find(({ id }) => !drawn.has(id) && document.getElementById(id) && !foldedUp(id));
  if (!next) return;
  paint(next.id);
  (window.requestIdleCallback || setTimeout)(drawRest);
}

/** Draw or redraw the content of one section. */
function paint(id) {
  const body = document.querySelector(`#${id} > .body`);
  if (!body) return;
  drawn.add(id);
  watch.unobserve(body);
  body.classList.remove("waiting");
  body.replaceChildren();
  SECTIONS.find((section) => section.id === id).draw(body);
}

/** Redraw what a choice affects: a section, "arms" for all charts, or "all". Keeps the focus. */
function redraw(what) {
  const key = document.activeElement && document.activeElement.dataset ? document.activeElement.dataset.key : null;
  const scrolled = [...document.querySelectorAll("#table .scroll")].map((box) => box.scrollLeft);
  for (const { id, chart } of SECTIONS) {
    if (drawn.has(id) && !foldedUp(id) && (what === "all" || what === id || (chart && what === "arms"))) paint(id);
  }
  const bar = document.querySelector(".legend");
  if (bar && (what === "arms" || what === "all")) { bar.replaceWith(legend()); measureLegend(); }
  [...document.querySelectorAll("#table .scroll")].forEach((box, k) => { box.scrollLeft = scrolled[k] || 0; });
  if (key && document.activeElement.dataset.key !== key) {
    const again = document.querySelector(`[data-key="${CSS.escape(key)}"]`);
    if (again) again.focus({ preventScroll: true });
  }
  if (!state.printing) toAddress();
}

/** Create the sections for which there is data, in order, the charts together under one legend. */
function build() {
  const main = document.getElementById("main");
  const present = SECTIONS.filter((section) => !section.here || section.here());
  const same = present.map((section) => section.id).join() === [...main.querySelectorAll("section[data-section]")].map((node) => node.id).join();
  if (same) return redraw("all");
  drawn.clear();
  watch.disconnect();
  const nodes = new Map(present.map(({ id, heading, bare }) => [id, h("section", { id, "data-section": true, class: bare ? "sheet lead" : "sheet",
    "aria-label": heading || "Answer" }, heading ? sectionHeading(id, heading) : null, h("div", { class: "body waiting" }))]));
  const charts = present.filter(({ chart, id }) => chart && !["attention", "predictions", "samples", "written"].includes(id)).map(({ id }) => nodes.get(id));
  const group = h("div", { class: "charts" }, charts.length ? legend() : null, charts);
  const before = present.filter(({ id }) => id === "answer" || id === "table").map(({ id }) => nodes.get(id));
  const rest = [...nodes.values()].filter((node) => !before.includes(node) && !charts.includes(node));
  main.replaceChildren(...before, group, ...rest);
  document.getElementById("nav").replaceChildren(...present.map(({ id, name }) => h("a", { href: `#${id}`, onclick: (event) => goTo(event, id) }, name)));
  for (const { id } of present) {
    if (id === "answer" || id === "table") paint(id);
    else foldSection(id);
  }
  measureLegend();
  (window.requestIdleCallback || setTimeout)(drawRest);
  return undefined;
}

/** Tell the style how high the legend is, so that a jump to a section does not end below it. */
function measureLegend() {
  const bar = document.querySelector(".legend");
  if (bar) document.documentElement.style.setProperty("--legend", `${Math.ceil(bar.getBoundingClientRect().height)}px`);
}

/** When printing, every section is drawn and every row is open. */
function printing(on) {
  state.printing = on;
  for (const { id } of SECTIONS) if (FOLDED.has(id) && document.getElementById(id)) foldSection(id);
  if (on) for (const { id } of SECTIONS) if (!drawn.has(id)) paint(id);
  redraw("table");
}

theme();
begin();
fromAddress();
build();
if (section()) unfold(section());
if (section() && document.getElementById(section())) document.getElementById(section()).scrollIntoView();
addEventListener("hashchange", () => {
  if (!location.hash.includes("&")) return toAddress(); // a link to a section: the choices stay
  fromAddress(); // an address typed over this one
  return redraw("all");
});
let width = document.getElementById("main").clientWidth;
new ResizeObserver(() => {
  const now = document.getElementById("main").clientWidth;
  if (now !== width) requestAnimationFrame(() => { redraw("arms"); redraw("table"); });
  width = now;
}).observe(document.getElementById("main"));
PHONE.addEventListener("change", () => { for (const id of FOLDED) if (document.getElementById(id)) foldSection(id); });
addEventListener("beforeprint", () => printing(true));
addEventListener("afterprint", () => printing(false));
addEventListener("scroll", untip, { passive: true });
followBoard();
