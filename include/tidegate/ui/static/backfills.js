// Backfills: how far each has come, what a swap would change, and the actions.
import { outside, dagRunsPath } from "./api.js";
import { NAME, NOTE, confirmAndPost, path } from "./actions.js";
import { badge, card, facts, h, placeOf, table } from "./dom.js";
import { count, seconds, time } from "./format.js";

const FROM = {
  name: "begin_after",
  label: "Begin after: a checkpoint's number, a savepoint, the last one before a time (UTC), or beginning",
  required: true,
};
const named = () => ({ name: "name", label: "Name (optional)", pattern: NAME }); // actions.js may be read after this file
const PAUSE = {
  name: "pause",
  label: "Pause between two of its checkpoints, in seconds",
  kind: "number",
  value: "0",
  min: "0",
  step: "any",
};
const TO = {
  name: "to",
  label:
    "Stop at (optional): when it has read what this checkpoint had, for a look at a part; the next run reads the rest",
};
const LARGER = {
  name: "larger",
  label: "Read so many times as much in a checkpoint as the sources' bounds allow",
  kind: "number",
  value: "1",
  min: "1",
  step: "1",
};
const CUTS = {
  name: "cuts",
  label:
    "One checkpoint for each that the pipeline has made, with exactly its input: the same code gives the same rows",
  kind: "checkbox",
};
const DROP_BY_HAND = {
  name: "drop_by_hand",
  label: "Lose what somebody has changed in states by hand since then",
  kind: "checkbox",
};

