// One checkpoint: its input, the work of each job, operator and gate, and its tables.
import { base, get, dagPath, outside, runPath } from "./api.js";
import { badge, card, errorText, facts, foldable, folded, h, placeOf, s, section, stateOf, table } from "./dom.js";
import { bytes, count, durations, none, positionTexts, rate, rows as rowsText, seconds, time } from "./format.js";
import { answers, disposeOf, goBack, nameIt, takeBack } from "./actions.js";
import { jobsOf, jobsTable, rowsIn, sum } from "./jobs.js";
import { lanes } from "./lanes.js";
import { NO_SAMPLES, later, partSamples, quarantinedRows, tableChanges, tableRows } from "./rows.js";
import { banner, examples, findings, origin } from "./overview.js";
import { bands } from "./bands.js";

export async function checkpoint({ dag, at }) {
  const row = await get(`${dagPath(dag)}/checkpoints/${encodeURIComponent(at.id)}`);
  const open = row.decided === null;
  const gates = Object.entries(row.details.gates)
    .filter(([, verdict]) => row.records_retained && ["hold", "abort"].includes(verdict.outcome))
    .map(([name]) => name);
  const brokenRules = await findings(dag, { checkpoint: row.id, gates });
  return {
    key: [open ? row : { ...row, now: null }, brokenRules],
    wait: open ? 1500 : 8000,
    draw: (about) => drawn(dag, row, about, brokenRules),
  };
}

const choiceOf = ({ approve, quarantine }) => (approve ? "approved" : quarantine ? "quarantined" : "rejected");

// Why it has this state. If it blocks the pipeline, also the remedy.
function why(dag, row, about, brokenRules) {
  if (row.state === "held") return answers(dag, row, about, brokenRules);
  const { health } = about;
  const isCause = health.checkpoint === row.id && (row.state !== "completed" || health.state === "unpublished");
  if (isCause && !health.needs_nothing) return banner(dag, health, brokenRules);
  const { detail } = row.details;
  return (
    (row.reason || detail) &&
    h(
      "div",
      { class: `banner ${row.outcome === "aborted" ? "wrong" : ""}` },
      h("b", {}, row.reason),
      detail && errorText(detail),
      examples(brokenRules),
      h("p", { class: "quiet" }, "The pipeline's current state: ", h("a", { href: "#/overview" }, "status")),
    )
  );
}

// The checkpoint before a swap, and the name that keeps it.
function wayBack(row, about) {
  const named = about.savepoints.filter(({ checkpoint: id }) => id === row.base).map(({ name }) => name);
  return [placeOf(row.base), named.length > 0 && `, savepoint ${named.join(", ")}`];
}

