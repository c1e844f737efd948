// What several pages are made of: badges, figures, tables, dialogs, short messages.

import { h, render } from "./dom.js";
import { number } from "./format.js";

const FEW = 5;

const STATES = {
  running: "good", complete: "done", stopped: "warn", resetting: "warn", absent: "idle",
  paused: "warn", set_aside: "bad", parked: "warn", failing: "warn", limited: "info",
  dead: "bad", queued: "info", delayed: "info", leased: "good", kept: "good", done: "done",
  problem: "bad", warning: "warn", note: "info",
  seen: "idle", unknown: "idle", quiet: "warn", stopping: "warn", alive: "good", silent: "bad",
};

export const badge = (state, text = state.replace("_", " ")) =>
  h("span", { class: `badge ${STATES[state] || "idle"}` }, text);

// A name that is long breaks behind a dot, if it must.
export const name = (text) => text.split(/(?<=\.)/).flatMap((part, i) => (i ? [h("wbr"), part] : [part]));

export const figure = (label, value, note, level) =>
  h("div", { class: `figure ${level || ""}` }, h("dt", null, label), h("dd", null,
    h("span", { class: "value" }, value), note && h("span", { class: "note" }, note)));

export const figures = (...all) => h("dl", { class: "figures" }, ...all);

export const facts = (...pairs) => h("dl", { class: "facts" }, pairs.filter(Boolean).map(([name, value]) =>
  h("div", null, h("dt", null, name), h("dd", null, value))));

export const empty = (title, text) =>
  h("div", { class: "empty" }, h("p", { class: "empty-title" }, title), text && h("p", null, text));

export const problem = (error) => h("p", { class: "notice bad", role: "alert" }, error.message);

export const progress = (label, value, max) =>
  h("progress", { "aria-label": label, value: String(max ? Math.min(1, value / max) : 0), max: "1" });

export const button = (text, onclick, options = {}) =>
  h("button", { type: "button", onclick, class: options.class, disabled: Boolean(options.disabled),
    "aria-label": options.label, "aria-pressed": options.pressed }, text);

// A bar that repeats for the eye what a number says.
export const shareOf = (part) =>
  h("svg", { class: "share", viewBox: "0 0 100 1", preserveAspectRatio: "none", "aria-hidden": "true" },
    h("path", { d: `M0,0H${(100 * part).toFixed(1)}V1H0Z` }));

// A line of small values, without axes; what it says stands beside it in words.
export function sparkline(values) {
  if (values.length < 2) return null;
  const most = Math.max(...values, 1);
  const step = 100 / (values.length - 1);
  const points = values.map((v, i) => `${(i * step).toFixed(1)},${(27 - (24 * v) / most).toFixed(1)}`);
  return h("svg", { class: "spark", viewBox: "0 0 100 28", preserveAspectRatio: "none", "aria-hidden": "true" },
    h("path", { class: "spark-area", d: `M0,28L${points.join("L")}L100,28Z` }),
    h("polyline", { points: points.join(" "), "vector-effect": "non-scaling-stroke" }));
}

// columns: {name, title, right (a number), sort (its name for sorting), wide (left out on small
// screens), class ("wider": also on middling ones), cell(row)}; sort: {by, descending, set(by)}.
export function table(caption, columns, rows, { key, sort, selected } = {}) {
  const classOf = (column) => [column.right && "right", column.wide && "wide", column.class].filter(Boolean).join(" ") || null;
  const head = (column) => {
    const isSorted = sort && column.sort && sort.by === column.sort;
    const direction = isSorted ? (sort.descending ? "descending" : "ascending") : null;
    return h("th", { scope: "col", class: classOf(column), "aria-sort": direction },
      sort && column.sort
        ? h("button", { type: "button", class: "sort", onclick: () => sort.set(column.sort) }, column.title,
          h("span", { "aria-hidden": "true", class: "arrow" }, isSorted ? (sort.descending ? "↓" : "↑") : ""))
        : column.title);
  };
  return h("div", { class: "table", role: "region", "aria-label": caption, tabindex: "0" },
    h("table", null,
      h("caption", { class: "hidden" }, caption),
      h("thead", null, h("tr", null, columns.map(head))),
      h("tbody", null, rows.map((row) =>
        h("tr", { key: key?.(row), class: selected?.(row) ? "selected" : null }, columns.map((column, i) =>
          h(i === 0 && !column.plain ? "th" : "td", { class: classOf(column), scope: i === 0 && !column.plain ? "row" : null }, column.cell(row))))))));
}