export function backfillButton(dag, about) {
  if (!about.may.backfill || !about.started || about.backfills.length) return null;
  return h(
    "button",
    {
      id: "act-backfill",
      onclick: () =>
        confirmAndPost({
          title: "Compute again what the pipeline has made?",
          verb: "Begin",
          path: path(dag, "backfill"),
          body: h(
            "p",
            {},
            "A run reads the same input again through today's code, beside the pipeline, into tables that nobody sees. " +
              "Nothing changes until somebody swaps it in. Until then retention removes nothing from its beginning on.",
          ),
          fields: [
            FROM,
            TO,
            LARGER,
            CUTS,
            DROP_BY_HAND,
            named(),
            PAUSE,
            { name: "dry_run", label: "Dry run: only tell what it would read and change", kind: "checkbox" },
            NOTE,
          ],
          make: ({ begin_after, to, larger, cuts, drop_by_hand, name, pause, dry_run, note }) => ({
            begin_after,
            to,
            larger: Number(larger),
            cuts: cuts ? "recorded" : "own",
            drop_by_hand,
            pause: Number(pause),
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
      ["Backfill ", line.name, " ", badge(line.state)],
      facts([
        ["Begins after", placeOf(line.origin)],
        ["By", [line.by, line.note && `: ${line.note}`]],
        ["Since", `${time(line.at)} UTC`],
        ["Checkpoints made", count(line.made)],
        [
          "Has read up to",
          line.reached
            ? [h("a", { href: `#/checkpoint/${line.reached}` }, `#${line.reached}`), ` of ${time(line.reached_at)} UTC`]
            : "",
        ],
        [
          "Behind",
          line.pending
            ? `${count(line.pending)} checkpoint${line.pending === 1 ? "" : "s"}, for ${seconds(line.behind_seconds)}`
            : "",
        ],
        ["Cannot go on", line.refused],
        ["Stopped", line.stopped],
        ["Swapped in by", line.swapped && [`entry #${line.swapped}; its files are still to be cleaned up`]],
        ["Runs", outside(dagRunsPath(`${dag}__backfill`), `${dag}__backfill`)],
      ]),
      line.held && heldBy(dag, line, about),
      change(line),
      actions(dag, line, about),
    ),
  );
}

// The line's own: the pipeline's button would answer a checkpoint of the pipeline.
function heldBy(dag, { name, held }, about) {
  const button = (action, title, text) =>
    h(
      "button",
      {
        id: `act-${action}-${name}`,
        class: action === "approve" ? "main" : "danger",
        onclick: () =>
          confirmAndPost({
            title: `${title} checkpoint ${held.checkpoint} of backfill ${name}?`,
            verb: title,
            danger: action === "reject",
            path: path(dag, action),
            body: h("p", {}, text),
            fields: [NOTE],
            make: ({ note }) => ({ checkpoint: held.checkpoint, backfill: name, note }),
          }),
      },
      title,
    );
  return h(
    "div",
    { class: "banner wait" },
    h("p", {}, h("b", {}, `Its checkpoint ${held.checkpoint} is held by gate ${held.gates.join(", ")}.`)),
    h("p", { class: "cause" }, held.why),
    about.may.answer &&
      h(
        "div",
        { class: "bar" },
        button("approve", "Approve", "The backfill goes on with exactly the judged rows."),
        button("reject", "Reject", "The backfill ends there. The pipeline never notices."),
      ),
  );
}

// What a swap would change, as of the last time that somebody compared.
function change({ compared, swapped }) {
  if (swapped) return null;
  if (!compared)
    return h("p", { class: "quiet" }, "Nobody has compared its tables yet: that is done once it has caught up.");
  return [
    h(
      "h3",
      {},
      `What a swap would change, as of ${time(compared.at)} UTC${compared.current ? "" : ", before its latest input"}`,
    ),
    table(
      [
        { head: "Table", cell: ([name]) => name },
        { head: "Rows now", right: true, cell: ([, each]) => count(each.rows_now) },
        { head: "Rows after", right: true, cell: ([, each]) => count(each.rows_after) },
        { head: "Taken away", right: true, cell: ([, each]) => count(each.taken_away) },
        { head: "Brought", right: true, cell: ([, each]) => count(each.brought) },
      ],
      Object.entries(compared.tables),
      { label: "", empty: "No table." },
    ),
    compared.left_out.map((name) => h("p", {}, `${name} stays as it is: rows cannot be taken out there again.`)),
    compared.problems.map((problem) => h("p", { class: "said" }, problem)),
  ];
}

function actions(dag, line, about) {
  const { name } = line;
  return h(
    "div",
    { class: "bar" },
    about.may.swap && !line.refused && !line.swapped && swapIn(dag, line),
    about.may.backfill &&
      !line.refused &&
      !line.swapped &&
      h(
        "button",
        {
          id: `act-continue-${name}`,
          onclick: () =>
            confirmAndPost({
              title: `Continue backfill ${name}?`,
              verb: "Continue",
              path: path(dag, "backfill"),
              body: h("p", {}, "A run reads what it has not read yet, and compares its tables."),
              fields: [TO, LARGER, DROP_BY_HAND, PAUSE, NOTE],
              make: ({ to, larger, drop_by_hand, pause, note }) => ({
                name,
                to,
                larger: Number(larger),
                drop_by_hand,
                pause: Number(pause),
                note,
              }),
            }),
        },
        "Continue",
      ),
    about.may.swap &&
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
                line.swapped
                  ? "What it has computed is in the tables, and stays there. Its other files are removed."
                  : "What it has computed is removed. The pipeline and its tables stay as they are.",
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
  "these tables stay as they are": "keep",
  "their commits are lost": "discard_commits",
};
const othersHave = (shared) => ({
  name: "others",
  label: `Others have written to ${shared.join(", ")} since. What becomes of that?`,
  options: Object.keys(WAYS),
});

function swapIn(dag, line) {
  const { name, compared } = line;
  const shared = compared?.shared ?? [];
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
              "A run reads what is left, while the pipeline waits. Then each table gets the result by one commit, and state, quarantine and positions with it. " +
                "The checkpoint before it gets a name: a rollback to it takes the swap back, here, by command, or by the API.",
            ),
          ],
          fields: [...(shared.length ? [othersHave(shared)] : []), DROP_BY_HAND, NOTE],
          make: ({ others, drop_by_hand, note }) => ({
            name,
            note,
            drop_by_hand,
            ...(WAYS[others] ? { [WAYS[others]]: shared } : {}),
          }),
        }),
    },
    "Swap in",
  );
}
