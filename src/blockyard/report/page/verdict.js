// The first section: claim, answer, expectation, summary, warnings.

const LIKE = 3; // warnings of one kind that become one line
const VERDICTS = { supported: ["✓", "Supported"], contradicted: ["✗", "Contradicted"], undecided: ["?", "Undecided"] };

/** Draw claim, expectation, answer, summary and warnings. */
function drawAnswer(body) {
  const heading = data.claim || data.title || "Comparison";
  fill(body, {}, [
    h("p", { class: "eyebrow" }, heading === data.title ? "comparison" : data.title, data.source ? [" · ", data.source] : null),
    h("h1", {}, heading),
    data.stale ? h("p", { class: "stale", role: "note" }, data.stale, ".") : null,
    data.expect ? expectation(data.expect) : data.claim ? unjudged() : null,
    rest() ? h("p", { class: rest().length > 260 ? "answer long" : "answer" }, rest()) : null,
    outdone(data),
    h("dl", { class: "facts" }, facts().map(([name, value, note]) =>
      h("div", {}, h("dt", {}, name), h("dd", {}, value, note ? h("small", {}, note) : null)))),
    warnings(),
  ]);
}

/** The answer without the expectation's reason, which stands above it. */
function rest() {
  const repeated = data.expect && data.expect.reason ? `${data.expect.reason}. ` : null;
  const start = repeated ? data.answer.indexOf(repeated) : -1;
  return start < 0 ? data.answer : data.answer.slice(start + repeated.length);
}

/** The expectation and its verdict, clause by clause where it has several. */
function expectation({ text, verdict, sense, reason, clauses }) {
  const [sign, name] = VERDICTS[verdict] || ["?", verdict];
  return h("div", { class: `expect ${VERDICTS[verdict] ? verdict : "undecided"}` },
    h("p", { class: "judged" }, h("span", { "aria-hidden": "true" }, sign), name, sense ? h("small", {}, sense) : null),
    h("div", {}, h("p", {}, "Expected: ", h("code", {}, text)), several(clauses) ? h("ul", { class: "clauses" }, clauses.map(clause)) : reason ? h("p", { class: "note" }, reason) : null));
}

const several = (clauses) => clauses && clauses.length > 1;

/** One clause with its own verdict. */
function clause({ text, verdict, reason }) {
  const [sign, name] = VERDICTS[verdict] || ["?", verdict];
  return h("li", { class: verdict }, h("span", { "aria-hidden": "true" }, `${sign} `), h("code", {}, text), ` ${name.toLowerCase()}. `, h("span", { class: "note" }, reason));
}

/** The badge of a claim without an expectation, and the line that would give it a verdict. */
function unjudged() {
  const others = data.arms.map((arm) => arm.name).filter((name) => name !== data.baseline);
  const line = data.baseline && others.length ? `expect: ${others[0]} > ${data.baseline}` : "expect: ARM > OTHER";
  return h("div", { class: "expect undecided" },
    h("p", { class: "judged" }, h("span", { "aria-hidden": "true" }, "?"), "Not judged"),
    h("p", { class: "note" }, "The claim has no expectation, so it has no verdict. A line of the sweep file such as ", h("code", {}, line),
      ", with < for the other direction, gives it one; write it before you run the sweep."));
}

/** The summary of the comparison: [name, value, note]. */
function facts() {
  const cells = data.cells.filter((cell) => cell.state !== "refused");
  const done = cells.filter((cell) => cell.state === "done").length;
  const seeds = allSeeds();
  const open = ["running", "queued", "failed", "interrupted", "missing", "refused"]
    .map((name) => [data.cells.filter((cell) => cell.state === name).length, name])
    .filter(([n]) => n).map(([n, name]) => `${n} ${name}`).join(", ");
  return [
    ["Metric", data.metric, [wish(data.metric), data.margin ? `smallest difference that matters: ${short(data.margin)}` : null].filter(Boolean).join(", ")],
    ["Arms", String(data.arms.length), data.baseline ? `baseline ${data.baseline}` : "no baseline"],
    ["Seeds", String(seeds.length), seeds.length && seeds.length <= 8 ? seeds.join(", ") : null],
    data.cells.length ? ["Cells done", `${done} of ${cells.length}`, open || null] : null,
  ].filter(Boolean);
}

/** The warnings, one line each; those that differ in the arm and in numbers alone open with a press on the first of them. */
function warnings() {
  const groups = [...(data.board && data.board.error ? [[data.board.error]] : []), ...data.warning_groups];
  if (!groups.length) return null;
  const list = (lines) => h("ul", {}, lines.map((line) => h("li", {}, line)));
  return h("aside", { class: "warnings", "aria-label": "Warnings" },
    h("h2", {}, plural(groups.flat().length, "warning")),
    list(groups.flatMap((lines) => (lines.length < LIKE ? lines
      : disclosure(`warnings:${lines[0]}`, [lines[0], h("small", {}, ` and ${lines.length - 1} more like this`)], () => list(lines.slice(1)))))));
}
