// All pipelines that the user may see, those in trouble first.
import { outside } from "./api.js";
import { badge, h, table } from "./dom.js";
import { count, none, seconds, time } from "./format.js";
import { age, strip } from "./strip.js";

// The states that need attention come first, then tolerated failures and states that users have set.
const TROUBLE = [
  "damaged",
  "disk full",
  "troubled",
  "suspended",
  "held",
  "orphaned",
  "paused",
  "late",
  "unpublished",
  "stale",
  "behind",
  "losing",
  "skipping",
];
const rank = (row) => {
  const place = TROUBLE.indexOf(row.state);
  return place >= 0 && !row.needs_nothing ? place : row.needs_nothing ? TROUBLE.length + 1 : TROUBLE.length;
};
const lag = (row) => row.lag_seconds ?? -1;
const ORDERS = {
  trouble: ["by trouble", (a, b) => rank(a) - rank(b) || b.failures - a.failures || lag(b) - lag(a)],
  lag: ["by lag", (a, b) => lag(b) - lag(a)],
  age: ["by last completed, oldest first", (a, b) => (b.age_seconds ?? Infinity) - (a.age_seconds ?? Infinity)],
  name: ["by name", () => 0],
};

export function pipelines(data, { query, go }) {
  const filters = { order: "trouble", text: "", ...Object.fromEntries(query) };
  const compare = (ORDERS[filters.order] ?? ORDERS.trouble)[1];
  const words = filters.text.toLowerCase().split(/\s+/).filter(Boolean);
  const about = (row) => [row.pipeline, row.state, row.owner, ...row.tags].join(" ").toLowerCase();
  const rows = data.pipelines
    .filter((row) => words.every((word) => about(row).includes(word)))
    .sort((a, b) => compare(a, b) || a.pipeline.localeCompare(b.pipeline));
  const change = (parameters) => go("pipelines", { ...filters, ...parameters });
  const troubled = data.pipelines.filter((row) => !row.needs_nothing).length;
  return [
    ...data.notices.map(notice),
    h(
      "div",
      { class: "bar" },
      h("input", {
        id: "filter",
        type: "search",
        placeholder: "name, state, owner, tag",
        value: filters.text,
        "aria-label": "filter",
        onchange: (event) => change({ text: event.target.value }),
      }),
      h(
        "select",
        { id: "select-order", "aria-label": "order", onchange: (event) => change({ order: event.target.value }) },
        Object.entries(ORDERS).map(([value, [title]]) =>
          h("option", { value, selected: value === filters.order }, title),
        ),
      ),
      h(
        "span",
        { class: "quiet" },
        `${count(data.total)} in all, ${count(troubled)} ${troubled === 1 ? "needs" : "need"} attention`,
        !data.complete && "; still being read",
      ),
    ),
    listed(rows),
  ];
}

const broken = ({ sink, fresh_seconds, breaks_at }) =>
  h(
    "div",
    { class: "small brief" },
    badge("broken"),
    ` promise: ${sink} at most ${seconds(fresh_seconds)} old, since ${time(breaks_at)} UTC`,
  );

// A set-up problem of this Airflow.
function notice({ problem, help, is_blocking }) {
  return h(
    "div",
    { class: is_blocking ? "banner wrong" : "banner wait", "data-key": `notice ${problem}` },
    h("strong", {}, problem),
    h("div", { class: "quiet small" }, help),
  );
}

function listed(rows) {
  const view = (row, place, text, id) =>
    outside(`/dags/${encodeURIComponent(row.dag)}/plugin/checkpoints${place}`, text, id);
  return table(
    [
      { head: "Pipeline", cell: (row) => view(row, "", row.pipeline, `pipeline-${row.dag}`) },
      { head: "State", cell: (row) => badge(row.state) },
      {
        head: "Summary",
        text: true,
        cell: (row) => [
          h("div", { class: "brief" }, row.needs_nothing ? row.summary : row.cause || row.summary),
          !row.needs_nothing && row.remedy[0] && h("div", { class: "quiet small brief" }, row.remedy[0]),
          row.promises.filter(({ kept }) => !kept).map(broken),
        ],
      },
      {
        head: "Last completed",
        right: true,
        cell: (row) =>
          row.last_completed
            ? [
                view(row, `#/checkpoint/${row.last_completed.id}`, `#${row.last_completed.id}`),
                " ",
                age(row.age_seconds),
                " ago",
              ]
            : none,
      },
      {
        head: "Last checkpoints",
        title: "as high as they took; red ones failed",
        cell: (row) => row.recent?.id.length > 0 && strip(row.recent, (id) => view(row, `#/checkpoint/${id}`, "")),
      },
      { head: "Took", right: true, cell: (row) => seconds(row.last_completed?.seconds) },
      { head: "Failed since", right: true, cell: (row) => count(row.failures) },
      {
        head: "Lag",
        right: true,
        title: "how far event time trailed the clock",
        cell: (row) => seconds(row.lag_seconds),
      },
      { head: "In progress", right: true, cell: (row) => count(row.in_progress) },
      { head: "Owner", cell: (row) => row.owner },
      { head: "Tags", cell: (row) => row.tags.join(", ") },
    ],
    rows,
    {
      empty: "No pipeline that you may see matches. Airflow may not have parsed it yet.",
      stack: true,
      label: "Pipelines",
      key: (row) => row.dag,
    },
  );
}
