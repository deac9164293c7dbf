// What the arms wrote for the sources of the test split.

/** A table: the source, the reference, and what each arm wrote. */
function drawWritten(body) {
  const { arms, rows, of, left_out: others } = data.written;
  const names = Object.keys(arms).filter((arm) => !state.hidden.has(arm));
  if (rows.length) {
    body.append(grid("Written texts", ["source", "reference", ...names.map((arm) => `${arm}, seed ${arms[arm]}`)],
      rows.map((row) => [row.source, row.reference, ...names.map((arm) => {
        const [text, exact] = row.written[arm];
        return h("span", { class: exact ? "right" : "wrong" }, exact ? "✓ " : "✗ ", text);
      })])));
  }
  body.append(h("p", { class: "note" }, `${rows.length} of ${plural(of, "test sample")}, those first that most arms do not write exactly.`,
    others.length ? ` Left out: ${others.join("; ")}.` : ""));
}
