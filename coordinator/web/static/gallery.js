// The images of a pool, class by class, cut out of one picture.

import { path, Refusal } from "./api.js";
import { h, nothing, since } from "./dom.js";
import { count } from "./format.js";

export async function showGallery(place, runId, pool) {
  if (!pool.snapshot_id) {
    place.replaceChildren(nothing("No pool is in use."));
    return;
  }
  const picture = new Image();
  picture.src = path`/api/runs/${runId}/gallery/${pool.snapshot_id}.png`;
  await picture.decode().catch(() => {
    throw new Refusal("the picture did not arrive");
  });
  const { tile_width: width, tile_height: height } = pool;
  const rows = pool.rows.map((row, y) => {
    const tiles = Array.from({ length: row.shown }, (_, x) => {
      const canvas = h("canvas", { width, height, "aria-hidden": true });
      canvas.getContext("2d").drawImage(picture, x * width, y * height, width, height, 0, 0, width, height);
      return canvas;
    });
    const what = `class ${row.name}: ${row.shown} of ${count(row.samples, "image")}`;
    return h("div", { class: "class-row" },
      h("div", { class: "class-name" }, row.name, h("small", {}, count(row.samples, pool.mixtures ? "mixture" : "image"))),
      h("div", { class: "images", role: "img", "aria-label": what }, tiles));
  });
  const hidden = pool.classes - pool.rows.length;
  place.replaceChildren(
    h("p", { class: "muted" }, `${count(pool.samples, "image")} of round ${pool.round}, sealed `, since(pool.sealed_at), `; snapshot ${pool.snapshot_id}`),
    h("div", { class: "gallery" }, rows),
    hidden > 0 ? h("p", { class: "muted" }, `and ${count(hidden, "class", "classes")} more`) : "");
}
