// The pipeline's state and remedy, counts, open checkpoints, and the latest of each kind, as in Flink's overview.
import { get, dagPath, outside, runPath, Unreachable } from "./api.js";
import { badge, breakable, card, errorText, facts, h, placeOf, stateOf, table } from "./dom.js";
import { bytes, count, seconds, time } from "./format.js";
import { answers, disposeOf, takeBack } from "./actions.js";
import { backfills } from "./backfills.js";
import { jobsTable } from "./jobs.js";
import { lanes } from "./lanes.js";

export async function overview({ dag }) {
  const [about, quarantine] = await Promise.all([get(`${dagPath(dag)}/overview`), get(`${dagPath(dag)}/quarantine`)]);
  const brokenRules = await findings(dag, about.health);
  const wait = about.open_checkpoints.length ? 1500 : 4000;
  return {
    key: [about, ages(about) ? about.now : null, quarantine, brokenRules],
    wait,
    draw: () => drawn(dag, about, quarantine, brokenRules),
  };
}

// Whether something on the page grows older by the second.
const ages = (about) => about.open_checkpoints.length || about.promises.some(({ kept }) => !kept);

// Values that broke a rule say most. Users who may not see rows get the rule alone.
export async function findings(dag, { checkpoint, gates }) {
  const all = await Promise.all(
    (gates ?? []).map((gate) =>
      get(`${dagPath(dag)}/checkpoints/${checkpoint}/gates/${encodeURIComponent(gate)}`).catch((error) => {
        if (error instanceof Unreachable) throw error;
        return { rules: [] };
      }),
    ),
  );
  return all.flatMap(({ rules, files, file_count }) =>
    rules.filter((rule) => !rule.success && rule.values.length > 0).map((rule) => ({ ...rule, files, file_count })),
  );
}

export function examples(broken) {
  // One value per rule: a rule with many values would hide the others.
  const rules = broken.filter((rule) => rule.values.length > 0).slice(0, 8);
  const files = [...new Set(broken.flatMap((rule) => rule.files ?? []))];
  return (
    rules.length > 0 && [
      h(
        "p",
        {},
        "For example: ",
        rules.map((rule, n) => [
          n > 0 && ", ",
          rule.rule && [breakable(rule.rule), " "],
          h("code", {}, rule.values[0]),
          origin(rule),
        ]),
      ),
      files.length > 0 &&
        !rules.every((rule) => rule.file) &&
        h("p", { class: "quiet" }, "The rows were read from ", files.slice(0, 5).join(", "), more(broken, files)),
    ]
  );
}

const more = (broken, files) => {
  const all = Math.max(...broken.map((rule) => rule.file_count ?? 0));
  return all > Math.min(files.length, 5) ? ` and ${count(all - Math.min(files.length, 5))} more files` : "";
};

// The file and the line that a value has come from, if that was found.
export function origin(rule) {
  return (
    rule.file &&
    h("span", { class: "quiet small", title: rule.file }, ` (${rule.file.split("/").pop()}, line ${count(rule.line)})`)
  );
}

const WAITS = ["held", "suspended", "stopped", "late", "orphaned", "paused", "stale", "unpublished"];

export function banner(dag, health, broken = []) {
  const kind = health.needs_nothing ? "" : WAITS.includes(health.state) ? "wait" : "wrong";
  const log =
    health.run_id &&
    health.task &&
    !health.needs_nothing &&
    outside(`${runPath(dag, health.run_id)}/tasks/${encodeURIComponent(health.task)}`, `the log of ${health.task}`);
  return h(
    "div",
    { class: `banner ${kind}`, role: "status" },
    h(
      "div",
      {},
      h("b", {}, health.summary),
      health.checkpoint && [
        " · ",
        h("a", { href: `#/checkpoint/${health.checkpoint}` }, `show checkpoint #${health.checkpoint}`),
      ],
      log && [" · ", log],
    ),
    health.cause && h("p", { class: "cause" }, health.cause),
    examples(broken),
    health.remedy.length > 0 && [
      h("b", {}, "What to do"),
      h(
        "ol",
        {},
        health.remedy.map((step) => h("li", {}, step)),
      ),
    ],
  );
}

// Those that are shown even if there were none.
const ALWAYS = ["triggered", "completed", "failed"];
const COUNTERS = [
  ["triggered", "Triggered"],
  ["in_progress", "In progress"],
  ["completed", "Completed"],
  ["failed", "Failed"],
  ["cancelled", "Ended by users"],
  ["rollbacks", "Rollbacks"],
  ["rolled_back", "Rolled back"],
  ["swaps", "Swaps"],
  ["replaced", "Replaced by backfills"],
];

function drawn(dag, about, quarantine, brokenRules) {
  const counters = COUNTERS.filter(([name]) => about.counts[name] || ALWAYS.includes(name));
  const waiting = Object.entries(quarantine.gates).filter(([, gate]) => gate.waiting || gate.requests.length);
  const isTold = !about.health.needs_nothing && about.health.checkpoint === about.latest.failed?.id;
  return [
    banner(dag, about.health, brokenRules),
    about.history_problem &&
      h(
        "div",
        { class: "banner wait" },
        `The history cannot be read, so only the ledger's checkpoints are shown. ${about.history_problem}`,
      ),
    about.open_checkpoints.map((row) =>
      card(
        ["Checkpoint ", h("a", { href: `#/checkpoint/${row.id}` }, `#${row.id}`), " ", badge(row.state)],
        row.state === "held" && answers(dag, row, about, []),
        lanes(row, about.now, about.latest.completed?.seconds),
        jobsTable(row, about.now),
      ),
    ),
    latestCompleted(about.latest.completed),
    backfills(dag, about),
    h(
      "div",
      { class: "counts" },
      counters.map(([name, title]) => h("div", {}, h("b", {}, count(about.counts[name])), title)),
    ),
    h(
      "div",
      { class: "grid" },
      about.latest.failed && latestFailed(about.latest.failed, isTold),
      latestRollback(about.latest.rollback),
      latestSwap(dag, about.latest.swap, about),
      about.promises.length > 0 &&
        card(
          "Promises",
          about.promises.map((promise) => promised(promise, about.now)),
        ),
      about.contracts.map(contract),
      savepoints(dag, about),
      waiting.map(([name, gate]) => waitingRows(name, gate)),
    ),
  ];
}

