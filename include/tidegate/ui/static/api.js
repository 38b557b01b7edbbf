// The API below /tidegate/api/v1, and the way from a frame to Airflow's own pages.
import { h } from "./dom.js";

export const base = document.body.dataset.base;
const airflow = base.replace(/\/tidegate$/, "");

export class Refused extends Error {
  constructor(status, body) {
    const told = body?.error ?? {};
    super(told.what || (typeof body?.detail === "string" ? body.detail : `the server answered ${status}`));
    this.status = status;
    this.expected = told.expected ?? "";
    this.help = told.help ?? "";
    this.reason = told.reason ?? "";
  }
}

async function answer(response) {
  let body = null;
  try {
    body = await response.json();
  } catch {
    body = null;
  }
  if (!response.ok) throw new Refused(response.status, body);
  return body;
}

export const get = async (path) =>
  answer(await fetch(`${base}/api/v1${path}`, { headers: { Accept: "application/json" } }));

export const post = async (path, body) =>
  answer(
    await fetch(`${base}/api/v1${path}`, {
      method: "POST",
      headers: { "Content-Type": "application/json", Accept: "application/json" },
      body: JSON.stringify(body),
    }),
  );

export const of = (dag) => `/dags/${encodeURIComponent(dag)}`;

// A frame of Airflow's may not move the page around it. So the page itself is given the link to follow.
export function toAirflow(path) {
  const where = window.parent === window ? document : window.parent.document;
  const link = where.createElement("a");
  link.setAttribute("href", airflow + path);
  where.body.append(link);
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
        window.parent === window
          ? null
          : (event) => {
              event.preventDefault();
              toAirflow(path);
            },
    },
    text,
  );

export const runPath = (dag, run) => `/dags/${encodeURIComponent(dag)}/runs/${encodeURIComponent(run)}`;
export const airflowHref = (path) => airflow + path;
