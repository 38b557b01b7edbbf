// The declared pipeline, left to right, with each part's figures of the last completed checkpoint: its work and state
// in its box, its output rows and event time on its outgoing line, its backlog on the left. The address has the zoom
// and the selected part.
import { get, dagPath } from "./api.js";
import { badge, card, facts, h, s } from "./dom.js";
import { bytes, count, rows as rowsText, seconds, time } from "./format.js";
import { partSamples, quarantinedRows, tableRows } from "./rows.js";

const [WIDE, HIGH, ACROSS, DOWN, BEFORE] = [190, 88, 312, 108, 128];
const [SMALLEST, LARGEST, STEP] = [0.1, 3, 1.25];
const MARGIN = 68; // around the graph, of what the page has in width

export async function graph({ dag, at, go }) {
  const data = await get(`${dagPath(dag)}/graph`);
  return {
    key: data,
    wait: 6000,
    draw: () => {
      const asked = at.query.get("zoom");
      const chosen = data.parts.find((part) => keyOf(part) === at.query.get("part"));
      const where = (change) => ({ part: chosen && keyOf(chosen), zoom: asked, ...change });
      const linkTo = (part) => `#/graph?${new URLSearchParams({ ...(asked && { zoom: asked }), part: keyOf(part) })}`;
      const { element, width } = drawing(data, chosen, linkTo);
      const fit = Math.min(1, (document.getElementById("main").clientWidth - MARGIN) / width);
      const zoom = asked === "fit" ? fit : Math.min(Math.max(Number(asked) || 1, SMALLEST), LARGEST);
      element.setAttribute("width", width * zoom);
      element.setAttribute("height", element.viewBox.baseVal.height * zoom);
      const to = (factor) => () => go("graph", where({ zoom: (zoom * factor).toFixed(2) }));
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
          h("button", { id: "zoom-fit", onclick: () => go("graph", where({ zoom: "fit" })) }, "Fit"),
          h("button", { id: "zoom-full", onclick: () => go("graph", where({ zoom: "" })) }, "100 %"),
        ),
        h("div", { class: "card graph", tabindex: "0", role: "region", "aria-label": "graph" }, element),
        chosen
          ? closeUp(dag, data, chosen, () => go("graph", where({ part: "" })))
          : h("p", { class: "quiet" }, "Select a part to see its figures, and a sample of its rows."),
      ];
    },
  };
}

// A sink may have the same name as its operator.
const keyOf = (part) => `${part.role === "sink" ? "sink " : ""}${part.name}`;

// One part: all its figures, and some rows of the checkpoint.
function closeUp(dag, { checkpoint, parts, sampled_parts: sampled }, part, close) {
  const gives = given(part, parts);
  const row = { id: checkpoint };
  return card(
    [`${part.role} `, h("b", {}, part.name), " ", part.verdict && badge(part.verdict)],
    facts(
      [
        ["Kind", part.kind],
        ["Job", part.job],
        ["Takes from", part.inputs.join(", ")],
        ["Read", part.summary],
        ["Rows", part.role === "operator" ? null : part.rows !== null && count(part.rows)],
        ["Quarantined", part.quarantined && count(part.quarantined)],
        ["Emitted", gives !== null && part.role !== "sink" && rowsText(gives)],
        ["Bytes", part.role === "operator" ? null : part.bytes !== null && bytes(part.bytes)],
        ["State", stateOf(part)],
        ["Late rows", part.late && count(part.late)],
        ["Duration", part.seconds !== null && seconds(part.seconds)],
        ["Rows per second", part.rate !== null && count(part.rate)],
        ["Event time", part.event_time && upTo(part.event_time)],
        ["Still waiting", part.role === "source" && (backlog(part).join(", ") || "nothing")],
      ].filter(([, value]) => value !== false),
    ),
    checkpoint && [
      part.role === "sink" && tableRows(dag, row, part.name),
      ["stage", "gate", "operator"].includes(part.role) && partSamples(dag, checkpoint, part.name, sampled),
      part.role === "gate" && part.quarantined > 0 && quarantinedRows(dag, checkpoint, part.name),
    ],
    h("div", { class: "bar" }, h("button", { id: "part-close", onclick: close }, "Close")),
  );
}

