// The declared pipeline, with the state and the figures of each part in one checkpoint. It always fits the width: left to
// right where there is room, from top to bottom on a phone. The address has the checkpoint, the zoom and the chosen part.
import { get, dagPath } from "./api.js";
import { badge, card, facts, h, s, table } from "./dom.js";
import { bytes, count, rate, rows as rowsText, seconds, time } from "./format.js";
import { later, partSamples, quarantinedRows, tableRows } from "./rows.js";

const [SMALLEST, LARGEST, STEP] = [0.1, 3, 1.25];
const READABLE = 0.55; // below this nobody can read the texts: a graph that is so large is scrolled
const MARGIN = 50; // around the graph, of what the page has in width

export async function graph({ dag, at, go }) {
  const wanted = at.query.get("checkpoint");
  const data = await get(`${dagPath(dag)}/graph${wanted ? `?checkpoint=${encodeURIComponent(wanted)}` : ""}`);
  return {
    key: [data, document.getElementById("main").clientWidth],
    wait: ["open", "held"].includes(data.state) ? 2000 : 6000,
    draw: () => {
      const asked = at.query.get("zoom");
      const chosen = data.parts.find((part) => keyOf(part) === at.query.get("part"));
      const where = (change) => ({ checkpoint: wanted, part: chosen && keyOf(chosen), zoom: asked, ...change });
      const linkTo = (part) => {
        const query = { ...(wanted && { checkpoint: wanted }), ...(asked && { zoom: asked }), part: keyOf(part) };
        return `#/graph?${new URLSearchParams(query)}`;
      };
      const room = document.getElementById("main").clientWidth - MARGIN;
      const { element, width, height } = drawing(data, chosen, linkTo, room);
      const fit = Math.min(1, room / width);
      const zoom = zoomOf(asked, fit);
      element.setAttribute("width", Math.floor(width * zoom));
      element.setAttribute("height", Math.ceil(height * zoom));
      const to = (factor) => () => go("graph", where({ zoom: (zoom * factor).toFixed(2) }));
      return [
        h(
          "div",
          { class: "bar" },
          data.checkpoint
            ? [
                h("a", { href: `#/checkpoint/${data.checkpoint}` }, `Checkpoint #${data.checkpoint}`),
                badge(data.state),
                wanted && h("a", { href: "#/graph", id: "graph-newest" }, "show the newest"),
              ]
            : h("span", { class: "quiet" }, "There is no checkpoint yet."),
          data.jobs.length > 1 &&
            data.jobs.map((job) => h("span", { class: "small nowrap" }, `${job} `, stateBadge(data.job_states[job]))),
          h("span", { class: "grow" }),
          h(
            "span",
            { class: "zoom" },
            h("button", { id: "zoom-out", "aria-label": "smaller", onclick: to(1 / STEP) }, "−"),
            h("button", { id: "zoom-in", "aria-label": "larger", onclick: to(STEP) }, "+"),
            h("button", { id: "zoom-fit", onclick: () => go("graph", where({ zoom: "fit" })) }, "Fit"),
            h("button", { id: "zoom-full", onclick: () => go("graph", where({ zoom: "1" })) }, "100 %"),
          ),
        ),
        h("div", { class: "card graph", tabindex: "0", role: "region", "aria-label": "graph" }, element),
        chosen
          ? closeUp(dag, data, chosen, () => go("graph", where({ part: "" })))
          : h("p", { class: "quiet" }, "Select a part to see its figures, and a sample of its rows."),
      ];
    },
  };
}

function zoomOf(asked, fit) {
  if (asked === "fit") return fit;
  if (!asked) return Math.max(fit, READABLE);
  return Math.min(Math.max(Number(asked) || 1, SMALLEST), LARGEST);
}

// By state: the sign in front of its word, so that colour alone tells nothing; and the tone.
const SIGNS = {
  waiting: ["○", "plain"],
  running: ["▶", "busy"],
  done: ["✓", "good"],
  held: ["‖", "warn"],
  failed: ["✕", "bad"],
  behind: ["»", "warn"],
  "not run": ["–", "plain"],
  "not published": ["–", "warn"],
};
const signOf = (state) => `${SIGNS[state]?.[0] ?? ""} ${state}`.trim();
const toneOf = (state) => SIGNS[state]?.[1] ?? "plain";
const stateBadge = (state) => state && badge(signOf(state), toneOf(state));

