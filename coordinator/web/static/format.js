// Numbers and times as people read them.

export const NONE = "–";

export function percent(value, digits = 1) {
  return value === null || value === undefined ? NONE : `${(100 * value).toFixed(digits)} %`;
}

export function number(value, digits = 3) {
  if (value === null || value === undefined) return NONE;
  if (Number.isInteger(value)) return value.toLocaleString("en");
  return Math.abs(value) >= 1000 ? Math.round(value).toLocaleString("en") : value.toPrecision(digits);
}

export function decibel(value) {
  return value === null || value === undefined ? NONE : `${value.toFixed(1)} dB`;
}

export function bytes(value) {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let at = 0;
  while (value >= 1000 && at < units.length - 1) {
    value /= 1000;
    at += 1;
  }
  return `${at && value < 100 ? value.toFixed(1) : Math.round(value)} ${units[at]}`;
}

export function seconds(value) {
  if (value === null || value === undefined) return NONE;
  if (value < 10) return `${value.toFixed(1)} s`;
  if (value < 120) return `${Math.round(value)} s`;
  if (value < 7200) return `${Math.round(value / 60)} min`;
  return value < 172800 ? `${Math.round(value / 3600)} h` : `${Math.round(value / 86400)} days`;
}

export function ago(iso) {
  const past = (Date.now() - Date.parse(iso)) / 1000;
  return past < 5 ? "just now" : `${seconds(past)} ago`;
}

export function clock(iso) {
  return new Date(iso).toLocaleString("en-GB", { dateStyle: "short", timeStyle: "medium" });
}

export function count(many, one, several = `${one}s`) {
  return `${many.toLocaleString("en")} ${many === 1 ? one : several}`;
}
