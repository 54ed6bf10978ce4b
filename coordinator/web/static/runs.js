// The list of runs, and the coordinator in a few numbers.

import { get, path } from "./api.js";
import { h, nothing, panel, replace, since, whenChanged } from "./dom.js";
import { count, NONE, percent } from "./format.js";

/** A badge with the state of a run or a device. */
export function badge(state) {
  return h("span", { class: "badge", "data-state": state.replaceAll(" ", "-") }, state);
}

/** A number with its name. */
export function tile(name, value, note = "") {
  return h("div", { class: "tile" }, h("dt", {}, name), h("dd", {}, value), note && h("dd", { class: "tile-note" }, note));
}

/** How far a run is, as a bar with words. */
export function progressBar(run) {
  const done = run.completed_rounds;
  const within = run.progress?.expected ? run.progress.done / run.progress.expected : 0;
  const bar = h("progress", { max: run.rounds, value: Math.min(run.rounds, done + 0.999 * within), "aria-label": `rounds of ${run.run_id}` });
  return h("div", { class: "progress" }, bar, h("span", { class: "number nowrap" }, `${done} / ${run.rounds}`));
}

/** What a run is doing right now, in words. */
export function doing(run) {
  if (run.state_reason) return run.state_reason;
  if (!run.progress) return "";
  const { round, phase, done, expected } = run.progress;
  return `round ${round}: ${phase}${expected ? `, ${done} of ${expected}` : ""}`;
}

export function runsPage() {
  const tiles = h("dl", { class: "tiles" });
  const drained = h("div");
  const list = panel("Runs", { wide: true });
  const element = h("div", { class: "page" }, h("h1", {}, "Overview"), drained, tiles, h("div", { class: "panels" }, list.element));

  const showStatus = whenChanged((status) => {
    const { runs, devices, tasks, drain } = status;
    const under = Object.entries(tasks).map(([stage, many]) => `${many} ${stage}`).join(", ");
    tiles.replaceChildren(
      tile("Running", String(runs.running ?? 0), `${runs.paused ?? 0} paused, ${runs.completed ?? 0} completed`),
      tile("Devices at work", String(devices.working ?? 0), `${devices.available ?? 0} available, ${devices.away ?? 0} away`),
      tile("Tasks out", String(Object.values(tasks).reduce((a, b) => a + b, 0)), under || "none"),
    );
    drained.replaceChildren(
      ...(drain.on ? [h("p", { class: "notice" }, `The coordinator is drained, by ${drain.by || "nobody known"}: it hands out no work until it is told `, h("code", {}, "hfmds drain --off"), ".")] : []),
    );
  });

  const showRuns = whenChanged(({ runs, total }) => {
    if (!runs.length) {
      list.body.replaceChildren(nothing("No runs yet. ", h("code", {}, "hfmds run create"), " makes one."));
      return;
    }
    replace(list.body,
      h("table", { class: "cards" },
        h("thead", {}, h("tr", {}, ["Run", "State", "Method", "Rounds", "Accuracy", "Created"].map((name) =>
          h("th", { scope: "col", class: ["Accuracy"].includes(name) ? "right" : null }, name)))),
        h("tbody", {}, runs.map((run) =>
          h("tr", {},
            h("th", { scope: "row" }, h("a", { href: path`#/run/${run.run_id}` }, run.run_id), h("small", { class: "doing" }, doing(run))),
            h("td", { "data-name": "State" }, badge(run.state)),
            h("td", { "data-name": "Method", class: "nowrap" }, run.method),
            h("td", { "data-name": "Rounds" }, progressBar(run)),
            h("td", { "data-name": "Accuracy", class: "right number" }, run.accuracy === null ? NONE : percent(run.accuracy)),
            h("td", { "data-name": "Created", class: "nowrap" }, since(run.created_at)))))),
      ...(total > runs.length ? [h("p", { class: "muted" }, `The newest ${runs.length} of ${count(total, "run")}.`)] : []),
    );
  });

  async function load() {
    const [status, runs] = await Promise.all([get("status"), get("runs")]);
    showStatus(status);
    showRuns(runs);
    return runs.runs.some((run) => !run.ended);
  }

  return { element, load };
}
