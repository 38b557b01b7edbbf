// The timeline of a checkpoint: how long each job waited, computed and staged. For an open one: what its jobs do now.
import { h } from "./dom.js";
import { bytes, clock, count, seconds } from "./format.js";

const moment = (text) => (text ? new Date(text).getTime() / 1000 : null);
const WRITES = /^(stage|send) /;

// usual: the seconds that the last completed one took, so that an open one does not look finished.
export function lanes(row, now, usual = null) {
  const begin = moment(row.planned);
  const open = row.decided === null;
  const until = open ? Math.max(moment(now) ?? 0, begin) : Math.max(moment(row.published) ?? 0, moment(row.decided));
  const end = Math.max(until, begin + 0.001, open && usual ? begin + usual : 0);
  const part = (from, to, kind, title) => {
    const element = h("i", { class: kind, title });
    element.style.left = `${(100 * Math.max(from - begin, 0)) / (end - begin)}%`;
    element.style.width = `${(100 * Math.max(to - from, 0)) / (end - begin)}%`;
    return element;
  };
  const job = ([name, ack]) => {
    const acked = moment(ack.acked);
    const writing = Object.entries(ack.seconds)
      .filter(([step]) => WRITES.test(step))
      .reduce((sum, [, value]) => sum + value, 0);
    const began = moment(ack.started) ?? acked - Object.values(ack.seconds).reduce((sum, value) => sum + value, 0);
    return lane(
      name,
      false,
      part(begin, began, "wait-part", `waited ${seconds(began - begin)}`),
      part(began, acked - writing, "process-part", `computed ${seconds(acked - writing - began)}`),
      part(acked - writing, acked, "stage-part", `staged ${seconds(writing)}, acked at ${clock(ack.acked)}`),
    );
  };
  const missing = (name) => {
    const note = Object.hasOwn(row.progress ?? {}, name) ? row.progress[name] : null; // a job may be called __proto__
    const began = moment(note?.started) ?? begin;
    return [
      lane(
        name,
        open,
        open && began > begin && part(begin, began, "wait-part", `waited ${seconds(began - begin)}`),
        open && part(began, until, "process-part", "no ack yet"),
      ),
      note && doing(note, now),
    ];
  };
  const passed = Object.keys(row.details.overtaken_jobs ?? {})
    .filter((name) => !(name in row.details.jobs))
    .map((name) => lane(`${name} (passed)`, false, part(begin, until, "wait-part", "the checkpoint has overtaken it")));
  const decided = moment(row.decided);
  return h(
    "div",
    { class: "lanes" },
    Object.entries(row.details.jobs).map(job),
    row.details.missing_acks.map(missing),
    passed,
    decided &&
      lane(
        "decide, publish",
        false,
        part(begin, decided, "wait-part", `decided at ${clock(row.decided)}`),
        part(decided, moment(row.published) ?? decided, "done-part", `published at ${clock(row.published)}`),
      ),
    h(
      "p",
      { class: "quiet small" },
      open
        ? [
            `since ${clock(row.planned)} UTC, for ${seconds(until - begin)}`,
            usual && `; the last completed one took ${seconds(usual)}`,
          ]
        : `${clock(row.planned)} to ${clock(row.published ?? row.decided)} UTC`,
      [
        ["wait-part", "waiting"],
        ["process-part", "computing"],
        ["stage-part", "staging"],
        ["done-part", "publishing"],
      ].map(([kind, title]) => h("span", { class: "nowrap" }, h("span", { class: `key ${kind}` }), title, " ")),
    ),
  );
}

// A job's last reported progress.
function doing(note, now) {
  const heard = moment(now) - moment(note.reported_at);
  const sizes = Object.values(note.read);
  const total = (figure) => {
    const known = sizes.map((size) => size[figure]).filter((value) => value !== null);
    return known.length ? known.reduce((sum, value) => sum + value, 0) : null;
  };
  const share = note.tasks ? ` (${Math.floor((100 * note.tasks_done) / note.tasks)} %)` : "";
  const stepsDone = Object.keys(note.step_seconds).length;
  const texts = [
    note.step
      ? `at "${note.step}" for ${seconds(note.current_step_seconds + Math.max(heard, 0))}`
      : "between two steps",
    note.tasks !== null && `${count(note.tasks_done)} of ${count(note.tasks)} tasks${share}`,
    note.bytes_read ? `${bytes(note.bytes_read)} read` : null,
    total("rows") !== null && `${count(total("rows"))} rows in`,
    total("bytes") !== null && `${bytes(total("bytes"))} in`,
    stepsDone > 0 && `${count(stepsDone)} ${stepsDone === 1 ? "step" : "steps"} done`,
  ];
  return h(
    "p",
    { class: "quiet small doing" },
    texts.filter(Boolean).join(" · "),
    heard > SILENT_S && h("b", {}, ` · not heard of for ${seconds(heard)}`),
  );
}

const SILENT_S = 15; // it says something every few seconds

function lane(name, busy, ...parts) {
  return h(
    "div",
    { class: "lane" },
    h("span", { class: "name", title: name }, name),
    h("div", { class: `track ${busy ? "busy" : ""}` }, parts),
  );
}
