// Builds elements from plain values. Text always becomes text nodes, so stored data can never become markup.
const SVG = "http://www.w3.org/2000/svg";
const HANDLERS = Symbol("handlers");
const GIVEN = Symbol("the value that it was drawn with");

// One listener per kind, which calls the newest handler, so that a redraw can replace it on an element that stays.
function listen(element, kind, handler) {
  element[HANDLERS] ??= {};
  if (!(kind in element[HANDLERS])) element.addEventListener(kind, (event) => element[HANDLERS][kind]?.(event));
  element[HANDLERS][kind] = handler;
}

function fill(element, properties, children) {
  for (const [name, value] of Object.entries(properties ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) listen(element, name.slice(2), value);
    else if (name === "href") element.setAttribute("href", safe(value));
    else if (name === "value") element.value = element[GIVEN] = value;
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

// Updates an element's children to these, and leaves equal ones untouched. So a redraw closes nothing that a reader has
// opened, and keeps the focus, the selection and the scroll positions.
export function patch(element, ...children) {
  const wanted = document.createElement(element.nodeName);
  append(wanted, children);
  patchChildren(element, [...wanted.childNodes]);
}

const keyOf = (node) => (node.nodeType === Node.ELEMENT_NODE ? node.dataset.key || node.id || "" : "");
const alike = (shown, wanted) => shown.nodeName === wanted.nodeName && keyOf(shown) === keyOf(wanted);

function patchChildren(parent, wanted) {
  const left = [...parent.childNodes];
  const nodes = wanted.map((child) => {
    const place = left.findIndex((node) => alike(node, child));
    if (place < 0) return child;
    const [node] = left.splice(place, 1);
    patchNode(node, child);
    return node;
  });
  left.forEach((node) => node.remove());
  nodes.forEach((node, place) => {
    if (parent.childNodes[place] !== node) parent.insertBefore(node, parent.childNodes[place] ?? null);
  });
}

function patchNode(shown, wanted) {
  if (shown.nodeType !== Node.ELEMENT_NODE) {
    if (shown.data !== wanted.data) shown.data = wanted.data;
    return;
  }
  if (shown.dataset.kept && shown.dataset.kept === wanted.dataset.kept) return; // a reader has had it loaded
  patchAttributes(shown, wanted);
  for (const kind of Object.keys(shown[HANDLERS] ?? {})) shown[HANDLERS][kind] = wanted[HANDLERS]?.[kind];
  for (const [kind, handler] of Object.entries(wanted[HANDLERS] ?? {})) listen(shown, kind, handler);
  const { value } = wanted; // of a select: as long as it has its options
  patchChildren(shown, [...wanted.childNodes]);
  patchValue(shown, wanted, value);
}

function patchAttributes(shown, wanted) {
  const stays = (name) => name === "style" || (name === "open" && shown.nodeName === "DETAILS");
  for (const { name } of Array.from(shown.attributes))
    if (!stays(name) && !wanted.hasAttribute(name)) shown.removeAttribute(name);
  for (const { name, value } of wanted.attributes)
    if (!stays(name) && shown.getAttribute(name) !== value) shown.setAttribute(name, value);
  // The content policy forbids style attributes, not styles.
  if (shown.style.cssText !== wanted.style.cssText) shown.style.cssText = wanted.style.cssText;
}

// Keeps what the user is typing or choosing.
function patchValue(shown, wanted, value) {
  if (!/^(INPUT|SELECT|TEXTAREA)$/.test(shown.nodeName) || shown === document.activeElement) return;
  if (shown.type === "checkbox") shown.checked = wanted.checked;
  else if (shown.nodeName === "SELECT") shown.value = value;
  else if (shown[GIVEN] !== wanted[GIVEN]) shown.value = wanted[GIVEN] ?? "";
  shown[GIVEN] = wanted[GIVEN];
}

// Shows that a click was taken, until the answer is there. Returns what ends it.
export function busy(button) {
  button.disabled = true;
  button.setAttribute("aria-busy", "true");
  return () => {
    button.disabled = false;
    button.removeAttribute("aria-busy");
  };
}

// A table. columns: [{head, cell(row), right, sort, title, wide}]; stack: on a phone each row is a card, not a line. A
// column that is wide is left out there. name: what a card calls a column whose head is not a text.
// key(row): identifies a row, so that new rows do not move those that a reader looks at.
export function table(columns, rows, options = {}) {
  const { empty = "Nothing here.", sorted = null, label = "", stack = false, key = () => null } = options;
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
    const named = column.head === "" ? h("span", { class: "unseen" }, column.name ?? "chosen") : inner;
    return h(
      "th",
      {
        scope: "col",
        class: [column.right && "right", column.wide && "wide"].filter(Boolean).join(" "),
        "aria-sort": aria,
        title: column.title,
      },
      named,
    );
  });
  const body = rows.map((row) =>
    h(
      "tr",
      { "data-key": key(row) },
      columns.map((column) =>
        h(
          "td",
          {
            class: [
              column.right ? "right" : column.narrow ? "narrow" : column.text ? "text" : "",
              column.wide ? "wide" : "",
            ]
              .join(" ")
              .trim(),
            "data-head": stack && (column.name ?? column.head),
          },
          column.cell(row),
        ),
      ),
    ),
  );
  return h(
    "div",
    { class: "scroll", tabindex: "0", role: "region", "aria-label": label || "table" },
    h("table", { class: stack && "stack" }, h("thead", {}, h("tr", {}, head)), h("tbody", {}, body)),
  );
}

