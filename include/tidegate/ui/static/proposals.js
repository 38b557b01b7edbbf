// Proposals: what changed code would make of recorded input, and the end of each.
import { get, dagPath } from "./api.js";
import { NOTE, confirmAndPost, path } from "./actions.js";
import { badge, card, facts, h, placeOf, table } from "./dom.js";
import { whyButton } from "./why.js";
import { MEASURES, count, none, rows, time } from "./format.js";

const MERGES = {
  same: ["the code is the same", "good"],
  continues: ["continues, nothing differs", "good"],
  differs: ["differs", "warn"],
  refused: ["does not continue", "bad"],
};
const merged = (merge) => (merge ? badge(MERGES[merge][0], MERGES[merge][1]) : badge("no report", "plain"));
const linkTo = (name) => h("a", { href: `#/proposal/${encodeURIComponent(name)}` }, name);

export async function proposals({ dag }) {
  const data = await get(`${dagPath(dag)}/proposals`);
  return { key: data, draw: (about) => listed(dag, about, data.proposals) };
}

function listed(dag, about, all) {
  const differing = ({ tables }) =>
    Object.entries(tables)
      .filter(([, each]) => each.added + each.removed + each.changed > 0)
      .map(([name, each]) => h("div", {}, `${name}: ${rows(each.added + each.removed + each.changed)}`));
  return [
    card(
      "",
      h(
        "p",
        { class: "quiet" },
        "What changed code would make of input that was read before. ",
        h("code", {}, "tidegate propose MODULE:PIPELINE --keep"),
        " makes one, and ",
        h("code", {}, "tidegate propose accept"),
        ", or its button, swaps it in after the merge. Others leave nothing behind.",
      ),
      table(
        [
          { head: "Proposal", cell: ({ name }) => linkTo(name) },
          { head: "If it is merged", cell: ({ merge }) => merged(merge) },
          { head: "Rows that differ", cell: differing },
          { head: "Begins after", right: true, cell: ({ origin }) => placeOf(origin) },
          { head: "By", cell: ({ created_by }) => created_by },
          { head: "Since (UTC)", cell: ({ created_at }) => h("span", { class: "nowrap" }, time(created_at)) },
          { head: "", cell: (each) => [acceptButton(dag, about, each), discardButton(dag, about, each.name)] },
        ],
        all,
        { label: "Proposals", empty: "No proposal is kept.", stack: true, key: ({ name }) => name },
      ),
    ),
  ];
}

const LIMIT = {
  name: "limit",
  label: "Refuse it if more differs then, such as rows > 0.1 % (optional)",
};

// Without a report it is still being made.
const acceptButton = (dag, about, { name, merge, is_sample: isSample }) =>
  about.permissions.swap &&
  merge &&
  !isSample &&
  h(
    "button",
    {
      id: `act-accept-${name}`,
      class: "main",
      onclick: () =>
        confirmAndPost({
          title: `Accept ${name}?`,
          verb: "Accept",
          danger: true,
          path: path(dag, "swap"),
          body: h(
            "p",
            {},
            "After its code is merged and deployed: state, positions and tables become those of the proposal, in one decision.",
          ),
          fields: [LIMIT, NOTE],
          make: ({ limit, note }) => ({ name, note, ...(limit.trim() ? { fail_on: [limit.trim()] } : {}) }),
        }),
    },
    "Accept",
  );

const discardButton = (dag, about, name) =>
  about.permissions.swap &&
  h(
    "button",
    {
      id: `act-discard-${name}`,
      class: "danger",
      onclick: () =>
        confirmAndPost({
          title: `Discard ${name}?`,
          verb: "Discard",
          danger: true,
          path: path(dag, "discard-backfill"),
          body: h(
            "p",
            {},
            "Its hidden tables and its report are removed. The pipeline and its tables stay as they are.",
          ),
          fields: [NOTE],
          make: ({ note }) => ({ name, note }),
        }),
    },
    "Discard",
  );

export async function proposal({ dag, at }) {
  const data = await get(`${dagPath(dag)}/proposals/${encodeURIComponent(decodeURIComponent(at.id ?? ""))}`);
  return { key: data, wait: 0, draw: (about) => reported(dag, about, data) };
}

const each = (texts) => (texts?.length ? texts.map((text) => h("div", {}, text)) : null);

function reported(dag, about, { proposal: line, report }) {
  const head = card(
    [line.name, " ", merged(line.merge)],
    facts([
      ["Begins after", placeOf(line.origin)],
      ["By", line.created_by],
      ["Since", `${time(line.created_at)} UTC`],
      ["Replayed", report && report.replayed.map((id, n) => [n > 0 && ", ", placeOf(id)])],
      ["Not replayed to the end", report?.stopped],
      ["Not repeated", each(report?.manual_edits)],
      ["Beyond its limits", each(report?.broken_limits)],
      ["To recompute what is there", report?.merge.backfill && h("code", {}, report.merge.backfill)],
    ]),
    report && report.merge.reasons.map((text) => h("p", { class: "said" }, text)),
    h("div", { class: "bar" }, acceptButton(dag, about, line), discardButton(dag, about, line.name)),
  );
  if (!report) return [head, h("p", { class: "quiet" }, "It has no report: it is being made, or was interrupted.")];
  return [
    head,
    report.since && changedSince(report.since),
    tables(report),
    Object.entries(report.tables).map(([name, each]) => oneTable(dag, about, name, each)),
    code(report.code),
    gates(report.gates),
    cost(report.figures),
  ];
}

