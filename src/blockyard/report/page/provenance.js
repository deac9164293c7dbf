// Where the results come from and how to reproduce them.

/** Draw the command, then every fact. */
function drawProvenance(body) {
  const { command, memory, ...facts } = data.provenance || {};
  if (memory) facts["peak memory"] = memory === "process resident" ? "of the whole process, libraries included" : memory;
  const text = Array.isArray(command) ? command.join(" ") : command;
  if (text) body.append(h("h3", {}, "Reproduce"), reproduce(String(text)));
  const rows = Object.entries(facts).map(([key, value]) => [key, flat(value)]).filter(([, items]) => items.length);
  body.append(h("dl", { class: "pairs" }, rows.map(([name, items]) => [h("dt", {}, name), h("dd", {}, items.map(([inner, value]) =>
    h("span", { class: "fact" }, inner ? [h("small", {}, inner), " "] : null, value)))])));
  if (data.question) {
    body.append(disclosure("question", "The sweep file's question", () => h("pre", { tabindex: 0 }, JSON.stringify(data.question, null, 2))));
  }
}

/** Nested facts as [name, text]; missing and empty values are left out. */
function flat(value, name = "") {
  if (value === null || value === undefined || value === "" || (Array.isArray(value) && !value.length)) return [];
  if (Array.isArray(value)) return [[name, value.map(word).join("; ")]];
  if (typeof value !== "object") return [[name, word(value)]];
  return Object.entries(value).flatMap(([inner, item]) => flat(item, name ? `${name}.${inner}` : inner));
}

/** A command with a copy button. */
function reproduce(text) {
  const code = h("code", { class: "command", tabindex: 0 }, text);
  const button = h("button", { type: "button", class: "quiet", "data-key": "copy", onclick: async () => {
    try {
      await navigator.clipboard.writeText(text);
      button.textContent = "Copied";
    } catch {
      getSelection().selectAllChildren(code); // no access to the clipboard: select the text, so that a key press copies it
      button.textContent = "Selected";
    }
    setTimeout(() => { button.textContent = "Copy"; }, 2000);
  } }, "Copy");
  return h("div", { class: "reproduce" }, code, button);
}
