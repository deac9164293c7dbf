// Conditions on runs, as `blockyard runs` takes them: position=rope, optimizer.lr<0.01, state=failed, or a word of the name.

const CONDITION = /^([^<>=!]+)(<=|>=|!=|=|<|>)(.*)$/s;

/** The value of a fact, a metric, a family or an option of a run; undefined where it has none. */
function valueOf(run, key) {
  if (key === "name") return groupOf(run).replace(/-[^-]*$/, "");
  if (FACTS.includes(key)) return run[key];
  if (key === "sweep") return SWEEPS_OF.get(run.run) || [];
  if (key === "arm") return ARMS_OF.get(run.run) || [];
  if (Object.hasOwn(run.metrics, key)) return run.metrics[key];
  if (Object.hasOwn(run.choices, key)) return run.choices[key];
  if (key === "seed") return run.run.replace(/^.*\/s/, "");
  if (Object.hasOwn(data.shared, key)) return data.shared[key];
  const index = data.keys.indexOf(key);
  return index < 0 || run.options[index] === null ? undefined : run.options[index];
}

/** The first key of the conditions that no run has, and not only those at hand; null where there is none. */
function unknownKey(text) {
  const keys = text.split(/\s+/).map((part) => CONDITION.exec(part)).filter(Boolean).map(([, key]) => key.trim());
  const has = (key) => ["name", "sweep", "arm", "seed", ...FACTS, ...data.keys].includes(key) || Object.hasOwn(data.shared, key) ||
    data.runs.some((run) => Object.hasOwn(run.metrics, key) || Object.hasOwn(run.choices, key));
  return keys.find((key) => !has(key)) ?? null;
}

/** Whether a run meets every condition of the text. */
function meets(run, text) {
  return text.split(/\s+/).filter(Boolean).every((part) => one(run, part));
}

/** Whether a run meets one condition; one without a sign is looked for in the name, the choices, tags, state and note. */
function one(run, part) {
  const match = CONDITION.exec(part);
  if (!match) {
    const text = [run.run, run.state, run.note, ...run.tags, ...(ARMS_OF.get(run.run) || []), ...Object.entries(run.choices).map((pair) => pair.join("="))].join(" ").toLowerCase();
    return text.includes(part.toLowerCase());
  }
  const [, key, sign, wanted] = match;
  const value = valueOf(run, key.trim());
  if (["<", ">", "<=", ">="].includes(sign)) {
    const [left, right] = [Number(value), Number(wanted)];
    if (value === undefined || value === null || value === "" || Number.isNaN(left) || Number.isNaN(right)) return false;
    return { "<": left < right, ">": left > right, "<=": left <= right, ">=": left >= right }[sign];
  }
  const equal = (Array.isArray(value) ? value : [value]).some((each) => same(each, wanted));
  return sign === "=" ? equal : !equal;
}

/** Whether a value is the one that was typed: a number, a text with * and ?, or nothing. */
function same(value, wanted) {
  if (value === undefined || value === null || value === "null") return ["", "null", "none"].includes(wanted);
  if (wanted !== "" && !Number.isNaN(Number(wanted)) && !Number.isNaN(Number(value))) return Number(value) === Number(wanted);
  return like(String(value), wanted);
}

/** Whether a text is of a pattern, in which * stands for any characters and ? for one; in steps of at most their product. */
function like(text, pattern) {
  let [at, next, star, from] = [0, 0, -1, 0];
  while (at < text.length) {
    if (pattern[next] === "*") {
      star = next;
      next += 1;
      from = at;
    } else if (pattern[next] === "?" || pattern[next] === text[at]) {
      at += 1;
      next += 1;
    } else if (star >= 0) {
      next = star + 1;
      from += 1;
      at = from;
    } else {
      return false;
    }
  }
  while (pattern[next] === "*") next += 1;
  return next === pattern.length;
}
