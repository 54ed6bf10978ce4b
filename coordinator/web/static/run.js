// One run: where it is, what it has learned, what its pools give away, who takes part.

import { get, path, Refusal } from "./api.js";
import { Chart } from "./chart.js";
import { h, nothing, panel, replace, since, whenChanged } from "./dom.js";
import { showEvents } from "./events.js";
import { bytes, count, decibel, NONE, number, percent, seconds } from "./format.js";
import { showFunnels } from "./funnel.js";
import { showGallery } from "./gallery.js";
import { badge, doing, progressBar, tile } from "./runs.js";

const MOST_KEPT = 1000; // rounds; of more, a thinner choice is asked for

const wholePercent = (value) => `${Number((100 * value).toFixed(1))} %`;
const plain = (value) => (Math.abs(value) >= 100 ? Math.round(value).toLocaleString("en") : String(Number(value.toPrecision(3))));
const db = (value) => `${Number(value.toFixed(1))} dB`;

const LEAKAGE = [
  { key: "psnr_nearest", title: "PSNR to the nearest real image", format: db, limits: [["limit", "psnr_nearest_max_db"], ["run halts, p99", "halt_psnr_nearest_p99_db"]] },
  { key: "psnr_paired", title: "PSNR to its own real image", format: db, limits: [["limit", "psnr_paired_max_db"], ["run halts, p99", "halt_psnr_paired_p99_db"]] },
  { key: "ssim_nearest", title: "SSIM to the nearest real image", format: plain, limits: [["limit", "ssim_nearest_max"], ["run halts, p99", "halt_ssim_nearest_p99"]] },
  { key: "ssim_paired", title: "SSIM to its own real image", format: plain, limits: [["limit", "ssim_paired_max"], ["run halts, p99", "halt_ssim_paired_p99"]] },
];

const ACTIONS = { report: "only reported", refuse: "refused, with their batch", drop: "dropped" };

