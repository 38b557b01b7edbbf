// The declared pipeline, left to right, each part with its figures of the last completed checkpoint, and on each line
// what has come along it. It can be made larger and smaller; the address has how large.
import { get, dagPath } from "./api.js";
import { h, s } from "./dom.js";
import { bytes, count, seconds, time } from "./format.js";

const [WIDE, HIGH, ACROSS, DOWN] = [190, 74, 262, 96];
const [SMALLEST, LARGEST, STEP] = [0.1, 3, 1.25];
const MARGIN = 68; // around the graph, of what the page has in width

export async function graph({ dag, at, go }) {
  const data = await get(`${dagPath(dag)}/graph`);
  return {
    key: data,
    wait: 6000,
    draw: () => {
      const { element, width } = drawing(data.parts, data.jobs);
      const fit = Math.min(1, (document.getElementById("main").clientWidth - MARGIN) / width);
      const asked = at.query.get("zoom");
      const zoom = asked === "fit" ? fit : Math.min(Math.max(Number(asked) || 1, SMALLEST), LARGEST);
      element.setAttribute("width", width * zoom);
      element.setAttribute("height", element.viewBox.baseVal.height * zoom);
      const to = (factor) => () => go("graph", { zoom: (zoom * factor).toFixed(2) });
      return [
        h(
          "div",
          { class: "bar" },
          h(
            "span",
            { class: "quiet" },
            data.checkpoint
              ? ["Figures of checkpoint ", h("a", { href: `#/checkpoint/${data.checkpoint}` }, `#${data.checkpoint}`)]
              : "No checkpoint has completed yet.",
          ),
          h("span", { class: "grow" }),
          h("button", { id: "zoom-out", "aria-label": "smaller", onclick: to(1 / STEP) }, "−"),
          h("button", { id: "zoom-in", "aria-label": "larger", onclick: to(STEP) }, "+"),
          h("button", { id: "zoom-fit", onclick: () => go("graph", { zoom: "fit" }) }, "Fit"),
          h("button", { id: "zoom-full", onclick: () => go("graph") }, "100 %"),
        ),
        h("div", { class: "card graph", tabindex: "0", role: "region", "aria-label": "graph" }, element),
      ];
    },
  };
}

// What came along a line, as far as one of its ends knows: a source what it has read, a gate what it has judged, a sink
// what it was given. (An operator's rows are those of its state.)
function flow(from, to) {
  const end = [to.role === "sink" && to, from.role === "source" && from, to.role === "gate" && to].find(
    (part) => part && part.rows !== null,
  );
  return end ? `${count(end.rows)} rows` : "";
}

function drawing(parts, jobs) {
  const byName = new Map(parts.map((part) => [`${part.role === "sink" ? "sink " : ""}${part.name}`, part]));
  const depth = new Map();
  const deep = (part) => {
    if (!depth.has(part))
      depth.set(part, part.inputs.length ? 1 + Math.max(...part.inputs.map((name) => deep(byName.get(name)))) : 0);
    return depth.get(part);
  };
  parts.forEach(deep);
  // A source stands right before the first part that takes its rows, so that lines are short.
  for (const part of parts.filter((other) => !other.inputs.length)) {
    const users = parts.filter((reader) => reader.inputs.includes(part.name)).map((reader) => depth.get(reader));
    if (users.length) depth.set(part, Math.min(...users) - 1);
  }
  const place = placed(parts, byName, depth);
  const rows = Math.max(0, ...[...place.values()].map(({ row }) => row)) + 1;
  const width = 20 + ACROSS * (1 + Math.max(0, ...depth.values()));
  const height = 20 + DOWN * rows;
  const at = (part) => ({ x: 10 + ACROSS * place.get(part).column, y: 10 + DOWN * place.get(part).row });
  const edges = parts.flatMap((part) =>
    part.inputs.map((name) => {
      const [from, to] = [at(byName.get(name)), at(part)];
      const [x1, y1, x2, y2] = [from.x + WIDE, from.y + HIGH / 2, to.x, to.y + HIGH / 2];
      const bend = Math.max((x2 - x1) / 2, 24);
      const label = flow(byName.get(name), part);
      return [
        s("path", {
          d: `M${x1},${y1} C${x1 + bend},${y1} ${x2 - bend},${y2} ${x2},${y2}`,
          "marker-end": "url(#arrow)",
        }),
        label && s("text", { x: to.x - 6, y: y2 - 6, class: "sub", "text-anchor": "end" }, label),
      ];
    }),
  );
  const boxes = parts.map((part) => {
    const { x, y } = at(part);
    const line = (text, dy, kind) => s("text", { x: x + 10, y: y + dy, class: kind }, cut(text));
    return s(
      "g",
      { class: part.role },
      s("title", {}, [`${part.role} ${part.name}`, ...figures(part)].filter(Boolean).join("\n")),
      s("rect", { x, y, width: WIDE, height: HIGH, rx: 8 }),
      line(part.name, 20),
      line(
        `${part.role === part.kind ? part.role : `${part.role} · ${part.kind}`}${jobs.length > 1 && part.job ? ` · job ${part.job}` : ""}`,
        37,
        "sub",
      ),
      line(figures(part)[0], 52, "sub"),
      line(figures(part)[1], 66, "sub"),
    );
  });
  const arrow = s(
    "defs",
    {},
    s(
      "marker",
      { id: "arrow", viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 7, markerHeight: 7, orient: "auto" },
      s("path", { d: "M0,0 L8,4 L0,8" }),
    ),
  );
  const viewBox = `0 0 ${width} ${height}`;
  const element = s("svg", { viewBox, role: "img", "aria-label": "the pipeline's graph" }, arrow, edges, boxes);
  return { element, width };
}

// Row and column of each part. What follows from a source stands beside it, before the next source begins, so that lines
// are short; a part that takes from several stands with the first of them.
function placed(parts, byName, depth) {
  const place = new Map();
  const filled = new Map();
  const readers = new Map(parts.map((part) => [part, []]));
  for (const part of parts) for (const name of part.inputs) readers.get(byName.get(name)).push(part);
  const put = (part, from) => {
    if (place.has(part)) return;
    const column = depth.get(part);
    const row = Math.max(filled.get(column) ?? 0, from);
    filled.set(column, row + 1);
    place.set(part, { column, row });
    readers.get(part).forEach((reader) => put(reader, row));
  };
  // A source that is only looked up in, such as a table of rates, stands below what it is joined to.
  const first = parts.filter((part) => !part.inputs.length).sort((a, b) => depth.get(a) - depth.get(b));
  for (const source of first) put(source, Math.max(0, ...filled.values()));
  return place;
}

const cut = (text) => (text.length > 27 ? `${text.slice(0, 26)}…` : text);

function figures(part) {
  const first = [
    part.summary,
    part.rows !== null && `${count(part.rows)} rows${part.role === "operator" ? " of state" : ""}`,
    part.bytes !== null && bytes(part.bytes),
    part.verdict,
    part.quarantined ? `${count(part.quarantined)} quarantined` : null,
  ];
  const second = [
    part.seconds !== null && seconds(part.seconds),
    part.late ? `${count(part.late)} late` : null,
    part.rate !== null && `${count(part.rate)}/s`,
    part.waiting ? `${count(part.waiting)} wait` : null,
    part.waiting_seconds ? `for ${seconds(part.waiting_seconds)}` : null,
    part.watermark && `to ${time(part.watermark).slice(5, 16)}`,
  ];
  return [first, second].map((texts) => texts.filter(Boolean).join(" · "));
}
