// The actions: each dialog says what will be done, and asks for confirmation. Only allowed actions are offered; the server checks again.
import { get, dagPath, post, Unreachable } from "./api.js";
import { backfillButton } from "./backfills.js";
import { busy, facts, h, replace, table } from "./dom.js";
import { rows } from "./format.js";
import { examples } from "./overview.js";

const changed = () => window.dispatchEvent(new CustomEvent("tidegate:changed"));

export function toast(text) {
  const message = h("div", { class: "toast", role: "status" }, text);
  document.body.append(message);
  setTimeout(() => message.remove(), 6000);
}

// fields: [{name, label, kind, required, pattern}]. make: returns the request's body for the fields' values. slow: says
// what to tell while the preview of a body takes seconds, or null.
export function confirmAndPost({ title, body = [], fields = [], verb, danger = false, path, make, slow = () => null }) {
  const last = document.querySelector("dialog");
  if (last?.open) return; // the button was pressed twice
  last?.remove(); // it was closed a moment ago
  const inputs = new Map(fields.map((field) => [field.name, input(field)]));
  const problem = h("p", { class: "said", role: "alert" });
  const effects = h("div", { id: "dialog-effects", role: "status" });
  const values = () => {
    const valueOf = (element) => (element.type === "checkbox" ? element.checked : element.value);
    return Object.fromEntries([...inputs].map(([name, element]) => [name, valueOf(element)]));
  };
  const refused = (error) => {
    problem.textContent = [error.message, error.help && `Help: ${error.help}`].filter(Boolean).join(" — ");
  };
  // Previews what the action would do, or why it would be refused: at once, and again when a field has changed.
  let turn = 0;
  let sending = false;
  // Another value may be accepted: a button that stays disabled until the server has answered would swallow a click.
  const allow = () => {
    send.disabled = sending;
    problem.textContent = "";
  };
  const preview = async () => {
    if (sending) return;
    const ownTurn = ++turn;
    const asked = JSON.stringify(values());
    if (![...inputs.values()].every((element) => element.checkValidity())) return;
    let error = null;
    const answer = await Promise.resolve()
      .then(() => {
        const asking = make(values());
        const waiting = slow(asking);
        if (waiting) replace(effects, [h("p", { class: "quiet" }, waiting)]);
        return post(path, { ...asking, preview: true });
      })
      .catch((caught) => {
        error = caught;
      });
    if (ownTurn !== turn || error instanceof Unreachable) return; // then it is asked when it is sent
    if (error && asked !== JSON.stringify(values())) return; // it is asked again when the field is left
    send.disabled = error !== null && error.status !== 503; // what is busy now may not be when it is sent
    problem.textContent = "";
    if (error) refused(error);
    replace(
      effects,
      answer && [
        h("b", {}, "What it will do"),
        h(
          "ul",
          {},
          answer.effects.map((effect) => h("li", {}, effect)),
        ),
        answer.samples?.length > 0 && beforeAndAfter(answer.samples),
      ],
    );
  };
  const send = h(
    "button",
    {
      class: danger ? "danger" : "main",
      id: "dialog-send",
      onclick: async () => {
        const invalid = [...inputs.values()].find((element) => !element.checkValidity());
        if (invalid) {
          invalid.reportValidity();
          return;
        }
        sending = true;
        allow();
        const done = busy(send);
        turn += 1; // a preview that is under way is of no use any more
        try {
          const answer = await post(path, make(values()));
          dialog.close();
          toast(answer.message);
          changed();
        } catch (error) {
          sending = false;
          done();
          allow();
          refused(error);
        }
      },
    },
    verb,
  );
  const dialog = h(
    "dialog",
    { "aria-label": title },
    h("h2", {}, title),
    body,
    fields.map((field) =>
      h(
        "label",
        {},
        field.kind === "checkbox" ? [inputs.get(field.name), " ", field.label] : [field.label, inputs.get(field.name)],
      ),
    ),
    effects,
    problem,
    h(
      "div",
      { class: "bar" },
      h("button", { id: "dialog-cancel", autofocus: true, onclick: () => dialog.close() }, "Cancel"),
      send,
    ),
  );
  dialog.addEventListener("close", () => dialog.remove());
  dialog.addEventListener("input", allow);
  dialog.addEventListener("change", preview);
  document.body.append(dialog);
  dialog.showModal();
  preview();
}