// The number of rows that a part emitted, if it was counted: rows read by a source, passed by a gate, or received by a
// sink, a downstream gate or another job. (An operator's `rows` are those of its state.)
function given(part, parts) {
  if (part.role === "source" || part.role === "sink") return part.rows;
  if (part.role === "gate")
    return part.rows === null ? null : part.rows - (part.quarantined ?? 0) + (part.released ?? 0);
  const readers = parts.filter((other) => other.inputs.includes(part.name) && other.inputs.length === 1);
  const counted = readers.find((other) => ["sink", "gate"].includes(other.role) && other.rows !== null);
  return counted?.rows ?? part.sent;
}

const END_OF_TIME = /^9999/;
const upTo = (mark) => (END_OF_TIME.test(mark) ? "to its end" : `to ${time(mark).slice(5, 16)}`);

const stateOf = (part) =>
  part.role === "operator" &&
  part.rows !== null &&
  [
    rowsText(part.rows),
    bytes(part.bytes),
    part.state_delta !== null && `${bytes(part.state_delta)} of it new`,
    part.state_files !== null && `${count(part.state_files)} ${part.state_files === 1 ? "file" : "files"}`,
  ]
    .filter(Boolean)
    .join(", ");

// A source's backlog. Empty: nothing waits, or the source cannot measure it.
function backlog(part) {
  const files = part.waiting_files && `${count(part.waiting_files)} ${part.waiting_files === 1 ? "file" : "files"}`;
  const amount = [files, part.waiting && rowsText(part.waiting), part.waiting_bytes && bytes(part.waiting_bytes)];
  if (!amount.some(Boolean)) return [];
  return [...amount.filter(Boolean), part.waiting_seconds && `for ${seconds(part.waiting_seconds)}`].filter(Boolean);
}