export function pager(total, offset, limit, go) {
  if (total <= limit) return null;
  return h("nav", { class: "pager", "aria-label": "Pages" },
    button("Previous", () => go(Math.max(0, offset - limit)), { disabled: offset === 0 }),
    h("span", null, `${number(offset + 1)}–${number(Math.min(total, offset + limit))} of ${number(total)}`),
    button("Next", () => go(offset + limit), { disabled: offset + limit >= total }));
}

function toast(text, level = "good") {
  const place = document.getElementById("toasts");
  const node = document.createElement("p");
  node.className = `toast ${level}`;
  node.textContent = text;
  place.append(node);
  setTimeout(() => node.remove(), 8000);
}

let leave = () => {};

// Closes the dialog that is open, as Cancel does.
export const closeDialog = () => leave();

// A dialog with `content(close, redraw)`; resolves to what close() was given, null if it was left.
// redraw() is false after the end of the dialog.
export function open(title, content) {
  leave();
  const dialog = document.getElementById("dialog");
  const before = document.activeElement;
  return new Promise((resolve) => {
    let isOpen = true;
    const close = (result) => {
      if (!isOpen) return;
      isOpen = false;
      dialog.close();
      render(dialog);
      if (before?.isConnected) before.focus();
      resolve(result);
    };
    leave = () => close(null);
    const redraw = () => {
      if (isOpen) render(dialog,
        h("header", null, h("h2", { id: "dialog-title" }, title),
          button("✕", leave, { class: "plain", label: "Close" })),
        content(close, redraw));
      return isOpen;
    };
    // The event comes late: the next dialog may be open by then.
    dialog.onclose = () => dialog.open || close(null);
    dialog.onclick = (event) => {
      if (event.target === dialog) leave(); // beside it
    };
    redraw();
    if (!dialog.open) dialog.showModal();
  });
}

// Asks before something is done, and does it by `act(values)`. `about`: [name, value], to what it is
// done; `fields`: {name, label, hint, type}, of which the values are; `done(told)`: the message then.
// A failure is told in the dialog, which keeps what was typed. Resolves to what act() gave, null if
// the dialog was left.
export function confirm({ title, about, text, action, danger, fields = [], act, done }) {
  let failed = null;
  let busy = false;
  return open(title, (close, redraw) => h("form", { method: "dialog", onsubmit: async (event) => {
    event.preventDefault();
    if (busy) return;
    [busy, failed] = [true, null];
    const values = Object.fromEntries(new FormData(event.target));
    redraw();
    try {
      const told = await act(values);
      toast(done(told));
      close(told);
    } catch (error) {
      [busy, failed] = [false, error];
      if (!redraw()) toast(error.message, "bad");
    }
  } },
  facts(...about),
  text && h("p", null, text),
  failed && problem(failed),
  fields.map((field) => h("label", null, field.label,
    h("input", { name: field.name, type: field.type || "text", autocomplete: "off", placeholder: field.hint, autofocus: true }))),
  h("div", { class: "buttons" },
    button("Cancel", () => close(null)),
    h("button", { type: "submit", class: danger ? "danger" : "primary", disabled: busy }, action))));
}

// The first of many names; `count`: how many there are.
export const few = (names, count = names.length) =>
  `${names.slice(0, FEW).join(", ")}${count > FEW ? ` and ${number(count - Math.min(FEW, names.length))} more` : ""}`;

// Does something that may fail, and says so.
export async function attempt(what, done) {
  try {
    const result = await what();
    if (done) toast(typeof done === "function" ? done(result) : done);
    return result;
  } catch (error) {
    toast(error.message, "bad");
    return null;
  }
}
