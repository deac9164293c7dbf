// The claim, the answer and what to beware of: the first screen.

const JUDGED = { supported: ["✓", "Supported"], contradicted: ["✗", "Contradicted"], undecided: ["?", "Undecided"] };

/** Claim, answer, expectation, the run of things in figures, warnings. */
function drawAnswer(body) {
  const heading = data.claim || data.title || "Comparison";
  fill(body, {}, [
    h("p", { class: "eyebrow" }, heading === data.title ? "comparison" : data.title, data.source ? [" · ", data.source] : null),
    h("h1", {}, heading),
    data.stale ? h("p", { class: "stale", role: "note" }, data.stale, ".") : null,
    data.expect ? expectation(data.expect) : null,
    rest() ? h("p", { class: rest().length > 260 ? "answer long" : "answer" }, rest()) : null,
    h("dl", { class: "facts" }, facts().map(([name, value, note]) =>
      h("div", {}, h("dt", {}, name), h("dd", {}, value, note ? h("small", {}, note) : null)))),
    warnings(),
  ]);
}

/** The answer, without the expectation's reason where that has just been read. */
function rest() {
  const said = data.expect && data.expect.reason ? `${data.expect.reason}. ` : null;
  const place = said ? data.answer.indexOf(said) : -1;
  return place < 0 ? data.answer : data.answer.slice(place + said.length);
}

/** What the file expected and how it came out. */
function expectation({ text, verdict, reason }) {
  const [sign, name] = JUDGED[verdict] || ["?", verdict];
  return h("div", { class: `expect ${JUDGED[verdict] ? verdict : "undecided"}` },
    h("p", { class: "judged" }, h("span", { "aria-hidden": "true" }, sign), name),
    h("div", {}, h("p", {}, "Expected: ", h("code", {}, text)), reason ? h("p", { class: "note" }, reason) : null));
}

/** [name, value, note] of the comparison at a glance. */
function facts() {
  const wanted = data.cells.filter((cell) => cell.state !== "refused");
  const done = wanted.filter((cell) => cell.state === "done").length;
  const seeds = allSeeds();
  const open = ["running", "queued", "failed", "interrupted", "missing", "refused"]
    .map((name) => [data.cells.filter((cell) => cell.state === name).length, name])
    .filter(([n]) => n).map(([n, name]) => `${n} ${name}`).join(", ");
  return [
    ["Metric", data.metric, [wish(data.metric), data.margin ? `differences from ${short(data.margin)} on matter` : null].filter(Boolean).join(", ")],
    ["Arms", String(data.arms.length), data.baseline ? `baseline ${data.baseline}` : "no baseline"],
    ["Seeds", String(seeds.length), seeds.length && seeds.length <= 8 ? seeds.join(", ") : null],
    data.cells.length ? ["Cells done", `${done} of ${wanted.length}`, open || null] : null,
  ].filter(Boolean);
}

/** Everything that limits the answer, one line each. */
function warnings() {
  const lines = [...(data.board && data.board.error ? [data.board.error] : []), ...data.warnings];
  if (!lines.length) return null;
  return h("aside", { class: "warnings", "aria-label": "Warnings" },
    h("h2", {}, plural(lines.length, "thing to know", "things to know")),
    h("ul", {}, lines.map((line) => h("li", {}, line))));
}