// A sink may have the same name as its operator.
const keyOf = (part) => `${part.role === "sink" ? "sink " : ""}${part.name}`;

// One part: all its figures, and some rows of the checkpoint.
function closeUp(dag, { checkpoint, parts, sampled_parts: sampled }, part, close) {
  const gives = given(part, parts);
  const row = { id: checkpoint };
  return card(
    [`${part.role} `, h("b", {}, part.name), " ", stateBadge(part.state), part.verdict && [" ", badge(part.verdict)]],
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
        ["Rows per second", part.rate !== null && rate(part.rate)],
        ["Event time", part.event_time && upTo(part.event_time)],
        ["Still waiting", part.role === "source" && (backlog(part).join(", ") || "nothing")],
      ].filter(([, value]) => value !== false),
    ),
    checkpoint && [
      part.role === "source" && schemaTimeline(dag, part.name),
      part.role === "sink" && tableRows(dag, row, part.name),
      ["stage", "gate", "operator"].includes(part.role) && partSamples(dag, checkpoint, part.name, sampled),
      part.role === "gate" && part.quarantined > 0 && quarantinedRows(dag, checkpoint, part.name),
    ],
    h("div", { class: "bar" }, h("button", { id: "part-close", onclick: close }, "Close")),
  );
}

// How the schema of a source has changed, the newest first.
const schemaTimeline = (dag, source) =>
  later(`schema ${source}`, "Show how its schema has changed", async () => {
    const { sources } = await get(`${dagPath(dag)}/schemas`);
    const timeline = sources[source];
    if (!timeline)
      return h(
        "p",
        { class: "quiet" },
        "Its schema does not follow its input: it has the columns that the code declares.",
      );
    const rows = timeline.changes.map((change, number) => ({ ...change, isFirst: number === 0 })).reverse();
    return table(
      [
        {
          head: "Since",
          cell: ({ checkpoint: id, isFirst }) => [
            h("a", { href: `#/checkpoint/${id}` }, `#${id}`),
            isFirst && !timeline.is_complete && " or before",
          ],
        },
        { head: "Planned (UTC)", cell: ({ planned }) => time(planned) },
        { head: "Schema", text: true, cell: schemaOf },
      ],
      rows,
      { label: `Schemas of ${source}`, stack: true, key: ({ checkpoint: id }) => String(id) },
    );
  });

