// How fresh a pipeline is, and a strip of its last checkpoints: one bar each, as high as it took, its colour and shape by
// how it ended.
import { h } from "./dom.js";
import { ageOf, clock, count, seconds } from "./format.js";

const KINDS = {
  completed: "good",
  aborted: "bad",
  open: "busy",
  held: "warn",
  "rolled back": "undone",
  replaced: "undone",
};
const LEAST = 0.18; // of the height, so that a short one can still be seen and clicked

// The seconds of a full bar. A single slow checkpoint does not flatten all the others.
function heightOf(durations) {
  const sorted = durations.filter((value) => value !== null).sort((a, b) => a - b);
  const median = sorted[Math.floor(sorted.length / 2)] ?? 0;
  return Math.max(Math.min(sorted.at(-1) ?? 0, 3 * median), 0.001);
}

// recent: the API's columns, oldest first. linkTo(id): an element, or the address of one.
export function strip(recent, linkTo, current = null) {
  const highest = heightOf(recent.seconds);
  const bars = recent.id.map((id, place) => {
    const [state, took] = [recent.state[place], recent.seconds[place]];
    const texts = [
      `#${id} ${state}`,
      recent.reason[place],
      took !== null && seconds(took),
      clock(recent.planned[place]),
    ];
    const bar = linkTo(id);
    bar.classList.add(KINDS[state] ?? "act");
    bar.title = texts.filter(Boolean).join(" · ");
    bar.dataset.key = `bar ${id}`;
    // One stop for the keyboard: arrows go from bar to bar.
    bar.tabIndex = place === recent.id.length - 1 ? 0 : -1;
    if (id === current) bar.setAttribute("aria-current", "true");
    if (KINDS[state])
      bar.style.height = `${Math.round(100 * Math.max(Math.min(took ?? highest, highest) / highest, LEAST))}%`;
    return bar;
  });
  const failed = recent.state.filter((state) => state === "aborted").length;
  const label = `the last ${bars.length} checkpoints, ${count(failed)} failed`;
  return h("div", { class: "strip", role: "group", "aria-label": label, onkeydown: walk }, bars);
}

function walk(event) {
  const next = { ArrowLeft: "previousElementSibling", ArrowRight: "nextElementSibling" }[event.key];
  const bar = next && event.target[next];
  if (!bar) return;
  event.preventDefault();
  bar.focus();
}

// An age that keeps counting. seconds: at this moment.
export function age(ageSeconds) {
  const since = Date.now() - ageSeconds * 1000;
  return h("span", { class: "age", "data-since": Math.round(since) }, ageOf(ageSeconds));
}

const TICK_MS = 1000;
setInterval(() => {
  if (document.hidden) return;
  for (const element of document.querySelectorAll("[data-since]")) {
    const text = ageOf((Date.now() - Number(element.dataset.since)) / 1000);
    if (element.textContent !== text) element.textContent = text;
  }
}, TICK_MS);

// The line below a pipeline's name: the age of its newest data, what it took, and the strip.
export function freshness(about, linkTo, current) {
  const last = about.latest.completed;
  const secondsAgo = last && (Date.parse(about.now) - Date.parse(last.decided)) / 1000;
  return h(
    "div",
    { class: "fresh", "data-key": "freshness" },
    last
      ? h(
          "span",
          {},
          "Last completed ",
          h("a", { href: `#/checkpoint/${last.id}` }, `#${last.id}`),
          " ",
          h("b", {}, age(secondsAgo), " ago"),
          h("span", { class: "quiet" }, ` · took ${seconds(last.seconds)}`),
          last.lag_seconds !== null &&
            h("span", { class: "quiet" }, ` · event time ${seconds(last.lag_seconds)} behind`),
        )
      : h("span", { class: "quiet" }, "No checkpoint has completed yet."),
    about.recent.id.length > 0 && strip(about.recent, linkTo, current),
  );
}
