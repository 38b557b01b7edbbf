// Quarantined rows, to release, judge again or discard: all, those of a rule, or the ticked ones.
import { get, dagPath } from "./api.js";
import { rejudgeRows, releaseRows } from "./actions.js";
import { breakable, card, h, table } from "./dom.js";
import { count, rows } from "./format.js";

const chosen = new Set();

export async function quarantine({ dag, at, go }) {
  const { gates } = await get(`${dagPath(dag)}/quarantine`);
  const names = Object.keys(gates);
  const filters = { gate: names[0] ?? "", rule: "", offset: "0", limit: "50", ...Object.fromEntries(at.query) };
  const change = (parameters) => {
    chosen.clear();
    go("quarantine", { ...filters, offset: "0", ...parameters });
  };
  if (!names.length)
    return { key: null, wait: 0, draw: () => [h("p", { class: "quiet" }, "This pipeline has no gate.")] };
  const query = new URLSearchParams({
    offset: filters.offset,
    limit: filters.limit,
    ...(filters.rule ? { rule: filters.rule } : {}),
  });
  const page = await get(`${dagPath(dag)}/quarantine/${encodeURIComponent(filters.gate)}?${query}`);
  const shown = new Set(page.rows.map((row) => row.id));
  for (const id of chosen) if (!shown.has(id)) chosen.delete(id); // of another gate, or released by now
  return {
    key: [gates, page],
    wait: page.complete ? 8000 : 2000,
    draw: (about) => drawn(dag, about, gates, page, filters, change),
  };
}

const broke = (row) => row.rules.map((rule, n) => [n > 0 && ", ", breakable(rule)]);

function drawn(dag, about, gates, page, filters, change) {
  const { rules, settled, requests, complete } = gates[filters.gate];
  const [offset, limit] = [Number(filters.offset), Number(filters.limit)];
  const select = (name, values, all) =>
    h(
      "select",
      { id: `select-${name}`, "aria-label": name, onchange: (event) => change({ [name]: event.target.value }) },
      all && h("option", { value: "" }, all),
      values.map(([value, text]) => h("option", { value, selected: value === filters[name] }, text)),
    );
  const act = (discard) => () =>
    releaseRows(dag, page, { ids: [...chosen], rules: filters.rule ? [filters.rule] : [], discard });
  const choice = () => (chosen.size ? rows(chosen.size) : filters.rule ? `all that broke ${filters.rule}` : "all");
  const release = h("button", { id: "act-release-rows", class: "main", onclick: act(false) }, `Release ${choice()}`);
  const rejudge = () => rejudgeRows(dag, page, { ids: [...chosen], rules: filters.rule ? [filters.rule] : [] });
  const rejudgeButton = h("button", { id: "act-rejudge-rows", onclick: rejudge }, "Judge again");
  const discardButton = h(
    "button",
    { id: "act-discard-rows", class: "danger", onclick: act(true) },
    `Discard ${choice()}`,
  );
  const tick = (row) =>
    h("input", {
      type: "checkbox",
      id: `pick-${row.id}`,
      "aria-label": `choose row ${row.id}`,
      checked: chosen.has(row.id),
      onchange: (event) => {
        if (event.target.checked) chosen.add(row.id);
        else chosen.delete(row.id);
        document.getElementById("act-release-rows")?.replaceChildren(`Release ${choice()}`);
        document.getElementById("act-discard-rows")?.replaceChildren(`Discard ${choice()}`);
      },
    });
  const cell = (name) => (row) => {
    const value = row.values[name];
    return value === null ? h("span", { class: "quiet" }, "null") : value;
  };
  return [
    h(
      "div",
      { class: "bar" },
      select(
        "gate",
        Object.keys(gates).map((name) => [name, name]),
      ),
      select(
        "rule",
        Object.entries(rules).map(([rule, many]) => [rule, `${rule} (${count(many)})`]),
        "all rules",
      ),
      h(
        "span",
        { class: "quiet" },
        page.complete && complete ? `${rows(page.total)} here` : `${rows(page.total)} so far; still counting`,
      ),
      Object.entries(settled).map(([status, many]) => h("span", { class: "quiet" }, `${count(many)} ${status}`)),
      h("span", { class: "grow" }),
      about.permissions.edit && page.total > 0 && [release, rejudgeButton, discardButton],
    ),
    requests.length > 0 &&
      h(
        "div",
        { class: "banner wait" },
        "The next checkpoint processes: ",
        requests
          .map(({ number, action, requested_by }) => `request ${number}, to ${action}, by ${requested_by}`)
          .join("; "),
        ".",
      ),
    card(
      "",
      table(
        [
          {
            head: "",
            narrow: true,
            cell: (row) => [tick(row), h("span", { class: "narrow-only" }, broke(row))],
          },
          { head: "Row", wide: true, cell: (row) => h("code", { title: row.id, class: "nowrap" }, row.id.slice(0, 8)) },
          {
            head: "Checkpoint",
            right: true,
            cell: (row) => h("a", { href: `#/checkpoint/${row.checkpoint}` }, `#${row.checkpoint}`),
          },
          { head: "Broke", wide: true, cell: (row) => broke(row) },
          ...(page.rows.some((row) => row.stays_because)
            ? [{ head: "Not released", cell: (row) => row.stays_because ?? "" }]
            : []),
          ...(page.rows.some((row) => row.diverted_because)
            ? [{ head: "Refused by the target", cell: (row) => row.diverted_because ?? "" }]
            : []),
          ...page.columns.map((name) => ({ head: name, cell: cell(name) })),
        ],
        page.rows,
        { empty: "No rows wait.", label: "Rows in quarantine", stack: true, key: (row) => `row ${row.id}` },
      ),
    ),
    h(
      "div",
      { class: "bar" },
      h(
        "button",
        { id: "previous-page", disabled: offset === 0, onclick: () => change({ offset: Math.max(offset - limit, 0) }) },
        "‹ Previous (p)",
      ),
      h(
        "button",
        { id: "next-page", disabled: offset + limit >= page.total, onclick: () => change({ offset: offset + limit }) },
        "Next (n) ›",
      ),
    ),
  ];
}