function input({ name, kind = "text", required, pattern, options, min, step, value = "" }) {
  if (options)
    return h(
      "select",
      { id: `field-${name}` },
      options.map((option) => h("option", { value: option }, option)),
    );
  if (kind === "checkbox") return h("input", { type: "checkbox", id: `field-${name}` });
  return h("input", {
    type: kind,
    id: `field-${name}`,
    required,
    pattern,
    min,
    step,
    maxlength: "1000",
    value,
    autocomplete: "off",
  });
}

export const NOTE = { name: "note", label: "Note: the reason, for the record" };
export const NAME = "[a-z0-9][a-z0-9_\\-]{0,62}";
export const path = (dag, action) => `${dagPath(dag)}/actions/${action}`;

const named = ({ savepoint, note }) => ({ note, ...(savepoint ? { savepoint } : {}) });

export function buttons(dag, about) {
  const { permissions } = about;
  const stopped = about.suspended !== null;
  const button = (id, text, onclick, kind = "") => h("button", { id, onclick, class: kind }, text);
  return h(
    "div",
    { class: "bar" },
    permissions.edit &&
      stopped &&
      button(
        "act-resume",
        "Resume",
        () =>
          confirmAndPost({
            title: "Let runs plan checkpoints again?",
            verb: "Resume",
            path: path(dag, "resume"),
            body: h("p", {}, `It is ${about.health.state}. ${about.suspended.why || about.suspended.cause || ""}`),
            fields: [
              ...(about.suspended.rejected_checkpoint
                ? [
                    {
                      name: "quarantine_all",
                      label: "Quarantine the rows that a gate would hold again",
                      kind: "checkbox",
                    },
                  ]
                : []),
              ...(about.suspended.action === "drain"
                ? [
                    {
                      name: "restart_finished",
                      label: "Resume although it is finished: all further rows are late",
                      kind: "checkbox",
                    },
                  ]
                : []),
              NOTE,
            ],
            make: (values) => values,
          }),
        "main",
      ),
    permissions.edit &&
      !stopped &&
      about.started &&
      button("act-suspend", "Suspend", () =>
        confirmAndPost({
          title: "Suspend the pipeline?",
          verb: "Suspend",
          path: path(dag, "suspend"),
          body: h(
            "p",
            {},
            "Runs plan no checkpoint until you resume the pipeline. Planned checkpoints are finished, and input waits: nothing is lost.",
          ),
          fields: [NOTE],
          make: (values) => values,
        }),
      ),
    permissions.trigger &&
      button(
        "act-trigger",
        "Checkpoint now",
        () =>
          confirmAndPost({
            title: "Make a checkpoint now?",
            verb: "Make it",
            path: path(dag, "trigger"),
            body: h("p", {}, "A run of the DAG reads all new input."),
            fields: [{ name: "savepoint", label: "Savepoint name (optional)", pattern: NAME }, NOTE],
            make: named,
          }),
        stopped ? "" : "main",
      ),
    backfillButton(dag, about),
    permissions.drain &&
      !stopped &&
      about.started &&
      !about.by_interval &&
      button("act-drain", "Finish", () =>
        confirmAndPost({
          title: "Make the last checkpoint?",
          verb: "Finish",
          danger: true,
          path: path(dag, "drain"),
          body: h(
            "p",
            {},
            "A run of the DAG reads all new input. Then event time ends: windows close, timers fire, rows without a partner are emitted. The pipeline is finished, and later runs are skipped.",
          ),
          fields: [{ name: "savepoint", label: "Savepoint name (optional)", pattern: NAME }, NOTE],
          make: named,
        }),
      ),
  );
}

// Without ids and rules: all waiting rows.
export function releaseRows(dag, page, { ids, rules, discard }) {
  const choice = ids.length
    ? rows(ids.length)
    : rules.length
      ? `all rows that broke ${rules.join(", ")}`
      : `all ${rows(page.total)}`;
  const correction = [
    { name: "column", label: "Correct a column (optional)", options: ["", ...page.columns] },
    { name: "value", label: "New value, or SQL over the row" },
    { name: "sql", label: "It is SQL, such as upper(trim(country))", kind: "checkbox" },
    { name: "null", label: "Set it to null", kind: "checkbox" },
  ];
  confirmAndPost({
    title: discard ? `Discard ${choice}?` : `Release ${choice}?`,
    verb: discard ? "Discard" : "Release",
    danger: discard,
    path: path(dag, "release"),
    body: h(
      "p",
      {},
      discard
        ? "The next checkpoint marks them as discarded. They stay in the table."
        : "They continue after their gate with the next checkpoint, once. Corrected rows must keep its rules about single rows; rows as they are, are not judged again.",
    ),
    fields: [...(discard ? [] : correction), NOTE],
    slow: (asking) =>
      asking.correct_sql ? "Computing what the SQL makes of the rows; the first time takes longer …" : null,
    make: ({ column, value, note, sql, null: isNull }) => {
      if (!column && (value || isNull)) throw new Error("Choose the column that gets the new value.");
      if (sql && isNull) throw new Error("Either SQL, or null.");
      const bySql = column && sql && value.trim();
      return {
        gate: page.gate,
        ids,
        rules,
        discard,
        note,
        expected_rows: ids.length ? ids.length : page.complete ? page.total : null,
        correct: column && !sql ? { [column]: isNull ? null : value } : {},
        ...(bySql ? { correct_sql: { [column]: value.trim() } } : {}),
      };
    },
  });
}

