// Why a table has a row: the question, as a button beside the row, and the answer of the run that looks for it.
import { get, dagPath, outside, post, runPath } from "./api.js";
import { busy, card, facts, h, placeOf, table } from "./dom.js";
import { count, none, time } from "./format.js";

const ASKING_MS = 2000;
const FAILED = "The run has failed before it had an answer: its log says why.";
const GONE = "The answer is no longer kept. To look for it again, ask again: Why? beside the row.";

// Asks why a table has the row with these values, and goes to the answer's page. checkpoint: null for the last one.
export const whyButton = (dag, sink, checkpoint, values) =>
  h(
    "button",
    {
      class: "small",
      title: "Which input led to this row?",
      onclick: async ({ currentTarget: button }) => {
        const done = busy(button);
        try {
          const texts = Object.fromEntries(Object.entries(values).map(([name, value]) => [name, textOf(value)]));
          const { key } = await post(`${dagPath(dag)}/actions/why`, { sink, checkpoint, values: texts });
          location.hash = `#/why/${key}`;
        } catch (error) {
          done();
          button.after(h("p", { class: "said" }, [error.message, error.help].filter(Boolean).join(" — ")));
        }
      },
    },
    "Why?",
  );

const textOf = (value) => (value === null || value === undefined ? null : String(value));

export async function why({ dag, at }) {
  const data = await get(`${dagPath(dag)}/why/${encodeURIComponent(at.id ?? "")}`);
  const waits = !data.answered_at && ["queued", "running"].includes(data.run_state);
  return { key: data, wait: waits ? ASKING_MS : 0, draw: () => drawn(dag, data, waits) };
}

const pairs = (row) => Object.entries(row).map(([name, value]) => h("div", {}, `${name} = ${value ?? "null"}`));
const proven = (each) => (each.is_proven ? "needed" : "perhaps needed");

function drawn(dag, data, waits) {
  const { answer } = data;
  const head = card(
    `Why is this row in ${data.sink}?`,
    facts([
      ["The row", pairs(answer ? answer.row : data.values)],
      [
        "As of",
        data.checkpoint ? placeOf(data.checkpoint) : answer ? placeOf(answer.checkpoint) : "the last checkpoint",
      ],
      ["Asked by", data.asked_by],
      ["Asked", `${time(data.asked_at)} UTC`],
      [
        "Looked for by",
        outside(runPath(`${dag}__backfill`, data.run_id), data.run_state ? `a run (${data.run_state})` : "a run"),
      ],
    ]),
  );
  if (waits)
    return [
      head,
      h("p", { class: "quiet", role: "status" }, "Checkpoints are replayed. The answer comes here by itself."),
    ];
  if (!answer) return [head, refused(data)];
  return [head, summary(data), records(answer), corrections(answer), checkpoints(answer), onTheWay(answer)];
}

function refused({ problem, help, run_state: state }) {
  const text = problem || (state === "failed" ? FAILED : GONE);
  return card(
    "There is no answer",
    text.split("\n").map((line) => h("p", {}, line)),
    help && h("p", { class: "quiet" }, `Help: ${help}`),
  );
}

const many = (number, noun) => `${count(number)} ${noun}${number === 1 ? "" : "s"}`;

function summary({ answer }) {
  const causes = [many(answer.records.length, "record")];
  if (answer.corrections.length) causes.push(many(answer.corrections.length, "correction"));
  const replays = `${many(answer.replays, "replay")}, ${many(answer.candidates, "candidate")}`;
  const proof = answer.unproven
    ? `Its limit of replays ended before each was left out: ${many(answer.unproven, "cause")} may be needless. `
    : "Without any one of them it is another row, or none.";
  return card(
    "The answer",
    h("p", {}, "It is so since ", placeOf(answer.since), `, because of ${causes.join(" and ")}.`),
    answer.needs_older_state &&
      h("p", {}, "It also rests on the state as of ", placeOf(answer.begins_after), `: ${answer.why_older}`),
    h(
      "p",
      { class: "quiet" },
      `From these alone the row is the same (${replays}). ${proof}`,
      answer.unproven > 0 && more(),
    ),
    answer.manual_edits.map((edit) => h("p", { class: "quiet" }, `Not repeated, and not needed: ${edit}`)),
    answer.other_code &&
      h(
        "p",
        { class: "quiet" },
        "Other code has made checkpoint ",
        placeOf(answer.since),
        ". Today's makes the same row.",
      ),
  );
}

const more = () => h("span", {}, h("code", {}, "tidegate why --replays"), " takes more.");

const records = (answer) =>
  card(
    "Records",
    table(
      [
        { head: "Source", cell: ({ source }) => source },
        { head: "Where", cell: ({ place }) => (place ? h("code", {}, place) : none) },
        { head: "Read in", right: true, cell: ({ checkpoint }) => placeOf(checkpoint) },
        { head: "Values", cell: ({ values }) => pairs(values) },
        { head: "Without it", cell: proven },
      ],
      answer.records,
      { label: "Records that led to the row", empty: "No record: it rests on older input alone.", stack: true },
    ),
  );

const corrections = ({ corrections: all }) =>
  all.length > 0 &&
  card(
    "Corrections",
    table(
      [
        { head: "Gate", cell: ({ gate }) => gate },
        { head: "In", right: true, cell: ({ checkpoint }) => placeOf(checkpoint) },
        { head: "Requests", cell: ({ requests }) => requests.map((text) => h("div", {}, text)) },
        { head: "Without it", cell: proven },
      ],
      all,
      { label: "Corrections that led to the row", stack: true },
    ),
  );

const checkpoints = ({ checkpoints: all }) =>
  card(
    "Checkpoint by checkpoint",
    table(
      [
        { head: "Checkpoint", right: true, cell: ({ id }) => placeOf(id) },
        { head: "Time (UTC)", cell: (each) => h("span", { class: "nowrap" }, time(each.time)) },
        {
          head: "Then the state",
          cell: ({ states }) =>
            Object.entries(states).map(([name, rows]) =>
              h(
                "div",
                {},
                h("b", {}, name),
                rows.map((row) => h("div", {}, pairs(row))),
              ),
            ),
        },
        { head: "Then the row", cell: ({ row }) => (row ? pairs(row) : none) },
      ],
      all,
      { label: "The row after each checkpoint, made of these causes alone", stack: true },
    ),
  );

const onTheWay = ({ path }) =>
  card(
    "On the way",
    table(
      [
        { head: "Part", cell: ({ name }) => name },
        { head: "Takes", cell: ({ inputs }) => inputs.join(", ") },
        { head: "Is", cell: ({ kind }) => kind },
        { head: "Does", cell: ({ does }) => h("code", {}, does) },
      ],
      path,
      { label: "Parts of the pipeline on the way to the row", stack: true },
    ),
  );
