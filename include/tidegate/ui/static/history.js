// The list of checkpoints, sorted, filtered and paged by the server; live while its first page is shown.
import { get, dagPath } from "./api.js";
import { badge, h, stateOf, table } from "./dom.js";
import { bytes, count, none, seconds, time } from "./format.js";
import { KINDS, STATES } from "./measures.js";

const chosen = new Set();

export async function history({ dag, at, go }) {
  const filters = {
    sort: "id",
    order: "desc",
    offset: "0",
    limit: "20",
    state: "",
    kind: "",
    text: "",
    ...Object.fromEntries(at.query),
  };
  const query = new URLSearchParams(Object.entries(filters).filter(([, value]) => value !== ""));
  const page = await get(`${dagPath(dag)}/checkpoints?${query}`);
  const change = (parameters) => go("history", { ...filters, offset: "0", ...parameters });
  return { key: page, wait: filters.offset === "0" ? 2500 : 15000, draw: () => drawn(page, filters, change, go) };
}

// Without the year on a phone.
const whenShort = (text) => [h("span", { class: "wide" }, time(text).slice(0, 5)), time(text).slice(5)];

function drawn(page, filters, change, go) {
  const [offset, limit] = [Number(filters.offset), Number(filters.limit)];
  const select = (name, values, all) =>
    h(
      "select",
      { id: `select-${name}`, "aria-label": name, onchange: (event) => change({ [name]: event.target.value }) },
      all && h("option", { value: "" }, all),
      values.map((value) =>
        h("option", { value, selected: value === filters[name] }, name === "limit" ? `${value} per page` : value),
      ),
    );
  const sort = (by) => change({ sort: by, order: filters.sort === by && filters.order === "desc" ? "asc" : "desc" });
  const comparing = h(
    "button",
    {
      id: "compare",
      disabled: chosen.size !== 2,
      onclick: () => {
        const [before, after] = [...chosen].sort((a, b) => a - b);
        go("compare", { before, after });
      },
    },
    "Compare two",
  );
  const tick = (row) =>
    h("input", {
      type: "checkbox",
      id: `pick-${row.id}`,
      "aria-label": `choose checkpoint ${row.id}`,
      checked: chosen.has(row.id),
      onchange: (event) => {
        if (event.target.checked) chosen.add(row.id);
        else chosen.delete(row.id);
        document.getElementById("compare").disabled = chosen.size !== 2;
      },
    });
  // Columns without any value are left out.
  const some = (name, column) =>
    page.checkpoints.some((row) => row[name] !== null && row[name] !== "") ? [column] : [];
  return [
    h(
      "div",
      { class: "bar" },
      h("input", {
        id: "filter",
        type: "search",
        placeholder: "run, reason, number",
        value: filters.text,
        "aria-label": "filter",
        onchange: (event) => change({ text: event.target.value }),
      }),
      select("state", STATES, "all states"),
      select("kind", KINDS, "all kinds"),
      select("limit", ["20", "50", "100", "200"]),
      comparing,
      h("span", { class: "quiet" }, `${count(page.total)} in all`),
    ),
    page.problem &&
      h(
        "div",
        { class: "banner wait" },
        `The history cannot be read, so only the ledger's checkpoints are shown. ${page.problem}`,
      ),
    table(
      [
        { head: "", narrow: true, cell: tick },
        {
          head: "ID",
          sort: "id",
          right: true,
          cell: (row) => h("a", { href: `#/checkpoint/${row.id}`, id: `row-${row.id}` }, `#${row.id}`),
        },
        {
          head: "State",
          sort: "state",
          cell: (row) => [stateOf(row), row.reason && h("div", { class: "small narrow-only" }, row.reason)],
        },
        ...some("why", {
          head: "Why",
          text: true,
          wide: true,
          sort: "reason",
          cell: (row) =>
            h(
              "div",
              { class: "brief", title: row.why },
              row.reason && h("b", {}, row.reason),
              row.reason && row.why && ": ",
              row.why,
            ),
        }),
        {
          head: "Triggered (UTC)",
          sort: "planned",
          cell: (row) => h("span", { title: row.run, class: "nowrap" }, whenShort(row.planned)),
        },
        { head: "Duration", sort: "seconds", right: true, cell: (row) => seconds(row.seconds) },
        {
          head: "Start delay",
          sort: "delay_seconds",
          right: true,
          wide: true,
          cell: (row) => seconds(row.delay_seconds),
        },
        {
          head: "Acks",
          sort: "acked",
          right: true,
          wide: true,
          cell: (row) => (row.jobs ? `${row.acked}/${row.jobs}` : none),
        },
        ...some("rows_in", {
          head: "Rows in",
          sort: "rows_in",
          right: true,
          wide: true,
          cell: (row) => count(row.rows_in),
        }),
        { head: "Rows out", sort: "rows_out", right: true, wide: true, cell: (row) => count(row.rows_out) },
        ...some("late", { head: "Late", sort: "late", right: true, wide: true, cell: (row) => count(row.late) }),
        ...some("quarantined", {
          head: "Quarantined",
          sort: "quarantined",
          right: true,
          wide: true,
          cell: (row) => count(row.quarantined),
        }),
        ...some("state_bytes", {
          head: "State (delta)",
          sort: "state_bytes",
          right: true,
          wide: true,
          cell: (row) => (row.state_bytes === null ? none : `${bytes(row.state_bytes)} (${bytes(row.state_delta)})`),
        }),
        ...some("lag_seconds", {
          head: "Lag",
          sort: "lag_seconds",
          right: true,
          wide: true,
          cell: (row) => seconds(row.lag_seconds),
        }),
        ...some("verdict", { head: "Gates", sort: "verdict", wide: true, cell: (row) => badge(row.verdict) }),
      ],
      page.checkpoints,
      {
        empty:
          filters.text || filters.state || filters.kind
            ? "No checkpoint matches."
            : "No checkpoint yet. The first run makes one.",
        sorted: { by: filters.sort, order: filters.order, change: sort },
        key: (row) => `row ${row.id}`,
      },
    ),
    h(
      "div",
      { class: "bar" },
      h(
        "button",
        { id: "previous-page", disabled: offset === 0, onclick: () => change({ offset: Math.max(offset - limit, 0) }) },
        "‹ Newer (p)",
      ),
      h(
        "span",
        { class: "quiet" },
        page.total ? `${count(offset + 1)}–${count(Math.min(offset + limit, page.total))}` : "",
      ),
      h(
        "button",
        { id: "next-page", disabled: offset + limit >= page.total, onclick: () => change({ offset: offset + limit }) },
        "Older (n) ›",
      ),
    ),
  ];
}
