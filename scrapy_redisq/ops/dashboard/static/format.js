// Numbers, times and sizes as people read them.

const whole = new Intl.NumberFormat("en");

export const number = (n) => (n === null || n === undefined ? "–" : whole.format(Math.round(n)));

// With as many digits as say something: 0.4, 12.3, 1,204.
export function rate(n) {
  if (n === null || n === undefined) return "–";
  return n > 0 && n < 100 ? n.toFixed(1) : number(n);
}

export function bytes(n) {
  if (n === null || n === undefined) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let at = 0;
  while (Math.abs(n) >= 1024 && at < units.length - 1) [n, at] = [n / 1024, at + 1];
  return `${at && Math.abs(n) < 100 ? n.toFixed(1) : number(n)} ${units[at]}`;
}

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  const s = Math.max(0, seconds);
  if (s < 1) return `${Math.round(s * 1000)} ms`;
  if (s < 10 && !Number.isInteger(s)) return `${s.toFixed(1)} s`;
  if (s < 60) return `${Math.round(s)} s`;
  if (s < 3600) return `${Math.floor(s / 60)} m ${Math.floor(s % 60)} s`;
  if (s < 86400) return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} m`;
  return `${Math.floor(s / 86400)} d ${Math.floor((s % 86400) / 3600)} h`;
}

// Milliseconds since 1970 by the dashboard's clock, where this machine's is wrong.
const WRONG = 10_000;
let ahead = 0;
export const now = () => Date.now() + ahead;
export function setClock(date) {
  const found = Date.parse(date) - Date.now();
  if (!Number.isNaN(found)) ahead = Math.abs(found) > WRONG ? found : 0;
}

// A time as ISO text or as seconds since 1970.
const seconds = (at) => (typeof at === "number" ? at : Date.parse(at) / 1000);

export function ago(at) {
  if (!at) return "–";
  const past = now() / 1000 - seconds(at);
  return past < 5 ? "just now" : `${duration(Math.round(past))} ago`;
}

// That a long list was not read just now, where it was not.
export const readAgo = (age) => (age > 10 ? `read ${duration(Math.round(age))} ago` : "");

export function clock(at) {
  if (!at) return "–";
  return new Date(seconds(at) * 1000).toLocaleString("en-GB", {
    day: "numeric", month: "short", hour: "2-digit", minute: "2-digit", second: "2-digit",
  });
}

export function share(part, all) {
  if (!all) return "–";
  const percent = (100 * part) / all;
  if (percent > 0 && percent < 1) return "< 1 %";
  return `${Math.floor(percent)} %`; // 99.97 % of a crawl is not all of it
}

export const plural = (n, one, many = `${one}s`) => `${number(n)} ${n === 1 ? one : many}`;
