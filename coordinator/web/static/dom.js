// Elements made from names and texts. Text is always text: nothing here, or in any other file of
// this page, makes markup of a string, so what devices and runs call themselves stays harmless.

import { ago } from "./format.js";

const SVG = "http://www.w3.org/2000/svg";

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  for (const child of children.flat(Infinity)) {
    if (child !== null && child !== undefined && child !== false) element.append(child);
  }
  return element;
}

/** An HTML element: h("p", {class: "note"}, "text", otherElement). */
export function h(name, attributes, ...children) {
  return fill(document.createElement(name), attributes, children);
}

/** An SVG element. */
export function s(name, attributes, ...children) {
  return fill(document.createElementNS(SVG, name), attributes, children);
}

/** A panel with a heading; `body` is where its content goes. */
export function panel(title, { wide = false, hint = "" } = {}) {
  const body = h("div", { class: "panel-body" });
  const id = `panel-${title.toLowerCase().replaceAll(/[^a-z]+/g, "-")}`;
  const element = h(
    "section",
    { class: wide ? "panel wide" : "panel", "aria-labelledby": id },
    h("h2", { id }, title, hint && h("small", {}, hint)),
    body,
  );
  return { element, body };
}

/** Calls `render` only when the value is another than the last time, so that nothing flickers. */
export function whenChanged(render) {
  let last;
  return (value) => {
    const text = JSON.stringify(value);
    if (text === last) return;
    last = text;
    render(value);
  };
}

/** Puts other children in place of those there are; who had the focus has it again. */
export function replace(place, ...children) {
  const focused = place.contains(document.activeElement) && keyOf(document.activeElement);
  place.replaceChildren(...children);
  if (focused) {
    const again = [...place.querySelectorAll("a, button, summary, [tabindex]")];
    again.find((one) => keyOf(one) === focused)?.focus({ preventScroll: true });
  }
}

function keyOf(element) {
  return element.getAttribute("href") ?? element.dataset.key ?? element.className;
}

/** What is put where there is nothing to show. */
export function nothing(...text) {
  return h("p", { class: "nothing" }, text);
}

/** How long ago that was; main.js keeps it true. */
export function since(iso) {
  return h("time", { datetime: iso, title: iso, "data-ago": true }, ago(iso));
}
