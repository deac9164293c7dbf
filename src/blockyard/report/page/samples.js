// What the runs predict for the single test samples: tables of one arm, and the samples to look at.

const CARDS = 8; // samples that are drawn at first

/** Draw the tables of the chosen arm, then its worst samples and the most disputed ones. */
function drawSamples(body) {
  const { arms, kind } = data.samples;
  const names = arms.map(({ arm }) => arm);
  if (!names.includes(state.sampleArm)) state.sampleArm = names.includes(data.baseline) ? data.baseline : names[0];
  const own = arms.find(({ arm }) => arm === state.sampleArm);
  body.append(
    h("div", { class: "controls" }, choice("samples:arm", "Arm", names.map((name) => [name, name]), state.sampleArm, (value) => {
      state.sampleArm = value;
      redraw("samples");
    })),
    h("p", { class: "note" }, sampleNote(own)),
    kind === "classes" ? classTables(own, body.clientWidth) : valueTables(own, body.clientWidth),
    h("h3", {}, `Highest loss: ${state.sampleArm}`),
    ...[cards("worst", data.samples.worst[state.sampleArm] || [], (row) => `loss ${short(row.loss)}`)].flat().filter(Boolean),
    h("h3", {}, "Most disputed"),
    ...(data.samples.disputed.length
      ? [h("p", { class: "note" }, kind === "classes"
        ? `The predicted classes of ${plural(data.samples.runs, "run")} differ; the disagreement is the share of runs that do not predict the most frequent one (variation ratio).`
        : `The standard deviation of the predictions of ${plural(data.samples.runs, "run")}, in standard deviations of the targets.`),
      ...[cards("disputed", data.samples.disputed, (row) => `disagreement ${fixed(row.disagreement, 2)}`)].flat().filter(Boolean)]
      : [h("p", { class: "note" }, data.samples.runs < 2 ? "One run alone disputes nothing." : "All runs agree on every sample.")]));
}

/** How many samples the tables are about, and what was left out. */
function sampleNote({ runs }) {
  const { kept, of, note, left_out: others } = data.samples;
  const size = of && of !== kept ? `${kept.toLocaleString("en")} of ${of.toLocaleString("en")} test samples, evenly spaced` : plural(kept, "test sample");
  return [`${size}; ${plural(runs, "run")} of this arm, best weights. `, note ? `${note}. ` : "",
    others.length ? `Left out: ${others.slice(0, 4).join("; ")}${others.length > 4 ? ` and ${others.length - 4} more` : ""}.` : ""];
}

/** Samples as cards, the first ones and a button for the others; `measure` is the small print of each. */
function cards(key, rows, measure) {
  if (!rows.length) return h("p", { class: "note" }, "None.");
  const whole = `cards:${key}`;
  const cut = state.open.has(whole) || rows.length <= CARDS + 2 || state.printing ? rows : rows.slice(0, CARDS);
  const more = cut.length < rows.length ? h("button", { type: "button", class: "quiet", "data-key": whole,
    onclick: () => { state.open.add(whole); redraw("samples"); } }, `Show all ${rows.length}`) : null;
  return [h("div", { class: "cards" }, cut.map((row) => h("figure", { class: "card", "data-sample": row.sample },
    sampleView(data.samples.views[row.sample], row.sample),
    h("figcaption", {}, ...(drawsLines(row) ? [forecast(row)] : [h("span", {}, h("small", {}, "true "), h("strong", {}, targetText(row))), answerLines(row)]), h("small", {}, `#${row.sample} · ${measure(row)}`))))), more];
}

/** Whether the values of a sample are the steps of a series, to be drawn as one. */
const drawsLines = (row) => data.samples.kind === "values" && row.target.length > 3 && (data.samples.views[row.sample] || {}).lines;

/** True values, in the colour of the text, and those that the first run of each arm predicts. */
function forecast({ sample, target, answers }) {
  const lines = [target, ...Object.values(answers).map(([first]) => first)];
  const strokes = ["var(--ink)", ...Object.keys(answers).map((arm) => look(arm).stroke)];
  return [h("small", {}, "true values, and predicted ones in the colour of the arm"), sketch(lines, sample, strokes)];
}

const className = (index) => (index < 0 ? "no target" : data.samples.classes[index] ?? String(index));

const targetText = ({ target }) => (data.samples.kind === "classes" ? className(target) : target.slice(0, 8).map((value) => short(value)).join(", "));

/** What each arm answers: "pre_norm: 3 (2 runs, 0.91)". The arm's name is left out where there is one. */
function answerLines({ answers, target }) {
  const several = Object.keys(answers).length > 1;
  return Object.entries(answers).map(([arm, votes]) => {
    const text = data.samples.kind === "classes"
      ? votes.map(([index, runs, p]) => h("span", { class: index === target ? "right" : "wrong" },
        `${index === target ? "✓" : "✗"} ${className(index)} `, h("small", {}, `${votes.length > 1 || several ? `${plural(runs, "run")}, ` : ""}p ${fixed(p, 2)}`)))
      : h("span", {}, votes.map((values) => values.slice(0, 8).map((value) => short(value)).join(", ")).join(" · "));
    return h("span", { class: "answers" }, several ? [swatch(arm), h("small", {}, label(arm, 18))] : "→ ", text);
  });
}

/** The picture, graph, lines and text of a sample. Only images inside the page are shown. */
function sampleView(view, sample) {
  if (!view) return h("p", { class: "unseen" }, `sample ${sample}`);
  const image = typeof view.image === "string" && /^data:image\/png;base64,[A-Za-z0-9+/=]+$/.test(view.image) ? view.image : null;
  return [
    image ? h("img", { src: image, alt: `test sample ${sample}` }) : null,
    view.graph ? graph(view.graph, sample) : null,
    Array.isArray(view.lines) ? sketch(view.lines, sample) : null,
    typeof view.text === "string" ? h("blockquote", { tabindex: 0 }, view.text) : null,
  ];
}

/** A drawing of a graph; nodes with the same code have the same colour. */
function graph({ nodes, edges }, sample) {
  const across = scale(extent(nodes.map(([x]) => x), 0.05), [6, 154]);
  const up = scale(extent(nodes.map(([, y]) => y), 0.05), [114, 6]);
  const at = (k) => [across(nodes[k][0]), up(nodes[k][1])];
  return s("svg", { class: "sketch", width: 160, height: 120, viewBox: "0 0 160 120", role: "img", "aria-label": `test sample ${sample}: a graph of ${nodes.length} nodes` },
    edges.map(([i, j]) => s("line", { class: "rule", x1: at(i)[0], y1: at(i)[1], x2: at(j)[0], y2: at(j)[1] })),
    nodes.map(([, , code], k) => s("circle", { cx: at(k)[0], cy: at(k)[1], r: 4, style: { fill: `var(--arm-${code % COLOURS})` } })));
}

/** A small drawing of one or more series. */
function sketch(lines, sample, strokes) {
  const domain = extent(lines.flat(), 0.05);
  if (!domain) return null;
  const across = scale([0, Math.max(...lines.map((line) => line.length)) - 1], [2, 158]);
  const up = scale(domain, [78, 2]);
  return s("svg", { class: "sketch", width: 160, height: 80, viewBox: "0 0 160 80", role: "img", "aria-label": `test sample ${sample}` },
    lines.map((line, k) => s("path", { class: "line", d: path(line.map((value, x) => [across(x), value]).filter(([, value]) => known(value)).map(([x, value]) => [x, up(value)])),
      style: { stroke: strokes ? strokes[k] : `var(--arm-${k % COLOURS})` } })));
}
