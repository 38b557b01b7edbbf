// The API below /tidegate/api/v1, and links from a frame to Airflow's own pages.
import { h } from "./dom.js";

export const base = document.body.dataset.base;
const airflow = base.replace(/\/tidegate$/, "");

export class Refused extends Error {
  constructor(status, body) {
    const details = body?.error ?? {};
    super(details.message || (typeof body?.detail === "string" ? body.detail : `the server answered ${status}`));
    this.status = status;
    this.expected = details.expected ?? "";
    this.help = details.help ?? "";
    this.reason = details.reason ?? "";
  }
}

// The server is down, or a proxy answers for it: it may be back in a moment.
export class Unreachable extends Error {
  constructor() {
    super("Airflow's web server does not answer.");
    this.help = "try again in a moment";
  }
}

async function answer(asked) {
  const response = await asked.catch(() => {
    throw new Unreachable();
  });
  const body = await response.json().catch(() => null);
  if (response.ok && body !== null) {
    // The server revalidates answers that the browser has cached.
    const date = response.headers.get("Date");
    return date && body.now ? { ...body, now: new Date(date).toISOString() } : body;
  }
  if (response.status === 401) return login();
  if (response.ok || ([502, 503, 504].includes(response.status) && !body?.error)) throw new Unreachable();
  throw new Refused(response.status, body);
}

export const get = (path) =>
  answer(fetch(`${base}/api/v1${path}`, { headers: { Accept: "application/json" }, cache: "no-cache" }));

export const post = (path, body) =>
  answer(
    fetch(`${base}/api/v1${path}`, {
      method: "POST",
      headers: { "Content-Type": "application/json", Accept: "application/json" },
      body: JSON.stringify(body),
    }),
  );

// Airflow's own page around a frame, or null.
export const outer = window.parent === window ? null : window.parent;

// Goes to Airflow's login, and back to the current view afterwards. A login that is not accepted is not tried forever.
const TRIED = "tidegate: at the login since";
const LOGIN_PAUSE_MS = 10_000;
let leaving = null;

function login() {
  if (leaving) return leaving;
  const { pathname, search, hash } = (outer ?? window).location;
  const address = `${airflow}/api/v2/auth/login?next=${encodeURIComponent(pathname + search + hash)}`;
  if (Date.now() - Number(sessionStorage.getItem(TRIED)) < LOGIN_PAUSE_MS)
    throw new Refused(401, { error: { message: "Your login has expired.", help: `log in again: ${address}` } });
  sessionStorage.setItem(TRIED, String(Date.now()));
  (outer ?? window).location.assign(address);
  leaving = new Promise(() => {});
  return leaving;
}

export const dagPath = (dag) => `/dags/${encodeURIComponent(dag)}`;

// A frame must not navigate its parent page. So the link is added to that page, and clicked there.
export function toAirflow(path) {
  const page = (outer ?? window).document;
  const link = page.createElement("a");
  link.setAttribute("href", airflow + path);
  page.body.append(link);
  link.click();
  link.remove();
}

// A link to one of Airflow's own pages, from a frame or not.
export const outside = (path, text, id) =>
  h(
    "a",
    {
      id,
      href: airflowHref(path),
      onclick:
        outer &&
        ((event) => {
          event.preventDefault();
          toAirflow(path);
        }),
    },
    text,
  );

export const runPath = (dag, run) => `/dags/${encodeURIComponent(dag)}/runs/${encodeURIComponent(run)}`;
export const dagRunsPath = (dag) => `/dags/${encodeURIComponent(dag)}/runs`;
export const airflowHref = (path) => airflow + path;
