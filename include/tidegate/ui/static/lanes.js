// The timeline of a checkpoint: how long each job waited, computed and staged.
import { h } from "./dom.js";
import { clock, seconds } from "./format.js";

const moment = (text) => (text ? new Date(text).getTime() / 1000 : null);
const WRITES = /^(stage|send) /;

export function lanes(row, now) {
  const begin = moment(row.planned);
  const end = Math.max(moment(row.published) ?? 0, moment(row.decided) ?? moment(now) ?? 0, begin + 0.001);
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
  const missing = (name) => lane(name, true, row.decided === null && part(begin, end, "process-part", "no ack yet"));
  const passed = Object.keys(row.details.behind ?? {})
    .filter((name) => !(name in row.details.jobs))
    .map((name) => lane(`${name} (passed)`, false, part(begin, end, "wait-part", "the checkpoint has overtaken it")));
  const decided = moment(row.decided);
  return h(
    "div",
    { class: "lanes" },
    Object.entries(row.details.jobs).map(job),
    row.details.missing.map(missing),
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
      `${clock(row.planned)} to ${clock(row.published ?? row.decided ?? now)} UTC`,
      [
        ["wait-part", "waiting"],
        ["process-part", "computing"],
        ["stage-part", "staging"],
        ["done-part", "publishing"],
      ].map(([kind, title]) => [h("span", { class: `key ${kind}` }), title]),
    ),
  );
}

function lane(name, busy, ...parts) {
  return h(
    "div",
    { class: "lane" },
    h("span", { class: "name", title: name }, name),
    h("div", { class: `track ${busy ? "busy" : ""}` }, parts),
  );
}
