// Formats numbers, times and sizes.
import { DECLARED } from "./measures.js";

export const none = "–";
const isKnown = (value) => value !== null && value !== undefined;

export const count = (value) =>
  isKnown(value) ? Number(value).toLocaleString("en-US", { maximumFractionDigits: 1 }) : none;

export const rows = (value) => (value === 1 ? "1 row" : `${count(value)} rows`);

export function seconds(value) {
  if (!isKnown(value)) return none;
  if (value < 0) return `−${seconds(-value)}`;
  if (value < 0.9995) return `${Math.round(value * 1000)} ms`;
  if (value < 60) return `${value.toFixed(1)} s`;
  if (value < 3600) return `${Math.floor(value / 60)} min ${Math.round(value % 60)} s`;
  if (value < 172800) return `${Math.floor(value / 3600)} h ${Math.round((value % 3600) / 60)} min`;
  return `${Math.round(value / 86400)} d`;
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

export const ago = (value) => (isKnown(value) ? `${seconds(value)} ago` : none);

// By name: label, format, description. Declared in history/row.py.
const shown = { s: seconds, bytes };
export const MEASURES = Object.fromEntries(
  Object.entries(DECLARED).map(([name, [label, unit, help]]) => [name, [label, shown[unit] ?? count, help]]),
);

// A checkpoint's durations, as facts: all measures in seconds except ages.
const ages = ["lag_seconds", "waiting_seconds"];
export const durations = (row) =>
  Object.entries(DECLARED)
    .filter(([name, [, unit]]) => unit === "s" && !ages.includes(name))
    .map(([name, [label]]) => [name === "seconds" ? "In all" : label, seconds(row[name])]);
