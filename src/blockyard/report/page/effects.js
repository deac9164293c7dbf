// The effects of a grid: each factor's main effect, and the interactions of pairs.

/** Draw the table of main effects and a panel for each pair of factors. */
function drawEffects(body) {
  const { main, interactions, formula } = data.effects;
  const digits = decimals([0, ...main.flatMap((one) => [one.effect, ...(one.interval || [])])], main.map((one) => one.interval));
  if (main.length) {
    body.append(grid(`Effect of each level on ${data.metric}, relative to the first level of its factor`,
      ["factor", "level", "reference", "effect", "95 % interval", "p", "p (Holm)"],
      main.map((one) => [one.factor, word(one.level), word(one.reference), change(one.effect, digits), interval(one.interval, digits) || NONE,
        chance(one.p), chance(one.holm_p)]), [3, 4, 5, 6]));
  }
  if (interactions.length) {
    const sorted = [...interactions].sort((a, b) => (a.holm_p ?? 2) - (b.holm_p ?? 2));
    const width = Math.max(260, Math.min(400, body.clientWidth < 760 ? body.clientWidth - 4 : Math.floor((body.clientWidth - 52) / (body.clientWidth > 1000 ? 3 : 2))));
    body.append(h("h3", {}, "Interactions"),
      h("p", { class: "note" }, "Parallel lines: the two factors act independently. Crossing or diverging lines: the effect of one depends on the other."),
      h("div", { class: "panels" }, sorted.map((one, index) => interaction(one, width, index))));
  }
  if (formula) body.append(h("p", { class: "note" }, formula.includes(" ~ ") ? ["Ordinary least squares: ", h("code", {}, formula)] : `Effects: ${formula}.`));
}

/** Cell means: levels of one factor on the x axis, a line for each level of the other. */
function interaction({ factors, F, p, holm_p: holm, cells, levels }, width, index) {
  const [across, lines] = levels;
  const domain = extent(cells.flat(), 0.1);
  if (!domain) return null;
  const styles = lines.map((_, k) => ({ stroke: `var(--arm-${k % COLOURS})`, dash: DASHES[k % DASHES.length], kind: MARKERS[k % MARKERS.length] }));
  const chart = frame({ width, height: 240, margin: { right: 20, left: 54 },
    title: `Mean ${data.metric} by ${factors[0]} and ${factors[1]}`,
    desc: lines.map((line, k) => `${factors[1]} ${word(line)}: ${across.map((level, i) => `${word(level)} ${short(cells[i][k])}`).join(", ")}.`).join(" "),
    x: { domain: [-0.3, across.length - 0.7], label: factors[0], ticks: across.map((level, k) => [k, cut(word(level), Math.max(4, Math.floor(width / across.length / 8)))]) },
    y: { domain } });
  lines.forEach((_, k) => {
    const dots = across.map((__, i) => [i, cells[i][k]]).filter(([, value]) => known(value)).map(([i, value]) => [chart.x(i), chart.y(value)]);
    const { stroke, dash, kind } = styles[k];
    chart.plot.append(s("path", { class: "line", d: path(dots), "stroke-dasharray": dash, style: { stroke } }),
      ...dots.map(([x, y]) => s("path", { d: shape(kind, x, y, 4.5), style: { fill: stroke, stroke: "var(--ground)" } })));
  });
  const keys = h("p", { class: "keys" }, `${factors[1]}: `, lines.map((line, k) => h("span", {},
    s("svg", { class: "swatch", width: 24, height: 12, viewBox: "0 0 24 12", "aria-hidden": "true" },
      s("line", { x1: 0, x2: 24, y1: 6, y2: 6, "stroke-dasharray": styles[k].dash, style: { stroke: styles[k].stroke, "stroke-width": "2" } }),
      s("path", { d: shape(styles[k].kind, 12, 6, 4), style: { fill: styles[k].stroke } })), word(line))));
  return h("figure", { class: "figure panel" },
    h("h4", {}, `${factors[0]} × ${factors[1]}`), keys, chart.root,
    h("figcaption", {}, `F = ${short(F)}, p ${equal(p)}, Holm-corrected p ${equal(holm)}`),
    disclosure(`data:effects:${index}`, "Show data", () => grid(`Mean ${data.metric}`, [`${factors[0]} \\ ${factors[1]}`, ...lines.map(word)],
      across.map((level, i) => [word(level), ...lines.map((_, k) => short(cells[i][k]))]), lines.map((_, k) => k + 1))));
}