// What waits in quarantine at a gate, by rule.
function waitingRows(name, gate) {
  const rows = `#/quarantine?gate=${encodeURIComponent(name)}`;
  return card(
    ["Quarantine of ", breakable(name)],
    h(
      "p",
      {},
      h("a", { href: rows }, gate.waiting === 1 ? "1 row waits" : `${count(gate.waiting)} rows wait`),
      !gate.complete && h("span", { class: "quiet" }, " (still being counted)"),
    ),
    Object.keys(gate.rules).length > 0 &&
      table(
        [
          { head: "Broken rule", cell: ([rule]) => breakable(rule) },
          { head: "Rows", right: true, cell: ([, number]) => count(number) },
        ],
        Object.entries(gate.rules).sort(([, a], [, b]) => b - a),
        { label: `Rules broken by rows that wait at ${name}`, key: ([rule]) => rule },
      ),
    gate.requests.map((request) =>
      h(
        "p",
        { class: "quiet small" },
        `Request ${request.number} of ${request.requested_by}: ${request.action}, at the next checkpoint`,
      ),
    ),
  );
}

function latestCompleted(row) {
  if (!row) return null;
  const told = [
    `at ${time(row.decided)} UTC`,
    `took ${seconds(row.seconds)}`,
    row.state_bytes !== null && `state ${bytes(row.state_bytes)}`,
  ];
  return card(
    "Latest completed",
    h(
      "p",
      {},
      h("a", { href: `#/checkpoint/${row.id}` }, `#${row.id}`),
      " ",
      row.replaced_by && stateOf(row),
      h("span", { class: "quiet" }, ` ${told.filter(Boolean).join(" · ")}`),
    ),
    jobsTable(row, null),
  );
}

// isTold: the banner above says why.
function latestFailed(row, isTold) {
  return card(
    "Latest failed",
    facts([
      ["Checkpoint", h("a", { href: `#/checkpoint/${row.id}` }, `#${row.id}`)],
      ["At", `${time(row.decided)} UTC`],
      ["Duration", seconds(row.seconds)],
      [
        "Cause",
        row.reason && [
          h("b", {}, row.reason),
          isTold ? h("span", { class: "quiet" }, ", as told above") : row.why && errorText(row.why),
        ],
      ],
    ]),
  );
}

function promised({ sink, fresh_seconds, kept, breaks_at, input_until, checkpoint }, now) {
  const late = (new Date(now) - new Date(breaks_at)) / 1000;
  return facts([
    ["Sink", [sink, " ", badge(kept ? "kept" : "broken")]],
    ["At most", `${seconds(fresh_seconds)} old`],
    ["Has input up to", input_until ? `${time(input_until)} UTC` : "nothing is published yet"],
    ["Checkpoint", checkpoint && h("a", { href: `#/checkpoint/${checkpoint}` }, `#${checkpoint}`)],
    [kept ? "Kept until" : "Broken since", `${time(breaks_at)} UTC${kept ? "" : `, by ${seconds(late)}`}`],
  ]);
}

// The data contract of a sink: who answers for its table.
function contract({ sink, file, name, version, status, domain, team, owner, purpose, problem }) {
  return card(
    ["Contract of ", breakable(sink)],
    problem && h("p", {}, badge("broken"), " ", problem),
    facts([
      ["Contract", name && [name, " ", version, status && h("span", { class: "quiet" }, `, ${status}`)]],
      ["Owner", owner],
      ["Team", [team, domain].filter(Boolean).join(", ")],
      ["Purpose", purpose],
      ["File", h("code", {}, breakable(file))],
    ]),
  );
}

function latestRollback(row) {
  if (!row) return null;
  return card(
    "Latest rollback",
    facts([
      ["Entry", h("a", { href: `#/checkpoint/${row.id}` }, `#${row.id}`)],
      ["Back to", placeOf(row.back_to)],
      ["At", `${time(row.decided)} UTC`],
      ["By", row.by],
      ["Why", row.why],
    ]),
  );
}

function latestSwap(dag, row, about) {
  return (
    row &&
    card(
      "Latest swap",
      facts([
        ["Entry", h("a", { href: `#/checkpoint/${row.id}` }, `#${row.id}`)],
        ["Backfill", row.backfill],
        ["It began after", placeOf(row.back_to)],
        ["At", `${time(row.decided)} UTC`],
        ["By", row.by],
        ["Why", row.why],
      ]),
      takeBack(dag, row, about),
    )
  );
}

function savepoints(dag, about) {
  const rows = about.savepoints.slice(-8).reverse();
  if (!rows.length) return null;
  const text = ({ created_by: by, note }) => ` by ${by}${note ? `: ${note}` : ""} `;
  return card(
    "Savepoints",
    rows.map((row) =>
      h(
        "p",
        { class: "savepoint", "data-key": `savepoint ${row.name}` },
        h("b", {}, breakable(row.name)),
        " ",
        h("a", { href: `#/checkpoint/${row.checkpoint}` }, `#${row.checkpoint}`),
        h("span", { class: "quiet" }, text(row)),
        disposeOf(dag, row.name, about),
      ),
    ),
  );
}
