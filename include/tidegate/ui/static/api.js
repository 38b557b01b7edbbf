// The API below /tidegate/api/v1, and links from a frame to Airflow's own pages.
import { h } from "./dom.js";

export const base = document.body.dataset.base;
const airflow = base.replace(/\/tidegate$/, "");

export class Refused extends Error {
  constructor(status, body) {
    const details = body?.error ?? {};
    super(details.what || (typeof body?.detail === "string" ? body.detail : `the server answered ${status}`));
    this.status = status;
    this.expected = details.expected ?? "";
    this.help = details.help ?? "";
    this.reason = details.reason ?? "";
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

export const dagPath = (dag) => `/dags/${encodeURIComponent(dag)}`;

// A frame must not navigate the page around it. So the link is added to that page, and clicked there.
export function toAirflow(path) {
  const page = window.parent === window ? document : window.parent.document;
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
export const dagRunsPath = (dag) => `/dags/${encodeURIComponent(dag)}/runs`;
export const airflowHref = (path) => airflow + path;
