// All pipelines that the user may see.
import { base, outside } from "./api.js";
import { badge, h, table } from "./dom.js";
import { ago, count, none, seconds } from "./format.js";

export function pipelines(data) {
  const rank = (row) => (row.good ? 1 : 0); // bad ones first
  const rows = [...data.pipelines].sort((a, b) => rank(a) - rank(b) || a.pipeline.localeCompare(b.pipeline));
  return [...(data.notices ?? []).map(notice), listed(rows)];
}

// Something that this Airflow lacks.
function notice(told) {
  return h(
    "div",
    { class: told.stops ? "banner wrong" : "banner wait" },
    h("strong", {}, told.what),
    h("div", { class: "quiet small" }, told.help),
  );
}

function listed(rows) {
  return table(
    [
      {
        head: "Pipeline",
        cell: (row) =>
          outside(`/dags/${encodeURIComponent(row.dag)}/plugin/checkpoints`, row.pipeline, `pipeline-${row.dag}`),
      },
      { head: "State", cell: (row) => badge(row.state) },
      {
        head: "Summary",
        text: true,
        cell: (row) => [
          row.good ? row.said : row.cause || row.said,
          !row.good && row.remedy?.[0] && h("div", { class: "quiet small" }, row.remedy[0]),
        ],
      },
      {
        head: "Last completed",
        right: true,
        cell: (row) =>
          row.last_completed
            ? [
                h(
                  "a",
                  { href: `${base}/dag/${encodeURIComponent(row.dag)}#/checkpoint/${row.last_completed.id}` },
                  `#${row.last_completed.id}`,
                ),
                ` ${ago(row.age_seconds)}`,
              ]
            : none,
      },
      { head: "Took", right: true, cell: (row) => seconds(row.last_completed?.seconds) },
      { head: "Failed since", right: true, cell: (row) => count(row.failures) },
      {
        head: "Lag",
        right: true,
        title: "how far event time lagged the clock",
        cell: (row) => seconds(row.lag_seconds),
      },
      { head: "In progress", right: true, cell: (row) => count(row.counts?.in_progress) },
    ],
    rows,
    { empty: "Airflow has not parsed any pipeline that you may see yet.", stack: true },
  );
}
