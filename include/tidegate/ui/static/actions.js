// What people may do: each asks first, and says what it will do. What they may not do is not offered; the server asks again.
import { get, of, post } from "./api.js";
import { facts, h, table } from "./dom.js";
import { rows } from "./format.js";
import { examples } from "./overview.js";

const changed = () => window.dispatchEvent(new CustomEvent("tidegate:changed"));

export function toast(text) {
  const shown = h("div", { class: "toast", role: "status" }, text);
  document.body.append(shown);
  setTimeout(() => shown.remove(), 6000);
}

// fields: [{name, label, kind, required, pattern}]. do: what is sent, from the fields' values.
function ask({ title, body = [], fields = [], verb, danger = false, path, make }) {
  if (document.querySelector("dialog")) return; // pressed twice
  const inputs = new Map(fields.map((field) => [field.name, input(field)]));
  const said = h("p", { class: "said", role: "alert" });
  const send = h(
    "button",
    {
      class: danger ? "danger" : "main",
      id: "dialog-send",
      onclick: async () => {
        const wrong = [...inputs.values()].find((each) => !each.checkValidity());
        if (wrong) {
          wrong.reportValidity();
          return;
        }
        send.disabled = true;
        said.textContent = "";
        try {
          const values = Object.fromEntries(
            [...inputs].map(([name, each]) => [name, each.type === "checkbox" ? each.checked : each.value]),
          );
          const done = await post(path, make(values));
          dialog.close();
          toast(done.told);
          changed();
        } catch (error) {
          said.textContent = [error.message, error.help && `Help: ${error.help}`].filter(Boolean).join(" — ");
          send.disabled = false;
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
    said,
    h(
      "div",
      { class: "bar" },
      h("button", { id: "dialog-cancel", autofocus: true, onclick: () => dialog.close() }, "Cancel"),
      send,
    ),
  );
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
}

function input({ name, kind = "text", required, pattern, options, value = "" }) {
  if (options)
    return h(
      "select",
      { id: `field-${name}` },
      options.map((each) => h("option", { value: each }, each)),
    );
  if (kind === "checkbox") return h("input", { type: "checkbox", id: `field-${name}` });
  return h("input", {
    type: kind,
    id: `field-${name}`,
    required,
    pattern,
    maxlength: "1000",
    value,
    autocomplete: "off",
  });
}

const NOTE = { name: "note", label: "Note: why, for whoever looks at it later" };
const NAME = "[a-z0-9][a-z0-9_\\-]{0,62}";
const path = (dag, action) => `${of(dag)}/actions/${action}`;

const named = ({ savepoint, note }) => ({ note, ...(savepoint ? { savepoint } : {}) });

export function buttons(dag, about) {
  const { may } = about;
  const stopped = about.suspended !== null;
  const button = (id, text, onclick, kind = "") => h("button", { id, onclick, class: kind }, text);
  return h(
    "div",
    { class: "bar" },
    may.edit &&
      stopped &&
      button(
        "act-resume",
        "Resume",
        () =>
          ask({
            title: "Let runs plan checkpoints again?",
            verb: "Resume",
            path: path(dag, "resume"),
            body: h("p", {}, `It is ${about.condition.state}. ${about.suspended.why || about.suspended.by || ""}`),
            fields: [
              ...(about.suspended.rejected
                ? [{ name: "quarantine_all", label: "Set aside what a gate would hold again", kind: "checkbox" }]
                : []),
              ...(about.suspended.action === "drain"
                ? [{ name: "after_end", label: "Although it is finished: all rows are late then", kind: "checkbox" }]
                : []),
              NOTE,
            ],
            make: (values) => values,
          }),
        "main",
      ),
    may.edit &&
      !stopped &&
      about.started &&
      button("act-suspend", "Suspend", () =>
        ask({
          title: "Suspend the pipeline?",
          verb: "Suspend",
          path: path(dag, "suspend"),
          body: h(
            "p",
            {},
            "No run plans a checkpoint until somebody resumes. What is planned already is brought to its end, and input waits: nothing is lost.",
          ),
          fields: [NOTE],
          make: (values) => values,
        }),
      ),
    may.trigger &&
      button(
        "act-trigger",
        "Trigger",
        () =>
          ask({
            title: "Make a checkpoint now?",
            verb: "Trigger",
            path: path(dag, "trigger"),
            body: h("p", {}, "A run of the DAG takes what is new."),
            fields: [{ name: "savepoint", label: "Savepoint: a name for it, or nothing", pattern: NAME }, NOTE],
            make: named,
          }),
        stopped ? "" : "main",
      ),
    may.drain &&
      !stopped &&
      about.started &&
      !about.by_interval &&
      button("act-drain", "Finish", () =>
        ask({
          title: "Make the last checkpoint?",
          verb: "Finish",
          danger: true,
          path: path(dag, "drain"),
          body: h(
            "p",
            {},
            "A run of the DAG takes what is new. Then event time comes to its end: windows close, timers fire, rows without a partner are given out. The pipeline is finished, and later runs are skipped.",
          ),
          fields: [{ name: "savepoint", label: "Savepoint: a name for it, or nothing", pattern: NAME }, NOTE],
          make: named,
        }),
      ),
  );
}

// Without ids and rules: all that wait.
export function releaseRows(dag, page, { ids, rules, discard }) {
  const many = ids.length
    ? rows(ids.length)
    : rules.length
      ? `all rows that broke ${rules.join(", ")}`
      : `all ${rows(page.total)}`;
  const correction = [
    { name: "column", label: "Correct a column on the way, or not", options: ["", ...page.columns] },
    { name: "value", label: "Its value" },
    { name: "null", label: "No value: null", kind: "checkbox" },
  ];
  ask({
    title: discard ? `Give up ${many}?` : `Let ${many} go on?`,
    verb: discard ? "Give up" : "Release",
    danger: discard,
    path: path(dag, "release"),
    body: h(
      "p",
      {},
      discard
        ? "They stay in the table, marked, and nobody asks again. The next checkpoint does it."
        : "The next checkpoint lets them go on behind their gate, once, and does not judge them again.",
    ),
    fields: [...(discard ? [] : correction), NOTE],
    make: ({ column, value, note, ...rest }) => ({
      gate: page.gate,
      ids,
      rules,
      discard,
      note,
      correct: column ? { [column]: rest.null ? null : value } : {},
    }),
  });
}

export function disposeOf(dag, name, about) {
  return (
    about.may.edit &&
    h(
      "button",
      {
        id: `act-dispose-${name}`,
        class: "link",
        onclick: () =>
          ask({
            title: `Take away the name ${name}?`,
            verb: "Dispose",
            danger: true,
            path: path(dag, "dispose"),
            body: h("p", {}, "Retention may take its checkpoint then: one cannot go back to it any more."),
            fields: [NOTE],
            make: ({ note }) => ({ name, note }),
          }),
      },
      "dispose",
    )
  );
}

export function nameIt(dag, row, about) {
  if (!about.may.edit || row.state !== "completed" || !row.kept || !row.published) return null;
  return h(
    "button",
    {
      id: "act-savepoint",
      onclick: () =>
        ask({
          title: `Give checkpoint #${row.id} a name?`,
          verb: "Make it a savepoint",
          path: path(dag, "savepoint"),
          body: h("p", {}, "Retention spares it until it is disposed of."),
          fields: [{ name: "name", label: "Name", required: true, pattern: NAME }, NOTE],
          make: ({ name, note }) => ({ name, note, checkpoint: row.id }),
        }),
    },
    "Savepoint",
  );
}

export function goBack(dag, row, about) {
  if (!about.may.rollback || row.state !== "completed" || !row.kept || !row.published || about.by_interval) return null;
  return h(
    "button",
    {
      id: "act-rollback",
      class: "danger",
      onclick: async () => {
        let told;
        try {
          told = await get(`${of(dag)}/rollback?to=${row.id}`);
        } catch (error) {
          toast(error.message);
          return;
        }
        ask({
          title: `Go back to checkpoint #${row.id}?`,
          verb: "Roll back",
          danger: true,
          path: path(dag, "rollback"),
          body: [
            facts([
              ["No longer count", told.undone.map((id) => `#${id}`).join(", ") || "none"],
              ["Ended at once", told.ended.map((id) => `#${id}`).join(", ")],
              ["Read again", `${told.sources.join(", ")}, from where #${row.id} ended`],
            ]),
            table(
              [
                { head: "Table", cell: ([name]) => name },
                { head: "Now at version", right: true, cell: ([, at]) => at.now ?? "?" },
                { head: "Goes back to", right: true, cell: ([, at]) => at.back_to },
              ],
              Object.entries(told.tables),
            ),
            h(
              "p",
              { class: "quiet" },
              "A run of the DAG does it, by one more commit on each table. If others have written to a table since, it refuses and nothing changes. No file is removed.",
            ),
          ],
          fields: [{ name: "suspend", label: "Suspend the pipeline behind it, to look first", kind: "checkbox" }, NOTE],
          make: ({ suspend, note }) => ({ to: row.id, undone: told.undone, suspend, note }),
        });
      },
    },
    "Roll back to here",
  );
}

export function answers(dag, row, about, found) {
  const held = Object.entries(row.details.gates)
    .filter(([, said]) => said.outcome === "hold" && !said.answer)
    .map(([name]) => name);
  const button = (action, title, body) =>
    h(
      "button",
      {
        id: `act-${action}`,
        class: action === "approve" ? "main" : "danger",
        onclick: () =>
          ask({
            title,
            verb: title,
            danger: action === "reject",
            path: path(dag, action),
            body: h("p", {}, body),
            fields: [NOTE],
            make: ({ note }) => ({ checkpoint: row.id, note }),
          }),
      },
      title,
    );
  return h(
    "div",
    { class: "banner wait" },
    h("p", {}, h("b", {}, `Held by gate ${held.join(", ")}.`), " It waits for a person."),
    about.condition.state === "held" &&
      about.condition.entry === row.id &&
      h("p", { class: "cause" }, about.condition.cause),
    examples(found),
    about.may.answer &&
      h(
        "div",
        { class: "bar" },
        button("approve", "Approve", "Exactly what was judged is published."),
        button(
          "reject",
          "Reject",
          "The checkpoint is aborted and the pipeline suspended: the next one would have the same rows.",
        ),
      ),
  );
}
