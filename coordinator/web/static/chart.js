// Curves over rounds, as SVG: axes, lines, limits, a cursor for mouse, finger and keyboard, and
// the same numbers as a table.

import { h, nothing, s } from "./dom.js";
import { NONE } from "./format.js";

const HEIGHT = 230;
const EDGE = { top: 12, right: 14, bottom: 34, left: 52 };
const MOST_DOTS = 60; // of more, a line shows no single ones

/** Round numbers between two others, about so many. */
export function ticks(low, high, about) {
  const rough = (high - low) / Math.max(1, about);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 2.5, 5, 10].find((nice) => nice * power >= rough * 0.999);
  const found = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i += 1) {
    found.push(Number((i * step).toPrecision(12)));
  }
  return found;
}

/**
 * A chart that is drawn anew by `update({series, limits, marks})`:
 *   series  [{name, points: [[x, y or null], ...]}], drawn in the colours and dashes of the style
 *   limits  [{name, value}], as lines across
 *   marks   {name, at: [x, ...]}, as ticks below
 */
export class Chart {
  #options;
  #figure;
  #plot;
  #legend;
  #tip;
  #table;
  #data = { series: [], limits: [], marks: null };
  #scales = null;
  #cursor = null;
  #width = 0;

  constructor({ title, format, bars = false, whole = false, floor = null, ceiling = null, axis = "round", empty = "Nothing was measured yet." }) {
    this.#options = { title, format, bars, whole, floor, ceiling, axis, empty };
    this.#plot = h("div", { class: "plot" });
    this.#legend = h("ul", { class: "legend" });
    this.#tip = h("div", { class: "tip", role: "status", hidden: true });
    const rows = h("div", { class: "scroll" });
    this.#table = h("details", { class: "numbers", ontoggle: () => this.#fillTable(rows) }, h("summary", {}, "Numbers"), rows);
    this.#figure = h("figure", { class: "chart" }, this.#legend, this.#plot, this.#table);
    new ResizeObserver(([entry]) => {
      const width = Math.round(entry.contentRect.width);
      if (width && width !== this.#width) {
        this.#width = width;
        this.#draw();
      }
    }).observe(this.#plot);
  }

  get element() {
    return this.#figure;
  }

  update(data) {
    this.#data = { limits: [], marks: null, ...data, series: data.series.filter((one) => one.points.some(([, y]) => y !== null)) };
    this.#draw();
    if (this.#table.open) this.#fillTable(this.#table.lastChild);
  }

  #draw() {
    const { series, limits, marks } = this.#data;
    this.#table.hidden = !series.length;
    if (!series.length) {
      this.#legend.replaceChildren();
      this.#plot.replaceChildren(nothing(this.#options.empty));
      return;
    }
    if (!this.#width) return; // not on the screen yet
    const scales = (this.#scales = this.#scale());
    const svg = s("svg", {
      viewBox: `0 0 ${this.#width} ${HEIGHT}`, width: this.#width, height: HEIGHT, role: "img", tabindex: 0,
      "aria-label": this.#summary(), onpointermove: (event) => this.#point(event), onpointerdown: (event) => this.#point(event),
      onpointerleave: () => this.#unpoint(), onkeydown: (event) => this.#key(event), onblur: () => this.#unpoint(),
    });
    svg.append(this.#grid(scales), s("g", { class: "limits" }, limits.map((limit) =>
      s("line", { x1: EDGE.left, x2: this.#width - EDGE.right, y1: scales.y(limit.value), y2: scales.y(limit.value) }))));
    if (marks) {
      svg.append(s("g", { class: "marks" }, marks.at.map((x) =>
        s("line", { x1: scales.x(x), x2: scales.x(x), y1: EDGE.top, y2: HEIGHT - EDGE.bottom }))));
    }
    series.forEach((one, i) => svg.append(this.#options.bars ? this.#bars(one, i, scales) : this.#line(one, i, scales)));
    svg.append(s("line", { class: "cursor", y1: EDGE.top, y2: HEIGHT - EDGE.bottom, visibility: "hidden" }));
    const focused = this.#plot.contains(document.activeElement);
    this.#plot.replaceChildren(svg, this.#tip);
    if (focused) svg.focus({ preventScroll: true });
    this.#drawLegend();
    if (this.#cursor !== null) this.#moveTo(this.#cursor);
  }

  #scale() {
    const { series, limits } = this.#data;
    const xs = [...new Set(series.flatMap((one) => one.points.map(([x]) => x)))].sort((a, b) => a - b);
    const ys = [...series.flatMap((one) => one.points.map(([, y]) => y)), ...limits.map((limit) => limit.value)].filter((y) => y !== null);
    let low = this.#options.floor ?? Math.min(...ys);
    let high = this.#options.ceiling ?? Math.max(...ys);
    if (high - low < 1e-9) [low, high] = [low - Math.abs(low || 1) * 0.1, high + Math.abs(high || 1) * 0.1];
    if (this.#options.ceiling === null) high += 0.06 * (high - low);
    if (this.#options.floor === null) low -= 0.06 * (high - low);
    const half = this.#options.bars ? 0.5 : 0;
    let [first, last] = [xs[0] - half, xs.at(-1) + half];
    if (last === first) [first, last] = [first - 0.5, last + 0.5];
    const across = this.#width - EDGE.left - EDGE.right;
    const down = HEIGHT - EDGE.top - EDGE.bottom;
    return {
      xs, low, high, first, last,
      x: (x) => EDGE.left + ((x - first) / (last - first)) * across,
      y: (y) => EDGE.top + (1 - (y - low) / (high - low)) * down,
      step: across / (last - first),
    };
  }

  #grid(scales) {
    const { low, high, first, last, x, y } = scales;
    const wholes = ticks(first, last, this.#width / 90).filter(Number.isInteger);
    const bottom = HEIGHT - EDGE.bottom;
    return s("g", { class: "grid" },
      ticks(low, high, 5).filter((value) => !this.#options.whole || Number.isInteger(value)).map((value) => [
        s("line", { x1: EDGE.left, x2: this.#width - EDGE.right, y1: y(value), y2: y(value) }),
        s("text", { x: EDGE.left - 8, y: y(value), dy: "0.32em", "text-anchor": "end" }, this.#options.format(value)),
      ]),
      wholes.map((value) => s("text", { x: x(value), y: bottom + 17, "text-anchor": "middle" }, String(value))),
      s("text", { x: this.#width - EDGE.right, y: HEIGHT - 2, "text-anchor": "end", class: "axis" }, this.#options.axis),
      s("line", { class: "base", x1: EDGE.left, x2: this.#width - EDGE.right, y1: bottom, y2: bottom }));
  }

  #line(one, i, { x, y }) {
    const known = one.points.filter(([, value]) => value !== null);
    const way = known.map(([at, value], k) => `${k ? "L" : "M"}${x(at).toFixed(1)} ${y(value).toFixed(1)}`).join("");
    const dots = known.length <= MOST_DOTS ? known.map(([at, value]) => s("circle", { cx: x(at), cy: y(value), r: 2.6 })) : [];
    return s("g", { class: `series series-${i}` }, s("path", { d: way }), dots);
  }

  #bars(one, i, { x, y, low, step }) {
    const wide = Math.max(1, step * 0.7);
    return s("g", { class: `series series-${i} bars` }, one.points.filter(([, value]) => value !== null).map(([at, value]) =>
      s("rect", { x: x(at) - wide / 2, width: wide, y: y(value), height: Math.max(0, y(low) - y(value)), rx: Math.min(2, wide / 4) })));
  }

  #drawLegend() {
    const { series, limits, marks } = this.#data;
    const sample = (kind) => s("svg", { width: 22, height: 10, viewBox: "0 0 22 10", "aria-hidden": true },
      s("g", { class: kind }, s("line", { x1: 1, x2: 21, y1: 5, y2: 5 })));
    this.#legend.replaceChildren(
      ...(series.length > 1 || limits.length || marks ? series : []).map((one, i) => h("li", {}, sample(`series series-${i}`), one.name)),
      ...limits.map((limit) => h("li", {}, sample("limits"), `${limit.name} ${this.#options.format(limit.value)}`)),
      ...(marks?.at.length ? [h("li", {}, sample("marks"), marks.name)] : []));
  }

  #summary() {
    const parts = this.#data.series.map((one) => {
      const [x, y] = one.points.filter(([, value]) => value !== null).at(-1);
      return `${one.name} ${this.#options.format(y)} at ${this.#options.axis} ${x}`;
    });
    return `${this.#options.title}: ${parts.join("; ")}. Use the arrow keys to go through it.`;
  }

  // --- the cursor -------------------------------------------------------------------------------

  #point(event) {
    const box = event.currentTarget.getBoundingClientRect();
    const { xs, x } = this.#scales;
    const at = event.clientX - box.left;
    this.#moveTo(xs.reduce((best, one) => (Math.abs(x(one) - at) < Math.abs(x(best) - at) ? one : best)));
  }

  #unpoint() {
    this.#cursor = null;
    this.#tip.hidden = true;
    this.#plot.querySelector(".cursor")?.setAttribute("visibility", "hidden");
  }

  #key(event) {
    const { xs } = this.#scales;
    const now = xs.indexOf(this.#cursor);
    const last = xs.length - 1;
    const to = {
      ArrowLeft: now < 0 ? last : Math.max(0, now - 1),
      ArrowRight: now < 0 ? 0 : Math.min(last, now + 1),
      Home: 0,
      End: last,
    }[event.key];
    if (event.key === "Escape") this.#unpoint();
    if (to === undefined) return;
    event.preventDefault();
    this.#moveTo(xs[to]);
  }

  #moveTo(at) {
    this.#cursor = at;
    const { x } = this.#scales;
    const cursor = this.#plot.querySelector(".cursor");
    cursor.setAttribute("x1", x(at));
    cursor.setAttribute("x2", x(at));
    cursor.setAttribute("visibility", "visible");
    this.#tip.replaceChildren(h("strong", {}, `${this.#options.axis} ${at}`), ...this.#data.series.map((one) =>
      h("span", {}, `${one.name} `, h("b", {}, this.#valueAt(one, at)))));
    this.#tip.hidden = false;
    const room = this.#width - this.#tip.offsetWidth - 4;
    const beside = x(at) + 12 > room ? x(at) - this.#tip.offsetWidth - 12 : x(at) + 12;
    this.#tip.style.left = `${Math.max(0, Math.min(room, beside))}px`;
  }

  #valueAt(one, at) {
    const value = one.points.find(([x]) => x === at)?.[1] ?? null;
    return value === null ? NONE : this.#options.format(value);
  }

  #fillTable(rows) {
    if (!this.#table.open || !this.#scales) return;
    const { series } = this.#data;
    rows.replaceChildren(
      h("table", {},
        h("caption", { class: "hidden" }, this.#options.title),
        h("thead", {}, h("tr", {}, h("th", { scope: "col" }, this.#options.axis), series.map((one) => h("th", { scope: "col", class: "right" }, one.name)))),
        h("tbody", {}, this.#scales.xs.map((x) =>
          h("tr", {}, h("th", { scope: "row", class: "number" }, String(x)), series.map((one) => h("td", { class: "right number" }, this.#valueAt(one, x))))))));
  }
}
