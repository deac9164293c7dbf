// The legend: one switch for each arm, for all charts, and why an arm has none.

const NAMED = 3; // arms without a value that are named

/** The bar of arm switches with "All", "None" and, with many arms, "Leading". */
function legend() {
  const many = data.arms.length > SHOWN;
  const first = many ? leaders() : new Set(); // of many, those that are drawn at first need no scrolling
  const set = (names) => {
    state.hidden = new Set(data.arms.map((arm) => arm.name).filter((name) => !names.has(name)));
    redraw("arms");
  };
  const quick = (key, text, names) =>
    h("button", { type: "button", class: "quiet", "data-key": `legend:${key}`, onclick: () => set(names()) }, text);
  const single = (index) => {
    for (const mark of document.querySelectorAll(".charts .chart [data-arm]")) {
      mark.classList.toggle("dim", index !== null && mark.dataset.arm !== String(index));
      if (mark.classList.contains("pointed")) mark.classList.toggle("on", mark.dataset.arm === String(index));
    }
  };
  const absent = data.arms.filter((arm) => !drawable().includes(arm));
  return h("div", { class: "legend", role: "group", "aria-label": "Arms shown in the charts" },
    h("div", { class: "switches" }, [...drawable()].sort((a, b) => first.has(b.name) - first.has(a.name)).map((arm) => [arm, data.arms.indexOf(arm)]).map(([arm, index]) => h("button", {
      type: "button", class: "switch", "data-key": `legend-arm:${index}`, "data-arm": index,
      "aria-pressed": String(!state.hidden.has(arm.name)), title: arm.name,
      onpointerenter: () => single(index), onpointerleave: () => single(null), onfocus: () => single(index), onblur: () => single(null),
      onclick: () => {
        state.hidden[state.hidden.has(arm.name) ? "delete" : "add"](arm.name);
        redraw("arms");
      },
    }, swatch(arm.name), h("span", { class: "name" }, label(arm.name))))),
    absent.length ? h("span", { class: "note absent" }, `Not drawn: ${absent.slice(0, NAMED).map((arm) => `${label(arm.name)} (${arm.verdict || "no value"})`).join(", ")}`,
      absent.length > NAMED ? ` and ${absent.length - NAMED} more` : "") : null,
    h("div", { class: "quick" },
      quick("all", "All", () => new Set(data.arms.map((arm) => arm.name))),
      quick("none", "None", () => new Set()),
      many ? quick("leading", `Leading ${SHOWN}`, leaders) : null,
      h("span", { class: "note" }, `${shown().length} of ${drawable().length} shown`)));
}
