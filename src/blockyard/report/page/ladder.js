// The ladder of sizes: loss against compute on logarithmic axes, with the law of each arm.

function drawLadder(body) {
  if (data.ladder) drawLaws(body);
  if (!data.decisions?.length) return;
  const share = (count, all) => (all ? `${count} of ${all} (${fixed(100 * count / all, 0)} %)` : "");
  body.append(grid("Pairs of arms that a rung orders as the largest one does", ["metric", "rung", "largest", "same sign", "of those told apart there"],
    data.decisions.map((row) => [row.metric, row.rung, row.largest, share(row.kept, row.pairs), share(row.decided_kept, row.decided)]), [3, 4]));
}

/** Draw the losses of all rungs, the laws, and what each arm is worth in compute. */
function drawLaws(body) {
  const { arms, baseline, farther, factor, unfitted = [] } = data.ladder;
  const all = [...arms, ...unfitted];
  const width = Math.max(280, Math.min(900, body.clientWidth));
  const last = Math.max(...all.flatMap((arm) => arm.compute));
  const first = Math.min(...all.flatMap((arm) => arm.compute));
  const law = (arm, compute) => arm.floor + arm.scale * compute ** -arm.power;
  const losses = [...arms.map((arm) => law(arm, farther * last)), ...all.flatMap((arm) => arm.loss)];
  const chart = frame({ width, height: Math.max(280, Math.min(420, width * 0.5)), title: `${data.metric} by FLOPs of training`,
    desc: all.map((arm) => `${arm.name}: ${arm.loss.map((loss) => short(loss)).join(", ")}; ${known(arm.power) ? `power ${short(arm.power)}` : "no law"}.`).join(" "),
    x: { domain: [first / 1.3, farther * last * 1.3], label: "FLOPs of training", logarithm: true, format: count },
    y: { domain: extent(losses, 0.06, true), label: data.metric, logarithm: true }, margin: { top: 30 } });
  chart.plot.append(s("line", { class: "goal", x1: chart.x(last), x2: chart.x(last), y1: chart.top, y2: chart.bottom, "stroke-dasharray": "2 4", style: { stroke: "var(--baseline)" } }));
  all.forEach((arm, k) => {
    const { stroke, dash, marker: kind } = ladderLook(arm.name, k);
    const steps = Array.from({ length: 60 }, (_, n) => first * (farther * last / first) ** (n / 59));
    if (known(arm.power)) chart.plot.append(s("path", { class: "line", d: path(steps.map((compute) => [chart.x(compute), chart.y(law(arm, compute))])), "stroke-dasharray": dash, style: { stroke } }));
    arm.compute.forEach((compute, n) => chart.plot.append(s("path", { d: shape(kind, chart.x(compute), chart.y(arm.loss[n]), 4.5), style: { fill: stroke, stroke: "var(--ground)" } })));
  });
  const keys = h("p", { class: "keys" }, all.map((arm, k) => {
    const { stroke, dash, marker: kind } = ladderLook(arm.name, k);
    return h("span", {}, s("svg", { class: "swatch", width: 30, height: 12, viewBox: "0 0 30 12", "aria-hidden": "true", focusable: "false" },
      known(arm.power) ? s("line", { x1: 1, x2: 29, y1: 6, y2: 6, "stroke-dasharray": dash, style: { stroke, "stroke-width": "2" } }) : null,
      s("path", { d: shape(kind, 15, 6, 4), style: { fill: stroke } })), arm.name);
  }));
  const ends = ([low, high]) => `[${fixed(low, 2)}, ${known(high) ? fixed(high, 2) : "any"}]`;
  // Without a number the loss of the arm is below what the baseline's law can reach.
  const times = (value, pair) => (known(value) ? [`×${short(value)}`, pair && known(pair[0]) ? h("small", {}, ` ${ends(pair)}`) : null] : "beyond any compute");
  const withheld = (reason) => ["withheld", h("small", {}, `: ${reason}`)];
  body.append(grid(`What each arm is worth in compute, against ${baseline}`,
    ["arm", "compute multiplier", "gap", `at ${farther} times the compute (extrapolated)`, "power a", "largest rung, predicted from the others"],
    [...arms.map((arm) => [arm.name, arm.name === baseline ? "baseline" : arm.withheld ? withheld(arm.withheld) : times(arm.multiplier, arm.interval), arm.trend || "",
      arm.name === baseline || arm.withheld ? "" : arm.farther_withheld ? withheld(arm.farther_withheld) : times(arm.farther, arm.farther_interval),
      short(arm.power), [`${change(100 * arm.held_out, 1)} %`, arm.held_out_interval ? h("small", {}, ` [${arm.held_out_interval.map((end) => change(100 * end, 1)).join(", ")}]`) : null]]), ...unfitted.map((arm) => [arm.name, `no law fits (largest error ${short(100 * arm.worst)} %)`, "", "", "", ""])], [1, 3, 4, 5]),
  figure("ladder", {
    chart: h("div", {}, keys, chart.root),
    caption: `Means of each rung${factor === "rung" ? "" : ` of ${factor}`} (markers) and the law L = E + A / C^a of each arm, with ${data.ladder.floors === "own" ? "an E each" : "one E for all"}. Right of the dotted line the laws are extrapolated. ${unfitted.length ? "No law fits markers without a line. " : ""}` +
      "The multiplier is how many times the compute the baseline needs for the loss that the arm has at the largest rung; intervals are 95 %, from a bootstrap over seeds.",
    table: () => grid("Loss by compute", ["arm", "training FLOPs", data.metric], all.flatMap((arm) => arm.compute.map((compute, n) => [n ? "" : arm.name, count(compute), short(arm.loss[n], 4)])), [1, 2]),
  }));
}

/** The style of an arm of the ladder, which stands for several arms of the table. */
function ladderLook(name, k) {
  if (name === data.ladder.baseline) return { stroke: "var(--baseline)", dash: null, marker: "circle" };
  return { stroke: `var(--arm-${k % COLOURS})`, dash: DASHES[k % DASHES.length], marker: MARKERS[(k + 1) % MARKERS.length] };
}
