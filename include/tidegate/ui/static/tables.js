// Pages with one table each: summary, configuration, actions of users, and two checkpoints side by side.
import { get, dagPath } from "./api.js";
import { badge, card, folded, h, table } from "./dom.js";
import { MEASURES, bytes, count, none, positionTexts, rows as rowsText, seconds, time } from "./format.js";
import { tableChanges } from "./rows.js";

export async function summary({ dag, at, go }) {
  const since = at.query.get("since") ?? "";
  const begin = { "": null, hour: 3600, day: 86400, week: 604800 }[since] ?? null;
  const query = begin ? `?since=${encodeURIComponent(new Date(Date.now() - begin * 1000).toISOString())}` : "";
  const data = await get(`${dagPath(dag)}/summary${query}`);
  const rows = Object.entries(data.measures).filter(([name, measure]) => name in MEASURES && measure);
  const cell =
    (key) =>
    ([name, measure]) =>
      measure ? MEASURES[name][1](measure[key]) : none;
  const names = [
    ["min", "Min"],
    ["avg", "Avg"],
    ["p50", "p50"],
    ["p90", "p90"],
    ["p95", "p95"],
    ["p99", "p99"],
    ["p999", "p99.9"],
    ["max", "Max"],
  ];
  const choice = h(
    "select",
    { id: "since", "aria-label": "since when", onchange: (event) => go("summary", { since: event.target.value }) },
    [
      ["", "all completed checkpoints"],
      ["hour", "of the last hour"],
      ["day", "of the last day"],
      ["week", "of the last week"],
    ].map(([value, title]) => h("option", { value, selected: value === since }, title)),
  );
  return {
    key: data,
    draw: () => [
      h("div", { class: "bar" }, choice),
      card(
        "",
        table(
          [
            {
              head: "Measure",
              cell: ([name]) => [MEASURES[name][0], h("div", { class: "quiet small wide" }, MEASURES[name][2])],
            },
            ...names.map(([key, head]) => ({ head, right: true, cell: cell(key) })),
            { head: "Count", right: true, cell: ([, measure]) => measure?.count ?? none },
          ],
          rows,
          {
            empty: "No checkpoint has completed in this time.",
            label: "Summary",
            stack: true,
            key: ([name]) => name,
          },
        ),
      ),
    ],
  };
}

// A sentence with its parts between backticks as code.
const withCode = (text) => text.split("`").map((part, place) => (place % 2 ? h("code", {}, part) : part));

export async function configuration({ dag }) {
  const data = await get(`${dagPath(dag)}/configuration`);
  const chosen = data.settings.filter((row) => row.origin !== "default");
  const others = data.settings.filter((row) => row.origin === "default");
  const listed = (rows, empty) =>
    table(
      [
        {
          head: "Setting",
          text: true,
          cell: (row) => [h("code", {}, row.key), h("div", { class: "quiet small" }, withCode(row.help))],
        },
        { head: "Value", cell: (row) => h("b", {}, row.value || none) },
        { head: "From", cell: (row) => row.origin },
        {
          head: "In the last checkpoint",
          cell: (row) =>
            row.used === null
              ? none
              : row.used === row.value
                ? h("span", { class: "quiet" }, "the same")
                : h("b", {}, row.used),
        },
      ],
      rows,
      { stack: true, empty, key: (row) => row.key },
    );
  return {
    key: data,
    wait: 30000,
    draw: () => [
      h("p", { class: "quiet" }, "As of Airflow's last parse of the DAG. Ledger: ", h("code", {}, data.root)),
      card("Chosen", listed(chosen, "All settings have their defaults.")),
      h("div", { class: "card" }, folded(`Defaults (${others.length})`, listed(others))),
    ],
  };
}

const LATEST_ACTIONS = 10;

export async function audit({ dag }) {
  const data = await get(`${dagPath(dag)}/audit`);
  const listed = (actions) =>
    table(
      [
        { head: "At (UTC)", cell: (row) => time(row.requested_at) },
        { head: "User", cell: (row) => row.requested_by },
        { head: "Action", cell: (row) => row.action },
        { head: "Parameters", cell: (row) => h("code", {}, JSON.stringify(row.request)) },
        {
          head: "Result",
          cell: (row) => [
            badge(row.succeeded === null ? "open" : row.succeeded ? "completed" : "failed"),
            " ",
            row.message,
          ],
        },
      ],
      actions,
      { empty: "No actions yet.", stack: true },
    );
  const older = data.actions.slice(LATEST_ACTIONS);
  return {
    key: data,
    wait: 5000,
    draw: () => [
      card("Actions from these pages", listed(data.actions.slice(0, LATEST_ACTIONS))),
      older.length > 0 && h("div", { class: "card" }, folded(`Earlier actions (${older.length})`, listed(older))),
    ],
  };
}

export async function compare({ dag, at, go }) {
  const [before, after] = [at.query.get("before"), at.query.get("after")];
  const field = (name, value) =>
    h(
      "label",
      {},
      name,
      h("input", { id: `compare-${name}`, type: "number", min: "1", value: value ?? "", size: "8" }),
    );
  const form = () =>
    h(
      "div",
      { class: "bar" },
      field("before", before),
      field("after", after),
      h(
        "button",
        {
          class: "main",
          id: "compare-go",
          onclick: () =>
            go("compare", {
              before: document.getElementById("compare-before").value,
              after: document.getElementById("compare-after").value,
            }),
        },
        "Compare",
      ),
    );
  if (!before || !after)
    return {
      key: null,
      wait: 0,
      draw: () => [
        form(),
        h("p", { class: "quiet" }, "Enter the numbers of two checkpoints, or tick two in the history."),
      ],
    };
  const data = await get(
    `${dagPath(dag)}/compare?before=${encodeURIComponent(before)}&after=${encodeURIComponent(after)}`,
  );
  return { key: data, wait: 0, draw: () => [form(), ...compared(dag, data)] };
}