function drawn(dag, row, about, brokenRules) {
  const d = row.details;
  const run = row.run_id && runPath(dag, row.run_id);
  const log = (task) => run && outside(`${run}/tasks/${encodeURIComponent(task)}`, "log");
  const step = (id, text) => id && h("a", { href: `#/checkpoint/${id}` }, text);
  return [
    h(
      "div",
      { class: "bar" },
      h("h1", {}, row.kind === "swap" ? `Swap #${row.id} of backfill ${row.backfill}` : `Checkpoint #${row.id}`),
      stateOf(row),
      row.savepoints.map((name) => [
        h("span", { class: "badge info" }, `savepoint ${name}`),
        disposeOf(dag, name, about),
      ]),
      h("span", { class: "grow" }),
      step(row.previous, "‹ previous"),
      step(row.next, "next ›"),
      row.previous && h("a", { href: `#/compare?before=${row.previous}&after=${row.id}` }, "compare with previous"),
      nameIt(dag, row, about),
      goBack(dag, row, about),
      takeBack(dag, row, about),
    ),
    why(dag, row, about, brokenRules),
    card("Barriers", lanes(row, row.now, about.latest.completed?.seconds)),
    h(
      "div",
      { class: "grid" },
      card(
        "Checkpoint",
        facts([
          ["Kind", row.kind],
          ["Run", run ? outside(run, row.run_id) : row.run],
          [
            "Code",
            d.code_fingerprint && [
              h("code", {}, d.code_fingerprint.slice(0, 12)),
              row.dag_version && `, DAG version ${row.dag_version}`,
            ],
          ],
          ["Planned", `${time(row.planned)} UTC`],
          ["Latest ack", latestAck(d)],
          ["Decided", row.decided && `${time(row.decided)} UTC`],
          ["Published", row.published && `${time(row.published)} UTC`],
          ["Base", step(row.base, `#${row.base}`)],
          ["Back to", row.backfill || row.back_to === null ? null : placeOf(row.back_to)],
          ["Backfill", row.backfill],
          ["It began after", row.backfill && placeOf(row.back_to)],
          ["Undone by a rollback to", row.backfill && row.base && wayBack(row, about)],
          ["By", row.by],
          ["Interval", row.interval],
          ["Records", row.records_retained ? "in the ledger" : "deleted by retention: this is from the history"],
        ]),
      ),
      section("Durations", facts([...durations(row), ["Timeout", seconds(d.timeout_s)]])),
      section(
        "Data",
        facts([
          ["Rows in", count(row.rows_in)],
          ["Bytes in", bytes(row.bytes_in)],
          ["Rows in per second", rate(row.rate)],
          ["Rows out", count(row.rows_out)],
          ["Bytes out", bytes(row.bytes_out)],
          ["Late rows", count(row.late)],
          ["Quarantined", count(row.quarantined)],
          ["Released", count(row.released)],
          ["State", row.state_bytes === null ? none : `${bytes(row.state_bytes)}, ${bytes(row.state_delta)} of it new`],
          ["Watermark", row.watermark && `${time(row.watermark)} UTC`],
          ["Lag", seconds(row.lag_seconds)],
          [
            "In flight, processed",
            row.processed_bytes && amount({ rows: row.processed_rows, bytes: row.processed_bytes }),
          ],
          [
            "In flight, persisted",
            row.persisted_bytes && amount({ rows: row.persisted_rows, bytes: row.persisted_bytes }),
          ],
        ]),
      ),
    ),
    section(
      "Sources",
      table(
        [
          { head: "Source", cell: ([name]) => name },
          { head: "Kind", cell: ([, part]) => part.kind },
          {
            head: "Read",
            text: true,
            cell: ([, part]) => [
              part.summary || (part.is_empty ? "nothing new" : ""),
              part.pace && h("div", { class: "quiet small" }, part.pace.why),
            ],
          },
          { head: "Rows", right: true, cell: ([name]) => count(amountRead(d, name)?.rows) },
          { head: "Bytes", right: true, cell: ([name]) => bytes(amountRead(d, name)?.bytes) },
          { head: "Still waiting", text: true, cell: ([, part]) => waiting(part) },
        ],
        Object.entries(d.sources),
        { stack: true, key: ([name]) => name },
      ),
      misfits(d),
      folded("Positions", positions(d)),
    ),
    foldable("Jobs", true, [
      jobsTable(row, row.now, run ? log : null),
      jobsOf(d).length > 0 && folded("Waits and attempts", timesOfJobs(d)),
      steps(d),
    ]),
    Object.keys(d.gates).length > 0 &&
      section(
        "Gates",
        Object.entries(d.gates).map(([name, verdict]) => gate(dag, row, [name, verdict], log(`gate_${name}`))),
      ),
    Object.keys(d.states).length > 0 &&
      section(
        "State",
        table(
          [
            { head: "Operator", cell: ([name]) => name.replace(/^state\./, "") },
            { head: "Rows", right: true, cell: ([, size]) => count(size.rows) },
            { head: "Full size", right: true, cell: ([, size]) => bytes(size.bytes) },
            { head: "Delta", right: true, cell: ([, size]) => bytes(size.delta) },
            { head: "Files", right: true, cell: ([, size]) => count(size.files) },
          ],
          Object.entries(d.states),
          { stack: true, key: ([name]) => name },
        ),
      ),
    section(
      "Sinks",
      table(
        [
          { head: "Table", cell: ([name]) => name },
          { head: "Rows staged", right: true, cell: ([name]) => count(staged(d, name)) },
          { head: "Version", right: true, cell: ([, at]) => (at.log_hash ? count(at.version) : "none") },
          { head: "Rows published", right: true, cell: ([, at]) => count(at.rows) },
          { head: "Where", cell: ([, at]) => h("code", {}, at.uri) },
          {
            head: "Its rows",
            cell: ([name, at]) =>
              row.records_retained &&
              at.log_hash && [tableRows(dag, row, name), row.base && tableChanges(dag, row.base, row, name)],
          },
        ],
        Object.entries(d.tables).filter(([name]) => !OWN.test(name)),
        { empty: "Not on any table.", stack: true, key: ([name]) => name },
      ),
      Object.keys(d.tables).some((name) => OWN.test(name)) && folded("tidegate's own tables", ownTables(d)),
    ),
    section(
      "Emitted rows",
      row.sampled_parts.length > 0
        ? h(
            "div",
            { class: "loaded-later" },
            row.sampled_parts.map((part) => partSamples(dag, row.id, part, row.sampled_parts)),
          )
        : h(
            "p",
            { class: "quiet" },
            row.records_retained ? NO_SAMPLES : "Samples are deleted together with the checkpoint's records.",
          ),
    ),
    section(
      "Manifest",
      later(`manifest ${row.id}`, "Show the manifest", async () =>
        h(
          "pre",
          {},
          JSON.stringify((await get(`${dagPath(dag)}/checkpoints/${row.id}/manifest`)).manifest, null, 1) ?? "none",
        ),
      ),
    ),
  ];
}