function changedSince(since) {
  const lines = [
    ...since.merge.slice(0, 1).map((before) => `If it is merged: ${MERGES[before][0]} → ${MERGES[since.merge[1]][0]}`),
    ...Object.entries(since.tables).map(
      ([name, counts]) =>
        `${name}: ${Object.entries(counts)
          .map(([what, [before, after]]) => `${what.replace("_", " ")} ${count(before)} → ${count(after)}`)
          .join(", ")}`,
    ),
    ...since.gates.map((gate) => `gate ${gate}: other verdicts`),
  ];
  if (!lines.length) lines.push("The same rows, verdicts and merge.");
  if (!since.same_checkpoints) lines.push("Other checkpoints were replayed than then.");
  return card(
    `Since ${since.proposal}`,
    lines.map((text) => h("p", {}, text)),
  );
}

function tables({ tables: all, unchanged_sinks: unchanged }) {
  const number = (head, name) => ({ head, right: true, cell: ([, each]) => count(each[name]) });
  return card(
    "Tables",
    table(
      [
        { head: "Table", cell: ([name]) => name },
        number("Rows before", "rows_before"),
        number("Rows after", "rows_after"),
        number("Added", "added"),
        number("Removed", "removed"),
        number("Changed", "changed"),
        {
          head: "Columns that change",
          cell: ([, each]) =>
            Object.entries(each.columns)
              .map(([name, change]) => `${name} (${count(change.rows)})`)
              .join(", "),
        },
      ],
      Object.entries(all),
      { label: "Tables", empty: "No table was compared.", stack: true },
    ),
    unchanged.map((name) => h("p", { class: "quiet" }, `${name} is not compared: a replay writes nothing there.`)),
  );
}

function oneTable(dag, about, name, { schema, columns, examples }) {
  const news = [
    ...Object.entries(schema.added).map(([column, type]) => `${column} ${type} is new`),
    ...Object.entries(schema.removed).map(([column, type]) => `${column} ${type} is gone`),
    ...Object.entries(schema.retyped).map(([column, [before, after]]) => `${column} was ${before}, and is ${after}`),
  ];
  const numbers = Object.entries(columns).filter(([, change]) => change.before && change.after);
  if (!news.length && !numbers.length && !examples.length) return null;
  const pair = (what) => ({
    head: what[0].toUpperCase() + what.slice(1),
    right: true,
    cell: ([, { before, after }]) =>
      before[what] === after[what] ? figure(before[what]) : `${figure(before[what])} → ${figure(after[what])}`,
  });
  return card(
    name,
    news.map((text) => h("p", {}, text)),
    numbers.length > 0 &&
      table(
        [
          { head: "Numbers, all rows", cell: ([column]) => column },
          ...["mean", "least", "greatest", "nulls"].map(pair),
          { head: "Changes by, on average", right: true, cell: ([, change]) => figure(change.mean_change) },
          { head: "At most", right: true, cell: ([, change]) => figure(change.greatest_change) },
        ],
        numbers,
        { label: `Numbers of ${name}`, stack: true },
      ),
    examples.length > 0 &&
      table(
        [
          { head: "Some rows", cell: ({ change }) => change },
          { head: "Key", cell: ({ key }) => values(key) },
          { head: "Before", cell: ({ before }) => values(before) },
          { head: "After", cell: ({ after }) => values(after) },
          about.permissions.backfill && {
            head: "Now",
            cell: ({ change, key, before }) =>
              change !== "added" && whyButton(dag, name, null, Object.keys(key).length ? key : before),
          },
        ].filter(Boolean),
        examples,
        { label: `Rows of ${name} that differ`, stack: true },
      ),
  );
}

const figure = (value) => (value === null ? none : value.toLocaleString("en-US", { maximumSignificantDigits: 6 }));
const values = (row) =>
  Object.entries(row ?? {}).map(([name, value]) => h("div", {}, `${name} = ${value === null ? "null" : value}`));

const span = ({ first, last }) => (first === last ? `line ${first}` : `lines ${first} to ${last}`);

function code({ before, after, parts, operators, results, lines: changed = [] }) {
  const lines = [
    ...parts,
    ...Object.entries(operators).map(([name, what]) => `operator ${name} is declared differently: ${what.join(", ")}`),
    ...results,
    ...changed.map(
      (each) =>
        `${each.part} changes in ${each.file}, ${span(each)}, on the way to ${each.tables.join(", ") || "nothing"}`,
    ),
  ];
  return card(
    "Code",
    facts([["Fingerprint", h("code", {}, `${before.slice(0, 12)} → ${after.slice(0, 12)}`)]]),
    lines.map((text) => h("p", {}, text)),
  );
}

function gates(all) {
  if (!all.length) return null;
  const found = (findings) =>
    findings === null
      ? "no such gate"
      : [
          ...Object.entries(findings.outcomes).map(([outcome, many]) => `${many} × ${outcome}`),
          ...Object.entries(findings.broken).map(([rule, many]) => `${rule} ${count(many)}`),
          ...(findings.quarantined ? [`${rows(findings.quarantined)} in quarantine`] : []),
        ].join(", ");
  return card(
    "Gates",
    table(
      [
        { head: "Gate", cell: ({ gate }) => gate },
        { head: "Before", cell: ({ before }) => found(before) },
        { head: "After", cell: ({ after }) => found(after) },
      ],
      all,
      { label: "Gates", stack: true },
    ),
  );
}

function cost(figures) {
  const shown = (name, value) => (value === null ? none : MEASURES[name] ? MEASURES[name][1](value) : count(value));
  return card(
    "Cost",
    table(
      [
        { head: "Measure", cell: ([name]) => MEASURES[name]?.[0] ?? name.replaceAll("_", " ") },
        { head: "Before", right: true, cell: ([name, [before]]) => shown(name, before) },
        { head: "After", right: true, cell: ([name, [, after]]) => shown(name, after) },
      ],
      Object.entries(figures),
      { label: "Cost", empty: "Nothing was measured." },
    ),
  );
}
