// Where the figures come from and how to get them again.

/** The command, then every fact. */
function drawProvenance(body) {
  const { command, ...facts } = data.provenance || {};
  const text = Array.isArray(command) ? command.join(" ") : command;
  if (text) body.append(h("h3", {}, "Reproduce"), reproduce(String(text)));
  const rows = Object.entries(facts).flatMap(([key, value]) => flat(key, value)).filter(([, value]) => value !== "none");
  body.append(h("dl", { class: "pairs" }, rows.map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)])));
  if (data.question) {
    body.append(disclosure("question", "The question as it was asked", () => h("pre", { tabindex: 0 }, JSON.stringify(data.question, null, 2))));
  }
}

/** Nested facts as "versions.torch" lines. */
function flat(key, value) {
  if (value === null || typeof value !== "object") return [[key, word(value)]];
  if (Array.isArray(value)) return [[key, value.map(word).join(", ")]];
  return Object.entries(value).flatMap(([inner, item]) => flat(`${key}.${inner}`, item));
}

/** A command with a button that copies it. */
function reproduce(text) {
  const code = h("code", { class: "command", tabindex: 0 }, text);
  const button = h("button", { type: "button", class: "quiet", "data-key": "copy", onclick: async () => {
    try {
      await navigator.clipboard.writeText(text);
      button.textContent = "Copied";
    } catch {
      getSelection().selectAllChildren(code); // no right to the clipboard: selected, so that a key press copies it
      button.textContent = "Selected";
    }
    setTimeout(() => { button.textContent = "Copy"; }, 2000);
  } }, "Copy");
  return h("div", { class: "reproduce" }, code, button);
}