const latestAck = ({ jobs }) => {
  const [job, ack] = Object.entries(jobs).reduce((a, b) => (a[1] && a[1].acked >= b[1].acked ? a : b), []);
  return ack?.acked && `${time(ack.acked)} UTC, by ${job}`;
};

const position = (value) =>
  positionTexts(value).map((text) => h("div", {}, h("code", {}, text.length > 160 ? `${text.slice(0, 160)} …` : text)));

function positions(d) {
  return table(
    [
      { head: "Source", cell: ([name]) => name },
      { head: "From", text: true, cell: ([, part]) => position(part.start) },
      { head: "To", text: true, cell: ([, part]) => position(part.end) },
    ],
    Object.entries(d.sources),
    { label: "From and to", stack: true },
  );
}

// What of the input does not fit its source's schema, and what becomes of it.
const KINDS = { new: "new key", type: "values of another type", case: "key in another case" };
function misfits(d) {
  const rows = Object.entries(d.sources).flatMap(([name, { drift }]) =>
    (drift?.misfits ?? []).map((misfit) => ({ name, ...misfit })),
  );
  const more = Object.values(d.sources).reduce((total, { drift }) => total + (drift?.more ?? 0), 0);
  if (rows.length === 0) return null;
  return [
    h("h3", {}, "What does not fit the schema"),
    table(
      [
        {
          head: "Key",
          cell: ({ path }) =>
            path === null ? h("span", { class: "quiet" }, "a key that you may not see") : h("code", {}, path),
        },
        { head: "Source", cell: ({ name }) => name },
        { head: "Kind", cell: ({ kind }) => KINDS[kind] },
        { head: "Type", cell: ({ type }) => type },
        { head: "Records", right: true, cell: ({ records }) => count(records) },
        { head: "First in", cell: ({ file }) => file ?? "" },
        { head: "What becomes of it", text: true, cell: outcome },
      ],
      rows,
      { stack: true, label: "What does not fit the schema", key: ({ name, path, kind }) => `${name} ${path} ${kind}` },
    ),
    more > 0 && h("p", { class: "quiet" }, `At least ${count(more)} more did not fit.`),
  ];
}

function outcome({ becomes_column: becomesColumn, becomes_type: becomesType, why_not: whyNot, kind }) {
  if (becomesColumn) return "a column from the next checkpoint on; here in the rescue column";
  if (becomesType) return `the column is ${becomesType} from the next checkpoint on; here in the rescue column`;
  if (kind === "type") return "in the rescue column, and null in its own";
  return ["in the rescue column", whyNot && h("div", { class: "quiet small" }, whyNot)];
}

// A source's backlog when the checkpoint was planned, without the input that it read.
function waiting({ lag, has_more: more }) {
  const texts = [
    lag?.files && `${count(lag.files)} ${lag.files === 1 ? "file" : "files"}`,
    lag?.rows && `up to ${rowsText(lag.rows)}`,
    lag?.bytes && bytes(lag.bytes),
    lag?.seconds && `the oldest for ${seconds(lag.seconds)}`,
  ];
  return texts.filter(Boolean).join(", ") || (more ? "more" : "nothing");
}

