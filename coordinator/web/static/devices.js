// The fleet, device by device.

import { get, path } from "./api.js";
import { h, nothing, panel, replace, since, whenChanged } from "./dom.js";
import { count, number } from "./format.js";
import { badge } from "./runs.js";

export function devicesPage(reload) {
  let state = "";
  const filter = h("div", { class: "filter", role: "group", "aria-label": "Which devices" });
  const list = panel("Fleet", { wide: true });
  const element = h("div", { class: "page" }, h("h1", {}, "Devices"), filter, h("div", { class: "panels" }, list.element));

  const showFilter = whenChanged(({ counts, chosen }) => {
    const all = Object.values(counts).reduce((a, b) => a + b, 0);
    const names = [["", "all", all], ...Object.entries(counts).map(([name, many]) => [name, name, many])];
    replace(filter, ...names.map(([value, name, many]) =>
      h("button", { class: "choice", "data-key": name, "aria-pressed": String(value === chosen), onclick: () => choose(value) },
        name, h("span", { class: "number" }, many.toLocaleString("en")))));
  });

  const showDevices = whenChanged(({ devices, total }) => {
    if (!devices.length) {
      list.body.replaceChildren(nothing(state ? `No device is ${state}.` : "No device has checked in yet."));
      return;
    }
    list.body.replaceChildren(
      h("table", { class: "cards" },
        h("thead", {}, h("tr", {}, [["Device"], ["State"], ["Heard of"], ["Images", true], ["Accepted", true], ["Failed", true], ["Engine"]].map(([name, right]) =>
          h("th", { scope: "col", class: right ? "right" : null }, name)))),
        h("tbody", {}, devices.map((device) =>
          h("tr", {},
            h("th", { scope: "row" }, device.device_id,
              h("small", {}, device.labels.join(", ")),
              device.quarantine && h("small", { class: "failure" }, `in quarantine: ${device.quarantine}`),
              device.last_failure && h("small", { class: "failure" }, device.last_failure)),
            h("td", { "data-name": "State" }, badge(device.state), device.quarantine !== null && badge("quarantine"), device.stage && h("small", {}, device.stage)),
            h("td", { "data-name": "Heard of" }, since(device.last_seen_at)),
            h("td", { "data-name": "Images", class: "right number" }, number(device.samples)),
            h("td", { "data-name": "Accepted", class: "right number" }, number(device.accepted_tasks)),
            h("td", { "data-name": "Failed", class: "right number" }, number(device.failed_tasks)),
            h("td", { "data-name": "Engine" }, device.engine, h("small", {}, device.software_version)))))),
      ...(total > devices.length ? [h("p", { class: "muted" }, `The first ${devices.length} of ${count(total, "device")}.`)] : []),
    );
  });

  function choose(chosen) {
    state = chosen;
    reload();
  }

  async function load() {
    const asked = state;
    const answer = await get(asked ? path`devices?state=${asked}` : "devices");
    showFilter({ counts: answer.counts, chosen: asked });
    showDevices(answer);
    return answer.counts.working > 0;
  }

  return { element, load };
}