// The first schema as a whole, a later one by what differs.
function schemaOf({ schema, columns, isFirst }) {
  if (isFirst) return h("code", {}, schema.replaceAll("`", ""));
  if (columns.length === 0) return "the same columns in another order";
  return columns.map(({ name, before, after, found_by: foundBy, file }) =>
    h(
      "div",
      {},
      before !== null && h("del", {}, h("code", {}, `${name} ${before}`)),
      before !== null && after !== null && " ",
      after !== null && h("ins", {}, h("code", {}, `${name} ${after}`)),
      foundBy !== null && [
        h("span", { class: "quiet" }, " found by "),
        h("a", { href: `#/checkpoint/${foundBy}` }, `#${foundBy}`),
        file && h("span", { class: "quiet" }, ` in ${file}`),
      ],
    ),
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
const upTo = (mark) => (END_OF_TIME.test(mark) ? "at its end" : time(mark).slice(5, 16));

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

// Left to right if that fits, otherwise from top to bottom if that is narrower. Boxes get as much room as there is.
function drawing({ parts, jobs, in_flight: inFlight }, chosen, linkTo, room) {
  const byName = new Map(parts.map((part) => [keyOf(part), part]));
  const depth = depths(parts, byName);
  const place = placed(parts, byName, depth);
  const layers = Math.max(0, ...depth.values()) + 1;
  const lanes = Math.max(0, ...[...place.values()].map(({ lane }) => lane)) + 1;
  const across = pitch(room, layers, ACROSS);
  const isAcross = layers * across <= room || layers * ACROSS.least <= lanes * DOWN.least;
  const [columns, size] = isAcross ? [layers, ACROSS] : [lanes, DOWN];
  const wide = pitch(room, columns, size);
  const box = wide - size.gap;
  const longest = Math.floor((box - INSIDE) / LETTER);
  const told = new Map(
    parts.map((part) => [part, fitted(figures(part, parts, jobs, inFlightOf(part, byName, inFlight)), longest)]),
  );
  const boxHigh = TITLE + LINE * Math.min(Math.max(0, ...[...told.values()].map((texts) => texts.length)), LINES);
  const high = boxHigh + (isAcross ? 16 : 26);
  const width = columns * wide - size.gap + 2;
  const height = (isAcross ? lanes : layers) * high - (high - boxHigh) + 2;
  const at = (part) => {
    const { layer, lane } = place.get(part);
    const [column, row] = isAcross ? [layer, lane] : [lane, layer];
    return { x: 1 + wide * column, y: 1 + high * row };
  };
  const line = (from, to) => {
    const [x1, y1] = isAcross ? [from.x + box, from.y + boxHigh / 2] : [from.x + box / 2, from.y + boxHigh];
    const [x2, y2] = isAcross ? [to.x, to.y + boxHigh / 2] : [to.x + box / 2, to.y];
    const bend = isAcross ? Math.max((x2 - x1) / 2, 14) : Math.max((y2 - y1) / 2, 12);
    const d = isAcross
      ? `M${x1},${y1} C${x1 + bend},${y1} ${x2 - bend},${y2} ${x2},${y2}`
      : `M${x1},${y1} C${x1},${y1 + bend} ${x2},${y2 - bend} ${x2},${y2}`;
    return s("path", { d, "marker-end": "url(#arrow)" });
  };
  const lines = parts.flatMap((part) => part.inputs.map((name) => line(at(byName.get(name)), at(part))));
  const boxes = parts.map((part) => {
    const { x, y } = at(part);
    const words = (text, dy, kind) => text && s("text", { x: x + 11, y: y + dy, class: kind }, cut(text, longest));
    const kind = part.role === part.kind ? part.role : `${part.role} · ${part.kind}`;
    const texts = told.get(part);
    const name = [`${part.role} ${part.name}`, part.state && signOf(part.state), ...texts.map(({ text }) => text)];
    return s(
      "a",
      { href: linkTo(part), class: "part", "data-key": keyOf(part), "data-state": part.state },
      s(
        "g",
        { class: `${part.role} is-${toneOf(part.state)}${part === chosen ? " chosen" : ""}` },
        s("title", {}, name.filter(Boolean).join("\n")),
        s("rect", { x, y, width: box, height: boxHigh, rx: 7 }),
        s("rect", { x, y: y + 6, width: 4, height: boxHigh - 12, class: "stripe" }),
        s(
          "text",
          { x: x + 11, y: y + 18, class: "name" },
          shortened(part.name, Math.floor((box - INSIDE) / LARGE_LETTER)),
        ),
        words(part.state && signOf(part.state), 34, "sub state"),
        words(kind, 49, "sub"),
        texts
          .slice(0, LINES)
          .map(({ text, kind: tone }, number) => words(text, TITLE + 6 + LINE * number, `sub ${tone ?? ""}`)),
      ),
    );
  });
  const arrow = s(
    "defs",
    {},
    s(
      "marker",
      { id: "arrow", viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 6, markerHeight: 6, orient: "auto" },
      s("path", { d: "M0,0 L8,4 L0,8" }),
    ),
  );
  const viewBox = `0 0 ${width} ${height}`;
  const about = { viewBox, role: "group", "aria-label": "the pipeline's graph" };
  return { element: s("svg", about, arrow, lines, boxes), width, height };
}

// Of a box: the height of its name, state and kind; that of a figure, and how many it has at most.
const [TITLE, LINE, LINES] = [58, 14, 6];
// Of its texts, in pixels: what its edges take, and how wide a letter is.
const [INSIDE, LETTER, LARGE_LETTER] = [18, 6.2, 8.4];
const ACROSS = { least: 168, most: 260, gap: 26 };
const DOWN = { least: 124, most: 260, gap: 12 };
const pitch = (room, columns, { least, most }) => Math.min(Math.max(Math.floor(room / columns), least), most);

function depths(parts, byName) {
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
  return depth;
}

// Layer and lane of each part. A source's downstream parts are in its lane, before the next source begins, so that lines
// are short. A part with several inputs is in the lane of the first.
function placed(parts, byName, depth) {
  const place = new Map();
  const filled = new Map();
  const readers = new Map(parts.map((part) => [part, []]));
  for (const part of parts) for (const name of part.inputs) readers.get(byName.get(name)).push(part);
  const put = (part, from) => {
    if (place.has(part)) return;
    const layer = depth.get(part);
    const lane = Math.max(filled.get(layer) ?? 0, from);
    filled.set(layer, lane + 1);
    place.set(part, { layer, lane });
    readers.get(part).forEach((reader) => put(reader, lane));
  };
  // A lookup table, such as one of rates, is placed beside the part that joins it.
  const first = parts.filter((part) => !part.inputs.length).sort((a, b) => depth.get(a) - depth.get(b));
  for (const source of first) {
    const readsLater = depth.get(source) > 0;
    put(source, readsLater ? (filled.get(depth.get(source)) ?? 0) : Math.max(0, ...filled.values()));
  }
  return place;
}

// A long name without its middle: names of one kind often differ at their ends.
function shortened(name, longest) {
  if (name.length <= longest) return name;
  const end = Math.floor((longest - 1) / 2);
  return `${name.slice(0, longest - 1 - end)}…${name.slice(name.length - end)}`;
}

// What does not fit into a line is told in fewer words, or in several lines.
const fitted = (lines, longest) =>
  lines.flatMap(({ text, brief, kind }) => {
    if (text.length <= longest) return { text, kind };
    return (brief ?? text).split(" · ").map((part) => ({ text: part, kind }));
  });

const cut = (text, longest) => (text.length > longest ? `${text.slice(0, Math.max(longest - 1, 1))}…` : text);

// The rows that wait between two jobs, at the first part of the later one.
function inFlightOf(part, byName, inFlight) {
  const amount = inFlight[part.job];
  if (!amount || !part.inputs.some((name) => byName.get(name).job !== part.job)) return null;
  if (amount.rows === null) return { text: "in flight" };
  return { text: `${rowsText(amount.rows)} in flight`, brief: `${count(amount.rows)} in flight` };
}

const stateSize = (part) =>
  [bytes(part.bytes), part.state_delta && `+${bytes(part.state_delta)}`].filter(Boolean).join(" · ");

// What a box tells, the most important first: {text, brief, kind}. What has no room is in its title.
function figures(part, parts, jobs, late) {
  const emitted = given(part, parts);
  const waits = backlog(part);
  const eventTime = part.event_time && part.role !== "sink" && upTo(part.event_time);
  const speed = part.rate !== null ? `${rate(part.rate)}/s` : part.seconds !== null && seconds(part.seconds);
  const lines = [
    { ...late, kind: "waits" },
    { text: [emitted !== null && rowsText(emitted), speed].filter(Boolean).join(" · ") },
    { text: waits.length > 0 && `waits: ${waits.slice(0, 2).join(" · ")}`, kind: "waits" },
    { text: part.quarantined ? `${count(part.quarantined)} quarantined` : null, kind: "waits" },
    { text: part.late ? `${count(part.late)} late` : null, kind: "waits" },
    { text: part.role === "operator" && part.rows !== null && `state ${stateSize(part)}` },
    eventTime && { text: `event time ${eventTime}`, brief: eventTime },
    { text: waits.length > 2 && waits.at(-1), kind: "waits" },
    { text: part.role !== "operator" && part.bytes !== null && bytes(part.bytes) },
    { text: !part.quarantined && part.verdict },
    { text: part.summary },
    { text: jobs.length > 1 && part.job && `job ${part.job}` },
  ];
  return lines.filter((line) => line && line.text);
}