// A few rows with their corrected values.
function beforeAndAfter(samples) {
  const corrected = [...new Set(samples.flatMap((row) => Object.keys(row.after)))];
  const value = (cell) => (cell === null || cell === undefined ? h("span", { class: "quiet" }, "null") : cell);
  return table(
    [
      { head: "Row", cell: (row) => h("code", { title: row.id, class: "nowrap" }, row.id.slice(0, 8)) },
      ...Object.keys(samples[0].before)
        .filter((name) => !corrected.includes(name))
        .map((name) => ({ head: name, cell: (row) => value(row.before[name]) })),
      ...corrected.flatMap((name) => [
        { head: name, cell: (row) => value(row.before[name]) },
        { head: `${name} becomes`, cell: (row) => (row.stays_because ? "" : h("b", {}, value(row.after[name]))) },
      ]),
      { head: "Result", cell: (row) => row.stays_because ?? "continues" },
    ],
    samples,
    { label: "Rows before and after", stack: true, key: (row) => `before and after ${row.id}` },
  );
}

// Without ids and rules: all waiting rows.
export function rejudgeRows(dag, page, { ids, rules }) {
  const choice = ids.length
    ? rows(ids.length)
    : rules.length
      ? `all rows that broke ${rules.join(", ")}`
      : `all ${rows(page.total)}`;
  confirmAndPost({
    title: `Judge ${choice} again?`,
    verb: "Judge again",
    path: path(dag, "rejudge"),
    body: h(
      "p",
      {},
      "The next checkpoint judges them by today's suite, each by itself. Those that pass continue after their gate, once; the others stay, with the rules that they break now.",
    ),
    fields: [NOTE],
    slow: () => "Judging the rows, to show how many would pass; the first time takes longer …",
    make: ({ note }) => ({
      gate: page.gate,
      ids,
      rules,
      note,
      expected_rows: ids.length ? ids.length : page.complete ? page.total : null,
    }),
  });
}

export function disposeOf(dag, name, about) {
  return (
    about.permissions.edit &&
    h(
      "button",
      {
        id: `act-dispose-${name}`,
        class: "link",
        onclick: () =>
          confirmAndPost({
            title: `Dispose of savepoint ${name}?`,
            verb: "Dispose",
            danger: true,
            path: path(dag, "dispose"),
            body: h("p", {}, "Retention may then delete its checkpoint, and a rollback to it is no longer possible."),
            fields: [NOTE],
            make: ({ note }) => ({ name, note }),
          }),
      },
      "dispose",
    )
  );
}

export function nameIt(dag, row, about) {
  if (!about.permissions.edit || !COUNTED.includes(row.outcome) || !row.records_retained || !row.published) return null;
  return h(
    "button",
    {
      id: "act-savepoint",
      onclick: () =>
        confirmAndPost({
          title: `Make checkpoint #${row.id} a savepoint?`,
          verb: "Make it a savepoint",
          path: path(dag, "savepoint"),
          body: h("p", {}, "Retention keeps it until it is disposed of."),
          fields: [{ name: "name", label: "Name", required: true, pattern: NAME }, NOTE],
          make: ({ name, note }) => ({ name, note, checkpoint: row.id }),
        }),
    },
    "Savepoint",
  );
}

const COUNTED = ["completed", "rollback", "swap"];

export function goBack(dag, row, about) {
  const possible = COUNTED.includes(row.outcome) && row.records_retained && row.published && !about.by_interval;
  return about.permissions.rollback && possible ? goBackTo(dag, row.id, "act-rollback", "Roll back to here") : null;
}

