// Chooses the page, and redraws it when its data has changed.
import { get, dagPath, base, outer, Refused, Unreachable } from "./api.js";
import { h, patch, replace, badge } from "./dom.js";
import { clock } from "./format.js";
import { buttons } from "./actions.js";
import { banner, overview } from "./overview.js";
import { history } from "./history.js";
import { freshness } from "./strip.js";

// Scripts of the other pages are loaded after the first paint, so that it does not wait for them.
const LATER = {
  pipelines: "pipelines",
  checkpoint: "checkpoint",
  summary: "tables",
  configuration: "tables",
  compare: "tables",
  audit: "tables",
  proposals: "proposals",
  proposal: "proposals",
  quarantine: "quarantine",
  graph: "graph",
  plots: "plots",
  why: "why",
};
const scriptOf = (page) => import(`./${LATER[page]}.js`);
const later =
  (page) =>
  async (...parameters) =>
    (await scriptOf(page))[page](...parameters);
const PAGES = { overview, history, ...Object.fromEntries(Object.keys(LATER).map((page) => [page, later(page)])) };
const TABS = [
  ["overview", "Status"], // Airflow's own row of tabs, right above, begins with Overview
  ["history", "History"],
  ["summary", "Summary"],
  ["graph", "Graph"],
  ["plots", "Plots"],
  ["compare", "Compare"],
  ["proposals", "Proposals"],
  ["quarantine", "Quarantine"],
  ["configuration", "Configuration"],
  ["audit", "Actions"],
];
const PART_OF = { checkpoint: "history", proposal: "proposals", why: "history" };
const main = document.getElementById("main");
const path = decodeURI(location.pathname.slice(base.length + 1)).split("/");
let timer = 0;
let drawnKey = "";
let drawnPage = "";
let turn = 0;

