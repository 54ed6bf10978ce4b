// How far the tasks of a run came, from all devices that were there to those that were counted.

import { h, nothing } from "./dom.js";
import { number } from "./format.js";

export function showFunnels(place, { funnels }) {
  if (!funnels.length) {
    place.replaceChildren(nothing("No tasks yet."));
    return;
  }
  place.replaceChildren(...funnels.map(funnel));
}

function funnel({ kind, steps, pending, unneeded, late, failed, refused }) {
  const widest = Math.max(1, ...steps.map(([, many]) => many));
  const lost = [
    ...named("late", late),
    ...named("failed", failed),
    ...named("refused", refused),
    ...(unneeded ? [["not needed", unneeded]] : []),
    ...(pending ? [["pending", pending]] : []),
  ];
  return h("div", { class: "funnel" },
    h("h3", {}, kind),
    h("table", {},
      h("caption", { class: "hidden" }, `Tasks to ${kind}`),
      h("tbody", {}, steps.map(([name, many]) =>
        h("tr", {},
          h("th", { scope: "row" }, name),
          h("td", { class: "bar" }, h("progress", { max: widest, value: many, "aria-hidden": true })),
          h("td", { class: "right number" }, number(many)))))),
    lost.length > 0 && h("ul", { class: "chips" }, lost.map(([name, many]) => h("li", {}, `${number(many)} ${name}`))));
}

function named(what, causes) {
  return Object.entries(causes).map(([cause, many]) => [`${what}: ${cause}`, many]);
}
