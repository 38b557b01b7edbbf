// Formats numbers, times and sizes.
import { DECLARED } from "./measures.js";

export const none = "–";
const isKnown = (value) => value !== null && value !== undefined;

// Nothing that is counted comes in parts: an average of rows is rounded.
export const count = (value) => (isKnown(value) ? Math.round(value).toLocaleString("en-US") : none);

export const rate = (value) =>
  isKnown(value) && value > 0 && value < 10 ? Number(value.toFixed(1)).toLocaleString("en-US") : count(value);

export const rows = (value) => (value === 1 ? "1 row" : `${count(value)} rows`);

export function seconds(value) {
  if (!isKnown(value)) return none;
  if (value < 0) return `−${seconds(-value)}`;
  if (value < 0.9995) return `${Math.round(value * 1000)} ms`;
  if (value < 59.95) return `${value.toFixed(1)} s`;
  const whole = Math.round(value); // rounded before it is divided: there is no 1 min 60 s
  if (whole < 3600) return inTwo(whole, 60, "min", "s");
  const minutes = Math.round(value / 60);
  if (minutes < 2880) return inTwo(minutes, 60, "h", "min");
  return `${Math.round(value / 86400)} d`;
}

function inTwo(whole, size, unit, part) {
  const rest = whole % size;
  return `${Math.floor(whole / size)} ${unit}${rest ? ` ${rest} ${part}` : ""}`;
}

export function bytes(value) {
  if (!isKnown(value)) return none;
  const units = ["B", "kB", "MB", "GB", "TB"];
  let [scaled, unit] = [value, 0];
  while (scaled >= 1000 && unit < units.length - 1) [scaled, unit] = [scaled / 1000, unit + 1];
  return `${unit && scaled < 100 ? scaled.toFixed(1) : Math.round(scaled)} ${units[unit]}`;
}

export function time(text) {
  if (!text) return none;
  const date = new Date(text);
  if (Number.isNaN(date.getTime())) return String(text);
  return date.toISOString().slice(0, 19).replace("T", " ");
}

export const clock = (text) => (text ? time(text).slice(11) : none);

// How old something is: nobody needs tenths of a second.
export const ageOf = (value) => (value < 60 ? `${Math.max(Math.floor(value), 0)} s` : seconds(Math.floor(value)));

// By name: label, format, description. Declared in history/row.py.
const shown = { s: seconds, bytes, "rows/s": rate };
export const MEASURES = Object.fromEntries(
  Object.entries(DECLARED).map(([name, [label, unit, help]]) => [name, [label, shown[unit] ?? count, help]]),
);

// A checkpoint's durations, as facts: all measures in seconds except ages.
const ages = ["lag_seconds", "waiting_seconds"];
export const durations = (row) =>
  Object.entries(DECLARED)
    .filter(([name, [, unit]]) => unit === "s" && !ages.includes(name))
    .map(([name, [label]]) => [name === "seconds" ? "In all" : label, seconds(row[name])]);

// A position of a source, as "name: value" texts: people compare those, not JSON.
export function positionTexts(value, path = "") {
  if (value === null || value === undefined) return path ? [`${path}: ${none}`] : [];
  if (Array.isArray(value)) {
    const isPlain = value.length <= 3 && value.every((each) => typeof each !== "object");
    return [`${path || "items"}: ${isPlain ? value.join(", ") : `${count(value.length)} entries`}`];
  }
  if (typeof value !== "object") return [path ? `${path}: ${value}` : String(value)];
  return Object.entries(value).flatMap(([name, part]) => positionTexts(part, path ? `${path}.${name}` : name));
}