// The checkpoint before a swap has a name, so it exists until that savepoint is disposed of.
export function takeBack(dag, row, about) {
  const possible = row.state === "swap" && row.base && row.published;
  return about.permissions.rollback && possible ? goBackTo(dag, row.base, "act-take-back", "Undo the swap") : null;
}

function goBackTo(dag, to, id, text) {
  return h(
    "button",
    {
      id,
      class: "danger",
      onclick: async ({ currentTarget: button }) => {
        const done = busy(button);
        button.parentElement.querySelector(".said")?.remove();
        let preview;
        try {
          preview = await get(`${dagPath(dag)}/rollback?to=${to}`);
        } catch (error) {
          const text = [error.message, error.help && `Help: ${error.help}`].filter(Boolean).join(" — ");
          button.after(h("p", { class: "said", role: "alert" }, text));
          return;
        } finally {
          done();
        }
        const staying = Object.entries(preview.tables).filter(([, at]) => at.rows_stay_because);
        confirmAndPost({
          title: `Roll back to checkpoint #${to}?`,
          verb: "Roll back",
          danger: true,
          path: path(dag, "rollback"),
          body: [
            facts([
              ["Undone", preview.undone_swaps.map((each) => `backfill ${each.backfill} (#${each.id})`).join(", ")],
              ["No longer count", preview.undone.map((id) => `#${id}`).join(", ") || "none"],
              ["Aborted", preview.aborted.map((id) => `#${id}`).join(", ")],
              ["Read again", `${preview.sources.join(", ")}, from where #${to} ended`],
            ]),
            table(
              [
                { head: "Table", cell: ([name]) => name },
                {
                  head: "Now at version",
                  right: true,
                  cell: ([, at]) => (at.rows_stay_because ? "" : (at.version ?? "?")),
                },
                {
                  head: "Returns to",
                  right: true,
                  cell: ([, at]) => (at.rows_stay_because ? "its rows stay" : at.restored_version),
                },
              ],
              Object.entries(preview.tables),
            ),
            ...staying.map(([name, at]) =>
              h("p", {}, `${name}: ${at.rows_stay_because}. Input that is read again is written to it again.`),
            ),
            h(
              "p",
              { class: "quiet" },
              "A run of the DAG does it, with one more commit on each table. If another writer has changed a table since, it refuses, and nothing changes. No file is removed.",
            ),
          ],
          fields: [
            { name: "suspend", label: "Suspend the pipeline afterwards, to check first", kind: "checkbox" },
            NOTE,
          ],
          make: ({ suspend, note }) => ({
            to,
            expected_undone: preview.undone,
            keep_rows_of: staying.map(([name]) => name),
            suspend,
            note,
          }),
        });
      },
    },
    text,
  );
}

export const ANSWERS = [
  { choice: "approve", title: "Approve", look: "main", action: "approve", options: {} },
  { choice: "quarantine", title: "Quarantine", look: "", action: "reject", options: { quarantine: true } },
  { choice: "reject", title: "Reject", look: "danger", action: "reject", options: {} },
];

export function answers(dag, row, about, brokenRules) {
  const { details } = row;
  const held = Object.entries(details.gates)
    .filter(([, verdict]) => verdict.outcome === "hold" && !verdict.answer)
    .map(([name]) => name);
  const canQuarantine = !details.by_interval && held.every((name) => details.commits.includes(`quarantine.${name}`));
  const texts = {
    approve: "Exactly the judged rows are published.",
    quarantine:
      "The checkpoint is aborted, and its input is read again at once. Rows that broke the rules go to quarantine; the others are published.",
    reject: "The checkpoint is aborted and the pipeline suspended: the next one would have the same rows.",
  };
  const button = ({ choice, title, look, action, options }) =>
    h(
      "button",
      {
        id: `act-${choice}`,
        class: look,
        onclick: () =>
          confirmAndPost({
            title,
            verb: title,
            danger: choice === "reject",
            path: path(dag, action),
            body: h("p", {}, texts[choice]),
            fields: [NOTE],
            make: ({ note }) => ({ checkpoint: row.id, ...options, note }),
          }),
      },
      title,
    );
  return h(
    "div",
    { class: "banner wait" },
    h("p", {}, h("b", {}, `Held by gate ${held.join(", ")}.`), " It waits for approval."),
    about.health.state === "held" &&
      about.health.checkpoint === row.id &&
      h("p", { class: "cause" }, about.health.cause),
    examples(brokenRules),
    about.permissions.answer &&
      h("div", { class: "bar" }, ANSWERS.filter(({ choice }) => choice !== "quarantine" || canQuarantine).map(button)),
  );
}
