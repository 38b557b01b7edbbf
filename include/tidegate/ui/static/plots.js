// Measures over time, one small plot each. Failures are red lines; the numbers are also in a table below, for screen readers.
import { get, dagPath } from "./api.js";
import { card, h, s, table } from "./dom.js";
import { MEASURES, time } from "./format.js";
import { PLOTTED } from "./measures.js";

const [WIDTH, HEIGHT, LEFT, BOTTOM] = [420, 150, 58, 18];

export async function plots({ dag, at, go }) {
  const limit = at.query.get("limit") ?? "200";
  const query = new URLSearchParams([["limit", limit], ...PLOTTED.map((name) => ["name", name])]);
  const data = await get(`${dagPath(dag)}/plots?${query}`);
  const choice = h(
    "select",
    { id: "limit", "aria-label": "how many", onchange: (event) => go("plots", { limit: event.target.value }) },
    ["50", "200", "500", "2000"].map((value) => h("option", { value, selected: value === limit }, `the last ${value}`)),
  );
  const failed = data.state.filter((state) => state === "aborted").length;
  return {
    key: data,
    wait: 6000,
    draw: () => [
      h(
        "div",
        { class: "bar" },
        choice,
        h("span", { class: "quiet" }, `${data.id.length} entries, ${failed} failed${failed ? " (red lines)" : ""}`),
      ),
      h(
        "div",
        { class: "grid plots" },
        PLOTTED.filter((name) => data[name].some((value) => value !== null)).map((name) =>
          card(MEASURES[name][0], h("div", { class: "plot" }, drawn(data, name)), values(data, name)),
        ),
      ),
    ],
  };
}

function drawn(data, name) {
  const show = MEASURES[name][1];
  const points = data[name]
    .map((value, place) => ({ place, value, id: data.id[place] }))
    .filter(({ value }) => value !== null);
  const highest = Math.max(...points.map(({ value }) => value), 0);
  const top = highest || 1;
  const x = (place) => LEFT + ((WIDTH - LEFT - 8) * place) / Math.max(data.id.length - 1, 1);
  const y = (value) => 8 + (HEIGHT - BOTTOM - 8) * (1 - Math.max(value, 0) / top);
  const line = points
    .map(({ place, value }, number) => `${number ? "L" : "M"}${x(place).toFixed(1)},${y(value).toFixed(1)}`)
    .join("");
  const failures = data.state.map(
    (state, place) =>
      state === "aborted" &&
      s(
        "line",
        { class: "failed", x1: x(place), x2: x(place), y1: 8, y2: HEIGHT - BOTTOM },
        s("title", {}, `#${data.id[place]} failed`),
      ),
  );
  const dots =
    points.length <= 120 &&
    points.map(({ place, value, id }) =>
      s(
        "circle",
        { class: "dot", cx: x(place), cy: y(value), r: 2.4 },
        s("title", {}, `#${id}: ${show(value)}, ${time(data.planned[place])}`),
      ),
    );
  // A label that is rounded would stand at the wrong height: of 3 queries, the half is not 2.
  const halves = points.every(({ value }) => Number.isInteger(value)) && top < 10 && top % 2 ? [] : [top / 2];
  const labelled = highest ? [0, ...halves, top] : [0];
  const ticks = labelled.map((value) => [
    s("line", { class: "axis", x1: LEFT, x2: WIDTH - 8, y1: y(value), y2: y(value) }),
    s("text", { x: LEFT - 6, y: y(value) + 3, "text-anchor": "end" }, show(value)),
  ]);
  const ends = [
    s("text", { x: LEFT, y: HEIGHT - 4 }, `#${data.id[0]}`),
    s("text", { x: WIDTH - 8, y: HEIGHT - 4, "text-anchor": "end" }, `#${data.id.at(-1)}`),
  ];
  return s(
    "svg",
    { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": MEASURES[name][0] },
    ticks,
    failures,
    s("path", { class: "line", d: line }),
    dots,
    ends,
  );
}

function values(data, name) {
  const rows = data.id
    .map((id, place) => ({ id, value: data[name][place], state: data.state[place] }))
    .slice(-50)
    .reverse();
  return h(
    "details",
    {},
    h("summary", { class: "quiet small" }, "as numbers"),
    table(
      [
        { head: "ID", cell: (row) => h("a", { href: `#/checkpoint/${row.id}` }, `#${row.id}`) },
        { head: "State", cell: (row) => row.state },
        { head: MEASURES[name][0], right: true, cell: (row) => MEASURES[name][1](row.value) },
      ],
      rows,
    ),
  );
}