// State and quarantine are stored in tables, too, which are no sink's.
const OWN = /^(state|quarantine)\./;
function ownTables(d) {
  return table(
    [
      { head: "Table", cell: ([name]) => name },
      { head: "Version", right: true, cell: ([, at]) => (at.log_hash ? count(at.version) : "none") },
      { head: "Where", cell: ([, at]) => h("code", {}, at.uri) },
    ],
    Object.entries(d.tables).filter(([name]) => OWN.test(name)),
    { stack: true },
  );
}

const amountRead = (d, name) =>
  Object.values(d.jobs)
    .map((job) => job.read?.[name])
    .find((size) => size !== undefined);
const amount = (size) => (size ? `${count(size.rows)} rows, ${bytes(size.bytes)}` : none);
const staged = (d, name) =>
  Object.values(d.jobs)
    .map((job) => job.rows[name])
    .find((rows) => rows !== undefined);

// What the table of jobs leaves out: waits, acks and attempts.
function timesOfJobs(d) {
  const inFlight = ([name]) => {
    const at = d.overtaken_jobs?.[name];
    return at
      ? `${amount(at)} of ${at.in_flight.map((id) => `#${id}`).join(", ")}; it was at ${at.last_checkpoint ? `#${at.last_checkpoint}` : "nothing"}`
      : none;
  };
  const perSecond = (ack) => (ack?.sync_s ? rowsIn(ack) && rowsIn(ack) / ack.sync_s : null);
  return table(
    [
      { head: "Job", cell: ([name]) => name },
      { head: "Start delay", right: true, cell: ([, ack]) => seconds(ack?.delay) },
      { head: "Acked (UTC)", cell: ([, ack]) => (ack ? time(ack.acked) : none) },
      { head: "Alignment", right: true, cell: ([, ack]) => seconds(ack?.aligned_s) },
      { head: "Sync", right: true, cell: ([, ack]) => seconds(ack?.sync_s) },
      { head: "Async", right: true, cell: ([, ack]) => seconds(ack?.async_s) },
      { head: "Rows/s", right: true, cell: ([, ack]) => rate(perSecond(ack)) },
      ...(Object.values(d.jobs).some((job) => job.processed)
        ? [{ head: "Processed in flight", right: true, cell: ([, ack]) => amount(ack?.processed) }]
        : []),
      ...(Object.keys(d.overtaken_jobs ?? {}).length
        ? [{ head: "In flight", title: "the checkpoints whose rows it has not taken yet", cell: inFlight }]
        : []),
      { head: "Idle sources", cell: ([, ack]) => ack?.idle.join(", ") ?? "" },
      { head: "Attempt", cell: ([, ack]) => (ack?.attempt ? h("code", {}, ack.attempt) : none) },
    ],
    jobsOf(d),
    { stack: true, label: "Waits and attempts of jobs", key: ([name]) => name },
  );
}

// Whether a step has Spark's figures. Old checkpoints have none, and neither do some Spark modes.
const isMeasured = (figure) => (work) => (work?.[figure] ?? null) !== null;

const sparkColumns = [
  ["Queries", "queries", count, "computations that the step asked Spark for"],
  ["In queries", "query_s", seconds, "how long it waited for them"],
  ["Analyses", "analyses", count, "questions about a plan, such as for its columns"],
  ["In analyses", "analysis_s", seconds, "how long it waited for them"],
  ["Spark jobs", "jobs", count, "of its queries"],
  ["Tasks", "tasks", count, "of these"],
]
  .map(([head, figure, show, title]) => ({ head, title, right: true, cell: (row) => show(row.spark(figure)) }))
  .concat([
    {
      head: "Slowest task",
      title: "and its ratio to the average task: a high ratio means that rows are skewed",
      right: true,
      cell: (row) => skewed(row.works),
    },
    ...[
      ["Spilled", "spilled_bytes", "written to disks by tasks whose memory was too small"],
      ["Read", "read_bytes", "by its tasks, from files and shuffles"],
      ["Written", "written_bytes", "by its tasks, to files and shuffles"],
    ].map(([head, figure, title]) => ({ head, title, right: true, cell: (row) => bytes(row.spark(figure)) })),
  ]);

