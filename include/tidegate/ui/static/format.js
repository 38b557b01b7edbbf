// Numbers, times and sizes for people.
export const none = "–";
const known = (value) => value !== null && value !== undefined;

export const count = (value) => (known(value) ? Number(value).toLocaleString("en-US", { maximumFractionDigits: 1 }) : none);

export const rows = (value) => (value === 1 ? "1 row" : `${count(value)} rows`);

export function seconds(value) {
  if (!known(value)) return none;
  if (value < 0) return `−${seconds(-value)}`;
  if (value < 0.0995) return `${Math.round(value * 1000)} ms`;
  if (value < 60) return `${value.toFixed(1)} s`;
  if (value < 3600) return `${Math.floor(value / 60)} min ${Math.round(value % 60)} s`;
  if (value < 172800) return `${Math.floor(value / 3600)} h ${Math.round((value % 3600) / 60)} min`;
  return `${Math.round(value / 86400)} d`;
}

export function bytes(value) {
  if (!known(value)) return none;
  const units = ["B", "kB", "MB", "GB", "TB"];
  let [rest, unit] = [value, 0];
  while (rest >= 1000 && unit < units.length - 1) [rest, unit] = [rest / 1000, unit + 1];
  return `${unit && rest < 100 ? rest.toFixed(1) : Math.round(rest)} ${units[unit]}`;
}

export function time(text) {
  if (!text) return none;
  const at = new Date(text);
  if (Number.isNaN(at.getTime())) return String(text);
  return at.toISOString().slice(0, 19).replace("T", " ");
}

export const clock = (text) => (text ? time(text).slice(11) : none);

export const ago = (value) => (known(value) ? `${seconds(value)} ago` : none);

export const MEASURES = {
  seconds: ["Duration", seconds, "from the plan to the decision"],
  delay_seconds: ["Start delay", seconds, "from the plan until the last job began"],
  align_seconds: ["Alignment", seconds, "between the first and the last ack that a job takes from"],
  sync_seconds: ["Sync", seconds, "reading, computing, state, gates and staging, of the slowest job"],
  process_seconds: ["Processing", seconds, "of that all but staging"],
  stage_seconds: ["Staging", seconds, "writing what is to be published"],
  async_seconds: ["Async", seconds, "making files durable, beside it"],
  publish_seconds: ["Publish", seconds, "from the decision until every table shows it"],
  rows_in: ["Rows in", count, "rows read from all sources"],
  bytes_in: ["Bytes in", bytes, "bytes read from all sources"],
  rate: ["Rows in per second", count, "of the longest sync part"],
  rows_out: ["Rows out", count, "rows staged for all sinks"],
  bytes_out: ["Bytes out", bytes, "bytes staged for all sinks"],
  late: ["Late rows", count, "rows that came later than the watermark"],
  judged: ["Rows judged", count, "rows that gates have seen"],
  quarantined: ["Quarantined", count, "rows that gates have set aside"],
  state_rows: ["State rows", count, "rows that operators remember"],
  state_bytes: ["State size", bytes, "the full size of all keyed states"],
  state_delta: ["State delta", bytes, "what the checkpoint itself has written of them"],
  processed_rows: ["In flight, processed (rows)", count, "rows that older checkpoints had left in flight"],
  processed_bytes: ["In flight, processed", bytes, "bytes of these"],
  persisted_rows: ["In flight, persisted (rows)", count, "rows that jobs have yet to take: a part of the checkpoint"],
  persisted_bytes: ["In flight, persisted", bytes, "bytes of these"],
  lag_seconds: ["Watermark lag", seconds, "how far event time was behind the clock"],
};
