// Samples of rows: some of a table as of a checkpoint, or those that differ between two. Loaded on request.
import { get, dagPath } from "./api.js";
import { badge, busy, h, table } from "./dom.js";
import { count, rows as rowsText } from "./format.js";
import { whyButton } from "./why.js";

const SHOWN = 20;

export const valueOf = (value) => value ?? h("span", { class: "quiet" }, "null");

// Some rows of a table as of the checkpoint.
export const tableRows = (dag, row, sink) =>
  later(`rows ${row.id} ${sink}`, "Show some rows", async () => {
    const { columns, rows, may_ask_why: mayAsk } = await get(`${tablePath(dag, row.id, sink)}?limit=${SHOWN}`);
    return table(
      [
        ...columns.map((name) => ({ head: name, cell: (each) => valueOf(each[name]) })),
        mayAsk && { head: "", name: "why", cell: (each) => whyButton(dag, sink, row.id, each) },
      ].filter(Boolean),
      rows,
      { empty: "It has no rows.", label: `Rows of ${sink}` },
    );
  });

// Some of the rows that a stage, a gate or an operator emitted in a checkpoint.
export const partSamples = (dag, id, part, sampled) =>
  sampled.includes(part)
    ? later(`sample ${id} ${part}`, `Show rows that ${part} emitted`, async () => {
        const path = `${dagPath(dag)}/checkpoints/${id}/samples/${encodeURIComponent(part)}`;
        const { streams } = await get(path);
        return h(
          "div",
          {},
          streams.map((sample) => [streams.length > 1 && h("h3", {}, sample.stream), shown(sample)]),
        );
      })
    : h("p", { class: "quiet" }, NO_SAMPLES);

export const NO_SAMPLES =
  "This checkpoint has no samples. With the setting sample_rows, later checkpoints keep some rows of each stage, gate and operator.";

function shown({ stream, columns, rows, hidden, left_out: more, problem }) {
  if (problem) return h("p", { class: "said" }, `The sample is missing: ${problem}`);
  const without = [
    hidden.length > 0 && `without ${hidden.join(", ")}, as the settings say`,
    more > 0 && `${count(more)} further columns are left out`,
  ].filter(Boolean);
  return [
    table(
      columns.map((name) => ({ head: name, cell: (each) => valueOf(each[name]) })),
      rows,
      { empty: "It emitted no rows.", label: `Rows that ${stream} emitted` },
    ),
    h(
      "p",
      { class: "quiet small" },
      [rows.length > 0 && `A sample of ${rowsText(rows.length)}`, ...without].filter(Boolean).join("; "),
    ),
  ];
}

// The rows of a table that differ between the checkpoint and an earlier one.
export const tableChanges = (dag, since, row, sink) =>
  later(`changes ${since} ${row.id} ${sink}`, `Show what differs from #${since}`, async () => {
    const told = await get(`${tablePath(dag, row.id, sink)}/changes?since=${since}&limit=${SHOWN}`);
    return changed(dag, told);
  });

const tablePath = (dag, id, sink) => `${dagPath(dag)}/checkpoints/${id}/tables/${encodeURIComponent(sink)}`;

const FATES = { added: "good", removed: "bad", changed: "warn" };
const fate = ({ before, after }) => (before === null ? "added" : after === null ? "removed" : "changed");

function changed(dag, told) {
  const { keys, columns, rows } = told;
  const total = told.added + told.removed + told.changed;
  if (!total) return h("p", { class: "quiet" }, "It has the same rows.");
  const others = columns.filter((name) => !keys.includes(name));
  const either = (each) => each.after ?? each.before;
  const cell = (name) => (each) => {
    if (fate(each) !== "changed" || each.before[name] === each.after[name]) return valueOf(either(each)[name]);
    return [h("del", {}, valueOf(each.before[name])), " ", h("ins", {}, valueOf(each.after[name]))];
  };
  return h(
    "div",
    {},
    h(
      "p",
      {},
      `${rowsText(told.added)} added, ${count(told.removed)} removed${keys.length ? `, ${count(told.changed)} changed, by ${keys.join(", ")}` : ""}.`,
      total > rows.length && ` ${count(rows.length)} of them:`,
    ),
    table(
      [
        { head: "Fate", cell: (each) => badge(fate(each), FATES[fate(each)]) },
        ...[...keys, ...others].map((name) => ({ head: name, cell: cell(name) })),
        told.may_ask_why && {
          head: "",
          name: "why",
          cell: ({ after }) => after && whyButton(dag, told.sink, told.checkpoint, after),
        },
      ].filter(Boolean),
      rows,
      { label: `Rows of ${told.sink} that differ` },
    ),
  );
}

// A part that is loaded when a reader asks for it, and then stays, because it no longer changes.
export function later(key, title, make) {
  const onclick = async ({ currentTarget: button }) => {
    const holder = button.parentElement;
    const done = busy(button);
    try {
      holder.replaceChildren(await make());
    } catch (error) {
      done();
      const help = error.help && `Help: ${error.help}`;
      holder.replaceChildren(button, h("p", { class: "said" }, [error.message, help].filter(Boolean).join(" — ")));
    }
  };
  return h("div", { "data-key": key, "data-kept": key }, h("button", { onclick }, title));
}

// Some of the rows that a gate quarantined in a checkpoint.
export const quarantinedRows = (dag, id, gate) =>
  later(`quarantined ${id} ${gate}`, "Show rows that it quarantined", async () => {
    const { columns, rows } = await get(
      `${dagPath(dag)}/checkpoints/${id}/quarantined/${encodeURIComponent(gate)}?limit=${SHOWN}`,
    );
    return table(
      [
        { head: "Broke", cell: (each) => each.rules.join(", ") },
        { head: "Since then", cell: (each) => each.status },
        ...columns.map((name) => ({ head: name, cell: ({ values }) => valueOf(values[name]) })),
      ],
      rows,
      { empty: "None of them are kept.", label: `Rows that gate ${gate} quarantined`, stack: true },
    );
  });
