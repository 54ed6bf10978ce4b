// The page: finds out what to show from the address, and says how current it is.

import { get, Polling } from "./api.js";
import { devicesPage } from "./devices.js";
import { h } from "./dom.js";
import { ago, seconds } from "./format.js";
import { runPage } from "./run.js";
import { runsPage } from "./runs.js";

const content = document.getElementById("content");
const pulse = document.getElementById("pulse");
const pulseText = document.getElementById("pulse-text");
const alerts = document.getElementById("alerts");
let polling;

function page() {
  const [, name = "", id = ""] = location.hash.split("/");
  if (name === "run" && id) return { name: "runs", title: decoded(id), ...runPage(decoded(id)) };
  if (name === "devices") return { name: "devices", title: "Devices", ...devicesPage(() => polling.again()) };
  return { name: "runs", title: "Runs", ...runsPage() };
}

function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text; // somebody's own invention
  }
}

function show({ first = false } = {}) {
  if (location.hash === "#content") return;
  polling?.stop();
  const shown = page();
  document.title = `${shown.title} · HFMDS-FL`;
  for (const link of document.querySelectorAll("nav a")) {
    if (link.dataset.page === shown.name) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  content.replaceChildren(shown.element);
  if (!first) {
    content.focus({ preventScroll: true });
    scrollTo(0, 0);
  }
  polling = new Polling(async () => {
    greet(await get("me"));
    return shown.load();
  }, tell);
}

let told = "";

function tell({ state, seconds: old, message, retry }) {
  pulse.dataset.state = state;
  const age = old === null ? "" : seconds(old);
  const words = { live: "Live", loading: "Loading", stale: `${age} old`, refused: "Problem", away: "Away" }[state];
  if (pulseText.textContent !== words) pulseText.textContent = words;
  const failed = state === "away" || state === "refused";
  const problem = failed ? message : "";
  document.body.classList.toggle("out-of-date", failed || state === "stale");
  if (problem !== told) {
    told = problem;
    alerts.replaceChildren(
      ...(problem
        ? [h("p", {}, `${problem}. `, age ? "What you see is from before. " : "", "It is tried again by itself. "),
           h("button", { onclick: retry }, "Try now")]
        : []),
    );
  }
}

function greet({ identity }) {
  document.getElementById("identity").textContent = identity;
  document.getElementById("logout").hidden = !identity;
}

setInterval(() => {
  for (const time of document.querySelectorAll("time[data-ago]")) time.textContent = ago(time.dateTime);
}, 5000);
addEventListener("hashchange", () => show());
show({ first: true });
