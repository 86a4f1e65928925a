// Formatting of numbers and times for people. Times are UTC, as in the daemon's explanations and logs.

const UNKNOWN = "–";

/** A number with up to three significant digits: 853, 8.4k, 1.2M. */
export function short(number) {
  if (number === null || number === undefined || !Number.isFinite(number)) return UNKNOWN;
  for (const [size, letter] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
    if (Math.abs(number) >= size * 0.9995) return `${figures(number / size)}${letter}`;
  }
  return figures(number);
}

function figures(number) {
  const size = Math.abs(number);
  return String(Number(number.toFixed(size >= 99.95 || size === 0 ? 0 : size >= 9.995 ? 1 : 2)));
}

export function rate(number) {
  return number === null || number === undefined ? UNKNOWN : `${short(number)}/s`;
}

/** A duration: 0 s, 34 s, 2 min 5 s, 3 h 20 min, 4 d 2 h. */
export function duration(seconds) {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds)) return UNKNOWN;
  const whole = Math.max(0, Math.round(seconds));
  if (whole < 60) return `${seconds > 0 && seconds < 9.95 ? Number(seconds.toFixed(1)) : whole} s`;
  for (const [size, unit, part, name] of [[60, "min", 1, "s"], [3600, "h", 60, "min"], [86400, "d", 3600, "h"]]) {
    if (whole < size * (unit === "min" ? 60 : 24) || unit === "d") {
      const rest = Math.floor((whole % size) / part);
      return `${Math.floor(whole / size)} ${unit}${rest ? ` ${rest} ${name}` : ""}`;
    }
  }
  return UNKNOWN;
}

/** The time of day of seconds or an ISO text, with the date if it is not today. */
export function time(value, now = Date.now()) {
  if (value === null || value === undefined) return UNKNOWN;
  const text = instant(value).toISOString();
  return new Date(now).toISOString().slice(0, 10) === text.slice(0, 10) ? text.slice(11, 19) : `${text.slice(0, 10)} ${text.slice(11, 16)}`;
}

export function instant(value) {
  return new Date(typeof value === "number" ? value * 1000 : value);
}

export function seconds(value) {
  return instant(value).getTime() / 1000;
}

/** A text with a capital first letter. */
export function sentence(text) {
  return text[0].toUpperCase() + text.slice(1);
}

export function plural(count, word) {
  return `${count.toLocaleString("en")} ${word}${count === 1 ? "" : "s"}`;
}

/** The share `part / whole`; null if one is unknown or `whole` is 0. */
export function share(part, whole) {
  return part === null || part === undefined || !whole ? null : part / whole;
}

export function percent(part) {
  return part === null ? UNKNOWN : `${(part * 100).toFixed(part > 0 && part < 0.0995 ? 1 : 0)} %`;
}
