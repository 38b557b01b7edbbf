// What a gate has measured over checkpoints, and in which band it was expected: one small plot for each group.
import { get, dagPath } from "./api.js";
import { h, s, table } from "./dom.js";
import { none } from "./format.js";

const [WIDTH, HEIGHT, LEFT, BOTTOM, TOP] = [420, 150, 66, 18, 8];
const SHOWN = 12;

export async function bands(dag, gate) {
  const { function: measured, groups, ...of } = await get(`${dagPath(dag)}/gates/${encodeURIComponent(gate)}/measured`);
  if (!groups.length) return h("p", { class: "quiet" }, "No retained checkpoint has measured anything.");
  const title = (group) => (group.group === "" ? measured : `${measured} of ${group.group}`);
  return h(
    "div",
    {},
    h(
      "div",
      { class: "grid plots" },
      groups
        .slice(0, SHOWN)
        .map((group) =>
          h("div", { class: "plot" }, h("h4", {}, title(group)), drawn(title(group), group, of), numbers(group, of)),
        ),
    ),
    groups.length > SHOWN && h("p", { class: "quiet" }, `${groups.length - SHOWN} more groups are not shown.`),
  );
}

const shown = (value) =>
  value === null ? none : Intl.NumberFormat("en", { maximumSignificantDigits: 4, notation: "compact" }).format(value);

function drawn(title, group, { checkpoints }) {
  const known = [...group.values, ...group.low, ...group.high].filter((value) => value !== null);
  const [least, most] = [Math.min(...known, Infinity), Math.max(...known, -Infinity)];
  const [bottom, top] = least < most ? [least, most] : [least - 1, least + 1];
  const x = (place) => LEFT + ((WIDTH - LEFT - 8) * place) / Math.max(checkpoints.length - 1, 1);
  const y = (value) => TOP + (HEIGHT - BOTTOM - TOP) * (1 - (value - bottom) / (top - bottom));
  const at = (values, place) => `${x(place).toFixed(1)},${y(values[place]).toFixed(1)}`;
  // One area, and one line, for each run of checkpoints that have numbers.
  const runs = (values) => {
    const found = [];
    values.forEach((value, place) => {
      if (value === null) return;
      if (place && values[place - 1] !== null) found.at(-1).push(place);
      else found.push([place]);
    });
    return found;
  };
  const line = (values, name) =>
    runs(values).map((run) => s("path", { class: name, d: `M${run.map((place) => at(values, place)).join("L")}` }));
  const areas = runs(group.low).map((run) => {
    const there = run.map((place) => at(group.high, place));
    const back = run.map((place) => at(group.low, place)).reverse();
    return s("path", { class: "band", d: `M${[...there, ...back].join("L")}Z` });
  });
  const ticks = [bottom, (bottom + top) / 2, top].map((value) => [
    s("line", { class: "axis", x1: LEFT, x2: WIDTH - 8, y1: y(value), y2: y(value) }),
    s("text", { x: LEFT - 6, y: y(value) + 3, "text-anchor": "end" }, shown(value)),
  ]);
  const dots = group.values.map(
    (value, place) =>
      value !== null &&
      s(
        "circle",
        {
          class: group.unusual[place] ? "dot unusual" : "dot",
          cx: x(place),
          cy: y(value),
          r: group.unusual[place] ? 4 : 2,
        },
        s("title", {}, `#${checkpoints[place]}: ${shown(value)}${told(group, place)}`),
      ),
  );
  return s(
    "svg",
    {
      viewBox: `0 0 ${WIDTH} ${HEIGHT}`,
      role: "img",
      "aria-label": `${title}, with the band in which it was expected`,
    },
    ticks,
    areas,
    line(group.expected, "expected"),
    line(group.values, "line"),
    dots,
    s("text", { x: LEFT, y: HEIGHT - 4 }, `#${checkpoints[0]}`),
    s("text", { x: WIDTH - 8, y: HEIGHT - 4, "text-anchor": "end" }, `#${checkpoints.at(-1)}`),
  );
}

const told = (group, place) =>
  group.low[place] === null ? ", not judged" : `, expected ${shown(group.low[place])} to ${shown(group.high[place])}`;

function numbers(group, { checkpoints, outcomes }) {
  const rows = checkpoints
    .map((id, place) => ({ id, place, outcome: outcomes[place] }))
    .slice(-50)
    .reverse();
  const number = (name) => (row) => shown(group[name][row.place]);
  return h(
    "details",
    {},
    h("summary", { class: "quiet small" }, "as numbers"),
    table(
      [
        { head: "ID", cell: (row) => h("a", { href: `#/checkpoint/${row.id}` }, `#${row.id}`) },
        { head: "Verdict", cell: (row) => row.outcome },
        { head: "Value", right: true, cell: number("values") },
        { head: "From", right: true, cell: number("low") },
        { head: "Expected", right: true, cell: number("expected") },
        { head: "To", right: true, cell: number("high") },
      ],
      rows,
    ),
  );
}