// Whether workers computed an operator in one query, or Spark in several, and then why.
const computedColumn = {
  head: "Computed by",
  title: "workers: in one query; Spark: in several",
  cell: (row) => {
    const ways = ["workers", "spark"].filter((way) => row.computed.some((each) => each[way]));
    const why = [...new Set(row.computed.flatMap((each) => each.why))];
    const total = (figure) => sum(row.computed.map((each) => each[figure] ?? 0));
    const [read, there, spilled] = ["row_groups_read", "row_groups", "spilled"].map(total);
    const named =
      ways.map((way) => (way === "spark" ? "Spark" : way)).join(" and ") +
      (there ? `, read ${count(read)} of ${count(there)} row groups` : "") +
      (spilled ? `, ${bytes(spilled)} spilled to disk` : "");
    return why.length ? `${named}: ${why.join("; ")}` : named;
  },
};

// The slowest task of a step, against the average of all.
function skewed(works) {
  const slowest = works.filter(isMeasured("slowest_task_s")).map((work) => work.slowest_task_s);
  const tasks = sum(works.map((work) => work?.tasks ?? 0));
  if (!slowest.length || !tasks) return none;
  const average = sum(works.map((work) => work?.task_s ?? 0)) / tasks;
  const times = average > 0 ? Math.max(...slowest) / average : 1;
  return `${seconds(Math.max(...slowest))}${tasks > 1 && times >= 2 ? ` (${count(times)} × the average)` : ""}`;
}

function steps(d) {
  const rows = Object.entries(d.jobs).flatMap(([job, ack]) =>
    Object.entries(ack.seconds).map(([step, took]) => {
      const name = step.split(" ").slice(1).join(" ");
      const sent = step.startsWith("send ") ? ack.sent?.[name] : undefined;
      // A sink may have the same name as its operator, so figures are looked up by the kind of step, too.
      const staged = step.startsWith("stage ");
      const ofOperator = (figures) => (staged ? undefined : figures[name]);
      const taken = (ack.steps ?? []).filter((each) => each.name === step);
      const works = taken.map((each) => each.spark);
      return {
        job,
        step,
        took,
        works,
        spark: (figure) =>
          works.length && works.every(isMeasured(figure)) ? sum(works.map((work) => work[figure])) : null,
        rows: sent ? sent.rows : staged ? ack.rows[name] : undefined,
        bytes: sent ? sent.bytes : staged ? ack.bytes[name] : undefined,
        mark: ofOperator(ack.watermarks),
        counts: ofOperator(ack.counts),
        computed: taken.map((each) => each.computed).filter(Boolean),
      };
    }),
  );
  const counted = (row) =>
    Object.entries(row.counts ?? {})
      .map(([figure, number]) => `${figure} ${count(number)}`)
      .join(", ");
  return (
    rows.length > 0 &&
    folded(
      `Steps (${rows.length})`,
      table(
        [
          { head: "Step", cell: (row) => row.step },
          { head: "Job", cell: (row) => row.job },
          { head: "Took", right: true, cell: (row) => seconds(row.took) },
          ...(rows.some((row) => row.computed.length) ? [computedColumn] : []),
          { head: "Rows", right: true, cell: (row) => count(row.rows) },
          {
            head: "Rows/s",
            right: true,
            cell: (row) => (row.rows && row.took ? rate(row.rows / row.took) : none),
          },
          { head: "Bytes", right: true, cell: (row) => bytes(row.bytes) },
          ...(rows.some((row) => row.spark("queries") !== null) ? sparkColumns : []),
          { head: "Watermark (UTC)", cell: (row) => (row.mark ? time(row.mark) : none) },
          { head: "Counted", cell: counted },
        ],
        rows,
        { label: "Steps", stack: true, key: (row) => `${row.job} ${row.step}` },
      ),
    )
  );
}

// A page that `tidegate docs gates` has built.
const dataDocs = (dag, page) =>
  h(
    "a",
    {
      href: `${base}/docs/${encodeURIComponent(dag)}/${page.split("/").map(encodeURIComponent).join("/")}`,
      target: "_blank",
      rel: "noopener",
    },
    "Data Docs",
  );

