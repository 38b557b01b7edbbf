// Backfills: the progress of each, what a swap would change, and the actions.
import { outside, dagRunsPath } from "./api.js";
import { ANSWERS, NAME, NOTE, confirmAndPost, path } from "./actions.js";
import { badge, card, facts, h, placeOf, table } from "./dom.js";
import { count, seconds, time } from "./format.js";

const FROM = {
  name: "begin_after",
  label:
    "Begin after: a checkpoint's number, a savepoint, a time (UTC) for the last checkpoint before it, or beginning",
  required: true,
};
const named = () => ({ name: "name", label: "Name (optional)", pattern: NAME }); // actions.js may be loaded after this file
const PAUSE = {
  name: "pause_seconds",
  label: "Pause between its checkpoints, in seconds",
  kind: "number",
  value: "0",
  min: "0",
  step: "any",
};
const STOP_AFTER = {
  name: "stop_after",
  label: "Stop after checkpoint (optional), to inspect a partial result; the next run reads the rest",
};
const BATCH_FACTOR = {
  name: "batch_factor",
  label: "Read N times the sources' bounds in each checkpoint",
  kind: "number",
  value: "1",
  min: "1",
  step: "1",
};
const CUTS = {
  name: "cuts",
  label: "One checkpoint for each of the pipeline's, with exactly its input: the same code returns the same rows",
  kind: "checkbox",
};
const DROP_MANUAL_EDITS = {
  name: "drop_manual_edits",
  label: "Discard manual changes of state since then",
  kind: "checkbox",
};

export function backfillButton(dag, about) {
  if (!about.permissions.backfill || !about.started || about.backfills.length) return null;
  return h(
    "button",
    {
      id: "act-backfill",
      onclick: () =>
        confirmAndPost({
          title: "Recompute the pipeline's results?",
          verb: "Begin",
          path: path(dag, "backfill"),
          body: h(
            "p",
            {},
            "A run reads the same input again with today's code, into hidden tables, while the pipeline runs. " +
              "Nothing changes until the backfill is swapped in. Until then, retention keeps everything since its beginning.",
          ),
          fields: [
            FROM,
            STOP_AFTER,
            BATCH_FACTOR,
            CUTS,
            DROP_MANUAL_EDITS,
            named(),
            PAUSE,
            { name: "dry_run", label: "Dry run: only report what it would read and change", kind: "checkbox" },
            NOTE,
          ],
          make: ({
            begin_after,
            stop_after,
            batch_factor,
            cuts,
            drop_manual_edits,
            name,
            pause_seconds,
            dry_run,
            note,
          }) => ({
            begin_after,
            stop_after,
            batch_factor: Number(batch_factor),
            cuts: cuts ? "recorded" : "own",
            drop_manual_edits,
            pause_seconds: Number(pause_seconds),
            dry_run,
            note,
            ...(name ? { name } : {}),
          }),
        }),
    },
    "Backfill",
  );
}

export function backfills(dag, about) {
  return about.backfills.map((line) =>
    card(
      ["Backfill ", line.name, " ", badge(line.state.replace("_", " "))],
      facts([
        ["Begins after", placeOf(line.origin)],
        ["By", [line.created_by, line.note && `: ${line.note}`]],
        ["Since", `${time(line.created_at)} UTC`],
        ["Checkpoints made", count(line.checkpoints)],
        [
          "Has read up to",
          line.caught_up_to
            ? [
                h("a", { href: `#/checkpoint/${line.caught_up_to}` }, `#${line.caught_up_to}`),
                ` of ${time(line.caught_up_at)} UTC`,
              ]
            : "",
        ],
        [
          "Behind",
          line.pending
            ? `${count(line.pending)} checkpoint${line.pending === 1 ? "" : "s"}, for ${seconds(line.oldest_pending_seconds)}`
            : "",
        ],
        ["Cannot continue", line.blocked_by],
        ["Stopped", line.stop_reason],
        ["Swapped in by", line.swap && [`entry #${line.swap}; its files are still to be cleaned up`]],
        ["Runs", outside(dagRunsPath(`${dag}__backfill`), `${dag}__backfill`)],
      ]),
      line.held_checkpoint && heldBy(dag, line, about),
      change(line),
      actions(dag, line, about),
    ),
  );
}

// The backfill's own button: the pipeline's would answer a checkpoint of the pipeline.
function heldBy(dag, { name, held_checkpoint: held }, about) {
  const texts = {
    approve: "The backfill continues with exactly the judged rows.",
    quarantine:
      "The backfill reads the checkpoint's input again at once. Rows that broke the rules go to its quarantine. The pipeline is not affected.",
    reject: "The backfill stops there. The pipeline is not affected.",
  };
  const button = ({ choice, title, look, action, options }) =>
    h(
      "button",
      {
        id: `act-${choice}-${name}`,
        class: look,
        onclick: () =>
          confirmAndPost({
            title: `${title} checkpoint ${held.checkpoint} of backfill ${name}?`,
            verb: title,
            danger: choice === "reject",
            path: path(dag, action),
            body: h("p", {}, texts[choice]),
            fields: [NOTE],
            make: ({ note }) => ({ checkpoint: held.checkpoint, backfill: name, ...options, note }),
          }),
      },
      title,
    );
  return h(
    "div",
    { class: "banner wait" },
    h("p", {}, h("b", {}, `Its checkpoint ${held.checkpoint} is held by gate ${held.gates.join(", ")}.`)),
    h("p", { class: "cause" }, held.why),
    about.permissions.answer &&
      h(
        "div",
        { class: "bar" },
        ANSWERS.filter(({ choice }) => choice !== "quarantine" || held.can_quarantine).map(button),
      ),
  );
}