function drawing({ parts, jobs, in_flight: inFlight }, chosen, linkTo) {
  const byName = new Map(parts.map((part) => [keyOf(part), part]));
  const depth = new Map();
  const deep = (part) => {
    if (!depth.has(part))
      depth.set(part, part.inputs.length ? 1 + Math.max(...part.inputs.map((name) => deep(byName.get(name)))) : 0);
    return depth.get(part);
  };
  parts.forEach(deep);
  // A source is placed right before the first part that reads it, so that lines are short.
  for (const part of parts.filter((other) => !other.inputs.length)) {
    const users = parts.filter((reader) => reader.inputs.includes(part.name)).map((reader) => depth.get(reader));
    if (users.length) depth.set(part, Math.min(...users) - 1);
  }
  const place = placed(parts, byName, depth);
  const rows = Math.max(0, ...[...place.values()].map(({ row }) => row)) + 1;
  const left = parts.some((part) => backlog(part).length) ? BEFORE : 10;
  const width = left + ACROSS * Math.max(0, ...depth.values()) + WIDE + 10;
  const height = 20 + DOWN * rows;
  const at = (part) => ({ x: left + ACROSS * place.get(part).column, y: 10 + DOWN * place.get(part).row });
  const line = ([x1, y1], [x2, y2], kind) => {
    const bend = Math.max((x2 - x1) / 2, 24);
    const d = `M${x1},${y1} C${x1 + bend},${y1} ${x2 - bend},${y2} ${x2},${y2}`;
    return s("path", { d, class: kind, "marker-end": "url(#arrow)" });
  };
  const lines = parts.flatMap((part) =>
    part.inputs.map((name) => {
      const [from, to] = [at(byName.get(name)), at(part)];
      const late = byName.get(name).job !== part.job && inFlight[part.job];
      const text = late && late.rows !== null ? `${rowsText(late.rows)} in flight` : late && "in flight";
      return [
        line([from.x + WIDE, from.y + HIGH / 2], [to.x, to.y + HIGH / 2]),
        text && s("text", { x: to.x - 8, y: to.y + HIGH / 2 - 22, class: "sub waits", "text-anchor": "end" }, text),
      ];
    }),
  );
  // On a part's outgoing line: its output rows above, its event time below.
  const labels = parts
    .filter((part) => part.role !== "sink" && parts.some((other) => other.inputs.includes(part.name)))
    .map((part) => {
      const [x, y] = [at(part).x + WIDE + 6, at(part).y + HIGH / 2];
      const rowCount = given(part, parts);
      return [
        rowCount !== null && s("text", { x, y: y - 7, class: "sub flow" }, rowsText(rowCount)),
        part.event_time && s("text", { x, y: y + 16, class: "sub event-time" }, upTo(part.event_time)),
      ];
    });
  // Left of a source: its backlog.
  const queues = parts.map((part) => {
    const waits = backlog(part);
    if (!waits.length) return null;
    const { x, y } = at(part);
    const middle = y + HIGH / 2;
    const age = part.waiting_seconds ? waits.at(-1) : "";
    const text = (words, dy) =>
      s("text", { x: x - 14, y: middle + dy, class: "sub waits", "text-anchor": "end" }, words);
    return [
      line([x - BEFORE + 8, middle], [x, middle], "queue"),
      text(
        waits
          .slice(0, age ? -1 : undefined)
          .slice(0, 2)
          .join(" · "),
        -8,
      ),
      age && text(age, 16),
    ];
  });
  const boxes = parts.map((part) => {
    const { x, y } = at(part);
    const words = (text, dy, kind, longest) =>
      text && s("text", { x: x + 10, y: y + dy, class: kind }, cut(text, longest));
    const kind = part.role === part.kind ? part.role : `${part.role} · ${part.kind}`;
    const job = jobs.length > 1 && part.job ? cut(part.job, JOB) : "";
    const told = figures(part);
    return s(
      "a",
      { href: linkTo(part), class: "part", "data-key": keyOf(part) },
      s(
        "g",
        { class: `${part.role}${part === chosen ? " chosen" : ""}` },
        s("title", {}, [`${part.role} ${part.name}`, ...told, ...backlog(part)].filter(Boolean).join("\n")),
        s("rect", { x, y, width: WIDE, height: HIGH, rx: 8 }),
        words(part.name, 20),
        words(kind, 37, "sub", LONGEST - (job ? job.length + 1 : 0)),
        job && s("text", { x: x + WIDE - 10, y: y + 37, class: "sub", "text-anchor": "end" }, job),
        told.map((text, number) => words(text, 52 + 14 * number, "sub")),
      ),
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
  const about = { viewBox, role: "group", "aria-label": "the pipeline's graph" };
  return { element: s("svg", about, arrow, lines, queues, labels, boxes), width };
}

// Row and column of each part. A source's downstream parts are in its row, before the next source begins, so that lines
// are short. A part with several inputs is in the row of the first.
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
  // A lookup table, such as one of rates, is placed below the part that joins it.
  const first = parts.filter((part) => !part.inputs.length).sort((a, b) => depth.get(a) - depth.get(b));
  for (const source of first) put(source, Math.max(0, ...filled.values()));
  return place;
}

const [LONGEST, JOB] = [27, 10];
const cut = (text, longest = LONGEST) => (text.length > longest ? `${text.slice(0, longest - 1)}…` : text);

// At most three lines: its rows or state, its speed, and its own watermark.
function figures(part) {
  const isOperator = part.role === "operator";
  const lines = [
    [
      part.summary,
      part.rows !== null && !part.summary && `${isOperator ? "state " : ""}${rowsText(part.rows)}`,
      part.bytes !== null && bytes(part.bytes),
      part.verdict,
    ],
    [
      part.quarantined ? `${count(part.quarantined)} quarantined` : null,
      part.seconds !== null && seconds(part.seconds),
      part.rate !== null && `${count(part.rate)}/s`,
      part.state_delta ? `+${bytes(part.state_delta)}` : null,
      part.late ? `${count(part.late)} late` : null,
    ],
    [part.watermark && `watermark ${upTo(part.watermark)}`],
  ];
  return lines.map((texts) => texts.filter(Boolean).join(" · ")).filter(Boolean);
}
