// Builds elements from plain values. Text always becomes text nodes, so stored data can never become markup.
const SVG = "http://www.w3.org/2000/svg";

function fill(element, properties, children) {
  for (const [name, value] of Object.entries(properties ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "href") element.setAttribute("href", safe(value));
    else if (name === "value") element.value = value;
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  append(element, children);
  return element;
}

function append(element, children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
}

// Links lead to paths on this server, never to other schemes or hosts.
function safe(href) {
  const text = String(href);
  return text.startsWith("#") || (text.startsWith("/") && !text.startsWith("//")) ? text : "#";
}

export const h = (tag, properties, ...children) => fill(document.createElement(tag), properties, children);
export const s = (tag, properties, ...children) => fill(document.createElementNS(SVG, tag), properties, children);

export function replace(element, ...children) {
  element.replaceChildren();
  append(element, children);
}

// A table. columns: [{head, cell(row), right, sort, title}]; stack: on a phone each row is a card, not a line.
export function table(columns, rows, { empty = "Nothing here.", sorted = null, caption = "", stack = false } = {}) {
  if (!rows.length) return h("p", { class: "quiet" }, empty);
  const head = columns.map((column) => {
    const order = sorted && column.sort === sorted.by ? sorted.order : null;
    const inner = column.sort
      ? h(
          "button",
          { class: "sort", id: `sort-${column.sort}`, onclick: () => sorted.change(column.sort) },
          column.head,
          order === "asc" ? " ▲" : order === "desc" ? " ▼" : "",
        )
      : column.head;
    const aria = order === "asc" ? "ascending" : order === "desc" ? "descending" : null;
    return h("th", { scope: "col", class: column.right && "right", "aria-sort": aria, title: column.title }, inner);
  });
  const body = rows.map((row) =>
    h(
      "tr",
      {},
      columns.map((column) =>
        h(
          "td",
          {
            class: column.right ? "right" : column.narrow ? "narrow" : column.text && "text",
            "data-head": stack && column.head,
          },
          column.cell(row),
        ),
      ),
    ),
  );
  return h(
    "div",
    { class: "scroll", tabindex: "0", role: "region", "aria-label": caption || "table" },
    h(
      "table",
      { class: stack && "stack" },
      caption && h("caption", {}, caption),
      h("thead", {}, h("tr", {}, head)),
      h("tbody", {}, body),
    ),
  );
}

export const card = (title, ...children) => h("section", { class: "card" }, title && h("h2", {}, title), ...children);

export function facts(pairs) {
  const present = pairs.filter(([, value]) => value !== null && value !== undefined && value !== "" && value !== "–");
  if (!present.length) return h("p", { class: "quiet" }, "Nothing.");
  return h(
    "dl",
    {},
    present.map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]),
  );
}

const TONES = {
  completed: "good",
  well: "good",
  pass: "good",
  resumed: "good",
  aborted: "bad",
  failed: "bad",
  damaged: "bad",
  abort: "bad",
  troubled: "bad",
  skipping: "bad",
  "disk full": "bad",
  cancelled: "bad",
  open: "busy",
  working: "busy",
  rollback: "info",
  new: "info",
  finished: "info",
  held: "warn",
  hold: "warn",
  suspended: "warn",
  late: "warn",
  quarantine: "warn",
  unpublished: "warn",
  passed: "warn",
  warn: "warn",
  stopped: "warn",
  orphaned: "warn",
};
export const badge = (state) => (state ? h("span", { class: `badge ${TONES[state] ?? "plain"}` }, state) : "");