// What a swap would change, as of the last comparison.
function change({ last_comparison: compared, swap }) {
  if (swap) return null;
  if (!compared) return h("p", { class: "quiet" }, "Its tables are compared once it has caught up.");
  return [
    h(
      "h3",
      {},
      `What a swap would change, as of ${time(compared.compared_at)} UTC${compared.is_current ? "" : ", before its latest input"}`,
    ),
    table(
      [
        { head: "Table", cell: ([name]) => name },
        { head: "Rows now", right: true, cell: ([, each]) => count(each.rows_now) },
        { head: "Rows after", right: true, cell: ([, each]) => count(each.rows_after) },
        { head: "Rows removed", right: true, cell: ([, each]) => count(each.rows_removed) },
        { head: "Rows added", right: true, cell: ([, each]) => count(each.rows_added) },
      ],
      Object.entries(compared.tables),
      { label: "", empty: "No table." },
    ),
    compared.unchanged_sinks.map((name) => h("p", {}, `${name} stays as it is: rows cannot be removed from it.`)),
    compared.problems.map((problem) => h("p", { class: "said" }, problem)),
  ];
}

function actions(dag, line, about) {
  const { name } = line;
  return h(
    "div",
    { class: "bar" },
    about.permissions.swap && !line.blocked_by && !line.swap && swapIn(dag, line),
    about.permissions.backfill &&
      !line.blocked_by &&
      !line.swap &&
      h(
        "button",
        {
          id: `act-continue-${name}`,
          onclick: () =>
            confirmAndPost({
              title: `Continue backfill ${name}?`,
              verb: "Continue",
              path: path(dag, "backfill"),
              body: h("p", {}, "A run reads the rest of its input, and compares its tables."),
              fields: [STOP_AFTER, BATCH_FACTOR, DROP_MANUAL_EDITS, PAUSE, NOTE],
              make: ({ stop_after, batch_factor, drop_manual_edits, pause_seconds, note }) => ({
                name,
                stop_after,
                batch_factor: Number(batch_factor),
                drop_manual_edits,
                pause_seconds: Number(pause_seconds),
                note,
              }),
            }),
        },
        "Continue",
      ),
    about.permissions.swap &&
      h(
        "button",
        {
          id: `act-discard-${name}`,
          class: "danger",
          onclick: () =>
            confirmAndPost({
              title: `Discard backfill ${name}?`,
              verb: "Discard",
              danger: true,
              path: path(dag, "discard-backfill"),
              body: h(
                "p",
                {},
                line.swap
                  ? "Its result is in the tables, and stays there. Its other files are removed."
                  : "Its result is removed. The pipeline and its tables stay as they are.",
              ),
              fields: [NOTE],
              make: ({ note }) => ({ name, note }),
            }),
        },
        "Discard",
      ),
  );
}

const WAYS = {
  "nothing yet: the swap is refused": null,
  "their rows stay, this pipeline's are replaced": "retract",
  "these tables stay as they are": "keep_rows_of",
  "their commits are lost": "discard_commits",
};
const othersHave = (shared) => ({
  name: "others",
  label: `Other writers have changed ${shared.join(", ")} since. What should happen to their rows?`,
  options: Object.keys(WAYS),
});

function swapIn(dag, line) {
  const { name, last_comparison: compared } = line;
  const shared = compared?.tables_with_other_writers ?? [];
  return h(
    "button",
    {
      id: `act-swap-${name}`,
      class: "main",
      onclick: () =>
        confirmAndPost({
          title: `Swap backfill ${name} in?`,
          verb: "Swap in",
          danger: true,
          path: path(dag, "swap"),
          body: [
            change(line),
            h(
              "p",
              {},
              "A run reads the rest, while the pipeline waits. Then each table gets the result in one commit, together with state, quarantine and positions. " +
                "The checkpoint before it becomes a savepoint: a rollback to it undoes the swap, here, by command, or by the API.",
            ),
          ],
          fields: [...(shared.length ? [othersHave(shared)] : []), DROP_MANUAL_EDITS, NOTE],
          make: ({ others, drop_manual_edits, note }) => ({
            name,
            note,
            drop_manual_edits,
            ...(WAYS[others] ? { [WAYS[others]]: shared } : {}),
          }),
        }),
    },
    "Swap in",
  );
}