export function runPage(runId) {
  const api = (what) => get(path`runs/${runId}` + what);
  let rounds = [];
  let refreshes = -1;
  const head = h("div", { class: "run-head" }, h("h1", {}, runId));
  const tiles = h("dl", { class: "tiles" });

  const accuracy = new Chart({ title: "Accuracy", format: wholePercent, floor: 0, ceiling: 1, empty: "No model was evaluated yet." });
  const loss = new Chart({ title: "Loss", format: plain, floor: 0 });
  const cohort = new Chart({ title: "Devices per round", format: plain, floor: 0, bars: true, whole: true });
  const leakage = LEAKAGE.map((kind) => ({ ...kind, chart: new Chart({ title: kind.title, format: kind.format, empty: "Not known of any pool." }) }));

  const inAccuracy = panel("Accuracy");
  const inLoss = panel("Loss");
  const inPrivacy = panel("Measured leakage", { wide: true, hint: "of each pool; higher is more alike. Measured on the devices, not a proof of privacy." });
  const inCohort = panel("Cohort");
  const inFunnel = panel("Funnel", { hint: "how far tasks came, in all rounds" });
  const inGallery = panel("Pool", { wide: true, hint: "synthetic images in use, by class" });
  const inEvents = panel("Events", { wide: true, hint: "the newest first" });
  const inRecipe = panel("Recipe", { wide: true });

  const names = h("div", { class: "names" });
  const privacyNote = h("p", { class: "muted" });
  const subcharts = h("div", { class: "subcharts" }, leakage.map((kind) => h("div", {}, h("h3", {}, kind.title), kind.chart.element)));
  inAccuracy.body.append(accuracy.element);
  inLoss.body.append(loss.element);
  inCohort.body.append(cohort.element, names);
  const panels = h("div", { class: "panels", hidden: true }, [inAccuracy, inLoss, inPrivacy, inGallery, inCohort, inFunnel, inEvents, inRecipe].map((one) => one.element));
  const element = h("div", { class: "page" }, head, tiles, panels);

  const showHead = whenChanged((run) => {
    replace(head,
      h("p", { class: "crumbs" }, h("a", { href: "#/" }, "Runs"), " / "),
      h("h1", {}, run.run_id, " ", badge(run.state)),
      doing(run) ? h("p", { class: run.state === "paused" ? "doing notice" : "doing" }, doing(run)) : "",
      progressBar(run),
      h("p", { class: "muted" }, `${run.method}, created `, since(run.created_at), run.start_from ? `, from ${run.start_from}` : ""));
  });

  const showRecipe = whenChanged(({ recipe, policy }) => {
    const model = recipe.model;
    inRecipe.body.replaceChildren(
      h("p", { class: "muted" }, `${model.architecture} for images of ${model.channels} × ${model.height} × ${model.width} in ${count(model.classes, "class", "classes")}; seed ${recipe.seed}`),
      h("details", {}, h("summary", {}, "All of it"), h("div", { class: "pairs" }, pairs({ ...recipe, policy }))));
  });

  const showTiles = whenChanged(({ run, last, moved }) => {
    const measured = run.last_round;
    const pool = measured?.leakage?.psnr_nearest;
    const limit = run.limits.psnr_nearest_max_db;
    tiles.replaceChildren(
      tile("Accuracy", percent(run.accuracy), run.best_round ? `best after round ${run.best_round}` : ""),
      tile("Loss", number(measured?.loss ?? measured?.training_loss), measured?.loss === null ? "in training" : "held out"),
      tile("Cohort", last ? String(last.devices) : NONE, last ? `of round ${last.number}` : ""),
      tile("Pool", measured?.pool_samples ? number(measured.pool_samples) : NONE, measured?.pool_samples ? "synthetic images" : ""),
      tile("Closest image", pool ? decibel(pool.max) : NONE, pool ? (limit === undefined ? "PSNR, no limit" : `PSNR, limit ${decibel(limit)}`) : ""),
      tile("Last round", seconds(measured?.duration_seconds), moved ? `${bytes(moved)} moved` : ""));
  });

  function showRounds(lastCohort) {
    const line = (name, key) => ({ name, points: rounds.map((one) => [one.number, one[key]]) });
    const marks = { name: "new pool", at: rounds.filter((one) => one.refreshed).map((one) => one.number) };
    accuracy.update({ series: [line("held out", "accuracy"), line("by devices", "device_accuracy")], marks });
    loss.update({ series: [line("held out", "loss"), line("training", "training_loss"), line("by devices", "device_loss")], marks });
    cohort.update({ series: [line("devices", "devices")] });
    if (lastCohort.length) {
      const more = rounds.at(-1).devices - lastCohort.length;
      names.replaceChildren(h("h3", {}, `In round ${rounds.at(-1).number}`), h("ul", { class: "chips" },
        lastCohort.map((name) => h("li", {}, name)), more > 0 && h("li", { class: "more" }, `and ${more} more`)));
    }
  }

  function showPrivacy({ pools, limits, store_away: away, total }) {
    for (const { key, chart, limits: kinds } of leakage) {
      const line = (name) => ({ name, points: pools.map((pool) => [pool.round, pool[key]?.[name] ?? null]) });
      chart.update({
        series: [line("max"), line("p99"), line("mean")],
        limits: kinds.filter(([, limit]) => limit in limits).map(([name, limit]) => ({ name, value: limits[limit] })),
      });
    }
    privacyNote.textContent = away ? `SSIM is not known now: ${away}` : total ? `${count(total, "pool")}; images over a limit are ${ACTIONS[limits.action]}.` : "";
    inPrivacy.body.replaceChildren(...(total ? [subcharts, privacyNote] : [nothing("No pool yet. Methods that share images make one at each refresh.")]));
  }

  async function loadRounds() {
    if (rounds.length > MOST_KEPT) rounds = [];
    const after = rounds.at(-1)?.number ?? 0;
    const fresh = await api(`/rounds?after=${after}`);
    if (!fresh.rounds.length && after) return;
    rounds = [...rounds, ...fresh.rounds];
    showRounds(fresh.cohort);
  }

  // The store may be away while all else is well: that is said where its images would be.
  async function loadPool() {
    const made = rounds.filter((one) => one.refreshed).length;
    if (made === refreshes) return;
    showPrivacy(await api("/privacy"));
    try {
      await showGallery(inGallery.body, runId, await api("/gallery"));
      refreshes = made;
    } catch (error) {
      if (!(error instanceof Refusal)) throw error;
      inGallery.body.replaceChildren(nothing(`The images cannot be had now: ${error.message}`));
    }
  }

  const funnels = whenChanged((answer) => showFunnels(inFunnel.body, answer));
  const events = whenChanged((answer) => showEvents(inEvents.body, answer));

  async function load() {
    const [run, funnel, log] = await Promise.all([api(""), api("/funnel"), api("/events"), loadRounds()]);
    const measured = run.last_round;
    panels.hidden = false;
    showHead(run);
    showRecipe({ recipe: run.recipe, policy: run.policy });
    showTiles({ run, last: rounds.at(-1), moved: measured ? measured.received_bytes + measured.sent_bytes : 0 });
    funnels(funnel);
    events(log);
    await loadPool();
    return !run.ended;
  }

  return { element, load };
}

/** Names and values, nested ones with their names joined. */
function pairs(value, prefix = "") {
  return Object.entries(value).flatMap(([name, one]) =>
    one !== null && typeof one === "object" && !Array.isArray(one)
      ? pairs(one, `${prefix}${name}.`)
      : [h("div", {}, h("span", { class: "muted" }, prefix + name), h("span", { class: "number" }, one === null ? NONE : String(one)))]);
}
