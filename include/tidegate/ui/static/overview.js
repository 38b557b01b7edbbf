// How the pipeline is, counts, what is open, and the latest of each kind: what Flink's overview shows, and what to do.
import { get, of, outside, runPath } from "./api.js";
import { badge, card, facts, h } from "./dom.js";
import { bytes, count, seconds, time } from "./format.js";
import { answers, disposeOf } from "./actions.js";
import { lanes } from "./lanes.js";

export async function overview({ dag }) {
  const [about, aside] = await Promise.all([get(`${of(dag)}/overview`), get(`${of(dag)}/quarantine`)]);
  const found = await findings(dag, about.condition);
  const wait = about.open.length ? 1500 : 4000;
  return {
    key: [about.counts, about.open, about.condition, aside, found],
    wait,
    draw: () => drawn(dag, about, aside, found),
  };
}

// Values that broke a rule say most. Who may not see rows gets the rule alone.
export async function findings(dag, { entry, gates }) {
  const all = await Promise.all(
    (gates ?? []).map((gate) =>
      get(`${of(dag)}/checkpoints/${entry}/gates/${encodeURIComponent(gate)}`).catch(() => ({ rules: [] })),
    ),
  );
  return all.flatMap(({ rules }) => rules.filter((rule) => !rule.success && rule.values.length > 0));
}

export function examples(broken) {
  // Of each rule one, for a rule with many values would hide the others.
  const each = broken.filter((rule) => rule.values.length > 0).slice(0, 8);
  return (
    each.length > 0 &&
    h(
      "p",
      {},
      "For example: ",
      each.map((rule, n) => [n > 0 && ", ", rule.rule && `${rule.rule} `, h("code", {}, rule.values[0])]),
    )
  );
}

const WAITS = ["held", "suspended", "stopped", "late", "orphaned", "unpublished"];

export function banner(dag, found, broken = []) {
  const kind = found.good ? "" : WAITS.includes(found.state) ? "wait" : "wrong";
  const log =
    found.run_id &&
    found.task &&
    !found.good &&
    outside(`${runPath(dag, found.run_id)}/tasks/${encodeURIComponent(found.task)}`, `the log of ${found.task}`);
  return h(
    "div",
    { class: `banner ${kind}`, role: "status" },
    h(
      "div",
      {},
      h("b", {}, found.said),
      found.entry && [" ", h("a", { href: `#/checkpoint/${found.entry}` }, `checkpoint #${found.entry}`)],
      log && [" · ", log],
    ),
    found.cause && h("p", { class: "cause" }, found.cause),
    examples(broken),
    found.remedy.length > 0 && [
      h("b", {}, "What to do"),
      h(
        "ol",
        {},
        found.remedy.map((each) => h("li", {}, each)),
      ),
    ],
  );
}

function drawn(dag, about, aside, found) {
  const told = [
    ["triggered", "Triggered"],
    ["in_progress", "In progress"],
    ["completed", "Completed"],
    ["failed", "Failed"],
    ["ended", "Ended by people"],
    ["restored", "Restored"],
    ["rolled_back", "Rolled back"],
  ];
  const waiting = Object.entries(aside.gates).filter(([, gate]) => gate.waiting || gate.requests.length);
  return [
    banner(dag, about.condition, found),
    about.history_problem &&
      h(
        "div",
        { class: "banner wait" },
        `The history cannot be read; what the ledger has is shown. ${about.history_problem}`,
      ),
    h(
      "div",
      { class: "counts" },
      told.map(([name, title]) => h("div", {}, h("b", {}, count(about.counts[name])), title)),
    ),
    about.open.map((each) =>
      card(
        ["Checkpoint ", h("a", { href: `#/checkpoint/${each.id}` }, `#${each.id}`), " ", badge(each.state)],
        each.state === "held" && answers(dag, each, about, []),
        lanes(each, about.now),
      ),
    ),
    h(
      "div",
      { class: "grid" },
      latest("Latest completed", about.latest.completed),
      latest("Latest failed", about.latest.failed),
      restored(about.latest.restored),
      savepoints(dag, about),
      waiting.length > 0 &&
        card(
          "Quarantine",
          waiting.map(([name, gate]) =>
            facts([
              ["Gate", name],
              ["Rows that wait", count(gate.waiting)],
              [
                "By rule",
                Object.entries(gate.rules)
                  .map(([rule, number]) => `${rule}: ${count(number)}`)
                  .join(", ") + (gate.complete ? "" : " (still being counted)"),
              ],
              ["Which", h("a", { href: `#/quarantine?gate=${encodeURIComponent(name)}` }, "look at them")],
              ["Requests", gate.requests.map((each) => `${each.number}: ${each.action}, by ${each.by}`).join("; ")],
            ]),
          ),
        ),
    ),
  ];
}

function latest(title, row) {
  if (!row) return card(title, h("p", { class: "quiet" }, "None yet."));
  return card(
    title,
    facts([
      ["Checkpoint", h("a", { href: `#/checkpoint/${row.id}` }, `#${row.id}`)],
      ["At", `${time(row.decided)} UTC`],
      ["Duration", seconds(row.seconds)],
      ["Rows out", row.rows_out === null ? null : count(row.rows_out)],
      ["State size", row.state_bytes === null ? null : bytes(row.state_bytes)],
      ["Cause", row.reason && [h("b", {}, row.reason), row.why && `: ${row.why}`]],
    ]),
  );
}

function restored(row) {
  if (!row) return card("Latest restore", h("p", { class: "quiet" }, "Nobody has gone back yet."));
  return card(
    "Latest restore",
    facts([
      ["Entry", h("a", { href: `#/checkpoint/${row.id}` }, `#${row.id}`)],
      ["Back to", h("a", { href: `#/checkpoint/${row.back_to}` }, `#${row.back_to}`)],
      ["At", `${time(row.decided)} UTC`],
      ["By", row.by],
      ["Why", row.why],
    ]),
  );
}

function savepoints(dag, about) {
  const rows = about.savepoints;
  if (!rows.length) return card("Savepoints", h("p", { class: "quiet" }, "No checkpoint has a name."));
  return card(
    "Savepoints",
    facts(
      rows
        .slice(-8)
        .reverse()
        .map((each) => [
          each.name,
          [
            h("a", { href: `#/checkpoint/${each.id}` }, `#${each.id}`),
            ` by ${each.by}`,
            each.note && `: ${each.note}`,
            " ",
            disposeOf(dag, each.name, about),
          ],
        ]),
    ),
  );
}