const cardKey = (title) =>
  [title]
    .flat(Infinity)
    .map((part) => part?.textContent ?? part)
    .join("");
export const card = (title, ...children) =>
  h(
    "section",
    { class: "card", "data-key": title && `card ${cardKey(title)}` },
    title && h("h2", {}, title),
    ...children,
  );

// A part that is folded until a reader opens it. Redraws keep it open or closed.
export const folded = (title, ...children) =>
  h("details", { "data-key": `folded ${cardKey(title)}` }, h("summary", {}, title), ...children);

// A card that is folded on a phone, where it would push the rest out of sight.
const PHONE = matchMedia("(max-width: 640px)");
export const section = (title, ...children) => foldable(title, !PHONE.matches, children);

// A card that a reader can fold.
export const foldable = (title, open, children) =>
  h("details", { class: "card", "data-key": `card ${title}`, open }, h("summary", {}, h("h2", {}, title)), ...children);

// A long name may be broken between its words, not inside them.
export const breakable = (name) =>
  String(name)
    .split(/(?<=[_.,/)-])|(?=\()/)
    .map((part, place) => [place > 0 && h("wbr"), part]);

export function facts(pairs) {
  const present = pairs.filter(([, value]) => value !== null && value !== undefined && value !== "" && value !== "–");
  if (!present.length) return h("p", { class: "quiet" }, "Nothing.");
  return h(
    "dl",
    {},
    present.map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]),
  );
}

// A recorded error: what happened, and perhaps what was expected and what to do.
export function errorText(text) {
  const parts = text.split(/\n\s*(?=Expected: |Help: )/);
  const told = (part) => {
    const [, word, words] = /^(Expected|Help): ([^]*)$/.exec(part) ?? [];
    if (!word) return h("p", { class: "cause" }, part.trim());
    return h("p", {}, h("b", {}, word === "Help" ? "What to do" : "Expected"), ` ${words.trim()}`);
  };
  return h("div", { class: "told" }, parts.map(told));
}

const TONES = {
  completed: "good",
  acked: "good",
  well: "good",
  pass: "good",
  resumed: "good",
  aborted: "bad",
  failed: "bad",
  damaged: "bad",
  abort: "bad",
  troubled: "bad",
  skipping: "bad",
  losing: "bad",
  "disk full": "bad",
  cancelled: "bad",
  open: "busy",
  working: "busy",
  rollback: "info",
  swap: "info",
  new: "info",
  finished: "info",
  held: "warn",
  hold: "warn",
  suspended: "warn",
  late: "warn",
  behind: "warn",
  quarantine: "warn",
  unpublished: "warn",
  passed: "warn",
  warn: "warn",
  stopped: "warn",
  orphaned: "warn",
  paused: "warn",
  stale: "warn",
  broken: "bad",
  kept: "good",
};
// A checkpoint's state, with a link to the rollback or swap that has undone it.
export function stateOf(row) {
  const by = row.undone_by && h("a", { href: `#/checkpoint/${row.undone_by}` }, `#${row.undone_by}`);
  const words = row.replaced_by ? ` by backfill ${row.replaced_by}, ` : " by ";
  return [badge(row.state), by && h("span", { class: "quiet small" }, words, by)];
}

// The checkpoint to which a rollback returns, or after which a backfill begins. 0: the beginning.
export const placeOf = (id) => (id ? h("a", { href: `#/checkpoint/${id}` }, `#${id}`) : "the beginning");

export const badge = (state, tone = TONES[state] ?? "plain") =>
  state ? h("span", { class: `badge ${tone}` }, state) : "";
