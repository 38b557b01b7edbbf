// Rows that gates have set aside, and what is to become of them: all, those of a rule, or those that are ticked.
import { get, of } from "./api.js";
import { releaseRows } from "./actions.js";
import { card, h, table } from "./dom.js";
import { count, rows } from "./format.js";

const chosen = new Set();

export async function quarantine({ dag, at, go }) {
  const { gates } = await get(`${of(dag)}/quarantine`);
  const names = Object.keys(gates);
  const asked = { gate: names[0] ?? "", rule: "", offset: "0", limit: "50", ...Object.fromEntries(at.query) };
  const change = (what) => {
    chosen.clear();
    go("quarantine", { ...asked, offset: "0", ...what });
  };
  if (!names.length)
    return { key: null, wait: 0, draw: () => [h("p", { class: "quiet" }, "This pipeline has no gate.")] };
  const query = new URLSearchParams({
    offset: asked.offset,
    limit: asked.limit,
    ...(asked.rule ? { rule: asked.rule } : {}),
  });
  const page = await get(`${of(dag)}/quarantine/${encodeURIComponent(asked.gate)}?${query}`);
  return {
    key: [gates, page],
    wait: page.complete ? 8000 : 2000,
    draw: (about) => drawn(dag, about, gates, page, asked, change),
  };
}

function drawn(dag, about, gates, page, asked, change) {
  const { rules, settled, requests, complete } = gates[asked.gate];
  const [offset, limit] = [Number(asked.offset), Number(asked.limit)];
  const select = (name, values, all) =>
    h(
      "select",
      { id: `select-${name}`, "aria-label": name, onchange: (event) => change({ [name]: event.target.value }) },
      all && h("option", { value: "" }, all),
      values.map(([value, text]) => h("option", { value, selected: value === asked[name] }, text)),
    );
  const act = (discard) => () =>
    releaseRows(dag, page, { ids: [...chosen], rules: asked.rule ? [asked.rule] : [], discard });
  const verbs = () => (chosen.size ? rows(chosen.size) : asked.rule ? `all that broke ${asked.rule}` : "all");
  const bring = h("button", { id: "act-release-rows", class: "main", onclick: act(false) }, `Release ${verbs()}`);
  const drop = h("button", { id: "act-discard-rows", class: "danger", onclick: act(true) }, `Give up ${verbs()}`);
  const tick = (row) =>
    h("input", {
      type: "checkbox",
      id: `pick-${row.id}`,
      "aria-label": `choose row ${row.id}`,
      checked: chosen.has(row.id),
      onchange: (event) => {
        if (event.target.checked) chosen.add(row.id);
        else chosen.delete(row.id);
        bring.textContent = `Release ${verbs()}`;
        drop.textContent = `Give up ${verbs()}`;
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
        page.complete && complete
          ? `${rows(page.total)} here`
          : `${rows(page.total)} here so far: there are many, they are still being counted`,
      ),
      Object.entries(settled).map(([fate, many]) => h("span", { class: "quiet" }, `${count(many)} ${fate}`)),
      h("span", { class: "grow" }),
      about.may.edit && page.total > 0 && [bring, drop],
    ),
    requests.length > 0 &&
      h(
        "div",
        { class: "banner wait" },
        "The next checkpoint takes up: ",
        requests.map((each) => `request ${each.number}, to ${each.action}, by ${each.by}`).join("; "),
        ".",
      ),
    card(
      "",
      table(
        [
          { head: "", narrow: true, cell: tick },
          { head: "Row", cell: (row) => h("code", { title: row.id }, row.id.slice(0, 8)) },
          {
            head: "Checkpoint",
            right: true,
            cell: (row) => h("a", { href: `#/checkpoint/${row.checkpoint}` }, `#${row.checkpoint}`),
          },
          { head: "Broke", cell: (row) => row.rules.join(", ") },
          ...page.columns.map((name) => ({ head: name, cell: cell(name) })),
        ],
        page.rows,
        { empty: "No row waits." },
      ),
    ),
    h(
      "div",
      { class: "bar" },
      h(
        "button",
        { id: "previous-page", disabled: offset === 0, onclick: () => change({ offset: Math.max(offset - limit, 0) }) },
        "‹ Before (p)",
      ),
      h(
        "button",
        { id: "next-page", disabled: offset + limit >= page.total, onclick: () => change({ offset: offset + limit }) },
        "Next (n) ›",
      ),
    ),
  ];
}