function gate(dag, row, [name, verdict], log) {
  const values = async () => {
    const { rules } = await get(`${dagPath(dag)}/checkpoints/${row.id}/gates/${encodeURIComponent(name)}`);
    return table(
      [
        { head: "Rule", cell: (rule) => rule.rule },
        { head: "Result", cell: (rule) => badge(rule.success ? "pass" : "failed") },
        { head: "Expectation", cell: (rule) => rule.type },
        { head: "Column", cell: (rule) => rule.column },
        { head: "Unexpected", right: true, cell: (rule) => count(rule.unexpected) },
        {
          head: "Values",
          text: true,
          cell: (rule) => [rule.values.length ? rule.values.join(", ") : (rule.observed ?? ""), origin(rule)],
        },
      ],
      rules,
      { empty: "Its findings list no rules.", label: `Findings of gate ${name}`, stack: true },
    );
  };
  return h(
    "div",
    {},
    h(
      "h3",
      {},
      name,
      " ",
      badge(verdict.outcome),
      " ",
      log,
      row.data_docs[name] && [" ", dataDocs(dag, row.data_docs[name])],
      verdict.answer &&
        ` ${choiceOf(verdict.answer)} by ${verdict.answer.answered_by}${verdict.answer.note ? `: ${verdict.answer.note}` : ""}`,
    ),
    h(
      "p",
      {},
      `${count(verdict.rows)} rows judged, ${count(verdict.quarantined)} ${row.state === "aborted" ? "to quarantine, but the checkpoint was aborted" : row.state === "open" || row.state === "held" ? "to quarantine" : "quarantined"}, ${count(verdict.released)} released. ${verdict.why}`,
    ),
    verdict.broken.length > 0 &&
      table(
        [
          { head: "Broken rule", cell: (rule) => rule.rule },
          { head: "Severity", cell: (rule) => rule.severity },
          { head: "Rows", right: true, cell: (rule) => count(rule.rows) },
          { head: "Finding", text: true, cell: (rule) => rule.why },
          { head: "Policy", cell: (rule) => badge(rule.policy) },
        ],
        verdict.broken,
        { label: `Rules that gate ${name} found broken`, stack: true },
      ),
    later(`trend ${row.id} ${name}`, "Show each rule over the last checkpoints", () => trend(dag, name)),
    verdict.policy.sensitivity &&
      later(`bands ${row.id} ${name}`, "Plot the values and their bands over the last checkpoints", () =>
        bands(dag, name),
      ),
    later(`findings ${row.id} ${name}`, "Show the findings, with values", values),
    verdict.quarantined > 0 && row.outcome === "completed" && quarantinedRows(dag, row.id, name),
  );
}

// How many rows broke each rule of a gate, over the last checkpoints.
async function trend(dag, gate) {
  const { checkpoints } = await get(`${dagPath(dag)}/gates/${encodeURIComponent(gate)}`);
  const broken = (each, rule) => (Object.hasOwn(each.broken, rule) ? (each.broken[rule] ?? 1) : 0);
  const rules = [...new Set(checkpoints.flatMap((each) => Object.keys(each.broken)))].sort();
  const [WIDTH, HEIGHT] = [240, 28];
  const bars = (rule) => {
    const numbers = checkpoints.map((each) => broken(each, rule));
    const [wide, top] = [WIDTH / numbers.length, Math.max(...numbers, 1)];
    return s(
      "svg",
      {
        class: "trend",
        viewBox: `0 0 ${WIDTH} ${HEIGHT}`,
        width: WIDTH,
        height: HEIGHT,
        role: "img",
        "aria-label": rule,
      },
      numbers.map((number, place) => {
        const high = (HEIGHT * number) / top;
        return s(
          "rect",
          { x: place * wide, y: HEIGHT - high, width: Math.max(wide - 1, 1), height: high },
          s("title", {}, `#${checkpoints[place].id}: ${count(number)}`),
        );
      }),
    );
  };
  const total = (rule) => checkpoints.reduce((sum, each) => sum + broken(each, rule), 0);
  return table(
    [
      { head: "Rule", cell: (rule) => rule },
      {
        head: "Broken in",
        right: true,
        cell: (rule) => count(checkpoints.filter((each) => broken(each, rule)).length),
      },
      { head: "Rows", right: true, cell: (rule) => count(total(rule)) },
      { head: `The last ${checkpoints.length} checkpoints`, cell: bars },
    ],
    rules,
    {
      empty: `No rule was broken in the last ${checkpoints.length} checkpoints that it has judged.`,
      label: "Rules",
      stack: true,
    },
  );
}
