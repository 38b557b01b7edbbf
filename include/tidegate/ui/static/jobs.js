// One table of a checkpoint's jobs: their state, time, rows, bytes, what was spilled, and the slowest part of each.
import { badge, h, table } from "./dom.js";
import { bytes, count, none, seconds } from "./format.js";

export const sum = (numbers) => Object.values(numbers).reduce((all, number) => all + number, 0);
const known = (values) => values.filter((value) => value !== null && value !== undefined);

// [name, ack, overtaken]: of jobs that have acked, of those that have not, and of those that the checkpoint went past.
export function jobsOf(d) {
  const overtaken = Object.entries(d.overtaken_jobs ?? {}).filter(([name]) => !(name in d.jobs));
  return [
    ...Object.entries(d.jobs),
    ...d.missing_acks.map((name) => [name, null]),
    ...overtaken.map(([name, at]) => [name, null, at]),
  ];
}

// null: a source does not report its rows.
export function rowsIn(ack) {
  const amounts = Object.values({ ...ack?.read, ...ack?.received }).map((size) => size.rows);
  return amounts.length && amounts.every((rows) => rows !== null) ? sum(amounts) : null;
}

// now: the time of the server. log(name): a link to the log of a job, or nothing.
export function jobsTable(row, now, log = null) {
  const note = (name) => (Object.hasOwn(row.progress ?? {}, name) ? row.progress[name] : null);
  const state = ([name, ack, at]) => {
    if (ack) return badge("done", "good");
    if (at) return badge("overtaken", "warn");
    if (row.decided !== null) return badge(row.reason === "JOB_FAILED" ? "failed" : "aborted");
    return note(name) ? badge("running", "busy") : badge("waiting", "plain");
  };
  const duration = ([name, ack]) => {
    if (ack) return seconds(ack.sync_s ?? sum(ack.seconds));
    const told = note(name);
    return told ? seconds(Math.max((Date.parse(now) - Date.parse(told.started)) / 1000, 0)) : none;
  };
  return table(
    [
      { head: "Job", cell: ([name]) => name },
      { head: "State", cell: state },
      { head: "Duration", right: true, cell: duration },
      { head: "Rows in", right: true, cell: ([name, ack]) => count(rowsIn(ack ?? note(name))) },
      { head: "Rows out", right: true, cell: ([, ack]) => count(ack && sum(ack.rows)) },
      { head: "Bytes out", right: true, cell: ([, ack]) => bytes(ack && sum(ack.bytes)) },
      {
        head: "Spilled",
        right: true,
        title: "written to disk for lack of memory",
        cell: ([, ack]) => bytes(spilled(ack)),
      },
      { head: "Slowest part", cell: ([, ack]) => slowest(ack) },
      ...(log ? [{ head: "Log", cell: ([name]) => log(`job_${name}`) }] : []),
    ],
    jobsOf(row.details),
    { empty: "This entry has no jobs.", stack: true, label: "Jobs", key: ([name]) => name },
  );
}

function spilled(ack) {
  const steps = ack?.steps ?? [];
  const amounts = known(steps.flatMap((step) => [step.spark?.spilled_bytes, step.computed?.spilled]));
  return amounts.length ? sum(amounts) : null;
}

// Its longest step that is a part of the pipeline, with its share of the job's time.
function slowest(ack) {
  const steps = Object.entries(ack?.seconds ?? {}).filter(([step]) => /^(read|state|gate|stage|send)\b/.test(step));
  if (!steps.length) return none;
  const [step, took] = steps.reduce((a, b) => (b[1] > a[1] ? b : a));
  const all = sum(ack.seconds);
  const share = all > 0 ? ` (${Math.round((100 * took) / all)} %)` : "";
  return [step.replace(/^state /, ""), " ", h("span", { class: "quiet nowrap" }, `${seconds(took)}${share}`)];
}