function compared(dag, data) {
  const changed = ([, pair]) => JSON.stringify(pair.before) !== JSON.stringify(pair.after);
  const measures = Object.entries(data.measures).filter(
    ([name, pair]) => name in MEASURES && (pair.before !== null || pair.after !== null),
  );
  const head = (row) => h("a", { href: `#/checkpoint/${row.id}` }, `#${row.id}`, " ", badge(row.state));
  const column = (row) => ({ head: head(row), name: `#${row.id}` }); // of each table its own: an element is in one place
  const pairs = (title, rows, show) =>
    rows.length > 0 &&
    card(
      title,
      table(
        [
          { head: title, cell: ([name]) => name },
          { ...column(data.before), cell: ([, pair]) => h("code", {}, show(pair.before)) },
          { ...column(data.after), cell: ([, pair]) => h("code", {}, show(pair.after)) },
        ],
        rows,
        { label: title, stack: true },
      ),
    );
  // Tables of sinks whose versions differ, if both checkpoints are retained. Names of state and quarantine have a dot.
  const sinks = Object.entries(data.tables)
    .filter(([name, { before, after }]) => !name.includes(".") && before?.log_hash && after?.log_hash)
    .filter((entry) => changed(entry) && data.before.records_retained && data.after.records_retained)
    .map(([name]) => name);
  const text = (value) =>
    value === null || value === undefined ? none : typeof value === "string" ? value : JSON.stringify(value);
  return [
    card(
      "Measures",
      table(
        [
          { head: "Measure", cell: ([name]) => MEASURES[name][0] },
          { ...column(data.before), right: true, cell: ([name, pair]) => MEASURES[name][1](pair.before) },
          { ...column(data.after), right: true, cell: ([name, pair]) => MEASURES[name][1](pair.after) },
          { head: "Difference", right: true, cell: ([name, pair]) => difference(pair, MEASURES[name][1]) },
        ],
        measures,
        { label: "Measures", stack: true },
      ),
    ),
    positions(data, column, Object.entries(data.sources).filter(changed)),
    pairs("Tables", Object.entries(data.tables).filter(changed), (at) =>
      at
        ? `${at.log_hash ? "version" : "checkpoint"} ${at.version}${at.rows === null ? "" : `, ${rowsText(at.rows)}`}`
        : none,
    ),
    sinks.length > 0 &&
      card(
        "Rows that differ",
        sinks.map((name) => h("div", {}, h("h3", {}, name), tableChanges(dag, data.before.id, data.after, name))),
      ),
    pairs("State", Object.entries(data.states).filter(changed), (size) =>
      size ? `${rowsText(size.rows)}, ${bytes(size.bytes)}` : none,
    ),
    pairs("Gates", Object.entries(data.gates).filter(changed), (verdict) =>
      verdict ? `${verdict.outcome}: ${rowsText(verdict.rows)}, ${count(verdict.quarantined)} quarantined` : none,
    ),
    pairs("Settings", Object.entries(data.settings), text),
    h("p", {}, data.code_changed ? "The pipeline's code has changed between them." : "Both ran the same code."),
  ];
}

// Where each source stood: one row for each part of a position that differs.
function positions(data, column, sources) {
  const rows = sources.flatMap(([name, { before, after }]) => {
    const [old, now] = [before, after].map((part) => partsOf(part));
    const names = [...new Set([...old.keys(), ...now.keys()])].filter((part) => old.get(part) !== now.get(part));
    return names.map((part) => ({ name, part, before: old.get(part), after: now.get(part) }));
  });
  if (!rows.length) return null;
  const brief = (text) => (text === undefined ? none : text.length > 120 ? `${text.slice(0, 120)} …` : text);
  return card(
    "Source positions",
    table(
      [
        { head: "Source", cell: (row) => [row.name, row.part && h("span", { class: "quiet" }, ` ${row.part}`)] },
        { ...column(data.before), cell: (row) => brief(row.before) },
        { ...column(data.after), cell: (row) => brief(row.after) },
      ],
      rows,
      { label: "Source positions", stack: true },
    ),
  );
}

// Hashes and paths of tidegate's own files say nothing to people.
const INTERNAL = /(^|\.)seen$/;

function partsOf(source) {
  const texts = source?.end ? positionTexts(source.end) : [source?.summary].filter(Boolean);
  const parts = texts.map((text) => {
    const [, name, value] = /^([^:]+): ([^]*)$/.exec(text) ?? [null, "", text];
    return [name, value];
  });
  return new Map(parts.filter(([name]) => !INTERNAL.test(name)));
}

function difference({ before, after }, show) {
  if (before === null || after === null || before === after) return none;
  const by = after - before;
  const share = before ? ` (${by > 0 ? "+" : "−"}${count(Math.abs((100 * by) / before))} %)` : "";
  const tone = show === seconds ? (by > 0 ? "up" : "down") : ""; // more rows are neither good nor bad
  return h("span", { class: tone }, `${by > 0 ? "+" : "−"}${show(Math.abs(by))}${share}`);
}