// Splits "#/history?sort=seconds&offset=20" into page, id and query.
function place() {
  const [route, query] = location.hash.replace(/^#\/?/, "").split("?");
  const [page, id] = route.split("/");
  return { page: page || "overview", id, query: new URLSearchParams(query ?? "") };
}

export function go(page, query = {}) {
  const filled = Object.entries(query).filter(([, value]) => value !== "" && value !== null && value !== undefined);
  const text = new URLSearchParams(filled).toString();
  location.hash = `#/${page}${text ? `?${text}` : ""}`;
}

function wrong(error) {
  const refused = error instanceof Refused;
  return h(
    "div",
    { class: "banner wrong", role: "alert" },
    h("b", {}, refused && error.status === 403 ? "You may not see this." : error.message),
    refused && error.expected && h("p", {}, `Expected: ${error.expected}`),
    refused && error.help && h("p", {}, `Help: ${error.help}`),
  );
}

// Draws another page from scratch. Updates the same page in place, so that unchanged parts do not move.
function draw(page, ...children) {
  if (page === drawnPage) {
    patch(main, ...children);
    return;
  }
  replace(main, ...children);
  drawnPage = page;
}

const LIVE_MS = 10_000;
const SHORTEST_PAUSE_MS = 2000;
const LONGEST_PAUSE_MS = 30_000;
let lostSince = null;
let pause = SHORTEST_PAUSE_MS;

// Shows a small notice above the page, which disappears on its own. Returns when to try again.
function lost() {
  lostSince ??= new Date().toISOString();
  const text = `No connection to Airflow since ${clock(lostSince)} UTC. Showing older data. Retrying …`;
  if (!document.getElementById("connection"))
    document.body.append(h("div", { id: "connection", class: "toast lost", role: "status" }, text));
  pause = Math.min(pause * 2, LONGEST_PAUSE_MS);
  return pause / 2;
}

function found() {
  document.getElementById("connection")?.remove();
  [lostSince, pause] = [null, SHORTEST_PAUSE_MS];
}

async function refresh(onlyIfChanged) {
  const ownTurn = ++turn;
  clearTimeout(timer);
  let wait = LIVE_MS;
  try {
    const view = path[0] === "pipelines" ? await listed() : await ofDag(decodeURIComponent(path[1] ?? ""));
    if (ownTurn !== turn) return;
    found();
    wait = view.wait ?? wait;
    const text = JSON.stringify([location.hash, view.key]);
    if (!onlyIfChanged || text !== drawnKey) draw(view.page ?? location.hash, ...view.draw());
    drawnKey = text;
  } catch (error) {
    if (ownTurn !== turn) return;
    if (error instanceof Unreachable) wait = lost();
    else {
      drawnKey = "";
      draw(`wrong ${location.hash}`, wrong(error));
    }
  }
  main.removeAttribute("aria-busy");
  if (wait && !document.hidden) timer = setTimeout(() => refresh(true), wait);
}

async function listed() {
  const [data, { pipelines }] = await Promise.all([get("/pipelines"), scriptOf("pipelines")]);
  const { query } = place();
  return {
    key: data,
    page: "pipelines",
    wait: data.complete ? LIVE_MS : 300, // the server reads on with each look
    draw: () => [h("header", {}, h("h1", {}, "Pipelines")), ...pipelines(data, { query, go })],
  };
}

async function ofDag(dag) {
  const at = place();
  if (path[0] === "run" && !location.hash) {
    const run = decodeURIComponent(path.slice(2).join("/"));
    const { checkpoint } = await get(`${dagPath(dag)}/runs/${encodeURIComponent(run)}`);
    if (checkpoint === null) return withoutCheckpoint(dag, run);
    [at.page, at.id] = ["checkpoint", String(checkpoint)];
  }
  const page = Object.hasOwn(PAGES, at.page) && at.page !== "pipelines" ? PAGES[at.page] : overview;
  const failed = (error) => {
    if (error instanceof Unreachable) throw error;
    return { key: error.message, page: `wrong ${location.hash}`, draw: () => [wrong(error)] };
  };
  const [about, view] = await Promise.all([get(`${dagPath(dag)}/overview`), page({ dag, at, go }).catch(failed)]);
  return {
    key: [ageless(about), view.key],
    page: view.page ?? `${at.page}/${at.id ?? ""}`,
    wait: view.wait,
    draw: () => [...frame(dag, at, about), ...view.draw(about)],
  };
}

// For a run without a checkpoint: if something is wrong, shows the cause and the remedy.
async function withoutCheckpoint(dag, run) {
  const { health } = await get(`${dagPath(dag)}/overview`);
  const notice = health.needs_nothing ? h("p", {}, health.summary) : banner(dag, health);
  const isCause = health.run_id === run;
  return {
    key: health,
    wait: 3000,
    draw: () => [
      h(
        "p",
        { class: isCause ? "" : "quiet" },
        `This run made no checkpoint${isCause ? "" : " (yet)"}. `,
        h("a", { href: "#/overview" }, "The pipeline's status"),
      ),
      notice,
    ],
  };
}

const ageless = (about) => ({
  ...about,
  now: null,
  backfills: about.backfills.map((line) => ({ ...line, oldest_pending_seconds: null })),
});

// On the graph's page a bar shows that checkpoint in the graph.
const barOf = (at, id) => (at.page === "graph" ? `#/graph?checkpoint=${id}` : `#/checkpoint/${id}`);
const shownIn = (at) => Number(at.page === "checkpoint" ? at.id : at.query.get("checkpoint"));

function frame(dag, at, about) {
  const tabs = TABS.filter(([name]) => name !== "quarantine" || about.gates.length > 0).map(([name, title]) =>
    h(
      "a",
      {
        href: `#/${name}`,
        id: `tab-${name}`,
        "aria-current": (at.page === name || PART_OF[at.page] === name) && "page",
      },
      title,
    ),
  );
  return [
    h(
      "header",
      {},
      h("h1", {}, about.pipeline),
      badge(about.health.state),
      h("span", { class: "grow" }),
      buttons(dag, about),
    ),
    freshness(about, (id) => h("a", { href: barOf(at, id) }), shownIn(at)),
    h("nav", { class: "tabs", "aria-label": "Checkpoints" }, tabs),
  ];
}

// The page around a frame shows the view's address as its own, so that it can be copied, and survives a reload.
function tellAddress() {
  if (!outer || outer.location.hash === location.hash) return;
  const { pathname, search } = outer.location;
  outer.history.replaceState(outer.history.state, "", `${pathname}${search}${location.hash}`);
}

function takeAddress() {
  if (outer.location.hash.startsWith("#/") && outer.location.hash !== location.hash)
    location.replace(outer.location.hash);
}

if (outer) {
  takeAddress();
  outer.addEventListener("hashchange", takeAddress);
  window.addEventListener("pagehide", () => outer.removeEventListener("hashchange", takeAddress));
}
window.addEventListener("hashchange", () => {
  tellAddress();
  window.scrollTo(0, 0);
  main.setAttribute("aria-busy", "true"); // what is shown is still of the address before
  refresh(false);
});
document.addEventListener("visibilitychange", () => document.hidden || refresh(true));
// The graph is laid out for the width of the page.
const RESIZED_MS = 200;
let resizing = 0;
window.addEventListener("resize", () => {
  clearTimeout(resizing);
  resizing = setTimeout(() => refresh(true), RESIZED_MS);
});
window.addEventListener("tidegate:changed", () => refresh(false));
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || /^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName)) return;
  const target = { "/": "filter", n: "next-page", p: "previous-page" }[event.key];
  const element = target && document.getElementById(target);
  if (element) {
    event.preventDefault();
    if (target === "filter") element.focus();
    else element.click();
  }
});
// Restores the scroll position after a reload.
const PLACE = "tidegate: the place before a reload";
window.addEventListener("pagehide", () => sessionStorage.setItem(PLACE, `${window.scrollY} ${location.href}`));
function scrollBack() {
  const [scrolled, ...address] = (sessionStorage.getItem(PLACE) ?? "").split(" ");
  if (address.join(" ") === location.href) window.scrollTo(0, Number(scrolled));
}

refresh(false)
  .then(scrollBack)
  .then(() => Object.keys(LATER).forEach((page) => scriptOf(page).catch(() => null)));
