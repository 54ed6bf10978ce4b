// The end of a run's log.

import { h, nothing, replace } from "./dom.js";
import { clock } from "./format.js";

const HASH = /^[0-9a-f]{64}$/;

export function showEvents(place, { events }) {
  if (!events.length) {
    place.replaceChildren(nothing("Nothing has happened yet."));
    return;
  }
  const scrolled = place.querySelector(".scroll")?.scrollTop ?? 0;
  replace(place,
    h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Events" },
      h("table", { class: "events" },
        h("thead", {}, h("tr", {}, ["#", "Time", "Event", "Details"].map((name) => h("th", { scope: "col" }, name)))),
        h("tbody", {}, events.map((event) =>
          h("tr", {},
            h("td", { class: "number" }, String(event.sequence)),
            h("td", { class: "number nowrap" }, h("time", { datetime: event.at }, clock(event.at))),
            h("td", { class: "nowrap" }, event.kind),
            h("td", { class: "details" }, details(event.details))))))));
  place.querySelector(".scroll").scrollTop = scrolled;
}

function details(values) {
  return Object.entries(values).map(([name, value]) =>
    h("span", {}, h("span", { class: "muted" }, `${name} `), HASH.test(value) ? String(value).slice(0, 12) : String(value), " "));
}
