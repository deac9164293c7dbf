// Formatting of numbers. A missing number is a dash everywhere.

const NONE = "–";

/** Whether a value is a finite number. */
const known = (x) => typeof x === "number" && Number.isFinite(x);

/** Replace the hyphen by a minus sign. */
const signed = (text) => text.replace(/^-/, "\u2212");

/** The decimals that show differences among these values, two digits below their range, and the narrowest of these intervals;
 * at most 6, and 12 where all values are tiny. */
function decimals(values, intervals = []) {
  const good = values.filter(known);
  const range = Math.max(...good) - Math.min(...good) || Math.abs(good[0]) || 1;
  const widths = intervals.flatMap((pair) => (pair && pair[1] > pair[0] ? pair[1] - pair[0] : []));
  const most = Math.max(...good.map(Math.abs)) < 1e-4 ? 12 : 6;
  return good.length ? Math.min(most, Math.max(0, Math.ceil(-Math.log10(range)) + 2, 1 - Math.floor(Math.log10(Math.min(...widths, 20) / 2)))) : 3;
}

/** A number with fixed decimals. */
const fixed = (x, digits) => (known(x) ? signed(x.toFixed(digits)) : NONE);

/** A difference, with its sign. */
const change = (x, digits) => (known(x) ? (x > 0 ? "+" : "") + fixed(x, digits) : NONE);

/** "[0.91, 0.94]", or nothing. */
const interval = (pair, digits) => (pair ? `[${fixed(pair[0], digits)}, ${fixed(pair[1], digits)}]` : "");

/** A p-value; four decimals where three would put it on the other side of 5 %. A half is rounded down, as on the terminal: 0.0625. */
const chance = (p) => (!known(p) ? NONE : p < 0.001 ? "< 0.001" : (p * (1 - 1e-12)).toFixed(p > 0.05 && p < 0.0505 ? 4 : 3));

/** The same inside a sentence: "= 0.012", "< 0.001". */
const equal = (p) => (known(p) && p < 0.001 ? chance(p) : `= ${chance(p)}`);

/** A number of so many digits. */
const rounded = (x, precision) => Number(x.toPrecision(precision)).toLocaleString("en", { maximumSignificantDigits: precision });

/** Three significant digits: 0.0123, 45.6, 1,230. */
function short(x, precision = 3) {
  if (!known(x)) return NONE;
  if (x !== 0 && (Math.abs(x) < 1e-3 || Math.abs(x) >= 1e6)) return signed(x.toExponential(Math.max(1, precision - 2)).replace("e+", "e").replace(/\.?0+e/, "e"));
  return signed(rounded(x, precision));
}

/** 1.2 k, 34 M, 5.6 G. */
function scaled(x, base, units, precision = 3) {
  if (!known(x)) return NONE;
  let unit = 0;
  let value = x;
  while (Math.abs(value) >= base * 0.9995 && unit < units.length - 1) {
    value /= base;
    unit += 1;
  }
  return `${rounded(value, precision)}${units[unit] ? `\u00a0${units[unit]}` : ""}`;
}

const count = (x, precision) => scaled(x, 1000, ["", "k", "M", "G", "T", "P", "E", "Z"], precision);
const bytes = (x, precision) => scaled(x, 1024, ["B", "KiB", "MiB", "GiB", "TiB"], precision);

/** A share: "39.6 %". */
const percent = (x, precision) => scaled(x && 100 * x, 1000, ["%"], precision);

/** A duration. */
function time(x, precision = 3) {
  if (!known(x)) return NONE;
  if (x === 0) return "0\u00a0s";
  if (Math.abs(x) < 1e-3) return `${short(x * 1e6, precision)}\u00a0µs`;
  if (Math.abs(x) < 1) return `${short(x * 1e3, precision)}\u00a0ms`;
  if (Math.abs(x) < 120) return `${short(x, precision)}\u00a0s`;
  return Math.abs(x) < 7200 ? `${short(x / 60, precision)}\u00a0min` : `${short(x / 3600, precision)}\u00a0h`;
}

/** A ratio to the baseline. */
const ratio = (x) => (!known(x) ? "" : `×${x < 0.1 || x >= 100 ? short(x) : x.toFixed(2)}`);

/** Any config value on one line. */
function word(value) {
  if (value === null || value === undefined) return "none";
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}

/** {"optimizer.lr": 0.001} as optimizer.lr=0.001. */
const setting = (values) => Object.entries(values || {}).map(([key, value]) => `${key}=${word(value)}`).join(" ");

/** A name inside a sentence: "step time". */
const lower = (name) => name.charAt(0).toLowerCase() + name.slice(1);

/** "1 seed", "3 seeds". */
const plural = (n, one, many) => `${n.toLocaleString("en")} ${n === 1 ? one : many || `${one}s`}`;

/** A name shortened in the middle: names of arms differ at their ends as often as at their beginnings. */
function cut(text, most) {
  if (text.length <= most) return text;
  const tail = Math.max(1, Math.floor((most - 1) / 2));
  return `${text.slice(0, Math.max(1, most - 1 - tail))}…${text.slice(-tail)}`;
}

// The 97.5 % point of Student's t for 1 to 30 degrees of freedom.
const T = [12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.16, 2.145, 2.131, 2.12, 2.11,
  2.101, 2.093, 2.086, 2.08, 2.074, 2.069, 2.064, 2.06, 2.056, 2.052, 2.048, 2.045, 2.042];
const student = (df) => T[df - 1] || 1.96 + 2.372 / df + 2.82 / df ** 2;
